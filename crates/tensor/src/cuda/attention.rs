//! Keys and values in slots on the GPU, and attention over spans of them.

use super::args::{CudaAttentionBackward, MetadataExtent};
use super::context::{LaunchConfig, int, kernel_args};
use super::memory::DeviceBuffer;
use super::{CudaDevice, CudaDtype, CudaError, CudaTensor};

/// The widest head that the kernels take.
const MAX_HEAD_DIM: usize = 256;
/// Rows that share a block and its reads of their prefix: many when there are rows enough to fill
/// the GPU.
const TILE_ROWS_LARGE: usize = 64;
const TILE_ROWS_SMALL: usize = 16;
/// From this many rows on.
const LARGE_BATCH_ROWS: usize = 2048;
/// Keys that travel together, and how many such units of a shared span are on their way at a time,
/// as in attention.cu.
const UNIT: usize = 16;
const RING: usize = 5;
/// The most query heads that may share a key head: attention.cu divides by their number with a
/// multiplication.
const MAX_GROUP: usize = 100;
/// Keys that the plain kernel holds in shared memory at a time, as in attention.cu, and the rows of
/// one of its warps.
const GENERIC_KEYS: usize = 32;
const GENERIC_ROWS: usize = 4;

/// Keys and values of `slots` positions in every layer, in the GPU's operand format.
#[derive(Debug)]
pub(crate) struct CudaKv {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    slots: usize,
    dtype: CudaDtype,
    buffer: DeviceBuffer, // (layers, 2: keys and values, kv_heads, slots, head_dim)
}

impl CudaKv {
    /// An empty store.
    pub(crate) fn new(
        cuda: &CudaDevice,
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        slots: usize,
    ) -> Result<Self, CudaError> {
        assert!(
            (1..=MAX_HEAD_DIM).contains(&head_dim),
            "attention: heads of {head_dim}, at most {MAX_HEAD_DIM}"
        );
        int(slots);
        let dtype = cuda.compute_dtype();
        let bytes = layers * 2 * kv_heads * slots * head_dim * dtype.size();
        Ok(Self {
            layers,
            kv_heads,
            head_dim,
            slots,
            dtype,
            buffer: DeviceBuffer::zeros(cuda, bytes)?,
        })
    }

