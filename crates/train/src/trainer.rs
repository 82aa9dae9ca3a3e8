//! The loop around every training: batches, steps of the optimizer, a log, checkpoints, a look at
//! how well it goes.
//!
//! `DIR/training/` holds `state.safetensors` (weights, moments, the step) and `log.jsonl` (a line a
//! step). Both are enough to go on after an interruption: data and random numbers are functions of
//! the step.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use model::save::{self, SaveDtype};
use model::{NamedTensor, Parameter};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tensor::{Device, Tensor};

use crate::error::TrainError;
use crate::schedule::Optimizer;

/// Something that learns from batches that it makes itself.
pub trait TrainTask {
    /// Adds the gradients of one part of a step's batch; returns what the log shall say of it.
    fn accumulate_gradients(
        &mut self,
        step: u32,
        micro_batch: u32,
    ) -> Result<Map<String, Value>, TrainError>;

    /// Everything that learns, always in the same order.
    fn parameters(&self) -> Vec<&Parameter>;

    /// Everything that learns, to be changed.
    fn parameters_mut(&mut self) -> Vec<&mut Parameter>;

    /// Makes a change of the parameters known to what computes.
    fn sync_weights(&mut self) -> Result<(), TrainError>;

    /// How well it does after `steps` steps, on problems that it does not learn from. `None` if
    /// there is nothing to look at.
    fn evaluate(&mut self, steps: u32) -> Result<Option<Evaluation>, TrainError>;

    /// Writes what was learned so far, ready for use.
    fn save(&mut self) -> Result<(), TrainError>;
}

/// How well it does.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// What the log shall say.
    pub metrics: Map<String, Value>,
    /// The figure that early stopping goes by; more is better.
    pub score: f64,
}

/// How long, and what is kept on the way.
#[derive(Clone, Debug)]
pub struct TrainConfig {
    /// The steps.
    pub optimizer: Optimizer,
    /// Parts of a step whose gradients are added up.
    pub accumulation_steps: u32,
    /// Where the log and the state go: `DIR/training`.
    pub dir: PathBuf,
    /// Steps between states; none but the last if zero.
    pub save_every: u32,
    /// Steps between looks; none but the last if zero.
    pub eval_every: u32,
    /// Looks without improvement before it stops; never if zero. What was best is what is saved.
    pub patience: u32,
    /// Everything that a resumed training must have in common with its beginning.
    pub fingerprint: String,
}

/// What happens, for whoever watches.
#[derive(Clone, Debug)]
pub enum TrainEvent<'a> {
    /// Goes on at a step other than the first.
    Resumed {
        /// Steps done before.
        steps: u32,
    },
    /// A step is done.
    Stepped {
        /// Steps done.
        steps: u32,
        /// Steps in all.
        total: u32,
        /// The log's line.
        log_line: &'a Map<String, Value>,
    },
    /// It was looked at.
    Evaluated {
        /// Steps done.
        steps: u32,
        /// What was seen.
        metrics: &'a Map<String, Value>,
    },
}

/// How training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainOutcome {
    /// All steps are done, or patience was at its end.
    Finished,
    /// It was interrupted; the state is saved.
    Interrupted,
}

/// Who watches; a break interrupts.
pub type EventCallback<'a> = dyn FnMut(TrainEvent<'_>) -> ControlFlow<()> + 'a;

