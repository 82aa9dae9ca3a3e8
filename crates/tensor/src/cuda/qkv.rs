//! Between the qkv product and attention: q/k normalisation, rotary positions, keys and values into
//! their slots.

use super::args::{CudaQkvTransform, CudaSlotMapping};
use super::attention::{CudaKv, CudaKvGrads};
use super::context::{LaunchConfig, int, kernel_args};
use super::linear::{CudaLinear, linear};
use super::memory::DeviceBuffer;
use super::{CudaDevice, CudaDtype, CudaError, CudaTensor, hopper_gemm};
use crate::params::Activation;

/// The rotation frequencies of a head on the GPU: pair i, (i, i + head_dim / 2), turns by `position
/// * frequencies[i]`.
#[derive(Debug)]
pub(crate) struct CudaRope {
    pairs: usize,
    frequencies: DeviceBuffer, // (pairs) of f32
}

impl CudaRope {
    /// Uploads them.
    pub(crate) fn new(cuda: &CudaDevice, frequencies: &[f32]) -> Result<Self, CudaError> {
        Ok(Self { pairs: frequencies.len(), frequencies: DeviceBuffer::upload(cuda, frequencies)? })
    }
}

/// The product `x W + b` with queries in its first columns, and keys and values in `kv`:
/// [`linear`](linear()), then [`place`], in one kernel where that can be. What the other columns
/// hold is then nobody's to read.
pub(crate) fn project_qkv(
    x: &CudaTensor,
    map: &CudaLinear,
    by: CudaQkvTransform<'_>,
    (kv, layer): (&mut CudaKv, usize),
    seats: CudaSlotMapping<'_>,
) -> Result<CudaTensor, CudaError> {
    let cast = x.cast_operand(map)?;
    let x = cast.as_ref().unwrap_or(x);
    if by.qk_norms.is_none() && by.rope.is_none() && hopper_gemm::supports_qkv(x, map, kv) {
        let qkv = CudaTensor::uninit(x.cuda(), x.rows(), map.outputs(), kv.dtype())?;
        hopper_gemm::store_qkv(
            x,
            map,
            hopper_gemm::QkvDestination { kv, layer, heads: by.heads, to: seats.slots },
            &qkv,
        )?;
        return Ok(qkv);
    }
    let mut qkv = linear(x, map, Activation::None, kv.dtype())?;
    rope_and_cache(&mut qkv, by, kv, layer, seats)?;
    Ok(qkv)
}

