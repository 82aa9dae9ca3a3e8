//! `latent-tts calibrate`: fits weights that combine the signals of recorded runs. Needs no model.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use latent_tts::aggregate::CalibrationWeights;
use latent_tts::calibrate::{
    CalibrationData, CalibrationScores, Estimate, SignalSetScores, ablation, calibrate,
};
use record::RunDir;
use serde_json::json;

use crate::args::CalibrateArgs;
use crate::printer::Printer;

/// Runs `calibrate`.
pub fn run(args: &CalibrateArgs, printer: &Printer) -> Result<ExitCode> {
    let fitted = read(&args.runs)?;
    let found = fitted.signals();
    let requested: Option<Vec<&str>> =
        args.signals.as_ref().map(|names| names.iter().map(String::as_str).collect());
    let missing = requested.iter().flatten().find(|name| !found.contains(*name));
    if let Some(missing) = missing {
        bail!("no trajectory of these runs has the signal {missing}; remove it from --signals");
    }
    let report = calibrate(&fitted, requested.as_deref())?;
    let mut text = serde_json::to_string_pretty(&report.calibration)?;
    text.push('\n');
    record::files::write_atomic(&args.out, text.as_bytes())
        .with_context(|| format!("cannot write {}", args.out.display()))?;
    let measured = match args.measure.is_empty() {
        true => None,
        false => Some(read(&args.measure)?),
    };
    let scores = measured.as_ref().map(|measured| measured.scores(&report.calibration));
    let rows = match &measured {
        Some(measured) if requested.is_none() => ablation(&fitted, measured)?,
        _ => Vec::new(),
    };
    let document = json!({
        "out": args.out,
        "calibration": report.calibration,
        "samples": report.samples,
        "fitted": report.fitted,
        "measured": scores,
        "ablation": rows,
    });
    printer.result(&document, || {
        let mut lines = vec![weights_line(&report.calibration.weights)];
        lines.push(scores_line("fitted", &report.fitted));
        lines.extend(scores.iter().map(|scores| scores_line("measured", scores)));
        if !rows.is_empty() {
            lines.push(String::new());
            lines.push(ablation_table(&rows));
        }
        lines.push(format!("calibration: {}", args.out.display()));
        lines.join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn read(paths: &[PathBuf]) -> Result<CalibrationData> {
    let runs: Vec<RunDir> = paths.iter().map(RunDir::open).collect::<Result<_, _>>()?;
    Ok(CalibrationData::read(&runs)?)
}

/// The nonzero weights.
fn weights_line(weights: &CalibrationWeights) -> String {
    let named = CalibrationWeights::NAMES.iter().zip(weights.to_array());
    let texts: Vec<String> = named
        .filter(|(_, weight)| *weight != 0.0)
        .map(|(name, weight)| format!("{name} {weight:.2}"))
        .collect();
    format!("weights: {}", texts.join(", "))
}

fn scores_line(name: &str, scores: &CalibrationScores) -> String {
    let error = scores.reliability.as_ref().map_or(f64::NAN, |r| r.expected_calibration_error);
    format!(
        "{name}: accuracy {}, majority {}, difference {}, expected calibration error {error:.3}",
        percent(scores.accuracy),
        percent(scores.majority),
        points(scores.gain),
    )
}

fn percent(Estimate { value, low, high }: Estimate) -> String {
    format!("{:.1} ({:.1}-{:.1})", 100.0 * value, 100.0 * low, 100.0 * high)
}

fn points(Estimate { value, low, high }: Estimate) -> String {
    format!("{:+.1} ({:+.1} to {:+.1})", 100.0 * value, 100.0 * low, 100.0 * high)
}

fn ablation_table(rows: &[SignalSetScores]) -> String {
    let name = |row: &SignalSetScores| match row.signals.as_slice() {
        [] => "votes only".to_owned(),
        signals => signals.join(", "),
    };
    let width = rows.iter().map(|row| name(row).len()).max().unwrap_or(0);
    let line = |row: &SignalSetScores| {
        let error =
            row.scores.reliability.as_ref().map_or(f64::NAN, |r| r.expected_calibration_error);
        format!(
            "{:width$}  {}  {}  {error:.3}",
            name(row),
            percent(row.scores.accuracy),
            points(row.scores.gain)
        )
    };
    let title = format!(
        "{:width$}  accuracy in %  vs. majority  expected calibration error",
        "signals besides votes"
    );
    let lines = std::iter::once(title).chain(rows.iter().map(line));
    lines.collect::<Vec<_>>().join("\n")
}
