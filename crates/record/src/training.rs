//! The records of a training run: one per optimizer step and per evaluation.
//!
//! The trainer writes them, the report reads them.
//!
//! ```text
//! DIR/training/log.jsonl        one line per optimizer step
//!              evals.jsonl      one line per evaluation on held-out data
//!              timings.jsonl    seconds of each step and evaluation
//!              settings.json    the settings that determine the trained weights
//! ```
//!
//! `log.jsonl` and `evals.jsonl` contain no times: a killed and resumed training run produces the
//! same bytes as an uninterrupted one.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

pub use schema::{EvalRecord, Losses, StepRecord, TrainTiming};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{FieldError, RecordError};
use crate::lines::JsonLines;
use crate::sample::Validate;

/// The directory of a training run's records, inside the directory of its model.
pub const TRAINING_DIR: &str = "training";
/// The file with the training state, in the directory of records. Its content is defined by the
/// trainer.
pub const STATE_FILE: &str = "state.safetensors";
const LOG_FILE: &str = "log.jsonl";
const EVALS_FILE: &str = "evals.jsonl";
const TIMINGS_FILE: &str = "timings.jsonl";
const SETTINGS_FILE: &str = "settings.json";

impl Validate for StepRecord {
    fn validate(&self) -> Result<(), FieldError> {
        Ok(())
    }
}

impl Validate for EvalRecord {
    fn validate(&self) -> Result<(), FieldError> {
        Ok(())
    }
}

impl Validate for TrainTiming {
    fn validate(&self) -> Result<(), FieldError> {
        Ok(())
    }
}

/// The directory `training` of a model, which contains its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainingDir {
    path: PathBuf,
}

impl TrainingDir {
    /// Finds the records below `path`, a model's directory or the directory `training` inside it;
    /// `None` if neither contains a log.
    pub fn find(path: &Path) -> Option<Self> {
        [path.join(TRAINING_DIR), path.to_owned()]
            .into_iter()
            .find(|dir| dir.join(LOG_FILE).is_file())
            .map(|path| Self { path })
    }

    /// The records in this directory, whether or not they have been written yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `log.jsonl`.
    pub fn log_file(&self) -> PathBuf {
        self.path.join(LOG_FILE)
    }

    /// `evals.jsonl`.
    pub fn evals_file(&self) -> PathBuf {
        self.path.join(EVALS_FILE)
    }

    /// `timings.jsonl`.
    pub fn timings_file(&self) -> PathBuf {
        self.path.join(TIMINGS_FILE)
    }

    /// `settings.json`.
    pub fn settings_file(&self) -> PathBuf {
        self.path.join(SETTINGS_FILE)
    }

    /// Every step, in order.
    pub fn steps(&self) -> Result<Vec<StepRecord>, RecordError> {
        read_lines(&self.log_file())
    }

    /// Every evaluation, in order.
    pub fn evals(&self) -> Result<Vec<EvalRecord>, RecordError> {
        read_lines(&self.evals_file())
    }

    /// The time of every step, in order.
    pub fn timings(&self) -> Result<Vec<TrainTiming>, RecordError> {
        read_lines(&self.timings_file())
    }

    /// The settings, or null if they were not recorded.
    pub fn settings(&self) -> Result<Value, RecordError> {
        let path = self.settings_file();
        match crate::files::read_regular(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|source| RecordError::Json {
                path,
                line: source.line(),
                source,
            }),
            Err(source) if source.kind() == ErrorKind::NotFound => Ok(Value::Null),
            Err(source) => Err(RecordError::Read { path, source }),
        }
    }
}

/// All records of a file; none if it is missing.
fn read_lines<T: DeserializeOwned + Validate>(path: &Path) -> Result<Vec<T>, RecordError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    JsonLines::open(path, None)?.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use serde_json::json;

    #[test]
    fn a_training_is_found_from_its_model_and_from_its_own_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(TrainingDir::find(dir.path()), None);
        let training = dir.path().join(TRAINING_DIR);
        fs::create_dir(&training).unwrap();
        let line = r#"{"step":0,"loss":2.0,"rate":0.1,"norm":1.0,"seconds":0.5}"#;
        fs::write(training.join(LOG_FILE), format!("{line}\n{{\"step\":1,\"lo")).unwrap();
        for path in [dir.path(), &training] {
            let found = TrainingDir::find(path).unwrap();
            let steps = found.steps().unwrap();
            assert_eq!(steps.len(), 1, "the line that is being written is left out");
            assert_eq!(steps[0].losses.names().collect::<Vec<_>>(), ["loss"]);
            assert_eq!((found.evals().unwrap().len(), found.settings().unwrap()), (0, Value::Null));
        }
        let damaged = json!({ "step": 0, "loss": "two", "rate": 0, "norm": 0 });
        fs::write(training.join(LOG_FILE), format!("{damaged}\n")).unwrap();
        let error = TrainingDir::new(training).steps().unwrap_err();
        assert!(error.to_string().contains("log.jsonl:1"), "{error}");
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("loss is not a number"), "{source}");
    }
}
