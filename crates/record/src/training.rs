//! The records of a training: what every step and every evaluation on the way gave.
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
//! `log.jsonl` and `evals.jsonl` hold no clock: a killed and resumed training ends with the bytes
//! of an uninterrupted one.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::error::{FieldError, RecordError};
use crate::lines::JsonLines;
use crate::sample::Validate;

/// The directory of a training's records, inside the directory of its model.
pub const TRAINING_DIR: &str = "training";
/// The file of a training's state, in its directory of records. Its content is the trainer's.
pub const STATE_FILE: &str = "state.safetensors";
const LOG_FILE: &str = "log.jsonl";
const EVALS_FILE: &str = "evals.jsonl";
const TIMINGS_FILE: &str = "timings.jsonl";
const SETTINGS_FILE: &str = "settings.json";

/// One line of `log.jsonl`: an optimizer step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step, counted from 0.
    pub step: u32,
    /// The losses, averaged over the micro-batches.
    #[serde(flatten)]
    pub losses: Losses,
    /// The learning rate; `rate` in the logs of earlier versions.
    #[serde(alias = "rate")]
    pub lr: f64,
    /// The global gradient norm before clipping; `norm` in the logs of earlier versions.
    #[serde(alias = "norm")]
    pub grad_norm: f64,
    /// Examples of all micro-batches together.
    #[serde(rename = "n_examples", default, skip_serializing_if = "Option::is_none")]
    pub examples: Option<u64>,
    /// Positions fed to the decoder, of all micro-batches together.
    #[serde(rename = "n_tokens", default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
}

/// The unweighted mean losses of a batch by name, in the order of the log. `loss` is the one that
/// is minimised, the others are the auxiliary losses of the method.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Losses(Vec<(String, f64)>);

impl Losses {
    /// The minimised loss alone.
    pub fn new(loss: f64) -> Self {
        Self(vec![("loss".to_owned(), loss)])
    }

    /// With an auxiliary loss, if there is one.
    pub fn with(mut self, name: &str, loss: impl Into<Option<f64>>) -> Self {
        self.0.extend(loss.into().map(|loss| (name.to_owned(), loss)));
        self
    }

    /// The loss of this name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, loss)| *loss)
    }

    /// The names. `seconds`, which logs before `timings.jsonl` had, is not a loss.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name).filter(|name| *name != "seconds")
    }

    /// The losses with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, loss)| (name.as_str(), *loss))
    }

    /// Whether every loss is a finite number.
    pub fn is_finite(&self) -> bool {
        self.iter().all(|(_, loss)| loss.is_finite())
    }

    /// Adds the losses of one of `count` micro-batches, so that the sum over all is their mean.
    pub fn add_mean_of(&mut self, part: &Self, count: f64) {
        for (name, loss) in part.iter() {
            match self.0.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += loss / count,
                None => self.0.push((name.to_owned(), loss / count)),
            }
        }
    }
}

impl Serialize for Losses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Losses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = Map::<String, Value>::deserialize(deserializer)?;
        let number = |(name, value): (String, Value)| match value.as_f64() {
            Some(loss) => Ok((name, loss)),
            None => Err(D::Error::custom(format!("{name} is not a number"))),
        };
        entries.into_iter().map(number).collect::<Result<_, _>>().map(Self)
    }
}

/// One line of `evals.jsonl`: an evaluation on held-out data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    /// Steps done before it.
    pub step: u32,
    /// The metric that decides which model is kept; higher is better.
    pub score: f64,
    /// Whether the model was saved: the directory holds the model of the last such line.
    pub kept: bool,
    /// All metrics by name.
    pub metrics: Map<String, Value>,
}

/// One line of `timings.jsonl`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainTiming {
    /// The step, counted from 0.
    pub step: u32,
    /// Seconds of the step, without the evaluation.
    pub seconds: f64,
    /// Seconds of the evaluation after it, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_seconds: Option<f64>,
}

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

/// The directory `training` of a model, which holds its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrainingDir {
    path: PathBuf,
}

impl TrainingDir {
    /// The records below `path`, a model's directory or the directory `training` inside it; `None`
    /// if neither holds a log.
    pub fn find(path: &Path) -> Option<Self> {
        [path.join(TRAINING_DIR), path.to_owned()]
            .into_iter()
            .find(|dir| dir.join(LOG_FILE).is_file())
            .map(|path| Self { path })
    }

    /// The records in this directory, whether they are written yet or not.
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
    fn any_number_of_losses_makes_the_round_trip_in_their_order() {
        let line = r#"{"step":3,"loss":1.5,"student":1.25,"distill":0.25,"lr":0.001,"grad_norm":0.5,"n_tokens":96}"#;
        let record: StepRecord = serde_json::from_str(line).unwrap();
        assert_eq!((record.losses.get("distill"), record.tokens), (Some(0.25), Some(96)));
        assert_eq!(record.losses.names().collect::<Vec<_>>(), ["loss", "student", "distill"]);
        assert_eq!(serde_json::to_string(&record).unwrap(), line);
        let earlier = line.replace("\"lr\"", "\"rate\"").replace("\"grad_norm\"", "\"norm\"");
        assert_eq!(serde_json::from_str::<StepRecord>(&earlier).unwrap(), record);
    }

    #[test]
    fn losses_of_micro_batches_are_averaged() {
        let mut mean = Losses::default();
        mean.add_mean_of(&Losses::new(1.0).with("digits", 3.0), 2.0);
        mean.add_mean_of(&Losses::new(2.0).with("digits", None), 2.0);
        assert_eq!(mean, Losses::new(1.5).with("digits", 1.5));
        assert!(mean.is_finite() && !Losses::new(f64::NAN).is_finite());
    }

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
