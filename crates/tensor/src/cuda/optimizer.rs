//! Steps of the optimizer.

use super::array::Buffer;
use super::context::{Grid, int, slots};
use super::{Array, CudaError, Dtype};

/// What a step multiplies with, on both devices: the same for all parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) beta1: f32,
    pub(crate) beta2: f32,
    pub(crate) eps: f32,
    pub(crate) gradient_scale: f32,
    pub(crate) keep: f32,         // of the value: 1 - lr * weight_decay
    pub(crate) rate: f32,         // lr / (1 - beta1^step)
    pub(crate) second_scale: f32, // of the second moment's root: 1 / sqrt(1 - beta2^step)
}

/// One step of a parameter with its moments, all f32 of one shape. The gradient is zero afterwards.
pub(crate) fn adamw(by: &Step, value: &mut Array, gradient: &mut Array, moments: [&mut Array; 2]) -> Result<(), CudaError> {
    let shape = (value.rows(), value.cols(), Dtype::F32);
    let all = [&*value, gradient, moments[0], moments[1]];
    assert!(all.iter().all(|x| (x.rows(), x.cols(), x.dtype()) == shape), "adamw: unlike shapes or formats");
    let count = value.rows() * value.cols();
    let [value_at, gradient, first, second] = all.map(Array::pointer);
    let Step { beta1, beta2, eps, gradient_scale, keep, rate, second_scale } = *by;
    let count_at = count as u64;
    let arguments =
        slots![value_at, gradient, first, second, count_at, beta1, beta2, eps, gradient_scale, keep, rate, second_scale,];
    // SAFETY: all have `count` elements.
    unsafe { value.cuda().launch("adamw", Grid::over(count.div_ceil(4)), arguments) }
}

/// Elements of one partial sum.
const SHARE: usize = 1 << 16;

/// The sum of squares of all elements of all matrices (f32), in double precision and in a fixed order. Waits for the GPU.
pub(crate) fn sum_of_squares(of: &[&Array]) -> Result<f64, CudaError> {
    let Some(first) = of.first() else { return Ok(0.0) };
    let parts = |x: &Array| (x.rows() * x.cols()).div_ceil(SHARE);
    let mut sums = vec![0.0f64; of.iter().map(|x| parts(x)).sum()];
    let partial = Buffer::new(first.cuda(), size_of_val(&sums[..]))?;
    let mut to = partial.pointer();
    for x in of {
        assert_eq!(x.dtype(), Dtype::F32, "sum_of_squares: of f32");
        let (count, grid) = ((x.rows() * x.cols()) as u64, Grid { blocks: (parts(x), 1, 1), threads: 256, shared: 0 });
        // SAFETY: x has `count` elements, and there is a sum for every block.
        unsafe { x.cuda().launch("sum_of_squares", grid, slots![x.pointer(), count, int(SHARE), to]) }?;
        to += (parts(x) * size_of::<f64>()) as u64;
    }
    partial.download(0, &mut sums)?;
    Ok(sums.into_iter().sum())
}
