//! `latent-tts train`: converts flags to options of a library training, and prints its progress and
//! result.

mod probe;
mod progress;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow, ensure};
use latent_tts::train::TrainError;
use latent_tts::train::loss::Objective;
use latent_tts::training::{ReasonerMode, WeightedData};
use latent_tts::{CancelToken, Device, Error, RewardTrainer, RlTrainer, TrainReport, Trainer};
use serde_json::{Value, json};

use crate::args::{DeviceArgs, DtypeKind, ReasonerArgs, RewardArgs, RlArgs, TrainCommand};
use crate::interrupt::{self, shell_quoted};
use crate::printer::{Printer, format_duration};
use progress::TrainProgress;

/// Runs `train reasoner`, `train reward`, `train rl` or `train probe`.
pub fn run(command: &TrainCommand) -> Result<ExitCode> {
    match command {
        TrainCommand::Reasoner(args) => reasoner(args, &Printer::new(&args.output)),
        TrainCommand::Reward(args) => reward(args, &Printer::new(&args.output)),
        TrainCommand::Probe(args) => probe::run(args, &Printer::new(&args.output)),
        TrainCommand::Rl(args) => rl(args, &Printer::new(&args.output)),
    }
}

fn reasoner(args: &ReasonerArgs, printer: &Printer) -> Result<ExitCode> {
    let trainer = Trainer::new(&args.out, args.options.clone()).map_err(with_flags)?;
    let device = open_device(&args.device, printer)?;
    let cancel = CancelToken::default();
    interrupt::cancel_on_signal(&cancel)?;
    let mut progress = TrainProgress::new(printer, &args.options.training, &device);
    let report = trainer.run(&device, &mut progress, &cancel).map_err(with_flags)?;
    drop(progress);
    print_report(&report, printer, || finished_text(&report, &after_reasoner(args)))
}

