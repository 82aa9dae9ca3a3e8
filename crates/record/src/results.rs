//! Metrics and cost of a run (`results.json`), and the stage times of `timings.jsonl`.
//!
//! Names of metrics and JSON keys are a stable interface for scripts. The report computes the
//! metrics. Times are stored separately from the samples, which must not depend on the clock.

use aggregate::{Reliability, Rule, VoteParams};
use schema::{SearchMethod, StageSeconds};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::error::FieldError;
use crate::manifest::FORMAT;
use crate::sample::{Validate, check_finite};

/// The content of `results.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The format version, [`FORMAT`].
    pub version: u32,
    /// Every metric at every k.
    #[serde(deserialize_with = "read_metrics")]
    pub metrics: Vec<Metric>,
    /// Compute and time.
    pub cost: RunCost,
    /// The number of distinct questions.
    pub questions: usize,
    /// The number of seeds.
    pub seeds: usize,
    /// Requested trajectories per question and seed, N.
    pub trajectories: usize,
    /// Mean number of trajectories sampled: N, unless sampling stopped early.
    #[serde(default)]
    pub sampled: f64,
    /// The constants of the voting rules, if they are not the defaults.
    #[serde(default, alias = "tuning", skip_serializing_if = "Option::is_none")]
    pub vote_params: Option<VoteParams>,
    /// The reasons that sampled trajectories have no answer, if any lacks one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<Unanswered>,
    /// Accuracy gains of each rule over greedy decoding and majority at the largest k.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gains: Vec<MetricGain>,
    /// The reliability of the confidence in the chosen answers, if there is a calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reliability: Option<Reliability>,
}

/// The difference in accuracy between two rules, with a 95% paired-bootstrap interval over
/// questions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricGain {
    /// The compared rule.
    pub name: MetricName,
    /// The baseline.
    pub over: MetricName,
    /// The number of trajectories used.
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
            unanswered: None,
            gains: Vec::new(),
            reliability: None,
        }
    }
}

/// Sampled trajectories without an answer, each counted once.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Unanswered {
    /// Their share of all sampled trajectories.
    pub share: f64,
    /// Number with an empty text.
    pub empty: usize,
    /// Number whose text ends at the limit of answer tokens.
    pub truncated: usize,
    /// Number whose text is complete and contains no answer.
    pub not_found: usize,
    /// Up to two of their texts.
    pub examples: Vec<String>,
}

/// Reads metrics except `pass`, an alias of `coverage` in results of earlier versions.
fn read_metrics<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Metric>, D::Error> {
    let metrics = Vec::<Value>::deserialize(deserializer)?;
    let kept = metrics.into_iter().filter(|metric| metric["name"] != "pass");
    kept.map(|metric| serde_json::from_value(metric).map_err(Error::custom)).collect()
}

/// A metric at one k, with a 95% bootstrap interval over questions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// The measured quantity.
    pub name: MetricName,
    /// The number of trajectories used, or as [`MetricName`] defines it.
    pub k: usize,
    /// The mean over questions of the mean over seeds.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
    /// The number of seeds.
    pub seeds: usize,
}

/// The quantity that a metric measures: the accuracy of a voting rule, or one of those below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MetricName {
    /// Accuracy of the unperturbed trajectory.
    Greedy,
    /// Probability that at least one of k trajectories is correct (pass@k), unbiased estimator.
    Coverage,
    /// Accuracy of a voting rule, averaged over all size-k subsets of the trajectories.
    Rule(Rule),
    /// Accuracy of beam search; k = width x candidates.
    Beam,
    /// Accuracy of particle filtering; k = number of particles.
    Particles,
    /// Accuracy of diverse verifier tree search; k = width x candidates.
    Dvts,
    /// Mean pairwise cosine dissimilarity of thoughts; k = N.
    Diversity,
    /// Pairwise ranking accuracy of the process rewards at thought k: the probability that a
    /// correct trajectory has a larger one than an incorrect one of the same question.
    Auc,
    /// The same for the outcome rewards; k = trajectories.
    AucOutcome,
    /// The same for the probe's scores; k = trajectories.
    AucProbe,
    /// The same for the share of correct equations; k = trajectories.
    AucArithmetic,
}

