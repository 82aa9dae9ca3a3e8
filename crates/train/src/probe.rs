//! Training of a probe on the hidden states of sampled trajectories.
//!
//! The data is in memory: the trajectories of each question with their hidden states and labels
//! (correct or wrong). Questions whose trajectories are all correct or all wrong are dropped, since
//! they have nothing to rank. The pairwise loss compares each correct trajectory of a question with
//! each wrong one; every step uses a few questions. Every `eval_every` steps the probe is saved if
//! its ranking accuracy on held-out questions has improved.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::Path;

use aggregate::ordered_pairs;
use model::{Probe, ProbeKind, StateCounts, StateScale};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tensor::Tensor;

use crate::data_loader::shuffled_index;
use crate::error::TrainError;
use crate::loss::{Objective, ScoredProblem};
use crate::options::invalid;
use crate::schedule::{LrSchedule, Optimizer};

/// Options for training a probe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ProbeTrainerOptions {
    /// Architecture: a linear reward and gate per hidden state, or a narrow transformer over them
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "KIND", value_parser = clap::builder::PossibleValuesParser::new(
            ["linear", "encoder"]), default_value = "encoder"
    ))]
    pub kind: String,

    /// Training objective: pairs of a correct and a wrong trajectory of a question (pairwise), or
    /// binary cross entropy of each trajectory (bce)
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "OBJECTIVE", value_parser = clap::builder::PossibleValuesParser::new(
            ["pairwise", "bce"]), default_value = "pairwise"
    ))]
    pub objective: String,

    /// Optimizer steps
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", help_heading = "Training", default_value_t = Self::default().steps
    ))]
    pub steps: NonZeroU32,

    /// Questions per step
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", help_heading = "Training", default_value_t = Self::default().batch
    ))]
    pub batch: NonZeroUsize,

    /// Learning rate after warmup
    #[cfg_attr(feature = "clap", arg(
        long, help_heading = "Training", default_value_t = Self::default().lr
    ))]
    pub lr: f32,

    /// Weight decay of matrices
    #[cfg_attr(feature = "clap", arg(
        long, help_heading = "Training", default_value_t = Self::default().weight_decay
    ))]
    pub weight_decay: f32,

    /// Fraction of questions held out to select the best probe
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "SHARE", help_heading = "Training",
        default_value_t = Self::default().held_out_share
    ))]
    pub held_out_share: f64,

    /// Steps between evaluations on the held-out questions
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", help_heading = "Training",
        default_value_t = Self::default().eval_every
    ))]
    pub eval_every: NonZeroU32,
}

impl Default for ProbeTrainerOptions {
    fn default() -> Self {
        Self {
            kind: "encoder".to_owned(),
            objective: "pairwise".to_owned(),
            steps: NonZeroU32::MIN.saturating_add(999),
            batch: NonZeroUsize::MIN.saturating_add(7),
            lr: 3e-4,
            weight_decay: 0.05,
            held_out_share: 0.1,
            eval_every: NonZeroU32::MIN.saturating_add(99),
        }
    }
}

impl ProbeTrainerOptions {
    /// The defaults with the given fields. Unknown names and invalid values are errors.
    pub fn from_fields(fields: Map<String, Value>) -> Result<Self, TrainError> {
        serde_json::from_value(Value::Object(fields)).map_err(invalid)
    }

    /// The architecture of the probe.
    pub fn probe_kind(&self) -> Result<ProbeKind, TrainError> {
        match self.kind.as_str() {
            "linear" => Ok(ProbeKind::Linear),
            "encoder" => Ok(ProbeKind::Encoder),
            other => {
                Err(options_error(format!("`kind` {other} is invalid; use linear or encoder")))
            }
        }
    }

    fn objective(&self) -> Result<Objective, TrainError> {
        match self.objective.as_str() {
            "pairwise" => Ok(Objective::Pairwise),
            "bce" => Ok(Objective::Bce),
            other => {
                Err(options_error(format!("`objective` {other} is invalid; use pairwise or bce")))
            }
        }
    }

