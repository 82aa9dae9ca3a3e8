//! Attention over spans of KV slots.
//!
//! The keys of all heads of a slot are contiguous, and so are its values: a sequence's unshared
//! slots are mostly in memory, not in the CPU's caches, and are read sequentially. Rows that begin
//! with the same slots, such as the sequences of one question, form a group and are mapped to the
//! lanes of registers: the shared slots are read once for all of them, head by head.
//!
//! Scores are laid out by position, not by slot, and every sum runs in position order, so a result
//! depends neither on the slots of a sequence nor on the other rows.

use std::ops::Range;

use rayon::prelude::*;

use super::isa::{Isa, fma, per_isa};
use super::linear::{TileRows, pack_lanes};
use super::math::{exp, fold_lanes, sum_lanes};
use crate::Tensor;
use crate::ops::{AttentionBackward, AttentionSpans, CpuKv, CpuLayerKv, Span};

/// Rows of a group with 32 registers of 512 bits, and otherwise.
const WIDE_GROUP: usize = 16;
const GROUP: usize = 8;
/// Below this number, rows that begin with the same slots are computed individually.
const LEAST_GROUP: usize = 4;
/// Slots that are scored together: independent chains of multiply-adds hide each other's latency.
const TILE: usize = 8;
/// Number of interleaved partial sums of a softmax: scores are padded to a multiple of it.
const PARTS: usize = 16;
/// Minimum rows whose keys and values are stored by one task.
const ROWS_PER_WRITE: usize = 32;

/// The arguments that are the same for all rows and heads.
pub(crate) struct AttentionCall<'a> {
    pub(crate) layer: usize,
    pub(crate) heads: usize,
    pub(crate) spans: &'a AttentionSpans,
}

/// Stores keys and values of rows in their slots; see `KvStore::write`.
pub(crate) fn write(kv: &mut CpuKv, layer: usize, rows: &[(&Tensor, &[u32])], first: usize) {
    let slots = || rows.iter().flat_map(|(_, slots)| slots.iter());
    let (Some(&low), Some(&high)) = (slots().min(), slots().max()) else { return };
    let width = kv.kv_heads * kv.head_dim;
    let store = &mut kv.layers[layer];
    // Each task owns a range of the slots, and searches all rows for those in it.
    let low = low as usize;
    let end = high as usize + 1;
    let tasks = (4 * rayon::current_num_threads()).min(slots().count().div_ceil(ROWS_PER_WRITE));
    let part = (end - low).div_ceil(tasks);
    let keys = store.keys[low * width..end * width].par_chunks_mut(part * width);
    let values = store.values[low * width..end * width].par_chunks_mut(part * width);
    keys.zip(values).enumerate().for_each(|(i, (keys, values))| {
        let begin = low + i * part;
        for (x, slots) in rows {
            for (r, &slot) in slots.iter().enumerate() {
                if (begin..begin + part).contains(&(slot as usize)) {
                    let at = (slot as usize - begin) * width;
                    let (key, value) = x.row(r)[first..first + 2 * width].split_at(width);
                    keys[at..at + width].copy_from_slice(key);
                    values[at..at + width].copy_from_slice(value);
                }
            }
        }
    });
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
    let mut rest = out.data_mut();
    let mut tasks = Vec::new();
    for rows in groups(call.spans, if isa.is_wide() { WIDE_GROUP } else { GROUP }) {
        let (out, later) = std::mem::take(&mut rest).split_at_mut(rows.len() * width);
        tasks.push((rows, out));
        rest = later;
    }
    tasks.into_par_iter().for_each(|(rows, out)| {
        let of = &GroupCall { isa, q, kv, call, rows };
        per_isa!(isa, attend(of: &GroupCall<'_>, out: &mut [f32]));
    });
}

/// Splits all rows into single ones and groups of up to `most` that begin with the same slots.
fn groups(spans: &AttentionSpans, most: usize) -> Vec<Range<usize>> {
    let begin = |r: usize| spans.row_spans(r).first().map(|span| span.start);
    let mut groups = Vec::new();
    let mut first = 0;
    while first < spans.rows() {
        let candidates = first..spans.rows().min(first + most);
        let alike = candidates.take_while(|&r| begin(r) == begin(first)).count();
        let end = first + if alike < LEAST_GROUP { 1 } else { alike };
        groups.push(first..end);
        first = end;
    }
    groups
}

/// The arguments of one task.
struct GroupCall<'a> {
    isa: Isa,
    q: &'a Tensor,
    kv: &'a CpuKv,
    call: &'a AttentionCall<'a>,
    rows: Range<usize>, // a single row, or a group
}

impl GroupCall<'_> {
    /// Writes the queries of a head as (head_dim, lanes).
    #[inline(always)]
    fn pack_queries<const R: usize>(&self, head: usize, to: &mut [[f32; R]]) {
        let dim = to.len();
        let stride = self.q.cols();
        let data = &self.q.data()[self.rows.start * stride + head * dim..];
        pack_lanes(self.isa, TileRows { data, count: self.rows.len(), stride }, to);
    }
}

