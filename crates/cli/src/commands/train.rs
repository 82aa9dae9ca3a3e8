//! `latent-tts train`: the training loop that `train reasoner` and `train reward` share.

mod data;
mod progress;
mod reasoner;
mod reward;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, ensure};
use model::ModelFiles;
use model::save::SaveDtype;
use record::files::ExistingModel;
use record::{EvalRecord, TrainingDir};
use serde_json::{Map, Value, json};
use tensor::Device;
use train::schedule::{LrSchedule, Optimizer};
use train::trainer::{
    KeepPolicy, TrainConfig, TrainMemory, TrainOutcome, TrainSettings, TrainTask, Trainer,
};

use crate::args::{DeviceArgs, DtypeKind, KeepKind, StoredDtypeKind, TrainCommand, TrainingArgs};
use crate::interrupt;
use crate::printer::{Printer, format_duration};
use progress::TrainProgress;

/// Runs `train reasoner` or `train reward`.
pub fn run(command: &TrainCommand) -> Result<ExitCode> {
    match command {
        TrainCommand::Reasoner(args) => reasoner::run(args, &Printer::new(&args.output)),
        TrainCommand::Reward(args) => reward::run(args, &Printer::new(&args.output)),
    }
}

/// The trainer's configuration; `settings` holds every setting that determines the trained weights.
fn train_config(args: &TrainingArgs, out: &Path, settings: TrainSettings) -> TrainConfig {
    let dir = out.join(record::TRAINING_DIR);
    let schedule = LrSchedule {
        peak: args.lr,
        warmup: args.warmup.steps(args.steps.get()),
        steps: args.steps.get(),
        floor: args.floor,
    };
    TrainConfig {
        optimizer: Optimizer {
            schedule,
            betas: (0.9, args.beta2),
            eps: 1e-8,
            weight_decay: args.weight_decay,
            decay_all: false,
            clip: (args.clip > 0.0).then_some(args.clip),
        },
        accumulation_steps: args.accumulate.get(),
        dir,
        save_every: args.save_every,
        eval_every: args.eval_every,
        keep: match args.keep {
            KeepKind::Best => KeepPolicy::Best,
            KeepKind::Last => KeepPolicy::Last,
        },
        patience: args.patience,
        max_loss_ratio: (args.max_loss_ratio > 0.0).then_some(args.max_loss_ratio),
        settings,
        change_optimizer: args.change_optimizer,
    }
}

/// What the flags say about a model that is in `--out` already.
fn existing_model(args: &TrainingArgs) -> ExistingModel {
    match (args.resume, args.overwrite) {
        (true, _) => ExistingModel::Resume,
        (_, true) => ExistingModel::Overwrite,
        _ => ExistingModel::Refuse,
    }
}

/// The paths of models, those below an adapter included.
fn model_paths<'a>(models: impl IntoIterator<Item = &'a ModelFiles>) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for model in models {
        let on_disk = model.chain()?.into_iter().filter(|m| !matches!(m, ModelFiles::Embedded(_)));
        paths.extend(on_disk.map(|model| model.path().to_owned()));
    }
    Ok(paths)
}

fn weight_dtype(dtype: StoredDtypeKind) -> SaveDtype {
    match dtype {
        StoredDtypeKind::F32 => SaveDtype::F32,
        StoredDtypeKind::Bf16 => SaveDtype::Bf16,
    }
}

/// Opens the device of a training, which needs gradients.
fn open_device(args: &DeviceArgs, printer: &Printer) -> Result<Device> {
    ensure!(
        args.dtype != Some(DtypeKind::Int8),
        "--dtype int8 has no gradients; a processor trains in f32, so leave --dtype out"
    );
    let device = args.open(printer)?;
    check_gradients(args, &device)?;
    // Those that prepare batches while the device computes.
    tensor::start_global_threads(args.threads)?;
    Ok(device)
}

/// Refuses a precision without gradients, and a promise that they do not keep.
pub(super) fn check_gradients(args: &DeviceArgs, device: &Device) -> Result<()> {
    ensure!(
        args.dtype != Some(DtypeKind::Fp8),
        "--dtype fp8 has no gradients; pass --dtype bf16 or leave it out"
    );
    ensure!(
        !args.deterministic || !device.is_cuda(),
        "--deterministic does not hold for a GPU's gradients, whose sums over rows have no fixed \
         order; leave it out, or pass --device cpu"
    );
    Ok(())
}

