//! Keys and values in slots, and attention over spans of them.
//!
//! A slot holds the keys and values of one position in every layer. A position sees a list of spans
//! of slots: a shared prefix, then whatever is its row's own. Forked rows therefore share a prefix
//! by naming the same slots; nothing is copied and nothing is padded.

use std::borrow::Cow;

use crate::cpu::attention as kernel;
use crate::device::Backend;
use crate::{Device, DeviceError, Tensor, cuda};

/// Keys and values of a number of positions in every layer.
#[derive(Debug)]
pub struct KvStore(KvStorage);

#[derive(Debug)]
enum KvStorage {
    Cpu(CpuKv),
    Cuda(cuda::attention::CudaKv),
}

/// The processor's keys and values.
#[derive(Debug)]
pub(crate) struct CpuKv {
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) slots: usize,
    pub(crate) layers: Vec<CpuLayerKv>,
}

/// One layer's keys and values in the layout that the kernels read, or their gradients.
#[derive(Debug)]
pub(crate) struct CpuLayerKv {
    pub(crate) keys: Vec<f32>,   // (kv_heads, slots / BLOCK, head_dim, BLOCK)
    pub(crate) values: Vec<f32>, // (kv_heads, slots, head_dim)
}

impl KvStore {
    /// A span that starts at a multiple of this is read fastest.
    pub const ALIGNMENT: usize = kernel::BLOCK;

    /// An empty store.
    pub fn new(
        device: &Device,
        layers: usize,
        (kv_heads, head_dim): (usize, usize),
        slots: usize,
    ) -> Result<Self, DeviceError> {
        let slots = slots.next_multiple_of(kernel::BLOCK);
        Ok(Self(match device.backend() {
            Backend::Cpu(_) => {
                let size = kv_heads * head_dim * slots;
                let layers = (0..layers)
                    .map(|_| CpuLayerKv { keys: vec![0.0; size], values: vec![0.0; size] })
                    .collect();
                KvStorage::Cpu(CpuKv { kv_heads, head_dim, slots, layers })
            }
            Backend::Cuda(cuda) => KvStorage::Cuda(cuda::attention::CudaKv::new(
                cuda, layers, kv_heads, head_dim, slots,
            )?),
        }))
    }

    /// How many positions fit.
    pub fn slots(&self) -> usize {
        match &self.0 {
            KvStorage::Cpu(kv) => kv.slots,
            KvStorage::Cuda(kv) => kv.slots(),
        }
    }

    /// The store, if it is on a GPU.
    pub(crate) fn on_gpu(&self) -> Option<&cuda::attention::CudaKv> {
        match &self.0 {
            KvStorage::Cpu(_) => None,
            KvStorage::Cuda(kv) => Some(kv),
        }
    }

    pub(crate) fn kv_heads(&self) -> usize {
        match &self.0 {
            KvStorage::Cpu(kv) => kv.kv_heads,
            KvStorage::Cuda(kv) => kv.kv_heads(),
        }
    }

    pub(crate) fn head_dim(&self) -> usize {
        match &self.0 {
            KvStorage::Cpu(kv) => kv.head_dim,
            KvStorage::Cuda(kv) => kv.head_dim(),
        }
    }

    /// Memory that a slot takes in a model of this shape.
    pub fn bytes_per_slot(
        device: &Device,
        layers: usize,
        (kv_heads, head_dim): (usize, usize),
    ) -> usize {
        match device.backend() {
            Backend::Cpu(_) => layers * kv_heads * head_dim * 2 * size_of::<f32>(),
            Backend::Cuda(cuda) => {
                cuda::attention::CudaKv::bytes_per_slot(cuda, layers, kv_heads, head_dim)
            }
        }
    }

