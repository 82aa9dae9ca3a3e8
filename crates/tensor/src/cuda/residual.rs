//! A linear map whose result joins the residual stream: in one kernel for many rows of 768 numbers
//! on Hopper, else a product and `norm`'s pass over the rows.

use super::args::{CudaDropoutMask, ResidualAddend};
use super::context::{LaunchConfig, int};
use super::dropout::DropoutArgs;
use super::linear::{self, CudaLinear};
use super::memory::DeviceBuffer;
use super::norm::{self, CudaNorm};
use super::stream::MAILBOX_BYTES;
use super::tma::{TENSOR_MAP_WORDS, tensor_map, tensor_map_interleaved};
use super::{CudaDtype, CudaError, CudaTensor, graph, hopper_gemm};

/// As in residual.cu: the width of the stream, the blocks that share its rows, what they tell each
/// other, and their shape.
const WIDTH: usize = 768;
const ROW_CTAS: usize = 4;
const CLUSTER_ROWS: usize = 256;
const CLUSTER: usize = 2;
const PUBLISHED_BYTES: usize = 16; // bytes of a row's part
const THREADS: usize = 512;
const SHARED: usize = 210_264;
/// More rows are more than fit the board.
const MAX_ROWS: usize = MAILBOX_BYTES / (ROW_CTAS * PUBLISHED_BYTES) / CLUSTER_ROWS * CLUSTER_ROWS;
/// `Residual` of residual.cu in words.
const PARAM_WORDS: usize = 80;

/// `stream += dropout(x W + b)`, then the norm of the new stream in format `want`: x is (rows,
/// inputs), the stream (rows, outputs) of f32.
pub(crate) fn linear_residual_norm(
    x: &CudaTensor,
    by: &CudaLinear,
    mask: Option<CudaDropoutMask<'_>>,
    stream: &mut CudaTensor,
    (norm, want): (&CudaNorm, CudaDtype),
) -> Result<CudaTensor, CudaError> {
    if !is_supported(x, by, mask.as_ref()) {
        let y = linear::matmul(x, by, x.cuda().compute_dtype())?;
        return norm::add_norm(
            stream,
            ResidualAddend { y: &y, bias: by.padded_bias(), mask },
            norm,
            want,
        );
    }
    let (cuda, rows) = (x.cuda(), x.rows());
    assert_eq!(
        (x.cols(), norm.width()),
        (by.inputs(), WIDTH),
        "residual: rows or a norm of another width"
    );
    assert_eq!(
        (stream.rows(), stream.cols(), stream.dtype()),
        (rows, WIDTH, CudaDtype::F32),
        "residual: the stream has another shape"
    );
    let DropoutArgs { pointer: perturbations, site, .. } =
        DropoutArgs::new(mask.as_ref(), rows, WIDTH);
    let out = CudaTensor::uninit(cuda, rows, WIDTH, want)?;
    // A result in single precision is written without the copy engine.
    let (described_out, single) = match want {
        CudaDtype::Bf16 => (tensor_map(&out, [64, 16])?, 0),
        CudaDtype::F32 => ([0; TENSOR_MAP_WORDS], out.pointer()),
    };
    let maps = [
        tensor_map_interleaved(x, [64, 16])?,
        tensor_map(by.matrix(), [64, 96])?,
        tensor_map(stream, [32, 16])?,
        described_out,
    ];
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let pairs = rows.div_ceil(CLUSTER_ROWS);
    let (parts, number) = cuda.current_stream().next_mailbox();
    let bias = by.padded_bias().map_or(0, DeviceBuffer::pointer);
    let mut arguments = [0u64; PARAM_WORDS];
    arguments[..4 * TENSOR_MAP_WORDS].copy_from_slice(maps.as_flattened());
    arguments[4 * TENSOR_MAP_WORDS..4 * TENSOR_MAP_WORDS + 9].copy_from_slice(&[
        bias,
        norm.scale(),
        norm.shift(),
        perturbations,
        single,
        pair(int(rows), int(x.cols())),
        pair(site, norm.eps().to_bits()),
        parts,
        u64::from(number),
    ]);
    let grid = LaunchConfig {
        blocks: (pairs * ROW_CTAS * CLUSTER, 1, 1),
        threads: THREADS,
        shared_bytes: SHARED,
    };
    // SAFETY: the kernel's one parameter is made of these words; matrices are described whole,
    // vectors are as wide as the stream, there is a draw for each row, and a place on the board
    // for each row's parts.
    unsafe { cuda.launch("residual_768", grid, &mut arguments) }?;
    Ok(out)
}

/// Whether all of it can be one kernel, and is sooner so.
fn is_supported(x: &CudaTensor, by: &CudaLinear, mask: Option<&CudaDropoutMask<'_>>) -> bool {
    let formats = [x.dtype(), by.matrix().dtype()] == [CudaDtype::Bf16; 2];
    let shape = by.outputs() == WIDTH && by.inputs().is_multiple_of(8) && x.rows() <= MAX_ROWS;
    // A kernel that is replayed would have the number of the one that was recorded.
    let new = graph::capture_stream(x.cuda()).is_none();
    new && formats
        && shape
        && !matches!(mask, Some(CudaDropoutMask::Recorded { .. }))
        && x.cuda().capability() == (9, 0)
        && hopper_gemm::fills_waves(x, by)
}