/// Turns the product qkv (rows, (heads + 2 kv_heads) * head_dim) into queries, in place, and keys
/// and values, in `kv`.
pub(crate) fn rope_and_cache(
    qkv: &mut CudaTensor,
    by: CudaQkvTransform<'_>,
    kv: &mut CudaKv,
    layer: usize,
    seats: CudaSlotMapping<'_>,
) -> Result<(), CudaError> {
    let (rows, cols, dim) = (qkv.rows(), qkv.cols(), kv.head_dim());
    assert_eq!(
        cols,
        (by.heads + 2 * kv.kv_heads()) * dim,
        "place: rows of {cols} are not {} heads of {dim}",
        by.heads
    );
    assert_eq!(
        (rows, rows),
        (seats.positions.len(), seats.slots.len()),
        "place: positions and slots for {rows} rows"
    );
    assert!(seats.slots.all_below(kv.slots()), "place: a slot beyond {}", kv.slots());
    assert_eq!(qkv.dtype(), kv.dtype(), "place: queries and keys of unlike formats");
    let (keys, values) = kv.layer(layer);
    let (heads, kv_heads) = (int(by.heads), int(kv.kv_heads()));
    let per_vector = 16 / qkv.dtype().size();
    if by.qk_norms.is_none() && by.rope.is_none() && dim.is_multiple_of(per_vector) {
        let width = dim / per_vector;
        let grid = LaunchConfig::per_row(rows, kv.kv_heads() * width);
        let (stride, width) = (int(cols / per_vector), int(width));
        let arguments = kernel_args![
            qkv.pointer(),
            stride,
            heads,
            kv_heads,
            width,
            keys,
            values,
            seats.slots.pointer(),
            int(kv.slots())
        ];
        // SAFETY: qkv is (rows, cols) and its rows are whole vectors; slots were checked.
        return unsafe { qkv.cuda().launch("place_plain", grid, arguments) };
    }
    let frequencies = by.rope.map_or(0, |r| {
        assert_eq!(2 * r.pairs, dim, "place: {} pairs in heads of {dim}", r.pairs);
        r.frequencies.pointer()
    });
    let (q_scale, k_scale, eps) = by.qk_norms.map_or((0, 0, 0.0), |(q, k)| {
        assert!(
            q.is_rms() && k.is_rms() && q.eps() == k.eps(),
            "place: heads take a root-mean-square norm"
        );
        assert_eq!((q.width(), k.width()), (dim, dim), "place: norms of another width than {dim}");
        (q.scale(), k.scale(), q.eps())
    });
    let (q_at, to, places) = (qkv.pointer(), seats.slots.pointer(), seats.positions.pointer());
    let (cols, width, slots) = (int(cols), int(dim), int(kv.slots()));
    let grid = LaunchConfig::per_row(rows, 256);
    if qkv.dtype() == CudaDtype::Bf16 && dim <= 128 && dim.is_multiple_of(4) {
        let arguments = kernel_args![
            q_at,
            cols,
            heads,
            kv_heads,
            width,
            frequencies,
            places,
            q_scale,
            k_scale,
            eps,
            keys,
            values,
            to,
            slots
        ];
        // SAFETY: as above; frequencies and scales are as wide as a head, whose halves are whole
        // pairs.
        return unsafe { qkv.cuda().launch("place_fast", grid, arguments) };
    }
    let type_ = qkv.dtype();
    let arguments = kernel_args![
        q_at,
        type_,
        cols,
        heads,
        kv_heads,
        width,
        frequencies,
        places,
        q_scale,
        k_scale,
        eps,
        keys,
        values,
        to,
        slots
    ];
    // SAFETY: as above; frequencies and scales are as wide as a head.
    unsafe { qkv.cuda().launch("place_any", grid, arguments) }
}

/// Completes dqkv, whose first columns are the queries' gradients, with the keys' and values' from
/// the rows' slots, and turns back what was turned. Norms of heads have no backward.
pub(crate) fn rope_and_cache_backward(
    dqkv: &mut CudaTensor,
    by: CudaQkvTransform<'_>,
    grads: &CudaKvGrads,
    layer: usize,
    seats: CudaSlotMapping<'_>,
) -> Result<(), CudaError> {
    let (rows, cols, (kv_heads, dim)) = (dqkv.rows(), dqkv.cols(), grads.shape());
    assert!(by.qk_norms.is_none(), "place_backward: norms of queries and keys have no backward");
    assert_eq!(
        cols,
        (by.heads + 2 * kv_heads) * dim,
        "place_backward: rows of {cols} are not {} heads of {dim}",
        by.heads
    );
    assert_eq!(
        (rows, rows),
        (seats.positions.len(), seats.slots.len()),
        "place_backward: positions and slots for {rows} rows"
    );
    assert!(
        seats.slots.all_below(grads.slots()),
        "place_backward: a slot beyond {}",
        grads.slots()
    );
    let frequencies = by.rope.map_or(0, |r| {
        assert_eq!(2 * r.pairs, dim, "place_backward: {} pairs in heads of {dim}", r.pairs);
        r.frequencies.pointer()
    });
    let (keys, values) = grads.layer(layer);
    let (places, from) = (seats.positions.pointer(), seats.slots.pointer());
    let arguments = kernel_args![
        dqkv.pointer(),
        dqkv.dtype(),
        int(cols),
        int(by.heads),
        int(kv_heads),
        int(dim),
        frequencies,
        places,
        keys,
        values,
        from,
        int(grads.slots()),
    ];
    // SAFETY: dqkv is (rows, cols), slots were checked, frequencies are half as wide as a head.
    unsafe {
        dqkv.cuda().launch("place_backward", LaunchConfig::per_row(rows, cols / 4), arguments)
    }
}
