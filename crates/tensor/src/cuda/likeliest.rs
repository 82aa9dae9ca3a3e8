//! The likeliest output for many rows on Hopper, whose logits are reduced where they are made; `topk` has the way for all else.

use super::array::Buffer;
use super::context::{Grid, int, slots};
use super::copies::{MAP, described};
use super::linear::Weights;
use super::{Array, CudaError, Dtype};

/// Fewer rows leave most of a tile empty.
const FEW: usize = 256;
/// As in likeliest.cu: outputs of a tile, what the copy engine brings at a time, and the blocks' shape.
const OUTPUTS: usize = 256;
const BOX: [u32; 2] = [64, 128];
const STAGES: usize = 4;
const STAGE_BYTES: usize = 3 * 64 * 128 * 2;
const PAIR: usize = 2;
const THREADS: usize = 384;
/// `Head` of likeliest.cu in words.
const ARGUMENTS: usize = 48;

/// Whether [`words`] can be asked for.
pub(crate) fn can(x: &Array, by: &Weights) -> bool {
    let (formats, whole) = ([x.dtype(), by.matrix().dtype()], by.inputs().is_multiple_of(8));
    let plain = by.padded_bias().is_none() && formats == [Dtype::Bf16; 2] && whole;
    plain && x.rows() >= FEW && x.cuda().capability() == (9, 0)
}

/// Writes a word for each row of x: the index of its largest output, and the logarithm of that one's share, as bits.
pub(crate) fn words(x: &Array, by: &Weights, to: u64) -> Result<(), CudaError> {
    let (cuda, rows, blocks) = (x.cuda(), x.rows(), by.outputs().div_ceil(OUTPUTS));
    let parts = Buffer::new(cuda, rows * blocks * 16)?;
    let mut arguments = [0u64; ARGUMENTS];
    arguments[..MAP].copy_from_slice(&described(x, BOX)?);
    arguments[MAP..2 * MAP].copy_from_slice(&described(by.matrix(), BOX)?);
    arguments[2 * MAP..2 * MAP + 4].copy_from_slice(&[rows as u64, by.outputs() as u64, by.inputs() as u64, parts.pointer()]);
    let shared = STAGES * STAGE_BYTES + 1024; // stages begin at a multiple of 1024
    let grid = Grid { blocks: (cuda.multiprocessors()? / PAIR * PAIR, 1, 1), threads: THREADS, shared };
    // SAFETY: the kernel's one parameter is made of these words; the matrices are described whole, parts are (rows, blocks).
    unsafe { cuda.launch("likeliest_parts", grid, &mut arguments) }?;
    let grid = Grid { blocks: (rows.div_ceil(8), 1, 1), threads: 256, shared: 0 };
    // SAFETY: every part was written; the caller has a word for each row.
    unsafe { cuda.launch("likeliest_whole", grid, slots![parts.pointer(), int(rows), int(blocks), to]) }
}
