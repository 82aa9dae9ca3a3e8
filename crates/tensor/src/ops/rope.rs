//! Between the qkv product and attention: q/k normalisation, rotary positions, keys and values into their slots.

use super::{Activation, Format, Indices, KvGrads, KvStore, Linear, Norm, linear};
use crate::cuda::rope::DeviceRope;
use crate::device::Kind;
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// The rotation frequencies of a head: pair i turns by `position * frequencies[i]`, a product in single precision.
///
/// Pairs are (i, i + head_dim / 2), as Llama's and Qwen's checkpoints have them.
#[derive(Debug)]
pub struct Rope {
    pub(crate) frequencies: Vec<f32>, // (head_dim / 2)
    on_gpu: Option<DeviceRope>,
}

impl Rope {
    /// From the frequencies of a head's pairs.
    pub fn new(device: &Device, frequencies: Vec<f32>) -> Result<Self, DeviceError> {
        let on_gpu = match device.kind() {
            Kind::Cpu(_) => None,
            Kind::Cuda(cuda) => Some(DeviceRope::new(cuda, &frequencies)?),
        };
        Ok(Self { frequencies, on_gpu })
    }

    fn gpu(&self) -> &DeviceRope {
        self.on_gpu.as_ref().unwrap_or_else(|| panic!("these frequencies are not on the gpu"))
    }
}

/// What an architecture does to queries and keys before they meet.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Query heads.
    pub heads: usize,
    /// Norms of each query head and each key head.
    pub norms: Option<(&'a Norm, &'a Norm)>,
    /// Rotary positions.
    pub rope: Option<&'a Rope>,
}

impl<'a> Place<'a> {
    fn gpu(self) -> cuda::rope::Place<'a> {
        cuda::rope::Place {
            heads: self.heads,
            norms: self.norms.map(|(q, k)| (q.gpu(), k.gpu())),
            rope: self.rope.map(Rope::gpu),
        }
    }
}

/// Rows of a pass: where each is in its sequence, and the slot that takes its keys and values.
#[derive(Debug)]
pub struct Seats {
    /// (rows)
    pub positions: Indices,
    /// (rows)
    pub slots: Indices,
}

impl Seats {
    fn gpu(&self) -> cuda::rope::Seats<'_> {
        cuda::rope::Seats { positions: self.positions.gpu(), slots: self.slots.gpu() }
    }
}

/// `qkv = x W + b` as an operand, then [`place`]: x is (rows, inputs), qkv becomes (rows, (heads + 2 kv_heads) * head_dim).
/// Its queries, the first columns, are what may be read; keys and values are in the store.
pub fn project(
    device: &Device,
    x: &Tensor,
    (map, by): (&Linear, Place<'_>),
    (kv, layer): (&mut KvStore, usize),
    seats: &Seats,
    qkv: &mut Tensor,
) -> Result<(), DeviceError> {
    if let Kind::Cuda(_) = device.kind() {
        *qkv = cuda::rope::project(x.array(), map.gpu(), by.gpu(), (kv.gpu_mut(), layer), seats.gpu())?.into();
        return Ok(());
    }
    linear(device, x, map, (Activation::None, Format::Operand), qkv)?;
    place(device, qkv, by, kv, layer, seats)
}

/// Turns qkv (rows, (heads + 2 kv_heads) * head_dim) into queries, in place, and keys and values, in the store.
pub fn place(
    device: &Device,
    qkv: &mut Tensor,
    by: Place<'_>,
    kv: &mut KvStore,
    layer: usize,
    seats: &Seats,
) -> Result<(), DeviceError> {
    let dim = kv.head_dim();
    let width = (by.heads + 2 * kv.kv_heads()) * dim;
    assert_eq!(qkv.cols(), width, "place: rows of {} are not {} heads of {dim}", qkv.cols(), by.heads);
    match device.kind() {
        Kind::Cpu(cpu) => {
            if let Some((q, k)) = by.norms {
                cpu::norm::norm_heads(cpu.isa, qkv, q.cpu(), 0..by.heads * dim);
                cpu::norm::norm_heads(cpu.isa, qkv, k.cpu(), by.heads * dim..(by.heads + kv.kv_heads()) * dim);
            }
            if let Some(rope) = by.rope {
                cpu::rope::rope(cpu.isa, qkv, rope, seats.positions.host(), (by.heads + kv.kv_heads(), 1.0));
            }
            kv.write(layer, qkv, by.heads * dim, seats.slots.host());
        }
        Kind::Cuda(_) => cuda::rope::place(qkv.array_mut()?, by.gpu(), kv.gpu_mut(), layer, seats.gpu())?,
    }
    Ok(())
}

/// Turns dqkv (rows, (heads + 2 kv_heads) * head_dim), whose first columns are the queries' gradients, into what reaches the
/// product before [`place`]: the keys' and values' gradients are taken from the rows' slots.
///
/// # Panics
/// If queries and keys are normalised: that has no backward yet.
pub fn place_backward(
    device: &Device,
    dqkv: &mut Tensor,
    by: Place<'_>,
    dkv: &KvGrads,
    layer: usize,
    seats: &Seats,
) -> Result<(), DeviceError> {
    let (kv_heads, dim) = dkv.shape();
    assert!(by.norms.is_none(), "place_backward: norms of queries and keys have no backward");
    assert_eq!(dqkv.cols(), (by.heads + 2 * kv_heads) * dim, "place_backward: rows of {} are not heads of {dim}", dqkv.cols());
    match device.kind() {
        Kind::Cpu(cpu) => {
            dkv.read(layer, seats.slots.host(), by.heads * dim, dqkv);
            if let Some(rope) = by.rope {
                cpu::rope::rope(cpu.isa, dqkv, rope, seats.positions.host(), (by.heads + kv_heads, -1.0));
            }
        }
        Kind::Cuda(_) => cuda::rope::place_backward(dqkv.array_mut()?, by.gpu(), dkv.gpu(), layer, seats.gpu())?,
    }
    Ok(())
}
