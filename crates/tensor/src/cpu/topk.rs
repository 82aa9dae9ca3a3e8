//! Argmax and log-probability of rows of logits, without storing the logits.
//!
//! Each panel of a row is reduced to its maximum and the sum of exponentials relative to it, from
//! its own columns only; panels are combined in order. So the bits of the result depend neither on
//! tile, batch and number of threads nor on whether the row is stored.
//!
//! Several panels are reduced at once, one per register lane: those of a tile's rows, or
//! consecutive ones of a stored row. Reducing within a register would need shuffles.

use std::mem::MaybeUninit;

use bytemuck::{Pod, Zeroable};
use rayon::prelude::*;

use super::aligned::ScratchVec;
use super::isa::{Isa, per_isa};
use super::linear::{
    OutputTile, PANEL, ROW_BLOCK, TILE_COLS, TileBounds, TileEpilogue, TileRows, pack_lanes,
};
use super::math::{exp, fold_lanes};
use crate::ops::{CpuWeights, TokenLogprob};

/// Lanes with 512-bit registers, and with smaller ones.
const WIDE_LANES: usize = 16;
const LANES: usize = 8;

/// Reductions of panels of logits, one per lane.
#[derive(Clone, Copy)]
#[repr(C)]
struct PanelMaxes<const L: usize> {
    /// The largest logit, NaN ignored; negative infinity if there is none.
    max: [f32; L],
    /// The first index of that logit in the row, or `NO_INDEX`.
    index: [u32; L],
    /// The sum of e^(logit - max).
    exp_sum: [f32; L],
}

impl<const L: usize> PanelMaxes<L> {
    /// Size in 32-bit words.
    const WORDS: usize = size_of::<Self>() / size_of::<u32>();
}

// SAFETY: arrays of equal length of 32-bit numbers, without padding.
unsafe impl<const L: usize> Zeroable for PanelMaxes<L> {}
// SAFETY: as above.
unsafe impl<const L: usize> Pod for PanelMaxes<L> {}

/// The index of a panel that contains only NaN.
const NO_INDEX: u32 = u32::MAX;

/// The reduction of a row of logits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowMax {
    /// The index of the largest logit, the lowest one of a tie; 0 for a row of NaN only.
    pub(crate) argmax: u32,
    /// The largest logit.
    pub(crate) max: f32,
    /// log(sum of e^(logit - max))
    log_sum_exp: f32,
}

impl RowMax {
    pub(crate) fn from_logits(isa: Isa, logits: &[f32]) -> Self {
        per_isa!(isa, row_max_of_logits(isa: Isa, logits: &[f32]) -> RowMax)
    }

    /// The log-probability of a token with this logit.
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
    let mut tokens = Vec::new();
    // Rows per GEMM call: bounds the number of panels in memory.
    for some in x.chunks(ROW_BLOCK * weights.inputs()) {
        tokens.extend(if isa.is_wide() {
            greedy_tokens_by_lanes::<WIDE_LANES>(isa, some, weights, bias)
        } else {
            greedy_tokens_by_lanes::<LANES>(isa, some, weights, bias)
        });
    }
    tokens
}

