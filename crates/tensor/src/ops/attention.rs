//! The KV store, and attention over spans of its slots.
//!
//! A slot holds the keys and values of one position in every layer. A row attends to a list of
//! spans of slots: usually a prefix that it shares with other rows, followed by unshared slots.
//! Forked rows share a prefix by referring to the same slots, without copies and padding.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::SlotMapping;
use crate::cpu::attention as kernel;
use crate::cuda::attention::CudaAttentionMetadata;
use crate::device::Backend;
use crate::{Device, DeviceError, Tensor, cuda};

/// Keys and values of a fixed number of slots, in every layer.
#[derive(Debug)]
pub struct KvStore(KvStorage);

#[derive(Debug)]
enum KvStorage {
    Cpu(CpuKv),
    Cuda(cuda::attention::CudaKv),
}

/// A store on the CPU.
#[derive(Debug)]
pub(crate) struct CpuKv {
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) slots: usize,
    pub(crate) layers: Vec<CpuLayerKv>,
}

/// One layer's keys and values, or their gradients.
#[derive(Debug)]
pub(crate) struct CpuLayerKv {
    pub(crate) keys: Vec<f32>, // (slots, kv_heads, head_dim); gradients: (kv_heads, slots, head_dim)
    pub(crate) values: Vec<f32>, // the same
}

impl KvStore {
    /// Spans that start at a multiple of this are read fastest.
    pub const ALIGNMENT: usize = 16;

    /// A store of zeros; `slots` is rounded up to [`KvStore::ALIGNMENT`].
    pub fn new(
        device: &Device,
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
        slots: usize,
    ) -> Result<Self, DeviceError> {
        let slots = slots.next_multiple_of(Self::ALIGNMENT);
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

    /// The number of slots.
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

    /// The bytes of a slot in a model of this shape.
    pub fn bytes_per_slot(
        device: &Device,
        layers: usize,
        kv_heads: usize,
        head_dim: usize,
    ) -> usize {
        match device.backend() {
            Backend::Cpu(_) => layers * kv_heads * head_dim * 2 * size_of::<f32>(),
            Backend::Cuda(cuda) => {
                cuda::attention::CudaKv::bytes_per_slot(cuda, layers, kv_heads, head_dim)
            }
        }
    }

    /// Read access to a layer.
    pub fn layer(&self, layer: usize) -> KvLayer<'_> {
        KvLayer { store: self, layer }
    }

    /// Write access to a layer.
    pub fn layer_mut(&mut self, layer: usize) -> KvLayerMut<'_> {
        KvLayerMut { store: self, layer }
    }

    /// Stores each row's keys (columns `first ..` of a tensor) and values (the following columns)
    /// in that row's slot. CPU only.
    pub(crate) fn write(&mut self, layer: usize, rows: &[(&Tensor, &SlotMapping)], first: usize) {
        let KvStorage::Cpu(kv) = &mut self.0 else { panic!("this store is on a gpu") };
        let width = kv.kv_heads * kv.head_dim;
        let rows: Vec<_> = rows.iter().map(|(x, slots)| (*x, slots.slots.host())).collect();
        for (x, slots) in &rows {
            let count = x.rows();
            let cols = x.cols();
            assert_eq!(count, slots.len(), "kv write: {count} rows into {} slots", slots.len());
            assert!(
                first + 2 * width <= cols,
                "kv write: keys and values of {width} do not fit {cols}"
            );
            assert!(
                slots.iter().all(|&s| (s as usize) < kv.slots),
                "kv write: a slot beyond {}",
                kv.slots
            );
        }
        kernel::write(kv, layer, &rows, first);
    }

    pub(crate) fn gpu_mut(&mut self) -> &mut cuda::attention::CudaKv {
        match &mut self.0 {
            KvStorage::Cuda(kv) => kv,
            KvStorage::Cpu(_) => panic!("this store is not on the gpu"),
        }
    }
}

/// A layer of a [`KvStore`].
#[derive(Clone, Copy, Debug)]
pub struct KvLayer<'a> {
    store: &'a KvStore,
    layer: usize,
}

/// Write access to a layer of a [`KvStore`].
#[derive(Debug)]
pub struct KvLayerMut<'a> {
    pub(crate) store: &'a mut KvStore,
    pub(crate) layer: usize,
}

/// A range of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first slot.
    pub start: u32,
    /// The number of slots.
    pub len: u32,
}

