//! Element-wise functions and their derivatives.

use rayon::prelude::*;

use super::isa::{Isa, per_isa};
use super::math;
use crate::Tensor;
use crate::ops::Activation;

/// Elements of one parallel task.
const CHUNK: usize = 4096;

/// See [`crate::ops::activate`].
pub(crate) fn activate(isa: Isa, x: &Tensor, activation: Activation, out: &mut Tensor) {
    out.data_mut().par_chunks_mut(CHUNK).zip(x.data().par_chunks(CHUNK)).for_each(|(out, x)| {
        out.copy_from_slice(x);
        per_isa!(isa, apply(out: &mut [f32], activation: Activation));
    });
}

/// `x = activation(x)`
#[inline(always)]
pub(crate) fn apply<const FUSED: bool>(x: &mut [f32], activation: Activation) {
    match activation {
        Activation::None => {}
        Activation::GeluTanh => x.iter_mut().for_each(|x| *x = math::gelu_tanh::<FUSED>(*x)),
        Activation::GeluErf => x.iter_mut().for_each(|x| *x = math::gelu_erf::<FUSED>(*x)),
    }
}

/// See [`crate::ops::activate_backward`].
pub(crate) fn activate_backward(
    isa: Isa,
    x: &Tensor,
    activation: Activation,
    dy: &Tensor,
    dx: &mut Tensor,
) {
    let given = x.data().par_chunks(CHUNK).zip(dy.data().par_chunks(CHUNK));
    dx.data_mut().par_chunks_mut(CHUNK).zip(given).for_each(|(dx, (x, dy))| {
        dx.copy_from_slice(dy);
        per_isa!(isa, apply_derivative(x: &[f32], activation: Activation, dx: &mut [f32]));
    });
}

/// `dx *= activation'(x)`
#[inline(always)]
fn apply_derivative<const FUSED: bool>(x: &[f32], activation: Activation, dx: &mut [f32]) {
    match activation {
        Activation::None => {}
        Activation::GeluTanh => {
            dx.iter_mut().zip(x).for_each(|(d, &x)| *d *= math::gelu_tanh_derivative::<FUSED>(x))
        }
        Activation::GeluErf => {
            dx.iter_mut().zip(x).for_each(|(d, &x)| *d *= math::gelu_erf_derivative::<FUSED>(x))
        }
    }
}

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

/// See [`crate::ops::swiglu_backward`].
pub(crate) fn swiglu_backward(isa: Isa, x: &Tensor, dy: &Tensor, dx: &mut Tensor) {
    let n = dy.cols();
    let given = x.data().par_chunks(2 * n).zip(dy.data().par_chunks(n));
    dx.data_mut().par_chunks_mut(2 * n).zip(given).with_min_len(8).for_each(|(dx, (x, dy))| {
        per_isa!(isa, swiglu_row_backward(x: &[f32], dy: &[f32], dx: &mut [f32]));
    });
}

#[inline(always)]
fn swiglu_row_backward<const FUSED: bool>(x: &[f32], dy: &[f32], dx: &mut [f32]) {
    let n = dy.len();
    let (gate, up) = x.split_at(n);
    let (dgate, dup) = dx.split_at_mut(n);
    for i in 0..n {
        dgate[i] = dy[i] * up[i] * math::silu_derivative::<FUSED>(gate[i]);
        dup[i] = dy[i] * math::silu::<FUSED>(gate[i]);
    }
}