impl MetricName {
    /// Accuracy of the majority of k.
    pub const MAJORITY: Self = Self::Rule(Rule::MAJORITY);
    /// Accuracy of the vote weighted by reward.
    pub const WEIGHTED: Self = Self::Rule(Rule::WEIGHTED);
    /// Accuracy of the vote weighted by standardized reward.
    pub const NORMALIZED: Self = Self::Rule(Rule::NORMALIZED);
    /// Accuracy of the trajectory with the largest reward.
    pub const BEST_OF: Self = Self::Rule(Rule::BEST_OF);

    /// The metrics that are not voting rules, with their names and those of earlier versions.
    const NAMED: [(Self, &str, &str); 10] = [
        (Self::Greedy, "greedy", "greedy"),
        (Self::Coverage, "coverage", "coverage"),
        (Self::Beam, "beam", "beam"),
        (Self::Particles, "particles", "particles"),
        (Self::Dvts, "dvts", "dvts"),
        (Self::Diversity, "diversity", "diversity"),
        (Self::Auc, "auc", "auc"),
        (Self::AucOutcome, "auc_outcome", "auc_verdict"),
        (Self::AucProbe, "auc_probe", "auc_probe"),
        (Self::AucArithmetic, "auc_arithmetic", "auc_arithmetic"),
    ];

    /// The metrics that are not a voting rule's: their names, and what they measure.
    pub fn descriptions() -> impl Iterator<Item = (&'static str, &'static str)> {
        Self::NAMED.into_iter().map(|(metric, name, _)| (name, metric.describe()))
    }

    /// What the metric measures, in one line.
    fn describe(self) -> &'static str {
        match self {
            Self::Greedy => "accuracy of the trajectory without perturbation",
            Self::Coverage => {
                "probability that at least one of k trajectories is right (pass@k, unbiased)"
            }
            Self::Rule(rule) => rule.describe(),
            Self::Beam => "accuracy of beam search; k is width times candidates",
            Self::Particles => "accuracy of particle filtering; k is the number of particles",
            Self::Dvts => "accuracy of diverse verifier tree search; k is width times candidates",
            Self::Diversity => {
                "mean pairwise cosine dissimilarity of the thoughts at the same step; k is N"
            }
            Self::Auc => {
                "probability that a right trajectory has a larger process reward at thought k than \
                 a wrong one of the same question"
            }
            Self::AucOutcome => "the same for outcome rewards; k is the number of trajectories",
            Self::AucProbe => "the same for scores of a probe; k is the number of trajectories",
            Self::AucArithmetic => {
                "the same for the share of equations that hold; k is the number of trajectories"
            }
        }
    }

    /// The name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rule(rule) => rule.name(),
            other => {
                Self::NAMED.iter().find(|(name, ..)| *name == other).map_or("", |named| named.1)
            }
        }
    }

    /// The metric of this name. An unknown name is treated as a rule of another program.
    pub fn from_name(name: &str) -> Self {
        let named = Self::NAMED.iter().find(|(_, new, old)| *new == name || *old == name);
        named.map_or_else(|| Self::Rule(Rule::named(name)), |(metric, ..)| *metric)
    }

    /// Whether it is the accuracy of one answer per question.
    pub fn is_accuracy(self) -> bool {
        matches!(self, Self::Greedy | Self::Rule(_)) || self.is_search()
    }

    /// The accuracy of a search method.
    pub fn of_search(method: SearchMethod) -> Self {
        match method {
            SearchMethod::Beam => Self::Beam,
            SearchMethod::Particles => Self::Particles,
            SearchMethod::Dvts => Self::Dvts,
        }
    }

    /// Whether it is the accuracy of a search, which has a cost of its own.
    pub fn is_search(self) -> bool {
        matches!(self, Self::Beam | Self::Particles | Self::Dvts)
    }
}

impl From<Rule> for MetricName {
    fn from(rule: Rule) -> Self {
        Self::Rule(rule)
    }
}