/// The slots of the rows of a task.
struct GroupPlan {
    begin: usize,        // the first of the shared slots
    shared: usize,       // leading slots shared by all rows; 0 for a single row
    own: Vec<usize>,     // the other slots, row by row, in the order of positions
    rows: usize,         // those that were added
    tiles: Vec<OwnTile>, // of the own slots
}

/// Up to [`TILE`] of a row's unshared slots.
struct OwnTile {
    row: usize,          // of the task
    at: usize,           // the first slot's position
    slots: Range<usize>, // among all own slots
}

impl GroupPlan {
    fn new(spans: &AttentionSpans, rows: Range<usize>) -> Self {
        let first = |r: usize| spans.row_spans(r).first().copied();
        let lens = rows.clone().map(|r| first(r).map_or(0, |span| span.len as usize));
        let shared = if rows.len() > 1 { lens.min().unwrap_or(0) } else { 0 };
        let begin = first(rows.start).map_or(0, |span| span.start as usize);
        let mut plan = Self { begin, shared, own: Vec::new(), rows: 0, tiles: Vec::new() };
        rows.for_each(|r| plan.add_row(spans.row_spans(r)));
        plan
    }

    fn add_row(&mut self, spans: &[Span]) {
        let row = self.rows;
        let from = self.own.len();
        for (i, span) in spans.iter().enumerate() {
            let skipped = if i == 0 { self.shared } else { 0 };
            let start = span.start as usize;
            let len = span.len as usize;
            self.own.extend(start + skipped..start + len);
        }
        let end = self.own.len();
        let tile = |first: usize| {
            let at = self.shared + first - from;
            OwnTile { row, at, slots: first..end.min(first + TILE) }
        };
        self.tiles.extend((from..end).step_by(TILE).map(tile));
        self.rows += 1;
    }

    /// Number of positions of the longest row in whole tiles, rounded up to a multiple of
    /// [`PARTS`].
    fn positions(&self) -> usize {
        let longest = self.tiles.iter().map(|tile| tile.at + TILE).max();
        longest.unwrap_or(0).max(self.shared).max(1).next_multiple_of(PARTS)
    }

    /// The tiles with their slots. When a tile is reached, the rows of `data` of the next one are
    /// prefetched.
    #[inline(always)]
    fn tiles<'a>(
        &'a self,
        data: LayerRows<'a>,
    ) -> impl Iterator<Item = (&'a OwnTile, &'a [usize])> {
        let slots = |tile: &OwnTile| &self.own[tile.slots.clone()];
        self.tiles.iter().enumerate().map(move |(i, tile)| {
            if let Some(next) = self.tiles.get(i + 1) {
                let row = |slot: usize| &data.data[slot * data.width..][..data.width];
                slots(next).iter().for_each(|&slot| prefetch(row(slot)));
            }
            (tile, slots(tile))
        })
    }
}

