//! A bf16 GEMM with a fixed summation order (`mma_gemm.cu`), for deterministic devices.
//!
//! cuBLASLt selects its algorithm by shape, and with it the order of a sum, so that a row's result
//! depends on the number of rows. Here it depends on the row only.

use super::blas::{BlasEpilogue, Gemm, GemmPointers};
use super::context::{LaunchConfig, int, kernel_args};
use super::{CudaDevice, CudaError};

/// Rows and columns of the result that a block computes.
const TILE: usize = 128;
const THREADS: usize = 256;

/// Whether an epilogue is part of the kernel.
pub(super) fn supports(epilogue: BlasEpilogue) -> bool {
    epilogue != BlasEpilogue::BiasGelu
}

/// Whether the kernel supports these operands; those of gradients are transposed.
pub(super) fn takes(gemm: &Gemm) -> bool {
    !gemm.x.transposed && !gemm.weights.transposed
}

/// Queues a GEMM of bf16 operands on this thread's stream.
///
/// # Safety
/// The pointers must be valid for the shape and dtypes, in the order of this stream.
pub(super) unsafe fn gemm(
    cuda: &CudaDevice,
    gemm: Gemm,
    at: GemmPointers,
) -> Result<(), CudaError> {
    let shape = gemm.shape;
    assert!(
        takes(&gemm) && supports(shape.epilogue),
        "mma_gemm: a transposed operand, or an activation"
    );
    let config = LaunchConfig {
        blocks: (shape.outputs.div_ceil(TILE), shape.rows.div_ceil(TILE), 1),
        threads: THREADS,
        shared_bytes: 0,
    };
    let bias = if shape.epilogue == BlasEpilogue::Bias { at.bias } else { 0 };
    let arguments = kernel_args![
        at.x,
        gemm.x.stride as u64,
        at.weights,
        gemm.weights.stride as u64,
        bias,
        at.out,
        shape.out,
        shape.stride as u64,
        int(usize::from(gemm.accumulate)),
        int(shape.rows),
        int(shape.outputs),
        int(shape.inputs)
    ];
    // SAFETY: the kernel reads `rows` rows of x and `outputs` of the weights, `inputs` long with
    // their strides, and writes (rows, outputs) with the result's, as guaranteed by the caller.
    unsafe { cuda.launch("mma_gemm", config, arguments) }
}
