//! Metrics of a reward model on held-out problems: how well rewards rank correct trajectories above
//! wrong ones of the same problem.

use std::cmp::Ordering;

use aggregate::ordered_pairs;
use serde_json::{Map, Value, json};

use crate::reward_step::{PredictedRewards, RewardExample};

/// Sums over problems.
#[derive(Debug, Default)]
pub(super) struct RewardMetrics {
    problems: usize,
    /// Accuracy of a uniformly sampled trajectory.
    random_accuracy: f64,
    /// Accuracy of the trajectory with the highest outcome reward or, without outcome rewards, the
    /// highest mean process reward.
    best_of_n: f64,
    /// Per thought step: pairs ranked by its process rewards.
    step_pairs: Vec<RankedPairs>,
    /// Pairs ranked by mean process reward.
    mean_pairs: RankedPairs,
    /// Pairs ranked by outcome reward.
    outcome_pairs: RankedPairs,
}

/// Pairs of a correct and a wrong trajectory of one problem, over all problems.
#[derive(Clone, Copy, Debug, Default)]
struct RankedPairs {
    /// Number of pairs with the higher reward on the correct trajectory; ties count half.
    ordered: f64,
    total: f64,
}

impl RankedPairs {
    /// Adds a problem's pairs; trajectories without a reward are skipped.
    fn add(&mut self, rewards: &[Option<f32>], correct: &[bool]) {
        let (ordered, pairs) = ordered_pairs(rewards.iter().copied().zip(correct.iter().copied()));
        self.ordered += ordered;
        self.total += pairs;
    }

    /// The area under the ROC curve, pooled over problems; 0.5 without pairs.
    fn auc(self) -> f64 {
        if self.total > 0.0 { self.ordered / self.total } else { 0.5 }
    }
}

impl RewardMetrics {
    pub(super) fn add(&mut self, example: &RewardExample, rewards: &PredictedRewards) {
        let correct = &example.correct[..];
        self.problems += 1;
        self.random_accuracy +=
            correct.iter().filter(|&&c| c).count() as f64 / correct.len().max(1) as f64;
        let process = split(&rewards.process, &example.lengths);
        let means: Vec<Option<f32>> = process.iter().map(|row| Some(mean(row))).collect();
        let outcomes: Vec<Option<f32>> = rewards.outcome.iter().copied().map(Some).collect();
        let overall = if outcomes.is_empty() { &means } else { &outcomes };
        // Ties go to the first trajectory.
        let order = |&a: &usize, &b: &usize| {
            overall[a].partial_cmp(&overall[b]).unwrap_or(Ordering::Equal).then(b.cmp(&a))
        };
        let best = (0..process.len()).max_by(order);
        self.best_of_n += best.map_or(0.0, |i| f64::from(u8::from(correct[i])));
        self.mean_pairs.add(&means, correct);
        if !outcomes.is_empty() {
            self.outcome_pairs.add(&outcomes, correct);
        }
        let longest = example.lengths.iter().copied().max().unwrap_or(0);
        self.step_pairs.resize(self.step_pairs.len().max(longest), RankedPairs::default());
        for (t, pairs) in self.step_pairs.iter_mut().enumerate() {
            let at: Vec<Option<f32>> = process.iter().map(|row| row.get(t).copied()).collect();
            pairs.add(&at, correct);
        }
    }

    /// Metrics by their names in the log.
    pub(super) fn to_json(&self) -> Map<String, Value> {
        let problems = self.problems.max(1) as f64;
        let steps: Vec<f64> = self.step_pairs.iter().map(|pairs| pairs.auc()).collect();
        let mut metrics = vec![
            ("problems", json!(self.problems)),
            ("one", json!(self.random_accuracy / problems)),
            ("best_of", json!(self.best_of_n / problems)),
            ("auc", json!(steps)),
            ("auc_mean", json!(self.mean_pairs.auc())),
        ];
        if self.outcome_pairs.total > 0.0 {
            metrics.push(("auc_verdict", json!(self.outcome_pairs.auc())));
        }
        metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Splits `rewards` into consecutive parts of the given lengths.
fn split<'a>(mut rewards: &'a [f32], lengths: &[usize]) -> Vec<&'a [f32]> {
    let mut parts = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let (part, rest) = rewards.split_at(length);
        parts.push(part);
        rewards = rest;
    }
    parts
}

fn mean(rewards: &[f32]) -> f32 {
    rewards.iter().sum::<f32>() / rewards.len().max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewards_are_ranked_within_a_problem() {
        let example = RewardExample {
            lengths: vec![2, 1, 2],
            correct: vec![true, false, false],
            ..RewardExample::default()
        };
        let mut sums = RewardMetrics::default();
        // Means 2, 2.5, 1.5.
        let mut rewards =
            PredictedRewards { process: vec![1.0, 3.0, 2.5, 0.0, 3.0], outcome: Vec::new() };
        sums.add(&example, &rewards);
        let metrics = sums.to_json();
        assert_eq!(metrics["best_of"], json!(0.0), "the second has the highest mean and is wrong");
        assert_eq!(metrics["auc_mean"], json!(0.5));
        assert_eq!(metrics["auc"], json!([0.5, 0.5]), "step 0: one of two pairs; step 1: a tie");
        assert!((metrics["one"].as_f64().unwrap() - 1.0 / 3.0).abs() < 1e-12);
        assert!(!metrics.contains_key("auc_verdict"));
        rewards.outcome = vec![0.5, -1.0, 2.0];
        sums.add(&example, &rewards);
        assert_eq!(sums.to_json()["auc_verdict"], json!(0.5));
        assert_eq!(sums.to_json()["best_of"], json!(0.0), "the third has the highest outcome");
    }
}