    /// Checks the ranges of all values.
    pub fn check(&self) -> Result<(), TrainError> {
        self.probe_kind()?;
        self.objective()?;
        if !(self.lr.is_finite() && self.lr > 0.0) {
            return Err(options_error(format!("`lr` {} must be a number above 0", self.lr)));
        }
        if !(self.weight_decay.is_finite() && self.weight_decay >= 0.0) {
            let value = self.weight_decay;
            return Err(options_error(format!("`weight_decay` {value} must be at least 0")));
        }
        if !(0.0..=0.9).contains(&self.held_out_share) {
            let value = self.held_out_share;
            return Err(options_error(format!("`held_out_share` {value} must be 0 to 0.9")));
        }
        Ok(())
    }
}

fn options_error(reason: String) -> TrainError {
    TrainError::Options { reason }
}

/// The trajectories of a question.
#[derive(Clone, Debug, Default)]
pub struct ProbeExample {
    /// The concatenated hidden states of all trajectories, row-major (positions, width).
    pub states: Vec<f32>,
    /// Number of positions per trajectory.
    pub counts: Vec<StateCounts>,
    /// Per trajectory: whether it is correct.
    pub correct: Vec<bool>,
}

impl ProbeExample {
    /// Whether it has both correct and wrong trajectories.
    pub fn is_mixed(&self) -> bool {
        self.correct.contains(&true) && self.correct.contains(&false)
    }

    fn labels(&self) -> impl Iterator<Item = f32> {
        self.correct.iter().map(|&correct| f32::from(u8::from(correct)))
    }
}

/// The progress of a probe's training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProbeProgress {
    /// Number of completed steps.
    pub step: u32,
    /// Mean loss since the last evaluation.
    pub loss: f64,
    /// Ranking accuracy on the held-out questions, if there are any.
    pub auc: Option<f64>,
    /// Whether this is the best probe so far and was saved.
    pub is_kept: bool,
}

/// Trains a probe and saves the best one to a directory; returns the progress at that point.
///
/// `stop` is called after every evaluation; returning true ends the training and keeps the saved
/// probe.
///
/// # Errors
///
/// If options are out of range, no example is mixed, the loss is not finite, or the device fails.
pub fn train_probe(
    probe: &mut Probe,
    mut examples: Vec<ProbeExample>,
    (options, seed): (&ProbeTrainerOptions, u64),
    out: &Path,
    mut stop: impl FnMut(ProbeProgress) -> bool,
) -> Result<ProbeProgress, TrainError> {
    options.check()?;
    examples.retain(ProbeExample::is_mixed);
    if examples.is_empty() {
        return Err(options_error(
            "no question has both correct and wrong trajectories; use more questions or samples"
                .to_owned(),
        ));
    }
    let width = probe.config().width;
    let scale = scale_of(&examples, width);
    examples.iter_mut().for_each(|example| scale.apply(&mut example.states));
    let held_out = split(&mut examples, options.held_out_share);
    let steps = options.steps.get();
    let optimizer = Optimizer {
        schedule: LrSchedule {
            peak: options.lr,
            warmup: (steps / 20).max(1),
            steps,
            min_ratio: 0.05,
        },
        betas: (0.9, 0.99),
        eps: 1e-8,
        weight_decay: options.weight_decay,
        decay_all: false,
        clip: Some(1.0),
    };
    let objective = options.objective()?;
    let device = probe.device().clone();
    let mut best: Option<ProbeProgress> = None;
    let mut loss = 0.0;
    let mut losses = 0;
    for step in 0..steps {
        let batch = batch(&examples, (step, options.batch.get()), seed);
        loss += device.run(|| accumulate(probe, &batch, objective))?;
        losses += 1;
        if !f64::is_finite(loss) {
            let reason = format!("the loss is not finite at step {step}; use a smaller `lr`");
            return Err(options_error(reason));
        }
        device.run(|| {
            optimizer.step(&device, step, 1, probe.parameters_mut().collect())?;
            probe.sync_weights()
        })?;
        let done = step + 1;
        if !done.is_multiple_of(options.eval_every.get()) && done != steps {
            continue;
        }
        let auc = device.run(|| ranking_accuracy(probe, &held_out))?;
        // Without held-out questions, the last probe is kept.
        let is_kept = best.as_ref().is_none_or(|best| auc.is_none() || auc > best.auc);
        let progress = ProbeProgress { step: done, loss: loss / f64::from(losses), auc, is_kept };
        (loss, losses) = (0.0, 0);
        if is_kept {
            probe.save(out, &scale)?;
            best = Some(progress);
        }
        if stop(progress) {
            break;
        }
    }
    best.ok_or_else(|| options_error("training ended before the first evaluation".to_owned()))
}

