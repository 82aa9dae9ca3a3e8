//! Queries, keys and values: their projection, QK norm, rotary embedding and the write to the KV
//! store.

use super::norm::add_partial_sums;
use super::{Activation, Indices, KvGrads, KvLayerMut, Linear, Normalization, OutputDtype, linear};
use crate::cuda::args::{CudaQkvTransform, CudaSlotMapping};
use crate::cuda::qkv::CudaRope;
use crate::device::Backend;
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// The rotary frequencies of a head: pair i is rotated by `position * frequencies[i]`, a product in
/// f32.
///
/// Pairs are (i, i + head_dim / 2), as in the checkpoints of Llama and Qwen.
#[derive(Debug)]
pub struct Rope {
    pub(crate) frequencies: Vec<f32>, // (head_dim / 2)
    on_gpu: Option<CudaRope>,
}

impl Rope {
    /// Copies the frequencies of a head's pairs to the device.
    pub fn new(device: &Device, frequencies: Vec<f32>) -> Result<Self, DeviceError> {
        let on_gpu = match device.backend() {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => Some(CudaRope::new(cuda, &frequencies)?),
        };
        Ok(Self { frequencies, on_gpu })
    }

    fn gpu(&self) -> &CudaRope {
        self.on_gpu.as_ref().unwrap_or_else(|| panic!("these frequencies are not on the gpu"))
    }
}

/// The operations on queries and keys between projection and attention.
#[derive(Clone, Copy, Debug)]
pub struct QkvTransform<'a> {
    /// Query heads.
    pub heads: usize,
    /// Norms of each query head and of each key head.
    pub qk_norms: Option<(&'a Normalization, &'a Normalization)>,
    /// Rotary position embedding.
    pub rope: Option<&'a Rope>,
}

impl<'a> QkvTransform<'a> {
    /// Normalizes and rotates the queries and keys of qkv on a CPU.
    fn apply(
        self,
        device: &Device,
        qkv: &mut Tensor,
        kv_heads: usize,
        dim: usize,
        slot_mapping: &SlotMapping,
    ) {
        let cols = qkv.cols();
        let width = (self.heads + 2 * kv_heads) * dim;
        assert_eq!(cols, width, "qkv: rows of {cols} are not {} heads of {dim}", self.heads);
        let Backend::Cpu(cpu) = device.backend() else { panic!("these rows are on a gpu") };
        let queries = 0..self.heads * dim;
        let keys = queries.end..(self.heads + kv_heads) * dim;
        if let Some((q, k)) = self.qk_norms {
            cpu::norm::norm_heads(cpu.isa, qkv, q.cpu(), queries);
            cpu::norm::norm_heads(cpu.isa, qkv, k.cpu(), keys);
        }
        if let Some(rope) = self.rope {
            let positions = slot_mapping.positions.host();
            cpu::rope::rope(cpu.isa, qkv, rope, positions, self.heads + kv_heads, 1.0);
        }
    }

    fn gpu(self) -> CudaQkvTransform<'a> {
        CudaQkvTransform {
            heads: self.heads,
            qk_norms: self.qk_norms.map(|(q, k)| (q.gpu(), k.gpu())),
            rope: self.rope.map(Rope::gpu),
        }
    }
}

/// The QKV projection of a layer, and the following transformation.
#[derive(Clone, Copy, Debug)]
pub struct QkvProjection<'a> {
    /// inputs -> (heads + 2 kv_heads) * head_dim
    pub map: &'a Linear,
    /// Applied to its result.
    pub transform: QkvTransform<'a>,
}

/// The position of each row of a pass in its sequence, and the slot that its keys and values are
/// stored in.
#[derive(Debug)]
pub struct SlotMapping {
    /// (rows)
    pub positions: Indices,
    /// (rows)
    pub slots: Indices,
}

impl SlotMapping {
    fn gpu(&self) -> CudaSlotMapping<'_> {
        CudaSlotMapping { positions: self.positions.gpu(), slots: self.slots.gpu() }
    }
}

/// Rows of a pass that are computed together.
#[derive(Debug)]
pub struct QkvRows<'a> {
    /// (rows, inputs)
    pub x: &'a Tensor,
    /// Positions and slots of these rows.
    pub slot_mapping: &'a SlotMapping,
    /// Becomes (rows, (heads + 2 kv_heads) * head_dim).
    pub qkv: &'a mut Tensor,
}

/// `qkv = x W + b` in the compute dtype, then [`rope_and_cache`], for all parts of a pass. Only the
/// queries of qkv, its first columns, may be read: a fused kernel writes keys and values only to
/// the store. A CPU computes the parts in parallel.
pub fn project_qkv(
    device: &Device,
    mut parts: Vec<QkvRows<'_>>,
    projection: QkvProjection<'_>,
    kv: KvLayerMut<'_>,
) -> Result<(), DeviceError> {
    let QkvProjection { map, transform } = projection;
    let KvLayerMut { store, layer } = kv;
    if let Backend::Cuda(_) = device.backend() {
        for QkvRows { x, slot_mapping, qkv } in parts {
            let map = map.gpu();
            let transform = transform.gpu();
            let slots = slot_mapping.gpu();
            let store = store.gpu_mut();
            *qkv = cuda::qkv::project_qkv(x.gpu(), map, transform, store, layer, slots)?.into();
        }
        return Ok(());
    }
    let kv_heads = store.kv_heads();
    let dim = store.head_dim();
    device.for_each(&mut parts, |QkvRows { x, slot_mapping, qkv }| {
        linear(device, x, map, Activation::None, OutputDtype::Compute, qkv)?;
        transform.apply(device, qkv, kv_heads, dim, slot_mapping);
        Ok(())
    })?;
    let rows: Vec<_> = parts.iter().map(|part| (&*part.qkv, part.slot_mapping)).collect();
    store.write(layer, &rows, transform.heads * dim);
    Ok(())
}

