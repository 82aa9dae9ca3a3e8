//! AdamW, and squared norms of gradients.

use super::context::{LaunchConfig, int, kernel_args};
use super::memory::DeviceBuffer;
use super::{CudaDtype, CudaError, CudaTensor};
use crate::params::AdamWCoefficients;

/// Updates a parameter and its moments, all f32 of one shape, and sets its gradient to zero.
pub(crate) fn adamw(
    by: &AdamWCoefficients,
    value: &mut CudaTensor,
    gradient: &mut CudaTensor,
    moments: [&mut CudaTensor; 2],
) -> Result<(), CudaError> {
    let shape = (value.rows(), value.cols(), CudaDtype::F32);
    let all = [&*value, gradient, moments[0], moments[1]];
    assert!(
        all.iter().all(|x| (x.rows(), x.cols(), x.dtype()) == shape),
        "adamw: shapes or dtypes differ"
    );
    let count = value.rows() * value.cols();
    let [value_at, gradient, first, second] = all.map(CudaTensor::pointer);
    let AdamWCoefficients { beta1, beta2, eps, gradient_scale, keep, rate, second_scale } = *by;
    let count_at = count as u64;
    let arguments = kernel_args![
        value_at,
        gradient,
        first,
        second,
        count_at,
        beta1,
        beta2,
        eps,
        gradient_scale,
        keep,
        rate,
        second_scale,
    ];
    // SAFETY: all have `count` elements.
    unsafe { value.cuda().launch("adamw", LaunchConfig::for_threads(count.div_ceil(4)), arguments) }
}

/// Elements of one block's partial sum.
const ELEMENTS_PER_BLOCK: usize = 1 << 16;

/// The sum of squares of all elements of all tensors (f32), in f64 and in a fixed order.
/// Synchronizes with the GPU.
pub(crate) fn sum_of_squares(of: &[&CudaTensor]) -> Result<f64, CudaError> {
    let Some(first) = of.first() else { return Ok(0.0) };
    let parts = |x: &CudaTensor| (x.rows() * x.cols()).div_ceil(ELEMENTS_PER_BLOCK);
    let mut sums = vec![0.0f64; of.iter().map(|x| parts(x)).sum()];
    let partial = DeviceBuffer::new(first.cuda(), size_of_val(&sums[..]))?;
    let mut to = partial.pointer();
    for x in of {
        assert_eq!(x.dtype(), CudaDtype::F32, "sum_of_squares: of f32");
        let count = (x.rows() * x.cols()) as u64;
        let config = LaunchConfig::new(parts(x), 256);
        // SAFETY: x has `count` elements, and there is a sum for every block.
        unsafe {
            x.cuda().launch(
                "sum_of_squares",
                config,
                kernel_args![x.pointer(), count, int(ELEMENTS_PER_BLOCK), to],
            )
        }?;
        to += (parts(x) * size_of::<f64>()) as u64;
    }
    partial.download(0, &mut sums)?;
    Ok(sums.into_iter().sum())
}