/// Runs a course from where its state says, or from the beginning.
pub fn run(
    course: &mut dyn TrainTask,
    device: &Device,
    plan: &TrainConfig,
    watch: &mut EventCallback<'_>,
) -> Result<TrainOutcome, TrainError> {
    let mut state = TrainState::open(course, device, plan)?;
    if state.steps > 0 && watch(TrainEvent::Resumed { steps: state.steps }).is_break() {
        return Ok(TrainOutcome::Interrupted);
    }
    let mut log = TrainLog::open(&plan.dir.join("log.jsonl"), state.steps)?;
    let of = plan.optimizer.schedule.steps;
    while !state.is_finished(plan) {
        let line = optimizer_step(course, device, plan, state.steps)?;
        log.write(&line)?;
        state.steps += 1;
        let mut interrupted =
            watch(TrainEvent::Stepped { steps: state.steps, total: of, log_line: &line })
                .is_break();
        if state.is_due(plan, plan.eval_every) {
            interrupted |= state.evaluate(course, plan, watch)?.is_break();
        }
        if interrupted || state.is_due(plan, plan.save_every) {
            log.flush()?;
            state.save(course, plan)?;
        }
        if interrupted && !state.is_finished(plan) {
            return Ok(TrainOutcome::Interrupted);
        }
    }
    if state.best.is_none() {
        course.save()?;
    }
    Ok(TrainOutcome::Finished)
}

fn optimizer_step(
    course: &mut dyn TrainTask,
    device: &Device,
    plan: &TrainConfig,
    step: u32,
) -> Result<Map<String, Value>, TrainError> {
    let started = Instant::now();
    let mut said: Map<String, Value> = Map::new();
    for part in 0..plan.accumulation_steps {
        for (name, value) in course.accumulate_gradients(step, part)? {
            let before = said.get(&name).and_then(Value::as_f64).unwrap_or(0.0);
            let share = value.as_f64().unwrap_or(0.0) / f64::from(plan.accumulation_steps);
            said.insert(name, json!(before + share));
        }
    }
    let stepped =
        plan.optimizer.step(device, step, plan.accumulation_steps, course.parameters_mut())?;
    if !stepped.grad_norm.is_finite() {
        return Err(TrainError::Diverged { step });
    }
    course.sync_weights()?;
    let mut line = Map::from_iter([("step".to_owned(), json!(step))]);
    line.extend(said);
    line.insert("rate".to_owned(), json!(stepped.lr));
    line.insert("norm".to_owned(), json!(stepped.grad_norm));
    line.insert("seconds".to_owned(), json!(started.elapsed().as_secs_f64()));
    Ok(line)
}

/// A line a step. Lines of steps that are to be done again are cut off.
struct TrainLog {
    path: PathBuf,
    out: BufWriter<File>,
}

impl TrainLog {
    fn open(path: &Path, steps: u32) -> Result<Self, TrainError> {
        let failed = |source| TrainError::Io { path: path.to_owned(), source };
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(failed)?;
        }
        let kept: Vec<String> = match File::open(path) {
            Ok(file) => BufReader::new(file)
                .lines()
                .take(steps as usize)
                .collect::<Result<_, _>>()
                .map_err(failed)?,
            Err(_) => Vec::new(),
        };
        let mut contents = kept.join("\n");
        if !kept.is_empty() {
            contents.push('\n');
        }
        record::write_atomic(path, contents.as_bytes())?;
        let out = File::options().append(true).open(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), out: BufWriter::new(out) })
    }

    fn write(&mut self, line: &Map<String, Value>) -> Result<(), TrainError> {
        let text = Value::Object(line.clone());
        writeln!(self.out, "{text}")
            .map_err(|source| TrainError::Io { path: self.path.clone(), source })
    }

    fn flush(&mut self) -> Result<(), TrainError> {
        self.out.flush().map_err(|source| TrainError::Io { path: self.path.clone(), source })
    }
}

/// Where training is: what the state's file says beside its tensors.
#[derive(Default, Serialize, Deserialize)]
struct TrainState {
    /// Everything that a resumed training must have in common with this one.
    fingerprint: String,
    steps: u32,
    best: Option<f64>,
    evals_since_best: u32,
}

const STATE_FILE: &str = "state.safetensors";
/// The name of the note in its header.
const METADATA_KEY: &str = "training";

