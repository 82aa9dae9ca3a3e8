//! Detection of divergence: an exploded loss that does not recover, or a collapsed reward.
//!
//! The rule compares the smoothed loss (an exponential moving average over [`HORIZON`] steps) with
//! its smallest value so far. Training has diverged when the smoothed loss has been above `ratio`
//! times that value for [`PATIENCE`] consecutive steps. Losses below [`FLOOR`] count as [`FLOOR`],
//! because a curriculum may legitimately raise a loss from 0.05 to 1 when it removes the last step.
//!
//! Noise does not trigger it: a batch with 100 times the loss raises the average by a factor of 3,
//! and the average is back below the limit within 60 steps.
//!
//! In reinforcement learning the loss is around zero and uninformative, so the reward is monitored
//! instead ([`RewardMonitor`]). It has collapsed when its smoothed value has been below its best
//! value divided by `ratio` for [`REWARD_PATIENCE`] steps.

use record::StepRecord;

/// Averaging window of the loss, in steps.
const HORIZON: f64 = 50.0;
/// Consecutive steps above the limit before training has diverged.
const PATIENCE: u32 = 100;
/// Losses below this are not distinguished, in nats per token.
const FLOOR: f64 = 1.0;

/// Averaging window of the reward, in steps.
const REWARD_HORIZON: f64 = 20.0;
/// Consecutive steps below the limit before the reward has collapsed.
const REWARD_PATIENCE: u32 = 20;
/// The check needs a best reward above this; smaller ones are noise.
const REWARD_FLOOR: f64 = 0.05;

/// How a training diverged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Divergence {
    /// A loss is infinite or not a number.
    Loss,
    /// The gradient is infinite or not a number.
    Gradient,
    /// A parameter is infinite or not a number.
    Parameter,
    /// The smoothed loss stays far above its smallest value.
    Exploded {
        /// The smoothed loss.
        loss: f64,
        /// Its smallest value so far.
        best: f64,
    },
    /// The smoothed reward stays far below its largest value.
    Collapsed {
        /// The smoothed reward.
        reward: f64,
        /// Its largest value so far.
        best: f64,
    },
}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loss => write!(f, "the loss is not finite"),
            Self::Gradient => write!(f, "the gradient is not finite"),
            Self::Parameter => write!(f, "the weights are not finite"),
            Self::Exploded { loss, best } => write!(
                f,
                "the loss has exploded: its mean over {HORIZON} steps is {loss:.3} (minimum \
                 {best:.3}) and has been this high for {PATIENCE} steps"
            ),
            Self::Collapsed { reward, best } => write!(
                f,
                "the reward has collapsed: its mean over {REWARD_HORIZON} steps is {reward:.3} \
                 (maximum {best:.3}) and has been this low for {REWARD_PATIENCE} steps; set \
                 `kl_coef` to 0.01 or increase `samples`"
            ),
        }
    }
}

/// Monitors the loss of a training. Its state is a function of the log.
#[derive(Debug)]
pub(super) struct LossMonitor {
    /// Threshold ratio; `None` disables the check.
    ratio: Option<f64>,
    /// Exponential moving sums of the losses and of their weights.
    sum: f64,
    weight: f64,
    steps: f64,
    best: f64,
    steps_above: u32,
    reward: RewardMonitor,
}

/// Monitors the reward in reinforcement learning.
#[derive(Debug, Default)]
struct RewardMonitor {
    /// Exponential moving sums of the rewards and of their weights.
    sum: f64,
    weight: f64,
    steps: f64,
    best: f64,
    steps_below: u32,
}

impl RewardMonitor {
    fn add(&mut self, ratio: f64, reward: f64) -> Option<Divergence> {
        let decay = 1.0 - 1.0 / REWARD_HORIZON;
        self.sum = decay * self.sum + reward;
        self.weight = decay * self.weight + 1.0;
        self.steps += 1.0;
        if self.steps < REWARD_HORIZON {
            return None;
        }
        let smoothed = self.sum / self.weight;
        self.best = self.best.max(smoothed);
        let below = self.best > REWARD_FLOOR && smoothed * ratio < self.best;
        self.steps_below = if below { self.steps_below + 1 } else { 0 };
        let collapsed = Divergence::Collapsed { reward: smoothed, best: self.best };
        (self.steps_below >= REWARD_PATIENCE).then_some(collapsed)
    }
}

