//! `latent-tts verify`: compares this engine with a reference dump and prints one line per check.

use std::process::ExitCode;

use anyhow::Result;
use latent_tts::verify::{CheckOutcome, GoldenCheck, verify};

use crate::args::VerifyArgs;
use crate::printer::Printer;

/// Runs every check of a dump; the exit code is 1 if any fails.
pub fn run(args: &VerifyArgs, printer: &Printer) -> Result<ExitCode> {
    let device = args.device.open(printer)?;
    let verification = verify(&args.dir, args.base.as_deref(), &device)?;
    let checks = &verification.checks;
    if printer.is_json() {
        printer.json(&serde_json::json!({
            "dir": args.dir,
            "family": verification.family.name(),
            "passed": verification.has_passed(),
            "checks": checks,
        }))?;
    } else {
        let width = checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
        for check in checks {
            printer.line(&check_line(check, width))?;
        }
        let passed = verification.count(CheckOutcome::Passed);
        let failed = verification.count(CheckOutcome::Failed);
        let family = &verification.dump_family;
        printer.line(&format!("{family}: {passed} checks passed, {failed} failed"))?;
    }
    Ok(if verification.has_passed() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn check_line(check: &GoldenCheck, width: usize) -> String {
    let outcome = match check.outcome {
        CheckOutcome::Passed => "ok",
        CheckOutcome::Failed => "FAILED",
        CheckOutcome::Skipped => "-",
    };
    let error = match (check.largest_error, check.tolerance) {
        (Some(error), Some(tolerance)) => {
            format!("largest error {error:.1e}, tolerance {tolerance:.0e}")
        }
        _ => "exact".to_owned(),
    };
    let detail = match check.outcome {
        CheckOutcome::Skipped => String::new(),
        _ => format!("{} compared, {error}", check.compared),
    };
    let note = check.note.as_deref().map(|n| format!(" ({n})")).unwrap_or_default();
    format!("{:width$}  {outcome:7}  {detail}{note}", check.name)
}
