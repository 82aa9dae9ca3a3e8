//! Between the qkv product and attention: q/k normalisation, rotary positions, keys and values into
//! their slots.

use super::{Activation, Indices, KvGrads, KvStore, Linear, Normalization, OutputDtype, linear};
use crate::cuda::qkv::CudaRope;
use crate::device::Backend;
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// The rotation frequencies of a head: pair i turns by `position * frequencies[i]`, a product in
/// single precision.
///
/// Pairs are (i, i + head_dim / 2), as Llama's and Qwen's checkpoints have them.
#[derive(Debug)]
pub struct Rope {
    pub(crate) frequencies: Vec<f32>, // (head_dim / 2)
    on_gpu: Option<CudaRope>,
}

impl Rope {
    /// From the frequencies of a head's pairs.
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

/// What an architecture does to queries and keys before they meet.
#[derive(Clone, Copy, Debug)]
pub struct QkvTransform<'a> {
    /// Query heads.
    pub heads: usize,
    /// Norms of each query head and each key head.
    pub qk_norms: Option<(&'a Normalization, &'a Normalization)>,
    /// Rotary positions.
    pub rope: Option<&'a Rope>,
}

impl<'a> QkvTransform<'a> {
    fn gpu(self) -> cuda::args::CudaQkvTransform<'a> {
        cuda::args::CudaQkvTransform {
            heads: self.heads,
            qk_norms: self.qk_norms.map(|(q, k)| (q.gpu(), k.gpu())),
            rope: self.rope.map(Rope::gpu),
        }
    }
}

/// Rows of a pass: where each is in its sequence, and the slot that takes its keys and values.
#[derive(Debug)]
pub struct SlotMapping {
    /// (rows)
    pub positions: Indices,
    /// (rows)
    pub slots: Indices,
}

impl SlotMapping {
    fn gpu(&self) -> cuda::args::CudaSlotMapping<'_> {
        cuda::args::CudaSlotMapping { positions: self.positions.gpu(), slots: self.slots.gpu() }
    }
}

/// `qkv = x W + b` as an operand, then [`place`]: x is (rows, inputs), qkv becomes (rows, (heads +
/// 2 kv_heads) * head_dim). Its queries, the first columns, are what may be read; keys and values
/// are in the store.
pub fn project_qkv(
    device: &Device,
    x: &Tensor,
    (map, by): (&Linear, QkvTransform<'_>),
    (kv, layer): (&mut KvStore, usize),
    seats: &SlotMapping,
    qkv: &mut Tensor,
) -> Result<(), DeviceError> {
    if let Backend::Cuda(_) = device.backend() {
        *qkv = cuda::qkv::project_qkv(
            x.gpu(),
            map.gpu(),
            by.gpu(),
            (kv.gpu_mut(), layer),
            seats.gpu(),
        )?
        .into();
        return Ok(());
    }
    linear(device, x, map, (Activation::None, OutputDtype::Compute), qkv)?;
    rope_and_cache(device, qkv, by, kv, layer, seats)
}

/// Turns qkv (rows, (heads + 2 kv_heads) * head_dim) into queries, in place, and keys and values,
/// in the store.
pub fn rope_and_cache(
    device: &Device,
    qkv: &mut Tensor,
    by: QkvTransform<'_>,
    kv: &mut KvStore,
    layer: usize,
    seats: &SlotMapping,
) -> Result<(), DeviceError> {
    let dim = kv.head_dim();
    let width = (by.heads + 2 * kv.kv_heads()) * dim;
    assert_eq!(
        qkv.cols(),
        width,
        "place: rows of {} are not {} heads of {dim}",
        qkv.cols(),
        by.heads
    );
    match device.backend() {
        Backend::Cpu(cpu) => {
            if let Some((q, k)) = by.qk_norms {
                cpu::norm::norm_heads(cpu.isa, qkv, q.cpu(), 0..by.heads * dim);
                cpu::norm::norm_heads(
                    cpu.isa,
                    qkv,
                    k.cpu(),
                    by.heads * dim..(by.heads + kv.kv_heads()) * dim,
                );
            }
            if let Some(rope) = by.rope {
                cpu::rope::rope(
                    cpu.isa,
                    qkv,
                    rope,
                    seats.positions.host(),
                    (by.heads + kv.kv_heads(), 1.0),
                );
            }
            kv.write(layer, qkv, by.heads * dim, seats.slots.host());
        }
        Backend::Cuda(_) => {
            cuda::qkv::rope_and_cache(qkv.gpu_mut()?, by.gpu(), kv.gpu_mut(), layer, seats.gpu())?
        }
    }
    Ok(())
}

/// Turns dqkv (rows, (heads + 2 kv_heads) * head_dim), whose first columns are the queries'
/// gradients, into what reaches the product before [`place`]: the keys' and values' gradients are
/// taken from the rows' slots.
///
/// # Panics
/// If queries and keys are normalised: that has no backward yet.
pub fn rope_and_cache_backward(
    device: &Device,
    dqkv: &mut Tensor,
    by: QkvTransform<'_>,
    dkv: &KvGrads,
    layer: usize,
    seats: &SlotMapping,
) -> Result<(), DeviceError> {
    let (kv_heads, dim) = dkv.shape();
    assert!(by.qk_norms.is_none(), "place_backward: norms of queries and keys have no backward");
    assert_eq!(
        dqkv.cols(),
        (by.heads + 2 * kv_heads) * dim,
        "place_backward: rows of {} are not heads of {dim}",
        dqkv.cols()
    );
    match device.backend() {
        Backend::Cpu(cpu) => {
            dkv.read(layer, seats.slots.host(), by.heads * dim, dqkv);
            if let Some(rope) = by.rope {
                cpu::rope::rope(
                    cpu.isa,
                    dqkv,
                    rope,
                    seats.positions.host(),
                    (by.heads + kv_heads, -1.0),
                );
            }
        }
        Backend::Cuda(_) => cuda::qkv::rope_and_cache_backward(
            dqkv.gpu_mut()?,
            by.gpu(),
            dkv.gpu(),
            layer,
            seats.gpu(),
        )?,
    }
    Ok(())
}
