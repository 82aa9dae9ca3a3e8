//! Conversion of pickled checkpoints.

use std::path::PathBuf;

use latent_tts::convert::Converter;
use pyo3::prelude::*;

use crate::errors::{invalid, raise_loading};

/// Converts files and directories with such files; returns the report as JSON.
#[pyfunction]
pub fn convert(
    py: Python<'_>,
    inputs: Vec<PathBuf>,
    out: PathBuf,
    base: Option<String>,
    lora_alpha: Option<f64>,
    overwrite: bool,
) -> PyResult<String> {
    let base = base.as_deref();
    let converter = Converter { inputs: &inputs, out: &out, base, lora_alpha, overwrite };
    let report = py.detach(|| converter.run()).map_err(raise_loading)?;
    serde_json::to_string(&report).map_err(|error| invalid(error.to_string()))
}
