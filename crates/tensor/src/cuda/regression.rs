//! Losses between vectors: smooth L1 of groups of rows, squared errors of Gaussian samples.

use super::args::CudaGaussianLoss;
use super::context::{LaunchConfig, int, kernel_args};
use super::memory::DeviceBuffer;
use super::{CudaDtype, CudaError, CudaTensor};
use crate::params::MIN_STD;

/// Elements of a block's part of a group, a multiple of four: enough parts that the groups of a few
/// layers fill a GPU, few enough that a block can sum over all parts of its group.
const ELEMENTS_PER_PART: usize = 1 << 12;

/// The loss of each group (groups, 1), and the student's gradient times the weight, all of f32.
pub(crate) fn smooth_l1(
    student: &CudaTensor,
    teacher: &CudaTensor,
    groups: usize,
    weight: f32,
) -> Result<(CudaTensor, CudaTensor), CudaError> {
    let cuda = student.cuda();
    let rows = student.rows();
    let cols = student.cols();
    let shape = |x: &CudaTensor| (x.rows(), x.cols(), x.dtype());
    assert!(
        [student, teacher].iter().all(|x| shape(x) == (rows, cols, CudaDtype::F32)),
        "smooth_l1: shapes or dtypes differ"
    );
    let size = rows * cols / groups;
    let parts = size.div_ceil(ELEMENTS_PER_PART);
    let moments = DeviceBuffer::new(cuda, groups * parts * 2 * size_of::<f64>())?;
    let sums = DeviceBuffer::new(cuda, groups * parts * size_of::<f64>())?;
    let gradient = student.uninit_like()?;
    let losses = CudaTensor::uninit(cuda, groups, 1, CudaDtype::F32)?;
    let size = size as u64;
    let share = int(ELEMENTS_PER_PART);
    let config = LaunchConfig { blocks: (parts, groups, 1), ..LaunchConfig::new(0, 256) };
    let arguments = kernel_args![teacher.pointer(), size, share, moments.pointer()];
    // SAFETY: the teacher has `groups * size` elements, and there are moments for every block.
    unsafe { cuda.launch("smooth_l1_moments", config, arguments) }?;
    let arguments = kernel_args![
        student.pointer(),
        teacher.pointer(),
        size,
        share,
        moments.pointer(),
        MIN_STD,
        weight,
        gradient.pointer(),
        sums.pointer(),
    ];
    // SAFETY: as above; student and gradient have the teacher's shape, and there is a sum for every
    // block.
    unsafe { cuda.launch("smooth_l1", config, arguments) }?;
    let arguments = kernel_args![sums.pointer(), int(parts), losses.pointer(), int(groups)];
    // SAFETY: there are `groups * parts` sums and `groups` losses.
    unsafe { cuda.launch("smooth_l1_losses", LaunchConfig::for_threads(groups), arguments) }?;
    Ok((losses, gradient))
}

/// The squared error of each row (rows, 1), and the gradients of mean and log_std times the weight,
/// all of f32.
pub(crate) fn gaussian_loss(
    of: CudaGaussianLoss<'_>,
) -> Result<(CudaTensor, [CudaTensor; 2]), CudaError> {
    let CudaGaussianLoss { mean, log_std, noise, target, weight } = of;
    let cuda = mean.cuda();
    let rows = mean.rows();
    let cols = mean.cols();
    let shape = |x: &CudaTensor| (x.rows(), x.cols(), x.dtype());
    assert!(
        [mean, log_std, noise, target].iter().all(|x| shape(x) == (rows, cols, CudaDtype::F32)),
        "gaussian_loss: shapes or dtypes differ"
    );
    let losses = CudaTensor::uninit(cuda, rows, 1, CudaDtype::F32)?;
    let dmean = mean.uninit_like()?;
    let dlog_std = mean.uninit_like()?;
    let arguments = kernel_args![
        mean.pointer(),
        log_std.pointer(),
        noise.pointer(),
        target.pointer(),
        weight,
        losses.pointer(),
        dmean.pointer(),
        dlog_std.pointer(),
        int(cols),
    ];
    let config = LaunchConfig::per_row(rows, cols.div_ceil(4));
    // SAFETY: all matrices are (rows, cols), and there is a loss for every row.
    unsafe { cuda.launch("gaussian_loss", config, arguments) }?;
    Ok((losses, [dmean, dlog_std]))
}