/// Prefetches numbers into the L2 cache, if the CPU has an instruction for it.
#[inline(always)]
fn prefetch(data: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    for line in data.chunks(64 / size_of::<f32>()) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: every x86-64 CPU has SSE; a prefetch has no observable effect.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = data;
}

/// A layer's keys or values.
#[derive(Clone, Copy)]
struct LayerRows<'a> {
    data: &'a [f32], // (slots, kv_heads, head_dim)
    width: usize,
    dim: usize,
    shared_by: usize, // query heads of a key head
}

impl<'a> LayerRows<'a> {
    fn new(data: &'a [f32], kv: &CpuKv, heads: usize) -> Self {
        let width = kv.kv_heads * kv.head_dim;
        let dim = kv.head_dim;
        Self { data, width, dim, shared_by: heads / kv.kv_heads }
    }

    /// The head that query head `h` attends to.
    #[inline(always)]
    fn head(self, h: usize) -> HeadRows<'a> {
        HeadRows { rows: self, first: h / self.shared_by * self.dim }
    }
}

/// One head of a layer's keys or values.
#[derive(Clone, Copy)]
struct HeadRows<'a> {
    rows: LayerRows<'a>,
    first: usize, // column
}

impl<'a> HeadRows<'a> {
    #[inline(always)]
    fn row(self, slot: usize) -> &'a [f32] {
        &self.rows.data[slot * self.rows.width + self.first..][..self.rows.dim]
    }

    /// `W` columns of a slot.
    #[inline(always)]
    fn columns<const W: usize>(self, slot: usize, column: usize) -> &'a [f32; W] {
        let at = slot * self.rows.width + self.first + column;
        self.rows.data[at..].first_chunk().expect("every slot has a key and a value")
    }
}

#[inline(always)]
fn attend<const FUSED: bool>(of: &GroupCall<'_>, out: &mut [f32]) {
    match (of.rows.len(), of.isa.is_wide()) {
        (1, _) => attend_lanes::<FUSED, 1>(of, out),
        (_, true) => attend_lanes::<FUSED, WIDE_GROUP>(of, out),
        (_, false) => attend_lanes::<FUSED, GROUP>(of, out),
    }
}

/// Attention of up to `R` rows. Lanes without a row are computed and ignored.
#[inline(always)]
fn attend_lanes<const FUSED: bool, const R: usize>(of: &GroupCall<'_>, out: &mut [f32]) {
    let heads = of.call.heads;
    let dim = of.kv.head_dim;
    let store = &of.kv.layers[of.call.layer];
    let rows_of = |data| LayerRows::new(data, of.kv, heads);
    let keys = rows_of(&store.keys);
    let values = rows_of(&store.values);
    let query = |row: usize, h: usize| &of.q.row(of.rows.start + row)[h * dim..(h + 1) * dim];
    let plan = GroupPlan::new(of.call.spans, of.rows.clone());
    let mut own = Vec::with_capacity(plan.tiles.len() * heads); // (tiles, heads)
    for (tile, slots) in plan.tiles(keys) {
        for h in 0..heads {
            let mut scores = score_tile::<FUSED>(query(tile.row, h), keys.head(h), slots);
            scores[slots.len()..].fill(f32::NEG_INFINITY);
            own.push(scores);
        }
    }
    let mut scores = vec![[0.0; R]; plan.positions()];
    let mut queries = vec![[0.0; R]; dim];
    let mut scales = vec![[0.0; R]; heads];
    for h in 0..heads {
        if plan.shared > 0 {
            of.pack_queries(h, &mut queries);
            score_shared::<FUSED, R>(&plan, &queries, keys.head(h), &mut scores);
        }
        // Positions beyond a row's last one are masked.
        scores[plan.shared..].fill([f32::NEG_INFINITY; R]);
        for (tile, own) in plan.tiles.iter().zip(own.iter().skip(h).step_by(heads)) {
            let lanes =
                scores[tile.at..].first_chunk_mut().expect("positions are multiples of a tile");
            let lanes: &mut [[f32; R]; TILE] = lanes;
            (0..TILE).for_each(|b| lanes[b][tile.row] = own[b]);
        }
        scales[h] = softmax::<FUSED, R>(&mut scores, 1.0 / (dim as f32).sqrt());
        for (tile, own) in plan.tiles.iter().zip(own.iter_mut().skip(h).step_by(heads)) {
            let lanes = scores[tile.at..].first_chunk().expect("positions are multiples of a tile");
            let lanes: &[[f32; R]; TILE] = lanes;
            (0..TILE).for_each(|b| own[b] = lanes[b][tile.row]);
        }
        let sums = SharedSums {
            plan: &plan,
            weights: &scores,
            values: values.head(h),
            stride: heads * dim,
        };
        sums.write::<FUSED>(of.isa.is_wide(), &mut out[h * dim..]);
    }
    for ((tile, slots), own) in plan.tiles(values).zip(own.chunks_exact(heads)) {
        let out = &mut out[tile.row * heads * dim..][..heads * dim];
        for (h, (out, weights)) in out.chunks_exact_mut(dim).zip(own).enumerate() {
            add_tile::<FUSED>(slots, weights, values.head(h), out);
        }
    }
    for (i, out) in out.chunks_exact_mut(dim).enumerate() {
        let scale = scales[i % heads][i / heads];
        out.iter_mut().for_each(|o| *o *= scale);
    }
}

