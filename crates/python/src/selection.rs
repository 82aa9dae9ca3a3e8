//! Training of probes, and fitting of calibrations.

use std::path::PathBuf;

use latent_tts::calibrate::{CalibrationData, ablation};
use latent_tts::record::RunDir;
use latent_tts::training::{
    ProbeData, ProbeObserver, ProbeProgress, ProbeTrainer, ProbeTrainerOptions,
};
use latent_tts::{CancelToken, Error};
use pyo3::prelude::*;
use serde_json::json;

use crate::engine::PyEngine;
use crate::errors::{invalid, raise};
use crate::options::{QuestionTuple, Sampling, question};
use crate::waiting::{ProgressEvent, wait_for};

/// Trains a probe on the hidden states of an engine's reasoner; returns the report as JSON. Options
/// are JSON as well; `progress` receives each evaluation as JSON.
#[pyfunction]
#[pyo3(signature = (engine, out, questions, sampling, options, overwrite, progress))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of the package's method")]
pub fn train_probe(
    py: Python<'_>,
    engine: &PyEngine,
    out: PathBuf,
    questions: Vec<QuestionTuple>,
    sampling: Sampling,
    options: String,
    overwrite: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let fields = serde_json::from_str(&options).map_err(|error| invalid(error.to_string()))?;
    let options =
        ProbeTrainerOptions::from_fields(fields).map_err(|error| invalid(error.to_string()))?;
    let trainer = ProbeTrainer::new(out, options).map_err(raise)?.overwriting(overwrite);
    let questions = questions.into_iter().map(question).collect::<PyResult<Vec<_>>>()?;
    let params = engine.params(&sampling)?;
    let cancel = CancelToken::default();
    let report = wait_for(py, &cancel, progress, |events| {
        let data = ProbeData { questions: &questions, params };
        let mut observer = Evaluations(events.clone());
        trainer.run(&engine.engine, data, &mut observer, &cancel)
    })?;
    let report = report.map_err(raise)?;
    let report = json!({
        "out": report.out,
        "questions": report.questions,
        "mixed_questions": report.mixed_questions,
        "step": report.kept.step,
        "auc": report.kept.auc,
        "sampling_seconds": report.sampling_seconds,
        "training_seconds": report.training_seconds,
    });
    Ok(report.to_string())
}

/// Sends evaluations to the waiting thread, which outlives the work.
struct Evaluations(std::sync::mpsc::Sender<ProgressEvent>);

impl ProbeObserver for Evaluations {
    fn evaluated(&mut self, progress: ProbeProgress) {
        let ProbeProgress { step, loss, auc, is_kept } = progress;
        let event = json!({
            "event": "evaluation", "step": step, "loss": loss, "auc": auc, "kept": is_kept,
        });
        let _ = self.0.send(ProgressEvent::Json(event.to_string()));
    }
}

/// Fits a calibration to runs and evaluates it on others; returns the report as JSON.
#[pyfunction]
pub fn calibrate(
    py: Python<'_>,
    runs: Vec<PathBuf>,
    measure: Vec<PathBuf>,
    signals: Option<Vec<String>>,
) -> PyResult<String> {
    let work = || -> Result<serde_json::Value, Error> {
        let fitted = read(&runs)?;
        let names: Option<Vec<&str>> =
            signals.as_ref().map(|names| names.iter().map(String::as_str).collect());
        let report = latent_tts::calibrate::calibrate(&fitted, names.as_deref())?;
        let measured = if measure.is_empty() { None } else { Some(read(&measure)?) };
        let rows = match (&measured, &names) {
            (Some(measured), None) => ablation(&fitted, measured)?,
            _ => Vec::new(),
        };
        Ok(json!({
            "calibration": report.calibration,
            "samples": report.samples,
            "fitted": report.fitted,
            "measured": measured.map(|measured| measured.scores(&report.calibration)),
            "ablation": rows,
        }))
    };
    py.detach(work).map(|report| report.to_string()).map_err(raise)
}

fn read(paths: &[PathBuf]) -> Result<CalibrationData, Error> {
    let runs = paths.iter().map(RunDir::open).collect::<Result<Vec<_>, _>>()?;
    CalibrationData::read(&runs)
}
