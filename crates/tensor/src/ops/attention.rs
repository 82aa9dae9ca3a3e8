//! Keys and values in slots, and attention over spans of them.
//!
//! A slot holds the keys and values of one position in every layer. A position sees a list of spans of slots: a shared
//! prefix, then whatever is its row's own. Forked rows therefore share a prefix by naming the same slots; nothing is
//! copied and nothing is padded.

use std::borrow::Cow;

use crate::cpu::attention as kernel;
use crate::device::Kind;
use crate::{Device, DeviceError, Tensor, cuda};

/// Keys and values of a number of positions in every layer.
#[derive(Debug)]
pub struct KvStore(Store);

#[derive(Debug)]
enum Store {
    Cpu(HostKv),
    Cuda(cuda::attention::Kv),
}

/// The processor's keys and values.
#[derive(Debug)]
pub(crate) struct HostKv {
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) slots: usize,
    pub(crate) layers: Vec<LayerKv>,
}

/// One layer's keys and values in the layout that the kernels read, or their gradients.
#[derive(Debug)]
pub(crate) struct LayerKv {
    pub(crate) keys: Vec<f32>,   // (kv_heads, slots / BLOCK, head_dim, BLOCK)
    pub(crate) values: Vec<f32>, // (kv_heads, slots, head_dim)
}

impl KvStore {
    /// A span that starts at a multiple of this is read fastest.
    pub const ALIGNMENT: usize = kernel::BLOCK;

    /// An empty store.
    pub fn new(device: &Device, layers: usize, (kv_heads, head_dim): (usize, usize), slots: usize) -> Result<Self, DeviceError> {
        let slots = slots.next_multiple_of(kernel::BLOCK);
        Ok(Self(match device.kind() {
            Kind::Cpu(_) => {
                let size = kv_heads * head_dim * slots;
                let layers = (0..layers).map(|_| LayerKv { keys: vec![0.0; size], values: vec![0.0; size] }).collect();
                Store::Cpu(HostKv { kv_heads, head_dim, slots, layers })
            }
            Kind::Cuda(cuda) => Store::Cuda(cuda::attention::Kv::new(cuda, layers, kv_heads, head_dim, slots)?),
        }))
    }

    /// How many positions fit.
    pub fn slots(&self) -> usize {
        match &self.0 {
            Store::Cpu(kv) => kv.slots,
            Store::Cuda(kv) => kv.slots(),
        }
    }

    /// Where it is on a GPU, and its shape.
    pub(crate) fn place(&self) -> Option<(u64, [usize; 4])> {
        match &self.0 {
            Store::Cpu(_) => None,
            Store::Cuda(kv) => Some(kv.place()),
        }
    }

    pub(crate) fn kv_heads(&self) -> usize {
        match &self.0 {
            Store::Cpu(kv) => kv.kv_heads,
            Store::Cuda(kv) => kv.kv_heads(),
        }
    }

    pub(crate) fn head_dim(&self) -> usize {
        match &self.0 {
            Store::Cpu(kv) => kv.head_dim,
            Store::Cuda(kv) => kv.head_dim(),
        }
    }

    /// Memory that a slot takes in a model of this shape.
    pub fn bytes_per_slot(device: &Device, layers: usize, (kv_heads, head_dim): (usize, usize)) -> usize {
        match device.kind() {
            Kind::Cpu(_) => layers * kv_heads * head_dim * 2 * size_of::<f32>(),
            Kind::Cuda(cuda) => cuda::attention::Kv::bytes_per_slot(cuda, layers, kv_heads, head_dim),
        }
    }

    /// One layer of it, to be read.
    pub fn layer(&self, layer: usize) -> Layer<'_> {
        Layer { store: self, layer }
    }

    /// Stores, for each row of x, its keys (from column `first` on) and values (right after them) into that row's slot.
    pub(crate) fn write(&mut self, layer: usize, x: &Tensor, first: usize, slots: &[u32]) {
        let Store::Cpu(kv) = &mut self.0 else { panic!("this store is on a gpu") };
        let width = kv.kv_heads * kv.head_dim;
        assert_eq!(x.rows(), slots.len(), "kv write: {} rows into {} slots", x.rows(), slots.len());
        assert!(first + 2 * width <= x.cols(), "kv write: keys and values of {width} do not fit {}", x.cols());
        assert!(slots.iter().all(|&s| (s as usize) < kv.slots), "kv write: a slot beyond {}", kv.slots);
        kernel::write(kv, layer, x, first, slots);
    }

    pub(crate) fn gpu_mut(&mut self) -> &mut cuda::attention::Kv {
        match &mut self.0 {
            Store::Cuda(kv) => kv,
            Store::Cpu(_) => panic!("this store is not on the gpu"),
        }
    }
}

/// A layer of a store.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
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
pub struct Attend {
    pub(crate) spans: Vec<Span>,
    pub(crate) ends: Vec<usize>, // per row: where its spans end
}

