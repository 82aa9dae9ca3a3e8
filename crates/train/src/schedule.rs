//! The learning-rate schedule and the optimizer step.

use model::{Parameter, parameters};
use tensor::ops::{self, AdamW};
use tensor::{Device, DeviceError};

/// Learning-rate schedule: linear warmup, then cosine decay from `peak` to `peak * min_ratio`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LrSchedule {
    /// The learning rate after warmup.
    pub peak: f32,
    /// Number of warmup steps.
    pub warmup: u32,
    /// Total number of steps.
    pub steps: u32,
    /// The final learning rate as a fraction of the peak; 1 keeps it constant.
    pub min_ratio: f32,
}

impl LrSchedule {
    /// The learning rate of step `step`, counted from 0.
    pub fn lr(&self, step: u32) -> f32 {
        if step < self.warmup {
            return self.peak * (step + 1) as f32 / self.warmup as f32;
        }
        let left = self.steps.saturating_sub(self.warmup).max(1);
        let done = ((step - self.warmup) as f32 / left as f32).min(1.0);
        let cosine = 0.5 * (1.0 + (std::f32::consts::PI * done).cos());
        self.peak * (self.min_ratio + (1.0 - self.min_ratio) * cosine)
    }
}

/// AdamW with clipping by global gradient norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    /// Learning-rate schedule.
    pub schedule: LrSchedule,
    /// Decay rates of the first and the second moment.
    pub betas: (f32, f32),
    /// Added to the root of the second moment to avoid division by zero.
    pub eps: f32,
    /// Decoupled weight decay of matrices (of all parameters with `decay_all`).
    pub weight_decay: f32,
    /// Whether weight decay also applies to norms and biases.
    pub decay_all: bool,
    /// Maximum global gradient norm; larger gradients are scaled down to it.
    pub clip: Option<f32>,
}

/// Statistics of one optimizer step, for the log.
#[derive(Clone, Copy, Debug)]
pub struct StepStats {
    /// Learning rate.
    pub lr: f32,
    /// Global gradient norm before clipping.
    pub grad_norm: f32,
}

impl Optimizer {
    /// Optimizer step `step` (counted from 0). Gradients are sums over `accumulated` micro-batches
    /// and are averaged here.
    pub fn step(
        &self,
        device: &Device,
        step: u32,
        accumulated: u32,
        mut parameters: Vec<&mut Parameter>,
    ) -> Result<StepStats, DeviceError> {
        let share = 1.0 / accumulated as f32;
        let gradients: Vec<_> = parameters.iter().map(|p| &p.gradient).collect();
        let norm = ops::sum_of_squares(device, &gradients)?.sqrt() as f32 * share;
        let scale = self.clip.map_or(1.0, |max| if norm > max { max / norm } else { 1.0 });
        let (beta1, beta2) = self.betas;
        let adamw = AdamW {
            lr: self.schedule.lr(step),
            beta1,
            beta2,
            eps: self.eps,
            weight_decay: self.weight_decay,
            step: step + 1,
            gradient_scale: scale * share,
        };
        parameters::adamw_step(device, &adamw, self.decay_all, parameters.drain(..))?;
        Ok(StepStats { lr: adamw.lr, grad_norm: norm })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lr_warms_up_then_decays_to_its_floor() {
        let schedule = LrSchedule { peak: 1.0, warmup: 10, steps: 110, min_ratio: 0.1 };
        assert_eq!(schedule.lr(0), 0.1);
        assert_eq!(schedule.lr(9), 1.0);
        assert!((schedule.lr(60) - 0.55).abs() < 1e-6, "half of the cosine");
        assert!((schedule.lr(110) - 0.1).abs() < 1e-6);
        assert!((schedule.lr(500) - 0.1).abs() < 1e-6, "constant after the last step");
        assert!((10..110).all(|s| schedule.lr(s + 1) <= schedule.lr(s)));
        assert_eq!(LrSchedule { min_ratio: 1.0, ..schedule }.lr(80), 1.0);
    }
}
