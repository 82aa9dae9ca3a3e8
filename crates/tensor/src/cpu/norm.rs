//! Normalisation of rows: sums in sixteen fixed lanes, so that a row's result depends on the row alone.

use std::ops::Range;

use rayon::prelude::*;

use super::isa::{Isa, fma, per_isa};
use super::math::sum_lanes;
use crate::Tensor;
use crate::ops::Norm;

/// See [`crate::ops::norm`].
pub(crate) fn norm(isa: Isa, x: &Tensor, by: &Norm, out: &mut Tensor) {
    let width = x.cols();
    out.data_mut().par_chunks_mut(width).zip(x.data().par_chunks(width)).with_min_len(8).for_each(|(out, x)| {
        out.copy_from_slice(x);
        per_isa!(isa, norm_row(out: &mut [f32], by: &Norm));
    });
}

/// Normalises, in place, each group of columns as wide as the norm.
pub(crate) fn norm_heads(isa: Isa, x: &mut Tensor, by: &Norm, columns: Range<usize>) {
    let (width, head) = (x.cols(), by.width());
    x.data_mut().par_chunks_mut(width).with_min_len(8).for_each(|row| {
        for part in row[columns.clone()].chunks_mut(head) {
            per_isa!(isa, norm_row(part: &mut [f32], by: &Norm));
        }
    });
}

#[inline(always)]
fn norm_row<const FUSED: bool>(x: &mut [f32], by: &Norm) {
    let n = x.len();
    let Norm { eps, scale, shift, .. } = by;
    match shift {
        Some(shift) => {
            let mean = sum_lanes(n, |i, s| s + x[i]) / n as f32;
            let variance = sum_lanes(n, |i, s| fma::<FUSED>(x[i] - mean, x[i] - mean, s)) / n as f32;
            let inverse = 1.0 / (variance + eps).sqrt();
            for ((x, &g), &b) in x.iter_mut().zip(scale).zip(shift) {
                *x = fma::<FUSED>((*x - mean) * inverse, g, b);
            }
        }
        None => {
            let square = sum_lanes(n, |i, s| fma::<FUSED>(x[i], x[i], s)) / n as f32;
            let inverse = 1.0 / (square + eps).sqrt();
            for (x, &g) in x.iter_mut().zip(scale) {
                *x = *x * inverse * g;
            }
        }
    }
}
