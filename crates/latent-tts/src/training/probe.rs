//! The training of a probe: questions are sampled with their hidden states, which stay in memory,
//! and the probe is trained on them. Minutes in all, so that nothing is resumed.

use std::path::PathBuf;
use std::time::Instant;

use data::Question;
use engine::{CancelToken, Engine, EngineError, Reply, Request, SamplingParams};
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

/// What a probe learns from.
#[derive(Clone, Copy)]
pub struct ProbeData<'a> {
    /// Problems that the reasoner was not trained on.
    pub questions: &'a [Question],
    /// How their trajectories are sampled: as those that the probe is to score.
    pub params: SamplingParams,
}

/// A trained probe.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProbeReport {
    /// Its directory.
    pub out: PathBuf,
    /// Questions with right and wrong trajectories.
    pub mixed_questions: usize,
    /// Questions in all.
    pub questions: usize,
    /// The evaluation of the probe that is kept.
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

/// Observes nothing.
impl ProbeObserver for () {}

/// Questions that are sampled together.
const BATCH: usize = 256;

impl ProbeTrainer {
    /// A training into a directory. Options out of their range are an error.
    pub fn new(out: impl Into<PathBuf>, options: ProbeTrainerOptions) -> Result<Self, Error> {
        options.check()?;
        Ok(Self { out: out.into(), options, overwrite: false })
    }

    /// The same, which replaces a probe that is there.
    #[must_use]
    pub fn overwriting(self, overwrite: bool) -> Self {
        Self { overwrite, ..self }
    }

    /// Samples the questions and trains on their hidden states. Cancelled, it ends with an error
    /// while it samples, and after an evaluation with the best probe so far while it trains.
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

    /// Refuses a directory that holds something else, or a probe that is not to be replaced.
    fn check_out(&self) -> Result<(), Error> {
        files::check_no_weights(&self.out)?;
        let exists = self.out.join("probe.json").exists();
        if exists && !self.overwrite {
            let reason = format!(
                "{} holds a probe; choose another directory or pass `overwrite`",
                self.out.display()
            );
            return Err(TrainError::Options { reason }.into());
        }
        Ok(())
    }
}

/// The trajectories of the questions of which some are right and some wrong.
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

fn example(question: &Question, reply: Reply) -> ProbeExample {
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