/// The slots that each row attends to, in the order of their positions.
///
/// A row's first slots are its prefix, which it may share with other rows. A GPU sums a prefix in
/// groups of 32 slots and the rest in smaller ones, so for reproducible bits a row must always be
/// given the same prefix length, wherever the slots are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttentionSpans {
    pub(crate) spans: Vec<Span>,
    pub(crate) ends: Vec<usize>,   // per row: end of its spans
    pub(crate) prefixes: Vec<u32>, // per row: length of its prefix in slots
}

impl AttentionSpans {
    /// No rows yet, with capacity for `rows` rows of two spans each.
    pub fn with_capacity(rows: usize) -> Self {
        let ends = Vec::with_capacity(rows);
        let prefixes = Vec::with_capacity(rows);
        Self { spans: Vec::with_capacity(2 * rows), ends, prefixes }
    }

    /// Adds a row that attends to `spans`, the first of which is its prefix; empty ones are
    /// dropped.
    pub fn push(&mut self, spans: impl IntoIterator<Item = Span>) {
        let first = self.spans.len();
        self.push_with_prefix(spans, 0);
        let prefix = self.spans.get(first).map_or(0, |span| span.len);
        self.prefixes.pop();
        self.prefixes.push(prefix);
    }

    /// Adds a row whose first `prefix` slots are its prefix: whole blocks of
    /// [`KvStore::ALIGNMENT`] slots, but for the last.
    pub fn push_with_prefix(&mut self, spans: impl IntoIterator<Item = Span>, prefix: u32) {
        self.spans.extend(spans.into_iter().filter(|s| s.len > 0));
        self.ends.push(self.spans.len());
        self.prefixes.push(prefix);
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.ends.len()
    }

    /// The rows `picked`, in that order.
    pub fn select(&self, picked: impl IntoIterator<Item = usize>) -> Self {
        let mut out = Self::default();
        for r in picked {
            out.push_with_prefix(self.row_spans(r).iter().copied(), self.prefixes[r]);
        }
        out
    }

    /// One past the last slot of any span.
    pub fn end_slot(&self) -> usize {
        self.spans.iter().map(|s| s.start as usize + s.len as usize).max().unwrap_or(0)
    }

    /// The spans of row `r`.
    pub(crate) fn row_spans(&self, r: usize) -> &[Span] {
        let start = if r == 0 { 0 } else { self.ends[r - 1] };
        &self.spans[start..self.ends[r]]
    }
}

/// [`AttentionSpans`] in device memory; created once per pass, for all its layers.
#[derive(Debug)]
pub struct AttentionMetadata<'a> {
    spans: Cow<'a, AttentionSpans>,
    on_gpu: Option<CudaAttentionMetadata>,
    /// For the backward, whose kernels require a prefix to be a single span; created on demand.
    of_backward: OnceLock<CudaAttentionMetadata>,
}

impl<'a> AttentionMetadata<'a> {
    /// Copies the spans to the device.
    pub fn new(device: &Device, spans: Cow<'a, AttentionSpans>) -> Result<Self, DeviceError> {
        let on_gpu = match device.backend() {
            Backend::Cpu(_) => None,
            Backend::Cuda(cuda) => {
                let of = |r: usize| spans.row_spans(r).iter().map(|s| (s.start, s.len));
                let prefix_of = |r: usize| spans.prefixes[r];
                Some(CudaAttentionMetadata::with_prefixes(cuda, spans.rows(), of, prefix_of)?)
            }
        };
        Ok(Self { spans, on_gpu, of_backward: OnceLock::new() })
    }

    fn of_backward(&self, cuda: &cuda::CudaDevice) -> Result<&CudaAttentionMetadata, DeviceError> {
        if let Some(made) = self.of_backward.get() {
            return Ok(made);
        }
        let of = |r: usize| self.spans.row_spans(r).iter().map(|s| (s.start, s.len));
        let made = CudaAttentionMetadata::new(cuda, self.spans.rows(), of)?;
        Ok(self.of_backward.get_or_init(|| made))
    }
}

