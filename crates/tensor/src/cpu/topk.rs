//! The largest logit of a row, and what makes a probability of it: the sum of all logits'
//! exponentials.
//!
//! A panel's part comes from its own columns alone, and parts are summed in the order of panels, so
//! that neither the tile, the batch nor the number of workers changes a bit of the result; nor does
//! it matter whether the row is kept.

use rayon::prelude::*;

use super::isa::{Isa, per_isa};
use super::linear::{PANEL, PackedWeights, ROW_BLOCK, TileEpilogue, gemm};
use super::math::{exp, sum_lanes};
use crate::ops::TokenLogprob;

/// What is known of a panel of a row.
#[derive(Clone, Copy, Default)]
struct PanelMax {
    /// Its largest logit; negative infinity if it has no number.
    max: f32,
    /// The first index of that logit.
    index: u32,
    /// The sum of e^(logit - largest).
    exp_sum: f32,
}

/// Stands for the index where there is no number.
const NO_INDEX: u32 = u32::MAX;

/// What is known of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowMax {
    /// The index of the largest logit, the first among equals; 0 if there is no number.
    pub(crate) argmax: u32,
    /// The largest logit.
    pub(crate) max: f32,
    /// The logarithm of the sum of e^(logit - largest).
    log_sum_exp: f32,
}

impl RowMax {
    /// Of a whole row of logits.
    pub(crate) fn from_logits(isa: Isa, logits: &[f32]) -> Self {
        per_isa!(isa, row_max_of_logits(logits: &[f32]) -> RowMax)
    }

    /// The logarithm of the probability of a logit of the row.
    pub(crate) fn logprob(&self, logit: f32) -> f32 {
        (logit - self.max) - self.log_sum_exp
    }
}

/// For each row of x (rows, inputs) the largest of `x W + b`; see [`crate::ops::likeliest`].
pub(crate) fn greedy_tokens(
    isa: Isa,
    x: &[f32],
    weights: &PackedWeights,
    bias: Option<&[f32]>,
) -> Vec<TokenLogprob> {
    let panels = weights.outputs().div_ceil(PANEL);
    let (mut words, mut parts) = (Vec::new(), Vec::new());
    // As many rows as a product takes at once, so that parts stay few.
    for some in x.chunks(ROW_BLOCK * weights.inputs()) {
        parts.resize(some.len() / weights.inputs() * panels, PanelMax::default());
        gemm(isa, some, weights, &PanelMaxEpilogue { out: parts.as_mut_ptr(), panels, bias });
        words.par_extend(parts.par_chunks(panels).map(|row: &[PanelMax]| {
            let whole = per_isa!(isa, row_max(row: &[PanelMax]) -> RowMax);
            TokenLogprob { token: whole.argmax, logprob: whole.logprob(whole.max) }
        }));
    }
    words
}

/// Keeps a part of each panel instead of its logits.
struct PanelMaxEpilogue<'a> {
    out: *mut PanelMax, // (rows, panels)
    panels: usize,
    bias: Option<&'a [f32]>,
}

// SAFETY: `product` never lets two calls at the same time finish one panel of a row.
unsafe impl Sync for PanelMaxEpilogue<'_> {}

impl TileEpilogue for PanelMaxEpilogue<'_> {
    #[inline(always)]
    unsafe fn finish<const FUSED: bool>(&self, row: usize, col: usize, values: &mut [f32]) {
        if let Some(bias) = self.bias {
            values.iter_mut().zip(&bias[col..]).for_each(|(x, b)| *x += b);
        }
        for (i, values) in values.chunks(PANEL).enumerate() {
            // SAFETY: there is a part for every row and panel, and each is finished once.
            unsafe {
                *self.out.add(row * self.panels + col / PANEL + i) =
                    panel_max::<FUSED>(col + i * PANEL, values)
            };
        }
    }
}

/// The part of at most a panel's columns, the first of which is `col`.
///
/// Plain loops: the closures of `array::map` and its like become functions of their own, which do
/// not have the instruction set of their caller and call a library for every multiply-add.
#[inline(always)]
fn panel_max<const FUSED: bool>(col: usize, values: &[f32]) -> PanelMax {
    let wide: [f32; PANEL] = values.try_into().unwrap_or_else(|_| padded(values));
    let largest = fold_lanes(wide, f32::max);
    let (shift, mut places, mut terms) = (finite_or_zero(largest), [NO_INDEX; PANEL], [0.0; PANEL]);
    for l in 0..PANEL {
        places[l] = if wide[l] == largest { l as u32 } else { NO_INDEX };
        terms[l] = exp::<FUSED>(wide[l] - shift);
    }
    // A column that does not exist is as large as the others only if those are all negative
    // infinity, and stands after them.
    let place = fold_lanes(places, u32::min);
    let at = if (place as usize) < values.len() { col as u32 + place } else { NO_INDEX };
    PanelMax { max: largest, index: at, exp_sum: fold_lanes(terms, |a, b| a + b) }
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
fn fold_lanes<T: Copy>(mut lanes: [T; PANEL], f: impl Fn(T, T) -> T) -> T {
    for width in [8, 4, 2, 1] {
        for l in 0..width {
            lanes[l] = f(lanes[l], lanes[l + width]);
        }
    }
    lanes[0]
}

#[inline(always)]
fn row_max_of_logits<const FUSED: bool>(logits: &[f32]) -> RowMax {
    let mut parts = vec![PanelMax::default(); logits.len().div_ceil(PANEL)];
    for (i, out) in parts.iter_mut().enumerate() {
        *out = panel_max::<FUSED>(i * PANEL, &logits[i * PANEL..logits.len().min((i + 1) * PANEL)]);
    }
    row_max::<FUSED>(&parts)
}

#[inline(always)]
fn row_max<const FUSED: bool>(parts: &[PanelMax]) -> RowMax {
    let mut best = PanelMax { max: f32::NEG_INFINITY, index: NO_INDEX, exp_sum: 0.0 };
    for part in parts {
        // A first part of nothing but negative infinity beats nowhere.
        if part.max > best.max || (best.index == NO_INDEX && part.index != NO_INDEX) {
            best = *part;
        }
    }
    let shift = finite_or_zero(best.max);
    let sum = sum_lanes(parts.len(), |i, sum| {
        sum + parts[i].exp_sum * exp::<FUSED>(parts[i].max - shift)
    });
    let likeliest = if best.index == NO_INDEX { 0 } else { best.index };
    RowMax { argmax: likeliest, max: best.max, log_sum_exp: sum.ln() }
}

/// Negative infinity cannot be subtracted from itself.
#[inline(always)]
fn finite_or_zero(largest: f32) -> f32 {
    if largest == f32::NEG_INFINITY { 0.0 } else { largest }
}
