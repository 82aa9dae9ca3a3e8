//! Losses between vectors: smooth L1 of groups of rows, squared errors of Gaussian samples.

use rayon::prelude::*;

use super::isa::{Isa, fma, per_isa};
use super::math::{exp, sum_lanes, sum_lanes_f64};
use crate::Tensor;
use crate::ops::GaussianLoss;
use crate::params::MIN_STD;

/// Elements per parallel task and partial sum, independent of the number of threads.
const CHUNK: usize = 4096;

/// See [`crate::ops::smooth_l1`]: returns the groups' losses; dstudent has the student's shape.
pub(crate) fn smooth_l1(
    isa: Isa,
    (student, teacher): (&Tensor, &Tensor),
    groups: usize,
    weight: f32,
    dstudent: &mut Tensor,
) -> Vec<f32> {
    let size = student.data().len() / groups;
    let of = student.data().par_chunks(size).zip(teacher.data().par_chunks(size));
    dstudent
        .data_mut()
        .par_chunks_mut(size)
        .zip(of)
        .map(|(dstudent, (student, teacher))| group_loss(isa, student, teacher, weight, dstudent))
        .collect()
}

fn group_loss(
    isa: Isa,
    student: &[f32],
    teacher: &[f32],
    weight: f32,
    dstudent: &mut [f32],
) -> f32 {
    let std = standard_deviation(isa, teacher).max(f64::from(MIN_STD));
    let scale = 1.0 / (teacher.len() as f64 * std);
    let factor = (f64::from(weight) * scale) as f32;
    let of = student.par_chunks(CHUNK).zip(teacher.par_chunks(CHUNK));
    let part = |(dstudent, (student, teacher)): (&mut [f32], (&[f32], &[f32]))| {
        per_isa!(isa, smooth_l1_part(
            student: &[f32], teacher: &[f32], factor: f32, dstudent: &mut [f32],
        ) -> f64)
    };
    let sums: Vec<f64> = dstudent.par_chunks_mut(CHUNK).zip(of).map(part).collect();
    (sums.into_iter().sum::<f64>() * scale) as f32
}

/// `dstudent = factor * clamp(difference)`; returns the sum of the losses.
#[inline(always)]
fn smooth_l1_part<const FUSED: bool>(
    student: &[f32],
    teacher: &[f32],
    factor: f32,
    dstudent: &mut [f32],
) -> f64 {
    for ((d, &s), &t) in dstudent.iter_mut().zip(student).zip(teacher) {
        *d = s - t;
    }
    let sum = sum_lanes_f64(dstudent.len(), |i, sum| {
        // d^2 / 2 up to 1, then |d| - 1/2: with c = min(|d|, 1) it is c (|d| - c / 2) in both.
        let size = dstudent[i].abs();
        let clamped = size.min(1.0);
        sum + f64::from(clamped * fma::<FUSED>(-0.5, clamped, size))
    });
    dstudent.iter_mut().for_each(|d| *d = factor * d.clamp(-1.0, 1.0));
    sum
}

/// The unbiased standard deviation of some elements, 0 of a single one, in f64: the deviations of
/// each part from its own mean, and those of the parts' means from the mean.
fn standard_deviation(isa: Isa, x: &[f32]) -> f64 {
    let part = |x: &[f32]| {
        let (sum, squares) = per_isa!(isa, moments(x: &[f32]) -> (f64, f64));
        (x.len() as f64, sum, squares)
    };
    let parts: Vec<(f64, f64, f64)> = x.par_chunks(CHUNK).map(part).collect();
    let mean = parts.iter().map(|&(_, sum, _)| sum).sum::<f64>() / x.len() as f64;
    let deviation = |&(n, sum, squares): &(f64, f64, f64)| squares + n * (sum / n - mean).powi(2);
    (parts.iter().map(deviation).sum::<f64>() / (x.len() - 1).max(1) as f64).sqrt()
}

/// The sum of some elements, and that of their squared deviations from their mean.
#[inline(always)]
fn moments<const FUSED: bool>(x: &[f32]) -> (f64, f64) {
    let sum = sum_lanes_f64(x.len(), |i, sum| sum + f64::from(x[i]));
    let mean = sum / x.len() as f64;
    let square = |i: usize| (f64::from(x[i]) - mean) * (f64::from(x[i]) - mean);
    (sum, sum_lanes_f64(x.len(), |i, sum| sum + square(i)))
}

/// See [`crate::ops::gaussian_loss`]: returns the rows' losses; both gradients have the shape of
/// the mean.
pub(crate) fn gaussian_loss(
    isa: Isa,
    of: &GaussianLoss<'_>,
    dmean: &mut Tensor,
    dlog_std: &mut Tensor,
) -> Vec<f32> {
    let width = of.mean.cols();
    let gradients =
        dmean.data_mut().par_chunks_mut(width).zip(dlog_std.data_mut().par_chunks_mut(width));
    let row = |(r, (dmean, dlog_std)): (usize, (&mut [f32], &mut [f32]))| {
        per_isa!(isa, gaussian_row(
            of: &GaussianLoss<'_>, r: usize, dmean: &mut [f32], dlog_std: &mut [f32],
        ) -> f32)
    };
    gradients.enumerate().with_min_len(4).map(row).collect()
}

#[inline(always)]
fn gaussian_row<const FUSED: bool>(
    of: &GaussianLoss<'_>,
    r: usize,
    dmean: &mut [f32],
    dlog_std: &mut [f32],
) -> f32 {
    let n = dmean.len();
    let [mean, log_std, noise, target] =
        [of.mean, of.log_std, of.noise, of.target].map(|x| &x.row(r)[..n]);
    let dlog_std = &mut dlog_std[..n];
    for i in 0..n {
        dlog_std[i] = exp::<FUSED>(log_std[i]) * noise[i];
        dmean[i] = mean[i] + dlog_std[i] - target[i];
    }
    let squares = sum_lanes(n, |i, sum| fma::<FUSED>(dmean[i], dmean[i], sum));
    let factor = 2.0 * of.weight / n as f32;
    for (dmean, dlog_std) in dmean.iter_mut().zip(dlog_std) {
        *dmean *= factor;
        *dlog_std *= *dmean;
    }
    squares / n as f32
}
