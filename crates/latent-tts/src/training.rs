//! Training of reasoners ([`Trainer`]), of reward models over their thoughts ([`RewardTrainer`]),
//! and of reasoners by reinforcement learning ([`RlTrainer`]).
//!
//! ```no_run
//! use latent_tts::training::{Trainer, TrainerOptions};
//! use latent_tts::{CancelToken, DeviceOptions};
//!
//! let mut options = TrainerOptions::preset("tiny")?;
//! options.training.seed = 7;
//! let device = DeviceOptions::default().open()?;
//! let trainer = Trainer::new("models/tiny", options)?;
//! let trained = trainer.run(&device, &mut (), &CancelToken::default())?;
//! println!("{:?}", trained.kept);
//! # Ok::<(), latent_tts::Error>(())
//! ```
//!
//! `examples` reads and validates the training data of a reasoner. `reasoner`, `reward` and `rl`
//! convert their options to a task. This module contains the shared parts: the output directory,
//! the settings of the loop, and its events. The training itself is in [`train`], where a new
//! training method is one file.

mod examples;
mod probe;
mod reasoner;
mod reward;
mod rl;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use engine::CancelToken;

use model::ModelFiles;
use record::files::{ExistingModel, InputPaths, ModelDir};
use record::{EvalRecord, TrainingDir};
use report::{ReportError, ReportOptions};
use serde_json::{Map, Value, json};
use tensor::Device;
use train::TrainError;
use train::schedule::{LrSchedule, Optimizer};
use train::trainer::{
    TrainConfig, TrainLoop, TrainMemory, TrainOutcome, TrainSettings, TrainTask, check_state,
};

use crate::Error;

pub use model::ModelWarning;
pub use probe::{ProbeData, ProbeObserver, ProbeReport, ProbeTrainer};
pub use reasoner::Trainer;
pub use reward::RewardTrainer;
pub use rl::RlTrainer;
pub use train::methods::{METHODS, MethodEntry, TrainingMethod};
pub use train::options::{
    CurriculumKind, LoraOptions, MethodOptions, PolicyOptions, Preset, ReasonerMode,
    RewardTrainerOptions, RlTrainerOptions, RolloutOptions, TrainerOptions, TrainingOptions,
    Warmup, WeightedData,
};
pub use train::probe::{ProbeProgress, ProbeTrainerOptions};
pub use train::trainer::TrainEvent;

/// Callbacks for the progress of a training.
pub trait TrainObserver {
    /// A note about the data, the memory or the result. Option names are in backticks.
    fn note(&mut self, _text: &str) {}

    /// The initial model has a problem that does not prevent its use.
    fn warning(&mut self, _warning: &ModelWarning) {}

    /// A step or an evaluation was completed.
    fn event(&mut self, _event: &TrainEvent<'_>) {}
}

/// Ignores all events.
impl TrainObserver for () {}

/// The result of a training.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TrainReport {
    /// The directory of the model.
    pub out: PathBuf,
    /// Whether training is complete, by the number of steps or by early stopping. Otherwise it was
    /// cancelled and its state was saved.
    pub finished: bool,
    /// Seconds spent in steps and evaluations by this call.
    pub seconds: f64,
    /// The evaluation of the saved model, if there was one.
    pub kept: Option<EvalRecord>,
}

/// The callbacks and the cancellation token of a training.
struct TrainControl<'a> {
    observer: &'a mut dyn TrainObserver,
    cancel: &'a CancelToken,
}

/// The output directory of a training. It is checked before anything is read and locked before
/// anything is written.
struct TrainOutput<'a> {
    dir: &'a Path,
    inputs: InputPaths,
    existing: ExistingModel,
}

impl<'a> TrainOutput<'a> {
    /// Fails if the output directory is an input, or if it contains a model and the options neither
    /// continue nor replace it.
    fn check(dir: &'a Path, options: &TrainingOptions, inputs: InputPaths) -> Result<Self, Error> {
        let existing = match (options.resume, options.overwrite) {
            (true, true) => {
                let reason = "`resume` continues a training and `overwrite` replaces it; pass one";
                return Err(TrainError::Options { reason: reason.to_owned() }.into());
            }
            (true, false) => ExistingModel::Resume,
            (false, true) => ExistingModel::Overwrite,
            (false, false) => ExistingModel::Refuse,
        };
        if options.change_optimizer && !options.resume {
            let reason = "`change_optimizer` applies to a resumed training; pass `resume` as well";
            return Err(TrainError::Options { reason: reason.to_owned() }.into());
        }
        ModelDir::check(dir, &inputs, existing)?;
        Ok(Self { dir, inputs, existing })
    }

    /// Fails if the training to resume had other settings.
    fn check_settings(&self, config: &TrainConfig) -> Result<(), Error> {
        match self.existing {
            ExistingModel::Resume => Ok(check_state(config)?),
            ExistingModel::Refuse | ExistingModel::Overwrite => Ok(()),
        }
    }

    /// Locks the directory for this process.
    fn claim(&self) -> Result<ModelDir, Error> {
        Ok(ModelDir::claim(self.dir, &self.inputs, self.existing)?)
    }
}

/// The paths of models, including the bases of adapters.
fn model_paths<'m>(
    models: impl IntoIterator<Item = &'m ModelFiles>,
) -> Result<Vec<PathBuf>, Error> {
    let mut paths = Vec::new();
    for model in models {
        let chain = model
            .chain()?
            .into_iter()
            .filter(|files| !matches!(files, ModelFiles::Embedded(_) | ModelFiles::Memory(_)));
        paths.extend(chain.map(|files| files.path().to_owned()));
    }
    Ok(paths)
}