/// The scale of the examples' hidden states, estimated from at most 20,000 of them.
fn scale_of(examples: &[ProbeExample], width: usize) -> StateScale {
    const ROWS: usize = 20_000;
    let rows: usize = examples.iter().map(|example| example.states.len() / width).sum();
    let every = rows.div_ceil(ROWS).max(1);
    let all = examples.iter().flat_map(|example| example.states.chunks_exact(width));
    let some: Vec<f32> = all.step_by(every).flatten().copied().collect();
    StateScale::of(&some, width)
}

/// Removes a fraction `share` of the examples at regular intervals and returns them.
fn split(examples: &mut Vec<ProbeExample>, share: f64) -> Vec<ProbeExample> {
    let count = ((examples.len() as f64 * share).round() as usize).min(examples.len() - 1);
    let every = examples.len().checked_div(count).unwrap_or(usize::MAX);
    let mut held_out = Vec::new();
    let mut kept = Vec::new();
    for (i, example) in std::mem::take(examples).into_iter().enumerate() {
        let is_held_out = (i + 1).is_multiple_of(every) && held_out.len() < count;
        if is_held_out { held_out.push(example) } else { kept.push(example) }
    }
    *examples = kept;
    held_out
}

/// The questions of a step; all questions are used before one is repeated.
fn batch(examples: &[ProbeExample], (step, size): (u32, usize), seed: u64) -> Vec<&ProbeExample> {
    let count = examples.len() as u64;
    let first = u64::from(step) * size as u64;
    let index = |i: u64| shuffled_index(i % count, count, seed.wrapping_add(i / count));
    (first..first + size as u64).map(|i| &examples[index(i) as usize]).collect()
}

/// Accumulates the gradients of the mean loss of some questions.
fn accumulate(
    probe: &mut Probe,
    batch: &[&ProbeExample],
    objective: Objective,
) -> Result<f64, TrainError> {
    let (states, counts) = inputs(probe, batch)?;
    let forward = probe.forward(&states, &counts)?;
    let mut dscores = vec![0.0; counts.len()];
    let mut loss = 0.0;
    let mut start = 0;
    for example in batch {
        let range = start..start + example.counts.len();
        start = range.end;
        let labels: Vec<f32> = example.labels().collect();
        let problem = ScoredProblem {
            scores: &forward.scores[range.clone()],
            labels: &labels,
            steps: &vec![0; labels.len()],
        };
        loss += objective.loss(problem, &|_| 1.0, &mut dscores[range]);
    }
    let share = 1.0 / batch.len() as f32;
    dscores.iter_mut().for_each(|d| *d *= share);
    probe.backward(&states, forward, &dscores)?;
    Ok(loss / batch.len() as f64)
}

/// Copies the states of some questions to the probe's device.
fn inputs(
    probe: &Probe,
    examples: &[&ProbeExample],
) -> Result<(Tensor, Vec<StateCounts>), TrainError> {
    let width = probe.config().width;
    let counts: Vec<StateCounts> =
        examples.iter().flat_map(|example| &example.counts).copied().collect();
    let states: Vec<f32> = examples.iter().flat_map(|example| &example.states).copied().collect();
    let states = Tensor::from_vec(states.len() / width, width, states);
    Ok((states.to_device(probe.device())?, counts))
}

