//! Element-wise functions.

use rayon::prelude::*;

use super::isa::{Isa, per_isa};
use super::math;
use crate::Tensor;

/// See [`crate::ops::swiglu`].
pub(crate) fn swiglu(isa: Isa, x: &Tensor, out: &mut Tensor) {
    let n = out.cols();
    let row = |(out, x): (&mut [f32], &[f32])| {
        let (gate, up) = x.split_at(n);
        per_isa!(isa, swiglu_row(gate: &[f32], up: &[f32], out: &mut [f32]));
    };
    out.data_mut().par_chunks_mut(n).zip(x.data().par_chunks(2 * n)).with_min_len(8).for_each(row);
}

#[inline(always)]
fn swiglu_row<const FUSED: bool>(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((o, &g), &u) in out.iter_mut().zip(gate).zip(up) {
        *o = math::silu::<FUSED>(g) * u;
    }
}
