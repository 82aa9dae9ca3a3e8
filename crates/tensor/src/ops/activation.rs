//! Element-wise activations and the dtype of results.

use crate::cuda::{self, CudaDtype};
use crate::device::Backend;
use crate::params::Activation;
use crate::{Device, DeviceError, Tensor, cpu};

/// The dtype of an operation's result. The CPU computes everything in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputDtype {
    /// The dtype in which the device multiplies: for results that are the input of a linear map.
    Compute,
    /// As [`OutputDtype::Compute`], but e4m3 on a device of precision fp8: for rows that are only
    /// read by a linear map of the decoder, not even by `select`.
    Operand,
    /// f32: for results that are stored, accumulated or compared.
    F32,
}

impl OutputDtype {
    pub(crate) fn cuda_dtype(self, cuda: &cuda::CudaDevice) -> CudaDtype {
        match self {
            Self::Compute => cuda.compute_dtype(),
            Self::Operand => cuda.operand_dtype(),
            Self::F32 => CudaDtype::F32,
        }
    }
}

/// `out[r, c] = silu(x[r, c]) * x[r, n + c]`: x is (rows, 2n), out becomes (rows, n) of x's dtype;
/// if that is [`OutputDtype::Compute`] on a device of precision fp8, of [`OutputDtype::Operand`].
pub fn swiglu(device: &Device, x: &Tensor, out: &mut Tensor) -> Result<(), DeviceError> {
    assert!(x.cols().is_multiple_of(2), "swiglu: {} columns are not two halves", x.cols());
    match device.backend() {
        Backend::Cpu(cpu) => {
            out.reshape(x.rows(), x.cols() / 2);
            cpu::activation::swiglu(cpu.isa, x, out);
        }
        Backend::Cuda(cuda) => *out = cuda::activation::swiglu(cuda, x.gpu())?.into(),
    }
    Ok(())
}

/// `out = activation(x)`, both (rows, columns): not fused, so that x can be saved for the backward.
pub fn activate(
    device: &Device,
    x: &Tensor,
    activation: Activation,
    dtype: OutputDtype,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    match device.backend() {
        Backend::Cpu(cpu) => {
            out.reshape(x.rows(), x.cols());
            cpu::activation::activate(cpu.isa, x, activation, out);
        }
        Backend::Cuda(cuda) => {
            let dtype = dtype.cuda_dtype(cuda);
            *out = cuda::activation::activate(x.gpu(), activation, dtype)?.into();
        }
    }
    Ok(())
}

/// `dx = dy * activation'(x)`, all (rows, columns).
pub fn activate_backward(
    device: &Device,
    x: &Tensor,
    activation: Activation,
    dy: &Tensor,
    dtype: OutputDtype,
    dx: &mut Tensor,
) -> Result<(), DeviceError> {
    assert_eq!((x.rows(), x.cols()), (dy.rows(), dy.cols()), "activate_backward: shapes differ");
    match device.backend() {
        Backend::Cpu(cpu) => {
            dx.reshape(x.rows(), x.cols());
            cpu::activation::activate_backward(cpu.isa, x, activation, dy, dx);
        }
        Backend::Cuda(cuda) => {
            let dy = dy.gpu();
            let dtype = dtype.cuda_dtype(cuda);
            *dx = cuda::activation::activate_backward(x.gpu(), activation, dy, dtype)?.into();
        }
    }
    Ok(())
}

/// The gradient of [`swiglu`]'s input x (rows, 2n) from dy (rows, n): dx becomes (rows, 2n).
pub fn swiglu_backward(
    device: &Device,
    x: &Tensor,
    dy: &Tensor,
    dtype: OutputDtype,
    dx: &mut Tensor,
) -> Result<(), DeviceError> {
    assert_eq!((x.rows(), x.cols()), (dy.rows(), 2 * dy.cols()), "swiglu_backward: shapes differ");
    match device.backend() {
        Backend::Cpu(cpu) => {
            dx.reshape(x.rows(), x.cols());
            cpu::activation::swiglu_backward(cpu.isa, x, dy, dx);
        }
        Backend::Cuda(cuda) => {
            let dtype = dtype.cuda_dtype(cuda);
            *dx = cuda::activation::swiglu_backward(x.gpu(), dy.gpu(), dtype)?.into();
        }
    }
    Ok(())
}