impl Attend {
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
        picked.into_iter().for_each(|r| out.push(self.of(r).iter().copied()));
        out
    }

    /// No span goes beyond this slot.
    pub fn end(&self) -> usize {
        self.spans.iter().map(|s| s.start as usize + s.len as usize).max().unwrap_or(0)
    }

    /// Rows, tiles of them on a GPU, and the size of memory that names them.
    pub(crate) fn extent(&self) -> (usize, usize, usize) {
        let rows = self.rows();
        let starts = (0..rows).filter_map(|r| self.of(r).first()).map(|s| s.start);
        let tiles = cuda::attention::tiles(rows, starts);
        (rows, tiles, cuda::Cuda::piece((rows + tiles) * 16 + self.spans.len().saturating_sub(rows) * 8))
    }

    /// What row `r` sees.
    pub(crate) fn of(&self, r: usize) -> &[Span] {
        let start = if r == 0 { 0 } else { self.ends[r - 1] };
        &self.spans[start..self.ends[r]]
    }
}

/// [`Attend`] where the device can read it.
#[derive(Debug)]
pub struct Views<'a> {
    attend: Cow<'a, Attend>,
    on_gpu: Option<cuda::attention::Views>,
}

impl<'a> Views<'a> {
    /// Brings it to the device.
    pub fn new(device: &Device, attend: Cow<'a, Attend>) -> Result<Self, DeviceError> {
        let on_gpu = match device.kind() {
            Kind::Cpu(_) => None,
            Kind::Cuda(cuda) => {
                let of = |r: usize| attend.of(r).iter().map(|s| (s.start, s.len));
                Some(cuda::attention::Views::new(cuda, attend.rows(), of)?)
            }
        };
        Ok(Self { attend, on_gpu })
    }
}

/// Softmax attention: `out[r, h] = sum_j softmax_j(q[r, h] . k_j / sqrt(head_dim)) v_j` over the slots that row r sees.
///
/// The first `heads * head_dim` columns of q are the queries; out becomes (rows, heads * head_dim). Query heads share
/// key heads in equal groups of neighbours. Every row must see at least one slot.
pub fn attention(
    device: &Device,
    q: &Tensor,
    kv: Layer<'_>,
    heads: usize,
    views: &Views<'_>,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    let Layer { store, layer } = kv;
    let (attend, dim) = (&*views.attend, store.head_dim());
    assert_eq!(q.rows(), attend.rows(), "attention: {} rows, views for {}", q.rows(), attend.rows());
    assert!(heads.is_multiple_of(store.kv_heads()), "attention: {heads} query heads over {} key heads", store.kv_heads());
    assert!(heads * dim <= q.cols(), "attention: {heads} heads of {dim} do not fit {}", q.cols());
    match (device.kind(), &store.0, &views.on_gpu) {
        (Kind::Cpu(cpu), Store::Cpu(kv), _) => {
            let inside = |s: &Span| s.start as usize + s.len as usize <= kv.slots;
            assert!(attend.spans.iter().all(inside), "attention: a span beyond {} slots", kv.slots);
            out.reshape(q.rows(), heads * dim);
            kernel::attention(cpu.isa, q, kv, &kernel::Shape { layer, heads, attend }, out);
        }
        (Kind::Cuda(_), Store::Cuda(kv), Some(views)) => {
            *out = cuda::attention::attention(q.array(), kv, layer, heads, views)?.into();
        }
        _ => panic!("attention: the store or the views are not on the device"),
    }
    Ok(())
}

/// Gradients of all keys and values of a store, summed over whatever saw them. In single precision.
#[derive(Debug)]
pub struct KvGrads(Grads);

#[derive(Debug)]
enum Grads {
    Cpu(HostKv), // keys and values both (kv_heads, slots, head_dim)
    Cuda(cuda::attention::KvGrads),
}

impl KvGrads {
    /// No gradients yet, for a store.
    pub fn zeros(device: &Device, like: &KvStore) -> Result<Self, DeviceError> {
        Ok(Self(match (device.kind(), &like.0) {
            (Kind::Cpu(_), Store::Cpu(kv)) => {
                let empty = |l: &LayerKv| LayerKv { keys: vec![0.0; l.keys.len()], values: vec![0.0; l.values.len()] };
                Grads::Cpu(HostKv { layers: kv.layers.iter().map(empty).collect(), ..*kv })
            }
            (Kind::Cuda(cuda), Store::Cuda(kv)) => Grads::Cuda(cuda::attention::KvGrads::zeros(cuda, kv)?),
            _ => panic!("gradients: the store is not on the device"),
        }))
    }

    /// Forgets all gradients.
    pub fn clear(&mut self, device: &Device) -> Result<(), DeviceError> {
        match (device.kind(), &mut self.0) {
            (Kind::Cpu(_), Grads::Cpu(grads)) => {
                for layer in &mut grads.layers {
                    layer.keys.fill(0.0);
                    layer.values.fill(0.0);
                }
            }
            (Kind::Cuda(_), Grads::Cuda(grads)) => grads.clear()?,
            _ => panic!("gradients: not on the device"),
        }
        Ok(())
    }

