//! Functions applied element by element.

use crate::cuda::{self, CudaDtype};
use crate::device::Backend;
use crate::params::Activation;
use crate::{Device, DeviceError, Tensor, cpu};

/// What a result is for, which decides how exactly it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputDtype {
    /// To be multiplied next: in the format of the device's operands.
    Compute,
    /// To be kept, added to or compared: in single precision.
    F32,
}

impl OutputDtype {
    pub(crate) fn cuda_dtype(self, cuda: &cuda::CudaDevice) -> CudaDtype {
        match self {
            Self::Compute => cuda.compute_dtype(),
            Self::F32 => CudaDtype::F32,
        }
    }
}

/// `out[r, c] = silu(x[r, c]) * x[r, n + c]`: x is (rows, 2n), out becomes (rows, n).
pub fn swiglu(device: &Device, x: &Tensor, out: &mut Tensor) -> Result<(), DeviceError> {
    assert!(x.cols().is_multiple_of(2), "swiglu: {} columns are not two halves", x.cols());
    match device.backend() {
        Backend::Cpu(cpu) => {
            out.reshape(x.rows(), x.cols() / 2);
            cpu::activation::swiglu(cpu.isa, x, out);
        }
        Backend::Cuda(_) => *out = cuda::activation::swiglu(x.gpu())?.into(),
    }
    Ok(())
}

/// `out = activation(x)`, both (rows, columns): a pass of its own, so that x can be kept for the
/// backward.
pub fn activate(
    device: &Device,
    x: &Tensor,
    activation: Activation,
    format: OutputDtype,
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    match device.backend() {
        Backend::Cpu(cpu) => {
            out.reshape(x.rows(), x.cols());
            cpu::activation::activate(cpu.isa, x, activation, out);
        }
        Backend::Cuda(cuda) => {
            *out = cuda::activation::activate(x.gpu(), activation, format.cuda_dtype(cuda))?.into();
        }
    }
    Ok(())
}

/// `dx = dy * activation'(x)`, all (rows, columns): x is what went into the activation.
pub fn activate_backward(
    device: &Device,
    x: &Tensor,
    activation: Activation,
    dy: &Tensor,
    format: OutputDtype,
    dx: &mut Tensor,
) -> Result<(), DeviceError> {
    assert_eq!((x.rows(), x.cols()), (dy.rows(), dy.cols()), "activate_backward: unlike shapes");
    match device.backend() {
        Backend::Cpu(cpu) => {
            dx.reshape(x.rows(), x.cols());
            cpu::activation::activate_backward(cpu.isa, x, activation, dy, dx);
        }
        Backend::Cuda(cuda) => {
            *dx = cuda::activation::activate_backward(
                x.gpu(),
                activation,
                dy.gpu(),
                format.cuda_dtype(cuda),
            )?
            .into();
        }
    }
    Ok(())
}

/// What reaches the input x (rows, 2n) of [`swiglu`] from dy (rows, n): dx becomes (rows, 2n).
pub fn swiglu_backward(
    device: &Device,
    x: &Tensor,
    dy: &Tensor,
    format: OutputDtype,
    dx: &mut Tensor,
) -> Result<(), DeviceError> {
    assert_eq!((x.rows(), x.cols()), (dy.rows(), 2 * dy.cols()), "swiglu_backward: unlike shapes");
    match device.backend() {
        Backend::Cpu(cpu) => {
            dx.reshape(x.rows(), x.cols());
            cpu::activation::swiglu_backward(cpu.isa, x, dy, dx);
        }
        Backend::Cuda(cuda) => {
            *dx = cuda::activation::swiglu_backward(x.gpu(), dy.gpu(), format.cuda_dtype(cuda))?
                .into();
        }
    }
    Ok(())
}
