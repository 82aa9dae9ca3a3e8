//! Attention over spans of KV slots.
//!
//! Keys are stored transposed in blocks of 16 slots, so that one pass over a query yields 16 scores
//! without a horizontal sum; values are stored row-major. Scores are laid out by position, not by
//! slot, and every sum runs in the order of positions, so a result does not depend on which slots
//! hold a sequence.

use rayon::prelude::*;

use super::isa::{Isa, fma, per_isa};
use super::math::{exp, fold_lanes, sum_lanes};
use crate::Tensor;
use crate::ops::{AttentionBackward, AttentionSpans, CpuKv, CpuLayerKv, Span};

/// Slots of a block of keys.
pub(crate) const BLOCK: usize = 16;
/// Blocks scored together: independent chains of multiply-adds hide each other's latency.
const BLOCKS_AT_ONCE: usize = 4;
/// Rows of one parallel task.
const ROWS: usize = 16;

/// The arguments that are the same for all rows and heads.
pub(crate) struct AttentionCall<'a> {
    pub(crate) layer: usize,
    pub(crate) heads: usize,
    pub(crate) spans: &'a AttentionSpans,
}

/// Stores keys and values of the rows of x in their slots; see `KvStore::write`.
pub(crate) fn write(kv: &mut CpuKv, layer: usize, x: &Tensor, first: usize, slots: &[u32]) {
    let (heads, dim, capacity) = (kv.kv_heads, kv.head_dim, kv.slots);
    let store = &mut kv.layers[layer];
    let per_head =
        (store.keys.par_chunks_mut(capacity * dim), store.values.par_chunks_mut(capacity * dim));
    let work = |(h, (keys, values)): (usize, (&mut [f32], &mut [f32]))| {
        for (r, &slot) in slots.iter().enumerate() {
            let slot = slot as usize;
            let row = &x.row(r)[first..];
            let block = &mut keys[slot / BLOCK * BLOCK * dim..][..BLOCK * dim];
            for (i, &k) in row[h * dim..(h + 1) * dim].iter().enumerate() {
                block[i * BLOCK + slot % BLOCK] = k;
            }
            values[slot * dim..(slot + 1) * dim]
                .copy_from_slice(&row[(heads + h) * dim..(heads + h + 1) * dim]);
        }
    };
    per_head.into_par_iter().enumerate().with_min_len(heads.div_ceil(4)).for_each(work);
}

/// See [`crate::ops::attention`].
pub(crate) fn attention(
    isa: Isa,
    q: &Tensor,
    kv: &CpuKv,
    call: &AttentionCall<'_>,
    out: &mut Tensor,
) {
    let width = out.cols();
    out.data_mut().par_chunks_mut(ROWS * width).enumerate().for_each(|(chunk, out)| {
        let of = &RowsCall { q, kv, call, first: chunk * ROWS, wide: isa.is_wide() };
        per_isa!(isa, attend_rows(of: &RowsCall<'_>, out: &mut [f32]));
    });
}

/// The arguments of one task.
struct RowsCall<'a> {
    q: &'a Tensor,
    kv: &'a CpuKv,
    call: &'a AttentionCall<'a>,
    first: usize, // row
    wide: bool,   // whether there are 32 wide registers
}

/// Rows that attend to the same slots first, as those of one question do: these slots' keys and
/// values are read once for all of them.
#[derive(Clone, Copy)]
struct RowGroup {
    first: usize,
    rows: usize,   // 1 or GROUP
    shared: usize, // slots; 0 for a single row
}

/// Rows of a group.
const GROUP: usize = 4;

/// What is computed for the rows of a task, the same for every head.
struct ScorePlan<'a> {
    spans: Vec<&'a [Span]>, // of each row
    starts: Vec<usize>,     // of each row's scores, and where the last row's end
    groups: Vec<RowGroup>,
    blocks: Vec<PlannedBlock>, // of slots that are not shared
}

/// A row's slots of one block of keys.
#[derive(Clone, Copy)]
struct PlannedBlock {
    row: usize,
    slot: usize, // the first
    len: usize,  // slots
    at: usize,   // index of the first slot's score
}

