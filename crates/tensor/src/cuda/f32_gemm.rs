//! The GEMM of f32 operands (`f32_gemm.cu`): sums in f64, in one order whatever the shape.
//!
//! `--dtype f32` exists for comparisons: with another implementation, whose rounding a long chain
//! of thoughts amplifies, and with the same row in another batch. Plain f32 sums lose a digit and
//! let cuBLASLt choose their order by shape.

use super::blas::{BlasEpilogue, Gemm, GemmPointers};
use super::context::{LaunchConfig, int, kernel_args};
use super::{CudaDevice, CudaDtype, CudaError};

/// Rows and columns of the result that a block computes.
const TILE: usize = 64;
/// Maximum blocks of a grid in its second dimension.
const MAX_GRID_ROWS: usize = 65_535;

/// Whether an epilogue is part of the kernel.
pub(super) fn supports(epilogue: BlasEpilogue) -> bool {
    epilogue != BlasEpilogue::BiasGelu
}

/// Queues a GEMM of f32 operands and result on this thread's stream.
///
/// # Safety
/// The pointers must be valid for the shape, in the order of this stream.
pub(super) unsafe fn gemm(
    cuda: &CudaDevice,
    gemm: Gemm,
    at: GemmPointers,
) -> Result<(), CudaError> {
    let shape = gemm.shape;
    assert_eq!(
        (shape.operand, shape.out, supports(shape.epilogue)),
        (CudaDtype::F32, CudaDtype::F32, true),
        "f32_gemm: a result of another dtype, or an activation"
    );
    let bias = if shape.epilogue == BlasEpilogue::Bias { at.bias } else { 0 };
    // The grid limits the number of rows per launch; gradients of weights have fewer.
    for first in (0..shape.rows).step_by(TILE * MAX_GRID_ROWS) {
        let rows = (shape.rows - first).min(TILE * MAX_GRID_ROWS);
        let config = LaunchConfig {
            blocks: (shape.outputs.div_ceil(TILE), rows.div_ceil(TILE), 1),
            threads: 256,
            shared_bytes: 0,
        };
        let x_row = if gemm.x.transposed { 1 } else { gemm.x.stride };
        let arguments = kernel_args![
            at.x + 4 * (first * x_row) as u64,
            gemm.x.stride as u64,
            int(usize::from(gemm.x.transposed)),
            at.weights,
            gemm.weights.stride as u64,
            int(usize::from(gemm.weights.transposed)),
            bias,
            at.out + 4 * (first * shape.stride) as u64,
            shape.stride as u64,
            int(usize::from(gemm.accumulate)),
            int(rows),
            int(shape.outputs),
            int(shape.inputs)
        ];
        // SAFETY: the kernel reads `rows` rows of x and `outputs` of the weights, `inputs` long
        // with their strides, and writes (rows, outputs) with the result's, as guaranteed by the
        // caller.
        unsafe { cuda.launch("f32_gemm", config, arguments) }?;
    }
    Ok(())
}