/// Normalizes and rotates the queries and keys of qkv (rows, (heads + 2 kv_heads) * head_dim):
/// queries in place, keys into their slots of the store, together with the values.
pub fn rope_and_cache(
    device: &Device,
    qkv: &mut Tensor,
    transform: QkvTransform<'_>,
    kv: KvLayerMut<'_>,
    slot_mapping: &SlotMapping,
) -> Result<(), DeviceError> {
    let KvLayerMut { store, layer } = kv;
    let heads = transform.heads;
    let kv_heads = store.kv_heads();
    let dim = store.head_dim();
    let cols = qkv.cols();
    let width = (heads + 2 * kv_heads) * dim;
    assert_eq!(cols, width, "rope_and_cache: rows of {cols} are not {heads} heads of {dim}");
    match device.backend() {
        Backend::Cpu(_) => {
            transform.apply(device, qkv, kv_heads, dim, slot_mapping);
            store.write(layer, &[(&*qkv, slot_mapping)], heads * dim);
        }
        Backend::Cuda(_) => {
            let transform = transform.gpu();
            let slots = slot_mapping.gpu();
            cuda::qkv::rope_and_cache(qkv.gpu_mut()?, transform, store.gpu_mut(), layer, slots)?
        }
    }
    Ok(())
}

/// The backward of [`rope_and_cache`]: dqkv (rows, (heads + 2 kv_heads) * head_dim), whose first
/// columns are the queries' gradients, becomes the gradient of the projection's result. The keys'
/// and values' gradients come from the rows' slots. With QK norms it becomes the gradient of their
/// results, the input of [`qk_norm_backward`].
pub fn rope_and_cache_backward(
    device: &Device,
    dqkv: &mut Tensor,
    transform: QkvTransform<'_>,
    dkv: &KvGrads,
    layer: usize,
    slot_mapping: &SlotMapping,
) -> Result<(), DeviceError> {
    let (kv_heads, dim) = dkv.shape();
    let heads = transform.heads;
    let cols = dqkv.cols();
    let width = (heads + 2 * kv_heads) * dim;
    assert_eq!(cols, width, "rope_and_cache_backward: rows of {cols} are not heads of {dim}");
    match device.backend() {
        Backend::Cpu(cpu) => {
            dkv.read(layer, slot_mapping.slots.host(), heads * dim, dqkv);
            if let Some(rope) = transform.rope {
                let positions = slot_mapping.positions.host();
                cpu::rope::rope(cpu.isa, dqkv, rope, positions, heads + kv_heads, -1.0);
            }
        }
        Backend::Cuda(_) => {
            let transform = transform.gpu();
            let slots = slot_mapping.gpu();
            let dqkv = dqkv.gpu_mut()?;
            cuda::qkv::rope_and_cache_backward(dqkv, transform, dkv.gpu(), layer, slots)?
        }
    }
    Ok(())
}

/// The backward of the QK norms: the queries and keys of dqkv (rows, (heads + 2 kv_heads) *
/// head_dim), which have the gradients of the norms' results, become the gradients of their inputs,
/// and those of the scales of queries and of keys are added to dscales (1, head_dim). qkv, of the
/// same shape, is the projection's result before the norms.
///
/// # Panics
/// If there are no QK norms.
pub fn qk_norm_backward(
    device: &Device,
    qkv: &Tensor,
    transform: QkvTransform<'_>,
    dqkv: &mut Tensor,
    dscales: [&mut Tensor; 2],
) -> Result<(), DeviceError> {
    let Some(norms) = transform.qk_norms else { panic!("qk_norm_backward: there are no norms") };
    let heads = transform.heads;
    let dim = norms.0.width();
    let (rows, cols) = (qkv.rows(), qkv.cols());
    assert_eq!((dqkv.rows(), dqkv.cols()), (rows, cols), "qk_norm_backward: shapes differ");
    let kv_heads = (cols / dim).saturating_sub(heads) / 2;
    assert_eq!(
        (cols, norms.1.width()),
        ((heads + 2 * kv_heads) * dim, dim),
        "qk_norm_backward: rows of {cols} are not {heads} heads of {dim}"
    );
    assert!(
        dscales.iter().all(|d| (d.rows(), d.cols()) == (1, dim)),
        "qk_norm_backward: scales that are not {dim} wide"
    );
    match device.backend() {
        Backend::Cpu(cpu) => {
            let columns = [0..heads * dim, heads * dim..(heads + kv_heads) * dim];
            for ((norm, columns), dscale) in
                [norms.0, norms.1].into_iter().zip(columns).zip(dscales)
            {
                let partial =
                    cpu::norm::norm_heads_backward(cpu.isa, qkv, norm.cpu(), columns, dqkv);
                add_partial_sums(partial, dscale, None);
            }
        }
        Backend::Cuda(_) => {
            let [dq, dk] = dscales;
            let dscales = [dq.gpu_mut()?, dk.gpu_mut()?];
            cuda::qkv::qk_norm_backward(qkv.gpu(), transform.gpu(), dqkv.gpu_mut()?, dscales)?
        }
    }
    Ok(())
}
