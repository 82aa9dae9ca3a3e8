//! A loaded reasoner: sampling, log-likelihoods, and the work of a cluster's workers.

use std::path::{Path, PathBuf};

use latent_tts::record::QuestionRecord;
use latent_tts::tensor::Tensor;
use latent_tts::{
    self as library, CancelToken, GivenTrajectory, Lens, Model, ModelSelection, Request,
    RewardModelChoice, SamplingParams, check_sampler, default_memory, loglikelihood, notes,
};
use numpy::{IntoPyArray, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::{check_rule, invalid, raise, raise_device, raise_loading, raise_record};
use crate::evaluate::PyEvaluation;
use crate::options::{
    self, FieldTuple, QuestionInput, QuestionTuple, Sampling, answer_kind, data_source,
    field_names, positive, question, question_tuple,
};
use crate::trajectory::PyReply;
use crate::waiting::{ProgressEvent, wait_for};

/// A reasoner and optionally a reward model, on a device.
#[pyclass(frozen, name = "Engine", module = "latent_tts._core")]
pub struct PyEngine {
    pub selection: ModelSelection,
    pub model: Model,
    pub engine: library::Engine,
}

#[pymethods]
impl PyEngine {
    /// Loads models by name; `reward_model` may be `default` or `none`.
    #[staticmethod]
    #[pyo3(signature = (name, reward_model, *, probe=None, base=None, family=None,
                        device="auto", dtype=None, threads=None, memory=None,
                        deterministic=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn load(
        py: Python<'_>,
        name: &str,
        reward_model: &str,
        probe: Option<PathBuf>,
        base: Option<&str>,
        family: Option<&str>,
        device: &str,
        dtype: Option<&str>,
        threads: Option<usize>,
        memory: Option<usize>,
        deterministic: bool,
    ) -> PyResult<Self> {
        let choice = match reward_model {
            "default" => RewardModelChoice::Default,
            "none" => RewardModelChoice::None,
            name => RewardModelChoice::Named(name),
        };
        let options = options::device_options(device, dtype, threads, deterministic)?;
        let family = family.map(options::family).transpose()?;
        let memory = memory.map(|bytes| positive("memory", bytes)).transpose()?;
        let load = |_: &_| -> PyResult<Self> {
            let device = options.open().map_err(raise_device)?;
            let selection = ModelSelection::new(name, choice).map_err(raise_loading)?;
            let selection = match base {
                Some(base) => selection.with_base(base).map_err(raise_loading)?,
                None => selection,
            };
            let selection = ModelSelection { family, probe: probe.clone(), ..selection };
            let model = selection.load(&device).map_err(raise_loading)?;
            let memory = match memory {
                Some(bytes) => bytes.get(),
                None => default_memory(&device).map_err(raise_device)?,
            };
            let engine = model.engine().map_err(raise_loading)?.with_memory(memory);
            Ok(Self { selection, model, engine })
        };
        wait_for(py, &CancelToken::default(), None, load)?
    }

    /// The same reasoner without scoring of trajectories.
    fn without_reward_model(&self) -> Self {
        let selection = ModelSelection { reward_model: None, ..self.selection.clone() };
        let model = self.model.clone().without_reward_model();
        Self { selection, model, engine: self.engine.clone().without_reward_model() }
    }

    #[getter]
    fn name(&self) -> String {
        self.selection.reasoner.path().display().to_string()
    }

    #[getter]
    fn reward_model(&self) -> Option<String> {
        self.selection.reward_model.as_ref().map(|files| files.path().display().to_string())
    }

    #[getter]
    fn probe(&self) -> Option<String> {
        self.selection.probe.as_ref().map(|dir| dir.display().to_string())
    }

    #[getter]
    fn family(&self) -> &'static str {
        self.engine.reasoner().method.family.name()
    }

    #[getter]
    fn device(&self) -> String {
        self.model.device().describe()
    }

    #[getter]
    fn width(&self) -> usize {
        self.engine.reasoner().decoder.config().width
    }

    #[getter]
    fn layers(&self) -> usize {
        self.engine.reasoner().decoder.config().layers
    }

    #[getter]
    fn thoughts(&self) -> String {
        self.engine.reasoner().method.length.to_string()
    }

    #[getter]
    fn default_rule(&self) -> &'static str {
        self.engine.default_rule().name()
    }

    /// The complete options that the given options resolve to for this model.
    fn resolve<'py>(&self, py: Python<'py>, sampling: Sampling) -> PyResult<Bound<'py, PyDict>> {
        options::keywords(py, &self.params(&sampling)?)
    }

    /// Notes about questions: unknown words, and questions outside the training distribution.
    fn notes(&self, questions: Vec<String>) -> PyResult<Vec<String>> {
        let reasoner = self.engine.reasoner();
        let embedded = notes::is_embedded(&self.selection.reasoner);
        let found = if let [question] = questions.as_slice() {
            notes::of_question(reasoner, embedded, question).map_err(raise)?
        } else {
            let questions: Vec<_> = questions.into_iter().map(unanswered).collect();
            let note = notes::of_questions(reasoner, embedded, &questions).map_err(raise)?;
            note.into_iter().collect()
        };
        Ok(found.iter().map(ToString::to_string).collect())
    }

    /// Samples questions, with their indices as ids, and returns the replies. With `lens`, each
    /// thought is decoded to that many tokens.
    fn sample(
        &self,
        py: Python<'_>,
        questions: Vec<QuestionInput>,
        sampling: Sampling,
        lens: Option<usize>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<PyReply>> {
        let lens = lens.map(|tokens| positive("lens", tokens)).transpose()?;
        let lens = lens.map(|tokens| Lens { tokens, sampled: true });
        let params = self.params(&sampling)?;
        let cancel = CancelToken::default();
        let mut requests = Vec::with_capacity(questions.len());
        for (id, (question, _, kind)) in questions.iter().enumerate() {
            requests.push(Request {
                id: id as u32,
                answer_kind: answer_kind(kind)?,
                cancel: cancel.clone(),
                lens,
                ..Request::new(question.clone(), params)
            });
        }
        let replies = self.replies(py, &requests, &cancel, progress)?;
        let gold = questions.iter().map(|(_, gold, _)| gold.as_deref());
        replies.into_iter().zip(gold).map(|(reply, gold)| PyReply::new(py, reply, gold)).collect()
    }

    /// Decodes the answers of a question after given thoughts, one trajectory per array.
    fn decode(
        &self,
        py: Python<'_>,
        question: QuestionInput,
        latents: Vec<PyReadonlyArray2<'_, f32>>,
        sampling: Sampling,
    ) -> PyResult<PyReply> {
        let forced: Vec<Tensor> =
            latents.iter().map(|array| self.thoughts_of(array)).collect::<PyResult<_>>()?;
        let (text, gold, kind) = question;
        let cancel = CancelToken::default();
        let request = Request {
            answer_kind: answer_kind(&kind)?,
            cancel: cancel.clone(),
            forced_thoughts: forced.into(),
            ..Request::new(text, self.params(&sampling)?)
        };
        let replies = self.replies(py, &[request], &cancel, None)?;
        let reply = replies.into_iter().next().ok_or_else(|| invalid("no reply was decoded"))?;
        PyReply::new(py, reply, gold.as_deref())
    }

    /// Hidden states of layers along a trajectory with given thoughts and tokens, optionally its
    /// logits, and the number of positions of prompt, thoughts, end tokens and answer.
    fn hidden_states<'py>(
        &self,
        py: Python<'py>,
        trajectory: (String, Option<PyReadonlyArray2<'_, f32>>, Vec<u32>),
        layers: Vec<usize>,
        logits: bool,
    ) -> PyResult<HiddenStatesTuple<'py>> {
        let (question, latents, answer) = trajectory;
        let thoughts = latents.as_ref().map(|array| self.thoughts_of(array)).transpose()?;
        let thoughts = thoughts.unwrap_or_default();
        let given = GivenTrajectory { question, thoughts, answer };
        let reasoner = self.engine.reasoner();
        let found = py.detach(|| reasoner.hidden_states(&given, &layers, logits)).map_err(raise)?;
        let array = |tensor: Tensor| {
            let shape = [tensor.rows(), tensor.cols()];
            tensor.into_data().into_pyarray(py).reshape(shape)
        };
        let counts = [&found.prompt, &found.thoughts, &found.end, &found.answer];
        Ok((
            found.layers.into_iter().map(array).collect::<PyResult<_>>()?,
            found.logits.map(array).transpose()?,
            counts.map(ExactSizeIterator::len),
        ))
    }

    /// The log-likelihood of each continuation given its context, and whether it is greedy.
    fn loglikelihoods(
        &self,
        py: Python<'_>,
        pairs: Vec<(String, String)>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<(f64, bool)>> {
        let cancel = CancelToken::default();
        let found = wait_for(py, &cancel, progress, |events| {
            let pairs = pairs.iter().take_while(|_| !cancel.is_cancelled());
            let likelihood = |(context, continuation): &(String, String)| {
                let found = loglikelihood(self.engine.reasoner(), context, continuation)?;
                let _ = events.send(ProgressEvent::Done(1));
                Ok((found.sum, found.greedy))
            };
            pairs.map(likelihood).collect::<Result<Vec<_>, library::Error>>()
        })?;
        found.map_err(raise)
    }

    /// A worker's part of an evaluation: the records of some questions under one seed, as bytes.
    fn records<'py>(
        &self,
        py: Python<'py>,
        evaluation: &PyEvaluation,
        seed: u64,
        questions: Vec<QuestionTuple>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let questions = questions.into_iter().map(question).collect::<PyResult<Vec<_>>>()?;
        let cancel = CancelToken::default();
        let records = wait_for(py, &cancel, None, |_| {
            let mut records = Vec::new();
            let all: Vec<&library::Question> = questions.iter().collect();
            evaluation.with(self, cancel.clone(), |evaluation| {
                evaluation.sample(&self.engine, &all, seed, |record: QuestionRecord| {
                    records.push(record.to_bytes());
                    Ok(())
                })
            })?;
            Ok::<_, library::Error>(records)
        })?;
        let bytes = |record: Result<Vec<u8>, _>| {
            record.map(|bytes| PyBytes::new(py, &bytes)).map_err(raise_record)
        };
        records.map_err(raise)?.into_iter().map(bytes).collect()
    }
}

