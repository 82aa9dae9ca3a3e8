//! Annotation: turns trajectories and rollouts into labeled thoughts, shard by shard.
//!
//! Each shard is computed independently and written atomically, so its bytes depend neither on
//! earlier shards nor on the machine that computed them.

use std::path::{Path, PathBuf};

use data::Question;
use engine::rollout::{AnnotatedQuestion, Grade, RolloutRunner, ThoughtLabels};
use engine::{CancelToken, Engine, Prompt, Reasoner, SamplingParams};
use model::ModelFiles;
use record::Manifest;
use schema::SamplingOptions;
use serde_json::json;
use train::annotate::{
    AnnotationError, AnnotationIndex, AnnotationShard, AnnotationStore, ThoughtsDtype,
};

use crate::data_source::DataSource;
use crate::evaluate::OnExisting;
use crate::{Error, fingerprint, manifest};

/// Labels the thoughts of a reasoner's trajectories on questions with known answers.
///
/// ```no_run
/// use latent_tts::{Annotator, Model, SamplingParams};
/// use latent_tts::engine::rollout::ThoughtLabels;
///
/// let model = Model::load("./coconut-gpt2")?;
/// let engine = model.engine()?;
/// let params = SamplingParams { samples: 16.try_into()?, ..engine.default_params() };
/// let labels = ThoughtLabels::Rollouts(8.try_into()?);
/// let annotator = Annotator::new(model.reasoner(), params, labels);
/// let questions = latent_tts::DataSource::parse("embedded:train:0..100")?.read(None, 100)?;
/// annotator.run(&questions, |annotated| -> Result<(), latent_tts::Error> {
///     println!("question {}: {} rollouts", annotated.id, annotated.rollouts);
///     Ok(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Annotator<'a> {
    /// The reasoner.
    pub reasoner: &'a Reasoner,
    /// How trajectories and rollouts are sampled; `samples` is the number of trajectories.
    pub params: SamplingParams,
    /// The kind of label computed for each thought.
    pub labels: ThoughtLabels,
    /// Size limit of the key-value cache in bytes.
    pub memory: usize,
    /// Ends the annotation with [`EngineError::Cancelled`](engine::EngineError::Cancelled);
    /// finished shards are kept.
    pub cancel: Option<&'a CancelToken>,
}

impl<'a> Annotator<'a> {
    /// An annotator with the engine's default memory.
    pub fn new(reasoner: &'a Reasoner, params: SamplingParams, labels: ThoughtLabels) -> Self {
        Self { reasoner, params, labels, memory: Engine::DEFAULT_MEMORY, cancel: None }
    }

    /// Limits the key-value cache to `memory` bytes.
    #[must_use]
    pub fn with_memory(self, memory: usize) -> Self {
        Self { memory, ..self }
    }

    /// Sets the token that cancels the annotation.
    #[must_use]
    pub fn with_cancel(self, cancel: &'a CancelToken) -> Self {
        Self { cancel: Some(cancel), ..self }
    }

    /// Annotates all questions and passes each one to `take` as soon as it is labeled, in order.
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

    /// The shard with the given questions of an index.
    pub fn shard(
        &self,
        index: &AnnotationIndex,
        questions: &[Question],
        observer: &mut dyn AnnotationObserver,
    ) -> Result<AnnotationShard, Error> {
        let (mut shard, mut next) = (AnnotationShard::new(index), questions.iter());
        self.run(questions, |annotated| -> Result<(), Error> {
            let Some(question) = next.next() else { return Ok(()) };
            observer.annotated(&annotated);
            Ok(shard.add(question, &annotated)?)
        })?;
        Ok(shard)
    }

    /// Fails if questions do not fit the model or the memory, or if there are more rollouts than
    /// keys for them.
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
            cancel: self.cancel,
        }
    }

    fn prompts(&self, questions: &[Question]) -> Result<Vec<Prompt>, Error> {
        let prompt = |q: &Question| Prompt::new(self.reasoner, q.id, &q.text);
        Ok(questions.iter().map(prompt).collect::<Result<_, _>>()?)
    }
}

/// Distinguishes errors of the caller from errors of the engine.
enum TakeError<E> {
    Taker(E),
    Engine(engine::EngineError),
}

