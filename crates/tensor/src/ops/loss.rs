//! Logits and their cross entropy, for training.

use super::{Activation, Indices, Linear, OutputDtype, linear};
use crate::device::Backend;
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// `out = x W + b` for [`cross_entropy`]: x is (rows, width), out becomes (rows, vocabulary) of
/// f32. Unlike [`linear`](super::linear) it may pad the rows on a GPU, where a GEMM of rows of an
/// odd width is slow, so the result may only be passed to [`cross_entropy`].
pub fn logits(
    device: &Device,
    x: &Tensor,
    head: &Linear,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    match device.backend() {
        Backend::Cpu(_) => linear(device, x, head, Activation::None, OutputDtype::F32, out),
        Backend::Cuda(_) => {
            *out = cuda::linear::logits(x.gpu(), head.gpu())?.into();
            Ok(())
        }
    }
}

/// The cross entropy of each row, `-log softmax(logits)[target]`, as (rows, 1); logits are (rows,
/// vocabulary) of f32. dlogits becomes `weight * (softmax(logits) - onehot(target))`, of the
/// compute dtype and the logits' shape.
pub fn cross_entropy(
    device: &Device,
    logits: &Tensor,
    targets: &Indices,
    weights: &[f32],
    dlogits: &mut Tensor,
) -> Result<Tensor, DeviceError> {
    let rows = logits.rows();
    let cols = logits.cols();
    let target_tokens = targets.host();
    assert_eq!(
        (target_tokens.len(), weights.len()),
        (rows, rows),
        "cross_entropy: targets and weights for {rows} rows"
    );
    assert!(
        target_tokens.iter().all(|&t| (t as usize) < cols),
        "cross_entropy: a target beyond a vocabulary of {cols}"
    );
    match device.backend() {
        Backend::Cpu(cpu) => {
            dlogits.reshape(rows, cols);
            Ok(Tensor::from_vec(
                rows,
                1,
                cpu::loss::cross_entropy(cpu.isa, logits, target_tokens, weights, dlogits),
            ))
        }
        Backend::Cuda(_) => {
            let (losses, gradient) =
                cuda::loss::cross_entropy(logits.gpu(), targets.gpu(), weights)?;
            *dlogits = gradient.into();
            Ok(losses.into())
        }
    }
}