/// A query's scores of up to [`TILE`] slots; missing slots repeat the last one.
#[inline(always)]
fn score_tile<const FUSED: bool>(
    query: &[f32],
    keys: HeadRows<'_>,
    slots: &[usize],
) -> [f32; TILE] {
    let last = slots.len() - 1;
    let mut k = [&query[..0]; TILE];
    for (b, k) in k.iter_mut().enumerate() {
        *k = &keys.row(slots[b.min(last)])[..query.len()];
    }
    let mut scores = [0.0; TILE];
    let mut begun = 0;
    #[cfg(target_arch = "x86_64")]
    if FUSED {
        // SAFETY: on x86-64 fused code is compiled for CPUs with AVX2 and FMA.
        (scores, begun) = unsafe { score_fours(query, &k) };
    }
    for i in begun..query.len() {
        for b in 0..TILE {
            scores[b] = fma::<FUSED>(query[i], k[b][i], scores[b]);
        }
    }
    scores
}

/// Scores eight keys over groups of four dimensions, which are transposed in registers, because
/// compilers transpose element by element. Returns the number of processed dimensions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[inline]
fn score_fours(query: &[f32], k: &[&[f32]; TILE]) -> ([f32; TILE], usize) {
    use std::arch::x86_64::*;
    let fours = query.as_chunks::<4>().0;
    let mut acc = _mm256_setzero_ps();
    // Slots b and b + 4 are the halves of a register.
    let four = |b: usize, i: usize| {
        let low = &k[b][4 * i..4 * i + 4];
        let high = &k[b + 4][4 * i..4 * i + 4];
        // SAFETY: both are four numbers.
        unsafe { _mm256_loadu2_m128(high.as_ptr(), low.as_ptr()) }
    };
    for (i, q) in fours.iter().enumerate() {
        let a = four(0, i);
        let b = four(1, i);
        let c = four(2, i);
        let d = four(3, i);
        let ab = _mm256_unpacklo_ps(a, b);
        let cd = _mm256_unpacklo_ps(c, d);
        let ab = _mm256_castps_pd(ab);
        let cd = _mm256_castps_pd(cd);
        let first = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd));
        let second = _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd));
        let ab = _mm256_unpackhi_ps(a, b);
        let cd = _mm256_unpackhi_ps(c, d);
        let ab = _mm256_castps_pd(ab);
        let cd = _mm256_castps_pd(cd);
        let third = _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd));
        let fourth = _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd));
        acc = _mm256_fmadd_ps(_mm256_set1_ps(q[0]), first, acc);
        acc = _mm256_fmadd_ps(_mm256_set1_ps(q[1]), second, acc);
        acc = _mm256_fmadd_ps(_mm256_set1_ps(q[2]), third, acc);
        acc = _mm256_fmadd_ps(_mm256_set1_ps(q[3]), fourth, acc);
    }
    let mut scores = [0.0; TILE];
    // SAFETY: there are eight numbers.
    unsafe { _mm256_storeu_ps(scores.as_mut_ptr(), acc) };
    (scores, 4 * fours.len())
}

