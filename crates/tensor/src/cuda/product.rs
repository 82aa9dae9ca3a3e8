//! Linear maps of many rows on Hopper by a kernel of our own, whose results are finished where they are made; `linear`, `rope`
//! and `topk` ask for it, and have the ways for all else.

use super::array::Buffer;
use super::attention::Kv;
use super::context::Grid;
use super::copies::{MAP, described};
use super::linear::Weights;
use super::{Array, CudaError, Dtype, Indices};

/// Fewer rows were not measured; of a vocabulary, they leave most of a tile empty.
const FEW: usize = 1024;
const FEW_REDUCED: usize = 256;
/// cuBLASLt is faster with 256 inputs, slower with 768.
const SHALLOW: usize = 512;
/// The share of all multiprocessors' time that tiles must fill for this kernel to be faster than cuBLASLt, and than cuBLASLt
/// and `place` after it.
const FULL: f64 = 0.8;
const FULL_PLACED: f64 = 0.7;
/// As in product.cu: a tile's shape, what the copy engine brings at a time, and the blocks' shape.
const ROWS: usize = 128;
pub(crate) const OUTPUTS: usize = 192;
const X_BOX: [u32; 2] = [64, ROWS as u32];
const WEIGHTS_BOX: [u32; 2] = [64, (OUTPUTS / PAIR) as u32];
const STAGES: usize = 4;
const STAGE_BYTES: usize = 64 * (ROWS + OUTPUTS) * 2;
const WARP_BYTES: usize = 16 * (OUTPUTS * 2 + 16);
const WARPS: usize = 8;
const PAIR: usize = 2;
const THREADS: usize = 384;
/// `Product` of product.cu in words.
const ARGUMENTS: usize = 2 * MAP + 16;

/// Keys' and values' places: in this layer of this store, a slot for each row; queries come before them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slots<'a> {
    pub(crate) kv: &'a Kv,
    pub(crate) layer: usize,
    pub(crate) heads: usize,
    /// (rows)
    pub(crate) to: &'a Indices,
}

/// Whether the results of a map can be written in this format by [`stored`], and are sooner than elsewhere.
pub(crate) fn can_store(x: &Array, by: &Weights, want: Dtype) -> bool {
    want == Dtype::Bf16 && by.outputs().is_multiple_of(8) && is_wide(x, by) && can(x, by) && fills(x, by)
}

/// Whether keys and values can be put into such a store by [`placed`], and are sooner than elsewhere.
pub(crate) fn can_place(x: &Array, by: &Weights, kv: &Kv) -> bool {
    let whole = kv.head_dim().is_multiple_of(8) && kv.dtype() == Dtype::Bf16;
    whole && is_wide(x, by) && can(x, by) && filled(x, by) >= FULL_PLACED
}

/// Many rows, so many inputs that a tile takes longer to multiply than to write, and no fewer outputs: rows of many inputs are not
/// in the cache any more when the next outputs' tiles need them.
fn is_wide(x: &Array, by: &Weights) -> bool {
    x.rows() >= FEW && by.inputs() >= SHALLOW && by.outputs() >= by.inputs()
}

/// Whether a map's results, in tiles as they are here, keep nearly all multiprocessors busy.
pub(crate) fn fills(x: &Array, by: &Weights) -> bool {
    filled(x, by) >= FULL
}

/// The share of multiprocessors' time that a map's results fill, if all tiles take as long.
fn filled(x: &Array, by: &Weights) -> f64 {
    let tiles = x.rows().div_ceil(PAIR * ROWS) * by.outputs().div_ceil(OUTPUTS);
    let at_once = x.cuda().multiprocessors().unwrap_or(0) / PAIR;
    if at_once == 0 {
        return 0.0;
    }
    (x.rows() * by.outputs()) as f64 / (tiles.next_multiple_of(at_once) * PAIR * ROWS * OUTPUTS) as f64
}

/// Whether [`reduced`] can be asked for.
pub(crate) fn can_reduce(x: &Array, by: &Weights) -> bool {
    can(x, by) && x.rows() >= FEW_REDUCED && by.padded_bias().is_none()
}