impl<'a> ScorePlan<'a> {
    fn new(spans: &'a AttentionSpans, first: usize, rows: usize) -> Self {
        let spans: Vec<&[Span]> = (first..first + rows).map(|r| spans.row_spans(r)).collect();
        let mut plan = Self { starts: vec![0], groups: Vec::new(), blocks: Vec::new(), spans };
        for spans in &plan.spans {
            let len: usize = spans.iter().map(|s| s.len as usize).sum();
            plan.starts.push(plan.starts[plan.starts.len() - 1] + len);
        }
        let mut row = 0;
        while row < rows {
            let shared = plan.shared_by_group(row);
            let group = RowGroup { first: row, rows: if shared > 0 { GROUP } else { 1 }, shared };
            (row..row + group.rows).for_each(|row| plan.add_blocks(row, shared));
            plan.groups.push(group);
            row += group.rows;
        }
        plan
    }

    /// The slots that the rows from this one on share at their beginning, if they make a group.
    fn shared_by_group(&self, row: usize) -> usize {
        let Some(rows) = self.spans.get(row..row + GROUP) else { return 0 };
        let mut shared = usize::MAX;
        for spans in rows {
            match spans.first() {
                Some(span) if span.start == rows[0][0].start => {
                    shared = shared.min(span.len as usize);
                }
                _ => return 0,
            }
        }
        shared
    }

    /// Adds the blocks of a row beyond its first `shared` slots.
    fn add_blocks(&mut self, row: usize, shared: usize) {
        let mut at = self.starts[row] + shared;
        for (slot, mut left) in own_slots(self.spans[row], shared) {
            let mut slot = slot;
            while left > 0 {
                let len = (BLOCK - slot % BLOCK).min(left);
                self.blocks.push(PlannedBlock { row, slot, len, at });
                (slot, at, left) = (slot + len, at + len, left - len);
            }
        }
    }

    fn scores_of(&self, row: usize) -> std::ops::Range<usize> {
        self.starts[row]..self.starts[row + 1]
    }
}

/// The spans (first slot, slots) of a row beyond its first `shared` slots.
#[inline(always)]
fn own_slots(spans: &[Span], shared: usize) -> impl Iterator<Item = (usize, usize)> {
    spans.iter().enumerate().map(move |(i, span)| {
        let skipped = if i == 0 { shared } else { 0 };
        (span.start as usize + skipped, span.len as usize - skipped)
    })
}

/// One query against one block of keys.
struct ScoreBlock<'a> {
    query: &'a [f32], // (head_dim)
    keys: &'a [f32],  // (head_dim, BLOCK)
    place: PlannedBlock,
}

#[inline(always)]
fn attend_rows<const FUSED: bool>(of: &RowsCall<'_>, out: &mut [f32]) {
    let RowsCall { q, kv, call, first, wide } = *of;
    let (dim, heads) = (kv.head_dim, call.heads);
    let rows = out.len() / (heads * dim);
    let store = &kv.layers[call.layer];
    let plan = ScorePlan::new(call.spans, first, rows);
    let mut scores = vec![0.0; plan.starts[rows]];
    let mut scales = vec![0.0; rows];
    for h in 0..heads {
        let group = h / (heads / kv.kv_heads);
        let keys = &store.keys[group * kv.slots * dim..][..kv.slots * dim];
        let values = &store.values[group * kv.slots * dim..][..kv.slots * dim];
        let query = |row: usize| &q.row(first + row)[h * dim..(h + 1) * dim];
        for four in plan.blocks.chunks(BLOCKS_AT_ONCE) {
            score::<FUSED>(four, &query, keys, &mut scores);
        }
        for group in plan.groups.iter().filter(|group| group.shared > 0) {
            let queries = std::array::from_fn(|r| query(group.first + r));
            if wide {
                score_shared::<FUSED, 2>(group, &plan, queries, keys, &mut scores);
            } else {
                score_shared::<FUSED, 1>(group, &plan, queries, keys, &mut scores);
            }
        }
        for (row, scale) in scales.iter_mut().enumerate() {
            *scale = softmax::<FUSED>(&mut scores[plan.scores_of(row)], 1.0 / (dim as f32).sqrt());
        }
        let sums = ValueSums { plan: &plan, scores: &scores, scales: &scales, values, dim };
        for group in &plan.groups {
            let out = &mut out[group.first * heads * dim + h * dim..];
            if group.rows == GROUP {
                sums.write::<FUSED, GROUP>(group, wide, heads * dim, out);
            } else {
                sums.write::<FUSED, 1>(group, wide, heads * dim, out);
            }
        }
    }
}

