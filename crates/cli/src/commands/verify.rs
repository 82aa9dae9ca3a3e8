//! `verify`: this engine against a reference dump, one line per check with its largest error.
//!
//! A dump holds a checkpoint, the prompts, the masks and the noise that another implementation
//! used, and what it computed from them. Everything is replayed through the stages of the engine
//! itself.

mod checks;
mod golden;
mod training;

use std::process::ExitCode;

use anyhow::Result;
use engine::{Reasoner, RewardModel};

use crate::args::VerifyArgs;
use crate::printer::Printer;
use checks::{CheckOutcome, GoldenCheck};
use golden::GoldenDump;

/// Runs every check of a dump; exit code 1 if any misses.
pub fn run(args: &VerifyArgs, printer: &Printer) -> Result<ExitCode> {
    let device = args.device.open()?;
    let golden = GoldenDump::read(&args.dir)?;
    let reasoner = Reasoner::load(&device, &args.dir.join("checkpoint"), None)?;
    let reward_model = if golden.has_reward_model() {
        Some(RewardModel::load(&device, &args.dir.join("latent-rm"), &reasoner)?)
    } else {
        None
    };
    let mut checks = checks::run_all(&golden, &reasoner, reward_model.as_ref())?;
    checks.extend(training::run_all(&golden, &device, &args.dir)?);
    let missed = checks.iter().filter(|c| c.verdict == CheckOutcome::Missed).count();
    if printer.is_json() {
        printer.json(&serde_json::json!({
            "dir": args.dir, "family": reasoner.method.family.name(), "passed": missed == 0, "checks": checks,
        }))?;
    } else {
        let width = checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
        for check in &checks {
            printer.line(&check_line(check, width))?;
        }
        let counted = checks.iter().filter(|c| c.verdict == CheckOutcome::Passed).count();
        printer.line(&format!("{}: {counted} checks passed, {missed} missed", golden.family))?;
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn check_line(check: &GoldenCheck, width: usize) -> String {
    let outcome = match check.verdict {
        CheckOutcome::Passed => "ok",
        CheckOutcome::Missed => "MISSED",
        CheckOutcome::NotAsked => "-",
    };
    let error = match (check.largest_error, check.tolerance) {
        (Some(error), Some(tolerance)) => {
            format!("largest error {error:.1e} of {tolerance:.0e} allowed")
        }
        _ => "exact".to_owned(),
    };
    let detail = if check.verdict == CheckOutcome::NotAsked {
        String::new()
    } else {
        format!("{} compared, {error}", check.compared)
    };
    let note = check.note.as_deref().map(|n| format!(" ({n})")).unwrap_or_default();
    format!("{:width$}  {outcome:7}  {detail}{note}", check.name)
}
