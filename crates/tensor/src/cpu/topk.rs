//! The largest logit of a row, and what makes a probability of it: the sum of all logits' exponentials.
//!
//! A panel's part comes from its own columns alone, and parts are summed in the order of panels, so that neither the tile,
//! the batch nor the number of workers changes a bit of the result; nor does it matter whether the row is kept.

use rayon::prelude::*;

use super::isa::{Isa, per_isa};
use super::linear::{Epilogue, PANEL, Packed, ROW_BLOCK, product};
use super::math::{exp, sum_lanes};
use crate::ops::Word;

/// What is known of a panel of a row.
#[derive(Clone, Copy, Default)]
struct Part {
    /// Its largest logit; negative infinity if it has no number.
    largest: f32,
    /// The first index of that logit.
    at: u32,
    /// The sum of e^(logit - largest).
    sum: f32,
}

/// Stands for the index where there is no number.
const NOWHERE: u32 = u32::MAX;

/// What is known of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    /// The index of the largest logit, the first among equals; 0 if there is no number.
    pub(crate) likeliest: u32,
    /// The largest logit.
    pub(crate) largest: f32,
    /// The logarithm of the sum of e^(logit - largest).
    log_sum: f32,
}

impl Whole {
    /// Of a whole row of logits.
    pub(crate) fn of(isa: Isa, logits: &[f32]) -> Self {
        per_isa!(isa, whole_row(logits: &[f32]) -> Whole)
    }

    /// The logarithm of the probability of a logit of the row.
    pub(crate) fn logprob(&self, logit: f32) -> f32 {
        (logit - self.largest) - self.log_sum
    }
}

/// For each row of x (rows, inputs) the largest of `x W + b`; see [`crate::ops::likeliest`].
pub(crate) fn likeliest(isa: Isa, x: &[f32], weights: &Packed, bias: Option<&[f32]>) -> Vec<Word> {
    let panels = weights.outputs().div_ceil(PANEL);
    let (mut words, mut parts) = (Vec::new(), Vec::new());
    // As many rows as a product takes at once, so that parts stay few.
    for some in x.chunks(ROW_BLOCK * weights.inputs()) {
        parts.resize(some.len() / weights.inputs() * panels, Part::default());
        product(isa, some, weights, &Parts { out: parts.as_mut_ptr(), panels, bias });
        words.par_extend(parts.par_chunks(panels).map(|row: &[Part]| {
            let whole = per_isa!(isa, whole(row: &[Part]) -> Whole);
            Word { token: whole.likeliest, logprob: whole.logprob(whole.largest) }
        }));
    }
    words
}

/// Keeps a part of each panel instead of its logits.
struct Parts<'a> {
    out: *mut Part, // (rows, panels)
    panels: usize,
    bias: Option<&'a [f32]>,
}

// SAFETY: `product` never lets two calls at the same time finish one panel of a row.
unsafe impl Sync for Parts<'_> {}

impl Epilogue for Parts<'_> {
    #[inline(always)]
    unsafe fn finish<const FUSED: bool>(&self, row: usize, col: usize, values: &mut [f32]) {
        if let Some(bias) = self.bias {
            values.iter_mut().zip(&bias[col..]).for_each(|(x, b)| *x += b);
        }
        for (i, values) in values.chunks(PANEL).enumerate() {
            // SAFETY: there is a part for every row and panel, and each is finished once.
            unsafe { *self.out.add(row * self.panels + col / PANEL + i) = part::<FUSED>(col + i * PANEL, values) };
        }
    }
}

/// The part of at most a panel's columns, the first of which is `col`.
///
/// Plain loops: the closures of `array::map` and its like become functions of their own, which do not have the
/// instruction set of their caller and call a library for every multiply-add.
#[inline(always)]
fn part<const FUSED: bool>(col: usize, values: &[f32]) -> Part {
    let wide: [f32; PANEL] = values.try_into().unwrap_or_else(|_| padded(values));
    let largest = folded(wide, f32::max);
    let (shift, mut places, mut terms) = (finite_or_zero(largest), [NOWHERE; PANEL], [0.0; PANEL]);
    for l in 0..PANEL {
        places[l] = if wide[l] == largest { l as u32 } else { NOWHERE };
        terms[l] = exp::<FUSED>(wide[l] - shift);
    }
    // A column that does not exist is as large as the others only if those are all negative infinity, and stands after them.
    let place = folded(places, u32::min);
    let at = if (place as usize) < values.len() { col as u32 + place } else { NOWHERE };
    Part { largest, at, sum: folded(terms, |a, b| a + b) }
}

/// Columns that do not exist are negative infinity.
#[cold]
fn padded(values: &[f32]) -> [f32; PANEL] {
    let mut wide = [f32::NEG_INFINITY; PANEL];
    wide[..values.len()].copy_from_slice(values);
    wide
}

/// Folds halves onto each other: one order for every instruction set, and it vectorises.
#[inline(always)]
fn folded<T: Copy>(mut lanes: [T; PANEL], f: impl Fn(T, T) -> T) -> T {
    for width in [8, 4, 2, 1] {
        for l in 0..width {
            lanes[l] = f(lanes[l], lanes[l + width]);
        }
    }
    lanes[0]
}

#[inline(always)]
fn whole_row<const FUSED: bool>(logits: &[f32]) -> Whole {
    let mut parts = vec![Part::default(); logits.len().div_ceil(PANEL)];
    for (i, out) in parts.iter_mut().enumerate() {
        *out = part::<FUSED>(i * PANEL, &logits[i * PANEL..logits.len().min((i + 1) * PANEL)]);
    }
    whole::<FUSED>(&parts)
}

#[inline(always)]
fn whole<const FUSED: bool>(parts: &[Part]) -> Whole {
    let mut best = Part { largest: f32::NEG_INFINITY, at: NOWHERE, sum: 0.0 };
    for part in parts {
        // A first part of nothing but negative infinity beats nowhere.
        if part.largest > best.largest || (best.at == NOWHERE && part.at != NOWHERE) {
            best = *part;
        }
    }
    let shift = finite_or_zero(best.largest);
    let sum = sum_lanes(parts.len(), |i, sum| sum + parts[i].sum * exp::<FUSED>(parts[i].largest - shift));
    let likeliest = if best.at == NOWHERE { 0 } else { best.at };
    Whole { likeliest, largest: best.largest, log_sum: sum.ln() }
}

/// Negative infinity cannot be subtracted from itself.
#[inline(always)]
fn finite_or_zero(largest: f32) -> f32 {
    if largest == f32::NEG_INFINITY { 0.0 } else { largest }
}
