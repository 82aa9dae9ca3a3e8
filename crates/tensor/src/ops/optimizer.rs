//! AdamW, and squared norms of gradients.

use crate::device::Backend;
use crate::params::AdamWCoefficients;
use crate::{Device, DeviceError, Tensor, cpu, cuda};

/// One step of AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), as in
/// `torch.optim.AdamW`.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// The learning rate of this step.
    pub lr: f32,
    /// The decay of the first moment.
    pub beta1: f32,
    /// The decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment, after bias correction.
    pub eps: f32,
    /// The decoupled weight decay, times the learning rate.
    pub weight_decay: f32,
    /// The step, counted from 1.
    pub step: u32,
    /// Multiplied with gradients first: one over the batch size, and gradient clipping.
    pub gradient_scale: f32,
}

/// The moments of a parameter's gradient, of its shape; zeros at first.
#[derive(Clone, Debug)]
pub struct Moments {
    /// The running mean (`exp_avg`).
    pub first: Tensor,
    /// The running mean square (`exp_avg_sq`).
    pub second: Tensor,
}

impl From<&AdamW> for AdamWCoefficients {
    fn from(by: &AdamW) -> Self {
        let bias_correction = |beta: f32| 1.0 - f64::from(beta).powf(f64::from(by.step));
        let AdamW { lr, beta1, beta2, eps, weight_decay, gradient_scale, .. } = *by;
        Self {
            beta1,
            beta2,
            eps,
            gradient_scale,
            keep: (1.0 - f64::from(lr) * f64::from(weight_decay)) as f32,
            rate: (f64::from(lr) / bias_correction(beta1)) as f32,
            second_scale: (1.0 / bias_correction(beta2).sqrt()) as f32,
        }
    }
}

/// Updates a parameter and its moments in place and sets its gradient to zero; all are f32 of one
/// shape.
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
        "adamw: shapes differ"
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

/// The sum of squares of all elements of all tensors (f32), summed in f64. Synchronizes with the
/// device.
pub fn sum_of_squares(device: &Device, of: &[&Tensor]) -> Result<f64, DeviceError> {
    match device.backend() {
        Backend::Cpu(_) => Ok(of.iter().map(|x| cpu::optimizer::sum_of_squares(x)).sum()),
        Backend::Cuda(_) => {
            Ok(cuda::optimizer::sum_of_squares(&of.iter().map(|x| x.gpu()).collect::<Vec<_>>())?)
        }
    }
}