fn greedy_tokens_by_lanes<const L: usize>(
    isa: Isa,
    x: &[f32],
    weights: &CpuWeights,
    bias: Option<&[f32]>,
) -> Vec<TokenLogprob> {
    let count = x.len() / weights.inputs();
    let outputs = weights.outputs();
    let rows = LaneRows::<L> { count, tile: weights.tile_height(isa, count) };
    let panels = outputs.div_ceil(PANEL);
    let groups = rows.groups();
    let reduce = |out: &mut [MaybeUninit<u32>]| {
        let out = out.as_mut_ptr().cast();
        weights.gemm(isa, x, &PanelMaxEpilogue { isa, out, rows, outputs, bias });
    };
    // SAFETY: every panel of every tile is finished, and those are all panels of all groups.
    let parts = unsafe { ScratchVec::written_by(panels * groups * PanelMaxes::<L>::WORDS, reduce) };
    let parts: &[PanelMaxes<L>] = bytemuck::cast_slice(&parts);
    let token = |row: RowMax| TokenLogprob { token: row.argmax, logprob: row.logprob(row.max) };
    let tokens_of_group = |group: usize| {
        let parts = PanelStride { parts: &parts[group..], stride: groups };
        let whole = per_isa!(isa, row_maxes<const L>(parts: PanelStride<'_, L>) -> [RowMax; L]);
        whole.into_iter().take(rows.rows_of_group(group)).map(token).collect::<Vec<_>>()
    };
    (0..groups).into_par_iter().flat_map_iter(tokens_of_group).collect()
}

/// Rows in groups of up to `L`, one per lane: the rows of a tile form one or more groups, each full
/// except the last.
#[derive(Clone, Copy)]
struct LaneRows<const L: usize> {
    count: usize,
    tile: usize, // rows of each tile but the last
}

impl<const L: usize> LaneRows<L> {
    /// The groups of a whole tile.
    fn groups_per_tile(self) -> usize {
        self.tile.div_ceil(L)
    }

    fn groups(self) -> usize {
        self.count / self.tile * self.groups_per_tile() + (self.count % self.tile).div_ceil(L)
    }

    /// The rows of a group.
    fn rows_of_group(self, group: usize) -> usize {
        let tile = group / self.groups_per_tile();
        let i = group % self.groups_per_tile();
        L.min(self.tile - i * L).min(self.count - tile * self.tile - i * L)
    }
}

/// Stores the reduction of each panel instead of its logits.
struct PanelMaxEpilogue<'a, const L: usize> {
    isa: Isa,
    out: *mut PanelMaxes<L>, // (panels, groups)
    rows: LaneRows<L>,
    outputs: usize,
    bias: Option<&'a [f32]>,
}

// SAFETY: no two concurrent calls of `gemm`'s epilogue finish the same panel of a row.
unsafe impl<const L: usize> Sync for PanelMaxEpilogue<'_, L> {}

impl<const L: usize> TileEpilogue for PanelMaxEpilogue<'_, L> {
    #[inline(always)]
    unsafe fn finish_tile<const FUSED: bool, const ROWS: usize>(
        &self,
        bounds: TileBounds,
        tile: &mut OutputTile<ROWS>,
    ) {
        let TileBounds { row, rows, col, width, height } = bounds;
        assert_eq!(height, self.rows.tile, "rows were grouped for tiles of another height");
        let first = row / self.rows.tile * self.rows.groups_per_tile();
        for (i, part) in tile[..rows].chunks(L).enumerate() {
            let lanes =
                TileRows { data: part.as_flattened(), count: part.len(), stride: TILE_COLS };
            let mut columns = [[0.0; L]; TILE_COLS];
            pack_lanes(self.isa, lanes, &mut columns);
            if let Some(bias) = self.bias {
                for (column, &b) in columns.iter_mut().zip(&bias[col..col + width]) {
                    column.iter_mut().for_each(|x| *x += b);
                }
            }
            columns[width..].fill([f32::NEG_INFINITY; L]);
            let panels = columns.as_chunks::<PANEL>().0.iter().take(width.div_ceil(PANEL));
            for (p, columns) in panels.enumerate() {
                let col = col + p * PANEL;
                let at = col / PANEL * self.rows.groups() + first + i;
                let reduced = panel_maxes::<FUSED, L>(columns, [col; L], self.outputs);
                // SAFETY: `out` is (panels, groups), and each is finished once.
                unsafe { self.out.add(at).write(reduced) };
            }
        }
    }
}

/// Reduces panels, one per lane, whose first columns are `cols`. Columns beyond the outputs are
/// negative infinity.
///
/// Plain loops: closures passed to `array::map` and the like are compiled as separate functions
/// without the caller's instruction set, and call a library for every multiply-add.
#[inline(always)]
fn panel_maxes<const FUSED: bool, const L: usize>(
    columns: &[[f32; L]; PANEL],
    cols: [usize; L],
    outputs: usize,
) -> PanelMaxes<L> {
    let mut max = [f32::NEG_INFINITY; L];
    for column in columns {
        for l in 0..L {
            // Not `f32::max`: this is a single instruction, and ignores NaN.
            max[l] = if column[l] > max[l] { column[l] } else { max[l] };
        }
    }
    let mut shift = [0.0; L];
    for l in 0..L {
        shift[l] = finite_or_zero(max[l]);
    }
    let mut places = [NO_INDEX; L];
    let mut terms = [[0.0; L]; PANEL];
    for c in (0..PANEL).rev() {
        for l in 0..L {
            places[l] = if columns[c][l] == max[l] { c as u32 } else { places[l] };
            terms[c][l] = exp::<FUSED>(columns[c][l] - shift[l]);
        }
    }
    let mut index = [NO_INDEX; L];
    for l in 0..L {
        // A column beyond the outputs equals the maximum only if all others are negative infinity
        // or NaN.
        let at = (cols[l] as u32).saturating_add(places[l]);
        index[l] = if at < outputs as u32 { at } else { NO_INDEX };
    }
    PanelMaxes { max, index, exp_sum: fold_lanes(terms, sums) }
}

