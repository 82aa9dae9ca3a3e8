//! The content of `sweep.json`.

use record::{MetricName, Results};
use report::BestRun;
use report::interval::Interval;
use schema::SamplingOptions;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::band::RecommendedBand;

pub(super) fn metric_interval(results: &Results, name: MetricName, k: usize) -> Option<Interval> {
    let metric = results.metrics.iter().find(|metric| metric.name == name && metric.k == k)?;
    Some(Interval { value: metric.value, low: metric.low, high: metric.high })
}

pub(super) fn interval_json(Interval { value, low, high }: Interval) -> Value {
    json!({ "value": value, "low": low, "high": high })
}

/// The content of `sweep.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct SweepSummary {
    /// The format version of run directories.
    pub version: u32,
    /// The settings that all points share, and the values to evaluate.
    #[serde(default)]
    pub settings: Value,
    /// The maximized metric.
    pub metric: MetricName,
    /// The number of trajectories at which the metric is compared.
    pub k: usize,
    /// The points, by axis, in order of increasing strength.
    pub points: Vec<SweepPointSummary>,
    /// The run directory of the best point.
    pub best: String,
    /// Other points with the same value of the metric. The highest majority accuracy decides, then
    /// the weakest perturbation.
    #[serde(default)]
    pub ties: Vec<String>,
    /// The best point of each kind of sampler.
    pub samplers: Vec<SamplerSummary>,
}

/// The best point of one kind of sampler.
#[derive(Debug, Serialize, Deserialize)]
pub struct SamplerSummary {
    /// `dropout`, `noise` or `gumbel`.
    pub kind: String,
    /// The run directory of the best point.
    pub best: String,
    /// The paper's recommended band for this backbone, if it has one.
    pub band: Option<RecommendedBand>,
}

/// One point of `sweep.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct SweepPointSummary {
    /// The run directory, relative to the sweep's directory.
    pub run: String,
    /// The sampler and its fields, as in the run's manifest.
    #[serde(default)]
    pub sampling: SamplingOptions,
    /// The dropout probability, the standard deviation of the noise or the Gumbel temperature.
    pub strength: f64,
    /// Coverage with its interval, by number of trajectories. The rules below have the same format.
    pub coverage: Map<String, Value>,
    /// Accuracy of majority voting.
    pub majority: Map<String, Value>,
    /// Accuracy of the weighted vote; only with a reward model, like `best_of`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub weighted: Map<String, Value>,
    /// Accuracy of best-of-k.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub best_of: Map<String, Value>,
    /// Diversity with its interval, if it was measured.
    pub diversity: Value,
    /// Whether the paired 95% confidence interval of its difference to the best contains zero.
    pub as_good_as_best: bool,
}

impl SweepSummary {
    /// The best point and its ties as indices of `points`.
    pub fn best_run(&self) -> BestRun {
        let place = |name: &String| self.points.iter().position(|point| point.run == *name);
        BestRun {
            index: place(&self.best).unwrap_or(0),
            metric: self.metric,
            k: self.k,
            ties: self.ties.iter().filter_map(place).collect(),
        }
    }
}

impl SweepPointSummary {
    /// The intervals of a metric by number of trajectories; empty if it was not measured.
    pub fn curve(&self, metric: MetricName) -> &Map<String, Value> {
        match metric {
            MetricName::MAJORITY => &self.majority,
            MetricName::WEIGHTED => &self.weighted,
            MetricName::BEST_OF => &self.best_of,
            _ => &self.coverage,
        }
    }
}
