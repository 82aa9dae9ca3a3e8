//! Steps of the optimizer, and the size of gradients.

use crate::device::Backend;
use crate::params::AdamWCoefficients;
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), as
/// `torch.optim.AdamW` has it.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// The learning rate of this step.
    pub lr: f32,
    /// What is kept of the first moment.
    pub beta1: f32,
    /// What is kept of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// The share of the value, times the learning rate, that is taken away.
    pub weight_decay: f32,
    /// This step's number, from 1.
    pub step: u32,
    /// What gradients are multiplied with first: one over the size of a batch, clipping.
    pub gradient_scale: f32,
}

/// What is remembered of a parameter's gradients, each of its shape. Both start as zeros.
#[derive(Clone, Debug)]
pub struct Moments {
    /// The mean.
    pub first: Tensor,
    /// The mean square.
    pub second: Tensor,
}

impl From<&AdamW> for AdamWCoefficients {
    fn from(by: &AdamW) -> Self {
        let left = |beta: f32| 1.0 - f64::from(beta).powf(f64::from(by.step));
        let AdamW { lr, beta1, beta2, eps, weight_decay, gradient_scale, .. } = *by;
        Self {
            beta1,
            beta2,
            eps,
            gradient_scale,
            keep: (1.0 - f64::from(lr) * f64::from(weight_decay)) as f32,
            rate: (f64::from(lr) / left(beta1)) as f32,
            second_scale: (1.0 / left(beta2).sqrt()) as f32,
        }
    }
}

/// One step of a parameter, in place. The gradient is zero afterwards. All have one shape and are
/// in single precision.
pub fn adamw(
    device: &Device,
    by: &AdamW,
    value: &mut Tensor,
    gradient: &mut Tensor,
    moments: &mut Moments,
) -> Result<(), DeviceError> {
    let shape = (value.rows(), value.cols());
    let fits = |x: &Tensor| (x.rows(), x.cols()) == shape;
    assert!(
        fits(gradient) && fits(&moments.first) && fits(&moments.second),
        "adamw: unlike shapes"
    );
    assert!(by.step > 0, "adamw: steps are counted from 1");
    match device.backend() {
        Backend::Cpu(cpu) => cpu::optimizer::adamw(cpu.isa, &by.into(), value, gradient, moments),
        Backend::Cuda(_) => {
            let moments = [moments.first.gpu_mut()?, moments.second.gpu_mut()?];
            cuda::optimizer::adamw(&by.into(), value.gpu_mut()?, gradient.gpu_mut()?, moments)?;
        }
    }
    Ok(())
}

/// The sum of squares of all elements of all matrices (single precision), added up in double
/// precision. Waits for the device.
pub fn sum_of_squares(device: &Device, of: &[&Tensor]) -> Result<f64, DeviceError> {
    match device.backend() {
        Backend::Cpu(_) => Ok(of.iter().map(|x| cpu::optimizer::sum_of_squares(x)).sum()),
        Backend::Cuda(_) => {
            Ok(cuda::optimizer::sum_of_squares(&of.iter().map(|x| x.gpu()).collect::<Vec<_>>())?)
        }
    }
}
