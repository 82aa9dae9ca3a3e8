//! `latent-tts report`: figures and one HTML page from run directories or from trainings. Needs no
//! model.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use record::{RunDir, TrainingDir};
use report::{ReportFiles, ReportOptions};
use serde_json::json;

use super::sweep;
use crate::args::ReportArgs;
use crate::printer::Printer;

/// Runs `report`.
pub fn run(args: &ReportArgs, printer: &Printer) -> Result<ExitCode> {
    let options = ReportOptions { partial: args.partial, page_only: args.page_only };
    let ReportFiles { page, figures } = match training_dirs(&args.runs)? {
        Some(trainings) => {
            let out = args.out.clone().unwrap_or_else(|| training_out_dir(&args.runs, &trainings));
            report::write_trainings(&trainings, &out, options)?
        }
        None => {
            let out = args.out.clone().unwrap_or_else(|| default_out_dir(&args.runs));
            report::write(&open_runs(&args.runs)?, &out, options)?
        }
    };
    printer
        .result(&json!({ "page": page, "figures": figures }), || written_files(&page, &figures))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens run directories; the directory of a sweep stands for all of its runs.
fn open_runs(paths: &[PathBuf]) -> Result<Vec<RunDir>> {
    let mut runs = Vec::new();
    for path in paths {
        match sweep::run_dirs(path)? {
            Some(points) => {
                runs.extend(points.iter().map(RunDir::open).collect::<Result<Vec<_>, _>>()?)
            }
            None => runs.push(RunDir::open(path)?),
        }
    }
    Ok(runs)
}

/// The trainings at these paths; `None` if none is one.
fn training_dirs(paths: &[PathBuf]) -> Result<Option<Vec<TrainingDir>>> {
    let found: Vec<TrainingDir> = paths.iter().filter_map(|path| TrainingDir::find(path)).collect();
    let other = paths.iter().find(|path| TrainingDir::find(path).is_none());
    if let (Some(other), [training, ..]) = (other, &found[..]) {
        bail!(
            "{} is a training and {} is none; report trainings and runs one after the other",
            training.path().display(),
            other.display()
        );
    }
    Ok((!found.is_empty()).then_some(found))
}

/// The default output directory of trainings: beside the log of a single one, so that the model's
/// directory holds the model, or `report` beside the first of several.
fn training_out_dir(paths: &[PathBuf], trainings: &[TrainingDir]) -> PathBuf {
    match trainings {
        [one] => one.path().to_owned(),
        _ => default_out_dir(paths),
    }
}

/// The default output directory: that of a single run, or `report` beside the first of several.
fn default_out_dir(runs: &[PathBuf]) -> PathBuf {
    match runs {
        [one] => one.clone(),
        several => {
            several.first().and_then(|run| run.parent()).unwrap_or(Path::new("")).join("report")
        }
    }
}

fn written_files(page: &Path, figures: &[PathBuf]) -> String {
    let figures: String = figures.iter().map(|figure| format!("{}\n", figure.display())).collect();
    format!("{figures}{}", page.display())
}