    /// Memory that a slot takes in a model of this shape.
    pub(crate) fn bytes_per_slot(
        cuda: &CudaDevice,
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> usize {
        layers * 2 * kv_heads * head_dim * cuda.compute_dtype().size()
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Where it is, and its shape.
    pub(crate) fn address_and_shape(&self) -> (u64, [usize; 4]) {
        (self.buffer.pointer(), [self.layers, self.kv_heads, self.head_dim, self.slots])
    }

    /// The extent of [`CudaAttentionMetadata`] for so many rows of so many spans altogether, whose
    /// first ones begin at `starts`.
    pub(crate) fn metadata_extent(
        &self,
        rows: usize,
        spans: usize,
        starts: impl Iterator<Item = u32>,
    ) -> MetadataExtent {
        let tiles = count_tiles(rows, starts);
        let bytes = (rows + tiles) * 16 + spans.saturating_sub(rows) * 8;
        MetadataExtent { rows, tiles, bytes: CudaDevice::allocation_size(bytes) }
    }

    pub(crate) fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    pub(crate) fn head_dim(&self) -> usize {
        self.head_dim
    }

    pub(crate) fn dtype(&self) -> CudaDtype {
        self.dtype
    }

    /// A layer's keys and values, each (kv_heads, slots, head_dim). Waits for the GPU.
    #[allow(dead_code, reason = "only the check of every kernel looks inside a store")]
    pub(crate) fn to_host(&self, layer: usize) -> Result<(Vec<f32>, Vec<f32>), CudaError> {
        let count = self.kv_heads * self.slots * self.head_dim;
        let from = (self.layer(layer).0 - self.buffer.pointer()) as usize;
        let mut both = match self.dtype {
            CudaDtype::F32 => {
                let mut both = vec![0.0; 2 * count];
                self.buffer.download(from, &mut both)?;
                both
            }
            CudaDtype::Bf16 => {
                let mut both = vec![half::bf16::ZERO; 2 * count];
                self.buffer.download(from, &mut both)?;
                both.into_iter().map(half::bf16::to_f32).collect()
            }
        };
        let values = both.split_off(count);
        Ok((both, values))
    }

    /// Where a layer's keys and values begin.
    pub(crate) fn layer(&self, layer: usize) -> (u64, u64) {
        assert!(layer < self.layers, "attention: no layer {layer} of {}", self.layers);
        let size = (self.kv_heads * self.slots * self.head_dim * self.dtype.size()) as u64;
        let keys = self.buffer.pointer() + 2 * layer as u64 * size;
        (keys, keys + size)
    }
}

/// Which slots each row sees, planned for the kernels and uploaded: once a pass, for all its
/// layers.
#[derive(Debug)]
pub(crate) struct CudaAttentionMetadata {
    rows: usize,
    tiles: usize,
    tile_rows: usize,     // the most rows of a tile
    end_slot: usize,      // no span goes beyond this slot
    buffer: DeviceBuffer, // tiles, then rows, then spans
    rows_ptr: u64,
    spans_ptr: u64,
}

impl CudaAttentionMetadata {
    /// `of(r)` gives the spans of row r in the order of positions, each as its first slot and its
    /// length; lengths are not 0 and every row has a span. Neighbouring rows whose first spans
    /// start at one slot read it together.
    pub(crate) fn new<I: IntoIterator<Item = (u32, u32)>>(
        cuda: &CudaDevice,
        rows: usize,
        of: impl Fn(usize) -> I,
    ) -> Result<Self, CudaError> {
        let height = tile_rows(rows);
        let (tiles, views, spans) = plan_tiles(rows, height, of);
        let ends = spans
            .iter()
            .map(|&[start, len]| (start, len))
            .chain(tiles.iter().map(|&[_, _, start, len]| (start, len)));
        let end = ends.map(|(start, len)| start as usize + len as usize).max().unwrap_or(0);
        let (rows_at, spans_at) = (tiles.len() * 16, (tiles.len() + views.len()) * 16);
        let mut words: Vec<u32> = Vec::with_capacity(spans_at / 4 + 2 * spans.len());
        words.extend_from_slice(tiles.as_flattened());
        words.extend_from_slice(views.as_flattened());
        words.extend_from_slice(spans.as_flattened());
        let buffer = DeviceBuffer::stage(cuda, &words)?;
        let (rows_at, spans_at) =
            (buffer.pointer() + rows_at as u64, buffer.pointer() + spans_at as u64);
        Ok(Self {
            rows,
            tiles: tiles.len(),
            tile_rows: height,
            end_slot: end,
            buffer,
            rows_ptr: rows_at,
            spans_ptr: spans_at,
        })
    }
}

/// Tiles of so many rows whose first spans start where `starts` says.
fn count_tiles(rows: usize, starts: impl Iterator<Item = u32>) -> usize {
    let height = tile_rows(rows);
    let (mut tiles, mut last) = (0, None);
    for start in starts {
        last = match last {
            Some((shared, count)) if shared == start && count < height => Some((shared, count + 1)),
            _ => {
                tiles += 1;
                Some((start, 1))
            }
        };
    }
    tiles
}

/// The most rows of a tile.
fn tile_rows(rows: usize) -> usize {
    if rows >= LARGE_BATCH_ROWS { TILE_ROWS_LARGE } else { TILE_ROWS_SMALL }
}

/// (first row, rows, first slot, greatest length), (shared length, own spans begin, end, own
/// slots), (first slot, length)
type TilePlan = (Vec<[u32; 4]>, Vec<[u32; 4]>, Vec<[u32; 2]>);

fn plan_tiles<I: IntoIterator<Item = (u32, u32)>>(
    rows: usize,
    height: usize,
    of: impl Fn(usize) -> I,
) -> TilePlan {
    let (mut tiles, mut views, mut spans): TilePlan =
        (Vec::new(), Vec::with_capacity(rows), Vec::with_capacity(2 * rows));
    for r in 0..rows {
        let mut seen = of(r).into_iter();
        let (start, len) = seen.next().unwrap_or_else(|| panic!("attention: row {r} sees nothing"));
        let begin = spans.len();
        spans.extend(seen.map(|(start, len)| [start, len]));
        let own = spans[begin..].iter().map(|s: &[u32; 2]| s[1]).sum();
        views.push([len, int(begin), int(spans.len()), own]);
        match tiles.last_mut() {
            Some([_, count, shared, longest]) if *shared == start && (*count as usize) < height => {
                *count += 1;
                *longest = len.max(*longest);
            }
            _ => tiles.push([int(r), 1, start, len]),
        }
    }
    (tiles, views, spans)
}

/// Softmax attention: `out[r, h] = sum_j softmax_j(q[r, h] . k_j / sqrt(head_dim)) v_j` over the
/// slots that row r sees.
///
/// The first `heads * head_dim` columns of q are the queries; the result is (rows, heads *
/// head_dim) in q's format. Query heads share key heads in equal groups of neighbours.
pub(crate) fn attention(
    q: &CudaTensor,
    kv: &CudaKv,
    layer: usize,
    heads: usize,
    views: &CudaAttentionMetadata,
) -> Result<CudaTensor, CudaError> {
    let (cuda, dim) = (q.cuda(), kv.head_dim);
    assert_eq!(q.rows(), views.rows, "attention: {} rows, views for {}", q.rows(), views.rows);
    assert!(
        heads.is_multiple_of(kv.kv_heads),
        "attention: {heads} query heads over {} key heads",
        kv.kv_heads
    );
    assert!(heads * dim <= q.cols(), "attention: {heads} heads of {dim} do not fit {}", q.cols());
    assert!(views.end_slot <= kv.slots, "attention: a span beyond {} slots", kv.slots);
    assert_eq!(q.dtype(), kv.dtype, "attention: queries and keys of unlike formats");
    let out = CudaTensor::uninit(cuda, q.rows(), heads * dim, q.dtype())?;
    let (keys, values) = kv.layer(layer);
    let (q_cols, out_cols, slots, group) =
        (int(q.cols()), int(out.cols()), int(kv.slots), int(heads / kv.kv_heads));
    let (q_at, out_at, tiles, rows, spans) =
        (q.pointer(), out.pointer(), views.buffer.pointer(), views.rows_ptr, views.spans_ptr);
    let scale = 1.0 / (dim as f32).sqrt();
    // With the units of its own slots that a warp holds, one of them in the ring; as in
    // attention.cu.
    let fast = match dim {
        32 => Some(("attention_32", 4)),
        64 => Some(("attention_64", 4)),
        128 => Some(("attention_128", 2)),
        _ => None,
    };
    let whole = q.cols().is_multiple_of(8) && heads / kv.kv_heads <= MAX_GROUP;
    match fast.filter(|_| q.dtype() == CudaDtype::Bf16 && whole) {
        Some((kernel, depth)) => {
            let warps = views.tile_rows / 16;
            let shared = (RING + (depth - 1) * warps) * 2 * UNIT * dim * 2; // units of keys and values in bf16
            let grid = LaunchConfig {
                blocks: (views.tiles, kv.kv_heads, heads / kv.kv_heads),
                threads: warps * 32,
                shared_bytes: shared,
            };
            let scale = scale * std::f32::consts::LOG2_E; // the kernel's powers are of 2
            let arguments = kernel_args![
                q_at, q_cols, keys, values, slots, group, out_at, out_cols, tiles, rows, spans,
                scale
            ];
            // SAFETY: spans were checked against the slots, rows and heads against q; out is
            // written whole.
            unsafe { cuda.launch(kernel, grid, arguments) }?;
        }
        None => {
            let threads = views.tile_rows / GENERIC_ROWS * 32;
            let shared = (views.tile_rows * dim + GENERIC_KEYS * (dim + 1)) * 4;
            let grid =
                LaunchConfig { blocks: (views.tiles, heads, 1), threads, shared_bytes: shared };
            let (type_, dim) = (q.dtype(), int(dim));
            let arguments = kernel_args![
                q_at, type_, q_cols, keys, values, slots, group, dim, out_at, out_cols, tiles,
                rows, spans, scale
            ];
            // SAFETY: as above.
            unsafe { cuda.launch("attention_any", grid, arguments) }?;
        }
    }
    Ok(out)
}

/// Gradients of keys and values, f32.
#[derive(Debug)]
pub(crate) struct CudaKvGrads {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    slots: usize,
    buffer: DeviceBuffer, // (layers, 2: keys and values, kv_heads, slots, head_dim)
}

impl CudaKvGrads {
    /// No gradients yet, for a store.
    pub(crate) fn zeros(cuda: &CudaDevice, like: &CudaKv) -> Result<Self, CudaError> {
        let CudaKv { layers, kv_heads, head_dim, slots, .. } = *like;
        let buffer = DeviceBuffer::zeros(cuda, layers * 2 * kv_heads * slots * head_dim * 4)?;
        Ok(Self { layers, kv_heads, head_dim, slots, buffer })
    }

    /// Forgets all gradients.
    pub(crate) fn clear(&mut self) -> Result<(), CudaError> {
        self.buffer.clear()
    }

    /// Key heads and their width.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.kv_heads, self.head_dim)
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Where a layer's keys' and values' gradients begin.
    pub(crate) fn layer(&self, layer: usize) -> (u64, u64) {
        assert!(layer < self.layers, "attention: no layer {layer} of {}", self.layers);
        let size = (self.kv_heads * self.slots * self.head_dim * 4) as u64;
        let keys = self.buffer.pointer() + 2 * layer as u64 * size;
        (keys, keys + size)
    }
}

/// Adds to the gradients of all keys and values that are seen. The first columns of the result,
/// (rows, (heads + 2 kv_heads) * head_dim) in q's format, are the queries' gradients; the rest is
/// left to `rope::place_backward`.
pub(crate) fn attention_backward(
    of: CudaAttentionBackward<'_>,
    grads: &mut CudaKvGrads,
) -> Result<CudaTensor, CudaError> {
    let CudaAttentionBackward { q, kv, layer, heads, metadata: views, out, dout } = of;
    let (cuda, dim, rows) = (q.cuda(), kv.head_dim, q.rows());
    assert_eq!(rows, views.rows, "attention_backward: {rows} rows, views for {}", views.rows);
    assert!(
        heads.is_multiple_of(kv.kv_heads) && heads * dim <= q.cols(),
        "attention_backward: {heads} heads of {dim}"
    );
    assert!(
        [out, dout].iter().all(|x| (x.rows(), x.cols()) == (rows, heads * dim)),
        "attention_backward: unlike results"
    );
    assert!(views.end_slot <= kv.slots, "attention_backward: a span beyond {} slots", kv.slots);
    assert_eq!(
        (q.dtype(), out.dtype()),
        (kv.dtype, kv.dtype),
        "attention_backward: queries and keys of unlike formats"
    );
    let (of_grads, of_kv) =
        ((grads.layers, grads.slots, grads.shape()), (kv.layers, kv.slots, (kv.kv_heads, dim)));
    assert_eq!(of_grads, of_kv, "attention_backward: gradients of another store");
    let dqkv = CudaTensor::uninit(cuda, rows, (heads + 2 * kv.kv_heads) * dim, q.dtype())?;
    let cast = dout.cast_if_needed(q.dtype())?;
    let dout = cast.as_ref().unwrap_or(dout);
    let ((keys, values), (dkeys, dvalues), group) =
        (kv.layer(layer), grads.layer(layer), heads / kv.kv_heads);
    let (q_at, out_at, dout_at, dqkv_at) =
        (q.pointer(), out.pointer(), dout.pointer(), dqkv.pointer());
    let (q_cols, out_cols, dqkv_cols, slots) =
        (int(q.cols()), int(out.cols()), int(dqkv.cols()), int(kv.slots));
    let (tiles, views_at, spans) = (views.buffer.pointer(), views.rows_ptr, views.spans_ptr);
    let (group_at, scale) = (int(group), 1.0 / (dim as f32).sqrt());
    let fast = match dim {
        32 => Some("attention_backward_32"),
        64 => Some("attention_backward_64"),
        128 => Some("attention_backward_128"),
        _ => None,
    };
    match fast.filter(|_| q.dtype() == CudaDtype::Bf16 && q.cols().is_multiple_of(8)) {
        Some(kernel) => {
            // As in attention_backward.cu: two stages of keys and values, queries and gradients,
            // probabilities and slopes.
            let keys_held = if dim <= 64 { 64 } else { 32 };
            let shared = (4 * keys_held * (dim + 8)
                + 2 * views.tile_rows * (dim + 8)
                + 2 * views.tile_rows * (32 + 8))
                * 2;
            let grid = LaunchConfig {
                blocks: (views.tiles, kv.kv_heads, group),
                threads: 128,
                shared_bytes: shared,
            };
            let arguments = kernel_args![
                q_at,
                q_cols,
                keys,
                values,
                slots,
                group_at,
                out_at,
                dout_at,
                out_cols,
                dqkv_at,
                dqkv_cols,
                dkeys,
                dvalues,
                tiles,
                views_at,
                spans,
                scale,
                int(views.tile_rows),
            ];
            // SAFETY: spans were checked against the slots, rows and heads against q, out and dout;
            // the queries' columns of dqkv are written whole.
            unsafe { cuda.launch(kernel, grid, arguments) }?;
        }
        None => {
            let grid =
                LaunchConfig { blocks: (views.tiles, heads, 1), threads: 128, shared_bytes: 0 };
            let arguments = kernel_args![
                q_at,
                q.dtype(),
                q_cols,
                keys,
                values,
                slots,
                group_at,
                int(dim),
                out_at,
                dout_at,
                out_cols,
                dqkv_at,
                dqkv_cols,
                dkeys,
                dvalues,
                tiles,
                views_at,
                spans,
                scale,
            ];
            // SAFETY: as above.
            unsafe { cuda.launch("attention_backward_any", grid, arguments) }?;
        }
    }
    Ok(dqkv)
}

#[cfg(test)]
mod tests {
    use super::{count_tiles, plan_tiles};

    fn tiles_of(rows: usize) -> usize {
        count_tiles(rows, (0..rows).map(|r| (r / 20) as u32))
    }

    #[test]
    fn neighbours_with_a_common_prefix_share_a_tile() {
        let seen: [&[(u32, u32)]; 6] = [
            &[(0, 5), (32, 2)],
            &[(0, 5), (48, 1), (64, 3)],
            &[(0, 4)],
            &[(16, 3), (80, 1)],
            &[(16, 3)],
            &[(0, 5)],
        ];
        let (tiles, views, spans) = plan_tiles(6, 2, |r| seen[r].iter().copied());
        assert_eq!(tiles, [[0, 2, 0, 5], [2, 1, 0, 4], [3, 2, 16, 3], [5, 1, 0, 5]]);
        assert_eq!(
            views,
            [[5, 0, 1, 2], [5, 1, 3, 4], [4, 3, 3, 0], [3, 3, 4, 1], [3, 4, 4, 0], [5, 4, 4, 0]]
        );
        assert_eq!(spans, [[32, 2], [48, 1], [64, 3], [80, 1]]);
        assert_eq!(tiles_of(40), plan_tiles(40, 16, |r| [((r / 20) as u32, 1)]).0.len());
    }
}
