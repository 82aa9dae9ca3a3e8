//! The largest elements of rows of logits, which are never kept whole.

use super::blas::{BlasEpilogue, GemmPointers, GemmShape};
use super::context::{LaunchConfig, int, kernel_args};
use super::linear::{CudaLinear, ROW_ALIGNMENT};
use super::memory::DeviceBuffer;
use super::readback::{Readback, ReadbackBuffer};
use super::{CudaDevice, CudaDtype, CudaError, CudaTensor, hopper_gemm};

/// Bytes of logits made at a time.
const CHUNK_BYTES: usize = 512 << 20;
/// The most tokens that a mixture takes, as in topk.cu.
pub(crate) const MAX_K: usize = 64;

/// For each row of x (rows, inputs) the index of the largest element of `x W + b`, the lowest among
/// equals, and the logarithm of its share of the softmax; on the GPU and on its way to the host.
///
/// Not-a-number never wins; a row of nothing else gives 0.
#[derive(Debug)]
pub(crate) struct PendingArgmax {
    words: RowWords, // the index, then its logarithm's bits
    outputs: usize,
    readback: Readback<u64>,
}

impl PendingArgmax {
    /// Asks for it, and lets the host go on.
    pub(crate) fn launch(x: &CudaTensor, by: &CudaLinear) -> Result<Self, CudaError> {
        let (words, coming) =
            (RowWords::new(x.cuda(), x.rows())?, ReadbackBuffer::new(x.cuda(), x.rows())?);
        argmax_rows(x, by, (&words, &coming))?;
        Ok(Self { words, outputs: by.outputs(), readback: coming.submitted()? })
    }

    /// Waits for it.
    pub(crate) fn read(self) -> Result<Vec<(u32, f32)>, CudaError> {
        let split = |word: u64| ((word >> 32) as u32, f32::from_bits(word as u32));
        Ok(self.readback.read()?.into_iter().map(split).collect())
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        self.words.rows
    }

    /// Every index is below this.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Where the first index is on the GPU; the others follow at every second 32 bits.
    pub(crate) fn indices(&self) -> u64 {
        self.words.at(0) + 4
    }
}

/// Fills a word for each row, here and on the host: the GPU goes on while the latter is on its way.
fn argmax_rows(
    x: &CudaTensor,
    by: &CudaLinear,
    (found, told): (&RowWords, &ReadbackBuffer<u64>),
) -> Result<(), CudaError> {
    let cuda = x.cuda();
    let cast = x.cast_operand(by)?;
    let x = cast.as_ref().unwrap_or(x);
    if hopper_gemm::supports_argmax(x, by) {
        let (parts, grid) = (
            hopper_gemm::logit_partials(x, by)?,
            LaunchConfig { blocks: (x.rows().div_ceil(8), 1, 1), threads: 256, shared_bytes: 0 },
        );
        let arguments = kernel_args![
            parts.pointer(),
            int(x.rows()),
            int(by.outputs().div_ceil(hopper_gemm::TILE_OUTPUTS)),
            found.at(0),
            told.element_ptr(0)
        ];
        // SAFETY: every part was written, and there is a word for each row on either side.
        return unsafe { cuda.launch("likeliest_whole", grid, arguments) };
    }
    let bias = by.padded_bias().map_or(0, DeviceBuffer::pointer);
    for_logit_chunks(x, by, |chunk| {
        let grid = LaunchConfig { blocks: (chunk.rows, 1, 1), threads: 256, shared_bytes: 0 };
        let arguments = kernel_args![
            chunk.logits,
            int(by.matrix().rows()),
            int(by.outputs()),
            bias,
            found.at(chunk.first),
            told.element_ptr(chunk.first)
        ];
        // SAFETY: logits are (rows, padded outputs), of which the outputs are read; there is a
        // place for every row.
        unsafe { cuda.launch("likeliest", grid, arguments) }
    })
}

