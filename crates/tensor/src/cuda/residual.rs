//! A linear map whose result joins the residual stream: in one kernel for many rows of 768 numbers on Hopper, else a product and
//! `norm`'s pass over the rows.

use super::array::Buffer;
use super::context::{Grid, int};
use super::copies::{MAP, described, described_in_eights};
use super::linear::{self, Weights};
use super::mask::{DeviceMask, MaskArguments};
use super::norm::{self, Addend, DeviceNorm};
use super::{Array, CudaError, Dtype};

/// Fewer rows leave most of the GPU idle.
const FEW: usize = 1024;
/// As in residual.cu: the width of the stream, the blocks that share its rows and their shape.
const WIDTH: usize = 768;
const CLUSTER: usize = 4;
const ROWS: usize = 128;
const THREADS: usize = 512;
const SHARED: usize = 230_720;
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
    if can(x, by, mask.as_ref()) {
        return at_once(x, by, mask, stream, (norm, want));
    }
    let y = linear::product(x, by, x.cuda().operand())?;
    norm::add_norm(stream, Addend { y: &y, bias: by.padded_bias(), mask }, norm, want)
}

fn can(x: &Array, by: &Weights, mask: Option<&DeviceMask<'_>>) -> bool {
    let formats = [x.dtype(), by.matrix().dtype()] == [Dtype::Bf16; 2];
    let shape = by.outputs() == WIDTH && by.inputs().is_multiple_of(8) && x.rows() >= FEW;
    formats && shape && !matches!(mask, Some(DeviceMask::Recorded { .. })) && x.cuda().capability() == (9, 0)
}

fn at_once(
    x: &Array,
    by: &Weights,
    mask: Option<DeviceMask<'_>>,
    stream: &mut Array,
    (norm, want): (&DeviceNorm, Dtype),
) -> Result<Array, CudaError> {
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
        Dtype::Bf16 => (described(&out, [64, 64])?, 0),
        Dtype::F32 => ([0; MAP], out.pointer()),
    };
    let maps =
        [described_in_eights(x, [64, 4])?, described(by.matrix(), [64, 192])?, described(stream, [32, 64])?, described_out];
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let bias = by.padded_bias().map_or(0, Buffer::pointer);
    let mut arguments = [0u64; ARGUMENTS];
    arguments[..4 * MAP].copy_from_slice(maps.as_flattened());
    arguments[4 * MAP..4 * MAP + 8].copy_from_slice(&[
        bias,
        norm.scale(),
        norm.shift(),
        draws,
        single,
        pair(int(rows), int(x.cols())),
        pair(site, threshold),
        pair(keep_scale.to_bits(), norm.eps().to_bits()),
    ]);
    let grid = Grid { blocks: (rows.div_ceil(ROWS) * CLUSTER, 1, 1), threads: THREADS, shared: SHARED };
    // SAFETY: the kernel's one parameter is made of these words; matrices are described whole, vectors are as wide as the stream,
    // and there is a draw for each row.
    unsafe { cuda.launch("residual_768", grid, &mut arguments) }?;
    Ok(out)
}
