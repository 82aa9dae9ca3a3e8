//! Scorers: Python callables on the trajectories of a question, and HTTP endpoints.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use latent_tts::{HttpScorer, HttpScorerOptions, Scorer, Trajectory};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::errors::invalid;
use crate::trajectory::PyTrajectory;

/// An HTTP endpoint that scores trajectories.
#[pyclass(frozen, name = "HttpScorer", module = "latent_tts")]
pub struct PyHttpScorer {
    options: HttpScorerOptions,
}

#[pymethods]
impl PyHttpScorer {
    #[new]
    #[pyo3(signature = (url, model=None, *, api_key=None, timeout=60.0, concurrency=8))]
    fn new(
        url: String,
        model: Option<String>,
        api_key: Option<String>,
        timeout: f64,
        concurrency: usize,
    ) -> PyResult<Self> {
        let mut options = HttpScorerOptions::new(url);
        options.model = model;
        options.api_key = api_key;
        options.timeout = Duration::try_from_secs_f64(timeout)
            .ok()
            .filter(|timeout| !timeout.is_zero())
            .ok_or_else(|| {
                invalid(format!("timeout={timeout} must be a number of seconds above 0"))
            })?;
        options.concurrency = concurrency.max(1);
        HttpScorer::new(options.clone()).map_err(|error| invalid(error.to_string()))?;
        Ok(Self { options })
    }

    fn __repr__(&self) -> String {
        format!("HttpScorer({:?})", self.options.url)
    }
}

/// The scorer that an argument is: an endpoint, or a callable under its name.
pub fn from_python(py: Python<'_>, name: String, scorer: Py<PyAny>) -> PyResult<Arc<dyn Scorer>> {
    let Ok(endpoint) = scorer.bind(py).cast::<PyHttpScorer>() else {
        return Ok(Arc::new(PythonScorer::new(name, scorer)));
    };
    let scorer = HttpScorer::new(endpoint.get().options.clone());
    Ok(Arc::new(scorer.map_err(|error| invalid(error.to_string()))?))
}

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
        question: &str,
        trajectories: &[&Trajectory],
    ) -> PyResult<Vec<f32>> {
        // The gold answer is not passed to scorers.
        let objects = trajectories
            .iter()
            .map(|&trajectory| PyTrajectory::new(py, trajectory.clone(), None))
            .map(|object| object.and_then(|object| Py::new(py, object)))
            .collect::<PyResult<Vec<_>>>()?;
        let list = PyList::new(py, objects)?;
        let rewards = self.function.bind(py).call1((question, list))?;
        rewards.try_iter()?.map(|reward| reward?.extract()).collect()
    }
}

impl Scorer for PythonScorer {
    fn name(&self) -> &str {
        &self.name
    }

    fn score(
        &self,
        question: &str,
        trajectories: &[&Trajectory],
    ) -> Result<Vec<f32>, Box<dyn Error + Send + Sync>> {
        Python::attach(|py| self.call(py, question, trajectories)).map_err(Into::into)
    }
}
