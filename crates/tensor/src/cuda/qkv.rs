//! Queries, keys and values: their projection, QK norm, rotary embedding and the write to the KV
//! store.

use super::args::{CudaQkvTransform, CudaSlotMapping};
use super::attention::{CudaKv, CudaKvGrads};
use super::context::{LaunchConfig, int, kernel_args};
use super::hopper_gemm::{QkvDestination, store_qkv, supports_qkv};
use super::linear::{CudaLinear, linear};
use super::memory::DeviceBuffer;
use super::{CudaDevice, CudaDtype, CudaError, CudaTensor};
use crate::params::Activation;

/// The rotary frequencies of a head: pair (i, i + head_dim / 2) is rotated by
/// `position * frequencies[i]`.
#[derive(Debug)]
pub(crate) struct CudaRope {
    pairs: usize,
    frequencies: DeviceBuffer, // (pairs) of f32
}

impl CudaRope {
    pub(crate) fn new(cuda: &CudaDevice, frequencies: &[f32]) -> Result<Self, CudaError> {
        Ok(Self { pairs: frequencies.len(), frequencies: DeviceBuffer::upload(cuda, frequencies)? })
    }
}

impl CudaQkvTransform<'_> {
    /// The scales of queries and of keys, null without QK norms, and their eps.
    fn qk_norm_args(self, dim: usize) -> (u64, u64, f32) {
        self.qk_norms.map_or((0, 0, 0.0), |(q, k)| {
            assert!(
                q.is_rms() && k.is_rms() && q.eps() == k.eps(),
                "qk norms are RMSNorms of one eps"
            );
            assert_eq!((q.width(), k.width()), (dim, dim), "qk norms are not {dim} wide");
            (q.scale(), k.scale(), q.eps())
        })
    }
}

/// [`linear`](linear()), then [`rope_and_cache`]; in one kernel if there is neither a QK norm nor a
/// rotary embedding and the Hopper GEMM is faster. Only the first columns of the result, the
/// queries, may be read.
pub(crate) fn project_qkv(
    x: &CudaTensor,
    map: &CudaLinear,
    transform: CudaQkvTransform<'_>,
    kv: &mut CudaKv,
    layer: usize,
    slot_mapping: CudaSlotMapping<'_>,
) -> Result<CudaTensor, CudaError> {
    let cast = x.cast_operand(map)?;
    let x = cast.as_ref().unwrap_or(x);
    if transform.qk_norms.is_none() && transform.rope.is_none() && supports_qkv(x, map, kv) {
        let dtype = x.cuda().compute_dtype();
        let qkv = CudaTensor::uninit(x.cuda(), x.rows(), map.outputs(), dtype)?;
        let heads = transform.heads;
        let slots = slot_mapping.slots;
        store_qkv(x, map, QkvDestination { kv, layer, heads, slots }, &qkv)?;
        return Ok(qkv);
    }
    let mut qkv = linear(x, map, Activation::None, x.cuda().compute_dtype())?;
    rope_and_cache(&mut qkv, transform, kv, layer, slot_mapping)?;
    Ok(qkv)
}

/// Normalizes and rotates queries and keys of qkv (rows, (heads + 2 kv_heads) * head_dim); queries
/// are written in place, keys and values to their slots of `kv`.
pub(crate) fn rope_and_cache(
    qkv: &mut CudaTensor,
    transform: CudaQkvTransform<'_>,
    kv: &mut CudaKv,
    layer: usize,
    slot_mapping: CudaSlotMapping<'_>,
) -> Result<(), CudaError> {
    let rows = qkv.rows();
    let cols = qkv.cols();
    let dim = kv.head_dim();
    assert_eq!(
        cols,
        (transform.heads + 2 * kv.kv_heads()) * dim,
        "rope_and_cache: rows of {cols} are not {} heads of {dim}",
        transform.heads
    );
    assert_eq!(
        (rows, rows),
        (slot_mapping.positions.len(), slot_mapping.slots.len()),
        "rope_and_cache: positions and slots for {rows} rows"
    );
    assert!(
        slot_mapping.slots.all_below(kv.slots()),
        "rope_and_cache: a slot beyond {}",
        kv.slots()
    );
    assert!(kv.is_for(qkv.dtype()), "rope_and_cache: queries and keys of different dtypes");
    let (keys, values) = kv.layer(layer);
    let heads = int(transform.heads);
    let kv_heads = int(kv.kv_heads());
    let per_vector = 16 / qkv.dtype().size();
    let is_copy =
        transform.qk_norms.is_none() && transform.rope.is_none() && kv.dtype() == qkv.dtype();
    if is_copy && dim.is_multiple_of(per_vector) {
        let width = dim / per_vector;
        let config = LaunchConfig::per_row(rows, kv.kv_heads() * width);
        let stride = int(cols / per_vector);
        let width = int(width);
        let arguments = kernel_args![
            qkv.pointer(),
            stride,
            heads,
            kv_heads,
            width,
            keys,
            values,
            slot_mapping.slots.pointer(),
            int(kv.slots())
        ];
        // SAFETY: qkv is (rows, cols) and its rows are whole vectors; slots were checked.
        return unsafe { qkv.cuda().launch("cache_kv", config, arguments) };
    }
    let frequencies = transform.rope.map_or(0, |r| {
        assert_eq!(2 * r.pairs, dim, "rope_and_cache: {} pairs in heads of {dim}", r.pairs);
        r.frequencies.pointer()
    });
    let (q_scale, k_scale, eps) = transform.qk_norm_args(dim);
    let q_at = qkv.pointer();
    let to = slot_mapping.slots.pointer();
    let positions = slot_mapping.positions.pointer();
    let cols = int(cols);
    let width = int(dim);
    let slots = int(kv.slots());
    let config = LaunchConfig::per_row(rows, 256);
    if qkv.dtype() == CudaDtype::Bf16 && dim <= 128 && dim.is_multiple_of(4) {
        let arguments = kernel_args![
            q_at,
            cols,
            heads,
            kv_heads,
            width,
            frequencies,
            positions,
            q_scale,
            k_scale,
            eps,
            keys,
            values,
            to,
            slots
        ];
        let kernel = match kv.dtype() {
            CudaDtype::E4m3 => "rope_and_cache_fp8",
            _ => "rope_and_cache_bf16",
        };
        // SAFETY: as above; frequencies and scales are as wide as a head, whose halves are even.
        return unsafe { qkv.cuda().launch(kernel, config, arguments) };
    }
    let dtype = qkv.dtype();
    let arguments = kernel_args![
        q_at,
        dtype,
        cols,
        heads,
        kv_heads,
        width,
        frequencies,
        positions,
        q_scale,
        k_scale,
        eps,
        keys,
        values,
        to,
        slots
    ];
    // SAFETY: as above; frequencies and scales are as wide as a head.
    unsafe { qkv.cuda().launch("rope_and_cache_any", config, arguments) }
}