impl TrainState {
    fn open(
        course: &mut dyn TrainTask,
        device: &Device,
        plan: &TrainConfig,
    ) -> Result<Self, TrainError> {
        let path = plan.dir.join(STATE_FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self { fingerprint: plan.fingerprint.clone(), ..Self::default() });
            }
            Err(source) => return Err(TrainError::Io { path, source }),
        };
        let damaged = |reason: String| TrainError::BadState { path: path.clone(), reason };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(e.to_string()))?;
        let note = header.metadata().as_ref().and_then(|notes| notes.get(METADATA_KEY));
        let note = note.ok_or_else(|| damaged(format!("no `{METADATA_KEY}` in its header")))?;
        let state: Self = serde_json::from_str(note)
            .map_err(|e| damaged(format!("`{METADATA_KEY}` in its header: {e}")))?;
        if state.fingerprint != plan.fingerprint {
            return Err(TrainError::SettingsChanged { path: path.clone() });
        }
        let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(e.to_string()))?;
        for (i, parameter) in course.parameters_mut().into_iter().enumerate() {
            let (rows, cols) = (parameter.value.rows(), parameter.value.cols());
            let read = |what: &str| -> Result<Tensor, TrainError> {
                let name = format!("{i}.{what}");
                let view = file.tensor(&name).map_err(|e| damaged(format!("`{name}`: {e}")))?;
                if view.shape() != [rows, cols] || view.dtype() != Dtype::F32 {
                    let found = format!("{} {:?}", view.dtype(), view.shape());
                    return Err(damaged(format!(
                        "`{name}` is {found} where F32 {:?} belongs",
                        [rows, cols]
                    )));
                }
                let numbers = view
                    .data()
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                Ok(Tensor::from_vec(rows, cols, numbers.collect()).to_device(device)?)
            };
            parameter.value = read("value")?;
            parameter.moments.first = read("first")?;
            parameter.moments.second = read("second")?;
        }
        course.sync_weights()?;
        Ok(state)
    }

    /// Whether there is nothing left to do: all steps are done, or patience is at its end.
    fn is_finished(&self, plan: &TrainConfig) -> bool {
        let tired = plan.patience > 0 && self.evals_since_best >= plan.patience;
        tired || self.steps >= plan.optimizer.schedule.steps
    }

    /// Whether something is to be done that is done `every` so many steps and at the end.
    fn is_due(&self, plan: &TrainConfig, every: u32) -> bool {
        self.is_finished(plan) || (every > 0 && self.steps.is_multiple_of(every))
    }

    fn save(&self, course: &dyn TrainTask, plan: &TrainConfig) -> Result<(), TrainError> {
        let mut tensors = Vec::new();
        for (i, parameter) in course.parameters().into_iter().enumerate() {
            let of = [
                ("value", &parameter.value),
                ("first", &parameter.moments.first),
                ("second", &parameter.moments.second),
            ];
            for (what, tensor) in of {
                let (shape, host) = (vec![tensor.rows(), tensor.cols()], tensor.clone().to_host()?);
                tensors.push(NamedTensor {
                    name: format!("{i}.{what}"),
                    shape,
                    values: host.data().to_vec(),
                });
            }
        }
        let path = plan.dir.join(STATE_FILE);
        let note = serde_json::to_string(self)
            .map_err(|e| TrainError::BadState { path: path.clone(), reason: e.to_string() })?;
        Ok(save::write_safetensors(&path, &tensors, SaveDtype::F32, (METADATA_KEY, &note))?)
    }

    /// Looks, and keeps what is best.
    fn evaluate(
        &mut self,
        course: &mut dyn TrainTask,
        plan: &TrainConfig,
        watch: &mut EventCallback<'_>,
    ) -> Result<ControlFlow<()>, TrainError> {
        let Some(Evaluation { metrics: figures, score }) = course.evaluate(self.steps)? else {
            return Ok(ControlFlow::Continue(()));
        };
        let better = self.best.is_none_or(|best| score > best);
        if better || plan.patience == 0 {
            course.save()?;
        }
        self.evals_since_best = if better { 0 } else { self.evals_since_best + 1 };
        self.best = if better { Some(score) } else { self.best };
        Ok(watch(TrainEvent::Evaluated { steps: self.steps, metrics: &figures }))
    }
}
