//! A training in memory: steps, evaluations, times and settings.

use std::path::{Path, PathBuf};

use record::{EvalRecord, StepRecord, TRAINING_DIR, TrainingDir};
use serde_json::Value;

use crate::error::ReportError;
use crate::interval::Interval;

/// Window of the moving averages, as a fraction of the training.
const SMOOTHING: f64 = 0.02;

/// The records of a training.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingData {
    /// The model directory.
    pub dir: PathBuf,
    /// The display name, unique within a report.
    pub label: String,
    /// The steps, at least one.
    pub steps: Vec<StepRecord>,
    /// The evaluations on held-out data.
    pub evals: Vec<EvalRecord>,
    /// Total seconds of all steps with a recorded duration, and the number of these steps.
    pub seconds: (f64, usize),
    /// The settings; null if they are not recorded.
    pub settings: Value,
}

impl TrainingData {
    /// Reads the records of a training.
    pub fn load(training: &TrainingDir) -> Result<Self, ReportError> {
        let path = training.path();
        let steps = training.steps()?;
        if steps.is_empty() {
            return Err(ReportError::NoSteps { path: training.log_file() });
        }
        let dir = match path.parent() {
            Some(parent) if path.ends_with(TRAINING_DIR) => parent,
            _ => path,
        };
        let timings = training.timings()?;
        Ok(Self {
            label: dir
                .file_name()
                .map_or(dir.display().to_string(), |name| name.display().to_string()),
            dir: dir.to_owned(),
            steps,
            evals: training.evals()?,
            seconds: (timings.iter().map(|timing| timing.seconds).sum(), timings.len()),
            settings: training.settings()?,
        })
    }

    /// The names of all losses, `loss` first.
    pub fn loss_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.steps.iter().flat_map(|step| step.losses.names()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.sort_by_key(|name| *name != "loss");
        names
    }

    /// The values of a quantity, with their steps; skips steps without the quantity.
    pub fn curve(&self, value: impl Fn(&StepRecord) -> Option<f64>) -> Vec<(f64, f64)> {
        let point = |record: &StepRecord| Some((f64::from(record.step) + 1.0, value(record)?));
        self.steps.iter().filter_map(point).filter(|(_, y)| y.is_finite()).collect()
    }

    /// The evaluation of the kept model.
    pub fn kept(&self) -> Option<&EvalRecord> {
        self.evals.iter().rfind(|eval| eval.kept)
    }
}

/// Labels trainings with equal names by their paths.
pub fn label_trainings(trainings: &mut [TrainingData]) {
    let labels: Vec<String> = trainings.iter().map(|training| training.label.clone()).collect();
    for training in trainings {
        if labels.iter().filter(|label| **label == training.label).count() > 1 {
            training.label = Path::new(&training.dir).display().to_string();
        }
    }
}

/// The exponential moving average of a curve over 2% of its length.
pub fn smooth(curve: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let decay = 1.0 - 1.0 / (SMOOTHING * curve.len() as f64).max(1.0);
    let mut sum = 0.0;
    let mut weight = 0.0;
    let smoothed = |&(x, y): &(f64, f64)| {
        (sum, weight) = (decay * sum + y, decay * weight + 1.0);
        (x, sum / weight)
    };
    curve.iter().map(smoothed).collect()
}

/// The score of an evaluation with its 95% Wilson interval, if it is a fraction of `problems`.
pub fn score_interval(eval: &EvalRecord) -> Option<Interval> {
    let p = eval.score;
    let n = eval.metrics.get("problems")?.as_f64()?;
    if !(0.0..=1.0).contains(&p) || n < 1.0 {
        return None;
    }
    let z2 = 1.96 * 1.96;
    let centre = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt() * 1.96 / (1.0 + z2 / n);
    Some(Interval {
        value: p,
        low: (centre - half).clamp(0.0, p),
        high: (centre + half).clamp(p, 1.0),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn smoothing_keeps_a_constant_and_calms_noise() {
        let noisy: Vec<(f64, f64)> =
            (0..500).map(|i| (f64::from(i), 2.0 + f64::from(i % 2))).collect();
        let smoothed = smooth(&noisy);
        assert_eq!(smoothed.len(), 500);
        assert!(smoothed[100..].iter().all(|(_, y)| (y - 2.5).abs() < 0.06), "{smoothed:?}");
        assert_eq!(smooth(&noisy[..3]), noisy[..3], "three steps are not smoothed");
    }

    #[test]
    fn a_share_of_problems_has_wilsons_interval() {
        let metrics = Map::from_iter([("problems".to_owned(), json!(100))]);
        let eval = EvalRecord { score: 0.5, metrics, ..EvalRecord::default() };
        let interval = score_interval(&eval).unwrap();
        assert!((interval.low - 0.4038).abs() < 1e-4 && (interval.high - 0.5962).abs() < 1e-4);
        let sure = score_interval(&EvalRecord { score: 1.0, ..eval.clone() }).unwrap();
        assert!(sure.high == 1.0 && (sure.low - 0.963).abs() < 1e-3, "{sure:?}");
        assert_eq!(score_interval(&EvalRecord { metrics: Map::new(), ..eval }), None);
    }
}
