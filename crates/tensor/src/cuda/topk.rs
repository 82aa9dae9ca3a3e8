//! Argmax, sampling and top-k of logits, which are reduced in the GEMM or chunk by chunk.

use super::args::CudaMixture;
use super::blas::{BlasEpilogue, GemmPointers, GemmShape};
use super::context::{LaunchConfig, int, kernel_args};
use super::hopper_gemm;
use super::linear::{CudaLinear, ROW_ALIGNMENT};
use super::memory::DeviceBuffer;
use super::readback::{Readback, ReadbackBuffer};
use super::sample::{DeviceDraws, SAMPLE_THREADS};
use super::{CudaDevice, CudaDtype, CudaError, CudaTensor, fp8};
use crate::params::TokenDraw;
use crate::rng::{Site, site_word};

/// Maximum bytes of logits in memory at a time.
const CHUNK_BYTES: usize = 512 << 20;
/// Maximum tokens of a mixture, as in topk.cu.
pub(crate) const MAX_K: usize = 64;

/// A token for each row of x (rows, inputs) and its log-probability: on the GPU, and asynchronously
/// copied to the host.
#[derive(Debug)]
pub(crate) struct PendingRowTokens {
    words: RowWords, // index << 32 | bits of the log-probability
    outputs: usize,
    readback: Readback<u64>,
}

impl PendingRowTokens {
    /// Queues the argmax of `x W + b` for each row, the lowest index of a tie. NaN is ignored; a
    /// row of only NaN gives 0.
    pub(crate) fn launch(x: &CudaTensor, map: &CudaLinear) -> Result<Self, CudaError> {
        let words = RowWords::new(x.cuda(), x.rows())?;
        let host = ReadbackBuffer::new(x.cuda(), x.rows())?;
        argmax_rows(x, map, &words, &host)?;
        Ok(Self { words, outputs: map.outputs(), readback: host.submitted()? })
    }

    /// Queues a token from softmax(x W + b) for each row, sampled according to its draw; the argmax
    /// if it has none.
    pub(crate) fn sample(
        x: &CudaTensor,
        map: &CudaLinear,
        draws: &[Option<TokenDraw>],
    ) -> Result<Self, CudaError> {
        let words = RowWords::new(x.cuda(), x.rows())?;
        let host = ReadbackBuffer::new(x.cuda(), x.rows())?;
        let draws = DeviceDraws::new(x.cuda(), draws)?;
        let bias = map.padded_bias().map_or(0, DeviceBuffer::pointer);
        for_logit_chunks(x, map, |chunk| {
            let config = LaunchConfig::new(chunk.rows, SAMPLE_THREADS);
            let arguments = kernel_args![
                chunk.logits,
                int(map.matrix().rows()),
                int(map.outputs()),
                bias,
                draws.at(chunk.first),
                words.at(chunk.first),
                host.element_ptr(chunk.first)
            ];
            // SAFETY: logits are (rows, padded outputs), of which the outputs are read; there is a
            // draw for each row, and a word on either side.
            unsafe { x.cuda().launch("sample_rows", config, arguments) }
        })?;
        Ok(Self { words, outputs: map.outputs(), readback: host.submitted()? })
    }

    /// Waits for the tokens and their log-probabilities.
    pub(crate) fn read(self) -> Result<Vec<(u32, f32)>, CudaError> {
        let split = |word: u64| ((word >> 32) as u32, f32::from_bits(word as u32));
        Ok(self.readback.read()?.into_iter().map(split).collect())
    }

    pub(crate) fn rows(&self) -> usize {
        self.words.rows
    }

    /// Exclusive upper bound of the indices.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// The device address of the first index; the stride is 8 bytes.
    pub(crate) fn indices(&self) -> u64 {
        self.words.at(0) + 4
    }
}

