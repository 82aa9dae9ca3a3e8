//! The training loop: gradient accumulation, optimizer steps, records, checkpoints, evaluation with
//! early stopping.
//!
//! `DIR/training/` holds `state.safetensors` (parameters, optimizer moments, the step) and the
//! records of [`TrainingDir`], with one line per step and per evaluation. Training resumes from
//! these files and continues deterministically, because data and random numbers are functions of
//! the step. The state is written after the records of its steps, and whenever a model is kept. If
//! a process is killed, records newer than the last state are removed and the steps are repeated.

mod divergence;
mod memory;
mod records;
mod state;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use model::{FrozenElements, Parameter};
use record::{EvalRecord, Losses, StepRecord, TrainTiming, TrainingDir};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tensor::{Device, ops};

use crate::error::TrainError;
use crate::schedule::Optimizer;
use divergence::LossMonitor;
use records::TrainRecords;
use state::TrainState;

pub use divergence::Divergence;
pub use memory::TrainMemory;
pub(crate) use memory::check_new_model;
pub use state::check_state;

/// Losses and sizes of a micro-batch, for the log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MicroBatch {
    /// Losses; the log has their mean over the micro-batches of a step.
    pub losses: Losses,
    /// Number of examples; the log has their sum over a step.
    pub examples: u64,
    /// Number of input positions of the decoder, if the task counts them.
    pub tokens: Option<u64>,
}

/// The task of a [`TrainLoop`]: a model with its data and losses.
pub trait TrainTask {
    /// Accumulates the gradients of one micro-batch of a step.
    fn accumulate_gradients(
        &mut self,
        step: u32,
        micro_batch: u32,
    ) -> Result<MicroBatch, TrainError>;

    /// All parameters, in a fixed order.
    fn parameters(&self) -> Vec<&Parameter>;

    /// All parameters, mutably, in the same order. Call [`Self::sync_weights`] after changing them.
    fn parameters_mut(&mut self) -> Vec<&mut Parameter>;

    /// Copies changed parameters to the weights that the forward pass uses.
    fn sync_weights(&mut self) -> Result<(), TrainError>;

    /// Metrics on held-out data after `steps` steps; `None` if there is no held-out data.
    fn evaluate(&mut self, steps: u32) -> Result<Option<EvalResult>, TrainError>;

    /// Writes the model in the format that the engine loads.
    fn save(&mut self) -> Result<(), TrainError>;

    /// Whether the files that [`Self::save`] writes exist.
    fn is_saved(&self) -> bool;

    /// The number of elements that are frozen, in addition to [`Self::parameters`].
    fn frozen(&self) -> FrozenElements {
        FrozenElements::default()
    }

    /// Additional data to save in the state after `steps` steps, for [`Self::restore`].
    fn unfinished(&self, _steps: u32) -> Option<Value> {
        None
    }

    /// Restores the data that [`Self::unfinished`] returned after `steps` steps.
    fn restore(&mut self, _steps: u32, _unfinished: Value) -> Result<(), TrainError> {
        Ok(())
    }

    /// Estimated activation memory of one micro-batch in bytes; `None` without an estimate.
    fn activation_bytes(&mut self) -> Result<Option<u64>, TrainError> {
        Ok(None)
    }
}

/// Metrics on held-out data.
#[derive(Clone, Debug)]
pub struct EvalResult {
    /// Metrics by name, for the record.
    pub metrics: Map<String, Value>,
    /// The metric that selects the best model; higher is better.
    pub score: f64,
}

/// Settings of the loop.
#[derive(Clone, Debug)]
pub struct TrainConfig {
    /// Optimizer and learning-rate schedule; the schedule's length is the number of steps.
    pub optimizer: Optimizer,
    /// Micro-batches per step, whose gradients are averaged.
    pub accumulation_steps: u32,
    /// Directory of the records and the state: `DIR/training`.
    pub dir: PathBuf,
    /// Steps between saved states; 0 saves only at the end. A state is also saved with every kept
    /// model.
    pub save_every: u32,
    /// Steps between evaluations; 0 evaluates only at the end.
    pub eval_every: u32,
    /// Which model is kept.
    pub keep: KeepPolicy,
    /// Evaluations without improvement before training stops; 0 disables early stopping.
    pub patience: u32,
    /// Multiple of its minimum above which the smoothed loss has diverged; `None` disables the
    /// check.
    pub max_loss_ratio: Option<f64>,
    /// All settings that determine the trained weights.
    pub settings: TrainSettings,
    /// Whether to accept a state that was written with different optimizer settings.
    pub change_optimizer: bool,
}

