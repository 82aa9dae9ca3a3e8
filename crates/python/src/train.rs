//! Training of reasoners and reward models: options as JSON, progress as events.

use std::path::PathBuf;
use std::sync::mpsc::Sender;

use latent_tts::data::examples::TrainExample;
use latent_tts::training::{ModelWarning, Preset, TrainEvent};
use latent_tts::{
    CancelToken, Error, RewardTrainer, RewardTrainerOptions, RlTrainer, RlTrainerOptions,
    TrainObserver, TrainReport, Trainer, TrainerOptions,
};
use pyo3::prelude::*;
use serde_json::{Map, Value, json};

use crate::errors::{invalid, raise};
use crate::options;
use crate::waiting::{ProgressEvent, wait_for};

/// The arguments of a training, besides its options.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct TrainArguments {
    out: PathBuf,
    /// The options by name, as JSON.
    options: String,
    preset: Option<String>,
    device: String,
    dtype: Option<String>,
    threads: Option<usize>,
}

/// A question, its steps and its answer.
type ExampleTuple = (String, Vec<String>, String);

/// Trains a reasoner; returns the report as JSON. `progress` receives each event as JSON.
#[pyfunction]
pub fn train_reasoner(
    py: Python<'_>,
    arguments: TrainArguments,
    examples: Option<Vec<ExampleTuple>>,
    held_out: Option<Vec<ExampleTuple>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let fields = arguments.fields(Preset::REASONER)?;
    let options = TrainerOptions::from_fields(fields).map_err(raise)?;
    let mut trainer = Trainer::new(&arguments.out, options).map_err(raise)?;
    if let Some(examples) = examples {
        trainer = trainer.with_examples(examples.into_iter().map(example).collect());
    }
    if let Some(examples) = held_out {
        trainer = trainer.with_held_out(examples.into_iter().map(example).collect());
    }
    arguments.run(py, progress, |device, observer, cancel| trainer.run(device, observer, cancel))
}

/// Trains a reward model; returns the report as JSON. `progress` receives each event as JSON.
#[pyfunction]
pub fn train_reward(
    py: Python<'_>,
    arguments: TrainArguments,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let fields = arguments.fields(Preset::REWARD)?;
    let options = RewardTrainerOptions::from_fields(fields).map_err(raise)?;
    let trainer = RewardTrainer::new(&arguments.out, options).map_err(raise)?;
    arguments.run(py, progress, |device, observer, cancel| trainer.run(device, observer, cancel))
}

/// Trains a reasoner by reinforcement learning; returns the report as JSON. `progress` receives
/// each event as JSON.
#[pyfunction]
pub fn train_rl(
    py: Python<'_>,
    arguments: TrainArguments,
    questions: Option<Vec<ExampleTuple>>,
    held_out: Option<Vec<ExampleTuple>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let fields = arguments.fields(Preset::RL)?;
    let options = RlTrainerOptions::from_fields(fields).map_err(raise)?;
    let mut trainer = RlTrainer::new(&arguments.out, options).map_err(raise)?;
    if let Some(questions) = questions {
        trainer = trainer.with_questions(questions.into_iter().map(example).collect());
    }
    if let Some(problems) = held_out {
        trainer = trainer.with_held_out(problems.into_iter().map(example).collect());
    }
    arguments.run(py, progress, |device, observer, cancel| trainer.run(device, observer, cancel))
}

/// The options of all trainings with their defaults, as JSON: (reasoner, reward, rl).
#[pyfunction]
pub fn training_options() -> PyResult<(String, String, String)> {
    let text = |options: Result<String, serde_json::Error>| {
        options.map_err(|error| invalid(error.to_string()))
    };
    let reasoner = text(serde_json::to_string(&TrainerOptions::default()))?;
    let reward = text(serde_json::to_string(&RewardTrainerOptions::default()))?;
    Ok((reasoner, reward, text(serde_json::to_string(&RlTrainerOptions::default()))?))
}

impl TrainArguments {
    /// The given options, over those of the preset.
    fn fields(&self, command: &str) -> PyResult<Map<String, Value>> {
        let mut fields = match &self.preset {
            Some(name) => Preset::named(name, command).map_err(raise)?.fields(),
            None => Map::new(),
        };
        let given: Map<String, Value> =
            serde_json::from_str(&self.options).map_err(|error| invalid(error.to_string()))?;
        fields.extend(given);
        Ok(fields)
    }

    /// Opens the device and trains on it, without the GIL. Ctrl-C ends the training after the
    /// current step and saves its state.
    fn run(
        &self,
        py: Python<'_>,
        progress: Option<Py<PyAny>>,
        train: impl FnOnce(
            &latent_tts::Device,
            &mut dyn TrainObserver,
            &CancelToken,
        ) -> Result<TrainReport, Error>
        + Send,
    ) -> PyResult<String> {
        let device =
            options::device_options(&self.device, self.dtype.as_deref(), self.threads, false)?;
        let cancel = CancelToken::default();
        let report = wait_for(py, &cancel, progress, |events| {
            train(&device.open()?, &mut TrainEventSender(events), &cancel)
        })?;
        let TrainReport { out, finished, seconds, kept, .. } = report.map_err(raise)?;
        let report = json!({ "out": out, "finished": finished, "seconds": seconds, "kept": kept });
        Ok(report.to_string())
    }
}

fn example((question, steps, answer): ExampleTuple) -> TrainExample {
    TrainExample { question, steps, answer }
}

/// Sends events to the waiting thread, which outlives the work.
struct TrainEventSender<'a>(&'a Sender<ProgressEvent>);

impl TrainEventSender<'_> {
    fn send(&self, event: &Value) {
        let _ = self.0.send(ProgressEvent::Json(event.to_string()));
    }
}

impl TrainObserver for TrainEventSender<'_> {
    fn note(&mut self, text: &str) {
        self.send(&json!({ "event": "note", "text": text }));
    }

    fn warning(&mut self, warning: &ModelWarning) {
        self.send(&json!({ "event": "warning", "text": warning.to_string() }));
    }

    fn event(&mut self, event: &TrainEvent<'_>) {
        self.send(&match event {
            TrainEvent::Resumed { steps } => json!({ "event": "resumed", "steps": steps }),
            TrainEvent::Stepped { steps, total, record, seconds } => json!({
                "event": "step", "steps": steps, "total": total, "seconds": seconds,
                "record": record,
            }),
            TrainEvent::Evaluated { record, seconds } => {
                json!({ "event": "evaluation", "seconds": seconds, "record": record })
            }
        });
    }
}
