//! `train`: what both trainings share: a plan from the flags, progress, how it ended.

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

/// The exit code of a training that can be resumed.
const INTERRUPTED: u8 = 3;

/// Trains what was asked for.
pub fn run(command: &TrainCommand) -> Result<ExitCode> {
    match command {
        TrainCommand::Reasoner(args) => reasoner::run(args, &Printer::new(&args.output)),
        TrainCommand::Reward(args) => reward::run(args, &Printer::new(&args.output)),
    }
}

/// The plan that the flags make; `fingerprint` is everything that a resumed training must have in
/// common.
fn plan(args: &TrainingArgs, out: &Path, fingerprint: String) -> Result<TrainConfig> {
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

/// Runs a course under a plan, with progress, and says how it ended.
fn run_training(
    trainer: &mut dyn TrainTask,
    device: &Device,
    plan: &TrainConfig,
    printer: &Printer,
    out: &Path,
) -> Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    interrupt::set_flag_on_signal(&stop)?;
    let (started, mut figures) = (Instant::now(), Map::new());
    let (mut progress, mut first) = (None, 0);
    let ended = Trainer { device, config: plan }.run(trainer, &mut |event| {
        match event {
            TrainEvent::Resumed { steps } => {
                first = steps;
                printer.note(&format!("goes on after {steps} steps"));
            }
            TrainEvent::Stepped { steps, total: of, log_line: line } => {
                let progress =
                    progress.get_or_insert_with(|| printer.progress(first as usize, of as usize));
                progress.advance();
                let rate = f64::from(steps - first) / started.elapsed().as_secs_f64();
                let left = format_duration(f64::from(of - steps) / rate);
                progress.report(&format!("{} {rate:.1} steps/s, {left} left", losses(line)));
            }
            TrainEvent::Evaluated { steps, metrics: seen } => {
                printer.note(&format!("after {steps} steps: {}", Value::Object(seen.clone())));
                figures = seen.clone();
            }
        }
        if stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let summary = json!({ "out": out, "seconds": seconds, "finished": ended == TrainOutcome::Finished, "held_out": figures });
    match ended {
        TrainOutcome::Finished => {
            printer.result(&summary, || {
                format!("{} is trained ({})", out.display(), format_duration(seconds))
            })?;
            Ok(ExitCode::SUCCESS)
        }
        TrainOutcome::Interrupted => {
            printer.note("interrupted; everything is kept, go on with --resume");
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

/// The losses of a line of the log.
fn losses(line: &Map<String, Value>) -> String {
    let shown = |name: &str| Some(format!("{name} {:.4}", line.get(name)?.as_f64()?));
    ["loss", "digits"].into_iter().filter_map(shown).collect::<Vec<_>>().join(", ")
}