fn can(x: &Array, by: &Weights) -> bool {
    let formats = [x.dtype(), by.matrix().dtype()];
    formats == [Dtype::Bf16; 2] && by.inputs().is_multiple_of(8) && x.cuda().capability() == (9, 0)
}

/// `out = x W + b`, or its GELU in the tanh form: out is (rows, outputs) of bf16.
pub(crate) fn stored(x: &Array, by: &Weights, (bias, gelu): (Option<&Buffer>, bool), out: &Array) -> Result<(), CudaError> {
    assert_eq!(
        (out.rows(), out.cols(), out.dtype()),
        (x.rows(), by.outputs(), Dtype::Bf16),
        "product: a result of another shape"
    );
    let name = if gelu { "product_gelu" } else { "product_stored" };
    // SAFETY: out is (rows, outputs) and the bias at least as wide as outputs.
    unsafe { run(name, x, by, &[bias.map_or(0, Buffer::pointer), out.pointer()]) }
}

/// `x W + b`: queries go to the first columns of out, (rows, outputs) of bf16, whose others are not written, keys and values to
/// their slots.
pub(crate) fn placed(x: &Array, by: &Weights, slots: Slots<'_>, out: &Array) -> Result<(), CudaError> {
    let Slots { kv, layer, heads, to } = slots;
    let (dim, kv_heads, (keys, values)) = (kv.head_dim(), kv.kv_heads(), kv.layer(layer));
    assert_eq!((out.rows(), out.cols(), out.dtype()), (x.rows(), by.outputs(), kv.dtype()), "product: a result of another shape");
    assert_eq!(by.outputs(), (heads + 2 * kv_heads) * dim, "product: {} are not {heads} heads of {dim}", by.outputs());
    assert!(dim.is_multiple_of(8) && kv.dtype() == Dtype::Bf16, "product: heads of {dim} are not whole vectors");
    assert!(to.len() == x.rows() && to.all_below(kv.slots()), "product: not a slot below {} for each row", kv.slots());
    let bias = by.padded_bias().map_or(0, Buffer::pointer);
    let shape = [kv.slots(), dim, kv_heads, heads * dim].map(|n| n as u64);
    // SAFETY: as above; slots and the store's shape were checked.
    unsafe { run("product_placed", x, by, &[&[bias, out.pointer(), keys, values, to.pointer()], &shape[..]].concat()) }
}

/// Of each row's every [`OUTPUTS`] results the largest, the sum of exponentials relative to it and the index, in 16 bytes:
/// (rows, outputs / OUTPUTS rounded up).
pub(crate) fn reduced(x: &Array, by: &Weights) -> Result<Buffer, CudaError> {
    let parts = Buffer::new(x.cuda(), x.rows() * by.outputs().div_ceil(OUTPUTS) * 16)?;
    // SAFETY: there is a place for every part.
    unsafe { run("product_reduced", x, by, &[0, parts.pointer()]) }?;
    Ok(parts)
}

/// # Safety
/// `rest` must be what `Product` of product.cu has after its shapes, and its pointers must reach as far as the kernel goes.
unsafe fn run(kernel: &str, x: &Array, by: &Weights, rest: &[u64]) -> Result<(), CudaError> {
    assert_eq!(x.cols(), by.inputs(), "product: rows of {} into a map of {}", x.cols(), by.inputs());
    let shape = [x.rows(), by.outputs(), by.inputs()].map(|n| n as u64);
    let maps = [described(x, X_BOX)?, described(by.matrix(), WEIGHTS_BOX)?];
    let mut arguments = [0u64; ARGUMENTS];
    let words = maps.iter().flatten().chain(&shape).chain(rest);
    arguments.iter_mut().zip(words).for_each(|(to, &word)| *to = word);
    let shared = STAGES * STAGE_BYTES + WARPS * WARP_BYTES + 1024; // stages begin at a multiple of 1024
    let grid = Grid { blocks: (x.cuda().multiprocessors()? / PAIR * PAIR, 1, 1), threads: THREADS, shared };
    // SAFETY: the kernel's one parameter is made of these words; the matrices are described whole; the rest is the caller's.
    unsafe { x.cuda().launch(kernel, grid, &mut arguments) }
}