/// Lane-wise sums.
#[inline(always)]
fn sums<const L: usize>(mut a: [f32; L], b: [f32; L]) -> [f32; L] {
    for l in 0..L {
        a[l] += b[l];
    }
    a
}

#[inline(always)]
fn row_max_of_logits<const FUSED: bool>(isa: Isa, logits: &[f32]) -> RowMax {
    let parts = if isa.is_wide() {
        stored_panels::<FUSED, WIDE_LANES>(isa, logits)
    } else {
        stored_panels::<FUSED, LANES>(isa, logits)
    };
    let [row] = row_maxes::<FUSED, 1>(PanelStride { parts: &parts, stride: 1 });
    row
}

/// Reduces the panels of a stored row, `L` at a time.
#[inline(always)]
fn stored_panels<const FUSED: bool, const L: usize>(
    isa: Isa,
    logits: &[f32],
) -> Vec<PanelMaxes<1>> {
    let mut parts = Vec::with_capacity(logits.len().div_ceil(PANEL));
    for (i, some) in logits.chunks(L * PANEL).enumerate() {
        let mut rows = [[f32::NEG_INFINITY; PANEL]; L];
        let mut columns = [[0.0; L]; PANEL];
        rows.as_flattened_mut()[..some.len()].copy_from_slice(some);
        let lanes = TileRows { data: rows.as_flattened(), count: L, stride: PANEL };
        pack_lanes(isa, lanes, &mut columns);
        let cols = std::array::from_fn(|l| (i * L + l) * PANEL);
        let PanelMaxes { max, index, exp_sum } =
            panel_maxes::<FUSED, L>(&columns, cols, logits.len());
        for l in 0..some.len().div_ceil(PANEL) {
            parts.push(PanelMaxes { max: [max[l]], index: [index[l]], exp_sum: [exp_sum[l]] });
        }
    }
    parts
}

/// The panels of some rows, `stride` apart.
#[derive(Clone, Copy)]
struct PanelStride<'a, const L: usize> {
    parts: &'a [PanelMaxes<L>],
    stride: usize,
}

/// Combines panels in the order of columns.
#[inline(always)]
fn row_maxes<const FUSED: bool, const L: usize>(panels: PanelStride<'_, L>) -> [RowMax; L] {
    let parts = || panels.parts.iter().step_by(panels.stride);
    let mut max = [f32::NEG_INFINITY; L];
    let mut index = [NO_INDEX; L];
    for part in parts() {
        for l in 0..L {
            // A panel of only negative infinity still takes precedence over a panel without an
            // index.
            let is_first = index[l] == NO_INDEX && part.index[l] != NO_INDEX;
            let better = part.max[l] > max[l] || is_first;
            max[l] = if better { part.max[l] } else { max[l] };
            index[l] = if better { part.index[l] } else { index[l] };
        }
    }
    let mut terms = [[0.0; L]; PANEL];
    for (p, part) in parts().enumerate() {
        let sum = &mut terms[p % PANEL];
        for l in 0..L {
            sum[l] += part.exp_sum[l] * exp::<FUSED>(part.max[l] - finite_or_zero(max[l]));
        }
    }
    let exp_sum = fold_lanes(terms, sums);
    std::array::from_fn(|l| RowMax {
        argmax: if index[l] == NO_INDEX { 0 } else { index[l] },
        max: max[l],
        log_sum_exp: exp_sum[l].ln(),
    })
}

/// The offset of exponents: -inf - -inf would be NaN.
#[inline(always)]
fn finite_or_zero(largest: f32) -> f32 {
    if largest == f32::NEG_INFINITY { 0.0 } else { largest }
}
