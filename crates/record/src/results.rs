//! What came of a run: `results.json`, and the seconds of `timings.jsonl`.
//!
//! The names of the metrics and of their fields are a contract with scripts. The report computes
//! them; seconds live apart from the samples because they differ from run to run and the samples
//! may not.

use std::ops::AddAssign;

use aggregate::{Aggregator, RewardReduction, VoteParams};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::FieldError;
use crate::manifest::FORMAT;
use crate::sample::{Validate, check_finite};

/// The content of `results.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The format of the run directory, [`FORMAT`].
    pub version: u32,
    /// Every metric at every k.
    #[serde(deserialize_with = "read_metrics")]
    pub metrics: Vec<Metric>,
    /// What it cost.
    pub cost: RunCost,
    /// The number of different questions behind the metrics.
    pub questions: usize,
    /// The number of seeds behind them.
    pub seeds: usize,
    /// The number of trajectories that each question may have under each seed, N.
    pub trajectories: usize,
    /// How many were sampled on average: N, unless sampling stopped where the vote was settled.
    #[serde(default)]
    pub sampled: f64,
    /// The numbers in the voting rules, where they are not the usual ones.
    #[serde(default, rename = "tuning", skip_serializing_if = "Option::is_none")]
    pub vote_params: Option<VoteParams>,
    /// What each rule gains over the plainer ones at the largest k, question by question.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gains: Vec<MetricGain>,
}

/// How much more accurate one rule is than another, with its 95% interval by the paired bootstrap
/// over questions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricGain {
    /// The rule.
    pub name: MetricName,
    /// The plainer one.
    pub over: MetricName,
    /// Trajectories that the rule may use.
    pub k: usize,
    /// The mean difference.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl Default for Results {
    fn default() -> Self {
        Self {
            version: FORMAT,
            metrics: Vec::new(),
            cost: RunCost::default(),
            questions: 0,
            seeds: 0,
            trajectories: 0,
            sampled: 0.0,
            vote_params: None,
            gains: Vec::new(),
        }
    }
}

/// Reads metrics without `pass`, a second name of `coverage` in results of earlier versions.
fn read_metrics<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Metric>, D::Error> {
    let metrics = Vec::<Value>::deserialize(deserializer)?;
    let kept = metrics.into_iter().filter(|metric| metric["name"] != "pass");
    kept.map(|metric| serde_json::from_value(metric).map_err(Error::custom)).collect()
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
    /// Accuracy of the majority vote of the first k.
    Maj,
    /// Accuracy of the vote of the first k, weighted by reward.
    Weighted,
    /// Accuracy of the first k's trajectory with the highest reward.
    BestOf,
    /// Accuracy of the vote weighted by normalised reward; this and the next as [`Aggregator`]
    /// defines them.
    Normalized,
    /// Accuracy of the vote weighted by normalised log-probability.
    #[serde(rename = "likely")]
    Likelihood,
    /// Accuracy of the vote weighted by both.
    Combined,
    /// Accuracy of the answer with the largest lower bound on its reward.
    Pessimistic,
    /// As `best_of`, by the mean process reward even where there are outcome rewards.
    BestOfMean,
    /// As `best_of`, by the sum of rewards.
    BestOfSum,
    /// As `best_of`, by the last reward.
    BestOfLast,
    /// As `best_of`, by the smallest reward.
    BestOfMin,
    /// Accuracy of beam search; k = width x candidates.
    Beam,
    /// Mean pairwise cosine dissimilarity of thoughts.
    Diversity,
    /// Chance that the reward at thought k is larger for a right trajectory than for a wrong one of
    /// the same question.
    Auc,
    /// The same of the answers' verdicts; k = trajectories.
    #[serde(rename = "auc_verdict")]
    AucOutcome,
}

impl MetricName {
    /// Whether it is the accuracy of one answer a question, rather than a bound or another
    /// quantity.
    pub fn is_accuracy(self) -> bool {
        !matches!(self, Self::Coverage | Self::Diversity | Self::Auc | Self::AucOutcome)
    }
}

impl From<Aggregator> for MetricName {
    fn from(rule: Aggregator) -> Self {
        match rule {
            Aggregator::Majority => Self::Maj,
            Aggregator::Weighted => Self::Weighted,
            Aggregator::Normalized => Self::Normalized,
            Aggregator::Likelihood => Self::Likelihood,
            Aggregator::Combined => Self::Combined,
            Aggregator::Pessimistic => Self::Pessimistic,
            Aggregator::BestOf(RewardReduction::OutcomeOrMean) => Self::BestOf,
            Aggregator::BestOf(RewardReduction::Mean) => Self::BestOfMean,
            Aggregator::BestOf(RewardReduction::Sum) => Self::BestOfSum,
            Aggregator::BestOf(RewardReduction::Last) => Self::BestOfLast,
            Aggregator::BestOf(RewardReduction::Min) => Self::BestOfMin,
        }
    }
}

