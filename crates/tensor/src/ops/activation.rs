//! Functions applied element by element.

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

/// `out[r, c] = silu(x[r, c]) * x[r, n + c]`: x is (rows, 2n), out becomes (rows, n).
pub fn swiglu(device: &Device, x: &Tensor, out: &mut Tensor) -> Result<(), DeviceError> {
    assert!(x.cols().is_multiple_of(2), "swiglu: {} columns are not two halves", x.cols());
    out.reshape(x.rows(), x.cols() / 2);
    cpu::activation::swiglu(device.isa(), x, out);
    Ok(())
}