    /// Writes each slot's gradients into a row, the keys' from column `first` on and the values' right after them.
    pub(crate) fn read(&self, layer: usize, slots: &[u32], first: usize, x: &mut Tensor) {
        let Grads::Cpu(grads) = &self.0 else { panic!("these gradients are on a gpu") };
        let (dim, layer) = (grads.head_dim, &grads.layers[layer]);
        assert_eq!(x.rows(), slots.len(), "gradients: {} rows from {} slots", x.rows(), slots.len());
        assert!(slots.iter().all(|&s| (s as usize) < grads.slots), "gradients: a slot beyond {}", grads.slots);
        for (r, &slot) in slots.iter().enumerate() {
            let (keys, values) = x.row_mut(r)[first..].split_at_mut(grads.kv_heads * dim);
            for (to, from) in [(keys, &layer.keys), (values, &layer.values)] {
                let heads = to.chunks_exact_mut(dim).enumerate();
                heads.for_each(|(h, to)| to.copy_from_slice(&from[(h * grads.slots + slot as usize) * dim..][..dim]));
            }
        }
    }

    pub(crate) fn gpu(&self) -> &cuda::attention::KvGrads {
        match &self.0 {
            Grads::Cuda(grads) => grads,
            Grads::Cpu(_) => panic!("these gradients are not on the gpu"),
        }
    }

    /// Key heads and their width.
    pub(crate) fn shape(&self) -> (usize, usize) {
        match &self.0 {
            Grads::Cpu(grads) => (grads.kv_heads, grads.head_dim),
            Grads::Cuda(grads) => grads.shape(),
        }
    }
}

/// What [`attention`] was given and returned, and what reaches its result.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBackward<'a> {
    /// The queries, as [`attention`] took them.
    pub q: &'a Tensor,
    /// The keys and values.
    pub kv: Layer<'a>,
    /// Query heads.
    pub heads: usize,
    /// What each row sees.
    pub views: &'a Views<'a>,
    /// What [`attention`] returned. (rows, heads * head_dim)
    pub out: &'a Tensor,
    /// What reaches it. (rows, heads * head_dim)
    pub dout: &'a Tensor,
}

/// Adds to the gradients of every key and value that a row sees, and begins dqkv (rows, (heads + 2 kv_heads) * head_dim), an
/// operand: its first columns become the queries' gradients, the rest is for [`place_backward`](super::place_backward).
pub fn attention_backward(
    device: &Device,
    of: AttentionBackward<'_>,
    dkv: &mut KvGrads,
    dqkv: &mut Tensor,
) -> Result<(), DeviceError> {
    let Layer { store, layer } = of.kv;
    let (attend, heads, dim, kv_heads) = (&*of.views.attend, of.heads, store.head_dim(), store.kv_heads());
    let rows = attend.rows();
    assert_eq!(of.q.rows(), rows, "attention_backward: {} rows, views for {rows}", of.q.rows());
    assert!(heads.is_multiple_of(kv_heads), "attention_backward: {heads} query heads over {kv_heads} key heads");
    assert!(heads * dim <= of.q.cols(), "attention_backward: {heads} heads of {dim} do not fit {}", of.q.cols());
    for x in [of.out, of.dout] {
        assert_eq!((x.rows(), x.cols()), (rows, heads * dim), "attention_backward: {heads} heads of {dim} for {rows} rows");
    }
    match (device.kind(), &store.0, &mut dkv.0) {
        (Kind::Cpu(cpu), Store::Cpu(kv), Grads::Cpu(grads)) => {
            let shape = |kv: &HostKv| (kv.kv_heads, kv.head_dim, kv.slots, kv.layers.len());
            assert_eq!(shape(grads), shape(kv), "attention_backward: gradients of another store");
            assert!(attend.end() <= kv.slots, "attention_backward: a span beyond {} slots", kv.slots);
            dqkv.reshape(rows, (heads + 2 * kv_heads) * dim);
            let shape = kernel::Shape { layer, heads, attend };
            kernel::attention_backward(cpu.isa, &of, kv, &shape, (&mut grads.layers[layer], dqkv));
        }
        (Kind::Cuda(_), Store::Cuda(kv), Grads::Cuda(grads)) => {
            let Some(views) = &of.views.on_gpu else { panic!("attention_backward: the views are not on the gpu") };
            let (q, out, dout) = (of.q.array(), of.out.array(), of.dout.array());
            let of = cuda::attention::Backward { q, kv, layer, heads, views, out, dout };
            *dqkv = cuda::attention::attention_backward(of, grads)?.into();
        }
        _ => panic!("attention_backward: the store or the gradients are not on the device"),
    }
    Ok(())
}
