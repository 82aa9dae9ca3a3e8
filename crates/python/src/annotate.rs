//! Annotations: computed in this process, or opened here and computed shard by shard in several.

use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, PoisonError};

use latent_tts::annotate::{AnnotationInputs, AnnotationJob, AnnotationObserver, ShardPart};
use latent_tts::engine::rollout::{AnnotatedQuestion, ThoughtLabels};
use latent_tts::train::annotate::{AnnotationIndex, AnnotationStore, ThoughtsDtype};
use latent_tts::{
    self as library, Annotator, CancelToken, DataSource, OnExisting, Question, SamplingOptions,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::engine::PyEngine;
use crate::errors::{invalid, raise, raise_annotations};
use crate::options::{
    self, FieldTuple, QuestionTuple, Sampling, positive, question, question_tuple,
};
use crate::waiting::{ProgressEvent, wait_for};

/// An annotation, with its directory while shards are being written.
#[pyclass(frozen, name = "Annotation", module = "latent_tts._core")]
pub struct PyAnnotation {
    data: DataSource,
    questions: Vec<Question>,
    /// Ids of the skipped questions, which exceed the model's context.
    #[pyo3(get)]
    skipped: Vec<u32>,
    sampling: SamplingOptions,
    labels: ThoughtLabels,
    per_shard: usize,
    dtype: ThoughtsDtype,
    out: Option<PathBuf>,
    on_existing: OnExisting,
    store: Mutex<Option<(AnnotationIndex, AnnotationStore)>>,
}

/// The keyword arguments of an annotation.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct AnnotateArguments {
    data: String,
    /// The names of the fields for question, answer and steps.
    fields: FieldTuple,
    /// Whether to read the questions; a worker receives its own.
    read: bool,
    limit: Option<usize>,
    /// Whether to skip questions that exceed the model's context.
    skip_too_long: bool,
    default_count: usize,
    /// Number of rollouts; 0 labels thoughts by the outcome of their trajectory.
    rollouts: usize,
    per_shard: usize,
    dtype: String,
    out: Option<PathBuf>,
    on_existing: String,
}

#[pymethods]
impl PyAnnotation {
    #[new]
    fn new(
        py: Python<'_>,
        engine: &PyEngine,
        arguments: AnnotateArguments,
        sampling: Sampling,
    ) -> PyResult<Self> {
        let limit = arguments.limit.map(|limit| positive("limit", limit)).transpose()?;
        let data =
            options::data_source(&arguments.data, arguments.fields.clone()).map_err(raise)?;
        let read = || data.read(limit, arguments.default_count);
        let questions = if arguments.read { py.detach(read).map_err(raise)? } else { Vec::new() };
        let mut annotation = Self {
            data,
            questions: Vec::new(),
            skipped: Vec::new(),
            sampling: sampling.0,
            labels: match positive("rollouts", arguments.rollouts) {
                Ok(count) => ThoughtLabels::Rollouts(count),
                Err(_) => ThoughtLabels::Final,
            },
            per_shard: positive("per_shard", arguments.per_shard)?.get(),
            dtype: match arguments.dtype.as_str() {
                "f32" => ThoughtsDtype::F32,
                "bf16" => ThoughtsDtype::Bf16,
                other => return Err(invalid(format!("thoughts_dtype={other:?}: use f32 or bf16"))),
            },
            out: arguments.out,
            on_existing: options::on_existing(&arguments.on_existing)?,
            store: Mutex::default(),
        };
        (annotation.questions, annotation.skipped) = match arguments.skip_too_long {
            true => py.detach(|| annotation.fitting(engine, questions)).map_err(raise)?,
            false => (questions, Vec::new()),
        };
        Ok(annotation)
    }

