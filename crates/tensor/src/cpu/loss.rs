//! Cross entropy of rows of logits.

use rayon::prelude::*;

use super::isa::{Isa, per_isa};
use super::math::{exp, sum_lanes};
use crate::Tensor;

/// See [`crate::ops::cross_entropy`]: returns the losses; dlogits has the shape of the logits.
pub(crate) fn cross_entropy(
    isa: Isa,
    logits: &Tensor,
    targets: &[u32],
    weights: &[f32],
    dlogits: &mut Tensor,
) -> Vec<f32> {
    let width = logits.cols();
    let row = |(r, dlogits): (usize, &mut [f32])| {
        let logits = logits.row(r);
        let target = targets[r] as usize;
        let weight = weights[r];
        let (largest, sum) =
            per_isa!(isa, softmax(logits: &[f32], weight: f32, dlogits: &mut [f32]) -> (f32, f32));
        dlogits[target] -= weight;
        largest + sum.ln() - logits[target]
    };
    dlogits.data_mut().par_chunks_mut(width).enumerate().map(row).collect()
}

/// `out = weight * softmax(logits)`; returns the largest logit and the sum of e^(logit - largest).
#[inline(always)]
fn softmax<const FUSED: bool>(logits: &[f32], weight: f32, out: &mut [f32]) -> (f32, f32) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for (o, &x) in out.iter_mut().zip(logits) {
        *o = exp::<FUSED>(x - largest);
    }
    let sum = sum_lanes(out.len(), |i, s| s + out[i]);
    let by = weight / sum;
    out.iter_mut().for_each(|o| *o *= by);
    (largest, sum)
}
