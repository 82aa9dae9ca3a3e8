//! Linear maps of many rows on Hopper by a kernel of our own, whose results are finished where they
//! are made; `linear`, `rope` and `topk` ask for it, and have the ways for all else.

use super::attention::CudaKv;
use super::context::LaunchConfig;
use super::linear::CudaLinear;
use super::memory::DeviceBuffer;
use super::tma::{TENSOR_MAP_WORDS, tensor_map};
use super::{CudaDtype, CudaError, CudaIndices, CudaTensor};

/// Fewer rows were not measured; of a vocabulary, they leave most of a tile empty.
const MIN_ROWS: usize = 1024;
const MIN_ROWS_REDUCED: usize = 256;
/// cuBLASLt is faster with 256 inputs, slower with 768.
const MIN_INPUTS: usize = 512;
/// The share of all multiprocessors' time that tiles must fill for this kernel to be faster than
/// cuBLASLt, and than cuBLASLt and `place` after it.
const MIN_WAVE_EFFICIENCY: f64 = 0.8;
const MIN_WAVE_EFFICIENCY_QKV: f64 = 0.7;
/// As in product.cu: a tile's shape, what the copy engine brings at a time, and the blocks' shape.
const TILE_ROWS: usize = 128;
pub(crate) const TILE_OUTPUTS: usize = 192;
const X_BOX: [u32; 2] = [64, TILE_ROWS as u32];
const WEIGHTS_BOX: [u32; 2] = [64, (TILE_OUTPUTS / CLUSTER) as u32];
const STAGES: usize = 4;
const STAGE_BYTES: usize = 64 * (TILE_ROWS + TILE_OUTPUTS) * 2;
const WARP_BYTES: usize = 16 * (TILE_OUTPUTS * 2 + 16);
const WARPS: usize = 8;
const CLUSTER: usize = 2;
const THREADS: usize = 384;
/// `Product` of product.cu in words.
const PARAM_WORDS: usize = 2 * TENSOR_MAP_WORDS + 16;

/// Keys' and values' places: in this layer of this store, a slot for each row; queries come before
/// them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QkvDestination<'a> {
    pub(crate) kv: &'a CudaKv,
    pub(crate) layer: usize,
    pub(crate) heads: usize,
    /// (rows)
    pub(crate) to: &'a CudaIndices,
}

/// Whether the results of a map can be written in this format by [`stored`], and are sooner than
/// elsewhere.
pub(crate) fn supports_store(x: &CudaTensor, by: &CudaLinear, want: CudaDtype) -> bool {
    want == CudaDtype::Bf16
        && by.outputs().is_multiple_of(8)
        && is_wide(x, by)
        && is_supported(x, by)
        && fills_waves(x, by)
}

/// Whether keys and values can be put into such a store by [`placed`], and are sooner than
/// elsewhere.
pub(crate) fn supports_qkv(x: &CudaTensor, by: &CudaLinear, kv: &CudaKv) -> bool {
    let whole = kv.head_dim().is_multiple_of(8) && kv.dtype() == CudaDtype::Bf16;
    whole
        && is_wide(x, by)
        && is_supported(x, by)
        && wave_efficiency(x, by) >= MIN_WAVE_EFFICIENCY_QKV
}

/// Many rows, so many inputs that a tile takes longer to multiply than to write, and no fewer
/// outputs: rows of many inputs are not in the cache any more when the next outputs' tiles need
/// them.
fn is_wide(x: &CudaTensor, by: &CudaLinear) -> bool {
    x.rows() >= MIN_ROWS && by.inputs() >= MIN_INPUTS && by.outputs() >= by.inputs()
}

/// Whether a map's results, in tiles as they are here, keep nearly all multiprocessors busy.
pub(crate) fn fills_waves(x: &CudaTensor, by: &CudaLinear) -> bool {
    wave_efficiency(x, by) >= MIN_WAVE_EFFICIENCY
}

/// The share of multiprocessors' time that a map's results fill, if all tiles take as long.
fn wave_efficiency(x: &CudaTensor, by: &CudaLinear) -> f64 {
    let tiles = x.rows().div_ceil(CLUSTER * TILE_ROWS) * by.outputs().div_ceil(TILE_OUTPUTS);
    let at_once = x.cuda().sm_count().unwrap_or(0) / CLUSTER;
    if at_once == 0 {
        return 0.0;
    }
    (x.rows() * by.outputs()) as f64
        / (tiles.next_multiple_of(at_once) * CLUSTER * TILE_ROWS * TILE_OUTPUTS) as f64
}

/// Whether [`reduced`] can be asked for.
pub(crate) fn supports_argmax(x: &CudaTensor, by: &CudaLinear) -> bool {
    is_supported(x, by) && x.rows() >= MIN_ROWS_REDUCED && by.padded_bias().is_none()
}