impl Serialize for MetricName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for MetricName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        match name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
            && name.len() <= MAX_NAME
        {
            true => Ok(Self::from_name(&name)),
            false => Err(Error::custom(format!("{name:?} is not a valid metric name"))),
        }
    }
}

/// Maximum length of a metric's name.
const MAX_NAME: usize = 64;

/// Compute and time of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RunCost {
    /// Sequential forward steps per question and seed, of sampled and greedy trajectories.
    pub steps: f64,
    /// Floating-point operations per question and seed, likewise.
    pub flops: f64,
    /// The additional cost of beam search, if it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beam: Option<BeamCost>,
    /// Wall-clock seconds of the whole run.
    pub seconds: StageSeconds,
}

/// Compute of beam search, per question and seed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct BeamCost {
    /// Sequential forward steps.
    pub steps: f64,
    /// Floating-point operations.
    pub flops: f64,
}

impl Validate for StageSeconds {
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
        let params = self.vote_params.unwrap_or_default();
        let constants = [params.temperature, params.likelihood_weight, params.lcb_coefficient];
        check_finite("vote_params", constants)?;
        let beam = self.cost.beam.unwrap_or_default();
        check_finite("cost", [self.cost.steps, self.cost.flops, beam.steps, beam.flops])?;
        self.cost.seconds.validate()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn results_keep_their_json_keys() {
        let metric = Metric {
            name: MetricName::BEST_OF,
            k: 64,
            value: 0.58,
            low: 0.55,
            high: 0.61,
            seeds: 3,
        };
        let results = Results { metrics: vec![metric], ..Results::default() };
        let expected = concat!(
            r#"{"version":2,"metrics":[{"name":"best_of","k":64,"value":0.58,"low":0.55,"#,
            r#""high":0.61,"seeds":3}],"cost":{"steps":0.0,"flops":0.0,"seconds":{"prefill":0.0,"#,
            r#""thoughts":0.0,"scores":0.0,"answers":0.0,"beam":0.0,"total":0.0}},"#,
            r#""questions":0,"seeds":0,"trajectories":0,"sampled":0.0}"#,
        );
        assert_eq!(serde_json::to_string(&results).unwrap(), expected);
        let params = Results { vote_params: Some(VoteParams::default()), ..Results::default() };
        let written = serde_json::to_value(&params).unwrap();
        let expected =
            json!({ "temperature": 1.0, "likelihood_weight": 1.0, "lcb_coefficient": 1.0 });
        assert_eq!(written["vote_params"], expected);
        let old = json!({ "temperature": 2.0, "lambda": 3.0, "caution": 4.0 });
        let read: VoteParams = serde_json::from_value(old).unwrap();
        assert_eq!((read.likelihood_weight, read.lcb_coefficient), (3.0, 4.0));
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
        for (old, name) in [
            ("maj", MetricName::MAJORITY),
            ("likely", MetricName::Rule(Rule::LIKELIHOOD)),
            ("pessimistic", MetricName::Rule(Rule::LCB)),
            ("auc_verdict", MetricName::AucOutcome),
        ] {
            assert_eq!(read(&metric(old)).unwrap().metrics[0].name, name);
        }
        let custom = read(&metric("of_another_program")).unwrap().metrics[0].name;
        assert_eq!(custom.name(), "of_another_program");
        assert!(read(&metric("a b")).unwrap_err().to_string().contains("not a valid metric name"));
    }

    #[test]
    fn a_rule_and_its_metric_have_one_name() {
        for &rule in Rule::ALL {
            assert_eq!(serde_json::to_value(MetricName::from(rule)).unwrap(), rule.name());
            assert_eq!(MetricName::from_name(rule.name()), MetricName::from(rule));
        }
    }

    #[test]
    fn scoring_share_is_relative_to_sampling() {
        let seconds = StageSeconds {
            prefill: 1.0,
            thoughts: 4.0,
            scores: 2.0,
            answers: 1.0,
            beam: 9.0,
            total: 20.0,
        };
        assert_eq!(seconds.scoring_share(), Some(0.25));
        assert_eq!(StageSeconds::default().scoring_share(), None);
    }
}
