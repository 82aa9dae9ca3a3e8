//! Gaussian noise on thoughts.

use super::context::{LaunchConfig, int, kernel_args};
use super::dropout::CudaPerturbedRows;
use super::{CudaDtype, CudaError, CudaTensor};
use crate::rng::{MAX_ELEMENTS, Site, site_word};

/// Adds normal noise of standard deviation `std` to each row of x (f32), drawn where `draws` says;
/// clean rows stay.
pub(crate) fn add_noise(
    x: &mut CudaTensor,
    std: f32,
    draws: &CudaPerturbedRows,
) -> Result<(), CudaError> {
    assert_eq!(x.rows(), draws.rows(), "noise: {} rows, {} draws", x.rows(), draws.rows());
    assert_eq!(x.dtype(), CudaDtype::F32, "noise: thoughts are f32");
    assert!(x.cols() <= MAX_ELEMENTS, "noise: {} elements cannot be named", x.cols());
    let arguments = kernel_args![
        x.pointer(),
        f64::from(std),
        draws.pointer(),
        site_word(0, Site::Noise),
        int(x.cols())
    ];
    // SAFETY: x is (rows, cols) and there is a draw for every row.
    unsafe {
        x.cuda().launch(
            "add_noise",
            LaunchConfig::per_row(x.rows(), x.cols().div_ceil(4)),
            arguments,
        )
    }
}
