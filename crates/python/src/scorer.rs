//! Scorers that are Python callables on the trajectories of a question.

use std::error::Error;

use latent_tts::{Question, Scorer, Trajectory};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::trajectory::PyTrajectory;

/// A callable that takes the text of a question and a list of trajectories, and returns one reward
/// per trajectory.
pub struct PythonScorer {
    name: String,
    function: Py<PyAny>,
}

impl PythonScorer {
    pub fn new(name: String, function: Py<PyAny>) -> Self {
        Self { name, function }
    }

    fn call(
        &self,
        py: Python<'_>,
        question: &Question,
        trajectories: &[&Trajectory],
    ) -> PyResult<Vec<f32>> {
        // The gold answer is not passed to scorers.
        let objects = trajectories
            .iter()
            .map(|&trajectory| PyTrajectory::new(py, trajectory.clone(), None))
            .map(|object| object.and_then(|object| Py::new(py, object)))
            .collect::<PyResult<Vec<_>>>()?;
        let list = PyList::new(py, objects)?;
        let rewards = self.function.bind(py).call1((question.text.as_str(), list))?;
        rewards.try_iter()?.map(|reward| reward?.extract()).collect()
    }
}

impl Scorer for PythonScorer {
    fn name(&self) -> &str {
        &self.name
    }

    fn score(
        &self,
        question: &Question,
        trajectories: &[&Trajectory],
    ) -> Result<Vec<f32>, Box<dyn Error + Send + Sync>> {
        Python::attach(|py| self.call(py, question, trajectories)).map_err(Into::into)
    }
}
