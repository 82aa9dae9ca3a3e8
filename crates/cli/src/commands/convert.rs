//! `latent-tts convert`: converts pickled checkpoints to safetensors.

use std::process::ExitCode;

use anyhow::{Result, bail};
use latent_tts::convert::{ConversionReport, Converter};

use crate::args::ConvertArgs;
use crate::printer::Printer;

/// Converts a checkpoint and prints the files that were written.
pub fn run(args: &ConvertArgs, printer: &Printer) -> Result<ExitCode> {
    if args.lora_alpha.is_some_and(|alpha| !alpha.is_finite()) {
        bail!("--lora-alpha must be a finite number");
    }
    let converter = Converter {
        inputs: &args.inputs,
        out: &args.out,
        base: args.base.as_deref(),
        lora_alpha: args.lora_alpha,
        overwrite: args.overwrite,
    };
    let report = converter.run()?;
    report.notes.iter().for_each(|note| printer.note(&format!("note: {note}")));
    printer.result(&report, || text(&report))?;
    Ok(ExitCode::SUCCESS)
}

fn text(report: &ConversionReport) -> String {
    let mut lines = Vec::new();
    for file in &report.files {
        let megabytes = file.bytes as f64 / 1e6;
        lines.push(format!("{}: {} tensors, {megabytes:.1} MB", file.name, file.tensors));
    }
    if !report.texts.is_empty() {
        lines.push(report.texts.join(", "));
    }
    if report.left_out > 0 {
        lines.push(format!("{} tensors used only in training were dropped", report.left_out));
    }
    if !report.skipped_classes.is_empty() {
        lines.push(format!("skipped objects of classes {}", report.skipped_classes.join(", ")));
    }
    lines.push(format!("written to {}", report.out.display()));
    lines.join("\n")
}
