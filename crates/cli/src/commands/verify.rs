//! `latent-tts verify`: compares this engine with a reference dump.
//!
//! A dump holds a checkpoint, the prompts, the dropout masks and the noise that a reference
//! implementation used, and its results. The engine's own stages run on the same inputs; one line
//! per check states the largest error.

mod checks;
mod fit;
mod golden;
mod methods;
mod training;

use std::process::ExitCode;

use anyhow::Result;
use engine::{Reasoner, RewardModel};
use latent_tts::model_files;
use model::ModelFiles;

use crate::args::VerifyArgs;
use crate::printer::Printer;
use checks::{CheckOutcome, GoldenCheck};
use golden::GoldenDump;

/// Runs every check of a dump; exit code 1 if any fails.
pub fn run(args: &VerifyArgs, printer: &Printer) -> Result<ExitCode> {
    let device = args.device.open(printer)?;
    let golden = GoldenDump::read(&args.dir)?;
    let part = |name: &str| {
        let files = ModelFiles::from(&args.dir.join(name));
        let base = args.base.as_ref().map(|base| model_files(base)).transpose()?;
        anyhow::Ok(base.map_or(Ok(files.clone()), |base| files.with_base(base))?)
    };
    let checkpoint = part("checkpoint")?;
    let reasoner = Reasoner::load(&device, &checkpoint, None)?;
    let reward_model = if golden.has_reward_model() {
        Some(RewardModel::load(&device, part("latent-rm")?, &reasoner)?)
    } else {
        None
    };
    fit::check_reasoner(&golden, reasoner.decoder.config())?;
    if let Some(reward_model) = &reward_model {
        fit::check_reward_model(&golden, reward_model.decoder.config())?;
    }
    let mut checks = checks::run_all(&golden, &reasoner, reward_model.as_ref())?;
    checks.extend(training::run_all(&golden, &device, &args.dir, &checkpoint)?);
    checks.extend(methods::run_all(&device, &args.dir, &checkpoint)?);
    let count = |outcome| checks.iter().filter(|c| c.outcome == outcome).count();
    let (passed, failed) = (count(CheckOutcome::Passed), count(CheckOutcome::Failed));
    if printer.is_json() {
        printer.json(&serde_json::json!({
            "dir": args.dir,
            "family": reasoner.method.family.name(),
            "passed": failed == 0,
            "checks": checks,
        }))?;
    } else {
        let width = checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
        for check in &checks {
            printer.line(&check_line(check, width))?;
        }
        printer.line(&format!("{}: {passed} checks passed, {failed} failed", golden.family))?;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn check_line(check: &GoldenCheck, width: usize) -> String {
    let outcome = match check.outcome {
        CheckOutcome::Passed => "ok",
        CheckOutcome::Failed => "FAILED",
        CheckOutcome::Skipped => "-",
    };
    let error = match (check.largest_error, check.tolerance) {
        (Some(error), Some(tolerance)) => {
            format!("largest error {error:.1e} of {tolerance:.0e} allowed")
        }
        _ => "exact".to_owned(),
    };
    let detail = if check.outcome == CheckOutcome::Skipped {
        String::new()
    } else {
        format!("{} compared, {error}", check.compared)
    };
    let note = check.note.as_deref().map(|n| format!(" ({n})")).unwrap_or_default();
    format!("{:width$}  {outcome:7}  {detail}{note}", check.name)
}
