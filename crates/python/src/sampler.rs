//! Samplers that are Python callables on the latents of a step.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use latent_tts::{CustomSampler, LatentSampler, ThoughtKey};
use numpy::{IntoPyArray, PyArrayMethods, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::invalid;

/// A callable that takes thoughts (rows, width) and their keys (rows, 4), which are seed, question,
/// trajectory and step, and returns thoughts of the same shape.
struct PythonSampler {
    name: String,
    function: Py<PyAny>,
    failure: Mutex<Option<Arc<PyErr>>>,
}

impl PythonSampler {
    fn call(
        &self,
        py: Python<'_>,
        keys: &[ThoughtKey],
        thoughts: &mut [f32],
        width: usize,
    ) -> PyResult<()> {
        let rows = keys.len();
        let named: Vec<u64> = keys
            .iter()
            .flat_map(|key| [key.seed, key.question.into(), key.trajectory.into(), key.step.into()])
            .collect();
        let named = named.into_pyarray(py).reshape([rows, 4])?;
        let given = thoughts.to_vec().into_pyarray(py).reshape([rows, width])?;
        let changed = self.function.bind(py).call1((given, named))?;
        let arguments = (changed, "float32");
        let changed = py.import("numpy")?.call_method1("asarray", arguments)?;
        let changed: PyReadonlyArray2<'_, f32> = changed.extract().map_err(|_| {
            PyValueError::new_err(format!("sampler {} did not return a matrix", self.name))
        })?;
        let changed = changed.as_array();
        if changed.dim() != (rows, width) {
            return Err(PyValueError::new_err(format!(
                "sampler {} returned thoughts of shape {:?}, expected ({rows}, {width})",
                self.name,
                changed.dim()
            )));
        }
        if !changed.iter().all(|element| element.is_finite()) {
            return Err(PyValueError::new_err(format!(
                "sampler {} returned non-finite thoughts",
                self.name
            )));
        }
        thoughts.iter_mut().zip(changed).for_each(|(element, changed)| *element = *changed);
        Ok(())
    }
}

impl LatentSampler for PythonSampler {
    fn name(&self) -> &str {
        &self.name
    }

    fn perturb(&self, keys: &[ThoughtKey], thoughts: &mut [f32], width: usize) {
        let lock = || self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.is_empty() || lock().is_some() {
            return;
        }
        if let Err(error) = Python::attach(|py| self.call(py, keys, thoughts, width)) {
            *lock() = Some(Arc::new(error));
        }
    }

    fn take_failure(&self) -> Option<Arc<dyn Error + Send + Sync>> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.map(|error| error as Arc<dyn Error + Send + Sync>)
    }
}

/// Registers a callable as a sampler, replacing a registered one of the same name.
#[pyfunction]
pub fn register_sampler(name: String, function: Py<PyAny>) -> PyResult<()> {
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(invalid(format!(
            "invalid sampler name {name:?}; use lowercase letters, digits and _"
        )));
    }
    let sampler = PythonSampler { name, function, failure: Mutex::default() };
    let registered = CustomSampler::register(Box::new(sampler));
    registered.map(drop).map_err(|error| invalid(error.to_string()))
}
