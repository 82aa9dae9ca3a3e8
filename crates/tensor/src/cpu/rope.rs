//! Rotary position embeddings.

use rayon::prelude::*;

use super::isa::{Isa, fma, per_isa};
use crate::Tensor;
use crate::ops::Rope;

/// Rotates the first `heads` heads of each row by its position times `direction`: 1 is the forward
/// of [`crate::ops::rope_and_cache`], -1 its backward.
pub(crate) fn rope(
    isa: Isa,
    x: &mut Tensor,
    by: &Rope,
    positions: &[u32],
    heads: usize,
    direction: f32,
) {
    let width = x.cols();
    let half = by.frequencies.len();
    x.data_mut().par_chunks_mut(width).zip(positions.par_iter()).with_min_len(4).for_each(
        |(row, &position)| {
            let angle = |f: &f32| (direction * (f * position as f32)).sin_cos();
            let (sin, cos): (Vec<f32>, Vec<f32>) = by.frequencies.iter().map(angle).unzip();
            for head in row[..heads * 2 * half].chunks_mut(2 * half) {
                let sin = &sin[..];
                let cos = &cos[..];
                per_isa!(isa, rotate(head: &mut [f32], sin: &[f32], cos: &[f32]));
            }
        },
    );
}

#[inline(always)]
fn rotate<const FUSED: bool>(head: &mut [f32], sin: &[f32], cos: &[f32]) {
    let (a, b) = head.split_at_mut(sin.len());
    for (((x, y), &s), &c) in a.iter_mut().zip(b).zip(sin).zip(cos) {
        (*x, *y) = (fma::<FUSED>(*x, c, -(*y * s)), fma::<FUSED>(*y, c, *x * s));
    }
}
