//! Functions applied element by element.

use super::context::{Grid, int, slots};
use super::linear::Activation;
use super::{Array, CudaError, Dtype};

/// `out[r, c] = silu(x[r, c]) * x[r, n + c]`: x is (rows, 2n), the result (rows, n) in the same format.
pub(crate) fn swiglu(x: &Array) -> Result<Array, CudaError> {
    assert!(x.cols().is_multiple_of(2), "swiglu: {} columns are not two halves", x.cols());
    let n = x.cols() / 2;
    let out = Array::uninit(x.cuda(), x.rows(), n, x.dtype())?;
    // SAFETY: x is (rows, 2n) and out (rows, n), in one format.
    unsafe {
        x.cuda().launch("swiglu", Grid::rows(x.rows(), n.div_ceil(8)), slots![x.pointer(), x.dtype(), out.pointer(), int(n)])
    }?;
    Ok(out)
}

/// `activation(x)` in format `want`.
pub(crate) fn activate(x: &Array, activation: Activation, want: Dtype) -> Result<Array, CudaError> {
    let out = Array::uninit(x.cuda(), x.rows(), x.cols(), want)?;
    let count = x.rows() * x.cols();
    let arguments = slots![x.pointer(), x.dtype(), activation.code(), out.pointer(), want, count as u64];
    // SAFETY: both have `count` elements.
    unsafe { x.cuda().launch("activate", Grid::over(count.div_ceil(4)), arguments) }?;
    Ok(out)
}

/// `dy * activation'(x)` in format `want`.
pub(crate) fn activate_backward(x: &Array, activation: Activation, dy: &Array, want: Dtype) -> Result<Array, CudaError> {
    assert_eq!((x.rows(), x.cols()), (dy.rows(), dy.cols()), "activate_backward: unlike shapes");
    let out = Array::uninit(x.cuda(), x.rows(), x.cols(), want)?;
    let count = x.rows() * x.cols();
    let arguments =
        slots![x.pointer(), x.dtype(), activation.code(), dy.pointer(), dy.dtype(), out.pointer(), want, count as u64];
    // SAFETY: all have `count` elements.
    unsafe { x.cuda().launch("activate_backward", Grid::over(count.div_ceil(4)), arguments) }?;
    Ok(out)
}

/// What reaches x (rows, 2n) from dy (rows, n), in format `want`.
pub(crate) fn swiglu_backward(x: &Array, dy: &Array, want: Dtype) -> Result<Array, CudaError> {
    assert_eq!((x.rows(), x.cols()), (dy.rows(), 2 * dy.cols()), "swiglu_backward: unlike shapes");
    let out = Array::uninit(x.cuda(), x.rows(), x.cols(), want)?;
    let n = dy.cols();
    let arguments = slots![x.pointer(), x.dtype(), dy.pointer(), dy.dtype(), out.pointer(), want, int(n)];
    // SAFETY: x and out are (rows, 2n), dy (rows, n).
    unsafe { x.cuda().launch("swiglu_backward", Grid::rows(x.rows(), n.div_ceil(4)), arguments) }?;
    Ok(out)
}
