//! A GEMM for many rows on Hopper with fused epilogues (`hopper_gemm.cu`). `linear`, `qkv` and
//! `topk` use it where it is supported and faster, and fall back to other kernels otherwise. It is
//! the only GEMM for e4m3 operands, for any number of rows.

use super::attention::CudaKv;
use super::context::LaunchConfig;
use super::linear::CudaLinear;
use super::memory::{DeviceBuffer, E4M3_GROUP};
use super::tma::{TENSOR_MAP_WORDS, tensor_map};
use super::{CudaDtype, CudaError, CudaIndices, CudaTensor};

/// Minimum number of rows; fewer were not measured.
const MIN_ROWS: usize = 1024;
/// Minimum number of rows for the LM head: fewer leave most of a tile empty.
const MIN_ROWS_ARGMAX: usize = 256;
/// Minimum number of inputs: cuBLASLt is faster with 256 inputs, slower with 768.
const MIN_INPUTS: usize = 512;
/// Minimum wave efficiency at which the GEMM is faster than cuBLASLt.
const MIN_WAVE_EFFICIENCY: f64 = 0.8;
/// The same with the fused KV write, for which cuBLASLt would need `rope_and_cache`.
const MIN_WAVE_EFFICIENCY_QKV: f64 = 0.7;

// As in hopper_gemm.cu.
const TILE_ROWS: usize = 128;
pub(crate) const TILE_OUTPUTS: usize = 192;
const DEPTH_BYTES: usize = 128; // bytes of a row in a stage
const STAGES: usize = 4;
const STAGE_BYTES: usize = DEPTH_BYTES * (TILE_ROWS + TILE_OUTPUTS);
const WARP_BYTES: usize = 16 * (TILE_OUTPUTS * 2 + 16);
const WARPS: usize = 8;
const CLUSTER: usize = 2;
const THREADS: usize = 384;
const PARAM_WORDS: usize = 2 * TENSOR_MAP_WORDS + 16; // of `GemmParams`
const FP8_AT: usize = PARAM_WORDS - 4; // words of the e4m3 parameters
const CONSTANT_AT: usize = PARAM_WORDS - 2; // whether weights and bias are constant

/// Its kernels, for bf16 and e4m3.
#[derive(Clone, Copy, Debug)]
enum GemmEpilogue {
    Store,
    /// For e4m3 it stores e4m3.
    Gelu,
    Qkv,
    Argmax,
}

impl GemmEpilogue {
    fn kernel(self, operand: CudaDtype) -> &'static str {
        let [bf16, e4m3] = match self {
            Self::Store => ["gemm_store", "gemm_fp8_store"],
            Self::Gelu => ["gemm_gelu", "gemm_fp8_gelu"],
            Self::Qkv => ["gemm_qkv", "gemm_fp8_qkv"],
            Self::Argmax => ["gemm_argmax", "gemm_fp8_argmax"],
        };
        if operand == CudaDtype::E4m3 { e4m3 } else { bf16 }
    }
}

/// The destination of keys and values in [`store_qkv`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct QkvDestination<'a> {
    pub(crate) kv: &'a CudaKv,
    pub(crate) layer: usize,
    /// Query heads, whose columns come first.
    pub(crate) heads: usize,
    /// (rows)
    pub(crate) slots: &'a CudaIndices,
}

/// Whether [`store`] supports the results of a map in this dtype (e4m3 only for GELU with a known
/// scale), and is faster than cuBLASLt. On a deterministic device it is used whenever supported, as
/// are the others, and so it is for e4m3 operands.
pub(crate) fn supports_store(x: &CudaTensor, map: &CudaLinear, dtype: CudaDtype) -> bool {
    if x.dtype() == CudaDtype::E4m3 {
        let aligned = match dtype {
            CudaDtype::E4m3 => map.outputs().is_multiple_of(E4M3_GROUP),
            CudaDtype::Bf16 => map.outputs().is_multiple_of(8),
            CudaDtype::F32 => false,
        };
        return aligned && is_supported(x, map);
    }
    dtype == CudaDtype::Bf16
        && map.outputs().is_multiple_of(8)
        && is_supported(x, map)
        && (x.cuda().is_deterministic() || is_wide(x, map) && fills_waves(x, map))
}

