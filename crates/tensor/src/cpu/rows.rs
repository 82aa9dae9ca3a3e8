//! Sums and multiples of whole tensors and of their rows.

use rayon::prelude::*;

use super::isa::{Isa, fma, per_isa};
use crate::Tensor;

/// Elements of one parallel task.
const CHUNK: usize = 4096;

/// Minimum rows that one task copies.
const ROWS_PER_COPY: usize = 64;

/// The matrix of some rows, each of `cols` numbers.
pub(crate) fn matrix_of(rows: &[&[f32]], cols: usize) -> Tensor {
    let len = rows.len() * cols;
    let mut data = Vec::with_capacity(len);
    let to = data.spare_capacity_mut()[..len].par_chunks_mut(cols.max(1));
    to.zip(rows).with_min_len(ROWS_PER_COPY).for_each(|(to, from)| {
        assert_eq!(from.len(), cols, "every row of a matrix has {cols} columns");
        to.iter_mut().zip(*from).for_each(|(to, &x)| _ = to.write(x));
    });
    // SAFETY: each of the rows was written whole.
    unsafe { data.set_len(len) };
    Tensor::from_vec(rows.len(), cols, data)
}

/// See [`crate::ops::add_scaled`].
pub(crate) fn add_scaled(isa: Isa, x: &mut Tensor, y: &Tensor, by: f32) {
    x.data_mut().par_chunks_mut(CHUNK).zip(y.data().par_chunks(CHUNK)).for_each(|(x, y)| {
        per_isa!(isa, add_multiple(x: &mut [f32], y: &[f32], by: f32));
    });
}

#[inline(always)]
fn add_multiple<const FUSED: bool>(x: &mut [f32], y: &[f32], by: f32) {
    x.iter_mut().zip(y).for_each(|(x, &y)| *x = fma::<FUSED>(by, y, *x));
}

/// See [`crate::ops::scale_rows`].
pub(crate) fn scale_rows(x: &mut Tensor, factors: &[f32]) {
    let width = x.cols().max(1);
    x.data_mut()
        .par_chunks_mut(width)
        .zip(factors)
        .with_min_len(8)
        .for_each(|(row, by)| row.iter_mut().for_each(|x| *x *= by));
}
