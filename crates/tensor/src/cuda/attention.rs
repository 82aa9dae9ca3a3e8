//! The KV store on the GPU, and attention over spans of its slots.

use super::args::{CudaAttentionBackward, MetadataExtent};
use super::context::{LaunchConfig, int, kernel_args};
use super::memory::DeviceBuffer;
use super::tiles::{SCATTERED, TilePlan, UNIT, tile_rows};
use super::{CudaDevice, CudaDtype, CudaError, CudaTensor, e4m3};

/// The largest head dimension of the kernels.
const MAX_HEAD_DIM: usize = 256;
/// Units of a shared span that are in flight at a time, as in attention.cu.
const RING: usize = 5;
/// Maximum query heads per key head: attention.cu divides by their number by means of a
/// multiplication.
const MAX_GROUP: usize = 100;
/// Keys that the generic kernel holds in shared memory at a time, and rows per warp, as in
/// attention.cu.
const GENERIC_KEYS: usize = 32;
const GENERIC_ROWS: usize = 4;

/// Head dimensions of the mma kernels.
const MMA_DIMS: [usize; 3] = [32, 64, 128];

/// The dtype of keys and values: the compute dtype; on a device of precision fp8 e4m3 without
/// scales, for head dimensions with kernels for it.
fn kv_dtype(cuda: &CudaDevice, head_dim: usize) -> CudaDtype {
    match cuda.operand_dtype() {
        CudaDtype::E4m3 if MMA_DIMS.contains(&head_dim) => CudaDtype::E4m3,
        _ => cuda.compute_dtype(),
    }
}

