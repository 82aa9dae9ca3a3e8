//! Attention over spans of slots.
//!
//! Keys are stored transposed in blocks of 16 slots, so that one pass over a query yields 16 scores
//! without a horizontal sum; values are stored as they are. Scores are laid out by position, not by
//! slot, and every sum runs in the order of positions, so a result does not depend on which slots
//! hold a sequence.

use rayon::prelude::*;

use super::isa::{Isa, fma, per_isa};
use super::math::{exp, sum_lanes};
use crate::Tensor;
use crate::ops::{AttentionBackward, AttentionSpans, CpuKv, CpuLayerKv};

/// Slots whose keys are stored together.
pub(crate) const BLOCK: usize = 16;
/// Blocks scored together: independent chains of multiply-adds that hide each other's latency.
const BLOCKS_AT_ONCE: usize = 4;
/// Rows of one task.
const ROWS: usize = 16;

/// What does not change within one call.
pub(crate) struct AttentionCall<'a> {
    pub(crate) layer: usize,
    pub(crate) heads: usize,
    pub(crate) spans: &'a AttentionSpans,
}

/// See [`crate::ops::KvStore`]: its private `write`.
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
    shape: &AttentionCall<'_>,
    out: &mut Tensor,
) {
    let width = out.cols();
    out.data_mut().par_chunks_mut(ROWS * width).enumerate().for_each(|(chunk, out)| {
        let first = chunk * ROWS;
        per_isa!(isa, rows(q: &Tensor, kv: &CpuKv, shape: &AttentionCall<'_>, first: usize, out: &mut [f32]));
    });
}

/// A block of keys against one query: where its scores go.
struct ScoreBlock<'a> {
    query: &'a [f32], // (head_dim)
    keys: &'a [f32],  // (head_dim, BLOCK)
    slot: usize,      // the first of the block's slots that is seen
    len: usize,       // how many are
    at: usize,        // where the first one's score goes
}

#[inline(always)]
fn rows<const FUSED: bool>(
    q: &Tensor,
    kv: &CpuKv,
    shape: &AttentionCall<'_>,
    first: usize,
    out: &mut [f32],
) {
    let (dim, heads) = (kv.head_dim, shape.heads);
    let count = out.len() / (heads * dim);
    let store = &kv.layers[shape.layer];
    let mut jobs: Vec<ScoreBlock<'_>> = Vec::new();
    let mut scores: Vec<f32> = Vec::new();
    for h in 0..heads {
        let group = h / (heads / kv.kv_heads);
        let keys = &store.keys[group * kv.slots * dim..][..kv.slots * dim];
        let values = &store.values[group * kv.slots * dim..][..kv.slots * dim];
        jobs.clear();
        let mut total = 0;
        for r in 0..count {
            let query = &q.row(first + r)[h * dim..(h + 1) * dim];
            total = plan_scores(shape.spans, first + r, (query, keys), total, &mut jobs);
        }
        scores.clear();
        scores.resize(total, 0.0);
        for four in jobs.chunks(BLOCKS_AT_ONCE) {
            score::<FUSED>(four, &mut scores);
        }
        let mut rest = &mut scores[..];
        for r in 0..count {
            let spans = shape.spans.row_spans(first + r);
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

/// Adds the jobs of one row, whose scores start at `at`; returns where they end.
#[inline(always)]
fn plan_scores<'a>(
    attend: &AttentionSpans,
    row: usize,
    (query, keys): (&'a [f32], &'a [f32]),
    mut at: usize,
    jobs: &mut Vec<ScoreBlock<'a>>,
) -> usize {
    let size = BLOCK * query.len();
    for span in attend.row_spans(row) {
        let (mut slot, end) = (span.start as usize, (span.start + span.len) as usize);
        while slot < end {
            let len = (BLOCK - slot % BLOCK).min(end - slot);
            jobs.push(ScoreBlock {
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
fn score<const FUSED: bool>(jobs: &[ScoreBlock<'_>], scores: &mut [f32]) {
    let job = |b: usize| &jobs[b.min(jobs.len() - 1)]; // a short last group repeats its last job and ignores the copies
    let dim = jobs[0].query.len();
    let q: [&[f32]; BLOCKS_AT_ONCE] = std::array::from_fn(|b| &job(b).query[..dim]);
    let k: [&[[f32; BLOCK]]; BLOCKS_AT_ONCE] =
        std::array::from_fn(|b| &job(b).keys.as_chunks().0[..dim]);
    // Named chains, not an array of them: the compiler then keeps each in a register.
    let [mut a0, mut a1, mut a2, mut a3] = [[0.0f32; BLOCK]; BLOCKS_AT_ONCE];
    for i in 0..dim {
        a0 = fma_lanes::<FUSED>(q[0][i], &k[0][i], a0);
        a1 = fma_lanes::<FUSED>(q[1][i], &k[1][i], a1);
        a2 = fma_lanes::<FUSED>(q[2][i], &k[2][i], a2);
        a3 = fma_lanes::<FUSED>(q[3][i], &k[3][i], a3);
    }
    for (job, acc) in jobs.iter().zip([a0, a1, a2, a3]) {
        scores[job.at..job.at + job.len].copy_from_slice(&acc[job.slot % BLOCK..][..job.len]);
    }
}

/// `acc + x * row`, lane by lane.
#[inline(always)]
fn fma_lanes<const FUSED: bool>(x: f32, row: &[f32; BLOCK], acc: [f32; BLOCK]) -> [f32; BLOCK] {
    std::array::from_fn(|l| fma::<FUSED>(x, row[l], acc[l]))
}

/// Turns scores into unnormalised weights; returns what to multiply their mixture with.
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
        weighted_sum_columns::<FUSED, 64>(weights, values, slots.clone(), (dim, i, scale), out);
        i += 64;
    }
    while i + 16 <= dim {
        weighted_sum_columns::<FUSED, 16>(weights, values, slots.clone(), (dim, i, scale), out);
        i += 16;
    }
    while i < dim {
        weighted_sum_columns::<FUSED, 1>(weights, values, slots.clone(), (dim, i, scale), out);
        i += 1;
    }
}

#[inline(always)]
fn weighted_sum_columns<const FUSED: bool, const W: usize>(
    weights: &[f32],
    values: &[f32],
    slots: impl Iterator<Item = usize>,
    (dim, first, scale): (usize, usize, f32),
    out: &mut [f32],
) {
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

/// See [`crate::ops::attention_backward`]. Key heads share no gradient, so they are worked on side
/// by side; each takes its rows in order. The gradients are (kv_heads, slots, head_dim), the keys'
/// unlike the keys themselves.
pub(crate) fn attention_backward(
    isa: Isa,
    of: &AttentionBackward<'_>,
    kv: &CpuKv,
    shape: &AttentionCall<'_>,
    (grads, dqkv): (&mut CpuLayerKv, &mut Tensor),
) {
    let (rows, size) = (of.q.rows(), kv.slots * kv.head_dim);
    let width = shape.heads / kv.kv_heads * kv.head_dim; // of the query heads that share a key head
    let mut dq = vec![0.0; rows * shape.heads * kv.head_dim]; // (kv_heads, rows, width)
    let keys_and_values = grads.keys.par_chunks_mut(size).zip(grads.values.par_chunks_mut(size));
    dq.par_chunks_mut((rows * width).max(1)).zip(keys_and_values).enumerate().for_each(
        |(g, (dq, grads))| {
            per_isa!(isa, head_backward(
                of: &AttentionBackward<'_>, kv: &CpuKv, shape: &AttentionCall<'_>, g: usize,
                grads: (&mut [f32], &mut [f32]), dq: &mut [f32],
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

/// All rows of the query heads that share key head `g`.
#[inline(always)]
fn head_backward<const FUSED: bool>(
    of: &AttentionBackward<'_>,
    kv: &CpuKv,
    shape: &AttentionCall<'_>,
    g: usize,
    (dk, dv): (&mut [f32], &mut [f32]),
    dq: &mut [f32],
) {
    let dim = kv.head_dim;
    let (group, scale) = (shape.heads / kv.kv_heads, 1.0 / (dim as f32).sqrt());
    let store = &kv.layers[shape.layer];
    let keys = &store.keys[g * kv.slots * dim..][..kv.slots * dim];
    let values = &store.values[g * kv.slots * dim..][..kv.slots * dim];
    let (mut jobs, mut scores, mut lanes): (Vec<ScoreBlock<'_>>, Vec<f32>, Vec<[f32; BLOCK]>) =
        (Vec::new(), Vec::new(), Vec::new());
    for (i, dq) in dq.chunks_exact_mut(dim).enumerate() {
        let (r, column) = (i / group, (g * group + i % group) * dim);
        let [query, out, dout] = [of.q, of.out, of.dout].map(|x| &x.row(r)[column..column + dim]);
        jobs.clear();
        let total = plan_scores(shape.spans, r, (query, keys), 0, &mut jobs);
        scores.clear();
        scores.resize(total, 0.0);
        jobs.chunks(BLOCKS_AT_ONCE).for_each(|four| score::<FUSED>(four, &mut scores));
        let inverse = softmax::<FUSED>(&mut scores, scale);
        let along = sum_lanes(dim, |i, s| fma::<FUSED>(dout[i], out[i], s));
        lanes.clear();
        lanes.resize(dim, [0.0; BLOCK]);
        for job in &jobs {
            let mut slopes = [0.0; BLOCK]; // of the scores
            for l in 0..job.len {
                let (p, at) = (scores[job.at + l] * inverse, (job.slot + l) * dim);
                let value = &values[at..at + dim];
                let slope =
                    p * (sum_lanes(dim, |i, s| fma::<FUSED>(dout[i], value[i], s)) - along) * scale;
                dk[at..at + dim]
                    .iter_mut()
                    .zip(query)
                    .for_each(|(d, &q)| *d = fma::<FUSED>(slope, q, *d));
                dv[at..at + dim]
                    .iter_mut()
                    .zip(dout)
                    .for_each(|(d, &o)| *d = fma::<FUSED>(p, o, *d));
                slopes[job.slot % BLOCK + l] = slope;
            }
            for (acc, keys) in lanes.iter_mut().zip(job.keys.as_chunks::<BLOCK>().0) {
                *acc = std::array::from_fn(|l| fma::<FUSED>(slopes[l], keys[l], acc[l]));
            }
        }
        dq.iter_mut().zip(&lanes).for_each(|(d, lanes)| *d = sum_lanes(BLOCK, |l, s| s + lanes[l]));
    }
}