/// Completes dqkv, whose first columns are the queries' gradients, with the keys' and values'
/// gradients from the rows' slots, and rotates the gradients of queries and keys back.
pub(crate) fn rope_and_cache_backward(
    dqkv: &mut CudaTensor,
    transform: CudaQkvTransform<'_>,
    grads: &CudaKvGrads,
    layer: usize,
    slot_mapping: CudaSlotMapping<'_>,
) -> Result<(), CudaError> {
    let rows = dqkv.rows();
    let cols = dqkv.cols();
    let (kv_heads, dim) = grads.shape();
    assert_eq!(
        cols,
        (transform.heads + 2 * kv_heads) * dim,
        "rope_and_cache_backward: rows of {cols} are not {} heads of {dim}",
        transform.heads
    );
    assert_eq!(
        (rows, rows),
        (slot_mapping.positions.len(), slot_mapping.slots.len()),
        "rope_and_cache_backward: positions and slots for {rows} rows"
    );
    assert!(
        slot_mapping.slots.all_below(grads.slots()),
        "rope_and_cache_backward: a slot beyond {}",
        grads.slots()
    );
    let frequencies = transform.rope.map_or(0, |r| {
        assert_eq!(
            2 * r.pairs,
            dim,
            "rope_and_cache_backward: {} pairs in heads of {dim}",
            r.pairs
        );
        r.frequencies.pointer()
    });
    let (keys, values) = grads.layer(layer);
    let positions = slot_mapping.positions.pointer();
    let from = slot_mapping.slots.pointer();
    let arguments = kernel_args![
        dqkv.pointer(),
        dqkv.dtype(),
        int(cols),
        int(transform.heads),
        int(kv_heads),
        int(dim),
        frequencies,
        positions,
        keys,
        values,
        from,
        int(grads.slots()),
    ];
    // SAFETY: dqkv is (rows, cols), slots were checked, frequencies are half as wide as a head.
    unsafe {
        dqkv.cuda().launch(
            "rope_and_cache_backward",
            LaunchConfig::per_row(rows, cols / 4),
            arguments,
        )
    }
}

/// Maximum head size of `qk_norm_backward`, as in qkv.cu.
const MAX_HEAD_DIM: usize = 256;
/// Maximum blocks of `qk_norm_backward`: enough to fill a GPU, few enough that adding their partial
/// sums is cheap.
const MAX_BLOCKS: usize = 1024;

/// Back-propagates the gradients of the normalized queries and keys in dqkv, of any dtype, through
/// the norms of qkv, of any dtype, in place; adds those of the scales to dscales.
pub(crate) fn qk_norm_backward(
    qkv: &CudaTensor,
    transform: CudaQkvTransform<'_>,
    dqkv: &mut CudaTensor,
    dscales: [&mut CudaTensor; 2],
) -> Result<(), CudaError> {
    let rows = qkv.rows();
    let cols = qkv.cols();
    let heads = transform.heads;
    let dim = dscales[0].cols();
    assert_eq!((dqkv.rows(), dqkv.cols()), (rows, cols), "qk_norm_backward: shapes differ");
    let kv_heads = (cols / dim).saturating_sub(heads) / 2;
    assert_eq!(
        cols,
        (heads + 2 * kv_heads) * dim,
        "qk_norm_backward: rows of {cols} are not {heads} heads of {dim}"
    );
    assert!(
        dim <= MAX_HEAD_DIM
            && dscales.iter().all(|d| d.cols() == dim && d.dtype() == CudaDtype::F32),
        "qk_norm_backward: scales of {dim} in f32"
    );
    assert!(transform.qk_norms.is_some(), "qk_norm_backward: there are no norms");
    let (q_scale, k_scale, eps) = transform.qk_norm_args(dim);
    let arguments = kernel_args![
        qkv.pointer(),
        qkv.dtype(),
        dqkv.pointer(),
        dqkv.dtype(),
        int(cols),
        int(heads),
        int(kv_heads),
        int(dim),
        q_scale,
        k_scale,
        eps,
        dscales[0].pointer(),
        dscales[1].pointer(),
        int(rows),
    ];
    let config = LaunchConfig::new(rows.min(MAX_BLOCKS), 256);
    // SAFETY: qkv and dqkv are (rows, cols), scales and their gradients as wide as a head.
    unsafe { qkv.cuda().launch("qk_norm_backward", config, arguments) }
}