/// The fraction of correctly ordered pairs, averaged over questions.
fn ranking_accuracy(probe: &Probe, examples: &[ProbeExample]) -> Result<Option<f64>, TrainError> {
    let mut sum = 0.0;
    for example in examples {
        let (states, counts) = inputs(probe, &[example])?;
        let scores = probe.scores(&states, &counts)?;
        let scored = scores.into_iter().map(Some).zip(example.correct.iter().copied());
        let (ordered, pairs) = ordered_pairs(scored);
        sum += ordered / pairs;
    }
    Ok((!examples.is_empty()).then(|| sum / examples.len() as f64))
}

#[cfg(test)]
mod tests {
    use model::ProbeConfig;
    use tensor::Device;
    use tensor::rng::RngKey;

    use super::*;

    const WIDTH: usize = 16;

    /// Correct trajectories have larger values in the first element of one of their states.
    fn examples(count: u32, seed: u64) -> Vec<ProbeExample> {
        let example = |question: u32| {
            let mut example = ProbeExample::default();
            for trajectory in 0..6 {
                let counts = StateCounts { thoughts: 2 + trajectory as usize % 3, answer: 2 };
                let mut states = vec![0.0; counts.total() * WIDTH];
                RngKey { seed, question, trajectory, position: 0 }.add_noise(1.0, &mut states);
                let correct = (question + trajectory).is_multiple_of(3);
                states[WIDTH] += if correct { 3.0 } else { -3.0 };
                example.states.extend(states);
                example.counts.push(counts);
                example.correct.push(correct);
            }
            example
        };
        (0..count).map(example).collect()
    }

    fn options(kind: &str) -> ProbeTrainerOptions {
        ProbeTrainerOptions {
            kind: kind.to_owned(),
            steps: NonZeroU32::new(100).unwrap(),
            lr: 3e-3,
            eval_every: NonZeroU32::new(20).unwrap(),
            ..ProbeTrainerOptions::default()
        }
    }

    fn train(kind: &str, seed: u64) -> (ProbeProgress, Probe) {
        let device = Device::cpu(None).unwrap();
        let options = options(kind);
        let config = ProbeConfig {
            inner: 64,
            ..ProbeConfig::new(options.probe_kind().unwrap(), WIDTH, "coconut")
        };
        let mut probe = Probe::initial(&device, config, seed).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let best =
            train_probe(&mut probe, examples(400, 1), (&options, seed), dir.path(), |_| false)
                .unwrap();
        (best, Probe::load(&device, dir.path()).unwrap())
    }

    #[test]
    fn a_probe_learns_to_rank_and_generalizes() {
        for kind in ["linear", "encoder"] {
            let (best, probe) = train(kind, 3);
            assert!(best.auc.unwrap() > 0.9, "{kind}: {best:?}");
            // New questions, with unscaled states.
            let auc = ranking_accuracy(&probe, &examples(20, 2)).unwrap().unwrap();
            assert!(auc > 0.85, "{kind}: {auc}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_probe() {
        let scores = |seed| {
            let (_, probe) = train("encoder", seed);
            let all = examples(2, 5);
            let (states, counts) = inputs(&probe, &[&all[0], &all[1]]).unwrap();
            probe.scores(&states, &counts).unwrap()
        };
        assert_eq!(scores(3), scores(3));
        assert_ne!(scores(3), scores(4));
    }

    #[test]
    fn unusable_options_and_data_are_refused() {
        let device = Device::cpu(None).unwrap();
        let config = ProbeConfig::new(ProbeKind::Linear, WIDTH, "coconut");
        let mut probe = Probe::initial(&device, config, 0).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut run = |examples, options: &ProbeTrainerOptions| {
            train_probe(&mut probe, examples, (options, 0), dir.path(), |_| false)
                .unwrap_err()
                .to_string()
        };
        let mut all_right = examples(3, 1);
        all_right.iter_mut().for_each(|example| example.correct.fill(true));
        assert!(run(all_right, &options("linear")).contains("correct and wrong"));
        let bad = ProbeTrainerOptions { lr: f32::NAN, ..options("linear") };
        assert!(run(examples(3, 1), &bad).contains("`lr`"));
        assert!(run(examples(3, 1), &options("cubic")).contains("linear or encoder"));
    }
}
