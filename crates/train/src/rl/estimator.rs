//! Advantage estimators, clipping and KL estimates. A group is the trajectories of one question.

use serde::{Deserialize, Serialize};

/// Estimator of advantages, the weights of the log-probabilities of a group's trajectories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Estimator {
    /// REINFORCE leave-one-out: reward minus the mean of the group's other rewards
    #[default]
    Rloo,
    /// Group-relative: reward minus the group's mean, divided by its standard deviation
    Grpo,
    /// GRPO without the division (Dr. GRPO)
    GrpoMean,
    /// Reward-gated self-imitation: equal weights for the correct trajectories whose reward exceeds
    /// that of the unperturbed trajectory, none for others
    Imitation,
}

/// Normalization of the loss in an optimizer step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum LossNorm {
    /// Mean over answer tokens (DAPO)
    #[default]
    Token,
    /// Mean over trajectories of the mean over their tokens (GRPO)
    Sequence,
    /// Mean over trajectories of the sum over their tokens
    Trajectory,
}

/// Added to the standard deviation that advantages are divided by.
const EPSILON: f64 = 1e-6;
/// Advantages below this are set to zero: rounding errors of equal rewards.
const NEGLIGIBLE: f64 = 1e-9;

/// The rewards of a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupRewards {
    /// Reward per trajectory.
    pub rewards: Vec<f64>,
    /// Per trajectory: whether it is correct.
    pub correct: Vec<bool>,
    /// Reward of the unperturbed trajectory; needed only by [`Estimator::Imitation`].
    pub greedy: Option<f64>,
}

impl Estimator {
    /// The advantage of each trajectory of a group. All are 0 if the rewards are equal.
    pub fn advantages(self, group: &GroupRewards) -> Vec<f64> {
        let GroupRewards { rewards, correct, greedy } = group;
        let count = rewards.len() as f64;
        let mean = rewards.iter().sum::<f64>() / count.max(1.0);
        let scale = match self {
            Self::Rloo => count / (count - 1.0).max(1.0),
            Self::GrpoMean => 1.0,
            Self::Grpo => {
                let variance = rewards.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / count;
                1.0 / (variance.sqrt() + EPSILON)
            }
            Self::Imitation => {
                let floor = greedy.unwrap_or(f64::NEG_INFINITY);
                let passes = |(&r, &right): (&f64, &bool)| f64::from(u8::from(right && r > floor));
                return rewards.iter().zip(correct).map(passes).collect();
            }
        };
        let advantage = |r: &f64| match scale * (r - mean) {
            small if small.abs() < NEGLIGIBLE => 0.0,
            advantage => advantage,
        };
        rewards.iter().map(advantage).collect()
    }

    /// Whether the estimator needs the unperturbed trajectory.
    pub fn needs_greedy(self) -> bool {
        self == Self::Imitation
    }
}

/// The trust region of off-policy updates (PPO).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipRange {
    /// The lower bound of the importance ratio is 1 minus this.
    pub low: f32,
    /// The upper bound of the importance ratio is 1 plus this.
    pub high: f32,
}

impl ClipRange {
    /// The derivative of the clipped objective `min(ratio A, clip(ratio) A)` with respect to the
    /// log-probability, divided by A; 0 if it is clipped.
    pub fn slope(self, log_ratio: f32, advantage: f32) -> f32 {
        let ratio = log_ratio.exp();
        let is_clipped = match advantage >= 0.0 {
            true => ratio > 1.0 + self.high,
            false => ratio < 1.0 - self.low,
        };
        if is_clipped { 0.0 } else { ratio }
    }
}

