//! The loop around every training: batches, steps of the optimizer, a log, checkpoints, a look at how well it goes.
//!
//! `DIR/training/` holds `state.safetensors` (weights, moments, the step) and `log.jsonl` (a line a step). Both are enough
//! to go on after an interruption: data and random numbers are functions of the step.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use model::save::{self, Saved};
use model::{Named, Parameter};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tensor::{Device, Tensor};

use crate::error::Error;
use crate::schedule::Optimizer;

/// Something that learns from batches that it makes itself.
pub trait Course {
    /// Adds the gradients of one part of a step's batch; returns what the log shall say of it.
    fn learn(&mut self, step: u32, part: u32) -> Result<Map<String, Value>, Error>;

    /// Everything that learns, always in the same order.
    fn parameters(&self) -> Vec<&Parameter>;

    /// Everything that learns, to be changed.
    fn parameters_mut(&mut self) -> Vec<&mut Parameter>;

    /// Makes a change of the parameters known to what computes.
    fn refresh(&mut self) -> Result<(), Error>;

    /// How well it does after `steps` steps, on problems that it does not learn from. `None` if there is nothing to look at.
    fn examine(&mut self, steps: u32) -> Result<Option<Examined>, Error>;

    /// Writes what was learned so far, ready for use.
    fn save(&mut self) -> Result<(), Error>;
}

/// How well it does.
#[derive(Clone, Debug)]
pub struct Examined {
    /// What the log shall say.
    pub figures: Map<String, Value>,
    /// The figure that early stopping goes by; more is better.
    pub score: f64,
}

/// How long, and what is kept on the way.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The steps.
    pub optimizer: Optimizer,
    /// Parts of a step whose gradients are added up.
    pub accumulate: u32,
    /// Where the log and the state go: `DIR/training`.
    pub dir: PathBuf,
    /// Steps between states; none but the last if zero.
    pub save_every: u32,
    /// Steps between looks; none but the last if zero.
    pub examine_every: u32,
    /// Looks without improvement before it stops; never if zero. What was best is what is saved.
    pub patience: u32,
    /// Everything that a resumed training must have in common with its beginning.
    pub fingerprint: String,
}

/// What happens, for whoever watches.
#[derive(Clone, Debug)]
pub enum Event<'a> {
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
        of: u32,
        /// The log's line.
        line: &'a Map<String, Value>,
    },
    /// It was looked at.
    Examined {
        /// Steps done.
        steps: u32,
        /// What was seen.
        figures: &'a Map<String, Value>,
    },
}

/// How training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All steps are done, or patience was at its end.
    Done,
    /// It was interrupted; the state is saved.
    Interrupted,
}

/// Who watches; a break interrupts.
pub type Watch<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Runs a course from where its state says, or from the beginning.
pub fn run(course: &mut dyn Course, device: &Device, plan: &Plan, watch: &mut Watch<'_>) -> Result<Ended, Error> {
    let mut state = State::open(course, device, plan)?;
    if state.steps > 0 && watch(Event::Resumed { steps: state.steps }).is_break() {
        return Ok(Ended::Interrupted);
    }
    let mut log = Log::open(&plan.dir.join("log.jsonl"), state.steps)?;
    let of = plan.optimizer.schedule.steps;
    while !state.is_over(plan) {
        let line = one_step(course, device, plan, state.steps)?;
        log.write(&line)?;
        state.steps += 1;
        let mut interrupted = watch(Event::Stepped { steps: state.steps, of, line: &line }).is_break();
        if state.is_due(plan, plan.examine_every) {
            interrupted |= state.examine(course, plan, watch)?.is_break();
        }
        if interrupted || state.is_due(plan, plan.save_every) {
            log.flush()?;
            state.save(course, plan)?;
        }
        if interrupted && !state.is_over(plan) {
            return Ok(Ended::Interrupted);
        }
    }
    if state.best.is_none() {
        course.save()?;
    }
    Ok(Ended::Done)
}

fn one_step(course: &mut dyn Course, device: &Device, plan: &Plan, step: u32) -> Result<Map<String, Value>, Error> {
    let started = Instant::now();
    let mut said: Map<String, Value> = Map::new();
    for part in 0..plan.accumulate {
        for (name, value) in course.learn(step, part)? {
            let before = said.get(&name).and_then(Value::as_f64).unwrap_or(0.0);
            let share = value.as_f64().unwrap_or(0.0) / f64::from(plan.accumulate);
            said.insert(name, json!(before + share));
        }
    }
    let stepped = plan.optimizer.step(device, step, plan.accumulate, course.parameters_mut())?;
    if !stepped.norm.is_finite() {
        return Err(Error::Diverged { step });
    }
    course.refresh()?;
    let mut line = Map::from_iter([("step".to_owned(), json!(step))]);
    line.extend(said);
    line.insert("rate".to_owned(), json!(stepped.rate));
    line.insert("norm".to_owned(), json!(stepped.norm));
    line.insert("seconds".to_owned(), json!(started.elapsed().as_secs_f64()));
    Ok(line)
}

/// A line a step. Lines of steps that are to be done again are cut off.
struct Log {
    path: PathBuf,
    out: BufWriter<File>,
}