/// The scores of a group's shared slots for the queries (head_dim) of all rows.
#[inline(always)]
fn score_shared<const FUSED: bool, const R: usize>(
    plan: &GroupPlan,
    queries: &[[f32; R]],
    keys: HeadRows<'_>,
    scores: &mut [[f32; R]],
) {
    for first in (0..plan.shared).step_by(TILE) {
        // If fewer slots are left, the last one is repeated and its results are ignored.
        let key =
            |b: usize| &keys.row(plan.begin + (first + b).min(plan.shared - 1))[..queries.len()];
        let [k0, k1, k2, k3] = [key(0), key(1), key(2), key(3)];
        let [k4, k5, k6, k7] = [key(4), key(5), key(6), key(7)];
        // Named accumulators, not an array: the compiler then keeps each in a register.
        let [mut a0, mut a1, mut a2, mut a3] = [[0.0f32; R]; 4];
        let [mut a4, mut a5, mut a6, mut a7] = [[0.0f32; R]; 4];
        for i in 0..queries.len() {
            let q = &queries[i];
            a0 = fma_lanes::<FUSED, R>(k0[i], q, a0);
            a1 = fma_lanes::<FUSED, R>(k1[i], q, a1);
            a2 = fma_lanes::<FUSED, R>(k2[i], q, a2);
            a3 = fma_lanes::<FUSED, R>(k3[i], q, a3);
            a4 = fma_lanes::<FUSED, R>(k4[i], q, a4);
            a5 = fma_lanes::<FUSED, R>(k5[i], q, a5);
            a6 = fma_lanes::<FUSED, R>(k6[i], q, a6);
            a7 = fma_lanes::<FUSED, R>(k7[i], q, a7);
        }
        let to = scores[first..plan.shared].iter_mut();
        to.zip([a0, a1, a2, a3, a4, a5, a6, a7]).for_each(|(to, acc)| *to = acc);
    }
}

/// `acc + x * row`, lane by lane.
#[inline(always)]
fn fma_lanes<const FUSED: bool, const L: usize>(x: f32, row: &[f32; L], acc: [f32; L]) -> [f32; L] {
    std::array::from_fn(|l| fma::<FUSED>(x, row[l], acc[l]))
}

/// Converts the scores of `R` rows (positions) to unnormalized probabilities; returns the
/// normalization factors.
///
/// A row's sum is split into sixteen interleaved parts, as in [`sum_lanes`]; positions that a row
/// does not have add 0.
#[inline(always)]
fn softmax<const FUSED: bool, const R: usize>(scores: &mut [[f32; R]], scale: f32) -> [f32; R] {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let largest = reduce(scores, f32::NEG_INFINITY, larger);
    for lanes in scores.iter_mut() {
        for r in 0..R {
            lanes[r] = exp::<FUSED>((lanes[r] - largest[r]) * scale);
        }
    }
    let mut scales = reduce(scores, 0.0, |a, b| a + b);
    scales.iter_mut().for_each(|sum| *sum = 1.0 / *sum);
    scales
}