/// Softmax attention: `out[r, h] = sum_j softmax_j(q[r, h] . k_j / sqrt(head_dim)) v_j` over the
/// slots j of row r.
///
/// The first `heads * head_dim` columns of q are the queries; out becomes (rows, heads * head_dim).
/// Neighboring query heads share a key head in equal groups (GQA). Every row must have a slot.
pub fn attention(
    device: &Device,
    q: &Tensor,
    kv: KvLayer<'_>,
    heads: usize,
    metadata: &AttentionMetadata<'_>,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    let KvLayer { store, layer } = kv;
    let spans = &*metadata.spans;
    let dim = store.head_dim();
    assert_eq!(
        q.rows(),
        spans.rows(),
        "attention: {} rows, metadata for {}",
        q.rows(),
        spans.rows()
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
            assert!(spans.spans.iter().all(inside), "attention: a span beyond {} slots", kv.slots);
            out.reshape(q.rows(), heads * dim);
            kernel::attention(cpu.isa, q, kv, &kernel::AttentionCall { layer, heads, spans }, out);
        }
        (Backend::Cuda(_), KvStorage::Cuda(kv), Some(metadata)) => {
            *out = cuda::attention::attention(q.gpu(), kv, layer, heads, metadata)?.into();
        }
        _ => panic!("attention: the store or the metadata is not on the device"),
    }
    Ok(())
}

/// Gradients of all keys and values of a store in f32, summed over the rows that attend to them.
#[derive(Debug)]
pub struct KvGrads(KvGradStorage);

#[derive(Debug)]
enum KvGradStorage {
    Cpu(CpuKv), // keys and values both (kv_heads, slots, head_dim)
    Cuda(cuda::attention::CudaKvGrads),
}

impl KvGrads {
    /// Zero gradients with the shape of a store.
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

    /// Sets all gradients to zero.
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

    /// Copies the gradients of each row's slot to x: the keys' to columns `first ..`, the values'
    /// to the following columns. CPU only.
    pub(crate) fn read(&self, layer: usize, slots: &[u32], first: usize, x: &mut Tensor) {
        let KvGradStorage::Cpu(grads) = &self.0 else { panic!("these gradients are on a gpu") };
        let dim = grads.head_dim;
        let layer = &grads.layers[layer];
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

    /// Key heads and head dimension.
    pub(crate) fn shape(&self) -> (usize, usize) {
        match &self.0 {
            KvGradStorage::Cpu(grads) => (grads.kv_heads, grads.head_dim),
            KvGradStorage::Cuda(grads) => grads.shape(),
        }
    }
}

/// The read-only arguments of [`attention_backward`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionBackward<'a> {
    /// The queries that were passed to [`attention`].
    pub q: &'a Tensor,
    /// The keys and values.
    pub kv: KvLayer<'a>,
    /// Query heads.
    pub heads: usize,
    /// The spans of each row.
    pub metadata: &'a AttentionMetadata<'a>,
    /// The result of [`attention`]. (rows, heads * head_dim)
    pub out: &'a Tensor,
    /// Its gradient. (rows, heads * head_dim)
    pub dout: &'a Tensor,
}

/// Adds to the gradients of the keys and values, and writes those of the queries to the first
/// columns of dqkv, which becomes (rows, (heads + 2 kv_heads) * head_dim) of the compute dtype. The
/// other columns are filled by [`rope_and_cache_backward`](super::rope_and_cache_backward).
pub fn attention_backward(
    device: &Device,
    of: AttentionBackward<'_>,
    dkv: &mut KvGrads,
    dqkv: &mut Tensor,
) -> Result<(), DeviceError> {
    let KvLayer { store, layer } = of.kv;
    let spans = &*of.metadata.spans;
    let heads = of.heads;
    let dim = store.head_dim();
    let kv_heads = store.kv_heads();
    let rows = spans.rows();
    assert_eq!(of.q.rows(), rows, "attention_backward: {} rows, metadata for {rows}", of.q.rows());
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
                spans.end_slot() <= kv.slots,
                "attention_backward: a span beyond {} slots",
                kv.slots
            );
            dqkv.reshape(rows, (heads + 2 * kv_heads) * dim);
            let call = kernel::AttentionCall { layer, heads, spans };
            kernel::attention_backward(cpu.isa, &of, kv, &call, &mut grads.layers[layer], dqkv);
        }
        (Backend::Cuda(cuda), KvStorage::Cuda(kv), KvGradStorage::Cuda(grads)) => {
            let metadata = of.metadata.of_backward(cuda)?;
            let q = of.q.gpu();
            let out = of.out.gpu();
            let dout = of.dout.gpu();
            let of = cuda::args::CudaAttentionBackward { q, kv, layer, heads, metadata, out, dout };
            *dqkv = cuda::attention::attention_backward(of, grads)?.into();
        }
        _ => panic!("attention_backward: the store or the gradients are not on the device"),
    }
    Ok(())
}