/// The non-negative estimate `e^d - d - 1` of the KL divergence from a reference, where d is the
/// reference's log-probability of a sampled token minus the policy's. Returns the estimate and its
/// derivative with respect to the policy's log-probability.
pub fn kl_estimate(logprob: f32, reference: f32) -> (f32, f32) {
    let d = reference - logprob;
    (d.exp_m1() - d, -d.exp_m1())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(rewards: &[f64]) -> GroupRewards {
        let correct = rewards.iter().map(|&r| r > 0.5).collect();
        GroupRewards { rewards: rewards.to_vec(), correct, greedy: None }
    }

    #[test]
    fn leave_one_out_compares_with_the_others() {
        let rewards = [1.0, 0.0, 0.0, 0.5];
        let advantages = Estimator::Rloo.advantages(&group(&rewards));
        for (i, advantage) in advantages.iter().enumerate() {
            let others = rewards.iter().enumerate().filter(|(j, _)| *j != i);
            let mean = others.map(|(_, r)| r).sum::<f64>() / 3.0;
            assert!((advantage - (rewards[i] - mean)).abs() < 1e-12);
        }
    }

    #[test]
    fn group_relative_advantages_have_mean_zero_and_unit_variance() {
        let rewards = [1.0, 0.0, 0.0, 1.0, 0.25];
        let scaled = Estimator::Grpo.advantages(&group(&rewards));
        let variance = scaled.iter().map(|a| a * a).sum::<f64>() / 5.0;
        assert!(scaled.iter().sum::<f64>().abs() < 1e-9 && (variance - 1.0).abs() < 1e-4);
        let plain = Estimator::GrpoMean.advantages(&group(&rewards));
        assert!((plain[0] - 0.55).abs() < 1e-12);
    }

    #[test]
    fn equal_rewards_teach_nothing() {
        for estimator in [Estimator::Rloo, Estimator::Grpo, Estimator::GrpoMean] {
            for rewards in [[0.1; 7], [1.0; 7]] {
                assert_eq!(estimator.advantages(&group(&rewards)), [0.0; 7]);
            }
        }
    }

    #[test]
    fn imitation_takes_right_trajectories_above_the_greedy_one() {
        let with = |greedy| GroupRewards { greedy, ..group(&[1.0, 0.9, 0.0]) };
        let advantages = |greedy| Estimator::Imitation.advantages(&with(greedy));
        assert_eq!(advantages(Some(0.95)), [1.0, 0.0, 0.0]);
        assert_eq!(advantages(Some(0.0)), [1.0, 1.0, 0.0]);
        assert_eq!(advantages(Some(1.0)), [0.0; 3]);
    }

    #[test]
    fn the_clipped_slope_is_the_derivative_of_the_clipped_objective() {
        let range = ClipRange { low: 0.2, high: 0.3 };
        let objective = |log_ratio: f64, a: f64| {
            let ratio = log_ratio.exp();
            (ratio * a).min(ratio.clamp(0.8, 1.3) * a)
        };
        for log_ratio in [-0.5, -0.1, 0.0, 0.1, 0.4f32] {
            for a in [-1.5, 0.7f32] {
                let at = |by: f64| objective(f64::from(log_ratio) + by, f64::from(a));
                let expected = (at(1e-6) - at(-1e-6)) / 2e-6;
                let slope = f64::from(range.slope(log_ratio, a) * a);
                assert!((slope - expected).abs() < 1e-4, "{log_ratio} {a}: {slope} {expected}");
            }
        }
    }

    #[test]
    fn the_kl_estimate_is_zero_at_the_reference_and_has_its_derivative() {
        assert_eq!(kl_estimate(-1.5, -1.5), (0.0, 0.0));
        for (logprob, reference) in [(-1.0, -1.5), (-2.0, -0.5f32)] {
            let at = |by: f64| {
                let d = f64::from(reference) - (f64::from(logprob) + by);
                d.exp() - d - 1.0
            };
            let (value, slope) = kl_estimate(logprob, reference);
            assert!(value > 0.0 && (f64::from(value) - at(0.0)).abs() < 1e-5);
            assert!((f64::from(slope) - (at(1e-5) - at(-1e-5)) / 2e-5).abs() < 1e-4);
        }
    }
}
