//! The calibration of runs: the weights of all signals, and the accuracy and reliability of the
//! calibrated rule on other runs.

use std::collections::BTreeMap;

use aggregate::{
    Calibration, CalibrationExample, CalibrationWeights, Candidate, Reliability, VoteParams,
    fit_calibration,
};
use record::{RunDir, Sample, TrajectoryRecord};
use report::interval::{Bootstrap, Interval};
use serde::Serialize;

use crate::Error;

/// A fitted calibration.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CalibrationReport {
    /// The calibration for the rule `calibrated`.
    pub calibration: Calibration,
    /// Number of samples that it was fitted on: questions under all seeds.
    pub samples: usize,
    /// The scores on the runs that it was fitted on.
    pub fitted: CalibrationScores,
}

/// The accuracy and reliability of a calibration on some runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CalibrationScores {
    /// Accuracy of the rule `calibrated`.
    pub accuracy: Estimate,
    /// Accuracy of majority voting.
    pub majority: Estimate,
    /// The difference of the two accuracies, paired by question.
    pub gain: Estimate,
    /// Reliability of the confidence; `None` if it cannot be computed.
    pub reliability: Option<Reliability>,
}

/// A mean over questions with its 95% confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl From<Interval> for Estimate {
    fn from(Interval { value, low, high }: Interval) -> Self {
        Self { value, low, high }
    }
}

/// A set of signals and the scores of their calibration.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SignalSetScores {
    /// The signals in addition to the votes.
    pub signals: Vec<&'static str>,
    /// The fitted weights.
    pub weights: CalibrationWeights,
    /// The scores on runs that it was not fitted on.
    pub scores: CalibrationScores,
}

/// The parts of some runs' samples that a calibration needs.
#[derive(Debug, Clone)]
pub struct CalibrationData {
    samples: Vec<Sample>,
}

impl CalibrationData {
    /// Reads runs with all their seeds.
    pub fn read<'a>(runs: impl IntoIterator<Item = &'a RunDir>) -> Result<Self, Error> {
        let mut samples = Vec::new();
        for run in runs {
            for sample in run.samples()? {
                samples.push(sample?);
            }
        }
        Ok(Self { samples })
    }

    /// The signals, other than votes, that at least one trajectory has.
    pub fn signals(&self) -> Vec<&'static str> {
        let has = |name: &str| {
            self.samples
                .iter()
                .flat_map(|sample| &sample.trajectories)
                .any(|trajectory| has_signal(trajectory, name))
        };
        CalibrationWeights::NAMES.into_iter().skip(1).filter(|name| has(name)).collect()
    }

    fn examples(&self) -> Vec<CalibrationExample> {
        let example = |sample: &Sample| {
            CalibrationExample::new(&sample.trajectories, TrajectoryRecord::is_correct)
        };
        self.samples.iter().map(example).collect()
    }

    /// The scores of a calibration on these runs.
    pub fn scores(&self, calibration: &Calibration) -> CalibrationScores {
        let mut columns: BTreeMap<u32, [f64; 3]> = BTreeMap::new();
        let mut answers = Vec::new();
        for sample in &self.samples {
            let all = &sample.trajectories;
            let is_right =
                |index: Option<usize>| index.is_some_and(|index| all[index].is_correct());
            let chosen = calibration.choose(all);
            let confidence = chosen.and_then(|chosen| calibration.confidence(all, chosen));
            answers.extend(confidence.map(|confidence| (confidence, is_right(chosen))));
            let sums = columns.entry(sample.id).or_default();
            sums[0] += f64::from(u8::from(is_right(chosen)));
            sums[1] += f64::from(u8::from(is_right(aggregate::majority(all))));
            sums[2] += 1.0;
        }
        let column =
            |k: usize| -> Vec<f64> { columns.values().map(|sums| sums[k] / sums[2]).collect() };
        let [chosen, majority] = [column(0), column(1)];
        let differences: Vec<f64> = chosen.iter().zip(&majority).map(|(a, b)| a - b).collect();
        let share = |values: &[f64]| Interval::of_share(values).map(Estimate::from);
        let none = Estimate { value: 0.0, low: 0.0, high: 0.0 };
        CalibrationScores {
            accuracy: share(&chosen).unwrap_or(none),
            majority: share(&majority).unwrap_or(none),
            gain: Bootstrap::default().difference(&differences).map_or(none, Estimate::from),
            reliability: Reliability::new(&answers),
        }
    }
}

fn has_signal(trajectory: &TrajectoryRecord, name: &str) -> bool {
    match name {
        "likelihood" => trajectory.logprob().is_some(),
        "reward" => trajectory.process_rewards().is_some(),
        name => trajectory.signal(name).is_some(),
    }
}

/// Fits a calibration to runs on problems that the models were not trained on. `signals` selects
/// the signals used in addition to the votes; `None` selects all signals of the runs.
///
/// # Errors
///
/// If a run cannot be read, or no question has both correct and incorrect answers.
pub fn calibrate(
    data: &CalibrationData,
    signals: Option<&[&str]>,
) -> Result<CalibrationReport, Error> {
    let uses = CalibrationWeights::NAMES
        .map(|name| name == "votes" || signals.is_none_or(|signals| signals.contains(&name)));
    let calibration = fit_calibration(&data.examples(), uses)?;
    Ok(CalibrationReport {
        calibration,
        samples: data.samples.len(),
        fitted: data.scores(&calibration),
    })
}

/// Fits each signal alone, all but each, and all signals on some runs, and evaluates them on
/// others.
///
/// # Errors
///
/// See [`calibrate`].
pub fn ablation(
    fitted: &CalibrationData,
    measured: &CalibrationData,
) -> Result<Vec<SignalSetScores>, Error> {
    let all = fitted.signals();
    let mut sets: Vec<Vec<&'static str>> = vec![Vec::new()];
    sets.extend(all.iter().map(|&signal| vec![signal]));
    if all.len() > 2 {
        let without = |left_out: &&'static str| -> Vec<&'static str> {
            all.iter().copied().filter(|signal| signal != left_out).collect()
        };
        sets.extend(all.iter().map(without));
    }
    if all.len() > 1 {
        sets.push(all);
    }
    let row = |signals: Vec<&'static str>| {
        let report = calibrate(fitted, Some(&signals))?;
        let scores = measured.scores(&report.calibration);
        Ok(SignalSetScores { signals, weights: report.calibration.weights, scores })
    };
    sets.into_iter().map(row).collect()
}

/// The parameters of the voting rules with a calibration.
pub fn vote_params(calibration: Calibration) -> VoteParams {
    VoteParams { calibration: Some(calibration), ..VoteParams::default() }
}
