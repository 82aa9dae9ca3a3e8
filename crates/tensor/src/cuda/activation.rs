//! Element-wise activations.

use super::context::{LaunchConfig, int, kernel_args};
use super::{CudaDevice, CudaDtype, CudaError, CudaTensor, fp8};
use crate::params::Activation;

/// `out[r, c] = silu(x[r, c]) * x[r, n + c]`: x is (rows, 2n), the result (rows, n) of the same
/// dtype, except that bf16 becomes e4m3 on a device of precision fp8.
pub(crate) fn swiglu(cuda: &CudaDevice, x: &CudaTensor) -> Result<CudaTensor, CudaError> {
    assert!(x.cols().is_multiple_of(2), "swiglu: {} columns are not two halves", x.cols());
    let n = x.cols() / 2;
    let is_operand = cuda.operand_dtype() == CudaDtype::E4m3 && x.dtype() == CudaDtype::Bf16;
    if is_operand && fp8::supports_swiglu(n) {
        return fp8::swiglu(x);
    }
    let out = CudaTensor::uninit(x.cuda(), x.rows(), n, x.dtype())?;
    // SAFETY: x is (rows, 2n) and out (rows, n), of one dtype.
    unsafe {
        x.cuda().launch(
            "swiglu",
            LaunchConfig::per_row(x.rows(), n.div_ceil(8)),
            kernel_args![x.pointer(), x.dtype(), out.pointer(), int(n)],
        )
    }?;
    Ok(out)
}

/// `activation(x)` in the given dtype.
pub(crate) fn activate(
    x: &CudaTensor,
    activation: Activation,
    dtype: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    let out = CudaTensor::uninit(x.cuda(), x.rows(), x.cols(), dtype)?;
    let count = x.rows() * x.cols();
    let arguments =
        kernel_args![x.pointer(), x.dtype(), activation.code(), out.pointer(), dtype, count as u64];
    // SAFETY: both have `count` elements.
    unsafe {
        x.cuda().launch("activate", LaunchConfig::for_threads(count.div_ceil(4)), arguments)
    }?;
    Ok(out)
}

/// `dy * activation'(x)` in the given dtype.
pub(crate) fn activate_backward(
    x: &CudaTensor,
    activation: Activation,
    dy: &CudaTensor,
    dtype: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    assert_eq!((x.rows(), x.cols()), (dy.rows(), dy.cols()), "activate_backward: shapes differ");
    let out = CudaTensor::uninit(x.cuda(), x.rows(), x.cols(), dtype)?;
    let count = x.rows() * x.cols();
    let arguments = kernel_args![
        x.pointer(),
        x.dtype(),
        activation.code(),
        dy.pointer(),
        dy.dtype(),
        out.pointer(),
        dtype,
        count as u64
    ];
    // SAFETY: all have `count` elements.
    unsafe {
        x.cuda().launch(
            "activate_backward",
            LaunchConfig::for_threads(count.div_ceil(4)),
            arguments,
        )
    }?;
    Ok(out)
}

/// The gradient of x (rows, 2n) from dy (rows, n), in the given dtype.
pub(crate) fn swiglu_backward(
    x: &CudaTensor,
    dy: &CudaTensor,
    dtype: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    assert_eq!((x.rows(), x.cols()), (dy.rows(), 2 * dy.cols()), "swiglu_backward: shapes differ");
    let out = CudaTensor::uninit(x.cuda(), x.rows(), x.cols(), dtype)?;
    let n = dy.cols();
    let arguments = kernel_args![
        x.pointer(),
        x.dtype(),
        dy.pointer(),
        dy.dtype(),
        out.pointer(),
        dtype,
        int(n)
    ];
    // SAFETY: x and out are (rows, 2n), dy (rows, n).
    unsafe {
        x.cuda().launch(
            "swiglu_backward",
            LaunchConfig::per_row(x.rows(), n.div_ceil(4)),
            arguments,
        )
    }?;
    Ok(out)
}