fn reward(args: &RewardArgs, printer: &Printer) -> Result<ExitCode> {
    let trainer = RewardTrainer::new(&args.out, args.options.clone()).map_err(with_flags)?;
    let device = open_device(&args.device, printer)?;
    let cancel = CancelToken::default();
    interrupt::cancel_on_signal(&cancel)?;
    let mut progress = TrainProgress::new(printer, &args.options.training, &device);
    let report = trainer.run(&device, &mut progress, &cancel).map_err(with_flags)?;
    drop(progress);
    if args.options.objective == Objective::Untrained {
        let out = &report.out;
        printer.result(&json!({ "out": out }), || format!("wrote {}, untrained", out.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let model = shell_quoted(&args.options.model);
    let out = shell_quoted(&args.out.display().to_string());
    let next = format!("latent-tts eval --model {model} --reward-model {out}");
    print_report(&report, printer, || finished_text(&report, &next))
}

fn rl(args: &RlArgs, printer: &Printer) -> Result<ExitCode> {
    let trainer = RlTrainer::new(&args.out, args.options.clone()).map_err(with_flags)?;
    let device = open_device(&args.device, printer)?;
    let cancel = CancelToken::default();
    interrupt::cancel_on_signal(&cancel)?;
    let mut progress = TrainProgress::new(printer, &args.options.training, &device);
    let report = trainer.run(&device, &mut progress, &cancel).map_err(with_flags)?;
    drop(progress);
    let out = shell_quoted(&args.out.display().to_string());
    let model = shell_quoted(&args.options.model);
    let next = format!(
        "latent-tts eval --model {out} --greedy, and compare with latent-tts eval --model {model} \
         --greedy"
    );
    print_report(&report, printer, || finished_text(&report, &next))
}

/// Opens the device of a training, which must support gradients.
fn open_device(args: &DeviceArgs, printer: &Printer) -> Result<Device> {
    ensure!(
        args.dtype != Some(DtypeKind::Int8),
        "--dtype int8 does not support gradients; omit --dtype to train in f32 on a CPU"
    );
    let device = args.open(printer)?;
    check_gradients(args, &device)?;
    // Threads that prepare batches while the device computes.
    tensor::start_global_threads(args.threads)?;
    printer.note(&format!("training on {}", device.describe()));
    Ok(device)
}

/// Rejects precisions without gradients, and `--deterministic` on a GPU.
pub(super) fn check_gradients(args: &DeviceArgs, device: &Device) -> Result<()> {
    ensure!(
        args.dtype != Some(DtypeKind::Fp8),
        "--dtype fp8 does not support gradients; pass --dtype bf16 or omit --dtype"
    );
    ensure!(
        !args.deterministic || !device.is_cuda(),
        "--deterministic does not cover gradients on a GPU, whose sums over rows have no fixed \
         order; omit it, or pass --device cpu"
    );
    Ok(())
}

/// Converts an error about options, replacing option names by flags.
fn with_flags(error: Error) -> anyhow::Error {
    match error {
        Error::Train(TrainError::Options { reason }) => anyhow!(flags_for_options(&reason)),
        Error::Train(error) => error.into(),
        error => error.into(),
    }
}

/// Replaces every `option` in backticks by `--flag`.
fn flags_for_options(text: &str) -> String {
    let is_option = |part: &str| {
        let is_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        !part.is_empty() && part.bytes().all(is_part)
    };
    let mut parts = text.split('`');
    let mut flags = parts.next().unwrap_or_default().to_owned();
    while let Some(quoted) = parts.next() {
        let after = parts.next();
        match after {
            Some(_) if is_option(quoted) => {
                flags.push_str("--");
                flags.push_str(&quoted.replace('_', "-"));
            }
            Some(_) => flags.push_str(&format!("`{quoted}`")),
            None => flags.push_str(&format!("`{quoted}")),
        }
        flags.push_str(after.unwrap_or_default());
    }
    flags
}

/// The usual next command: a chain-of-thought model becomes a latent reasoner, which is evaluated.
fn after_reasoner(args: &ReasonerArgs) -> String {
    let out = shell_quoted(&args.out.display().to_string());
    if args.options.thinking.mode != ReasonerMode::Cot {
        return format!("latent-tts eval --model {out}, or latent-tts annotate --model {out}");
    }
    // A model for a CPU keeps its preset, and trains on the same data.
    let tiny = args.preset.as_deref() == Some("tiny");
    let preset = if tiny { " --preset tiny" } else { "" };
    let data = &args.options.data;
    let named = |of: &&WeightedData| of.file().is_some() || data.len() > 1;
    let data: String = data
        .iter()
        .filter(named)
        .map(|data| format!(" --data {}", shell_quoted(&data.to_string())))
        .collect();
    format!(
        "latent-tts train reasoner{preset} --mode latent --init {out}{data} --out DIR, or \
         latent-tts eval --model {out}"
    )
}

/// Prints the result of a training, or how to continue it.
fn print_report(
    report: &TrainReport,
    printer: &Printer,
    text: impl FnOnce() -> String,
) -> Result<ExitCode> {
    if !report.finished {
        printer.note(interrupt::message("interrupted; the state was saved").trim_start());
        return Ok(ExitCode::from(interrupt::INTERRUPTED));
    }
    let metrics = report.kept.iter().flat_map(|kept| {
        std::iter::once(("step".to_owned(), json!(kept.step))).chain(kept.metrics.clone())
    });
    let summary = json!({
        "out": report.out,
        "seconds": report.seconds,
        "finished": report.finished,
        "held_out": Value::Object(metrics.collect()),
    });
    printer.result(&summary, text)?;
    Ok(ExitCode::SUCCESS)
}

/// The result of a finished training, its metrics, and the next command.
fn finished_text(report: &TrainReport, next: &str) -> String {
    let TrainReport { out, seconds, kept, .. } = report;
    let eval = kept.iter().map(|eval| format!("{}\n", progress::eval_sentence(eval)));
    let page = Path::new(out).join(record::TRAINING_DIR).join("report.html");
    format!(
        "trained {} in {}\n{}learning curves: {}\nnext: {next}",
        out.display(),
        format_duration(*seconds),
        eval.collect::<String>(),
        page.display()
    )
}

#[cfg(test)]
mod tests {
    use super::flags_for_options;

    #[test]
    fn options_in_backticks_become_flags() {
        let text = "`min_speed` 3 is above `beta2` 2; see `annotate --help` and a ` alone";
        let flags = "--min-speed 3 is above --beta2 2; see `annotate --help` and a ` alone";
        assert_eq!(flags_for_options(text), flags);
    }
}
