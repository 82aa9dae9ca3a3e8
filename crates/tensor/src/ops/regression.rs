//! Losses between vectors: hidden states against a teacher's, Gaussian samples against targets.

use crate::cuda::args::CudaGaussianLoss;
use crate::device::Backend;
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// The distance of a student's hidden states from a teacher's, as in CODI: for each group of rows,
/// a layer, the mean of `smooth_l1(student - teacher)` (beta 1) over its elements, divided by the
/// unbiased standard deviation of all elements of the teacher's group. One below 1e-6 (a constant
/// teacher, a single element) counts as 1e-6.
///
/// student and teacher are (groups * n, columns) of f32, group g having rows `g * n .. (g + 1) *
/// n`. Returns the unweighted losses (groups, 1); dstudent becomes `weight * dloss / dstudent`,
/// (groups * n, columns) of f32. The teacher is a constant.
pub fn smooth_l1(
    device: &Device,
    student: &Tensor,
    teacher: &Tensor,
    groups: usize,
    weight: f32,
    dstudent: &mut Tensor,
) -> Result<Tensor, DeviceError> {
    let rows = student.rows();
    let cols = student.cols();
    assert_eq!((teacher.rows(), teacher.cols()), (rows, cols), "smooth_l1: shapes differ");
    assert!(
        groups > 0 && rows * cols > 0 && rows.is_multiple_of(groups),
        "smooth_l1: {rows} x {cols} elements are not {groups} groups"
    );
    match device.backend() {
        Backend::Cpu(cpu) => {
            dstudent.reshape(rows, cols);
            let losses =
                cpu::regression::smooth_l1(cpu.isa, (student, teacher), groups, weight, dstudent);
            Ok(Tensor::from_vec(groups, 1, losses))
        }
        Backend::Cuda(_) => {
            let student = student.gpu();
            let teacher = teacher.gpu();
            let (losses, gradient) = cuda::regression::smooth_l1(student, teacher, groups, weight)?;
            *dstudent = gradient.into();
            Ok(losses.into())
        }
    }
}

/// The read-only arguments of [`gaussian_loss`].
#[derive(Clone, Copy, Debug)]
pub struct GaussianLoss<'a> {
    /// The mean of each element. (rows, columns) of f32
    pub mean: &'a Tensor,
    /// The logarithm of its standard deviation. (rows, columns) of f32
    pub log_std: &'a Tensor,
    /// The sampled standard normal numbers. (rows, columns) of f32
    pub noise: &'a Tensor,
    /// The targets of the samples. (rows, columns) of f32
    pub target: &'a Tensor,
    /// The factor of the gradients.
    pub weight: f32,
}

impl<'a> GaussianLoss<'a> {
    fn gpu(self) -> CudaGaussianLoss<'a> {
        let Self { mean, log_std, noise, target, weight } = self;
        CudaGaussianLoss {
            mean: mean.gpu(),
            log_std: log_std.gpu(),
            noise: noise.gpu(),
            target: target.gpu(),
            weight,
        }
    }
}

/// The squared error of samples of a Gaussian, `mean + exp(log_std) * noise`, as in CoLaR: returns
/// its mean over the columns of each row, unweighted, as (rows, 1). dmean and dlog_std become
/// `weight` times its gradients, (rows, columns) of f32.
pub fn gaussian_loss(
    device: &Device,
    of: GaussianLoss<'_>,
    dmean: &mut Tensor,
    dlog_std: &mut Tensor,
) -> Result<Tensor, DeviceError> {
    let rows = of.mean.rows();
    let cols = of.mean.cols();
    assert!(
        [of.log_std, of.noise, of.target].iter().all(|x| (x.rows(), x.cols()) == (rows, cols)),
        "gaussian_loss: shapes differ"
    );
    assert!(cols > 0, "gaussian_loss: rows without columns");
    match device.backend() {
        Backend::Cpu(cpu) => {
            dmean.reshape(rows, cols);
            dlog_std.reshape(rows, cols);
            let losses = cpu::regression::gaussian_loss(cpu.isa, &of, dmean, dlog_std);
            Ok(Tensor::from_vec(rows, 1, losses))
        }
        Backend::Cuda(_) => {
            let (losses, gradients) = cuda::regression::gaussian_loss(of.gpu())?;
            [*dmean, *dlog_std] = gradients.map(Tensor::from);
            Ok(losses.into())
        }
    }
}
