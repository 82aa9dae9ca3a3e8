//! Evaluations: run in this process, or opened here and sampled by several.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use latent_tts::record::{Manifest, QuestionRecord, Sample};
use latent_tts::{
    self as library, AblationKind, CancelToken, DataSource, Error, EvalObserver, OnExisting,
    Question, Rule, RunRecorder, SamplingOptions, Scorer, evaluation_params, fitting_questions,
    grade,
};
use pyo3::prelude::*;

use crate::engine::PyEngine;
use crate::errors::{invalid, raise, raise_record};
use crate::options::{self, FieldTuple, QuestionTuple, Sampling, positive, question_tuple};
use crate::scorer;
use crate::waiting::{ProgressEvent, wait_for};

/// Default number of trajectories per question, as on the command line.
const DEFAULT_SAMPLES: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// An evaluation, with its run directory while that is being written.
#[pyclass(frozen, name = "Evaluation", module = "latent_tts._core")]
pub struct PyEvaluation {
    data: DataSource,
    questions: Vec<Question>,
    sampling: SamplingOptions,
    seeds: Vec<u64>,
    ks: Vec<usize>,
    rules: Option<Vec<Rule>>,
    out: Option<PathBuf>,
    on_existing: OnExisting,
    keep_latents: bool,
    lens: Option<NonZeroUsize>,
    ablations: Vec<AblationKind>,
    scorer: Option<Arc<dyn Scorer>>,
    /// Ids of the skipped questions, which exceed the model's context.
    #[pyo3(get)]
    skipped: Vec<u32>,
    recorder: Mutex<Option<RunRecorder>>,
}

/// The keyword arguments of an evaluation.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct EvalArguments {
    data: String,
    /// The names of the fields for question, answer and steps.
    fields: FieldTuple,
    /// Whether to read the questions; a worker receives its own.
    read: bool,
    limit: Option<usize>,
    default_count: usize,
    seeds: u64,
    ks: Vec<usize>,
    rules: Option<Vec<String>>,
    out: Option<PathBuf>,
    on_existing: String,
    keep_thoughts: bool,
    /// Number of tokens to record per thought of the greedy run.
    lens: Option<usize>,
    ablate: Vec<String>,
    /// Whether to skip questions that exceed the model's context.
    skip_too_long: bool,
    /// The name of the scorer, and a callable.
    scorer: Option<(String, Py<PyAny>)>,
}

#[pymethods]
impl PyEvaluation {
    #[new]
    fn new(
        py: Python<'_>,
        engine: &PyEngine,
        arguments: EvalArguments,
        sampling: Sampling,
    ) -> PyResult<Self> {
        let sampling = sampling.0;
        let samples = sampling.samples.unwrap_or(DEFAULT_SAMPLES);
        let sampling = SamplingOptions { samples: Some(samples), ..sampling };
        let limit = arguments.limit.map(|limit| positive("limit", limit)).transpose()?;
        let data =
            options::data_source(&arguments.data, arguments.fields.clone()).map_err(raise)?;
        let read = || data.read(limit, arguments.default_count);
        let questions = if arguments.read { py.detach(read).map_err(raise)? } else { Vec::new() };
        if let Some(k) = arguments.ks.iter().find(|k| !(1..=samples.get() as usize).contains(*k)) {
            return Err(invalid(format!("k={k} must be from 1 to samples={samples}")));
        }
        let end = sampling.seed.unwrap_or(0).checked_add(arguments.seeds.max(1));
        let end = end.ok_or_else(|| invalid("the seeds exceed the largest seed"))?;
        let skip = arguments.skip_too_long;
        let params = evaluation_params(&sampling, &engine.engine).map_err(raise)?;
        let check = |question: &Question| -> Result<(), Error> {
            Ok(engine.engine.check(&[grade::request(question, params)])?)
        };
        let (questions, skipped) = match skip {
            true => py.detach(|| fitting_questions(questions, check)).map_err(raise)?,
            false => (questions, Vec::new()),
        };
        if questions.is_empty() && !skipped.is_empty() {
            return Err(invalid("all questions exceed the model's context; pass fewer thoughts"));
        }
        let ablations = arguments.ablate.iter().map(|name| options::ablation(name));
        let scorer = |(name, function)| scorer::from_python(py, name, function);
        let rules = |names: Vec<String>| names.iter().map(|name| options::rule(name)).collect();
        Ok(Self {
            data,
            questions,
            seeds: (sampling.seed.unwrap_or(0)..end).collect(),
            ks: arguments.ks,
            rules: arguments.rules.map(rules).transpose()?,
            out: arguments.out,
            on_existing: options::on_existing(&arguments.on_existing)?,
            keep_latents: arguments.keep_thoughts,
            lens: arguments.lens.map(|tokens| positive("lens", tokens)).transpose()?,
            ablations: ablations.collect::<PyResult<_>>()?,
            scorer: arguments.scorer.map(scorer).transpose()?,
            skipped,
            sampling,
            recorder: Mutex::default(),
        })
    }

