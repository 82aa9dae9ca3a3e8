//! Ablations: the accuracy of greedy runs with replaced thoughts.

use latent_tts::{Ablator, CancelToken};
use pyo3::prelude::*;

use crate::engine::PyEngine;
use crate::errors::{invalid, raise};
use crate::options::{self, FieldTuple, Sampling, positive};
use crate::waiting::wait_for;

/// The keyword arguments of an ablation.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct AblateArguments {
    data: String,
    /// The names of the fields for question, answer and steps.
    fields: FieldTuple,
    limit: Option<usize>,
    default_count: usize,
    kinds: Vec<String>,
}

/// Answers all questions with their own thoughts and with each replacement; returns accuracies and
/// answers as JSON.
#[pyfunction]
pub fn ablate(
    py: Python<'_>,
    engine: &PyEngine,
    arguments: AblateArguments,
    sampling: Sampling,
) -> PyResult<String> {
    let limit = arguments.limit.map(|limit| positive("limit", limit)).transpose()?;
    let data = options::data_source(&arguments.data, arguments.fields.clone()).map_err(raise)?;
    let kinds = arguments.kinds.iter().map(|name| options::ablation(name));
    let kinds = kinds.collect::<PyResult<Vec<_>>>()?;
    let params = sampling.0.resolve(&engine.engine.reasoner().method).map_err(raise)?;
    let ablation = wait_for(py, &CancelToken::default(), None, |_| {
        let questions = data.read(limit, arguments.default_count)?;
        Ablator { kinds: &kinds, params }.run(&engine.engine, &questions)
    })?;
    serde_json::to_string(&ablation.map_err(raise)?).map_err(|error| invalid(error.to_string()))
}
