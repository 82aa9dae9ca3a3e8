//! Voting rules that are Python callables, registered in addition to the built-in ones.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use latent_tts::Rule;
use latent_tts::aggregate::{Candidate, Signals, VoteParams, VotingRule};
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList};

use crate::errors::invalid;

/// A trajectory as passed to a rule.
#[pyclass(frozen, get_all, name = "Candidate", module = "latent_tts._core")]
pub struct PyCandidate {
    index: u32,
    answer: Option<String>,
    process_rewards: Option<Py<PyArray1<f32>>>,
    outcome_reward: Option<f32>,
    logprob: Option<f32>,
}

impl PyCandidate {
    fn new(py: Python<'_>, candidate: &dyn Candidate) -> Self {
        let rewards = candidate.process_rewards().map(<[f32]>::to_vec);
        Self {
            index: candidate.number(),
            answer: candidate.answer().map(str::to_owned),
            process_rewards: rewards.map(|rewards| rewards.into_pyarray(py).unbind()),
            outcome_reward: candidate.outcome_reward(),
            logprob: candidate.logprob(),
        }
    }
}

/// A callable that takes a list of candidates and returns the answer of the selected one, its
/// position in the list, the candidate itself, or None.
struct PythonRule {
    name: String,
    label: String,
    describe: String,
    needs: Signals,
    function: Py<PyAny>,
    failure: Mutex<Option<Arc<PyErr>>>,
}

impl PythonRule {
    fn call(&self, py: Python<'_>, candidates: &[&dyn Candidate]) -> PyResult<Option<usize>> {
        let objects = candidates.iter().map(|candidate| PyCandidate::new(py, *candidate));
        let objects = objects.map(|object| Py::new(py, object)).collect::<PyResult<Vec<_>>>()?;
        let list = PyList::new(py, &objects)?;
        let chosen = self.function.bind(py).call1((list,))?;
        if chosen.is_none() {
            return Ok(None);
        }
        if let Ok(candidate) = chosen.cast::<PyCandidate>() {
            return Ok(objects.iter().position(|object| object.is(candidate)));
        }
        if let Ok(answer) = chosen.extract::<String>() {
            return self.index_of(&answer, candidates).map(Some);
        }
        let index = match chosen.cast::<PyBool>() {
            Ok(_) => None,
            Err(_) => chosen.extract::<usize>().ok(),
        };
        match index {
            Some(index) if index < candidates.len() => Ok(Some(index)),
            Some(index) => Err(PyIndexError::new_err(format!(
                "rule {} returned index {index} of {} trajectories",
                self.name,
                candidates.len()
            ))),
            None => Err(PyTypeError::new_err(format!(
                "rule {} returned {}; expected an answer, a position in the list, a trajectory or \
                 None",
                self.name,
                chosen.repr()?
            ))),
        }
    }

    /// The position of the lowest-numbered candidate with this answer.
    fn index_of(&self, answer: &str, candidates: &[&dyn Candidate]) -> PyResult<usize> {
        let gave = |index: &usize| candidates[*index].answer() == Some(answer);
        let first = (0..candidates.len()).filter(gave).min_by_key(|i| candidates[*i].number());
        first.ok_or_else(|| {
            PyValueError::new_err(format!(
                "rule {} returned {answer:?}, which is not the answer of any trajectory",
                self.name
            ))
        })
    }
}

impl VotingRule for PythonRule {
    fn name(&self) -> &str {
        &self.name
    }

    fn label(&self) -> &str {
        &self.label
    }

    fn describe(&self) -> &str {
        &self.describe
    }

    fn needs(&self) -> Signals {
        self.needs
    }

    fn choose(&self, candidates: &[&dyn Candidate], _: &VoteParams) -> Option<usize> {
        let lock = || self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if lock().is_some() {
            return None;
        }
        Python::attach(|py| self.call(py, candidates)).unwrap_or_else(|error| {
            *lock() = Some(Arc::new(error));
            None
        })
    }

    fn take_failure(&self) -> Option<Arc<dyn Error + Send + Sync>> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map(|error| error as Arc<dyn Error + Send + Sync>)
    }
}

/// Registers a callable as a rule, replacing a registered one of the same name.
#[pyfunction]
pub fn register_rule(
    name: String,
    function: Py<PyAny>,
    label: Option<String>,
    describe: String,
    needs: Vec<String>,
) -> PyResult<()> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(invalid(format!(
            "invalid rule name {name:?}; use lowercase letters, digits and _"
        )));
    }
    let mut signals = Signals::default();
    for need in needs {
        match need.as_str() {
            "rewards" => signals.rewards = true,
            "logprobs" => signals.logprobs = true,
            _ => return Err(invalid(format!("invalid needs={need:?}; use rewards or logprobs"))),
        }
    }
    let rule = PythonRule {
        label: label.unwrap_or_else(|| name.replace('_', " ")),
        name,
        describe,
        needs: signals,
        function,
        failure: Mutex::default(),
    };
    Rule::register(Box::new(rule)).map(drop).map_err(|error| invalid(error.to_string()))
}