impl LossMonitor {
    pub(super) fn new(ratio: Option<f64>) -> Self {
        Self {
            ratio,
            sum: 0.0,
            weight: 0.0,
            steps: 0.0,
            best: f64::INFINITY,
            steps_above: 0,
            reward: RewardMonitor::default(),
        }
    }

    /// Adds a step's `loss`; a step without one is ignored.
    pub(super) fn add(&mut self, record: &StepRecord) -> Option<Divergence> {
        let ratio = self.ratio?;
        if let Some(reward) = record.losses.get("reward") {
            return self.reward.add(ratio, reward);
        }
        let loss = record.losses.get("loss")?;
        let decay = 1.0 - 1.0 / HORIZON;
        self.sum = decay * self.sum + loss;
        self.weight = decay * self.weight + 1.0;
        self.steps += 1.0;
        if self.steps < HORIZON {
            return None;
        }
        let smoothed = self.sum / self.weight;
        self.best = self.best.min(smoothed);
        let above = smoothed > ratio * self.best.max(FLOOR);
        self.steps_above = if above { self.steps_above + 1 } else { 0 };
        let exploded = Divergence::Exploded { loss: smoothed, best: self.best };
        (self.steps_above >= PATIENCE).then_some(exploded)
    }
}

#[cfg(test)]
mod tests {
    use record::Losses;

    use super::*;

    /// The step at which this loss diverges, if it does within 2000 steps.
    fn diverges(loss: impl Fn(u32) -> f64) -> Option<u32> {
        let mut monitor = LossMonitor::new(Some(3.0));
        let record = |step: u32| StepRecord {
            step,
            losses: Losses::new(loss(step)),
            ..StepRecord::default()
        };
        (0..2000).find(|&step| monitor.add(&record(step)).is_some())
    }

    /// A deterministic "noise" in 0..1.
    fn noise(step: u32) -> f64 {
        f64::from(step.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24)
    }

    /// An ordinary learning curve from 6 nats to 0.1.
    fn ordinary(step: u32) -> f64 {
        (0.1 + 5.9 * (-f64::from(step) / 100.0).exp()) * (0.5 + noise(step))
    }

    #[test]
    fn a_loss_that_explodes_and_stays_is_found() {
        let exploded = |step: u32| if step < 800 { ordinary(step) } else { 9.0 + noise(step) };
        let found = diverges(exploded).unwrap();
        assert!((900..1000).contains(&found), "{found}");
        let slowly = |step: u32| ordinary(step) + (f64::from(step) / 300.0).exp();
        assert!(diverges(slowly).is_some());
    }

    #[test]
    fn noise_spikes_and_curricula_are_no_divergence() {
        assert_eq!(diverges(ordinary), None);
        let spikes = |step: u32| ordinary(step) * if step.is_multiple_of(97) { 60.0 } else { 1.0 };
        assert_eq!(diverges(spikes), None);
        let curriculum =
            |step: u32| if step < 800 { ordinary(step) } else { 0.02 + 2.5 * noise(step) };
        assert_eq!(diverges(curriculum), None, "from 0.1 to 1.3");
        let recovered = |step: u32| if (800..860).contains(&step) { 12.0 } else { ordinary(step) };
        assert_eq!(diverges(recovered), None, "60 steps of a high loss");
    }

    /// The step at which this reward collapses, if it does within 2000 steps.
    fn collapses(reward: impl Fn(u32) -> f64) -> Option<u32> {
        let mut monitor = LossMonitor::new(Some(2.0));
        let record = |step: u32| StepRecord {
            step,
            losses: Losses::new(-5.0).with("reward", reward(step)),
            ..StepRecord::default()
        };
        (0..2000).find(|&step| monitor.add(&record(step)).is_some())
    }

    #[test]
    fn a_reward_that_collapses_is_found_and_noise_is_not() {
        let rising = |step: u32| 0.3 + 0.4 * (1.0 - (-f64::from(step) / 300.0).exp());
        let noisy = |step: u32| rising(step) * (0.5 + noise(step));
        assert_eq!(collapses(noisy), None);
        let found = collapses(|step| if step < 500 { noisy(step) } else { 0.1 }).unwrap();
        assert!((520..600).contains(&found), "{found}");
        assert_eq!(collapses(|step| 0.02 * noise(step)), None, "never learned");
    }

    #[test]
    fn without_a_ratio_nothing_diverges() {
        let mut monitor = LossMonitor::new(None);
        let record = StepRecord { losses: Losses::new(1e9), ..StepRecord::default() };
        assert!((0..500).all(|_| monitor.add(&record).is_none()));
    }
}
