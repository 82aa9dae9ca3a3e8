//! The training loop: gradient accumulation, optimizer steps, log, checkpoints, evaluation with
//! early stopping.
//!
//! `DIR/training/` holds `state.safetensors` (parameters, optimizer moments, the step) and
//! `log.jsonl` (one line per step). A training resumes from these two files alone and continues
//! deterministically, because data and random numbers are functions of the step.

mod log;
mod state;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use model::Parameter;
use serde_json::{Map, Value, json};
use tensor::Device;

use crate::error::TrainError;
use crate::schedule::Optimizer;
use log::TrainLog;
use state::TrainState;

/// What a [`Trainer`] trains: a model with its data.
pub trait TrainTask {
    /// Adds the gradients of one micro-batch of a step; returns its losses for the log.
    fn accumulate_gradients(
        &mut self,
        step: u32,
        micro_batch: u32,
    ) -> Result<Map<String, Value>, TrainError>;

    /// All parameters, in a fixed order.
    fn parameters(&self) -> Vec<&Parameter>;

    /// All parameters, mutably, in the same order. [`Self::sync_weights`] has to follow a change.
    fn parameters_mut(&mut self) -> Vec<&mut Parameter>;

    /// Copies changed parameters to the weights that the forward pass uses.
    fn sync_weights(&mut self) -> Result<(), TrainError>;

    /// Metrics on held-out data after `steps` steps; `None` if there is no held-out data.
    fn evaluate(&mut self, steps: u32) -> Result<Option<EvalResult>, TrainError>;

    /// Writes the model in the format that the engine loads.
    fn save(&mut self) -> Result<(), TrainError>;
}

/// Metrics on held-out data.
#[derive(Clone, Debug)]
pub struct EvalResult {
    /// Metrics by name, for the callback.
    pub metrics: Map<String, Value>,
    /// The metric that early stopping compares; higher is better.
    pub score: f64,
}

/// Settings of the loop.
#[derive(Clone, Debug)]
pub struct TrainConfig {
    /// Optimizer and learning-rate schedule, whose length is the number of steps.
    pub optimizer: Optimizer,
    /// Micro-batches per step, whose gradients are averaged.
    pub accumulation_steps: u32,
    /// Directory of the log and the state: `DIR/training`.
    pub dir: PathBuf,
    /// Steps between states; 0 for the last only.
    pub save_every: u32,
    /// Steps between evaluations; 0 for the last only.
    pub eval_every: u32,
    /// Evaluations without improvement before training stops, the best model being kept; 0 for no
    /// early stopping, the last model being kept.
    pub patience: u32,
    /// All settings that a resumed training has to share with its beginning.
    pub fingerprint: String,
}

/// Progress, as the callback gets it.
#[derive(Clone, Debug)]
pub enum TrainEvent<'a> {
    /// Training continues from a state.
    Resumed {
        /// Steps done before.
        steps: u32,
    },
    /// A step is done.
    Stepped {
        /// Steps done.
        steps: u32,
        /// Steps in total.
        total: u32,
        /// The line of the log.
        log_line: &'a Map<String, Value>,
    },
    /// An evaluation is done.
    Evaluated {
        /// Steps done.
        steps: u32,
        /// Its metrics.
        metrics: &'a Map<String, Value>,
    },
}

/// How a run of the loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainOutcome {
    /// All steps are done, or early stopping ended them.
    Finished,
    /// The callback interrupted it; the state is saved.
    Interrupted,
}

/// Called after every event; [`ControlFlow::Break`] interrupts training.
pub type EventCallback<'a> = dyn FnMut(TrainEvent<'_>) -> ControlFlow<()> + 'a;

/// The training loop.
#[derive(Clone, Copy)]
pub struct Trainer<'a> {
    /// Device of the optimizer and of restored parameters.
    pub device: &'a Device,
    /// Settings of the loop.
    pub config: &'a TrainConfig,
}

impl Trainer<'_> {
    /// Trains from the saved state, or from the beginning if there is none.
    pub fn run(
        &self,
        task: &mut dyn TrainTask,
        on_event: &mut EventCallback<'_>,
    ) -> Result<TrainOutcome, TrainError> {
        let config = self.config;
        let mut state = TrainState::open(task, self.device, config)?;
        if state.steps > 0 && on_event(TrainEvent::Resumed { steps: state.steps }).is_break() {
            return Ok(TrainOutcome::Interrupted);
        }
        let mut log = TrainLog::open(&config.dir.join("log.jsonl"), state.steps)?;
        let total = config.optimizer.schedule.steps;
        while !state.is_finished(config) {
            let log_line = self.step(task, state.steps)?;
            log.write(&log_line)?;
            state.steps += 1;
            let event = TrainEvent::Stepped { steps: state.steps, total, log_line: &log_line };
            let mut interrupted = on_event(event).is_break();
            if state.is_due(config, config.eval_every) {
                interrupted |= state.evaluate(task, config, on_event)?.is_break();
            }
            if interrupted || state.is_due(config, config.save_every) {
                log.flush()?;
                state.save(task, config)?;
            }
            if interrupted && !state.is_finished(config) {
                return Ok(TrainOutcome::Interrupted);
            }
        }
        if state.best.is_none() {
            task.save()?;
        }
        Ok(TrainOutcome::Finished)
    }

    /// One optimizer step; returns the line of the log.
    fn step(&self, task: &mut dyn TrainTask, step: u32) -> Result<Map<String, Value>, TrainError> {
        let started = Instant::now();
        let TrainConfig { optimizer, accumulation_steps, .. } = self.config;
        let mut losses: Map<String, Value> = Map::new();
        for micro_batch in 0..*accumulation_steps {
            for (name, value) in task.accumulate_gradients(step, micro_batch)? {
                let sum = losses.get(&name).and_then(Value::as_f64).unwrap_or(0.0);
                let share = value.as_f64().unwrap_or(0.0) / f64::from(*accumulation_steps);
                losses.insert(name, json!(sum + share));
            }
        }
        let stats =
            optimizer.step(self.device, step, *accumulation_steps, task.parameters_mut())?;
        if !stats.grad_norm.is_finite() {
            return Err(TrainError::Diverged { step });
        }
        task.sync_weights()?;
        let mut line = Map::from_iter([("step".to_owned(), json!(step))]);
        line.extend(losses);
        line.insert("rate".to_owned(), json!(stats.lr));
        line.insert("norm".to_owned(), json!(stats.grad_norm));
        line.insert("seconds".to_owned(), json!(started.elapsed().as_secs_f64()));
        Ok(line)
    }
}
