//! Losses of rows of logits.

use super::array::Buffer;
use super::context::{Grid, int, slots};
use super::{Array, CudaError, Dtype, Indices};

/// The cross entropy of each row (rows, 1), and its gradient times the row's weight as an operand, its rows as far apart
/// as those of the logits.
pub(crate) fn cross_entropy(logits: &Array, targets: &Indices, weights: &[f32]) -> Result<(Array, Array), CudaError> {
    let (cuda, rows, cols) = (logits.cuda(), logits.rows(), logits.cols());
    assert_eq!((targets.len(), weights.len()), (rows, rows), "cross_entropy: targets and weights for {rows} rows");
    assert!(targets.all_below(cols), "cross_entropy: a target beyond a vocabulary of {cols}");
    assert_eq!(logits.dtype(), Dtype::F32, "cross_entropy: logits are f32");
    let losses = Array::uninit(cuda, rows, 1, Dtype::F32)?;
    let (from, stride) = logits.rows_at();
    let out = Array::uninit_apart(cuda, rows, (cols, stride), cuda.operand())?;
    let weights = Buffer::upload(cuda, weights)?;
    let (to, to_stride) = out.rows_at();
    let threads = cols.div_ceil(4).next_multiple_of(32).clamp(32, 512);
    let arguments = slots![
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
    // SAFETY: both matrices are (rows, cols) with their strides, the rest has an element for every row; targets were checked.
    unsafe { cuda.launch("cross_entropy", Grid { blocks: (rows, 1, 1), threads, shared: 0 }, arguments) }?;
    Ok((losses, out))
}
