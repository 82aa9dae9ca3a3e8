//! Training of reasoners ([`Trainer`]) and of reward models over their thoughts
//! ([`RewardTrainer`]).
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
//! `examples` reads and checks the data of a reasoner, `reasoner` and `reward` make a task of the
//! options; here is what they share: the output directory, the settings of the loop, its events.
//! Everything below is in [`train`], to which a training method is added as one file.

mod examples;
mod reasoner;
mod reward;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use engine::CancelToken;

use record::{DirLock, EvalRecord, TrainingDir};
use report::{ReportError, ReportOptions};
use serde_json::{Map, Value, json};
use tensor::Device;
use train::TrainError;
use train::schedule::{LrSchedule, Optimizer};
use train::trainer::{
    STATE_FILE, TrainConfig, TrainLoop, TrainMemory, TrainOutcome, TrainSettings, TrainTask,
};

use crate::Error;

pub use model::ModelWarning;
pub use reasoner::Trainer;
pub use reward::RewardTrainer;
pub use train::methods::{METHODS, MethodEntry, TrainingMethod};
pub use train::options::{
    CurriculumKind, LoraOptions, MethodOptions, Preset, ReasonerMode, RewardTrainerOptions,
    TrainerOptions, TrainingOptions, Warmup, WeightedData,
};
pub use train::trainer::TrainEvent;

/// Callbacks for the progress of a training.
pub trait TrainObserver {
    /// A sentence about the data, the memory or the result. Names of options stand in backticks.
    fn note(&mut self, _text: &str) {}

    /// The initial model has a flaw that does not keep it from being used.
    fn warning(&mut self, _warning: &ModelWarning) {}

    /// A step or an evaluation is done.
    fn event(&mut self, _event: &TrainEvent<'_>) {}
}

/// Observes nothing.
impl TrainObserver for () {}

/// The result of a training.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TrainReport {
    /// The directory of the model.
    pub out: PathBuf,
    /// Whether all steps are done, or early stopping ended them; otherwise it was cancelled, and
    /// its state is saved.
    pub finished: bool,
    /// Seconds of this call's steps and evaluations.
    pub seconds: f64,
    /// The evaluation of the model that is kept, if there was one.
    pub kept: Option<EvalRecord>,
}

/// The callbacks and the cancellation of a training.
struct TrainControl<'a> {
    observer: &'a mut dyn TrainObserver,
    cancel: &'a CancelToken,
}

/// Refuses an output directory that must not be written. Every check of `--out` is here, and runs
/// before anything is read or written.
fn check_out(out: &Path, options: &TrainingOptions) -> Result<(), Error> {
    let has_state = out.join(record::TRAINING_DIR).join(STATE_FILE).exists();
    if has_state && !options.resume {
        return Err(Error::TrainingExists { dir: out.to_owned() });
    }
    if options.change_optimizer && !options.resume {
        let reason = "`change_optimizer` is for a training that is resumed; pass `resume` too";
        return Err(TrainError::Options { reason: reason.to_owned() }.into());
    }
    Ok(())
}

/// Locks the directory of a training, and removes the temporary files of one that was killed.
fn lock_out(out: &Path) -> Result<DirLock, Error> {
    let lock = record::lock_dir(out)?;
    let dir = out.join(record::TRAINING_DIR);
    record::files::remove_strays(&dir).map_err(|error| Error::Unreadable { path: dir, error })?;
    Ok(lock)
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

/// Every setting that determines the trained weights: those of the model and those of the loop.
/// `inputs` is the digest of what is read.
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

/// The entries of a JSON object, for people to read.
fn entries(value: Value) -> Map<String, Value> {
    match shorten_floats(value) {
        Value::Object(entries) => entries,
        _ => Map::new(),
    }
}

/// Writes every number that was an f32 with the digits of an f32: 0.1 for 0.10000000149011612.
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

/// Runs the loop, and draws the learning curves after every evaluation and at the end.
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

/// Draws the learning curves so far. A training goes on without its page.
fn write_page(config: &TrainConfig, observer: &mut dyn TrainObserver) {
    let options = ReportOptions { page_only: true, ..ReportOptions::default() };
    match report::write_trainings(&[TrainingDir::new(&config.dir)], &config.dir, options) {
        // The log is written some steps at a time: there will be a page at the end.
        Ok(_) | Err(ReportError::NoSteps { .. }) => {}
        Err(error) => observer.note(&format!("note: no page of learning curves: {error}")),
    }
}

/// The disk space that the training state takes, beside the model itself.
fn disk_note(memory: &TrainMemory, config: &TrainConfig) -> String {
    // Parameters and both moments, in float32.
    let size = match (12 * memory.trained) as f64 {
        bytes if bytes < 1e6 => format!("{:.0} kB", bytes / 1e3),
        bytes if bytes < 1e9 => format!("{:.0} MB", bytes / 1e6),
        bytes => format!("{:.1} GB", bytes / 1e9),
    };
    format!(
        "the state of the training takes {size} of disk in {}; it can be deleted when the training \
         is done",
        config.dir.display()
    )
}