    /// Computes all missing shards in this process, and returns the directory.
    fn run(
        &self,
        py: Python<'_>,
        engine: &PyEngine,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<PathBuf> {
        let cancel = CancelToken::default();
        let done = wait_for(py, &cancel, progress, |events| {
            let (out, index, store) = self.open_store(engine)?;
            let all = self.questions.len();
            let count = |shard: usize| index.questions_of(shard).len();
            let missing: usize = store.missing(0, 1).into_iter().map(count).sum();
            // The receiver outlives the work.
            let _ =
                events.send(ProgressEvent::Opened(out.display().to_string(), all - missing, all));
            let job = AnnotationJob {
                annotator: self.annotator(engine)?.with_cancel(&cancel),
                index: &index,
                part: ShardPart { part: 0, of: 1 },
            };
            job.run(&store, &self.questions, &mut AnnotationProgressSender(events))?;
            Ok::<_, library::Error>(out)
        })?;
        self.check_sampler(engine)?;
        done.map_err(raise)
    }

    /// Opens the directory; returns it, the index as JSON, the missing shards, and the number of
    /// all.
    fn open(
        &self,
        py: Python<'_>,
        engine: &PyEngine,
    ) -> PyResult<(PathBuf, String, Vec<usize>, usize)> {
        let (out, index, store) =
            wait_for(py, &CancelToken::default(), None, |_| self.open_store(engine))?
                .map_err(raise)?;
        let (missing, all) = (store.missing(0, 1), index.shards());
        let text = serde_json::to_string(&index).map_err(|error| invalid(error.to_string()))?;
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = Some((index, store));
        Ok((out, text, missing, all))
    }

    /// The questions of a shard.
    fn questions_of(&self, shard: usize) -> PyResult<Vec<QuestionTuple>> {
        let stored = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let (index, _) = stored.as_ref().ok_or_else(not_open)?;
        Ok(self.questions[index.questions_of(shard)].iter().map(question_tuple).collect())
    }

    /// A worker's part: the shard of some questions, as the bytes of its file.
    fn shard<'py>(
        &self,
        py: Python<'py>,
        engine: &PyEngine,
        index: &str,
        questions: Vec<QuestionTuple>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let questions = questions.into_iter().map(question).collect::<PyResult<Vec<_>>>()?;
        let index: AnnotationIndex =
            serde_json::from_str(index).map_err(|error| invalid(error.to_string()))?;
        let cancel = CancelToken::default();
        let shard = wait_for(py, &cancel, None, |_| {
            let annotator = self.annotator(engine)?.with_cancel(&cancel);
            annotator.shard(&index, &questions, &mut ())
        })?;
        self.check_sampler(engine)?;
        let bytes = shard.map_err(raise)?.to_bytes().map_err(invalid)?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Writes a shard that a worker computed.
    fn write(&self, shard: usize, bytes: &[u8]) -> PyResult<()> {
        let stored = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, store) = stored.as_ref().ok_or_else(not_open)?;
        store.write_bytes(shard, bytes).map_err(raise_annotations)
    }
}

impl PyAnnotation {
    /// Raises the exception of a sampler that is a Python callable.
    fn check_sampler(&self, engine: &PyEngine) -> PyResult<()> {
        let params = self.sampling.resolve(&engine.engine.reasoner().method).map_err(raise)?;
        library::check_sampler(&params.perturbation).map_err(raise)
    }

    /// The questions that fit the model, and the ids of the others.
    fn fitting(
        &self,
        engine: &PyEngine,
        questions: Vec<Question>,
    ) -> Result<(Vec<Question>, Vec<u32>), library::Error> {
        let annotator = self.annotator(engine)?;
        let check = |question: &Question| annotator.check(std::slice::from_ref(question));
        library::fitting_questions(questions, check)
    }

    fn annotator<'a>(&self, engine: &'a PyEngine) -> Result<Annotator<'a>, library::Error> {
        let reasoner = engine.engine.reasoner();
        let params = self.sampling.resolve(&reasoner.method)?;
        Ok(Annotator::new(reasoner, params, self.labels).with_memory(engine.engine.memory()))
    }

    fn open_store(
        &self,
        engine: &PyEngine,
    ) -> Result<(PathBuf, AnnotationIndex, AnnotationStore), library::Error> {
        let annotator = self.annotator(engine)?;
        annotator.check(&self.questions)?;
        let inputs = AnnotationInputs {
            reasoner: &engine.selection.reasoner,
            data: &self.data,
            questions: &self.questions,
            per_shard: self.per_shard,
            dtype: self.dtype,
        };
        let index = inputs.index(&annotator)?;
        let out = self.out.clone().unwrap_or_else(|| inputs.default_out(&index));
        let store = AnnotationJob::open(&out, &index, self.on_existing)?;
        Ok((out, index, store))
    }
}

fn not_open() -> PyErr {
    invalid("the annotation directory is not open")
}

/// Sends progress to the waiting thread, which outlives the work.
struct AnnotationProgressSender<'a>(&'a Sender<ProgressEvent>);

impl AnnotationObserver for AnnotationProgressSender<'_> {
    fn annotated(&mut self, _annotated: &AnnotatedQuestion) {
        let _ = self.0.send(ProgressEvent::Done(1));
    }
}
