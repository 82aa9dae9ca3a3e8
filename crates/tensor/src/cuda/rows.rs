//! Sums and multiples of whole tensors and of their rows.

use super::context::{LaunchConfig, int, kernel_args};
use super::memory::DeviceBuffer;
use super::{CudaDtype, CudaError, CudaTensor};

/// `x += by * y`, both f32 of one shape.
pub(crate) fn add_scaled(x: &mut CudaTensor, y: &CudaTensor, by: f32) -> Result<(), CudaError> {
    assert_eq!((x.rows(), x.cols()), (y.rows(), y.cols()), "add_scaled: shapes differ");
    assert_eq!(
        (x.dtype(), y.dtype()),
        (CudaDtype::F32, CudaDtype::F32),
        "add_scaled: both tensors are f32"
    );
    let count = x.rows() * x.cols();
    let config = LaunchConfig::for_threads(count.div_ceil(4));
    let arguments = kernel_args![x.pointer(), y.pointer(), by, count as u64];
    // SAFETY: both have `count` elements.
    unsafe { x.cuda().launch("add_scaled", config, arguments) }
}

/// `x[r] *= factors[r]`; x is f32.
pub(crate) fn scale_rows(x: &mut CudaTensor, factors: &[f32]) -> Result<(), CudaError> {
    let rows = x.rows();
    let cols = x.cols();
    assert_eq!(factors.len(), rows, "scale_rows: {} factors for {rows} rows", factors.len());
    assert_eq!(x.dtype(), CudaDtype::F32, "scale_rows: rows are f32");
    let factors = DeviceBuffer::upload(x.cuda(), factors)?;
    let config = LaunchConfig::per_row(rows, cols.div_ceil(4));
    let arguments = kernel_args![x.pointer(), factors.pointer(), int(cols)];
    // SAFETY: x is (rows, cols), and there is a factor for every row.
    unsafe { x.cuda().launch("scale_rows", config, arguments) }
}