/// `f` of each row's scores, in sixteen interleaved parts that are reduced in a fixed order.
#[inline(always)]
fn reduce<const R: usize>(
    scores: &[[f32; R]],
    neutral: f32,
    f: impl Fn(f32, f32) -> f32,
) -> [f32; R] {
    // Process registers of sixteen numbers: `R` of them are sixteen positions.
    let registers = scores.as_flattened().as_chunks::<PARTS>().0;
    let mut parts = [[neutral; PARTS]; R];
    for (i, part) in parts.iter_mut().enumerate() {
        let mut acc = [neutral; PARTS];
        for register in registers[i..].iter().step_by(R) {
            for l in 0..PARTS {
                acc[l] = f(acc[l], register[l]);
            }
        }
        *part = acc;
    }
    let mut of_rows = [[neutral; R]; PARTS];
    of_rows.copy_from_slice(parts.as_flattened().as_chunks().0);
    fold_lanes(of_rows, |a, b| {
        let mut c = a;
        for r in 0..R {
            c[r] = f(a[r], b[r]);
        }
        c
    })
}

/// `out = sum_j weights[j] * values[slot_j]` over the shared slots j, in their order.
struct SharedSums<'a, const R: usize> {
    plan: &'a GroupPlan,
    weights: &'a [[f32; R]], // (positions)
    values: HeadRows<'a>,
    stride: usize, // of the rows of out
}

impl<const R: usize> SharedSums<'_, R> {
    /// Writes one head of all rows.
    #[inline(always)]
    fn write<const FUSED: bool>(&self, wide: bool, out: &mut [f32]) {
        let dim = self.values.rows.dim;
        let mut column = 0;
        while wide && column + 32 <= dim {
            self.write_columns::<FUSED, 2, 16>(column, out);
            column += 32;
        }
        while column + 16 <= dim {
            self.write_columns::<FUSED, 2, 8>(column, out);
            column += 16;
        }
        while column < dim {
            self.write_columns::<FUSED, 1, 1>(column, out);
            column += 1;
        }
    }

    /// Writes `C` times `L` columns, in eight sums of `L` lanes at a time.
    #[inline(always)]
    fn write_columns<const FUSED: bool, const C: usize, const L: usize>(
        &self,
        column: usize,
        out: &mut [f32],
    ) {
        let rows = self.plan.rows;
        for first in (0..rows).step_by(8 / C) {
            let [mut a0, mut a1, mut a2, mut a3] = [[0.0f32; L]; 4];
            let [mut a4, mut a5, mut a6, mut a7] = [[0.0f32; L]; 4];
            for (j, weights) in self.weights[..self.plan.shared].iter().enumerate() {
                let slot = self.plan.begin + j;
                let first_value = self.values.columns::<L>(slot, column);
                let values = [first_value, self.values.columns::<L>(slot, column + (C - 1) * L)];
                let weights = &weights[first..first + 8 / C];
                a0 = fma_lanes::<FUSED, L>(weights[0], values[0], a0);
                a1 = fma_lanes::<FUSED, L>(weights[1 / C], values[1 % C], a1);
                a2 = fma_lanes::<FUSED, L>(weights[2 / C], values[2 % C], a2);
                a3 = fma_lanes::<FUSED, L>(weights[3 / C], values[3 % C], a3);
                a4 = fma_lanes::<FUSED, L>(weights[4 / C], values[4 % C], a4);
                a5 = fma_lanes::<FUSED, L>(weights[5 / C], values[5 % C], a5);
                a6 = fma_lanes::<FUSED, L>(weights[6 / C], values[6 % C], a6);
                a7 = fma_lanes::<FUSED, L>(weights[7 / C], values[7 % C], a7);
            }
            for (i, acc) in [a0, a1, a2, a3, a4, a5, a6, a7].into_iter().enumerate() {
                if first + i / C < rows {
                    let at = (first + i / C) * self.stride + column + i % C * L;
                    out[at..at + L].copy_from_slice(&acc);
                }
            }
        }
    }
}

