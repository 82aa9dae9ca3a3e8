//! Attention over spans of KV slots.
//!
//! Keys are stored transposed in blocks of 16 slots, so that one pass over a query yields 16 scores
//! without a horizontal sum; values are stored row-major. Scores are laid out by position, not by
//! slot, and every sum runs in the order of positions, so a result does not depend on which slots
//! hold a sequence.

use rayon::prelude::*;

use super::isa::{Isa, fma, per_isa};
use super::math::{exp, sum_lanes};
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
        let first = chunk * ROWS;
        per_isa!(isa, attend_rows(
            q: &Tensor, kv: &CpuKv, call: &AttentionCall<'_>, first: usize, out: &mut [f32],
        ));
    });
}

/// One query against one block of keys.
struct ScoreBlock<'a> {
    query: &'a [f32], // (head_dim)
    keys: &'a [f32],  // (head_dim, BLOCK)
    slot: usize,      // the first slot of the block in the row's span
    len: usize,       // slots of the block in the span
    at: usize,        // index of the first slot's score
}

#[inline(always)]
fn attend_rows<const FUSED: bool>(
    q: &Tensor,
    kv: &CpuKv,
    call: &AttentionCall<'_>,
    first: usize,
    out: &mut [f32],
) {
    let (dim, heads) = (kv.head_dim, call.heads);
    let count = out.len() / (heads * dim);
    let store = &kv.layers[call.layer];
    let mut blocks: Vec<ScoreBlock<'_>> = Vec::new();
    let mut scores: Vec<f32> = Vec::new();
    for h in 0..heads {
        let group = h / (heads / kv.kv_heads);
        let keys = &store.keys[group * kv.slots * dim..][..kv.slots * dim];
        let values = &store.values[group * kv.slots * dim..][..kv.slots * dim];
        blocks.clear();
        let mut total = 0;
        for r in 0..count {
            let query = &q.row(first + r)[h * dim..(h + 1) * dim];
            let spans = call.spans.row_spans(first + r);
            total = plan_scores(spans, query, keys, total, &mut blocks);
        }
        scores.clear();
        scores.resize(total, 0.0);
        for four in blocks.chunks(BLOCKS_AT_ONCE) {
            score::<FUSED>(four, &mut scores);
        }
        let mut rest = &mut scores[..];
        for r in 0..count {
            let spans = call.spans.row_spans(first + r);
            let len = spans.iter().map(|s| s.len as usize).sum();
            let (own, others) = rest.split_at_mut(len);
            rest = others;
            let scale = softmax::<FUSED>(own, 1.0 / (dim as f32).sqrt());
            let out = &mut out[(r * heads + h) * dim..][..dim];
            let slots = spans.iter().flat_map(|s| s.start as usize..(s.start + s.len) as usize);
            weighted_sum::<FUSED>(own, values, slots, scale, out);
        }
    }
}

/// Adds the score blocks of one row, whose scores begin at index `at`; returns where they end.
#[inline(always)]
fn plan_scores<'a>(
    spans: &[Span],
    query: &'a [f32],
    keys: &'a [f32],
    mut at: usize,
    blocks: &mut Vec<ScoreBlock<'a>>,
) -> usize {
    let size = BLOCK * query.len();
    for span in spans {
        let (mut slot, end) = (span.start as usize, (span.start + span.len) as usize);
        while slot < end {
            let len = (BLOCK - slot % BLOCK).min(end - slot);
            blocks.push(ScoreBlock {
                query,
                keys: &keys[slot / BLOCK * size..][..size],
                slot,
                len,
                at,
            });
            (slot, at) = (slot + len, at + len);
        }
    }
    at
}

