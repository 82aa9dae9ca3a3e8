//! Trains a probe: questions are sampled, their hidden states are kept in memory, and the probe is
//! trained on them. This takes minutes, so it cannot be resumed.

use std::path::PathBuf;
use std::time::Instant;

use data::Question;
use engine::{CancelToken, Engine, EngineError, Output, Request, SamplingParams};
use model::{Probe, ProbeConfig, StateCounts};
use record::files;
use train::TrainError;
use train::probe::{ProbeExample, ProbeProgress, ProbeTrainerOptions, train_probe};

use crate::{Error, grade};

/// Trains a probe on the hidden states of a reasoner.
#[derive(Clone)]
pub struct ProbeTrainer {
    out: PathBuf,
    options: ProbeTrainerOptions,
    overwrite: bool,
}

/// The training data of a probe.
#[derive(Clone, Copy)]
pub struct ProbeData<'a> {
    /// Problems that the reasoner was not trained on.
    pub questions: &'a [Question],
    /// How their trajectories are sampled, which should match the trajectories that the probe will
    /// score.
    pub params: SamplingParams,
}

/// A trained probe.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProbeReport {
    /// The directory of the probe.
    pub out: PathBuf,
    /// Number of questions with both correct and incorrect trajectories.
    pub mixed_questions: usize,
    /// Number of all questions.
    pub questions: usize,
    /// The evaluation of the saved probe.
    pub kept: ProbeProgress,
    /// Seconds of sampling.
    pub sampling_seconds: f64,
    /// Seconds of training.
    pub training_seconds: f64,
}

/// Callbacks for the progress of a probe's training.
pub trait ProbeObserver {
    /// A question was sampled.
    fn sampled(&mut self, _done: usize, _total: usize) {}

    /// The probe was evaluated.
    fn evaluated(&mut self, _progress: ProbeProgress) {}
}

/// Ignores all events.
impl ProbeObserver for () {}

/// Number of questions that are sampled together.
const BATCH: usize = 256;

impl ProbeTrainer {
    /// A training into a directory. Fails if an option is out of range.
    pub fn new(out: impl Into<PathBuf>, options: ProbeTrainerOptions) -> Result<Self, Error> {
        options.check()?;
        Ok(Self { out: out.into(), options, overwrite: false })
    }

    /// Sets whether an existing probe is replaced.
    #[must_use]
    pub fn overwriting(self, overwrite: bool) -> Self {
        Self { overwrite, ..self }
    }

    /// Samples the questions and trains on their hidden states. If cancelled during sampling, it
    /// returns an error; if cancelled during training, it stops after the next evaluation with the
    /// best probe so far.
    pub fn run(
        &self,
        engine: &Engine,
        data: ProbeData<'_>,
        observer: &mut dyn ProbeObserver,
        cancel: &CancelToken,
    ) -> Result<ProbeReport, Error> {
        self.check_out()?;
        let reasoner = engine.reasoner();
        let width = reasoner.decoder.config().width;
        let family = reasoner.method.family.name();
        let config = ProbeConfig::new(self.options.probe_kind()?, width, family);
        let seed = data.params.seed;
        let mut probe = Probe::initial(reasoner.decoder.device(), config, seed)?;
        let started = Instant::now();
        let examples = sample(engine, data, observer, cancel)?;
        let sampling_seconds = started.elapsed().as_secs_f64();
        let mixed_questions = examples.len();
        let started = Instant::now();
        let kept =
            train_probe(&mut probe, examples, (&self.options, seed), &self.out, |progress| {
                observer.evaluated(progress);
                cancel.is_cancelled()
            })?;
        Ok(ProbeReport {
            out: self.out.clone(),
            mixed_questions,
            questions: data.questions.len(),
            kept,
            sampling_seconds,
            training_seconds: started.elapsed().as_secs_f64(),
        })
    }

    /// Fails if the directory contains other files, or a probe that must not be replaced.
    fn check_out(&self) -> Result<(), Error> {
        files::check_no_weights(&self.out)?;
        let exists = self.out.join("probe.json").exists();
        if exists && !self.overwrite {
            let reason = format!(
                "{} already holds a probe; choose another directory or pass `overwrite`",
                self.out.display()
            );
            return Err(TrainError::Options { reason }.into());
        }
        Ok(())
    }
}

/// The trajectories of the questions with both correct and incorrect ones.
fn sample(
    engine: &Engine,
    data: ProbeData<'_>,
    observer: &mut dyn ProbeObserver,
    cancel: &CancelToken,
) -> Result<Vec<ProbeExample>, Error> {
    let engine = engine.clone().with_states();
    let mut examples = Vec::new();
    let mut done = 0;
    for questions in data.questions.chunks(BATCH) {
        let request = |question: &Question| Request {
            cancel: cancel.clone(),
            ..grade::request(question, data.params)
        };
        let requests: Vec<Request> = questions.iter().map(request).collect();
        engine.run(&requests, |index, reply| -> Result<(), EngineError> {
            let example = example(&questions[index], reply?);
            examples.extend(example.is_mixed().then_some(example));
            done += 1;
            observer.sampled(done, data.questions.len());
            Ok(())
        })?;
    }
    Ok(examples)
}

fn example(question: &Question, reply: Output) -> ProbeExample {
    let mut example = ProbeExample::default();
    for trajectory in reply.trajectories {
        let positions = trajectory.states.rows();
        let thoughts = trajectory.thoughts.min(positions);
        example.counts.push(StateCounts { thoughts, answer: positions - thoughts });
        let correct = trajectory.answer.is_some_and(|answer| answer.matches(&question.gold));
        example.correct.push(correct);
        example.states.extend(trajectory.states.into_data());
    }
    example
}