    /// One layer of it, to be read.
    pub fn layer(&self, layer: usize) -> KvLayer<'_> {
        KvLayer { store: self, layer }
    }

    /// Stores, for each row of x, its keys (from column `first` on) and values (right after them)
    /// into that row's slot.
    pub(crate) fn write(&mut self, layer: usize, x: &Tensor, first: usize, slots: &[u32]) {
        let KvStorage::Cpu(kv) = &mut self.0 else { panic!("this store is on a gpu") };
        let width = kv.kv_heads * kv.head_dim;
        assert_eq!(x.rows(), slots.len(), "kv write: {} rows into {} slots", x.rows(), slots.len());
        assert!(
            first + 2 * width <= x.cols(),
            "kv write: keys and values of {width} do not fit {}",
            x.cols()
        );
        assert!(
            slots.iter().all(|&s| (s as usize) < kv.slots),
            "kv write: a slot beyond {}",
            kv.slots
        );
        kernel::write(kv, layer, x, first, slots);
    }

    pub(crate) fn gpu_mut(&mut self) -> &mut cuda::attention::CudaKv {
        match &mut self.0 {
            KvStorage::Cuda(kv) => kv,
            KvStorage::Cpu(_) => panic!("this store is not on the gpu"),
        }
    }
}

/// A layer of a store.
#[derive(Clone, Copy, Debug)]
pub struct KvLayer<'a> {
    store: &'a KvStore,
    layer: usize,
}

/// A run of neighbouring slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first slot.
    pub start: u32,
    /// How many.
    pub len: u32,
}

/// Which slots each row sees, in the order of their positions.
#[derive(Clone, Debug, Default)]
pub struct AttentionSpans {
    pub(crate) spans: Vec<Span>,
    pub(crate) ends: Vec<usize>, // per row: where its spans end
}

impl AttentionSpans {
    /// Nobody yet, with room for so many rows that see two spans each, which most do.
    pub fn with_capacity(rows: usize) -> Self {
        Self { spans: Vec::with_capacity(2 * rows), ends: Vec::with_capacity(rows) }
    }

    /// Adds a row that sees `spans`.
    pub fn push(&mut self, spans: impl IntoIterator<Item = Span>) {
        self.spans.extend(spans.into_iter().filter(|s| s.len > 0));
        self.ends.push(self.spans.len());
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.ends.len()
    }

    /// The rows `picked`, in that order.
    pub fn select(&self, picked: impl IntoIterator<Item = usize>) -> Self {
        let mut out = Self::default();
        picked.into_iter().for_each(|r| out.push(self.row_spans(r).iter().copied()));
        out
    }

    /// No span goes beyond this slot.
    pub fn end_slot(&self) -> usize {
        self.spans.iter().map(|s| s.start as usize + s.len as usize).max().unwrap_or(0)
    }

    /// What row `r` sees.
    pub(crate) fn row_spans(&self, r: usize) -> &[Span] {
        let start = if r == 0 { 0 } else { self.ends[r - 1] };
        &self.spans[start..self.ends[r]]
    }
}

/// [`Attend`] where the device can read it.
#[derive(Debug)]
pub struct AttentionMetadata<'a> {
    spans: Cow<'a, AttentionSpans>,
    on_gpu: Option<cuda::attention::CudaAttentionMetadata>,
}

impl<'a> AttentionMetadata<'a> {
    /// Brings it to the device.
    pub fn new(device: &Device, attend: Cow<'a, AttentionSpans>) -> Result<Self, DeviceError> {
        let on_gpu = match device.backend() {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => {
                let of = |r: usize| attend.row_spans(r).iter().map(|s| (s.start, s.len));
                Some(cuda::attention::CudaAttentionMetadata::new(cuda, attend.rows(), of)?)
            }
        };
        Ok(Self { spans: attend, on_gpu })
    }
}