impl<E> From<engine::EngineError> for TakeError<E> {
    fn from(error: engine::EngineError) -> Self {
        Self::Engine(error)
    }
}

/// One part of the shards, for one of several machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardPart {
    /// The index of this part, from 0.
    pub part: usize,
    /// The number of parts.
    pub of: usize,
}

/// An annotation of a directory in progress.
pub struct AnnotationJob<'a> {
    /// The annotator.
    pub annotator: Annotator<'a>,
    /// The index of the directory.
    pub index: &'a AnnotationIndex,
    /// The shards that this process computes.
    pub part: ShardPart,
}

impl AnnotationJob<'_> {
    /// Opens the annotation directory.
    pub fn open(
        out: &Path,
        index: &AnnotationIndex,
        on_existing: OnExisting,
    ) -> Result<AnnotationStore, Error> {
        record::files::check_no_weights(out)?;
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

    /// Computes the missing shards of this process's part.
    pub fn run(
        &self,
        store: &AnnotationStore,
        questions: &[Question],
        observer: &mut dyn AnnotationObserver,
    ) -> Result<(), Error> {
        let _claim = store.claim(self.part.part, self.part.of)?;
        for number in store.missing(self.part.part, self.part.of) {
            let questions = &questions[self.index.questions_of(number)];
            let shard = self.annotator.shard(self.index, questions, observer)?;
            {
                let _guard = record::files::write_guard();
                store.write(number, &shard)?;
            }
            observer.shard_done(&shard);
        }
        Ok(())
    }
}

/// The inputs of an annotation directory, besides the annotator.
#[derive(Clone, Copy)]
pub struct AnnotationInputs<'a> {
    /// The reasoner's files.
    pub reasoner: &'a ModelFiles,
    /// The source of the questions.
    pub data: &'a DataSource,
    /// The questions.
    pub questions: &'a [Question],
    /// Number of questions per shard.
    pub per_shard: usize,
    /// The data type of the stored thoughts.
    pub dtype: ThoughtsDtype,
}

impl AnnotationInputs<'_> {
    /// The index of the directory, with every setting that changes its content.
    pub fn index(&self, annotator: &Annotator<'_>) -> Result<AnnotationIndex, Error> {
        let (method, params) = (&annotator.reasoner.method, &annotator.params);
        let labels = match annotator.labels {
            ThoughtLabels::Final => json!({ "kind": "final" }),
            ThoughtLabels::Rollouts(count) => json!({ "kind": "rollouts", "rollouts": count }),
        };
        let mut settings = json!({
            "method": method.family.name(),
            "labels": labels,
            "sampling": SamplingOptions {
                seed: Some(params.seed),
                samples: None,
                ..manifest::recorded_sampling(params)
            },
        });
        manifest::add_numerics(&mut settings, annotator.reasoner.decoder.device());
        Ok(AnnotationIndex {
            version: AnnotationIndex::VERSION,
            program: manifest::program(),
            commit: manifest::commit(),
            settings,
            fingerprint: fingerprint::compute([self.reasoner], self.data, self.questions)?,
            questions: self.questions.len(),
            per_shard: self.per_shard,
            trajectories: params.samples.get(),
            width: annotator.reasoner.decoder.config().width,
            dtype: self.dtype,
        })
    }

    /// The default directory. Its name is a function of inputs and settings, so that a resumed
    /// annotation finds it.
    pub fn default_out(&self, index: &AnnotationIndex) -> PathBuf {
        let settings = json!([index.settings, index.trajectories, index.per_shard, index.dtype]);
        let (questions, fingerprint) = (index.questions, index.fingerprint.clone());
        let manifest = Manifest { settings, questions, fingerprint, ..Manifest::default() };
        let name = manifest::default_run_name(self.reasoner.path(), self.data, &manifest);
        Path::new("annotations").join(name)
    }
}

/// Callbacks for annotation progress.
pub trait AnnotationObserver {
    /// A question was annotated.
    fn annotated(&mut self, _annotated: &AnnotatedQuestion) {}

    /// A shard was written.
    fn shard_done(&mut self, _shard: &AnnotationShard) {}
}

/// Ignores all events.
impl AnnotationObserver for () {}