impl Log {
    fn open(path: &Path, steps: u32) -> Result<Self, Error> {
        let failed = |source| Error::Io { path: path.to_owned(), source };
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(failed)?;
        }
        let kept: Vec<String> = match File::open(path) {
            Ok(file) => BufReader::new(file).lines().take(steps as usize).collect::<Result<_, _>>().map_err(failed)?,
            Err(_) => Vec::new(),
        };
        let mut contents = kept.join("\n");
        if !kept.is_empty() {
            contents.push('\n');
        }
        record::write_file(path, contents.as_bytes())?;
        let out = File::options().append(true).open(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), out: BufWriter::new(out) })
    }

    fn write(&mut self, line: &Map<String, Value>) -> Result<(), Error> {
        let text = Value::Object(line.clone());
        writeln!(self.out, "{text}").map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(|source| Error::Io { path: self.path.clone(), source })
    }
}

/// Where training is: what the state's file says beside its tensors.
#[derive(Default, Serialize, Deserialize)]
struct State {
    /// Everything that a resumed training must have in common with this one.
    fingerprint: String,
    steps: u32,
    best: Option<f64>,
    looks_since: u32,
}

const STATE: &str = "state.safetensors";
/// The name of the note in its header.
const NOTE: &str = "training";

impl State {
    fn open(course: &mut dyn Course, device: &Device, plan: &Plan) -> Result<Self, Error> {
        let path = plan.dir.join(STATE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self { fingerprint: plan.fingerprint.clone(), ..Self::default() });
            }
            Err(source) => return Err(Error::Io { path, source }),
        };
        let damaged = |reason: String| Error::BadState { path: path.clone(), reason };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(e.to_string()))?;
        let note = header.metadata().as_ref().and_then(|notes| notes.get(NOTE));
        let note = note.ok_or_else(|| damaged(format!("no `{NOTE}` in its header")))?;
        let state: Self = serde_json::from_str(note).map_err(|e| damaged(format!("`{NOTE}` in its header: {e}")))?;
        if state.fingerprint != plan.fingerprint {
            return Err(Error::OtherTraining { path: path.clone() });
        }
        let file = SafeTensors::deserialize(&bytes).map_err(|e| damaged(e.to_string()))?;
        for (i, parameter) in course.parameters_mut().into_iter().enumerate() {
            let (rows, cols) = (parameter.value.rows(), parameter.value.cols());
            let read = |what: &str| -> Result<Tensor, Error> {
                let name = format!("{i}.{what}");
                let view = file.tensor(&name).map_err(|e| damaged(format!("`{name}`: {e}")))?;
                if view.shape() != [rows, cols] || view.dtype() != Dtype::F32 {
                    let found = format!("{} {:?}", view.dtype(), view.shape());
                    return Err(damaged(format!("`{name}` is {found} where F32 {:?} belongs", [rows, cols])));
                }
                let numbers = view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                Ok(Tensor::from_vec(rows, cols, numbers.collect()).to_device(device)?)
            };
            parameter.value = read("value")?;
            parameter.moments.first = read("first")?;
            parameter.moments.second = read("second")?;
        }
        course.refresh()?;
        Ok(state)
    }

    /// Whether there is nothing left to do: all steps are done, or patience is at its end.
    fn is_over(&self, plan: &Plan) -> bool {
        let tired = plan.patience > 0 && self.looks_since >= plan.patience;
        tired || self.steps >= plan.optimizer.schedule.steps
    }

    /// Whether something is to be done that is done `every` so many steps and at the end.
    fn is_due(&self, plan: &Plan, every: u32) -> bool {
        self.is_over(plan) || (every > 0 && self.steps.is_multiple_of(every))
    }

    fn save(&self, course: &dyn Course, plan: &Plan) -> Result<(), Error> {
        let mut tensors = Vec::new();
        for (i, parameter) in course.parameters().into_iter().enumerate() {
            let of = [("value", &parameter.value), ("first", &parameter.moments.first), ("second", &parameter.moments.second)];
            for (what, tensor) in of {
                let (shape, host) = (vec![tensor.rows(), tensor.cols()], tensor.clone().to_host()?);
                tensors.push(Named { name: format!("{i}.{what}"), shape, values: host.data().to_vec() });
            }
        }
        let path = plan.dir.join(STATE);
        let note = serde_json::to_string(self).map_err(|e| Error::BadState { path: path.clone(), reason: e.to_string() })?;
        Ok(save::tensors(&path, &tensors, Saved::F32, (NOTE, &note))?)
    }

    /// Looks, and keeps what is best.
    fn examine(&mut self, course: &mut dyn Course, plan: &Plan, watch: &mut Watch<'_>) -> Result<ControlFlow<()>, Error> {
        let Some(Examined { figures, score }) = course.examine(self.steps)? else { return Ok(ControlFlow::Continue(())) };
        let better = self.best.is_none_or(|best| score > best);
        if better || plan.patience == 0 {
            course.save()?;
        }
        self.looks_since = if better { 0 } else { self.looks_since + 1 };
        self.best = if better { Some(score) } else { self.best };
        Ok(watch(Event::Examined { steps: self.steps, figures: &figures }))
    }
}