/// Softmax attention: `out[r, h] = sum_j softmax_j(q[r, h] . k_j / sqrt(head_dim)) v_j` over the
/// slots that row r sees.
///
/// The first `heads * head_dim` columns of q are the queries; out becomes (rows, heads * head_dim).
/// Query heads share key heads in equal groups of neighbours. Every row must see at least one slot.
pub fn attention(
    device: &Device,
    q: &Tensor,
    kv: KvLayer<'_>,
    heads: usize,
    metadata: &AttentionMetadata<'_>,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    let KvLayer { store, layer } = kv;
    let (attend, dim) = (&*metadata.spans, store.head_dim());
    assert_eq!(
        q.rows(),
        attend.rows(),
        "attention: {} rows, views for {}",
        q.rows(),
        attend.rows()
    );
    assert!(
        heads.is_multiple_of(store.kv_heads()),
        "attention: {heads} query heads over {} key heads",
        store.kv_heads()
    );
    assert!(heads * dim <= q.cols(), "attention: {heads} heads of {dim} do not fit {}", q.cols());
    match (device.backend(), &store.0, &metadata.on_gpu) {
        (Backend::Cpu(cpu), KvStorage::Cpu(kv), _) => {
            let inside = |s: &Span| s.start as usize + s.len as usize <= kv.slots;
            assert!(attend.spans.iter().all(inside), "attention: a span beyond {} slots", kv.slots);
            out.reshape(q.rows(), heads * dim);
            kernel::attention(
                cpu.isa,
                q,
                kv,
                &kernel::AttentionCall { layer, heads, spans: attend },
                out,
            );
        }
        (Backend::Cuda(_), KvStorage::Cuda(kv), Some(views)) => {
            *out = cuda::attention::attention(q.gpu(), kv, layer, heads, views)?.into();
        }
        _ => panic!("attention: the store or the views are not on the device"),
    }
    Ok(())
}

/// Gradients of all keys and values of a store, summed over whatever saw them. In single precision.
#[derive(Debug)]
pub struct KvGrads(KvGradStorage);

#[derive(Debug)]
enum KvGradStorage {
    Cpu(CpuKv), // keys and values both (kv_heads, slots, head_dim)
    Cuda(cuda::attention::CudaKvGrads),
}

impl KvGrads {
    /// No gradients yet, for a store.
    pub fn zeros(device: &Device, like: &KvStore) -> Result<Self, DeviceError> {
        Ok(Self(match (device.backend(), &like.0) {
            (Backend::Cpu(_), KvStorage::Cpu(kv)) => {
                let empty = |l: &CpuLayerKv| CpuLayerKv {
                    keys: vec![0.0; l.keys.len()],
                    values: vec![0.0; l.values.len()],
                };
                KvGradStorage::Cpu(CpuKv { layers: kv.layers.iter().map(empty).collect(), ..*kv })
            }
            (Backend::Cuda(cuda), KvStorage::Cuda(kv)) => {
                KvGradStorage::Cuda(cuda::attention::CudaKvGrads::zeros(cuda, kv)?)
            }
            _ => panic!("gradients: the store is not on the device"),
        }))
    }

    /// Forgets all gradients.
    pub fn clear(&mut self, device: &Device) -> Result<(), DeviceError> {
        match (device.backend(), &mut self.0) {
            (Backend::Cpu(_), KvGradStorage::Cpu(grads)) => {
                for layer in &mut grads.layers {
                    layer.keys.fill(0.0);
                    layer.values.fill(0.0);
                }
            }
            (Backend::Cuda(_), KvGradStorage::Cuda(grads)) => grads.clear()?,
            _ => panic!("gradients: not on the device"),
        }
        Ok(())
    }

    /// Writes each slot's gradients into a row, the keys' from column `first` on and the values'
    /// right after them.
    pub(crate) fn read(&self, layer: usize, slots: &[u32], first: usize, x: &mut Tensor) {
        let KvGradStorage::Cpu(grads) = &self.0 else { panic!("these gradients are on a gpu") };
        let (dim, layer) = (grads.head_dim, &grads.layers[layer]);
        assert_eq!(
            x.rows(),
            slots.len(),
            "gradients: {} rows from {} slots",
            x.rows(),
            slots.len()
        );
        assert!(
            slots.iter().all(|&s| (s as usize) < grads.slots),
            "gradients: a slot beyond {}",
            grads.slots
        );
        for (r, &slot) in slots.iter().enumerate() {
            let (keys, values) = x.row_mut(r)[first..].split_at_mut(grads.kv_heads * dim);
            for (to, from) in [(keys, &layer.keys), (values, &layer.values)] {
                let heads = to.chunks_exact_mut(dim).enumerate();
                heads.for_each(|(h, to)| {
                    to.copy_from_slice(&from[(h * grads.slots + slot as usize) * dim..][..dim])
                });
            }
        }
    }

