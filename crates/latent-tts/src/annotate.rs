//! Annotation: trajectories and rollouts become labelled thoughts, shard by shard.
//!
//! Each shard is computed by itself and written in one piece, so that its bytes do not depend on
//! what was done before it or on which machine did the others.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use dataset::Question;
use engine::rollout::{AnnotatedQuestion, Grade, RolloutRunner, ThoughtLabels};
use engine::{Prompt, Reasoner, SamplingParams};
use train::annotate::{AnnotationError, AnnotationIndex, AnnotationShard, AnnotationStore};

use crate::Error;
use crate::evaluate::OnExisting;

/// Labels the thoughts of a reasoner's trajectories on questions with known answers.
#[derive(Clone, Copy)]
pub struct Annotator<'a> {
    /// The reasoner.
    pub reasoner: &'a Reasoner,
    /// How trajectories and rollouts are sampled; `samples` is the number of trajectories.
    pub params: SamplingParams,
    /// What thoughts are labelled with.
    pub labels: ThoughtLabels,
    /// Bytes of keys and values that may be used.
    pub memory: usize,
}

impl Annotator<'_> {
    /// Annotates all questions and hands each one over as soon as it is labelled, in their order.
    pub fn run<E: From<Error>>(
        &self,
        questions: &[Question],
        mut take: impl FnMut(AnnotatedQuestion) -> Result<(), E>,
    ) -> Result<(), E> {
        let prompts = self.prompts(questions)?;
        let grader = |index: usize, tokens: &[u32]| {
            let Question { kind, gold, .. } = &questions[index];
            let (_, answer) = self.reasoner.parse_answer(*kind, tokens)?;
            let correct = answer.as_ref().is_some_and(|answer| answer.matches(gold));
            Ok(Grade { answer: answer.map(|answer| answer.as_str().to_owned()), correct })
        };
        let run = self
            .runner(&grader)
            .run(&prompts, |annotated| take(annotated).map_err(TakeError::Taker));
        run.map_err(|error| match error {
            TakeError::Taker(error) => error,
            TakeError::Engine(error) => E::from(Error::Engine(error)),
        })
    }

    /// Refuses questions that do not fit the model or the memory, and rollouts that have no name.
    pub fn check(&self, questions: &[Question]) -> Result<(), Error> {
        let grader = |_: usize, _: &[u32]| Ok(Grade::default());
        Ok(self.runner(&grader).check(&self.prompts(questions)?)?)
    }

    fn runner<'r>(&'r self, grader: &'r engine::rollout::Grader<'r>) -> RolloutRunner<'r> {
        RolloutRunner {
            model: &self.reasoner.model,
            params: self.params,
            memory: self.memory,
            labels: self.labels,
            keep_all: false,
            grader,
        }
    }

    fn prompts(&self, questions: &[Question]) -> Result<Vec<Prompt>, Error> {
        let prompt = |q: &Question| Prompt::new(self.reasoner, q.id, &q.text);
        Ok(questions.iter().map(prompt).collect::<Result<_, _>>()?)
    }
}

/// Tells the caller's errors from the engine's.
enum TakeError<E> {
    Taker(E),
    Engine(engine::EngineError),
}

impl<E> From<engine::EngineError> for TakeError<E> {
    fn from(error: engine::EngineError) -> Self {
        Self::Engine(error)
    }
}

/// One of several machines' shares of the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardPart {
    /// Which one, from 0.
    pub part: usize,
    /// Of how many.
    pub of: usize,
}

/// A directory of annotations in progress.
pub struct AnnotationJob<'a> {
    /// The annotator.
    pub annotator: Annotator<'a>,
    /// What is annotated and how.
    pub index: &'a AnnotationIndex,
    /// The shards that this process makes.
    pub part: ShardPart,
    /// Held while a shard is written; see
    /// [`Evaluation::write_lock`](crate::Evaluation::write_lock).
    pub write_lock: Arc<Mutex<()>>,
}

impl AnnotationJob<'_> {
    /// Opens the directory of the annotations.
    pub fn open(
        out: &Path,
        index: &AnnotationIndex,
        on_existing: OnExisting,
    ) -> Result<AnnotationStore, Error> {
        let opened = match on_existing {
            OnExisting::Refuse => AnnotationStore::create(out, index),
            OnExisting::Resume => AnnotationStore::resume(out, index),
            OnExisting::Overwrite => AnnotationStore::overwrite(out, index),
        };
        opened.map_err(|error| match &error {
            AnnotationError::SettingsDiffer { by, .. } if by.field == "index.fingerprint" => {
                Error::AnnotatedInputsChanged(error)
            }
            _ => Error::Annotations(error),
        })
    }

    /// Makes the shards of this process's part that are missing.
    pub fn run(
        &self,
        store: &AnnotationStore,
        questions: &[Question],
        observer: &mut dyn AnnotationObserver,
    ) -> Result<(), Error> {
        for number in store.missing(self.part.part, self.part.of) {
            let questions = &questions[self.index.questions_of(number)];
            let (mut shard, mut next) = (AnnotationShard::new(self.index), questions.iter());
            self.annotator.run(questions, |annotated| -> Result<(), Error> {
                let Some(question) = next.next() else { return Ok(()) };
                observer.annotated(&annotated);
                Ok(shard.add(question, &annotated)?)
            })?;
            {
                let lock = self.write_lock.lock();
                let _held = lock.unwrap_or_else(PoisonError::into_inner);
                store.write(number, &shard)?;
            }
            observer.shard_done(&shard);
        }
        Ok(())
    }
}

/// Is told how an annotation goes.
pub trait AnnotationObserver {
    /// A question was annotated.
    fn annotated(&mut self, _annotated: &AnnotatedQuestion) {}

    /// A shard is on disk.
    fn shard_done(&mut self, _shard: &AnnotationShard) {}
}
