//! The largest elements of rows of logits, which are never kept whole.

use super::array::Buffer;
use super::blas::{Epilogue, Pointers, Shape};
use super::context::{Grid, int, slots};
use super::linear::{ROW_MULTIPLE, Weights};
use super::{Array, Cuda, CudaError, Dtype};

/// Bytes of logits made at a time where whole rows of them are needed.
const CHUNK: usize = 256 << 20;
/// Bytes of logits made at a time where they are not: what the L2 cache holds from the product to the search.
const NEAR: usize = 24 << 20;
/// Rows taken together in that case, and the fewest columns.
const MANY: usize = 4096;
const LEAST_COLS: usize = 1024;
/// The most tokens that a mixture takes, as in topk.cu.
pub(crate) const MOST: usize = 64;

/// For each row of x (rows, inputs) the index of the largest element of `x W + b`; the lowest index among equals.
///
/// Not-a-number never wins; a row of nothing else gives 0. Waits for the GPU.
pub(crate) fn argmax(x: &Array, by: &Weights) -> Result<Vec<u32>, CudaError> {
    let (cuda, best) = (x.cuda(), Best::new(x.cuda(), x.rows())?);
    let bias = by.padded_bias().map_or(0, Buffer::pointer);
    in_chunks(x, by, NEAR, |chunk| {
        let cols = chunk.cols.min(by.outputs() - chunk.first_col);
        let grid = Grid { blocks: (chunk.rows, 1), threads: 256, shared: 0 };
        let arguments =
            slots![chunk.logits, int(chunk.cols), int(chunk.first_col), int(cols), bias, best.at(chunk.first_row)];
        // SAFETY: logits are (rows, cols), of which those of outputs are read; there is a best for every row.
        unsafe { cuda.launch("argmax", grid, arguments) }
    })?;
    best.indices()
}

/// For each row of x the mixture of the `k` likeliest outputs' rows of `table`, weighted by their softmax; and the likeliest.
///
/// `table` is the head itself where the two are tied. Waits for the GPU.
pub(crate) fn mixture(x: &Array, head: &Weights, table: &Weights, k: usize) -> Result<(Array, Vec<u32>), CudaError> {
    assert!((1..=MOST).contains(&k), "mixture: of {k} tokens, at most {MOST}");
    assert!(table.outputs() >= head.outputs(), "mixture: a table of {} for {}", table.outputs(), head.outputs());
    let (width, matrix) = (table.inputs(), table.matrix());
    let out = Array::uninit(x.cuda(), x.rows(), width, Dtype::F32)?;
    let best = Best::new(x.cuda(), x.rows())?;
    in_chunks(x, head, usize::MAX, |chunk| {
        let grid = Grid { blocks: (chunk.rows, 1), threads: 512, shared: 0 };
        let bias = head.padded_bias().map_or(0, Buffer::pointer);
        let into = out.pointer() + (chunk.first_row * width * 4) as u64;
        let arguments = slots![
            chunk.logits, int(chunk.cols), int(head.outputs()), bias, int(k),
            matrix.pointer(), matrix.dtype(), int(width), into, best.at(chunk.first_row),
        ];
        // SAFETY: as in `argmax`; a winner is a row of the table; out has as many rows as x.
        unsafe { x.cuda().launch("mixture", grid, arguments) }
    })?;
    let likeliest = best.indices()?;
    Ok((out, likeliest))
}

/// Some logits: rows from `first_row` on, outputs from `first_col` on.
struct Chunk {
    logits: u64, // (rows, cols)
    first_row: usize,
    rows: usize,
    first_col: usize,
    cols: usize,
}

/// Makes the logits of some rows after others and hands them to `work`, in columns of at most `near` bytes.
fn in_chunks(x: &Array, by: &Weights, near: usize, work: impl Fn(Chunk) -> Result<(), CudaError>) -> Result<(), CudaError> {
    assert_eq!(x.cols(), by.inputs(), "logits: rows of {} into a map of {}", x.cols(), by.inputs());
    let (cuda, inputs, all, operand) = (x.cuda(), by.inputs(), by.matrix().rows(), by.matrix().dtype());
    let cast = x.as_operand(by)?;
    let x = cast.as_ref().unwrap_or(x);
    // Whole hundreds of rows and columns, so that every chunk starts where products like it.
    let height = (CHUNK / (4 * all)).next_multiple_of(ROW_MULTIPLE).max(if near < usize::MAX { MANY } else { 0 }).min(x.rows()).max(1);
    let width = (near / (4 * height)).next_multiple_of(ROW_MULTIPLE).max(LEAST_COLS).min(all);
    let logits = Buffer::new(cuda, height * width * 4)?;
    for first_row in (0..x.rows()).step_by(height) {
        let rows = height.min(x.rows() - first_row);
        let x_at = x.pointer() + (first_row * inputs * operand.size()) as u64;
        for first_col in (0..all).step_by(width) {
            let cols = width.min(all - first_col);
            let shape = Shape { rows, inputs, outputs: cols, stride: cols, operand, out: Dtype::F32, epilogue: Epilogue::None };
            let weights = by.matrix().pointer() + (first_col * inputs * operand.size()) as u64;
            let at = Pointers { x: x_at, weights, bias: 0, out: logits.pointer() };
            // SAFETY: x has `rows` rows and the weights `cols` from there on, and the logits hold (height, width).
            unsafe { cuda.blas().product(cuda, shape, at) }?;
            work(Chunk { logits: logits.pointer(), first_row, rows, first_col, cols })?;
        }
    }
    Ok(())
}

/// Per row: the best value in an order-preserving form, then its index inverted; 0 is none.
struct Best {
    rows: usize,
    buffer: Buffer,
}

impl Best {
    fn new(cuda: &Cuda, rows: usize) -> Result<Self, CudaError> {
        Ok(Self { rows, buffer: Buffer::zeros(cuda, rows * 8)? })
    }

    fn at(&self, row: usize) -> u64 {
        self.buffer.pointer() + 8 * row as u64
    }

    fn indices(&self) -> Result<Vec<u32>, CudaError> {
        let mut best = vec![0u64; self.rows];
        self.buffer.download(0, &mut best)?;
        Ok(best.into_iter().map(|b| if b == 0 { 0 } else { !(b as u32) }).collect())
    }
}