/// Keys and values of `slots` slots in every layer.
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
        assert!(int(slots) < SCATTERED, "attention: {slots} slots are too many");
        let dtype = kv_dtype(cuda, head_dim);
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
        layers * 2 * kv_heads * head_dim * kv_dtype(cuda, head_dim).size()
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Its address and (layers, kv_heads, head_dim, slots).
    pub(crate) fn address_and_shape(&self) -> (u64, [usize; 4]) {
        (self.buffer.pointer(), [self.layers, self.kv_heads, self.head_dim, self.slots])
    }

    /// The extent of [`CudaAttentionMetadata::with_prefixes`].
    pub(crate) fn metadata_extent<I: IntoIterator<Item = (u32, u32)>>(
        &self,
        rows: usize,
        spans_of: impl Fn(usize) -> I,
        prefix_of: impl Fn(usize) -> u32,
    ) -> MetadataExtent {
        let plan = TilePlan::new(rows, spans_of, prefix_of);
        let bytes = CudaDevice::allocation_size(plan.bytes());
        MetadataExtent { rows, tiles: plan.tiles.len(), bytes }
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

    /// Whether queries of this dtype can attend to it.
    pub(crate) fn is_for(&self, queries: CudaDtype) -> bool {
        queries == self.dtype || (queries, self.dtype) == (CudaDtype::Bf16, CudaDtype::E4m3)
    }

    /// A layer's keys and values, each (kv_heads, slots, head_dim). Synchronizes with the GPU.
    #[allow(dead_code, reason = "only the kernel checks read a store")]
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
            CudaDtype::E4m3 => {
                let mut both = vec![0u8; 2 * count];
                self.buffer.download(from, &mut both)?;
                both.into_iter().map(e4m3::to_f32).collect()
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

/// The spans of each row, grouped into tiles and uploaded once per pass, for all its layers.
#[derive(Debug)]
pub(crate) struct CudaAttentionMetadata {
    rows: usize,
    tiles: usize,
    tile_rows: usize,     // maximum rows of a tile
    end_slot: usize,      // one past the last slot of any span
    scattered: bool,      // whether a prefix is in several spans
    buffer: DeviceBuffer, // tiles, then rows, then spans
    rows_ptr: u64,
    spans_ptr: u64,
}

impl CudaAttentionMetadata {
    /// As [`Self::with_prefixes`], where each row's prefix is its first span.
    pub(crate) fn new<I: IntoIterator<Item = (u32, u32)>>(
        cuda: &CudaDevice,
        rows: usize,
        spans_of: impl Fn(usize) -> I,
    ) -> Result<Self, CudaError> {
        Self::with_prefixes(cuda, rows, &spans_of, |r: usize| {
            spans_of(r).into_iter().next().map_or(0, |(_, len)| len)
        })
    }

    /// `spans_of(r)` returns the spans of row r in the order of positions, each as its first slot
    /// and its length; lengths are not 0 and every row has a span. The first `prefix_of(r)` slots
    /// of a row are its prefix. Adjacent rows whose first slots are the same form tiles, which read
    /// the prefix once.
    ///
    /// The computation for a row depends on the lengths of its prefix and of the rest, not on its
    /// tile nor on which slots they are.
    pub(crate) fn with_prefixes<I: IntoIterator<Item = (u32, u32)>>(
        cuda: &CudaDevice,
        rows: usize,
        spans_of: impl Fn(usize) -> I,
        prefix_of: impl Fn(usize) -> u32,
    ) -> Result<Self, CudaError> {
        let plan = TilePlan::new(rows, spans_of, prefix_of);
        let tiles = plan.tiles.len();
        let rows_at = tiles * 16;
        let spans_at = (tiles + plan.rows.len()) * 16;
        let mut words: Vec<u32> = Vec::with_capacity(plan.bytes() / 4);
        words.extend_from_slice(plan.tiles.as_flattened());
        words.extend_from_slice(plan.rows.as_flattened());
        words.extend_from_slice(plan.spans.as_flattened());
        let buffer = DeviceBuffer::stage(cuda, &words)?;
        let rows_ptr = buffer.pointer() + rows_at as u64;
        let spans_ptr = buffer.pointer() + spans_at as u64;
        let tile_rows = tile_rows(rows);
        let end_slot = plan.end_slot;
        let scattered = plan.scattered;
        Ok(Self { rows, tiles, tile_rows, end_slot, scattered, buffer, rows_ptr, spans_ptr })
    }
}

/// The binary logarithm of the number of unshared slots of each row that a warp processes at a
/// time: as many as always fit a unit. The 16 consecutive heads of a warp belong to at most
/// `16 >> own_shift` rows of `group` heads each. A power of two, so that a row's slots are always
/// on the same side of the middle.
fn own_shift(group: usize) -> u32 {
    let most = (0..group).map(|warp| (16 * warp % group + UNIT - 1) / group + 1).max();
    (UNIT / most.unwrap_or(1)).ilog2()
}

/// Softmax attention: `out[r, h] = sum_j softmax_j(q[r, h] . k_j / sqrt(head_dim)) v_j` over the
/// slots j of row r.
///
/// The first `heads * head_dim` columns of q are the queries; the result is (rows, heads *
/// head_dim) of q's dtype. Adjacent query heads share a key head in equal groups.
pub(crate) fn attention(
    q: &CudaTensor,
    kv: &CudaKv,
    layer: usize,
    heads: usize,
    metadata: &CudaAttentionMetadata,
) -> Result<CudaTensor, CudaError> {
    let cuda = q.cuda();
    let dim = kv.head_dim;
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
    assert!(kv.is_for(q.dtype()), "attention: queries and keys of different dtypes");
    let out = CudaTensor::uninit(cuda, q.rows(), heads * dim, q.dtype())?;
    let (keys, values) = kv.layer(layer);
    let q_cols = int(q.cols());
    let out_cols = int(out.cols());
    let slots = int(kv.slots);
    let group = int(heads / kv.kv_heads);
    let q_at = q.pointer();
    let out_at = out.pointer();
    let tiles = metadata.buffer.pointer();
    let rows = metadata.rows_ptr;
    let spans = metadata.spans_ptr;
    let scale = 1.0 / (dim as f32).sqrt();
    // Includes the units of unshared slots that a warp buffers, one of them in the ring; as in
    // attention.cu.
    let mma_kernel = match (kv.dtype, dim) {
        (CudaDtype::Bf16, 32) => Some(("attention_32", 4)),
        (CudaDtype::Bf16, 64) => Some(("attention_64", 4)),
        (CudaDtype::Bf16, 128) => Some(("attention_128", 2)),
        (CudaDtype::E4m3, 32) => Some(("attention_fp8_32", 4)),
        (CudaDtype::E4m3, 64) => Some(("attention_fp8_64", 4)),
        (CudaDtype::E4m3, 128) => Some(("attention_fp8_128", 4)),
        _ => None,
    };
    let aligned = q.cols().is_multiple_of(8) && heads / kv.kv_heads <= MAX_GROUP;
    assert!(aligned || kv.dtype != CudaDtype::E4m3, "attention: {heads} heads of {dim} in fp8");
    match mma_kernel.filter(|_| aligned) {
        Some((kernel, depth)) => {
            let warps = metadata.tile_rows / 16;
            let unit = 2 * UNIT * dim * kv.dtype.size(); // keys and values
            let shared = (RING + (depth - 1) * warps) * unit;
            let config = LaunchConfig {
                blocks: (metadata.tiles, kv.kv_heads, heads / kv.kv_heads),
                threads: warps * 32,
                shared_bytes: shared,
            };
            let scale = scale * std::f32::consts::LOG2_E; // the kernel's exponentials have base 2
            let arguments = kernel_args![
                q_at,
                q_cols,
                keys,
                values,
                slots,
                group,
                own_shift(heads / kv.kv_heads),
                out_at,
                out_cols,
                tiles,
                rows,
                spans,
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
            let dtype = q.dtype();
            let dim = int(dim);
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
    /// Zero gradients with the shape of a store.
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
    let cuda = q.cuda();
    let dim = kv.head_dim;
    let rows = q.rows();
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
    assert!(!metadata.scattered, "attention_backward: a prefix in several spans");
    assert_eq!(
        (q.dtype(), out.dtype()),
        (kv.dtype, kv.dtype),
        "attention_backward: queries and keys of different dtypes"
    );
    let of_grads = (grads.layers, grads.slots, grads.shape());
    let of_kv = (kv.layers, kv.slots, (kv.kv_heads, dim));
    assert_eq!(of_grads, of_kv, "attention_backward: gradients of another store");
    let dqkv = CudaTensor::uninit(cuda, rows, (heads + 2 * kv.kv_heads) * dim, q.dtype())?;
    let cast = dout.cast_if_needed(q.dtype())?;
    let dout = cast.as_ref().unwrap_or(dout);
    let (keys, values) = kv.layer(layer);
    let (dkeys, dvalues) = grads.layer(layer);
    let group = heads / kv.kv_heads;
    let q_at = q.pointer();
    let out_at = out.pointer();
    let dout_at = dout.pointer();
    let dqkv_at = dqkv.pointer();
    let q_cols = int(q.cols());
    let out_cols = int(out.cols());
    let dqkv_cols = int(dqkv.cols());
    let slots = int(kv.slots);
    let tiles = metadata.buffer.pointer();
    let rows_at = metadata.rows_ptr;
    let spans = metadata.spans_ptr;
    let group_at = int(group);
    let scale = 1.0 / (dim as f32).sqrt();
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
    use super::own_shift;

    /// Sixteen consecutive heads never belong to more rows than there is room for.
    #[test]
    fn own_slots_of_all_rows_of_a_warp_fit_a_unit() {
        let shifts = [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (7, 2), (8, 3), (9, 2), (16, 4)];
        for (group, expected) in shifts {
            assert_eq!(own_shift(group), expected, "{group}");
            for warp in 0..100 {
                let rows = (16 * warp + 15) / group - 16 * warp / group + 1;
                assert!(rows << own_shift(group) <= 16, "{group} heads, {rows} rows");
            }
        }
    }
}
