//! A linear map whose result joins the residual stream: in one kernel for many rows of 768 numbers on Hopper, else a product and
//! `norm`'s pass over the rows.

use super::array::Buffer;
use super::context::{Grid, int};
use super::copies::{MAP, described, described_in_eights};
use super::lane::BOARD;
use super::linear::{self, Weights};
use super::mask::{DeviceMask, MaskArguments};
use super::norm::{self, Addend, DeviceNorm};
use super::{Array, CudaError, Dtype, product, replay};

/// As in residual.cu: the width of the stream, the blocks that share its rows, what they tell each other, and their shape.
const WIDTH: usize = 768;
const PARTS: usize = 4;
const PAIR_ROWS: usize = 256;
const PAIR: usize = 2;
const TOLD: usize = 16; // bytes of a row's part
const THREADS: usize = 512;
const SHARED: usize = 210_264;
/// More rows are more than fit the board.
const MOST: usize = BOARD / (PARTS * TOLD) / PAIR_ROWS * PAIR_ROWS;
/// `Residual` of residual.cu in words.
const ARGUMENTS: usize = 80;

/// `stream += dropout(x W + b)`, then the norm of the new stream in format `want`: x is (rows, inputs), the stream (rows, outputs)
/// of f32.
pub(crate) fn residual(
    x: &Array,
    by: &Weights,
    mask: Option<DeviceMask<'_>>,
    stream: &mut Array,
    (norm, want): (&DeviceNorm, Dtype),
) -> Result<Array, CudaError> {
    if !can(x, by, mask.as_ref()) {
        let y = linear::product(x, by, x.cuda().operand())?;
        return norm::add_norm(stream, Addend { y: &y, bias: by.padded_bias(), mask }, norm, want);
    }
    let (cuda, rows) = (x.cuda(), x.rows());
    assert_eq!((x.cols(), norm.width()), (by.inputs(), WIDTH), "residual: rows or a norm of another width");
    assert_eq!(
        (stream.rows(), stream.cols(), stream.dtype()),
        (rows, WIDTH, Dtype::F32),
        "residual: the stream has another shape"
    );
    let MaskArguments { pointer: draws, site, threshold, keep_scale, .. } = MaskArguments::new(mask.as_ref(), rows, WIDTH);
    let out = Array::uninit(cuda, rows, WIDTH, want)?;
    // A result in single precision is written without the copy engine.
    let (described_out, single) = match want {
        Dtype::Bf16 => (described(&out, [64, 16])?, 0),
        Dtype::F32 => ([0; MAP], out.pointer()),
    };
    let maps =
        [described_in_eights(x, [64, 16])?, described(by.matrix(), [64, 96])?, described(stream, [32, 16])?, described_out];
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let pairs = rows.div_ceil(PAIR_ROWS);
    let (parts, number) = cuda.lane().board();
    let bias = by.padded_bias().map_or(0, Buffer::pointer);
    let mut arguments = [0u64; ARGUMENTS];
    arguments[..4 * MAP].copy_from_slice(maps.as_flattened());
    arguments[4 * MAP..4 * MAP + 10].copy_from_slice(&[
        bias,
        norm.scale(),
        norm.shift(),
        draws,
        single,
        pair(int(rows), int(x.cols())),
        pair(site, threshold),
        pair(keep_scale.to_bits(), norm.eps().to_bits()),
        parts,
        u64::from(number),
    ]);
    let grid = Grid { blocks: (pairs * PARTS * PAIR, 1, 1), threads: THREADS, shared: SHARED };
    // SAFETY: the kernel's one parameter is made of these words; matrices are described whole, vectors are as wide as the stream,
    // there is a draw for each row, and a place on the board for each row's parts.
    unsafe { cuda.launch("residual_768", grid, &mut arguments) }?;
    Ok(out)
}

/// Whether all of it can be one kernel, and is sooner so.
fn can(x: &Array, by: &Weights, mask: Option<&DeviceMask<'_>>) -> bool {
    let formats = [x.dtype(), by.matrix().dtype()] == [Dtype::Bf16; 2];
    let shape = by.outputs() == WIDTH && by.inputs().is_multiple_of(8) && x.rows() <= MOST;
    // A kernel that is replayed would have the number of the one that was recorded.
    let new = replay::stream(x.cuda()).is_none();
    new && formats
        && shape
        && !matches!(mask, Some(DeviceMask::Recorded { .. }))
        && x.cuda().capability() == (9, 0)
        && product::fills(x, by)
}
