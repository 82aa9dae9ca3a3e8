//! Gaussian noise on thoughts.

use super::context::{LaunchConfig, int, kernel_args};
use super::dropout::CudaPerturbedRows;
use super::{CudaDtype, CudaError, CudaTensor};
use crate::rng::{MAX_ELEMENTS, Site, site_word};

/// Adds Gaussian noise to each row of x (f32) that is perturbed at [`Site::Noise`].
pub(crate) fn add_noise(x: &mut CudaTensor, rows: &CudaPerturbedRows) -> Result<(), CudaError> {
    assert_eq!(x.rows(), rows.rows(), "noise: {} rows, {} perturbations", x.rows(), rows.rows());
    assert_eq!(x.dtype(), CudaDtype::F32, "noise: thoughts are f32");
    assert!(x.cols() <= MAX_ELEMENTS, "noise: {} columns exceed the rng counter", x.cols());
    let config = LaunchConfig::per_row(x.rows(), x.cols().div_ceil(4));
    let site = site_word(0, Site::Noise);
    let arguments = kernel_args![x.pointer(), rows.pointer(), site, int(x.cols())];
    // SAFETY: x is (rows, cols), and there is a perturbation for every row.
    unsafe { x.cuda().launch("add_noise", config, arguments) }
}
