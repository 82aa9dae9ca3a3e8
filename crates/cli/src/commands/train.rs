//! `latent-tts train`: the training loop that `train reasoner` and `train reward` share.

mod reasoner;
mod reward;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use model::save::SaveDtype;
use serde_json::{Map, Value, json};
use tensor::Device;
use train::schedule::{LrSchedule, Optimizer};
use train::trainer::{TrainConfig, TrainEvent, TrainOutcome, TrainTask, Trainer};

use crate::args::{DtypeKind, TrainCommand, TrainingArgs};
use crate::interrupt;
use crate::printer::{Printer, format_duration};

/// Exit code of an interrupted training, which `--resume` continues.
const INTERRUPTED: u8 = 3;

/// Runs `train reasoner` or `train reward`.
pub fn run(command: &TrainCommand) -> Result<ExitCode> {
    match command {
        TrainCommand::Reasoner(args) => reasoner::run(args, &Printer::new(&args.output)),
        TrainCommand::Reward(args) => reward::run(args, &Printer::new(&args.output)),
    }
}

/// The trainer's configuration; `fingerprint` holds every setting that a resumed training must
/// share.
fn train_config(args: &TrainingArgs, out: &Path, fingerprint: String) -> Result<TrainConfig> {
    let dir = out.join("training");
    if dir.join("state.safetensors").exists() && !args.resume {
        bail!(
            "{}: holds a training already; pass --resume to go on with it, or another --out",
            out.display()
        );
    }
    let schedule = LrSchedule {
        peak: args.lr,
        warmup: args.warmup,
        steps: args.steps.get(),
        floor: args.floor,
    };
    Ok(TrainConfig {
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
        eval_every: args.look_every,
        patience: args.patience,
        fingerprint,
    })
}

fn weight_dtype(dtype: DtypeKind) -> SaveDtype {
    match dtype {
        DtypeKind::F32 => SaveDtype::F32,
        DtypeKind::Bf16 => SaveDtype::Bf16,
    }
}

/// Trains `task` with progress output, and prints its outcome.
fn run_training(
    task: &mut dyn TrainTask,
    device: &Device,
    config: &TrainConfig,
    printer: &Printer,
    out: &Path,
) -> Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    interrupt::set_flag_on_signal(&stop)?;
    let (started, mut held_out) = (Instant::now(), Map::new());
    let (mut progress, mut first) = (None, 0);
    let outcome = Trainer { device, config }.run(task, &mut |event| {
        match event {
            TrainEvent::Resumed { steps } => {
                first = steps;
                printer.note(&format!("resumes after {steps} steps"));
            }
            TrainEvent::Stepped { steps, total, log_line } => {
                let progress = progress
                    .get_or_insert_with(|| printer.progress(first as usize, total as usize));
                progress.advance();
                let rate = f64::from(steps - first) / started.elapsed().as_secs_f64();
                let left = format_duration(f64::from(total - steps) / rate);
                progress.report(&format!("{} {rate:.1} steps/s, {left} left", losses(log_line)));
            }
            TrainEvent::Evaluated { steps, metrics } => {
                printer.note(&format!("after {steps} steps: {}", Value::Object(metrics.clone())));
                held_out = metrics.clone();
            }
        }
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let summary = json!({
        "out": out,
        "seconds": seconds,
        "finished": outcome == TrainOutcome::Finished,
        "held_out": held_out,
    });
    match outcome {
        TrainOutcome::Finished => {
            printer.result(&summary, || {
                format!("{} is trained ({})", out.display(), format_duration(seconds))
            })?;
            Ok(ExitCode::SUCCESS)
        }
        TrainOutcome::Interrupted => {
            printer.note("interrupted; the state is saved, continue with --resume");
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

/// Every setting that changes the trained weights: those of the model, then those of the training
/// loop. The order is part of the fingerprint.
fn settings_fingerprint(mut model_settings: Value, args: &TrainingArgs) -> String {
    let training_settings = json!({
        "steps": args.steps,
        "batch": args.batch,
        "accumulate": args.accumulate,
        "lr": args.lr,
        "warmup": args.warmup,
        "floor": args.floor,
        "weight_decay": args.weight_decay,
        "beta2": args.beta2,
        "clip": args.clip,
        "dropout": args.dropout,
        "seed": args.seed,
    });
    if let (Value::Object(all), Value::Object(training)) = (&mut model_settings, training_settings)
    {
        all.extend(training);
    }
    model_settings.to_string()
}

/// The losses in a line of the log, as text.
fn losses(line: &Map<String, Value>) -> String {
    let shown = |name: &str| Some(format!("{name} {:.4}", line.get(name)?.as_f64()?));
    ["loss", "digits"].into_iter().filter_map(shown).collect::<Vec<_>>().join(", ")
}