/// Whether [`store_qkv`] supports such a store, and is faster than a GEMM and `rope_and_cache`.
pub(crate) fn supports_qkv(x: &CudaTensor, map: &CudaLinear, kv: &CudaKv) -> bool {
    let whole_vectors = kv.head_dim().is_multiple_of(8) && kv.dtype() == x.dtype();
    let is_faster = || is_wide(x, map) && wave_efficiency(x, map) >= MIN_WAVE_EFFICIENCY_QKV;
    let is_chosen = x.dtype() == CudaDtype::E4m3 || x.cuda().is_deterministic() || is_faster();
    whole_vectors && is_supported(x, map) && is_chosen
}

/// Many rows, enough inputs that multiplying a tile takes longer than storing it, and at least as
/// many outputs as inputs: wide rows of x leave the L2 cache before the next outputs' tiles need
/// them.
fn is_wide(x: &CudaTensor, map: &CudaLinear) -> bool {
    x.rows() >= MIN_ROWS && map.inputs() >= MIN_INPUTS && map.outputs() >= map.inputs()
}

/// Whether a map's tiles fill whole waves well enough for kernels with these tiles to be faster.
pub(crate) fn fills_waves(x: &CudaTensor, map: &CudaLinear) -> bool {
    wave_efficiency(x, map) >= MIN_WAVE_EFFICIENCY
}

/// The share of all SMs' time that a map's tiles use, if every tile takes equally long.
fn wave_efficiency(x: &CudaTensor, map: &CudaLinear) -> f64 {
    let tiles = x.rows().div_ceil(CLUSTER * TILE_ROWS) * map.outputs().div_ceil(TILE_OUTPUTS);
    let clusters = x.cuda().sm_count().unwrap_or(0) / CLUSTER;
    if clusters == 0 {
        return 0.0;
    }
    (x.rows() * map.outputs()) as f64
        / (tiles.next_multiple_of(clusters) * CLUSTER * TILE_ROWS * TILE_OUTPUTS) as f64
}

/// Whether [`logit_partials`] can run.
pub(crate) fn supports_argmax(x: &CudaTensor, map: &CudaLinear) -> bool {
    let is_chosen =
        x.dtype() == CudaDtype::E4m3 || x.cuda().is_deterministic() || x.rows() >= MIN_ROWS_ARGMAX;
    is_supported(x, map) && is_chosen && map.padded_bias().is_none()
}

fn is_supported(x: &CudaTensor, map: &CudaLinear) -> bool {
    let operands = match x.dtype() {
        CudaDtype::E4m3 => map.fp8().is_some(),
        CudaDtype::Bf16 => map.matrix().dtype() == CudaDtype::Bf16,
        CudaDtype::F32 => false,
    };
    operands && x.rows() > 0 && map.inputs().is_multiple_of(8) && x.cuda().capability() == (9, 0)
}

/// `out = x W + b`, or its tanh-GELU: out is (rows, outputs) of bf16; GELU's result is e4m3 if x
/// is.
pub(crate) fn store(
    x: &CudaTensor,
    map: &CudaLinear,
    bias: Option<&DeviceBuffer>,
    gelu: bool,
    out: &CudaTensor,
) -> Result<(), CudaError> {
    let (epilogue, dtype) = match gelu {
        true => (GemmEpilogue::Gelu, x.dtype()),
        false => (GemmEpilogue::Store, CudaDtype::Bf16),
    };
    assert_eq!(
        (out.rows(), out.cols(), out.dtype()),
        (x.rows(), map.outputs(), dtype),
        "gemm: a result of another shape"
    );
    let bias = bias.map_or(0, DeviceBuffer::pointer);
    assert!(
        dtype != CudaDtype::E4m3 || (x.common_scale().is_some() && out.common_scale().is_some()),
        "gemm: GELU into e4m3 has one scale for all rows"
    );
    let half_inverse = out.common_scale().map_or(0.0, |by| 0.5 * by.inverse());
    // SAFETY: out is (rows, outputs), and the bias at least as wide as outputs.
    unsafe { launch(epilogue, x, map, &[bias, out.pointer()], half_inverse) }
}

