//! Argmax and log-probability of rows of logits that are never stored.
//!
//! Each panel of a row is reduced to its maximum and the sum of exponentials relative to it, from
//! its own columns alone; panels are combined in order. So neither the tile, the batch nor the
//! number of threads changes a bit of the result, nor does it matter whether the row is stored.

use rayon::prelude::*;

use super::isa::{Isa, per_isa};
use super::linear::{PANEL, ROW_BLOCK, TileEpilogue};
use super::math::{exp, fold_lanes, sum_lanes};
use crate::ops::{CpuWeights, TokenLogprob};

/// One panel of a row of logits, reduced.
#[derive(Clone, Copy, Default)]
struct PanelMax {
    /// The largest logit, NaN ignored; negative infinity if there is none.
    max: f32,
    /// The first index of that logit in the row.
    index: u32,
    /// The sum of e^(logit - max).
    exp_sum: f32,
}

/// The index of a panel of nothing but NaN.
const NO_INDEX: u32 = u32::MAX;

/// A row of logits, reduced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowMax {
    /// The index of the largest logit, the lowest among equals; 0 for a row of nothing but NaN.
    pub(crate) argmax: u32,
    /// The largest logit.
    pub(crate) max: f32,
    /// log(sum of e^(logit - max))
    log_sum_exp: f32,
}

impl RowMax {
    pub(crate) fn from_logits(isa: Isa, logits: &[f32]) -> Self {
        per_isa!(isa, row_max_of_logits(logits: &[f32]) -> RowMax)
    }

    /// The log-probability of the token with such a logit.
    pub(crate) fn logprob(&self, logit: f32) -> f32 {
        (logit - self.max) - self.log_sum_exp
    }
}

/// See [`crate::ops::greedy_tokens`].
pub(crate) fn greedy_tokens(
    isa: Isa,
    x: &[f32],
    weights: &CpuWeights,
    bias: Option<&[f32]>,
) -> Vec<TokenLogprob> {
    let panels = weights.outputs().div_ceil(PANEL);
    let (mut tokens, mut parts) = (Vec::new(), Vec::new());
    // The rows that one sweep of the GEMM takes: bounds the number of panels in memory.
    for some in x.chunks(ROW_BLOCK * weights.inputs()) {
        parts.resize(some.len() / weights.inputs() * panels, PanelMax::default());
        weights.gemm(isa, some, &PanelMaxEpilogue { out: parts.as_mut_ptr(), panels, bias });
        tokens.par_extend(parts.par_chunks(panels).map(|row: &[PanelMax]| {
            let whole = per_isa!(isa, row_max(row: &[PanelMax]) -> RowMax);
            TokenLogprob { token: whole.argmax, logprob: whole.logprob(whole.max) }
        }));
    }
    tokens
}

/// Stores each panel reduced, instead of its logits.
struct PanelMaxEpilogue<'a> {
    out: *mut PanelMax, // (rows, panels)
    panels: usize,
    bias: Option<&'a [f32]>,
}

// SAFETY: no two concurrent calls of `gemm`'s epilogue finish the same panel of a row.
unsafe impl Sync for PanelMaxEpilogue<'_> {}

impl TileEpilogue for PanelMaxEpilogue<'_> {
    #[inline(always)]
    unsafe fn finish<const FUSED: bool>(&self, row: usize, col: usize, values: &mut [f32]) {
        if let Some(bias) = self.bias {
            values.iter_mut().zip(&bias[col..]).for_each(|(x, b)| *x += b);
        }
        for (i, values) in values.chunks(PANEL).enumerate() {
            // SAFETY: `out` is (rows, panels), and each is finished once.
            unsafe {
                *self.out.add(row * self.panels + col / PANEL + i) =
                    panel_max::<FUSED>(col + i * PANEL, values)
            };
        }
    }
}

/// Reduces at most a panel's columns, the first of which is `col`.
///
/// Plain loops: closures passed to `array::map` and the like are compiled as functions of their
/// own, without the caller's instruction set, and call a library for every multiply-add.
#[inline(always)]
fn panel_max<const FUSED: bool>(col: usize, values: &[f32]) -> PanelMax {
    let wide: [f32; PANEL] = values.try_into().unwrap_or_else(|_| padded(values));
    // Without NaN a maximum is one instruction, where `f32::max` is several.
    let mut numbers = [f32::NEG_INFINITY; PANEL];
    for l in 0..PANEL {
        numbers[l] = if wide[l].is_nan() { f32::NEG_INFINITY } else { wide[l] };
    }
    let largest = fold_lanes(numbers, |a, b| if a > b { a } else { b });
    let (shift, mut places, mut terms) = (finite_or_zero(largest), [NO_INDEX; PANEL], [0.0; PANEL]);
    for l in 0..PANEL {
        places[l] = if wide[l] == largest { l as u32 } else { NO_INDEX };
        terms[l] = exp::<FUSED>(wide[l] - shift);
    }
    // A padding column equals the maximum only if all others are negative infinity or NaN, and then
    // its index is beyond `values`.
    let place = fold_lanes(places, u32::min);
    let at = if (place as usize) < values.len() { col as u32 + place } else { NO_INDEX };
    PanelMax { max: largest, index: at, exp_sum: fold_lanes(terms, |a, b| a + b) }
}

/// Pads a short panel with negative infinity.
#[cold]
fn padded(values: &[f32]) -> [f32; PANEL] {
    let mut wide = [f32::NEG_INFINITY; PANEL];
    wide[..values.len()].copy_from_slice(values);
    wide
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
        // A panel of nothing but negative infinity still beats no index.
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

/// What exponents are relative to: -inf - -inf would be NaN.
#[inline(always)]
fn finite_or_zero(largest: f32) -> f32 {
    if largest == f32::NEG_INFINITY { 0.0 } else { largest }
}
