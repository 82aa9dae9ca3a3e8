//! LayerNorm and RMSNorm: sums in sixteen fixed lanes, so that a row's result depends only on that
//! row.

use std::ops::Range;

use rayon::prelude::*;

use super::isa::{Isa, fma, per_isa};
use super::math::sum_lanes;
use crate::Tensor;
use crate::ops::CpuNorm;

/// Rows per partial sum of the parameters' gradients, independent of the number of threads.
const GRAD_CHUNK_ROWS: usize = 64;

/// See [`crate::ops::norm`].
pub(crate) fn norm(isa: Isa, x: &Tensor, by: &CpuNorm, out: &mut Tensor) {
    let width = x.cols();
    out.data_mut().par_chunks_mut(width).zip(x.data().par_chunks(width)).with_min_len(8).for_each(
        |(out, x)| {
            out.copy_from_slice(x);
            per_isa!(isa, norm_row(out: &mut [f32], by: &CpuNorm));
        },
    );
}

/// Normalizes each head of `columns` in place; the head size is the norm's width.
pub(crate) fn norm_heads(isa: Isa, x: &mut Tensor, by: &CpuNorm, columns: Range<usize>) {
    let width = x.cols();
    let head = by.scale.len();
    x.data_mut().par_chunks_mut(width).with_min_len(8).for_each(|row| {
        for part in row[columns.clone()].chunks_mut(head) {
            per_isa!(isa, norm_row(part: &mut [f32], by: &CpuNorm));
        }
    });
}

/// A row's mean (0 for an RMSNorm) and the inverse of its standard deviation.
#[inline(always)]
fn statistics<const FUSED: bool>(x: &[f32], by: &CpuNorm) -> (f32, f32) {
    let n = x.len();
    let mean = if by.shift.is_some() { sum_lanes(n, |i, s| s + x[i]) / n as f32 } else { 0.0 };
    let square = sum_lanes(n, |i, s| fma::<FUSED>(x[i] - mean, x[i] - mean, s)) / n as f32;
    (mean, 1.0 / (square + by.eps).sqrt())
}

#[inline(always)]
fn norm_row<const FUSED: bool>(x: &mut [f32], by: &CpuNorm) {
    let (mean, inverse) = statistics::<FUSED>(x, by);
    match &by.shift {
        Some(shift) => {
            for ((x, &g), &b) in x.iter_mut().zip(&by.scale).zip(shift) {
                *x = fma::<FUSED>((*x - mean) * inverse, g, b);
            }
        }
        None => {
            for (x, &g) in x.iter_mut().zip(&by.scale) {
                *x = *x * inverse * g;
            }
        }
    }
}

/// See [`crate::ops::norm_backward`]: adds to dx and returns partial sums of the gradients of scale
/// and shift, in the order of the rows.
pub(crate) fn norm_backward(
    isa: Isa,
    x: &Tensor,
    by: &CpuNorm,
    dy: &Tensor,
    dx: &mut Tensor,
) -> Vec<[Vec<f32>; 2]> {
    let width = x.cols();
    let given = x
        .data()
        .par_chunks(GRAD_CHUNK_ROWS * width)
        .zip(dy.data().par_chunks(GRAD_CHUNK_ROWS * width));
    let work = |(dx, (x, dy)): (&mut [f32], (&[f32], &[f32]))| {
        let mut sums = [vec![0.0; width], vec![0.0; width]];
        let to = &mut sums;
        per_isa!(isa, rows_backward(
            x: &[f32], by: &CpuNorm, dy: &[f32], dx: &mut [f32], to: &mut [Vec<f32>; 2],
        ));
        sums
    };
    dx.data_mut().par_chunks_mut(GRAD_CHUNK_ROWS * width).zip(given).map(work).collect()
}

#[inline(always)]
fn rows_backward<const FUSED: bool>(
    x: &[f32],
    by: &CpuNorm,
    dy: &[f32],
    dx: &mut [f32],
    sums: &mut [Vec<f32>; 2],
) {
    let n = by.scale.len();
    let scale = &by.scale[..];
    let [dscale, dshift] = sums;
    let dscale = &mut dscale[..n];
    let dshift = &mut dshift[..n];
    for ((x, dy), dx) in x.chunks_exact(n).zip(dy.chunks_exact(n)).zip(dx.chunks_exact_mut(n)) {
        let (mean, inverse) = statistics::<FUSED>(x, by);
        let mean_dy_normed =
            sum_lanes(n, |i, s| fma::<FUSED>(dy[i] * scale[i], (x[i] - mean) * inverse, s))
                / n as f32;
        let mean_dy = if by.shift.is_some() {
            sum_lanes(n, |i, s| fma::<FUSED>(dy[i], scale[i], s)) / n as f32
        } else {
            0.0
        };
        for i in 0..n {
            let normed = (x[i] - mean) * inverse;
            dx[i] = fma::<FUSED>(
                inverse,
                fma::<FUSED>(-normed, mean_dy_normed, fma::<FUSED>(dy[i], scale[i], -mean_dy)),
                dx[i],
            );
            dscale[i] = fma::<FUSED>(dy[i], normed, dscale[i]);
            dshift[i] += dy[i];
        }
    }
}

/// See [`crate::ops::qk_norm_backward`]: takes the gradient in each head of `columns` back through
/// the norm of the head of x, in place, and returns partial sums of the gradient of the scale, in
/// the order of the rows.
pub(crate) fn norm_heads_backward(
    isa: Isa,
    x: &Tensor,
    by: &CpuNorm,
    columns: Range<usize>,
    gradient: &mut Tensor,
) -> Vec<[Vec<f32>; 2]> {
    let width = x.cols();
    let head = by.scale.len();
    let chunk = GRAD_CHUNK_ROWS * width;
    let work = |(gradient, x): (&mut [f32], &[f32])| {
        let mut sums = [vec![0.0; head], vec![0.0; head]];
        let mut dy = vec![0.0; head];
        for (gradient, x) in gradient.chunks_mut(width).zip(x.chunks(width)) {
            let heads = gradient[columns.clone()].chunks_mut(head);
            for (dx, x) in heads.zip(x[columns.clone()].chunks(head)) {
                dy.copy_from_slice(dx);
                dx.fill(0.0);
                let dy = &dy[..];
                let to = &mut sums;
                per_isa!(isa, rows_backward(
                    x: &[f32], by: &CpuNorm, dy: &[f32], dx: &mut [f32], to: &mut [Vec<f32>; 2],
                ));
            }
        }
        sums
    };
    gradient.data_mut().par_chunks_mut(chunk).zip(x.data().par_chunks(chunk)).map(work).collect()
}
