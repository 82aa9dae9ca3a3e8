//! Objectives of the reward model over the rewards of a problem's trajectories. They are computed
//! on the host, since there are only a few rewards per problem.
//!
//! Trajectories may differ in their number of thoughts: step t compares the trajectories that have
//! more than t thoughts.

use serde::{Deserialize, Serialize};

/// The objective of a reward model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Step-wise contrastive (the paper's): at each step, cross-entropy between the labels and the
    /// softmax of the scores over a problem's trajectories
    Contrastive,
    /// Binary cross-entropy of each score with its label
    Bce,
    /// Pairwise logistic: at each step, over all pairs of trajectories with unequal labels
    Pairwise,
    /// No training: the reasoner's weights with a random head (the paper's ablation)
    Untrained,
}

/// The rewards and labels of one problem, one of each per thought of every trajectory.
#[derive(Clone, Copy, Debug)]
pub struct ScoredProblem<'a> {
    /// Rewards, the output of the head.
    pub scores: &'a [f32],
    /// Labels in 0..=1.
    pub labels: &'a [f32],
    /// Index of each thought within its trajectory.
    pub steps: &'a [usize],
}

impl Objective {
    /// The loss of one problem; its gradient with respect to the rewards is written to `gradient`.
    /// `weight(t)` is the weight of step t.
    ///
    /// For rewards r, labels y, trajectories n and steps t:
    /// - contrastive: `- sum_t w_t sum_n y_nt log softmax_n(r_nt)`
    /// - BCE: the mean over all thoughts of `w_t bce(r_nt, y_nt)`
    /// - pairwise: the mean over steps of `w_t` times the mean of `log(1 + exp(r_m - r_n))` over
    ///   pairs with y_n > y_m, weighted by y_n - y_m
    pub fn loss(
        self,
        problem: ScoredProblem<'_>,
        weight: &(dyn Fn(usize) -> f32 + Sync),
        gradient: &mut [f32],
    ) -> f64 {
        let ScoredProblem { scores, labels, steps } = problem;
        assert!(
            scores.len() == labels.len()
                && scores.len() == steps.len()
                && scores.len() == gradient.len(),
            "objective: scores, labels, steps and gradient differ in length"
        );
        match self {
            Self::Contrastive => {
                let last = steps.iter().max().map_or(0, |&t| t + 1);
                (0..last).map(|t| contrastive(problem, t, f64::from(weight(t)), gradient)).sum()
            }
            Self::Bce => {
                let share = 1.0 / scores.len().max(1) as f64;
                let element = |i: usize| {
                    let (r, y, w) = (
                        f64::from(scores[i]),
                        f64::from(labels[i]),
                        f64::from(weight(steps[i])) * share,
                    );
                    gradient[i] = (w * (1.0 / (1.0 + (-r).exp()) - y)) as f32;
                    w * (r.max(0.0) - r * y + (-r.abs()).exp().ln_1p())
                };
                (0..scores.len()).map(element).sum()
            }
            Self::Untrained => {
                gradient.fill(0.0);
                0.0
            }
            Self::Pairwise => {
                gradient.fill(0.0);
                let last = steps.iter().max().map_or(0, |&t| t + 1);
                (0..last)
                    .map(|t| pairwise(problem, t, f64::from(weight(t)) / last as f64, gradient))
                    .sum()
            }
        }
    }
}

fn contrastive(problem: ScoredProblem<'_>, t: usize, weight: f64, gradient: &mut [f32]) -> f64 {
    let ScoredProblem { scores, labels, steps } = problem;
    let step = || (0..scores.len()).filter(|&i| steps[i] == t);
    let max = step().map(|i| scores[i]).fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = step().map(|i| f64::from(scores[i] - max).exp()).sum();
    let label_sum: f64 = step().map(|i| f64::from(labels[i])).sum();
    let mut loss = 0.0;
    for i in step() {
        let log_prob = f64::from(scores[i] - max) - total.ln();
        loss -= f64::from(labels[i]) * log_prob;
        gradient[i] = (weight * (label_sum * log_prob.exp() - f64::from(labels[i]))) as f32;
    }
    weight * loss
}

fn pairwise(problem: ScoredProblem<'_>, t: usize, weight: f64, gradient: &mut [f32]) -> f64 {
    let ScoredProblem { scores, labels, steps } = problem;
    let step: Vec<usize> = (0..scores.len()).filter(|&i| steps[i] == t).collect();
    let pairs = step
        .iter()
        .flat_map(|&i| step.iter().map(move |&j| (i, j)))
        .filter(|&(i, j)| labels[i] > labels[j]);
    let pairs: Vec<(usize, usize, f64)> =
        pairs.map(|(i, j)| (i, j, f64::from(labels[i] - labels[j]))).collect();
    let total: f64 = pairs.iter().map(|(.., gap)| gap).sum();
    let mut loss = 0.0;
    for (better, worse, gap) in pairs {
        let margin = f64::from(scores[better] - scores[worse]);
        let share = weight * gap / total;
        loss += share * ((-margin).max(0.0) + (-margin.abs()).exp().ln_1p());
        let slope = (share / (1.0 + margin.exp())) as f32;
        gradient[better] -= slope;
        gradient[worse] += slope;
    }
    loss
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORES: [f32; 6] = [0.3, -1.0, 0.8, 0.1, -0.4, 2.0];
    const LABELS: [f32; 6] = [1.0, 0.25, 0.0, 0.75, 0.5, 0.0];
    const STEPS: [usize; 6] = [0, 1, 0, 1, 0, 2]; // only the last trajectory has step 2

    fn weight(t: usize) -> f32 {
        [0.5, 1.5, 1.0][t]
    }

    fn loss(objective: Objective, scores: &[f32]) -> f64 {
        objective.loss(
            ScoredProblem { scores, labels: &LABELS, steps: &STEPS },
            &weight,
            &mut [0.0; 6],
        )
    }

    #[test]
    fn gradients_match_finite_differences() {
        for objective in [Objective::Contrastive, Objective::Bce, Objective::Pairwise] {
            let mut gradient = [0.0; 6];
            objective.loss(
                ScoredProblem { scores: &SCORES, labels: &LABELS, steps: &STEPS },
                &weight,
                &mut gradient,
            );
            for i in 0..6 {
                let moved = |by: f32| {
                    let mut scores = SCORES;
                    scores[i] += by;
                    loss(objective, &scores)
                };
                let slope = (moved(1e-2) - moved(-1e-2)) / 2e-2;
                assert!(
                    (slope - f64::from(gradient[i])).abs() < 1e-4,
                    "{objective:?} {i}: {slope} {}",
                    gradient[i]
                );
            }
        }
    }

    #[test]
    fn a_higher_reward_for_the_best_label_lowers_the_loss() {
        for objective in [Objective::Contrastive, Objective::Bce, Objective::Pairwise] {
            let mut better = SCORES;
            better[0] += 1.0;
            assert!(loss(objective, &better) < loss(objective, &SCORES));
        }
    }

    #[test]
    fn the_contrastive_loss_is_invariant_to_a_common_shift() {
        let shifted = SCORES.map(|s| s + 5.0);
        assert!(
            (loss(Objective::Contrastive, &shifted) - loss(Objective::Contrastive, &SCORES)).abs()
                < 1e-5
        );
    }
}