/// `out += sum_j weights[j] * values[slots[j]]`, in the order of j.
#[inline(always)]
fn add_tile<const FUSED: bool>(
    slots: &[usize],
    weights: &[f32; TILE],
    values: HeadRows<'_>,
    out: &mut [f32],
) {
    let (wide, rest) = out.as_chunks_mut::<32>();
    let (narrow, single) = rest.as_chunks_mut::<16>();
    let narrow_at = 32 * wide.len();
    let single_at = 32 * wide.len() + 16 * narrow.len();
    for (i, out) in wide.iter_mut().enumerate() {
        add_columns::<FUSED, 32>(slots, weights, values, 32 * i, out);
    }
    for (i, out) in narrow.iter_mut().enumerate() {
        add_columns::<FUSED, 16>(slots, weights, values, narrow_at + 16 * i, out);
    }
    for (i, out) in single.as_chunks_mut::<1>().0.iter_mut().enumerate() {
        add_columns::<FUSED, 1>(slots, weights, values, single_at + i, out);
    }
}

#[inline(always)]
fn add_columns<const FUSED: bool, const W: usize>(
    slots: &[usize],
    weights: &[f32; TILE],
    values: HeadRows<'_>,
    column: usize,
    out: &mut [f32; W],
) {
    let mut acc = *out;
    for (&slot, &weight) in slots.iter().zip(weights) {
        acc = fma_lanes::<FUSED, W>(weight, values.columns::<W>(slot, column), acc);
    }
    *out = acc;
}

/// See [`crate::ops::attention_backward`]. Key heads are parallel tasks, because they share no
/// gradients; each processes its rows in order. Both gradients are (kv_heads, slots, head_dim).
pub(crate) fn attention_backward(
    isa: Isa,
    of: &AttentionBackward<'_>,
    kv: &CpuKv,
    call: &AttentionCall<'_>,
    grads: &mut CpuLayerKv,
    dqkv: &mut Tensor,
) {
    let rows = of.q.rows();
    let size = kv.slots * kv.head_dim;
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
    let group = call.heads / kv.kv_heads;
    let scale = 1.0 / (dim as f32).sqrt();
    let store = &kv.layers[call.layer];
    let keys = LayerRows::new(&store.keys, kv, call.heads).head(g * group);
    let values = LayerRows::new(&store.values, kv, call.heads).head(g * group);
    let mut scores = Vec::new();
    let mut parts = vec![0.0; PARTS * dim]; // (PARTS, head_dim)
    for (i, dq) in dq.chunks_exact_mut(dim).enumerate() {
        let r = i / group;
        let column = (g * group + i % group) * dim;
        let [query, out, dout] = [of.q, of.out, of.dout].map(|x| &x.row(r)[column..column + dim]);
        let plan = GroupPlan::new(call.spans, r..r + 1);
        scores.clear();
        scores.resize(plan.positions(), [f32::NEG_INFINITY]);
        for tile in &plan.tiles {
            let slots = &plan.own[tile.slots.clone()];
            let to = &mut scores[tile.at..][..slots.len()];
            let found = score_tile::<FUSED>(query, keys, slots);
            to.iter_mut().zip(found).for_each(|(to, score)| *to = [score]);
        }
        let [inverse] = softmax::<FUSED, 1>(&mut scores, scale);
        let dot_out = sum_lanes(dim, |i, s| fma::<FUSED>(dout[i], out[i], s));
        parts.fill(0.0);
        for (&[p], &slot) in scores.iter().zip(&plan.own) {
            let p = p * inverse;
            let at = slot * dim;
            let value = values.row(slot);
            let dscore =
                p * (sum_lanes(dim, |i, s| fma::<FUSED>(dout[i], value[i], s)) - dot_out) * scale;
            let part = &mut parts[slot % PARTS * dim..][..dim];
            for (to, by, row) in [
                (&mut dk[at..at + dim], dscore, query),
                (&mut dv[at..at + dim], p, dout),
                (part, dscore, keys.row(slot)),
            ] {
                to.iter_mut().zip(row).for_each(|(d, &x)| *d = fma::<FUSED>(by, x, *d));
            }
        }
        for (i, d) in dq.iter_mut().enumerate() {
            *d = sum_lanes(PARTS, |l, s| s + parts[l * dim + i]);
        }
    }
}