/// Writes a word per row to device memory and to host memory.
fn argmax_rows(
    x: &CudaTensor,
    map: &CudaLinear,
    words: &RowWords,
    host: &ReadbackBuffer<u64>,
) -> Result<(), CudaError> {
    let cuda = x.cuda();
    let cast = x.cast_operand(map)?;
    let x = cast.as_ref().unwrap_or(x);
    let is_fp8 = map.fp8().is_some() && map.padded_bias().is_none();
    let quantized = is_fp8.then(|| fp8::quantize_rows(x)).transpose()?;
    let x = quantized.as_ref().unwrap_or(x);
    if hopper_gemm::supports_argmax(x, map) {
        let partials = hopper_gemm::logit_partials(x, map)?;
        let config = LaunchConfig::new(x.rows().div_ceil(8), 256);
        let arguments = kernel_args![
            partials.pointer(),
            int(x.rows()),
            int(map.outputs().div_ceil(hopper_gemm::TILE_OUTPUTS)),
            words.at(0),
            host.element_ptr(0)
        ];
        // SAFETY: all partials were written, and there is a word for each row on either side.
        return unsafe { cuda.launch("argmax_partials", config, arguments) };
    }
    let bias = map.padded_bias().map_or(0, DeviceBuffer::pointer);
    for_logit_chunks(x, map, |chunk| {
        let config = LaunchConfig::new(chunk.rows, 256);
        let arguments = kernel_args![
            chunk.logits,
            int(map.matrix().rows()),
            int(map.outputs()),
            bias,
            words.at(chunk.first),
            host.element_ptr(chunk.first)
        ];
        // SAFETY: logits are (rows, padded outputs), of which the outputs are read; there is a word
        // for each row on either side.
        unsafe { cuda.launch("argmax_rows", config, arguments) }
    })
}

/// See [`crate::ops::top_k_mixture`]. Synchronizes with the GPU.
pub(crate) fn top_k_mixture(
    x: &CudaTensor,
    head: &CudaLinear,
    table: &CudaLinear,
    CudaMixture { k, noise }: CudaMixture<'_>,
) -> Result<(CudaTensor, Vec<u32>), CudaError> {
    assert!((1..=MAX_K).contains(&k), "mixture: of {k} tokens, at most {MAX_K}");
    assert!(
        table.outputs() >= head.outputs(),
        "mixture: a table of {} for {}",
        table.outputs(),
        head.outputs()
    );
    if let Some(noise) = noise {
        let count = noise.rows();
        assert_eq!(count, x.rows(), "mixture: {count} perturbations for {} rows", x.rows());
    }
    let width = table.inputs();
    let matrix = table.matrix();
    let out = CudaTensor::uninit(x.cuda(), x.rows(), width, CudaDtype::F32)?;
    let best = RowWords::new(x.cuda(), x.rows())?;
    for_logit_chunks(x, head, |chunk| {
        let config = LaunchConfig::new(chunk.rows, 512);
        let bias = head.padded_bias().map_or(0, DeviceBuffer::pointer);
        let into = out.pointer() + (chunk.first * width * 4) as u64;
        let noise = noise.map_or(0, |noise| noise.at(chunk.first));
        let arguments = kernel_args![
            chunk.logits,
            int(head.matrix().rows()),
            int(head.outputs()),
            bias,
            int(k),
            noise,
            site_word(0, Site::Gumbel),
            matrix.pointer(),
            matrix.dtype(),
            int(width),
            into,
            best.at(chunk.first),
        ];
        // SAFETY: as in `argmax_rows`; every token is a row of the table; out has as many rows as
        // x, and so has the noise, if there is any.
        unsafe { x.cuda().launch("top_k_mixture", config, arguments) }
    })?;
    // The largest logit in an order-preserving form, then its index inverted; 0 is none.
    let index = |best: u64| if best == 0 { 0 } else { !(best as u32) };
    let argmax = best.buffer.download_async()?.read()?.into_iter().map(index).collect();
    Ok((out, argmax))
}

/// Logits of consecutive rows.
struct LogitChunk {
    logits: u64, // (rows, padded outputs)
    first: usize,
    rows: usize,
}

/// Computes the logits chunk by chunk and passes them to `work`.
///
/// Smaller chunks, which would stay in the L2 cache, were slower: a GEMM of few columns leaves SMs
/// idle.
fn for_logit_chunks(
    x: &CudaTensor,
    map: &CudaLinear,
    work: impl Fn(LogitChunk) -> Result<(), CudaError>,
) -> Result<(), CudaError> {
    assert_eq!(
        x.cols(),
        map.inputs(),
        "logits: rows of {} into a map of {}",
        x.cols(),
        map.inputs()
    );
    let cuda = x.cuda();
    let inputs = map.inputs();
    let stride = map.matrix().rows();
    let operand = map.matrix().dtype();
    let cast = x.cast_operand(map)?;
    let x = cast.as_ref().unwrap_or(x);
    // Chunks of nearly equal height, in multiples of the alignment.
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
            weights: map.matrix().pointer(),
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

/// A 64-bit word for each row.
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