/// `x W + b`: queries go to the first columns of out, (rows, outputs) of bf16, whose others are not
/// written; keys and values go to their slots.
pub(crate) fn store_qkv(
    x: &CudaTensor,
    map: &CudaLinear,
    destination: QkvDestination<'_>,
    out: &CudaTensor,
) -> Result<(), CudaError> {
    let QkvDestination { kv, layer, heads, slots } = destination;
    let dim = kv.head_dim();
    let kv_heads = kv.kv_heads();
    let (keys, values) = kv.layer(layer);
    let outputs = map.outputs();
    assert_eq!(
        (out.rows(), out.cols(), out.dtype()),
        (x.rows(), outputs, CudaDtype::Bf16),
        "gemm: a result of another shape"
    );
    assert_eq!(
        outputs,
        (heads + 2 * kv_heads) * dim,
        "gemm: {outputs} columns are not {heads} heads of {dim}"
    );
    assert!(
        dim.is_multiple_of(8) && kv.dtype() == x.dtype(),
        "gemm: heads of {dim} are not whole vectors of the operands' dtype"
    );
    assert!(
        slots.len() == x.rows() && slots.all_below(kv.slots()),
        "gemm: not a slot below {} for each row",
        kv.slots()
    );
    let bias = map.padded_bias().map_or(0, DeviceBuffer::pointer);
    let pointers = [bias, out.pointer(), keys, values, slots.pointer()];
    let shape = [kv.slots(), dim, kv_heads, heads * dim].map(|n| n as u64);
    let rest = [&pointers[..], &shape].concat();
    // SAFETY: as above; slots and the store's shape were checked.
    unsafe { launch(GemmEpilogue::Qkv, x, map, &rest, 0.0) }
}

/// Each row's logits, reduced per [`TILE_OUTPUTS`] outputs to 16 bytes: the largest, the sum of
/// exponentials relative to it, and its index. (rows, outputs / TILE_OUTPUTS rounded up)
pub(crate) fn logit_partials(x: &CudaTensor, map: &CudaLinear) -> Result<DeviceBuffer, CudaError> {
    let tiles = map.outputs().div_ceil(TILE_OUTPUTS);
    let partials = DeviceBuffer::new(x.cuda(), x.rows() * tiles * 16)?;
    // SAFETY: there is room for the tiles of every row.
    unsafe { launch(GemmEpilogue::Argmax, x, map, &[0, partials.pointer()], 0.0) }?;
    Ok(partials)
}

/// `half_inverse` is half of 1 / the scale of a result of e4m3.
///
/// # Safety
/// `rest` must contain the fields of `GemmParams` in hopper_gemm.cu after its shape, and its
/// pointers must be valid for all accesses of the kernel.
unsafe fn launch(
    epilogue: GemmEpilogue,
    x: &CudaTensor,
    map: &CudaLinear,
    rest: &[u64],
    half_inverse: f32,
) -> Result<(), CudaError> {
    let cols = x.cols();
    let inputs = map.inputs();
    assert_eq!(cols, inputs, "gemm: rows of {cols} into a map of {inputs}");
    let shape = [x.rows(), map.outputs(), inputs].map(|n| n as u64);
    let e4m3 = map.fp8().filter(|_| x.dtype() == CudaDtype::E4m3);
    let weights = e4m3.map_or(map.matrix(), |weights| &weights.matrix);
    // Columns of one TMA load.
    let depth = (DEPTH_BYTES / x.dtype().size()) as u32;
    let x_box = [depth, TILE_ROWS as u32];
    let weights_box = [depth, (TILE_OUTPUTS / CLUSTER) as u32];
    let tensor_maps = [tensor_map(x, x_box)?, tensor_map(weights, weights_box)?];
    let mut arguments = [0u64; PARAM_WORDS];
    let words = tensor_maps.iter().flatten().chain(&shape).chain(rest);
    arguments.iter_mut().zip(words).for_each(|(to, &word)| *to = word);
    if let Some(weights) = e4m3 {
        let (x_scales, x_scale) = x.scales();
        let factors = [x_scale * weights.scale.scale, half_inverse].map(|x| u64::from(x.to_bits()));
        arguments[FP8_AT..FP8_AT + 2].copy_from_slice(&[x_scales, factors[0] | factors[1] << 32]);
    }
    arguments[CONSTANT_AT] = u64::from(map.is_constant());
    let config = LaunchConfig {
        blocks: (x.cuda().sm_count()? / CLUSTER * CLUSTER, 1, 1),
        threads: THREADS,
        // Stages start at a multiple of 1024 bytes.
        shared_bytes: STAGES * STAGE_BYTES + WARPS * WARP_BYTES + 1024,
    };
    // SAFETY: the kernel's only parameter consists of these words; the tensor maps cover their
    // matrices; the rest is guaranteed by the caller.
    unsafe { x.cuda().launch(epilogue.kernel(x.dtype()), config, &mut arguments) }
}
