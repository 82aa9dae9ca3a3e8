//! AdamW, element by element, and squared norms of gradients.

use rayon::prelude::*;

use super::isa::{Isa, fma, per_isa};
use crate::Tensor;
use crate::ops::Moments;
use crate::params::AdamWCoefficients;

/// Elements of one parallel task, and of one partial sum.
const CHUNK: usize = 4096;

/// See [`crate::ops::adamw`].
pub(crate) fn adamw(
    isa: Isa,
    by: &AdamWCoefficients,
    value: &mut Tensor,
    gradient: &mut Tensor,
    moments: &mut Moments,
) {
    let moments = (
        moments.first.data_mut().par_chunks_mut(CHUNK),
        moments.second.data_mut().par_chunks_mut(CHUNK),
    );
    let both =
        value.data_mut().par_chunks_mut(CHUNK).zip(gradient.data_mut().par_chunks_mut(CHUNK));
    both.zip(moments.0.zip(moments.1)).for_each(|((value, gradient), (first, second))| {
        per_isa!(isa, update(
            by: &AdamWCoefficients, value: &mut [f32], gradient: &mut [f32],
            first: &mut [f32], second: &mut [f32],
        ));
    });
}

#[inline(always)]
fn update<const FUSED: bool>(
    by: &AdamWCoefficients,
    value: &mut [f32],
    gradient: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
) {
    for (((x, gradient), m), v) in value.iter_mut().zip(gradient).zip(first).zip(second) {
        let g = *gradient * by.gradient_scale;
        *gradient = 0.0;
        *m = fma::<FUSED>(by.beta1, *m, (1.0 - by.beta1) * g);
        *v = fma::<FUSED>(by.beta2, *v, (1.0 - by.beta2) * g * g);
        *x = fma::<FUSED>(*x, by.keep, -(by.rate * *m / (v.sqrt() * by.second_scale + by.eps)));
    }
}

/// The sum of squares in f64, over chunks of fixed size in their order.
pub(crate) fn sum_of_squares(x: &Tensor) -> f64 {
    let part = |part: &[f32]| part.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>();
    x.data().par_chunks(CHUNK).map(part).collect::<Vec<_>>().into_iter().sum()
}