#[inline(always)]
fn score<'a, const FUSED: bool>(
    blocks: &[PlannedBlock],
    query: &impl Fn(usize) -> &'a [f32],
    keys: &'a [f32],
    scores: &mut [f32],
) {
    // A short last group repeats its last block and ignores the copies.
    let block = |b: usize| {
        let place = blocks[b.min(blocks.len() - 1)];
        let query = query(place.row);
        let size = BLOCK * query.len();
        ScoreBlock { query, keys: &keys[place.slot / BLOCK * size..][..size], place }
    };
    let four: [ScoreBlock<'_>; BLOCKS_AT_ONCE] = std::array::from_fn(block);
    score_blocks::<FUSED>(&four, blocks.len(), scores);
}

/// Scores the first `count` of four blocks.
#[inline(always)]
fn score_blocks<const FUSED: bool>(
    blocks: &[ScoreBlock<'_>; BLOCKS_AT_ONCE],
    count: usize,
    scores: &mut [f32],
) {
    let dim = blocks[0].query.len();
    let q: [&[f32]; BLOCKS_AT_ONCE] = std::array::from_fn(|b| &blocks[b].query[..dim]);
    let k: [&[[f32; BLOCK]]; BLOCKS_AT_ONCE] =
        std::array::from_fn(|b| &blocks[b].keys.as_chunks().0[..dim]);
    // Named accumulators, not an array: the compiler then keeps each in a register.
    let [mut a0, mut a1, mut a2, mut a3] = [[0.0f32; BLOCK]; BLOCKS_AT_ONCE];
    for i in 0..dim {
        a0 = fma_lanes::<FUSED>(q[0][i], &k[0][i], a0);
        a1 = fma_lanes::<FUSED>(q[1][i], &k[1][i], a1);
        a2 = fma_lanes::<FUSED>(q[2][i], &k[2][i], a2);
        a3 = fma_lanes::<FUSED>(q[3][i], &k[3][i], a3);
    }
    for (block, acc) in blocks.iter().zip([a0, a1, a2, a3]).take(count) {
        let PlannedBlock { slot, len, at, .. } = block.place;
        scores[at..at + len].copy_from_slice(&acc[slot % BLOCK..][..len]);
    }
}

/// The scores of a group's shared slots, `B` blocks of keys at once: each key is read once for all
/// rows.
#[inline(always)]
fn score_shared<const FUSED: bool, const B: usize>(
    group: &RowGroup,
    plan: &ScorePlan<'_>,
    queries: [&[f32]; GROUP],
    keys: &[f32],
    scores: &mut [f32],
) {
    let dim = queries[0].len();
    let [q0, q1, q2, q3] = queries.map(|query| &query[..dim]);
    let begin = plan.spans[group.first][0].start as usize;
    let end = begin + group.shared;
    let last = (end - 1) / BLOCK;
    for block in (begin / BLOCK..=last).step_by(B) {
        // Where fewer blocks than `B` are left, the last one is repeated and ignored.
        let k: [&[[f32; BLOCK]]; B] = std::array::from_fn(|b| {
            let size = BLOCK * dim;
            keys[(block + b).min(last) * size..][..size].as_chunks().0
        });
        let [mut a0, mut a1, mut a2, mut a3] = [[[0.0f32; BLOCK]; B]; GROUP];
        for i in 0..dim {
            for b in 0..B {
                a0[b] = fma_lanes::<FUSED>(q0[i], &k[b][i], a0[b]);
                a1[b] = fma_lanes::<FUSED>(q1[i], &k[b][i], a1[b]);
                a2[b] = fma_lanes::<FUSED>(q2[i], &k[b][i], a2[b]);
                a3[b] = fma_lanes::<FUSED>(q3[i], &k[b][i], a3[b]);
            }
        }
        for b in 0..B.min(last + 1 - block) {
            let first = (block + b) * BLOCK;
            let slots = begin.max(first)..end.min(first + BLOCK);
            for (r, acc) in [a0[b], a1[b], a2[b], a3[b]].into_iter().enumerate() {
                let at = plan.starts[group.first + r] + slots.start - begin;
                scores[at..at + slots.len()]
                    .copy_from_slice(&acc[slots.start - first..slots.end - first]);
            }
        }
    }
}

/// `acc + x * row`, lane by lane.
#[inline(always)]
fn fma_lanes<const FUSED: bool>(x: f32, row: &[f32; BLOCK], acc: [f32; BLOCK]) -> [f32; BLOCK] {
    std::array::from_fn(|l| fma::<FUSED>(x, row[l], acc[l]))
}

/// Turns scores into unnormalised probabilities; returns the factor that normalises them.
#[inline(always)]
fn softmax<const FUSED: bool>(scores: &mut [f32], scale: f32) -> f32 {
    let largest = largest(scores);
    for x in scores.iter_mut() {
        *x = exp::<FUSED>((*x - largest) * scale);
    }
    1.0 / sum_lanes(scores.len(), |i, s| s + scores[i])
}

/// The largest number, NaN ignored, in lanes: a maximum is the same in any order.
#[inline(always)]
fn largest(scores: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; BLOCK];
    let (whole, rest) = scores.as_chunks::<BLOCK>();
    for chunk in whole {
        for l in 0..BLOCK {
            lanes[l] = larger(lanes[l], chunk[l]);
        }
    }
    rest.iter().fold(fold_lanes(lanes, larger), |a, &b| larger(a, b))
}

/// `out = scale * sum_j weights[j] * values[slot_j]` for rows, in the order of j.
struct ValueSums<'a> {
    plan: &'a ScorePlan<'a>,
    scores: &'a [f32],
    scales: &'a [f32],
    values: &'a [f32], // (slots, dim)
    dim: usize,
}

