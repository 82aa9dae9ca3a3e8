//! Functions applied element by element.

use super::context::{Grid, int, slots};
use super::{Array, CudaError};

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
