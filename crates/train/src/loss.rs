//! Losses of the reward model over scores of a problem's trajectories: few numbers, computed on the
//! host.
//!
//! Trajectories may have unlike numbers of thoughts: a step is a competition among those that have
//! it.

use serde::{Deserialize, Serialize};

/// What the reward model is trained by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Step-wise contrastive: at each step, trajectories compete for their share of success (the
    /// paper's equation).
    Contrastive,
    /// Each thought's score is a logit of its label.
    Bce,
    /// At each step, of every two trajectories with unlike labels the better one is to be scored
    /// higher.
    Pairwise,
}

/// A problem's scores and labels, one of each for every thought of every trajectory.
#[derive(Clone, Copy, Debug)]
pub struct ScoredProblem<'a> {
    /// The rewards.
    pub scores: &'a [f32],
    /// From 0 to 1.
    pub labels: &'a [f32],
    /// Which step each thought is, counted from 0.
    pub steps: &'a [usize],
}

impl Objective {
    /// The loss of one problem; its gradient is written to `gradient`. `weight` is that of each
    /// step.
    ///
    /// Contrastive: `- sum_t w_t sum_n y_nt log softmax_n(r_nt)`. BCE: the weighted mean over all
    /// thoughts. Pairwise: the weighted mean over steps of the mean of `(y_n - y_m) log(1 +
    /// exp(r_m - r_n))` over pairs with y_n > y_m, which weigh y_n - y_m.
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
            "loss: shapes"
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
    let most = step().map(|i| scores[i]).fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = step().map(|i| f64::from(scores[i] - most).exp()).sum();
    let labelled: f64 = step().map(|i| f64::from(labels[i])).sum();
    let mut loss = 0.0;
    for i in step() {
        let log_share = f64::from(scores[i] - most) - total.ln();
        loss -= f64::from(labels[i]) * log_share;
        gradient[i] = (weight * (labelled * log_share.exp() - f64::from(labels[i]))) as f32;
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
        let (lead, share) = (f64::from(scores[better] - scores[worse]), weight * gap / total);
        loss += share * ((-lead).max(0.0) + (-lead.abs()).exp().ln_1p());
        let pull = (share / (1.0 + lead.exp())) as f32;
        gradient[better] -= pull;
        gradient[worse] += pull;
    }
    loss
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCORES: [f32; 6] = [0.3, -1.0, 0.8, 0.1, -0.4, 2.0];
    const LABELS: [f32; 6] = [1.0, 0.25, 0.0, 0.75, 0.5, 0.0];
    const STEPS: [usize; 6] = [0, 1, 0, 1, 0, 2]; // the last trajectory has a step that the others lack

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
    fn gradients_are_those_of_finite_differences() {
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
    fn a_score_for_the_right_trajectory_lowers_the_loss() {
        for objective in [Objective::Contrastive, Objective::Bce, Objective::Pairwise] {
            let mut better = SCORES;
            better[0] += 1.0;
            assert!(loss(objective, &better) < loss(objective, &SCORES));
        }
    }

    #[test]
    fn the_contrastive_loss_does_not_see_a_common_shift() {
        let shifted = SCORES.map(|s| s + 5.0);
        assert!(
            (loss(Objective::Contrastive, &shifted) - loss(Objective::Contrastive, &SCORES)).abs()
                < 1e-5
        );
    }
}