impl ValueSums<'_> {
    /// `W` columns of a slot's value.
    #[inline(always)]
    fn value<const W: usize>(&self, slot: usize, column: usize) -> &[f32; W] {
        let at = slot * self.dim + column;
        self.values[at..].first_chunk().expect("every slot has a value")
    }

    /// Writes a group's `R` rows, which are `stride` apart in `out`.
    #[inline(always)]
    fn write<const FUSED: bool, const R: usize>(
        &self,
        group: &RowGroup,
        wide: bool,
        stride: usize,
        out: &mut [f32],
    ) {
        let mut column = 0;
        while wide && column + 64 <= self.dim {
            self.write_columns::<FUSED, R, 64>(group, column, stride, out);
            column += 64;
        }
        while column + 16 <= self.dim {
            self.write_columns::<FUSED, R, 16>(group, column, stride, out);
            column += 16;
        }
        while column < self.dim {
            self.write_columns::<FUSED, R, 1>(group, column, stride, out);
            column += 1;
        }
    }

    #[inline(always)]
    fn write_columns<const FUSED: bool, const R: usize, const W: usize>(
        &self,
        group: &RowGroup,
        column: usize,
        stride: usize,
        out: &mut [f32],
    ) {
        let mut acc = [[0.0f32; W]; R];
        if group.shared > 0 {
            let begin = self.plan.spans[group.first][0].start as usize;
            let weights: [&[f32]; R] = std::array::from_fn(|r| {
                &self.scores[self.plan.starts[group.first + r]..][..group.shared]
            });
            #[allow(clippy::needless_range_loop, reason = "rows are indexed beside it")]
            for j in 0..group.shared {
                let value = self.value::<W>(begin + j, column);
                for r in 0..R {
                    for l in 0..W {
                        acc[r][l] = fma::<FUSED>(weights[r][j], value[l], acc[r][l]);
                    }
                }
            }
        }
        // By value: what a loop over rows points to would stay in memory.
        for (r, mut acc) in acc.into_iter().enumerate() {
            let row = group.first + r;
            let mut weights = &self.scores[self.plan.scores_of(row)][group.shared..];
            for (slot, len) in own_slots(self.plan.spans[row], group.shared) {
                let (own, rest) = weights.split_at(len);
                for (j, &weight) in own.iter().enumerate() {
                    let value = self.value::<W>(slot + j, column);
                    for l in 0..W {
                        acc[l] = fma::<FUSED>(weight, value[l], acc[l]);
                    }
                }
                weights = rest;
            }
            let out = &mut out[r * stride + column..][..W];
            for (o, a) in out.iter_mut().zip(acc) {
                *o = a * self.scales[row];
            }
        }
    }
}