fn is_supported(x: &CudaTensor, by: &CudaLinear) -> bool {
    let formats = [x.dtype(), by.matrix().dtype()];
    formats == [CudaDtype::Bf16; 2]
        && by.inputs().is_multiple_of(8)
        && x.cuda().capability() == (9, 0)
}

/// `out = x W + b`, or its GELU in the tanh form: out is (rows, outputs) of bf16.
pub(crate) fn store(
    x: &CudaTensor,
    by: &CudaLinear,
    (bias, gelu): (Option<&DeviceBuffer>, bool),
    out: &CudaTensor,
) -> Result<(), CudaError> {
    assert_eq!(
        (out.rows(), out.cols(), out.dtype()),
        (x.rows(), by.outputs(), CudaDtype::Bf16),
        "product: a result of another shape"
    );
    let name = if gelu { "product_gelu" } else { "product_stored" };
    // SAFETY: out is (rows, outputs) and the bias at least as wide as outputs.
    unsafe { launch(name, x, by, &[bias.map_or(0, DeviceBuffer::pointer), out.pointer()]) }
}

/// `x W + b`: queries go to the first columns of out, (rows, outputs) of bf16, whose others are not
/// written, keys and values to their slots.
pub(crate) fn store_qkv(
    x: &CudaTensor,
    by: &CudaLinear,
    slots: QkvDestination<'_>,
    out: &CudaTensor,
) -> Result<(), CudaError> {
    let QkvDestination { kv, layer, heads, to } = slots;
    let (dim, kv_heads, (keys, values)) = (kv.head_dim(), kv.kv_heads(), kv.layer(layer));
    assert_eq!(
        (out.rows(), out.cols(), out.dtype()),
        (x.rows(), by.outputs(), kv.dtype()),
        "product: a result of another shape"
    );
    assert_eq!(
        by.outputs(),
        (heads + 2 * kv_heads) * dim,
        "product: {} are not {heads} heads of {dim}",
        by.outputs()
    );
    assert!(
        dim.is_multiple_of(8) && kv.dtype() == CudaDtype::Bf16,
        "product: heads of {dim} are not whole vectors"
    );
    assert!(
        to.len() == x.rows() && to.all_below(kv.slots()),
        "product: not a slot below {} for each row",
        kv.slots()
    );
    let bias = by.padded_bias().map_or(0, DeviceBuffer::pointer);
    let shape = [kv.slots(), dim, kv_heads, heads * dim].map(|n| n as u64);
    // SAFETY: as above; slots and the store's shape were checked.
    unsafe {
        launch(
            "product_placed",
            x,
            by,
            &[&[bias, out.pointer(), keys, values, to.pointer()], &shape[..]].concat(),
        )
    }
}

/// Of each row's every [`OUTPUTS`] results the largest, the sum of exponentials relative to it and
/// the index, in 16 bytes: (rows, outputs / OUTPUTS rounded up).
pub(crate) fn logit_partials(x: &CudaTensor, by: &CudaLinear) -> Result<DeviceBuffer, CudaError> {
    let parts = DeviceBuffer::new(x.cuda(), x.rows() * by.outputs().div_ceil(TILE_OUTPUTS) * 16)?;
    // SAFETY: there is a place for every part.
    unsafe { launch("product_reduced", x, by, &[0, parts.pointer()]) }?;
    Ok(parts)
}

/// # Safety
/// `rest` must be what `Product` of product.cu has after its shapes, and its pointers must reach as
/// far as the kernel goes.
unsafe fn launch(
    kernel: &str,
    x: &CudaTensor,
    by: &CudaLinear,
    rest: &[u64],
) -> Result<(), CudaError> {
    assert_eq!(
        x.cols(),
        by.inputs(),
        "product: rows of {} into a map of {}",
        x.cols(),
        by.inputs()
    );
    let shape = [x.rows(), by.outputs(), by.inputs()].map(|n| n as u64);
    let maps = [tensor_map(x, X_BOX)?, tensor_map(by.matrix(), WEIGHTS_BOX)?];
    let mut arguments = [0u64; PARAM_WORDS];
    let words = maps.iter().flatten().chain(&shape).chain(rest);
    arguments.iter_mut().zip(words).for_each(|(to, &word)| *to = word);
    let shared = STAGES * STAGE_BYTES + WARPS * WARP_BYTES + 1024; // stages begin at a multiple of 1024
    let grid = LaunchConfig {
        blocks: (x.cuda().sm_count()? / CLUSTER * CLUSTER, 1, 1),
        threads: THREADS,
        shared_bytes: shared,
    };
    // SAFETY: the kernel's one parameter is made of these words; the matrices are described whole;
    // the rest is the caller's.
    unsafe { x.cuda().launch(kernel, grid, &mut arguments) }
}