/// Arrays of layers, the array of logits, and the numbers of positions.
type HiddenStatesTuple<'py> =
    (Vec<Bound<'py, PyArray2<f32>>>, Option<Bound<'py, PyArray2<f32>>>, [usize; 4]);
/// A question without a gold answer.
fn unanswered(text: String) -> library::Question {
    let kind = library::AnswerKind::default();
    library::Question { id: 0, text, gold: String::new(), kind, steps: Vec::new() }
}

impl PyEngine {
    /// Thoughts from a NumPy array.
    fn thoughts_of(&self, array: &PyReadonlyArray2<'_, f32>) -> PyResult<Tensor> {
        let array = array.as_array();
        let found = array.ncols();
        let width = self.width();
        if found != width {
            return Err(invalid(format!("latents have width {found}, the model has {width}")));
        }
        Ok(Tensor::from_vec(array.nrows(), width, array.iter().copied().collect()))
    }

    pub fn params(&self, sampling: &Sampling) -> PyResult<SamplingParams> {
        sampling.0.resolve(&self.engine.reasoner().method).map_err(raise)
    }

    /// Runs requests without the GIL, and raises the exception of a rule that is a Python callable.
    fn replies(
        &self,
        py: Python<'_>,
        requests: &[Request],
        cancel: &CancelToken,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<library::Output>> {
        let replies = wait_for(py, cancel, progress, |events| {
            let mut replies = Vec::new();
            self.engine.run(requests, |_, reply| -> Result<(), library::EngineError> {
                replies.push(reply?);
                // The receiver outlives the work.
                let _ = events.send(ProgressEvent::Done(1));
                Ok(())
            })?;
            Ok::<_, library::EngineError>(replies)
        })?;
        let rule = requests.first().and_then(|request| request.params.rule);
        rule.map_or(Ok(()), check_rule)?;
        if let Some(request) = requests.first() {
            check_sampler(&request.params.perturbation).map_err(raise)?;
        }
        replies.map_err(raise)
    }
}

/// Fails for a reward model that is not found or is not a reward model.
#[pyfunction]
pub fn check_reward_model(py: Python<'_>, name: &str) -> PyResult<String> {
    let files = py.detach(|| library::reward_model_files(name)).map_err(raise_loading)?;
    Ok(files.path().display().to_string())
}

/// Parses questions from the text of a JSON list, in the format of a data file; errors call it
/// `name`.
#[pyfunction]
pub fn parse_questions(name: &str, text: &str, fields: FieldTuple) -> PyResult<Vec<QuestionTuple>> {
    let fields = field_names(fields);
    let questions = library::data::parse_fields(Path::new(name), text.as_bytes(), &fields, None);
    Ok(questions.map_err(raise)?.iter().map(question_tuple).collect())
}

/// The questions of a data source.
#[pyfunction]
pub fn read_questions(
    py: Python<'_>,
    data: &str,
    fields: FieldTuple,
    limit: Option<usize>,
    default_count: usize,
) -> PyResult<Vec<QuestionTuple>> {
    let limit = limit.map(|limit| positive("limit", limit)).transpose()?;
    let read = || data_source(data, fields)?.read(limit, default_count);
    Ok(py.detach(read).map_err(raise)?.iter().map(question_tuple).collect())
}