    pub(crate) fn gpu(&self) -> &cuda::attention::CudaKvGrads {
        match &self.0 {
            KvGradStorage::Cuda(grads) => grads,
            KvGradStorage::Cpu(_) => panic!("these gradients are not on the gpu"),
        }
    }

    /// Key heads and their width.
    pub(crate) fn shape(&self) -> (usize, usize) {
        match &self.0 {
            KvGradStorage::Cpu(grads) => (grads.kv_heads, grads.head_dim),
            KvGradStorage::Cuda(grads) => grads.shape(),
        }
    }
}

/// What [`attention`] was given and returned, and what reaches its result.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBackward<'a> {
    /// The queries, as [`attention`] took them.
    pub q: &'a Tensor,
    /// The keys and values.
    pub kv: KvLayer<'a>,
    /// Query heads.
    pub heads: usize,
    /// What each row sees.
    pub metadata: &'a AttentionMetadata<'a>,
    /// What [`attention`] returned. (rows, heads * head_dim)
    pub out: &'a Tensor,
    /// What reaches it. (rows, heads * head_dim)
    pub dout: &'a Tensor,
}

/// Adds to the gradients of every key and value that a row sees, and begins dqkv (rows, (heads + 2
/// kv_heads) * head_dim), an operand: its first columns become the queries' gradients, the rest is
/// for [`place_backward`](super::place_backward).
pub fn attention_backward(
    device: &Device,
    of: AttentionBackward<'_>,
    dkv: &mut KvGrads,
    dqkv: &mut Tensor,
) -> Result<(), DeviceError> {
    let KvLayer { store, layer } = of.kv;
    let (attend, heads, dim, kv_heads) =
        (&*of.metadata.spans, of.heads, store.head_dim(), store.kv_heads());
    let rows = attend.rows();
    assert_eq!(of.q.rows(), rows, "attention_backward: {} rows, views for {rows}", of.q.rows());
    assert!(
        heads.is_multiple_of(kv_heads),
        "attention_backward: {heads} query heads over {kv_heads} key heads"
    );
    assert!(
        heads * dim <= of.q.cols(),
        "attention_backward: {heads} heads of {dim} do not fit {}",
        of.q.cols()
    );
    for x in [of.out, of.dout] {
        assert_eq!(
            (x.rows(), x.cols()),
            (rows, heads * dim),
            "attention_backward: {heads} heads of {dim} for {rows} rows"
        );
    }
    match (device.backend(), &store.0, &mut dkv.0) {
        (Backend::Cpu(cpu), KvStorage::Cpu(kv), KvGradStorage::Cpu(grads)) => {
            let shape = |kv: &CpuKv| (kv.kv_heads, kv.head_dim, kv.slots, kv.layers.len());
            assert_eq!(shape(grads), shape(kv), "attention_backward: gradients of another store");
            assert!(
                attend.end_slot() <= kv.slots,
                "attention_backward: a span beyond {} slots",
                kv.slots
            );
            dqkv.reshape(rows, (heads + 2 * kv_heads) * dim);
            let shape = kernel::AttentionCall { layer, heads, spans: attend };
            kernel::attention_backward(cpu.isa, &of, kv, &shape, (&mut grads.layers[layer], dqkv));
        }
        (Backend::Cuda(_), KvStorage::Cuda(kv), KvGradStorage::Cuda(grads)) => {
            let Some(views) = &of.metadata.on_gpu else {
                panic!("attention_backward: the views are not on the gpu")
            };
            let (q, out, dout) = (of.q.gpu(), of.out.gpu(), of.dout.gpu());
            let of = cuda::args::CudaAttentionBackward {
                q,
                kv,
                layer,
                heads,
                metadata: views,
                out,
                dout,
            };
            *dqkv = cuda::attention::attention_backward(of, grads)?.into();
        }
        _ => panic!("attention_backward: the store or the gradients are not on the device"),
    }
    Ok(())
}
