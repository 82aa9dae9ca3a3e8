//! Cross entropy of rows of logits.

use super::context::{LaunchConfig, int, kernel_args};
use super::memory::DeviceBuffer;
use super::{CudaDtype, CudaError, CudaIndices, CudaTensor};

/// The cross entropy of each row (rows, 1), and its gradient times the row's weight, of the compute
/// dtype and the logits' stride.
pub(crate) fn cross_entropy(
    logits: &CudaTensor,
    targets: &CudaIndices,
    weights: &[f32],
) -> Result<(CudaTensor, CudaTensor), CudaError> {
    let cuda = logits.cuda();
    let rows = logits.rows();
    let cols = logits.cols();
    assert_eq!(
        (targets.len(), weights.len()),
        (rows, rows),
        "cross_entropy: targets and weights for {rows} rows"
    );
    assert!(targets.all_below(cols), "cross_entropy: a target beyond a vocabulary of {cols}");
    assert_eq!(logits.dtype(), CudaDtype::F32, "cross_entropy: logits are f32");
    let losses = CudaTensor::uninit(cuda, rows, 1, CudaDtype::F32)?;
    let (from, stride) = logits.ptr_and_stride();
    let out = CudaTensor::uninit_strided(cuda, rows, cols, stride, cuda.compute_dtype())?;
    let weights = DeviceBuffer::upload(cuda, weights)?;
    let (to, to_stride) = out.ptr_and_stride();
    let threads = cols.div_ceil(4).next_multiple_of(32).clamp(32, 512);
    let arguments = kernel_args![
        from,
        int(stride),
        targets.pointer(),
        weights.pointer(),
        losses.pointer(),
        to,
        out.dtype(),
        int(to_stride),
        int(cols),
    ];
    // SAFETY: both matrices are (rows, cols) with their strides, the rest has an element for every
    // row; targets were checked.
    unsafe { cuda.launch("cross_entropy", LaunchConfig::new(rows, threads), arguments) }?;
    Ok((losses, out))
}
