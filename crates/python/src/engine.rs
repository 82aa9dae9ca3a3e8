//! A loaded reasoner: sampling, log-likelihoods, and the pieces of work of a cluster's workers.

use latent_tts::record::QuestionRecord;
use latent_tts::{
    self as library, CancelToken, DataSource, Model, ModelSelection, Request, RewardModelChoice,
    default_memory, loglikelihood,
};
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::aggregate::{VoteTuple, vote_tuples};
use crate::errors::{raise, raise_device, raise_loading, raise_record};
use crate::evaluate::PyEvaluation;
use crate::options::{
    self, QuestionTuple, Sampling, answer_kind, positive, question, question_tuple,
};
use crate::waiting::{ProgressEvent, wait_for};

/// A reasoner, perhaps its reward model, on a device.
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
    #[pyo3(signature = (name, reward_model, *, family=None, device="auto", dtype=None,
                        threads=None, memory=None, deterministic=false))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    fn load(
        py: Python<'_>,
        name: &str,
        reward_model: &str,
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
            let selection = ModelSelection { family, ..selection };
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

    /// The same reasoner, whose trajectories are not scored.
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
    fn thoughts(&self) -> String {
        self.engine.reasoner().method.length.to_string()
    }

    #[getter]
    fn default_rule(&self) -> &'static str {
        self.engine.default_rule().name()
    }

    /// Samples questions, each under its index as id, and gives their replies.
    fn sample(
        &self,
        py: Python<'_>,
        questions: Vec<String>,
        kind: &str,
        sampling: Sampling,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<PyReply>> {
        let kind = answer_kind(kind)?;
        let params = sampling.0.resolve(&self.engine.reasoner().method).map_err(raise)?;
        let cancel = CancelToken::default();
        let request = |(id, question): (usize, String)| Request {
            id: id as u32,
            answer_kind: kind,
            cancel: cancel.clone(),
            ..Request::new(question, params)
        };
        let requests: Vec<Request> = questions.into_iter().enumerate().map(request).collect();
        let replies = wait_for(py, &cancel, progress, |events| {
            let mut replies = Vec::new();
            self.engine.run(&requests, |_, reply| -> Result<(), library::EngineError> {
                replies.push(reply?);
                // The receiver lives as long as the work.
                let _ = events.send(ProgressEvent::Done(1));
                Ok(())
            })?;
            Ok::<_, library::EngineError>(replies)
        })?;
        replies.map_err(raise)?.into_iter().map(|reply| PyReply::new(py, reply)).collect()
    }

    /// The log-likelihood of each continuation after its context, and whether it is greedy.
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

/// A finished request.
#[pyclass(frozen, get_all, name = "Reply", module = "latent_tts._core")]
pub struct PyReply {
    answer: Option<String>,
    rule: &'static str,
    chosen: Option<usize>,
    votes: Vec<VoteTuple>,
    trajectories: Vec<Py<PyTrajectory>>,
    greedy: Option<Py<PyTrajectory>>,
    beam: Option<Py<PyTrajectory>>,
    diversity: Vec<f64>,
    steps: u64,
    flops: f64,
    seconds: f64,
}

impl PyReply {
    fn new(py: Python<'_>, reply: library::Reply) -> PyResult<Self> {
        let answer = reply.answer().map(str::to_owned);
        let votes = vote_tuples(reply.votes());
        let trajectory = |t| PyTrajectory::new(py, t).and_then(|t| Py::new(py, t));
        Ok(Self {
            answer,
            votes,
            rule: reply.rule.name(),
            chosen: reply.chosen,
            trajectories: reply
                .trajectories
                .into_iter()
                .map(trajectory)
                .collect::<PyResult<_>>()?,
            greedy: reply.greedy.map(trajectory).transpose()?,
            beam: reply.beam.map(|beam| trajectory(beam.best)).transpose()?,
            diversity: reply.diversity,
            steps: reply.cost.steps,
            flops: reply.cost.flops,
            seconds: reply.seconds.total,
        })
    }
}

/// One trajectory. Its thoughts are the engine's own memory, moved into an array.
#[pyclass(frozen, get_all, name = "Trajectory", module = "latent_tts._core")]
pub struct PyTrajectory {
    number: u32,
    text: String,
    answer: Option<String>,
    tokens: Vec<u32>,
    thoughts: Py<PyArray2<f32>>,
    process_rewards: Option<Py<PyArray1<f32>>>,
    outcome_reward: Option<f32>,
    logprob: Option<f32>,
}

impl PyTrajectory {
    fn new(py: Python<'_>, trajectory: library::Trajectory) -> PyResult<Self> {
        let (thoughts, width) = (trajectory.latents.rows(), trajectory.latents.cols());
        let latents = trajectory.latents.into_data().into_pyarray(py);
        Ok(Self {
            number: trajectory.number,
            text: trajectory.text,
            answer: trajectory.answer.map(|answer| answer.as_str().to_owned()),
            tokens: trajectory.tokens.to_vec(),
            thoughts: latents.reshape([thoughts, width])?.unbind(),
            process_rewards: trajectory
                .process_rewards
                .map(|rewards| rewards.into_pyarray(py).unbind()),
            outcome_reward: trajectory.outcome_reward,
            logprob: trajectory.logprob,
        })
    }
}

/// Refuses a reward model that cannot be found or is none.
#[pyfunction]
pub fn check_reward_model(py: Python<'_>, name: &str) -> PyResult<String> {
    let files = py.detach(|| library::reward_model_files(name)).map_err(raise_loading)?;
    Ok(files.path().display().to_string())
}

/// The questions of a data source.
#[pyfunction]
pub fn read_questions(
    py: Python<'_>,
    data: &str,
    limit: Option<usize>,
    default_count: usize,
) -> PyResult<Vec<QuestionTuple>> {
    let limit = limit.map(|limit| positive("limit", limit)).transpose()?;
    let read = || DataSource::parse(data)?.read(limit, default_count);
    Ok(py.detach(read).map_err(raise)?.iter().map(question_tuple).collect())
}