/// For each row of x the mixture of the `k` likeliest outputs' rows of `table`, weighted by their
/// softmax; and the likeliest.
///
/// `table` is the head itself where the two are tied. Waits for the GPU.
pub(crate) fn top_k_mixture(
    x: &CudaTensor,
    head: &CudaLinear,
    table: &CudaLinear,
    k: usize,
) -> Result<(CudaTensor, Vec<u32>), CudaError> {
    assert!((1..=MAX_K).contains(&k), "mixture: of {k} tokens, at most {MAX_K}");
    assert!(
        table.outputs() >= head.outputs(),
        "mixture: a table of {} for {}",
        table.outputs(),
        head.outputs()
    );
    let (width, matrix) = (table.inputs(), table.matrix());
    let out = CudaTensor::uninit(x.cuda(), x.rows(), width, CudaDtype::F32)?;
    let best = RowWords::new(x.cuda(), x.rows())?;
    for_logit_chunks(x, head, |chunk| {
        let grid = LaunchConfig { blocks: (chunk.rows, 1, 1), threads: 512, shared_bytes: 0 };
        let bias = head.padded_bias().map_or(0, DeviceBuffer::pointer);
        let into = out.pointer() + (chunk.first * width * 4) as u64;
        let arguments = kernel_args![
            chunk.logits,
            int(head.matrix().rows()),
            int(head.outputs()),
            bias,
            int(k),
            matrix.pointer(),
            matrix.dtype(),
            int(width),
            into,
            best.at(chunk.first),
        ];
        // SAFETY: as in `find`; a winner is a row of the table; out has as many rows as x.
        unsafe { x.cuda().launch("mixture", grid, arguments) }
    })?;
    // The best value in an order-preserving form, then its index inverted; 0 is none.
    let index = |best: u64| if best == 0 { 0 } else { !(best as u32) };
    let likeliest = best.buffer.download_async()?.read()?.into_iter().map(index).collect();
    Ok((out, likeliest))
}

/// Some rows of logits.
struct LogitChunk {
    logits: u64, // (rows, padded outputs)
    first: usize,
    rows: usize,
}

/// Makes the logits of some rows after others and hands them to `work`.
///
/// Smaller pieces, such as would stay in the L2 cache, were slower: products of few columns leave
/// multiprocessors idle.
fn for_logit_chunks(
    x: &CudaTensor,
    by: &CudaLinear,
    work: impl Fn(LogitChunk) -> Result<(), CudaError>,
) -> Result<(), CudaError> {
    assert_eq!(x.cols(), by.inputs(), "logits: rows of {} into a map of {}", x.cols(), by.inputs());
    let (cuda, inputs, stride, operand) =
        (x.cuda(), by.inputs(), by.matrix().rows(), by.matrix().dtype());
    let cast = x.cast_operand(by)?;
    let x = cast.as_ref().unwrap_or(x);
    // Chunks of like height, in whole hundreds of rows, so that each starts where products like it.
    let chunks = (x.rows() * stride * 4).div_ceil(CHUNK_BYTES).max(1);
    let height = x.rows().div_ceil(chunks).next_multiple_of(ROW_ALIGNMENT).min(x.rows().max(1));
    let logits = DeviceBuffer::new(cuda, height * stride * 4)?;
    for first in (0..x.rows()).step_by(height) {
        let rows = height.min(x.rows() - first);
        let shape = GemmShape {
            rows,
            inputs,
            outputs: stride,
            stride,
            operand,
            out: CudaDtype::F32,
            epilogue: BlasEpilogue::None,
        };
        let x_at = x.pointer() + (first * inputs * operand.size()) as u64;
        let at = GemmPointers {
            x: x_at,
            weights: by.matrix().pointer(),
            bias: 0,
            out: logits.pointer(),
        };
        // SAFETY: x has `rows` rows from `first` on, the weights `stride` rows, and the logits are
        // (height, stride).
        unsafe { cuda.blas().gemm(cuda, shape, at) }?;
        work(LogitChunk { logits: logits.pointer(), first, rows })?;
    }
    Ok(())
}

/// A word of 64 bits for every row.
#[derive(Debug)]
struct RowWords {
    rows: usize,
    buffer: DeviceBuffer,
}

impl RowWords {
    fn new(cuda: &CudaDevice, rows: usize) -> Result<Self, CudaError> {
        Ok(Self { rows, buffer: DeviceBuffer::new(cuda, rows * 8)? })
    }

    fn at(&self, row: usize) -> u64 {
        self.buffer.pointer() + 8 * row as u64
    }
}
