//! Trajectories and replies as Python objects. Attributes have the names of the records' keys.

use std::collections::BTreeMap;

use latent_tts as library;
use latent_tts::Answer;
use latent_tts::schema::TrajectoryRecord;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyDeprecationWarning;
use pyo3::prelude::*;

use crate::aggregate::{VoteTuple, vote_tuples};

/// A trajectory. Its thoughts are moved from the engine into an array without a copy.
#[pyclass(frozen, get_all, name = "Trajectory", module = "latent_tts._core")]
pub struct PyTrajectory {
    index: u32,
    latent_steps: usize,
    text: String,
    answer: Option<String>,
    /// None if the gold answer is unknown.
    correct: Option<bool>,
    tokens: Vec<u32>,
    thoughts: Py<PyArray2<f32>>,
    process_rewards: Option<Py<PyArray1<f32>>>,
    outcome_reward: Option<f32>,
    logprob: Option<f32>,
    /// Signals besides rewards and likelihood, by name.
    signals: BTreeMap<String, f32>,
    lens: Vec<Vec<(String, f32)>>,
}

impl PyTrajectory {
    pub fn new(
        py: Python<'_>,
        trajectory: library::Trajectory,
        gold: Option<&str>,
    ) -> PyResult<Self> {
        let lens = TrajectoryRecord::from(&trajectory).lens;
        let rows = trajectory.latents.rows();
        let width = trajectory.latents.cols();
        let latents = trajectory.latents.into_data().into_pyarray(py);
        let answer = trajectory.answer;
        let matches = |gold: &str| answer.as_ref().is_some_and(|answer| answer.matches(gold));
        Ok(Self {
            index: trajectory.number,
            latent_steps: trajectory.thoughts,
            text: trajectory.text,
            correct: gold.map(matches),
            answer: answer.as_ref().map(Answer::as_str).map(str::to_owned),
            tokens: trajectory.tokens.to_vec(),
            thoughts: latents.reshape([rows, width])?.unbind(),
            process_rewards: trajectory
                .process_rewards
                .map(|rewards| rewards.into_pyarray(py).unbind()),
            outcome_reward: trajectory.outcome_reward,
            logprob: trajectory.logprob,
            signals: trajectory.signals,
            lens,
        })
    }
}

#[pymethods]
impl PyTrajectory {
    /// The name of `index` in earlier versions.
    #[getter]
    fn number(&self, py: Python<'_>) -> PyResult<u32> {
        let kind = py.get_type::<PyDeprecationWarning>();
        PyErr::warn(py, &kind, c"Trajectory.number is deprecated; use index", 1)?;
        Ok(self.index)
    }

    fn __repr__(&self) -> String {
        let answer = self.answer.as_deref().unwrap_or("None");
        format!("Trajectory(index={}, answer={answer}, text={:?})", self.index, self.text)
    }
}

/// A finished request.
#[pyclass(frozen, get_all, name = "Reply", module = "latent_tts._core")]
pub struct PyReply {
    answer: Option<String>,
    rule: &'static str,
    chosen: Option<usize>,
    confidence: Option<f64>,
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
    /// The reply to a question with gold answer `gold`, if known.
    pub fn new(py: Python<'_>, reply: library::Output, gold: Option<&str>) -> PyResult<Self> {
        let answer = reply.answer().map(str::to_owned);
        let votes = vote_tuples(reply.votes());
        let trajectory = |t| PyTrajectory::new(py, t, gold).and_then(|t| Py::new(py, t));
        Ok(Self {
            answer,
            votes,
            rule: reply.rule.name(),
            chosen: reply.chosen,
            confidence: reply.confidence,
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