/// Where a model goes, and the command that uses it.
struct Destination<'a> {
    out: &'a Path,
    next: String,
}

/// The disk that the training state takes, beside the model itself.
fn disk_note(memory: &TrainMemory, config: &TrainConfig) -> String {
    // Parameters and both moments, in float32.
    let bytes = 12 * memory.trained;
    format!(
        "the state of the training takes {} of disk in {}; it can be deleted when the training is \
         done",
        format_bytes(bytes),
        config.dir.display()
    )
}

/// Bytes in the largest suitable unit.
fn format_bytes(bytes: u64) -> String {
    match bytes as f64 {
        b if b < 1e6 => format!("{:.0} kB", b / 1e3),
        b if b < 1e9 => format!("{:.0} MB", b / 1e6),
        b => format!("{:.1} GB", b / 1e9),
    }
}

/// What was trained, how good it is, and what to do with it.
fn finished_text(out: &Path, seconds: f64, kept: Option<&EvalRecord>, next: String) -> String {
    let eval = kept.map(|eval| format!("{}\n", progress::eval_sentence(eval))).unwrap_or_default();
    format!(
        "{} is trained ({})\n{eval}learning curves are in {}\nnext: {next}",
        out.display(),
        format_duration(seconds),
        out.join(record::TRAINING_DIR).join("report.html").display()
    )
}

/// Trains `task` with progress output, and prints its outcome.
fn run_training(
    task: &mut dyn TrainTask,
    device: &Device,
    config: &TrainConfig,
    printer: &Printer,
    Destination { out, next }: Destination<'_>,
) -> Result<ExitCode> {
    let memory = TrainMemory::of(task, device)?;
    printer.note(&memory.to_string());
    memory.check()?;
    printer.note(&disk_note(&memory, config));
    printer.note("preparing the first batches; the first step may take longer than the others");
    let stop = Arc::new(AtomicBool::new(false));
    interrupt::set_flag_on_signal(&stop)?;
    let (started, mut progress) = (Instant::now(), TrainProgress::new(printer, config, device));
    let outcome = Trainer { device, config }.run(task, &mut |event| {
        progress.show(&event);
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    let seconds = started.elapsed().as_secs_f64();
    progress.finish();
    let summary = json!({
        "out": out,
        "seconds": seconds,
        "finished": outcome == TrainOutcome::Finished,
        "held_out": kept_metrics(config)?,
    });
    match outcome {
        TrainOutcome::Finished => {
            let kept = kept_eval(config)?;
            printer.result(&summary, || finished_text(out, seconds, kept.as_ref(), next))?;
            Ok(ExitCode::SUCCESS)
        }
        TrainOutcome::Interrupted => {
            printer.note(interrupt::message("interrupted; the state is saved").trim_start());
            Ok(ExitCode::from(interrupt::INTERRUPTED))
        }
    }
}

/// The evaluation of the model that is kept, if there was one.
fn kept_eval(config: &TrainConfig) -> Result<Option<EvalRecord>> {
    let evals = TrainingDir::new(&config.dir).evals()?;
    Ok(evals.into_iter().rfind(|eval| eval.kept))
}

/// Metrics of the model that is kept, with its step; empty without an evaluation.
fn kept_metrics(config: &TrainConfig) -> Result<Map<String, Value>> {
    let Some(kept) = kept_eval(config)? else { return Ok(Map::new()) };
    Ok(std::iter::once(("step".to_owned(), json!(kept.step))).chain(kept.metrics).collect())
}

/// Every setting that determines the trained weights: those of the model and those of the training
/// loop. `inputs` is the digest of the files that are read.
fn train_settings(model_settings: Value, args: &TrainingArgs, inputs: String) -> TrainSettings {
    let loop_settings = json!({
        "steps": args.steps,
        "batch": args.batch,
        "accumulate": args.accumulate,
        "dropout": args.dropout,
        "seed": args.seed,
    });
    let optimizer = json!({
        "lr": args.lr,
        "warmup": args.warmup.steps(args.steps.get()),
        "floor": args.floor,
        "weight_decay": args.weight_decay,
        "beta2": args.beta2,
        "clip": args.clip,
    });
    let fixed = [model_settings, loop_settings].map(entries).into_iter().flatten().collect();
    TrainSettings { fixed, optimizer: entries(optimizer), inputs }
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
