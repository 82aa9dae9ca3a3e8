//! What came of a run: `results.json`, and the seconds of `timings.jsonl`.
//!
//! The names of the metrics and of their fields are a contract with scripts. The report computes them; seconds
//! live apart from the samples because they differ from run to run and the samples may not.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::error::Fault;
use crate::manifest::FORMAT;
use crate::sample::{Check, finite};

/// The content of `results.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The format of the run directory, [`FORMAT`].
    pub version: u32,
    /// Every metric at every k.
    pub metrics: Vec<Metric>,
    /// What it cost.
    pub cost: Cost,
    /// The number of different questions behind the metrics.
    pub questions: usize,
    /// The number of seeds behind them.
    pub seeds: usize,
    /// The number of sampled trajectories of each question under each seed, N.
    pub trajectories: usize,
}

impl Default for Results {
    fn default() -> Self {
        Self { version: FORMAT, metrics: Vec::new(), cost: Cost::default(), questions: 0, seeds: 0, trajectories: 0 }
    }
}

/// One figure with its 95% interval over questions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// What is measured.
    pub name: MetricName,
    /// The number of trajectories it may use.
    pub k: usize,
    /// The mean over questions of the mean over seeds.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
    /// The number of seeds it was measured under.
    pub seeds: usize,
}

/// What a metric measures; written in snake case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricName {
    /// Accuracy of the one trajectory without perturbation.
    Greedy,
    /// Chance that at least one of k trajectories is correct, by the unbiased estimator.
    Coverage,
    /// The same, under the name the literature on code uses.
    Pass,
    /// Accuracy of the majority vote of the first k.
    Maj,
    /// Accuracy of the vote of the first k, weighted by reward.
    Weighted,
    /// Accuracy of the first k's trajectory with the highest reward.
    BestOf,
    /// Accuracy of beam search; k = width x candidates.
    Beam,
    /// Mean pairwise cosine dissimilarity of thoughts.
    Diversity,
}

/// What a run spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Decoding steps per question under one seed.
    pub steps: f64,
    /// Floating-point operations per question under one seed.
    pub flops: f64,
    /// Wall-clock seconds of the whole run.
    pub seconds: Seconds,
}

/// Wall-clock seconds by stage; a line of `timings.jsonl`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Computing the shared keys and values of the questions.
    pub prefill: f64,
    /// Sampling latent thoughts.
    pub thoughts: f64,
    /// Scoring them with the reward model.
    pub scores: f64,
    /// Decoding answers.
    pub answers: f64,
    /// All of it, the work between the stages included.
    pub total: f64,
}

impl AddAssign for Seconds {
    fn add_assign(&mut self, more: Self) {
        self.prefill += more.prefill;
        self.thoughts += more.thoughts;
        self.scores += more.scores;
        self.answers += more.answers;
        self.total += more.total;
    }
}

impl Check for Seconds {
    fn check(&self) -> Result<(), Fault> {
        finite("seconds", [self.prefill, self.thoughts, self.scores, self.answers, self.total])
    }
}

impl Check for Results {
    fn check(&self) -> Result<(), Fault> {
        for (index, metric) in self.metrics.iter().enumerate() {
            finite(&format!("metrics[{index}]"), [metric.value, metric.low, metric.high])?;
        }
        finite("cost", [self.cost.steps, self.cost.flops])?;
        self.cost.seconds.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_written_as_scripts_expect() {
        let metric = Metric { name: MetricName::BestOf, k: 64, value: 0.58, low: 0.55, high: 0.61, seeds: 3 };
        let results = Results { metrics: vec![metric], ..Results::default() };
        let expected = concat!(
            r#"{"version":1,"metrics":[{"name":"best_of","k":64,"value":0.58,"low":0.55,"high":0.61,"seeds":3}],"#,
            r#""cost":{"steps":0.0,"flops":0.0,"seconds":{"prefill":0.0,"thoughts":0.0,"scores":0.0,"answers":0.0,"#,
            r#""total":0.0}},"questions":0,"seeds":0,"trajectories":0}"#,
        );
        assert_eq!(serde_json::to_string(&results).unwrap(), expected);
    }
}