    /// Evaluates all questions in this process and returns the run directory.
    fn run(
        &self,
        py: Python<'_>,
        engine: &PyEngine,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<PathBuf> {
        let cancel = CancelToken::default();
        let output = wait_for(py, &cancel, progress, |events| {
            self.with(engine, cancel.clone(), |evaluation| {
                evaluation.run(&engine.engine, &self.questions, &mut EvalProgressSender(events))
            })
        })?;
        Ok(output.map_err(raise)?.out)
    }

    /// Opens the run directory; returns it, the number of recorded questions, and of all questions.
    fn open(&self, py: Python<'_>, engine: &PyEngine) -> PyResult<(PathBuf, usize, usize)> {
        let opened = wait_for(py, &CancelToken::default(), None, |_| {
            self.with(engine, CancelToken::default(), |evaluation| {
                evaluation.open(&engine.engine, &self.questions)
            })
        })?;
        let recorder = opened.map_err(raise)?;
        let state = (recorder.out().to_owned(), recorder.done_count(), recorder.total());
        *self.recorder.lock().unwrap_or_else(PoisonError::into_inner) = Some(recorder);
        Ok(state)
    }

    /// The questions without a record: each seed with its questions, in record order.
    fn missing(&self) -> PyResult<Vec<(u64, Vec<QuestionTuple>)>> {
        self.recording(|recorder| {
            let missing = |&seed: &u64| {
                let questions = recorder.missing(seed, &self.questions);
                (seed, questions.into_iter().map(question_tuple).collect())
            };
            Ok(self.seeds.iter().map(missing).collect())
        })
    }

    /// Records a question that a worker sampled.
    fn add(&self, record: &[u8]) -> PyResult<()> {
        let record = QuestionRecord::from_bytes(record).map_err(raise_record)?;
        self.recording(|recorder| recorder.add(&record).map_err(raise))
    }

    /// Computes the metrics once all questions are recorded.
    fn finish(&self, py: Python<'_>, engine: &PyEngine) -> PyResult<PathBuf> {
        let recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner).take();
        let recorder = recorder.ok_or_else(not_open)?;
        let output = wait_for(py, &CancelToken::default(), None, |_| {
            self.with(engine, CancelToken::default(), |evaluation| evaluation.finish(recorder))
        })?;
        Ok(output.map_err(raise)?.out)
    }
}

impl PyEvaluation {
    /// Runs `work` on the library's evaluation for an engine's models.
    pub fn with<R>(
        &self,
        engine: &PyEngine,
        cancel: CancelToken,
        work: impl FnOnce(&library::Evaluation<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let params = evaluation_params(&self.sampling, &engine.engine)?;
        let mut evaluation = library::Evaluation::new(&engine.selection, &self.data, params)
            .seeds(self.seeds.clone())
            .ks(self.ks.clone())
            .rules(self.rules.clone())
            .on_existing(self.on_existing)
            .keep_latents(self.keep_latents)
            .lens(self.lens)
            .scorer(self.scorer.clone())
            .ablations(self.ablations.clone())
            .cancel(cancel);
        evaluation.out.clone_from(&self.out);
        work(&evaluation)
    }

    /// The manifest of the run.
    pub fn manifest(&self, engine: &PyEngine) -> Result<Manifest, Error> {
        self.with(engine, CancelToken::default(), |evaluation| {
            evaluation.manifest(&engine.engine, &self.questions)
        })
    }

    pub fn data(&self) -> &DataSource {
        &self.data
    }

    pub fn samples(&self) -> NonZeroUsize {
        let samples = self.sampling.samples.unwrap_or(DEFAULT_SAMPLES);
        NonZeroUsize::try_from(samples).unwrap_or(NonZeroUsize::MAX)
    }

    fn recording<R>(&self, work: impl FnOnce(&mut RunRecorder) -> PyResult<R>) -> PyResult<R> {
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
        work(recorder.as_mut().ok_or_else(not_open)?)
    }
}

fn not_open() -> PyErr {
    invalid("the run directory is not open")
}

/// Sends progress to the waiting thread, which outlives the work.
struct EvalProgressSender<'a>(&'a Sender<ProgressEvent>);

impl EvalObserver for EvalProgressSender<'_> {
    fn opened(&mut self, out: &Path, done: usize, total: usize) {
        let _ = self.0.send(ProgressEvent::Opened(out.display().to_string(), done, total));
    }

    fn recorded(&mut self, _sample: &Sample) {
        let _ = self.0.send(ProgressEvent::Done(1));
    }
}