#[inline(always)]
fn score<const FUSED: bool>(blocks: &[ScoreBlock<'_>], scores: &mut [f32]) {
    // A short last group repeats its last block and ignores the copies.
    let block = |b: usize| &blocks[b.min(blocks.len() - 1)];
    let dim = blocks[0].query.len();
    let q: [&[f32]; BLOCKS_AT_ONCE] = std::array::from_fn(|b| &block(b).query[..dim]);
    let k: [&[[f32; BLOCK]]; BLOCKS_AT_ONCE] =
        std::array::from_fn(|b| &block(b).keys.as_chunks().0[..dim]);
    // Named accumulators, not an array: the compiler then keeps each in a register.
    let [mut a0, mut a1, mut a2, mut a3] = [[0.0f32; BLOCK]; BLOCKS_AT_ONCE];
    for i in 0..dim {
        a0 = fma_lanes::<FUSED>(q[0][i], &k[0][i], a0);
        a1 = fma_lanes::<FUSED>(q[1][i], &k[1][i], a1);
        a2 = fma_lanes::<FUSED>(q[2][i], &k[2][i], a2);
        a3 = fma_lanes::<FUSED>(q[3][i], &k[3][i], a3);
    }
    for (block, acc) in blocks.iter().zip([a0, a1, a2, a3]) {
        scores[block.at..block.at + block.len]
            .copy_from_slice(&acc[block.slot % BLOCK..][..block.len]);
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
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for x in scores.iter_mut() {
        *x = exp::<FUSED>((*x - largest) * scale);
    }
    1.0 / sum_lanes(scores.len(), |i, s| s + scores[i])
}

/// `out = scale * sum_j weights[j] * values[slot_j]`, in the order of j.
#[inline(always)]
fn weighted_sum<const FUSED: bool>(
    weights: &[f32],
    values: &[f32],
    slots: impl Iterator<Item = usize> + Clone,
    scale: f32,
    out: &mut [f32],
) {
    let dim = out.len();
    let mut i = 0;
    while i + 64 <= dim {
        weighted_sum_columns::<FUSED, 64>(weights, values, slots.clone(), i, scale, out);
        i += 64;
    }
    while i + 16 <= dim {
        weighted_sum_columns::<FUSED, 16>(weights, values, slots.clone(), i, scale, out);
        i += 16;
    }
    while i < dim {
        weighted_sum_columns::<FUSED, 1>(weights, values, slots.clone(), i, scale, out);
        i += 1;
    }
}

#[inline(always)]
fn weighted_sum_columns<const FUSED: bool, const W: usize>(
    weights: &[f32],
    values: &[f32],
    slots: impl Iterator<Item = usize>,
    first: usize,
    scale: f32,
    out: &mut [f32],
) {
    let dim = out.len();
    let mut acc = [0.0f32; W];
    for (&w, slot) in weights.iter().zip(slots) {
        let row = &values[slot * dim + first..][..W];
        for l in 0..W {
            acc[l] = fma::<FUSED>(w, row[l], acc[l]);
        }
    }
    for (o, a) in out[first..first + W].iter_mut().zip(acc) {
        *o = a * scale;
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
    let (mut blocks, mut scores, mut lanes): (Vec<ScoreBlock<'_>>, Vec<f32>, Vec<[f32; BLOCK]>) =
        (Vec::new(), Vec::new(), Vec::new());
    for (i, dq) in dq.chunks_exact_mut(dim).enumerate() {
        let (r, column) = (i / group, (g * group + i % group) * dim);
        let [query, out, dout] = [of.q, of.out, of.dout].map(|x| &x.row(r)[column..column + dim]);
        blocks.clear();
        let total = plan_scores(call.spans.row_spans(r), query, keys, 0, &mut blocks);
        scores.clear();
        scores.resize(total, 0.0);
        blocks.chunks(BLOCKS_AT_ONCE).for_each(|four| score::<FUSED>(four, &mut scores));
        let inverse = softmax::<FUSED>(&mut scores, scale);
        let dot_out = sum_lanes(dim, |i, s| fma::<FUSED>(dout[i], out[i], s));
        lanes.clear();
        lanes.resize(dim, [0.0; BLOCK]);
        for block in &blocks {
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
            for (acc, keys) in lanes.iter_mut().zip(block.keys.as_chunks::<BLOCK>().0) {
                *acc = std::array::from_fn(|l| fma::<FUSED>(dscores[l], keys[l], acc[l]));
            }
        }
        dq.iter_mut().zip(&lanes).for_each(|(d, lanes)| *d = sum_lanes(BLOCK, |l, s| s + lanes[l]));
    }
}
