//! Functions applied element by element.

use super::context::{LaunchConfig, int, kernel_args};
use super::{CudaDtype, CudaError, CudaTensor};
use crate::params::Activation;

/// `out[r, c] = silu(x[r, c]) * x[r, n + c]`: x is (rows, 2n), the result (rows, n) in the same
/// format.
pub(crate) fn swiglu(x: &CudaTensor) -> Result<CudaTensor, CudaError> {
    assert!(x.cols().is_multiple_of(2), "swiglu: {} columns are not two halves", x.cols());
    let n = x.cols() / 2;
    let out = CudaTensor::uninit(x.cuda(), x.rows(), n, x.dtype())?;
    // SAFETY: x is (rows, 2n) and out (rows, n), in one format.
    unsafe {
        x.cuda().launch(
            "swiglu",
            LaunchConfig::per_row(x.rows(), n.div_ceil(8)),
            kernel_args![x.pointer(), x.dtype(), out.pointer(), int(n)],
        )
    }?;
    Ok(out)
}

/// `activation(x)` in format `want`.
pub(crate) fn activate(
    x: &CudaTensor,
    activation: Activation,
    want: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    let out = CudaTensor::uninit(x.cuda(), x.rows(), x.cols(), want)?;
    let count = x.rows() * x.cols();
    let arguments =
        kernel_args![x.pointer(), x.dtype(), activation.code(), out.pointer(), want, count as u64];
    // SAFETY: both have `count` elements.
    unsafe {
        x.cuda().launch("activate", LaunchConfig::for_threads(count.div_ceil(4)), arguments)
    }?;
    Ok(out)
}

/// `dy * activation'(x)` in format `want`.
pub(crate) fn activate_backward(
    x: &CudaTensor,
    activation: Activation,
    dy: &CudaTensor,
    want: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    assert_eq!((x.rows(), x.cols()), (dy.rows(), dy.cols()), "activate_backward: unlike shapes");
    let out = CudaTensor::uninit(x.cuda(), x.rows(), x.cols(), want)?;
    let count = x.rows() * x.cols();
    let arguments = kernel_args![
        x.pointer(),
        x.dtype(),
        activation.code(),
        dy.pointer(),
        dy.dtype(),
        out.pointer(),
        want,
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

/// What reaches x (rows, 2n) from dy (rows, n), in format `want`.
pub(crate) fn swiglu_backward(
    x: &CudaTensor,
    dy: &CudaTensor,
    want: CudaDtype,
) -> Result<CudaTensor, CudaError> {
    assert_eq!((x.rows(), x.cols()), (dy.rows(), 2 * dy.cols()), "swiglu_backward: unlike shapes");
    let out = CudaTensor::uninit(x.cuda(), x.rows(), x.cols(), want)?;
    let n = dy.cols();
    let arguments =
        kernel_args![x.pointer(), x.dtype(), dy.pointer(), dy.dtype(), out.pointer(), want, int(n)];
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