/// What a run spent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RunCost {
    /// Decoding steps per question under one seed, of samples and the deterministic trajectory.
    pub steps: f64,
    /// Floating-point operations per question under one seed, of the same.
    pub flops: f64,
    /// What beam search took beside, where it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beam: Option<BeamCost>,
    /// Wall-clock seconds of the whole run.
    pub seconds: Seconds,
}

/// Work that was counted, per question under one seed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BeamCost {
    /// Decoding steps.
    pub steps: f64,
    /// Floating-point operations.
    pub flops: f64,
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
    /// Searching with beams, all its stages.
    #[serde(default)]
    pub beam: f64,
    /// All of it, the work between the stages included.
    pub total: f64,
}

impl Seconds {
    /// The part of sampling that scoring takes: what best-of-N pays for its rewards. None without
    /// scores.
    pub fn scoring_share(&self) -> Option<f64> {
        let sampling = self.prefill + self.thoughts + self.scores + self.answers;
        (self.scores > 0.0).then(|| self.scores / sampling)
    }

    /// All of them times a factor.
    pub fn scaled(self, by: f64) -> Self {
        Self {
            prefill: self.prefill * by,
            thoughts: self.thoughts * by,
            scores: self.scores * by,
            answers: self.answers * by,
            beam: self.beam * by,
            total: self.total * by,
        }
    }
}

impl AddAssign for Seconds {
    fn add_assign(&mut self, more: Self) {
        self.prefill += more.prefill;
        self.thoughts += more.thoughts;
        self.scores += more.scores;
        self.answers += more.answers;
        self.beam += more.beam;
        self.total += more.total;
    }
}

impl Validate for Seconds {
    fn validate(&self) -> Result<(), FieldError> {
        check_finite(
            "seconds",
            [self.prefill, self.thoughts, self.scores, self.answers, self.beam, self.total],
        )
    }
}

impl Validate for Results {
    fn validate(&self) -> Result<(), FieldError> {
        for (index, metric) in self.metrics.iter().enumerate() {
            check_finite(&format!("metrics[{index}]"), [metric.value, metric.low, metric.high])?;
        }
        check_finite("sampled", [self.sampled])?;
        let tuning = self.vote_params.unwrap_or_default();
        check_finite("tuning", [tuning.temperature, tuning.lambda, tuning.caution])?;
        let beam = self.cost.beam.unwrap_or_default();
        check_finite("cost", [self.cost.steps, self.cost.flops, beam.steps, beam.flops])?;
        self.cost.seconds.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_written_as_scripts_expect() {
        let metric = Metric {
            name: MetricName::BestOf,
            k: 64,
            value: 0.58,
            low: 0.55,
            high: 0.61,
            seeds: 3,
        };
        let results = Results { metrics: vec![metric], ..Results::default() };
        let expected = concat!(
            r#"{"version":1,"metrics":[{"name":"best_of","k":64,"value":0.58,"low":0.55,"high":0.61,"seeds":3}],"#,
            r#""cost":{"steps":0.0,"flops":0.0,"seconds":{"prefill":0.0,"thoughts":0.0,"scores":0.0,"answers":0.0,"#,
            r#""beam":0.0,"total":0.0}},"questions":0,"seeds":0,"trajectories":0,"sampled":0.0}"#,
        );
        assert_eq!(serde_json::to_string(&results).unwrap(), expected);
    }

    #[test]
    fn results_of_earlier_versions_are_readable() {
        let metric = |name: &str| {
            format!(r#"{{"name":"{name}","k":4,"value":0.1,"low":0.05,"high":0.3,"seeds":1}}"#)
        };
        let text = serde_json::to_string(&Results::default()).unwrap();
        let with =
            |metrics: &str| text.replace(r#""metrics":[]"#, &format!(r#""metrics":[{metrics}]"#));
        let read = |metrics: &str| serde_json::from_str::<Results>(&with(metrics));
        let results = read(&[metric("coverage"), metric("pass")].join(",")).unwrap();
        assert_eq!(results.metrics.len(), 1);
        assert_eq!(
            (results.metrics[0].name, results.metrics[0].value),
            (MetricName::Coverage, 0.1)
        );
        assert!(read(&metric("unknown")).unwrap_err().to_string().contains("unknown variant"));
    }

    #[test]
    fn a_rule_and_its_metric_have_one_name() {
        for rule in Aggregator::ALL {
            assert_eq!(serde_json::to_value(MetricName::from(rule)).unwrap(), rule.name());
            assert_eq!(Aggregator::from_name(rule.name()), Some(rule));
        }
    }

    #[test]
    fn scoring_is_a_part_of_sampling() {
        let seconds = Seconds {
            prefill: 1.0,
            thoughts: 4.0,
            scores: 2.0,
            answers: 1.0,
            beam: 9.0,
            total: 20.0,
        };
        assert_eq!(seconds.scoring_share(), Some(0.25));
        assert_eq!(Seconds::default().scoring_share(), None);
    }
}
