//! `sweep.json`: what a sweep found, and the settings that a resumed one must share.
//!
//! It is written when a sweep begins, without points, and again when it ends.

use std::path::Path;

use anyhow::{Context, Result, bail};
use latent_tts::record::{self, MetricName, Results};
use latent_tts::report::BestRun;
use latent_tts::report::interval::Interval;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::band::RecommendedBand;

/// The file's name in the directory of a sweep.
pub const FILE: &str = "sweep.json";

/// Begins the sweep in `dir`: an existing one is only continued on request, with equal settings.
pub fn start(dir: &Path, begun: &SweepSummary, resume: bool) -> Result<()> {
    let path = dir.join(FILE);
    if path.is_file() {
        if !resume {
            bail!(
                "{} already holds a sweep; continue it with --resume, or name another directory \
                 with --out",
                dir.display()
            );
        }
        let stored = parse(&path)?;
        let difference = record::first_difference("settings", &stored.settings, &begun.settings);
        if let Some(record::FieldDifference { field, stored, requested }) = difference {
            bail!(
                "{}: the sweep was begun with {field} = {stored}, now it is {requested}; use the \
                 same settings, or name another directory with --out",
                path.display()
            );
        }
        // What it found stays until there is something to replace it.
        return Ok(());
    }
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(record::write_document(&path, begun)?)
}

/// The summary in `dir`; `None` if there is none.
pub fn read(dir: &Path) -> Result<Option<SweepSummary>> {
    let path = dir.join(FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let summary = parse(&path)?;
    if summary.points.is_empty() {
        bail!("the sweep in {} is not finished; continue it with --resume", dir.display());
    }
    Ok(Some(summary))
}

fn parse(path: &Path) -> Result<SweepSummary> {
    let parse = || -> Result<SweepSummary> {
        let summary: Value = serde_json::from_slice(&std::fs::read(path)?)?;
        match summary["version"].as_u64() {
            Some(version) if version == u64::from(record::FORMAT) => {
                Ok(serde_json::from_value(summary)?)
            }
            _ => bail!("it is not of format version {}", record::FORMAT),
        }
    };
    parse()
        .with_context(|| format!("cannot use {}; sweep again with another --out", path.display()))
}

pub fn metric_interval(results: &Results, name: MetricName, k: usize) -> Option<Interval> {
    let metric = results.metrics.iter().find(|metric| metric.name == name && metric.k == k)?;
    Some(Interval { value: metric.value, low: metric.low, high: metric.high })
}

pub fn interval_json(Interval { value, low, high }: Interval) -> Value {
    json!({ "value": value, "low": low, "high": high })
}

/// The content of `sweep.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct SweepSummary {
    pub version: u32,
    /// What all points share, and the values to go over.
    #[serde(default)]
    pub settings: Value,
    /// The maximized metric.
    pub metric: MetricName,
    /// The number of trajectories at which it is compared.
    pub k: usize,
    pub points: Vec<SweepPointSummary>,
    /// The run directory of the best point.
    pub best: String,
    /// The other points with the same value of the metric; the largest majority decides, then the
    /// weakest perturbation.
    #[serde(default)]
    pub ties: Vec<String>,
    /// The best point of each kind of sampler.
    pub samplers: Vec<SamplerSummary>,
}

/// The best point of one kind of sampler.
#[derive(Debug, Serialize, Deserialize)]
pub struct SamplerSummary {
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
    pub sampler: Value,
    pub strength: f64,
    /// Intervals by number of trajectories, as those of the rules below.
    pub coverage: Map<String, Value>,
    pub majority: Map<String, Value>,
    /// Only with a reward model, like `best_of`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub weighted: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub best_of: Map<String, Value>,
    pub diversity: Value,
    /// Whether the paired 95% interval of its difference to the best contains zero.
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
    /// A metric's intervals by number of trajectories; empty if it was not measured.
    pub fn curve(&self, metric: MetricName) -> &Map<String, Value> {
        match metric {
            MetricName::Majority => &self.majority,
            MetricName::Weighted => &self.weighted,
            MetricName::BestOf => &self.best_of,
            _ => &self.coverage,
        }
    }
}