/// See [`crate::ops::attention_backward`]. Key heads are parallel tasks, since they share no
/// gradients; each takes its rows in order. Both gradients are (kv_heads, slots, head_dim): the
/// keys' are not transposed in blocks.
pub(crate) fn attention_backward(
    isa: Isa,
    of: &AttentionBackward<'_>,
    kv: &CpuKv,
    call: &AttentionCall<'_>,
    grads: &mut CpuLayerKv,
    dqkv: &mut Tensor,
) {
    let (rows, size) = (of.q.rows(), kv.slots * kv.head_dim);
    // Of the query heads that share a key head.
    let width = call.heads / kv.kv_heads * kv.head_dim;
    let mut dq = vec![0.0; rows * call.heads * kv.head_dim]; // (kv_heads, rows, width)
    let keys_and_values = grads.keys.par_chunks_mut(size).zip(grads.values.par_chunks_mut(size));
    dq.par_chunks_mut((rows * width).max(1)).zip(keys_and_values).enumerate().for_each(
        |(g, (dq, (dk, dv)))| {
            let grads = HeadGrads { dq, dk, dv };
            per_isa!(isa, head_backward(
                of: &AttentionBackward<'_>, kv: &CpuKv, call: &AttentionCall<'_>, g: usize,
                grads: HeadGrads<'_>,
            ));
        },
    );
    let cols = dqkv.cols();
    dqkv.data_mut().par_chunks_mut(cols).enumerate().for_each(|(r, row)| {
        for (g, part) in row[..kv.kv_heads * width].chunks_mut(width).enumerate() {
            part.copy_from_slice(&dq[(g * rows + r) * width..][..width]);
        }
    });
}

/// The gradients of one key head and of the query heads that share it.
struct HeadGrads<'a> {
    dq: &'a mut [f32], // (rows, query heads, head_dim)
    dk: &'a mut [f32], // (slots, head_dim)
    dv: &'a mut [f32], // (slots, head_dim)
}

/// All rows of the query heads that share key head `g`.
#[inline(always)]
fn head_backward<const FUSED: bool>(
    of: &AttentionBackward<'_>,
    kv: &CpuKv,
    call: &AttentionCall<'_>,
    g: usize,
    grads: HeadGrads<'_>,
) {
    let HeadGrads { dq, dk, dv } = grads;
    let dim = kv.head_dim;
    let (group, scale) = (call.heads / kv.kv_heads, 1.0 / (dim as f32).sqrt());
    let store = &kv.layers[call.layer];
    let keys = &store.keys[g * kv.slots * dim..][..kv.slots * dim];
    let values = &store.values[g * kv.slots * dim..][..kv.slots * dim];
    let (mut scores, mut lanes): (Vec<f32>, Vec<[f32; BLOCK]>) = (Vec::new(), Vec::new());
    for (i, dq) in dq.chunks_exact_mut(dim).enumerate() {
        let (r, column) = (i / group, (g * group + i % group) * dim);
        let [query, out, dout] = [of.q, of.out, of.dout].map(|x| &x.row(r)[column..column + dim]);
        let plan = ScorePlan::new(call.spans, r, 1);
        scores.clear();
        scores.resize(plan.starts[1], 0.0);
        for four in plan.blocks.chunks(BLOCKS_AT_ONCE) {
            score::<FUSED>(four, &|_| query, keys, &mut scores);
        }
        let inverse = softmax::<FUSED>(&mut scores, scale);
        let dot_out = sum_lanes(dim, |i, s| fma::<FUSED>(dout[i], out[i], s));
        lanes.clear();
        lanes.resize(dim, [0.0; BLOCK]);
        for block in &plan.blocks {
            let mut dscores = [0.0; BLOCK];
            for l in 0..block.len {
                let (p, at) = (scores[block.at + l] * inverse, (block.slot + l) * dim);
                let value = &values[at..at + dim];
                let dscore = p
                    * (sum_lanes(dim, |i, s| fma::<FUSED>(dout[i], value[i], s)) - dot_out)
                    * scale;
                dk[at..at + dim]
                    .iter_mut()
                    .zip(query)
                    .for_each(|(d, &q)| *d = fma::<FUSED>(dscore, q, *d));
                dv[at..at + dim]
                    .iter_mut()
                    .zip(dout)
                    .for_each(|(d, &o)| *d = fma::<FUSED>(p, o, *d));
                dscores[block.slot % BLOCK + l] = dscore;
            }
            let keys = &keys[block.slot / BLOCK * BLOCK * dim..][..BLOCK * dim];
            for (acc, keys) in lanes.iter_mut().zip(keys.as_chunks::<BLOCK>().0) {
                *acc = std::array::from_fn(|l| fma::<FUSED>(dscores[l], keys[l], acc[l]));
            }
        }
        dq.iter_mut().zip(&lanes).for_each(|(d, lanes)| *d = sum_lanes(BLOCK, |l, s| s + lanes[l]));
    }
}
