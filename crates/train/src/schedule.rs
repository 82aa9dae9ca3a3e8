//! How the learning rate goes, and what a step of the optimizer is.

use model::Parameter;
use model::parameters;
use serde::{Deserialize, Serialize};
use tensor::ops::{self, AdamW};
use tensor::{Device, DeviceError};

/// The learning rate over the steps: a linear warm-up, then constant or half a cosine down to
/// `floor`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LrSchedule {
    /// The largest rate.
    pub peak: f32,
    /// Steps until the peak.
    pub warmup: u32,
    /// Steps in all.
    pub steps: u32,
    /// The rate at the last step, as a share of the peak; 1 stays at the peak.
    pub floor: f32,
}

impl LrSchedule {
    /// The rate of step `step`, counted from 0.
    pub fn lr(&self, step: u32) -> f32 {
        if step < self.warmup {
            return self.peak * (step + 1) as f32 / self.warmup as f32;
        }
        let left = self.steps.saturating_sub(self.warmup).max(1);
        let done = ((step - self.warmup) as f32 / left as f32).min(1.0);
        let cosine = 0.5 * (1.0 + (std::f32::consts::PI * done).cos());
        self.peak * (self.floor + (1.0 - self.floor) * cosine)
    }
}

/// AdamW with clipping by the norm of all gradients together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Optimizer {
    /// The rate.
    pub schedule: LrSchedule,
    /// Decay of the first and of the second moment.
    pub betas: (f32, f32),
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled decay of matrices (of everything with `decay_all`).
    pub weight_decay: f32,
    /// Whether norms and biases decay too.
    pub decay_all: bool,
    /// The largest norm of a step's gradient; larger ones are scaled down to it.
    pub clip: Option<f32>,
}

/// What a step of the optimizer saw.
#[derive(Clone, Copy, Debug)]
pub struct StepStats {
    /// The learning rate.
    pub lr: f32,
    /// The gradient's norm before clipping.
    pub grad_norm: f32,
}

impl Optimizer {
    /// Step `step` (counted from 0) over all parameters, whose gradients are sums over
    /// `accumulated` equal parts.
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
        let scale = self.clip.map_or(1.0, |most| if norm > most { most / norm } else { 1.0 });
        let (beta1, beta2) = self.betas;
        let by = AdamW {
            lr: self.schedule.lr(step),
            beta1,
            beta2,
            eps: self.eps,
            weight_decay: self.weight_decay,
            step: step + 1,
            gradient_scale: scale * share,
        };
        parameters::adamw_step(device, &by, self.decay_all, parameters.drain(..))?;
        Ok(StepStats { lr: by.lr, grad_norm: norm })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_then_falls_to_its_floor() {
        let schedule = LrSchedule { peak: 1.0, warmup: 10, steps: 110, floor: 0.1 };
        assert_eq!(schedule.lr(0), 0.1);
        assert_eq!(schedule.lr(9), 1.0);
        assert!((schedule.lr(60) - 0.55).abs() < 1e-6, "halfway down");
        assert!((schedule.lr(110) - 0.1).abs() < 1e-6);
        assert!((schedule.lr(500) - 0.1).abs() < 1e-6, "it stays there");
        assert!((10..110).all(|s| schedule.lr(s + 1) <= schedule.lr(s)));
        assert_eq!(LrSchedule { floor: 1.0, ..schedule }.lr(80), 1.0);
    }
}