/// Which model to keep at the end of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum KeepPolicy {
    /// The model with the best score on held-out problems
    // Ties go to the latest model; without evaluations it is the last model.
    Best,
    /// The last model
    Last,
}

/// All settings that determine the trained weights.
#[derive(Clone, Debug, Default)]
pub struct TrainSettings {
    /// Settings that must not change when training is resumed.
    pub fixed: Map<String, Value>,
    /// Optimizer settings, which may change with [`TrainConfig::change_optimizer`].
    pub optimizer: Map<String, Value>,
    /// Digest of the content of the initial model and the data, independent of their paths.
    pub inputs: String,
}

impl TrainSettings {
    /// Both groups of settings as text, for comparison with a saved state.
    fn fingerprints(&self) -> (String, String) {
        let text = |part: &Map<String, Value>| Value::Object(part.clone()).to_string();
        (text(&self.fixed), text(&self.optimizer))
    }

    fn to_json(&self) -> Value {
        let all = self.fixed.iter().chain(&self.optimizer);
        Value::Object(all.map(|(name, value)| (name.clone(), value.clone())).collect())
    }
}

/// Progress event, passed to the callback.
#[derive(Clone, Debug)]
pub enum TrainEvent<'a> {
    /// Training continues from a saved state.
    Resumed {
        /// Steps completed before.
        steps: u32,
    },
    /// A step is complete.
    Stepped {
        /// Steps completed.
        steps: u32,
        /// Total number of steps.
        total: u32,
        /// The line of the log.
        record: &'a StepRecord,
        /// Duration in seconds, without evaluations and saves.
        seconds: f64,
    },
    /// An evaluation is complete.
    Evaluated {
        /// The line of `evals.jsonl`.
        record: &'a EvalRecord,
        /// Duration in seconds.
        seconds: f64,
    },
}

/// How a run of the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainOutcome {
    /// All steps are done or early stopping ended the training.
    Finished,
    /// The callback interrupted the training; the state is saved.
    Interrupted,
}

/// Called after every event; [`ControlFlow::Break`] interrupts training.
pub type EventCallback<'a> = dyn FnMut(TrainEvent<'_>) -> ControlFlow<()> + 'a;

/// The training loop.
#[derive(Clone, Copy)]
pub struct TrainLoop<'a> {
    /// Device of the optimizer and of restored parameters.
    pub device: &'a Device,
    /// Settings of the loop.
    pub config: &'a TrainConfig,
}

impl TrainLoop<'_> {
    /// Trains from the saved state, or from scratch if there is none.
    pub fn run(
        &self,
        task: &mut dyn TrainTask,
        on_event: &mut EventCallback<'_>,
    ) -> Result<TrainOutcome, TrainError> {
        let mut run = TrainRun::open(*self, task)?;
        let steps = run.state.steps;
        if steps > 0 && on_event(TrainEvent::Resumed { steps }).is_break() {
            return Ok(TrainOutcome::Interrupted);
        }
        while !run.state.is_finished(self.config) {
            if run.advance(task, on_event)?.is_break() && !run.state.is_finished(self.config) {
                return Ok(TrainOutcome::Interrupted);
            }
        }
        if run.state.best.is_none() || !task.is_saved() && run.state.is_kept() {
            run.check_finite(task)?;
            task.save()?;
        }
        if !task.is_saved() {
            return Err(TrainError::MissingModel { dir: self.config.dir.clone() });
        }
        Ok(TrainOutcome::Finished)
    }
}

/// A training in progress.
struct TrainRun<'a> {
    trainer: TrainLoop<'a>,
    state: TrainState,
    records: TrainRecords,
    monitor: LossMonitor,
    /// Steps of the last saved state.
    saved: Option<u32>,
}

impl<'a> TrainRun<'a> {
    fn open(trainer: TrainLoop<'a>, task: &mut dyn TrainTask) -> Result<Self, TrainError> {
        let config = trainer.config;
        let state = TrainState::open(task, trainer.device, config)?;
        let dir = TrainingDir::new(&config.dir);
        let (records, past) = TrainRecords::open(&dir, state.steps)?;
        record::write_document(&dir.settings_file(), &config.settings.to_json())?;
        let mut monitor = LossMonitor::new(config.max_loss_ratio);
        for record in &past {
            monitor.add(record);
        }
        let saved = (state.steps > 0).then_some(state.steps);
        Ok(Self { trainer, state, records, monitor, saved })
    }

