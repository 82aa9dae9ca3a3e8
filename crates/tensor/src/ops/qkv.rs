//! Queries, keys and values: their projection, QK norm, rotary embedding and the write to the KV
//! store.

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

/// What is done to queries and keys between their projection and attention.
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
    fn gpu(self) -> CudaQkvTransform<'a> {
        CudaQkvTransform {
            heads: self.heads,
            qk_norms: self.qk_norms.map(|(q, k)| (q.gpu(), k.gpu())),
            rope: self.rope.map(Rope::gpu),
        }
    }
}

/// The QKV projection of a layer, and what follows it.
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

/// `qkv = x W + b` of the compute dtype, then [`rope_and_cache`]: x is (rows, inputs), qkv becomes
/// (rows, (heads + 2 kv_heads) * head_dim). Only its queries, the first columns, may be read: a
/// fused kernel writes keys and values to the store alone.
pub fn project_qkv(
    device: &Device,
    x: &Tensor,
    projection: QkvProjection<'_>,
    kv: KvLayerMut<'_>,
    slot_mapping: &SlotMapping,
    qkv: &mut Tensor,
) -> Result<(), DeviceError> {
    let QkvProjection { map, transform } = projection;
    if let Backend::Cuda(_) = device.backend() {
        let KvLayerMut { store, layer } = kv;
        let (transform, slots) = (transform.gpu(), slot_mapping.gpu());
        let store = store.gpu_mut();
        *qkv = cuda::qkv::project_qkv(x.gpu(), map.gpu(), transform, store, layer, slots)?.into();
        return Ok(());
    }
    linear(device, x, map, Activation::None, OutputDtype::Compute, qkv)?;
    rope_and_cache(device, qkv, transform, kv, slot_mapping)
}

/// Normalises and rotates the queries and keys of qkv (rows, (heads + 2 kv_heads) * head_dim):
/// queries in place, keys into their slots of the store, together with the values.
pub fn rope_and_cache(
    device: &Device,
    qkv: &mut Tensor,
    transform: QkvTransform<'_>,
    kv: KvLayerMut<'_>,
    slot_mapping: &SlotMapping,
) -> Result<(), DeviceError> {
    let KvLayerMut { store, layer } = kv;
    let (heads, kv_heads, dim) = (transform.heads, store.kv_heads(), store.head_dim());
    let (cols, width) = (qkv.cols(), (heads + 2 * kv_heads) * dim);
    assert_eq!(cols, width, "rope_and_cache: rows of {cols} are not {heads} heads of {dim}");
    match device.backend() {
        Backend::Cpu(cpu) => {
            let (queries, keys) = (0..heads * dim, heads * dim..(heads + kv_heads) * dim);
            if let Some((q, k)) = transform.qk_norms {
                cpu::norm::norm_heads(cpu.isa, qkv, q.cpu(), queries);
                cpu::norm::norm_heads(cpu.isa, qkv, k.cpu(), keys);
            }
            if let Some(rope) = transform.rope {
                let positions = slot_mapping.positions.host();
                cpu::rope::rope(cpu.isa, qkv, rope, positions, heads + kv_heads, 1.0);
            }
            store.write(layer, qkv, heads * dim, slot_mapping.slots.host());
        }
        Backend::Cuda(_) => {
            let (transform, slots) = (transform.gpu(), slot_mapping.gpu());
            cuda::qkv::rope_and_cache(qkv.gpu_mut()?, transform, store.gpu_mut(), layer, slots)?
        }
    }
    Ok(())
}

/// The backward of [`rope_and_cache`]: dqkv (rows, (heads + 2 kv_heads) * head_dim), whose first
/// columns are the queries' gradients, becomes the gradient of the projection's result. The keys'
/// and values' gradients come from the rows' slots.
///
/// # Panics
/// If there are QK norms: they have no backward yet.
pub fn rope_and_cache_backward(
    device: &Device,
    dqkv: &mut Tensor,
    transform: QkvTransform<'_>,
    dkv: &KvGrads,
    layer: usize,
    slot_mapping: &SlotMapping,
) -> Result<(), DeviceError> {
    let ((kv_heads, dim), heads) = (dkv.shape(), transform.heads);
    let (cols, width) = (dqkv.cols(), (heads + 2 * kv_heads) * dim);
    assert!(transform.qk_norms.is_none(), "rope_and_cache_backward: qk norms have no backward");
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
            let (transform, slots) = (transform.gpu(), slot_mapping.gpu());
            let dqkv = dqkv.gpu_mut()?;
            cuda::qkv::rope_and_cache_backward(dqkv, transform, dkv.gpu(), layer, slots)?
        }
    }
    Ok(())
}
