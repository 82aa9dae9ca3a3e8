//! Functions applied element by element.

use crate::cuda;
use crate::device::Kind;
use crate::{Device, DeviceError, Tensor, cpu};

/// A function that a linear map's result may pass through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    None,
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU with the error function.
    GeluErf,
}

impl From<Activation> for cuda::linear::Activation {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::None => Self::None,
            Activation::GeluTanh => Self::GeluTanh,
            Activation::GeluErf => Self::GeluErf,
        }
    }
}

/// What a result is for, which decides how exactly it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// To be multiplied next: in the format of the device's operands.
    Operand,
    /// To be kept, added to or compared: in single precision.
    Single,
}

impl Format {
    pub(crate) fn on(self, cuda: &cuda::Cuda) -> cuda::Dtype {
        match self {
            Self::Operand => cuda.operand(),
            Self::Single => cuda::Dtype::F32,
        }
    }
}

/// `out[r, c] = silu(x[r, c]) * x[r, n + c]`: x is (rows, 2n), out becomes (rows, n).
pub fn swiglu(device: &Device, x: &Tensor, out: &mut Tensor) -> Result<(), DeviceError> {
    assert!(x.cols().is_multiple_of(2), "swiglu: {} columns are not two halves", x.cols());
    match device.kind() {
        Kind::Cpu(cpu) => {
            out.reshape(x.rows(), x.cols() / 2);
            cpu::activation::swiglu(cpu.isa, x, out);
        }
        Kind::Cuda(_) => *out = cuda::activation::swiglu(x.array())?.into(),
    }
    Ok(())
}
