//! The KV store on the GPU, and attention over spans of its slots.

use super::args::{CudaAttentionBackward, MetadataExtent};
use super::context::{LaunchConfig, int, kernel_args};
use super::memory::DeviceBuffer;
use super::{CudaDevice, CudaDtype, CudaError, CudaTensor};

/// The largest head dimension of the kernels.
const MAX_HEAD_DIM: usize = 256;
/// Rows of a tile, which share a CTA and its reads of their common prefix: more when there are
/// enough rows to fill the GPU.
const TILE_ROWS_LARGE: usize = 64;
const TILE_ROWS_SMALL: usize = 16;
/// From this many rows on, tiles are large.
const LARGE_BATCH_ROWS: usize = 2048;
/// As in attention.cu: keys of a unit, and units of a shared span that are in flight at a time.
const UNIT: usize = 16;
const RING: usize = 5;
/// The most query heads that may share a key head: attention.cu divides by their number with a
/// multiplication.
const MAX_GROUP: usize = 100;
/// As in attention.cu: keys that the generic kernel holds in shared memory at a time, and rows of
/// one of its warps.
const GENERIC_KEYS: usize = 32;
const GENERIC_ROWS: usize = 4;

/// Keys and values of `slots` slots in every layer, of the compute dtype.
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
    /// A store of zeros.
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

    /// The bytes of a slot in a model of this shape.
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

    /// Its address and (layers, kv_heads, head_dim, slots).
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

    /// A layer's keys and values, each (kv_heads, slots, head_dim). Synchronizes with the GPU.
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

    /// The addresses of a layer's keys and values.
    pub(crate) fn layer(&self, layer: usize) -> (u64, u64) {
        assert!(layer < self.layers, "attention: no layer {layer} of {}", self.layers);
        let size = (self.kv_heads * self.slots * self.head_dim * self.dtype.size()) as u64;
        let keys = self.buffer.pointer() + 2 * layer as u64 * size;
        (keys, keys + size)
    }
}

/// The spans of each row, grouped into tiles and uploaded: once a pass, for all its layers.
#[derive(Debug)]
pub(crate) struct CudaAttentionMetadata {
    rows: usize,
    tiles: usize,
    tile_rows: usize,     // the most rows of a tile
    end_slot: usize,      // one past the last slot of any span
    buffer: DeviceBuffer, // tiles, then rows, then spans
    rows_ptr: u64,
    spans_ptr: u64,
}

impl CudaAttentionMetadata {
    /// `spans_of(r)` returns the spans of row r in the order of positions, each as its first slot
    /// and its length; lengths are not 0 and every row has a span. Neighbouring rows whose first
    /// spans begin at the same slot form tiles, which read it once.
    pub(crate) fn new<I: IntoIterator<Item = (u32, u32)>>(
        cuda: &CudaDevice,
        rows: usize,
        spans_of: impl Fn(usize) -> I,
    ) -> Result<Self, CudaError> {
        let tile_rows = tile_rows(rows);
        let plan = plan_tiles(rows, tile_rows, spans_of);
        let own = plan.spans.iter().map(|&[start, len]| (start, len));
        let shared = plan.tiles.iter().map(|&[_, _, start, len]| (start, len));
        let ends = own.chain(shared).map(|(start, len)| start as usize + len as usize);
        let (end_slot, tiles) = (ends.max().unwrap_or(0), plan.tiles.len());
        let (rows_at, spans_at) = (tiles * 16, (tiles + plan.rows.len()) * 16);
        let mut words: Vec<u32> = Vec::with_capacity(spans_at / 4 + 2 * plan.spans.len());
        words.extend_from_slice(plan.tiles.as_flattened());
        words.extend_from_slice(plan.rows.as_flattened());
        words.extend_from_slice(plan.spans.as_flattened());
        let buffer = DeviceBuffer::stage(cuda, &words)?;
        let (rows_ptr, spans_ptr) =
            (buffer.pointer() + rows_at as u64, buffer.pointer() + spans_at as u64);
        Ok(Self { rows, tiles, tile_rows, end_slot, buffer, rows_ptr, spans_ptr })
    }
}