/// The settings of the loop.
fn train_config(out: &Path, options: &TrainingOptions, settings: TrainSettings) -> TrainConfig {
    let steps = options.steps.get();
    let schedule = LrSchedule {
        peak: options.lr,
        warmup: options.warmup.steps(steps),
        steps,
        min_ratio: options.min_lr_ratio,
    };
    TrainConfig {
        optimizer: Optimizer {
            schedule,
            betas: (0.9, options.beta2),
            eps: 1e-8,
            weight_decay: options.weight_decay,
            decay_all: false,
            clip: (options.clip > 0.0).then_some(options.clip),
        },
        accumulation_steps: options.accumulate.get(),
        dir: out.join(record::TRAINING_DIR),
        save_every: options.save_every,
        eval_every: options.eval_every,
        keep: options.keep,
        patience: options.patience,
        max_loss_ratio: (options.max_loss_ratio > 0.0).then_some(options.max_loss_ratio),
        settings,
        change_optimizer: options.change_optimizer,
    }
}

/// Every setting that determines the trained weights, of the model and the loop. `inputs` is the
/// digest of the input files.
fn train_settings(model: Value, options: &TrainingOptions, inputs: String) -> TrainSettings {
    let shared = json!({
        "steps": options.steps,
        "batch": options.batch,
        "accumulate": options.accumulate,
        "dropout": options.dropout,
        "seed": options.seed,
    });
    let optimizer = json!({
        "lr": options.lr,
        "warmup": options.warmup.steps(options.steps.get()),
        "min_lr_ratio": options.min_lr_ratio,
        "weight_decay": options.weight_decay,
        "beta2": options.beta2,
        "clip": options.clip,
    });
    TrainSettings {
        fixed: [model, shared].into_iter().flat_map(entries).collect(),
        optimizer: entries(optimizer),
        inputs,
    }
}

/// The settings of an adapter that determine the trained weights.
fn lora_settings(lora: &LoraOptions) -> Value {
    let LoraOptions { rank, alpha, dropout, targets, start, .. } = lora;
    let start = start.map(|start| json!(start));
    [json!(rank), json!(alpha), json!(dropout), json!(targets)].into_iter().chain(start).collect()
}

/// The entries of a JSON object, with shortened floats.
fn entries(value: Value) -> Map<String, Value> {
    match shorten_floats(value) {
        Value::Object(entries) => entries,
        _ => Map::new(),
    }
}

/// Writes numbers that were f32 with the shortest decimal: 0.1 instead of 0.10000000149011612.
fn shorten_floats(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let wide = number.as_f64().unwrap_or_default();
            let narrow = wide as f32;
            let short = narrow.to_string().parse().ok().filter(|_| f64::from(narrow) == wide);
            json!(short.unwrap_or(wide))
        }
        Value::Array(items) => items.into_iter().map(shorten_floats).collect(),
        Value::Object(entries) => {
            entries.into_iter().map(|(name, value)| (name, shorten_floats(value))).collect()
        }
        other => other,
    }
}

/// Runs the loop, and plots the learning curves after every evaluation and at the end.
fn run_loop(
    out: &Path,
    task: &mut dyn TrainTask,
    device: &Device,
    config: &TrainConfig,
    control: TrainControl<'_>,
) -> Result<TrainReport, Error> {
    let TrainControl { observer, cancel } = control;
    let memory = TrainMemory::of(task, device)?;
    observer.note(&memory.to_string());
    memory.check()?;
    observer.note(&disk_note(&memory, config));
    observer.note("preparing the first batches; the first step may take longer than the others");
    let started = Instant::now();
    let outcome = TrainLoop { device, config }.run(task, &mut |event| {
        observer.event(&event);
        if matches!(event, TrainEvent::Evaluated { .. }) {
            write_page(config, observer);
        }
        match cancel.is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })?;
    let seconds = started.elapsed().as_secs_f64();
    write_page(config, observer);
    Ok(TrainReport {
        out: out.to_owned(),
        finished: outcome == TrainOutcome::Finished,
        seconds,
        kept: TrainingDir::new(&config.dir).evals()?.into_iter().rfind(|eval| eval.kept),
    })
}

/// Plots the learning curves so far. A failure does not stop the training.
fn write_page(config: &TrainConfig, observer: &mut dyn TrainObserver) {
    let options = ReportOptions { page_only: true, ..ReportOptions::default() };
    match report::write_trainings(&[TrainingDir::new(&config.dir)], &config.dir, options) {
        // The log is written in blocks of several steps; the page is written again at the end.
        Ok(_) | Err(ReportError::NoSteps { .. }) => {}
        Err(error) => observer.note(&format!("note: cannot plot the learning curves: {error}")),
    }
}

/// The disk space of the training state, in addition to the model.
fn disk_note(memory: &TrainMemory, config: &TrainConfig) -> String {
    // Parameters and both moments, in f32.
    let size = match (12 * memory.trained) as f64 {
        bytes if bytes < 1e6 => format!("{:.0} kB", bytes / 1e3),
        bytes if bytes < 1e9 => format!("{:.0} MB", bytes / 1e6),
        bytes => format!("{:.1} GB", bytes / 1e9),
    };
    format!(
        "the training state uses {size} of disk space in {}; it can be deleted after training",
        config.dir.display()
    )
}
