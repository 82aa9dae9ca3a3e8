//! Normalisation of rows.

use super::Format;
use crate::cuda::norm::DeviceNorm;
use crate::device::Kind;
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// A normalisation and its parameters.
#[derive(Debug)]
pub struct Norm {
    pub(crate) eps: f32,
    pub(crate) scale: Vec<f32>,         // (width)
    pub(crate) shift: Option<Vec<f32>>, // (width) of a layer norm; none of a root-mean-square norm
    on_gpu: Option<DeviceNorm>,
}

impl Norm {
    /// Subtract the mean, divide by the standard deviation, scale and shift.
    pub fn layer(device: &Device, eps: f32, scale: Vec<f32>, shift: Vec<f32>) -> Result<Self, DeviceError> {
        assert_eq!(scale.len(), shift.len(), "layer norm: {} scales, {} shifts", scale.len(), shift.len());
        let on_gpu = match device.kind() {
            Kind::Cpu(_) => None,
            Kind::Cuda(cuda) => Some(DeviceNorm::layer(cuda, eps, &scale, &shift)?),
        };
        Ok(Self { eps, scale, shift: Some(shift), on_gpu })
    }

    /// Divide by the root of the mean square and scale.
    pub fn rms(device: &Device, eps: f32, scale: Vec<f32>) -> Result<Self, DeviceError> {
        let on_gpu = match device.kind() {
            Kind::Cpu(_) => None,
            Kind::Cuda(cuda) => Some(DeviceNorm::rms(cuda, eps, &scale)?),
        };
        Ok(Self { eps, scale, shift: None, on_gpu })
    }

    /// How many numbers are normalised together.
    pub fn width(&self) -> usize {
        self.scale.len()
    }

    pub(crate) fn gpu(&self) -> &DeviceNorm {
        self.on_gpu.as_ref().unwrap_or_else(|| panic!("this norm is not on the gpu"))
    }
}

/// Normalises each row of x (rows, width) into out (rows, width).
pub fn norm(device: &Device, x: &Tensor, by: &Norm, format: Format, out: &mut Tensor) -> Result<(), DeviceError> {
    assert_eq!(x.cols(), by.width(), "norm: rows of {} against parameters of {}", x.cols(), by.width());
    match device.kind() {
        Kind::Cpu(cpu) => {
            out.reshape(x.rows(), x.cols());
            cpu::norm::norm(cpu.isa, x, by, out);
        }
        Kind::Cuda(cuda) => *out = cuda::norm::norm(x.array(), by.gpu(), format.on(cuda))?.into(),
    }
    Ok(())
}