    /// Runs one step, and the evaluation and the save that are due after it. Breaks if the callback
    /// interrupts; the state is then saved.
    fn advance(
        &mut self,
        task: &mut dyn TrainTask,
        on_event: &mut EventCallback<'_>,
    ) -> Result<ControlFlow<()>, TrainError> {
        let config = self.trainer.config;
        let started = Instant::now();
        let record = self.step(task)?;
        let seconds = started.elapsed().as_secs_f64();
        let steps = self.state.steps;
        let total = config.optimizer.schedule.steps;
        let event = TrainEvent::Stepped { steps, total, record: &record, seconds };
        let mut interrupted = on_event(event).is_break();
        let mut timing = TrainTiming { step: record.step, seconds, eval_seconds: None };
        let mut due = self.state.is_due(config, config.save_every);
        if self.state.is_due(config, config.eval_every) {
            let started = Instant::now();
            if let Some(record) = self.evaluate(task)? {
                let seconds = started.elapsed().as_secs_f64();
                let event = TrainEvent::Evaluated { record: &record, seconds };
                interrupted |= on_event(event).is_break();
                timing.eval_seconds = Some(seconds);
                due |= record.kept;
            }
        }
        self.records.add_timing(&timing)?;
        // The evaluation may have ended the training.
        if interrupted || due || self.state.is_finished(config) {
            self.save(task)?;
        }
        Ok(if interrupted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn evaluate(&mut self, task: &mut dyn TrainTask) -> Result<Option<EvalRecord>, TrainError> {
        self.check_finite(task)?;
        let record = self.state.evaluate(task, self.trainer.config)?;
        record.iter().try_for_each(|record| self.records.add_eval(record))?;
        Ok(record)
    }

    fn save(&mut self, task: &dyn TrainTask) -> Result<(), TrainError> {
        self.check_finite(task)?;
        self.records.sync()?;
        self.state.save(task, self.trainer.config)?;
        self.saved = Some(self.state.steps);
        tracing::debug!(steps = self.state.steps, "saved the training state");
        Ok(())
    }

    /// Runs one optimizer step, writes its log line and returns it.
    fn step(&mut self, task: &mut dyn TrainTask) -> Result<StepRecord, TrainError> {
        let TrainLoop { device, config } = self.trainer;
        let step = self.state.steps;
        let accumulated = config.accumulation_steps;
        let mut record = StepRecord { step, ..StepRecord::default() };
        for micro_batch in 0..accumulated {
            let part = task.accumulate_gradients(step, micro_batch)?;
            record.losses.add_mean_of(&part.losses, f64::from(accumulated));
            record.examples = Some(record.examples.unwrap_or(0) + part.examples);
            if let Some(tokens) = part.tokens {
                record.tokens = Some(record.tokens.unwrap_or(0) + tokens);
            }
        }
        if !record.losses.is_finite() {
            return Err(self.diverged(Divergence::Loss));
        }
        let stats = config.optimizer.step(device, step, accumulated, task.parameters_mut())?;
        if !stats.grad_norm.is_finite() {
            return Err(self.diverged(Divergence::Gradient));
        }
        task.sync_weights()?;
        record.lr = f64::from(stats.lr);
        record.grad_norm = f64::from(stats.grad_norm);
        self.records.add_step(&record)?;
        if let Some(divergence) = self.monitor.add(&record) {
            return Err(self.diverged(divergence));
        }
        self.state.steps += 1;
        Ok(record)
    }

    /// Fails if a parameter or one of its moments is not finite, so that it is never saved.
    fn check_finite(&self, task: &dyn TrainTask) -> Result<(), TrainError> {
        let parameters = task.parameters();
        let tensors: Vec<_> = parameters
            .iter()
            .flat_map(|p| [&p.value, &p.moments.first, &p.moments.second])
            .collect();
        match ops::sum_of_squares(self.trainer.device, &tensors)?.is_finite() {
            true => Ok(()),
            false => Err(self.diverged(Divergence::Parameter)),
        }
    }

    fn diverged(&self, what: Divergence) -> TrainError {
        // Parameters are checked after a step, losses and gradients during a step.
        let step = self.state.steps + u32::from(what != Divergence::Parameter);
        TrainError::Diverged { step, what, saved: self.saved }
    }
}