/// The number of tiles of rows whose first spans begin at `starts`.
fn count_tiles(rows: usize, starts: impl Iterator<Item = u32>) -> usize {
    let tile_rows = tile_rows(rows);
    let (mut tiles, mut last) = (0, None);
    for start in starts {
        last = match last {
            Some((shared, count)) if shared == start && count < tile_rows => {
                Some((shared, count + 1))
            }
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

/// Rows grouped into tiles, as the kernels read them (attention.cu).
struct TilePlan {
    tiles: Vec<[u32; 4]>, // first row, rows, first slot of the shared span, its greatest length
    rows: Vec<[u32; 4]>,  // length of the shared span, begin and end of own spans, own slots
    spans: Vec<[u32; 2]>, // own spans: first slot, length
}

fn plan_tiles<I: IntoIterator<Item = (u32, u32)>>(
    rows: usize,
    tile_rows: usize,
    spans_of: impl Fn(usize) -> I,
) -> TilePlan {
    let mut plan = TilePlan {
        tiles: Vec::new(),
        rows: Vec::with_capacity(rows),
        spans: Vec::with_capacity(2 * rows),
    };
    for r in 0..rows {
        let mut row_spans = spans_of(r).into_iter();
        let (start, len) =
            row_spans.next().unwrap_or_else(|| panic!("attention: row {r} has no slots"));
        let begin = plan.spans.len();
        plan.spans.extend(row_spans.map(|(start, len)| [start, len]));
        let own = plan.spans[begin..].iter().map(|s| s[1]).sum();
        plan.rows.push([len, int(begin), int(plan.spans.len()), own]);
        match plan.tiles.last_mut() {
            Some([_, count, shared, longest])
                if *shared == start && (*count as usize) < tile_rows =>
            {
                *count += 1;
                *longest = len.max(*longest);
            }
            _ => plan.tiles.push([int(r), 1, start, len]),
        }
    }
    plan
}

/// Softmax attention: `out[r, h] = sum_j softmax_j(q[r, h] . k_j / sqrt(head_dim)) v_j` over the
/// slots j of row r.
///
/// The first `heads * head_dim` columns of q are the queries; the result is (rows, heads *
/// head_dim) of q's dtype. Neighbouring query heads share a key head in equal groups.
pub(crate) fn attention(
    q: &CudaTensor,
    kv: &CudaKv,
    layer: usize,
    heads: usize,
    metadata: &CudaAttentionMetadata,
) -> Result<CudaTensor, CudaError> {
    let (cuda, dim) = (q.cuda(), kv.head_dim);
    assert_eq!(
        q.rows(),
        metadata.rows,
        "attention: {} rows, metadata for {}",
        q.rows(),
        metadata.rows
    );
    assert!(
        heads.is_multiple_of(kv.kv_heads),
        "attention: {heads} query heads over {} key heads",
        kv.kv_heads
    );
    assert!(heads * dim <= q.cols(), "attention: {heads} heads of {dim} do not fit {}", q.cols());
    assert!(metadata.end_slot <= kv.slots, "attention: a span beyond {} slots", kv.slots);
    assert_eq!(q.dtype(), kv.dtype, "attention: queries and keys of different dtypes");
    let out = CudaTensor::uninit(cuda, q.rows(), heads * dim, q.dtype())?;
    let (keys, values) = kv.layer(layer);
    let (q_cols, out_cols, slots, group) =
        (int(q.cols()), int(out.cols()), int(kv.slots), int(heads / kv.kv_heads));
    let (q_at, out_at, tiles, rows, spans) = (
        q.pointer(),
        out.pointer(),
        metadata.buffer.pointer(),
        metadata.rows_ptr,
        metadata.spans_ptr,
    );
    let scale = 1.0 / (dim as f32).sqrt();
    // With the units of own slots that a warp buffers, one of them in the ring; as in attention.cu.
    let mma_kernel = match dim {
        32 => Some(("attention_32", 4)),
        64 => Some(("attention_64", 4)),
        128 => Some(("attention_128", 2)),
        _ => None,
    };
    let aligned = q.cols().is_multiple_of(8) && heads / kv.kv_heads <= MAX_GROUP;
    match mma_kernel.filter(|_| q.dtype() == CudaDtype::Bf16 && aligned) {
        Some((kernel, depth)) => {
            let warps = metadata.tile_rows / 16;
            // Units of keys and values in bf16.
            let shared = (RING + (depth - 1) * warps) * 2 * UNIT * dim * 2;
            let config = LaunchConfig {
                blocks: (metadata.tiles, kv.kv_heads, heads / kv.kv_heads),
                threads: warps * 32,
                shared_bytes: shared,
            };
            let scale = scale * std::f32::consts::LOG2_E; // the kernel's exponentials have base 2
            let arguments = kernel_args![
                q_at, q_cols, keys, values, slots, group, out_at, out_cols, tiles, rows, spans,
                scale
            ];
            // SAFETY: spans were checked against the slots, rows and heads against q; all of out is
            // written.
            unsafe { cuda.launch(kernel, config, arguments) }?;
        }
        None => {
            let threads = metadata.tile_rows / GENERIC_ROWS * 32;
            let shared = (metadata.tile_rows * dim + GENERIC_KEYS * (dim + 1)) * 4;
            let config =
                LaunchConfig { blocks: (metadata.tiles, heads, 1), threads, shared_bytes: shared };
            let (dtype, dim) = (q.dtype(), int(dim));
            let arguments = kernel_args![
                q_at, dtype, q_cols, keys, values, slots, group, dim, out_at, out_cols, tiles,
                rows, spans, scale
            ];
            // SAFETY: as above.
            unsafe { cuda.launch("attention_any", config, arguments) }?;
        }
    }
    Ok(out)
}

/// Gradients of keys and values, of f32.
#[derive(Debug)]
pub(crate) struct CudaKvGrads {
    layers: usize,
    kv_heads: usize,
    head_dim: usize,
    slots: usize,
    buffer: DeviceBuffer, // (layers, 2: keys and values, kv_heads, slots, head_dim)
}

impl CudaKvGrads {
    /// Zeros, of the shape of a store.
    pub(crate) fn zeros(cuda: &CudaDevice, like: &CudaKv) -> Result<Self, CudaError> {
        let CudaKv { layers, kv_heads, head_dim, slots, .. } = *like;
        let buffer = DeviceBuffer::zeros(cuda, layers * 2 * kv_heads * slots * head_dim * 4)?;
        Ok(Self { layers, kv_heads, head_dim, slots, buffer })
    }

    /// Sets all gradients to zero.
    pub(crate) fn clear(&mut self) -> Result<(), CudaError> {
        self.buffer.clear()
    }

    /// Key heads and head dimension.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.kv_heads, self.head_dim)
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// The addresses of the gradients of a layer's keys and values.
    pub(crate) fn layer(&self, layer: usize) -> (u64, u64) {
        assert!(layer < self.layers, "attention: no layer {layer} of {}", self.layers);
        let size = (self.kv_heads * self.slots * self.head_dim * 4) as u64;
        let keys = self.buffer.pointer() + 2 * layer as u64 * size;
        (keys, keys + size)
    }
}

/// Adds to the gradients of the keys and values. The first columns of the result, (rows, (heads + 2
/// kv_heads) * head_dim) of q's dtype, are the queries' gradients; the others are filled by
/// `qkv::rope_and_cache_backward`.
pub(crate) fn attention_backward(
    of: CudaAttentionBackward<'_>,
    grads: &mut CudaKvGrads,
) -> Result<CudaTensor, CudaError> {
    let CudaAttentionBackward { q, kv, layer, heads, metadata, out, dout } = of;
    let (cuda, dim, rows) = (q.cuda(), kv.head_dim, q.rows());
    assert_eq!(
        rows, metadata.rows,
        "attention_backward: {rows} rows, metadata for {}",
        metadata.rows
    );
    assert!(
        heads.is_multiple_of(kv.kv_heads) && heads * dim <= q.cols(),
        "attention_backward: {heads} heads of {dim}"
    );
    assert!(
        [out, dout].iter().all(|x| (x.rows(), x.cols()) == (rows, heads * dim)),
        "attention_backward: results of another shape"
    );
    assert!(metadata.end_slot <= kv.slots, "attention_backward: a span beyond {} slots", kv.slots);
    assert_eq!(
        (q.dtype(), out.dtype()),
        (kv.dtype, kv.dtype),
        "attention_backward: queries and keys of different dtypes"
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
    let (tiles, rows_at, spans) =
        (metadata.buffer.pointer(), metadata.rows_ptr, metadata.spans_ptr);
    let (group_at, scale) = (int(group), 1.0 / (dim as f32).sqrt());
    let mma_kernel = match dim {
        32 => Some("attention_backward_32"),
        64 => Some("attention_backward_64"),
        128 => Some("attention_backward_128"),
        _ => None,
    };
    match mma_kernel.filter(|_| q.dtype() == CudaDtype::Bf16 && q.cols().is_multiple_of(8)) {
        Some(kernel) => {
            // As in attention_backward.cu: two stages of keys and values, queries and their
            // output's gradients, probabilities and gradients of scores.
            let keys_held = if dim <= 64 { 64 } else { 32 };
            let shared = (4 * keys_held * (dim + 8)
                + 2 * metadata.tile_rows * (dim + 8)
                + 2 * metadata.tile_rows * (32 + 8))
                * 2;
            let config = LaunchConfig {
                blocks: (metadata.tiles, kv.kv_heads, group),
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
                rows_at,
                spans,
                scale,
                int(metadata.tile_rows),
            ];
            // SAFETY: spans were checked against the slots, rows and heads against q, out and dout;
            // all of the queries' columns of dqkv are written.
            unsafe { cuda.launch(kernel, config, arguments) }?;
        }
        None => {
            let config =
                LaunchConfig { blocks: (metadata.tiles, heads, 1), threads: 128, shared_bytes: 0 };
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
                rows_at,
                spans,
                scale,
            ];
            // SAFETY: as above.
            unsafe { cuda.launch("attention_backward_any", config, arguments) }?;
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
        let spans: [&[(u32, u32)]; 6] = [
            &[(0, 5), (32, 2)],
            &[(0, 5), (48, 1), (64, 3)],
            &[(0, 4)],
            &[(16, 3), (80, 1)],
            &[(16, 3)],
            &[(0, 5)],
        ];
        let plan = plan_tiles(6, 2, |r| spans[r].iter().copied());
        assert_eq!(plan.tiles, [[0, 2, 0, 5], [2, 1, 0, 4], [3, 2, 16, 3], [5, 1, 0, 5]]);
        assert_eq!(
            plan.rows,
            [[5, 0, 1, 2], [5, 1, 3, 4], [4, 3, 3, 0], [3, 3, 4, 1], [3, 4, 4, 0], [5, 4, 4, 0]]
        );
        assert_eq!(plan.spans, [[32, 2], [48, 1], [64, 3], [80, 1]]);
        assert_eq!(tiles_of(40), plan_tiles(40, 16, |r| [((r / 20) as u32, 1)]).tiles.len());
    }
}
