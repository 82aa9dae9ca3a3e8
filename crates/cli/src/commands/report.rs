//! `latent-tts report`: figures and an HTML page from run directories or training logs. Needs no
//! model.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use record::{RunDir, TrainingDir};
use report::{BestRun, ReportFiles, ReportOptions, comparison};
use serde_json::json;

use super::sweep;
use crate::args::ReportArgs;
use crate::printer::Printer;

/// Runs `report`.
pub fn run(args: &ReportArgs, printer: &Printer) -> Result<ExitCode> {
    let options = ReportOptions {
        partial: args.partial,
        page_only: args.page_only,
        ..ReportOptions::default()
    };
    let mut comparison = None;
    let ReportFiles { page, figures } = match training_dirs(&args.runs)? {
        Some(trainings) => {
            let out = args.out.clone().unwrap_or_else(|| training_out_dir(&args.runs, &trainings));
            report::write_trainings(&trainings, &out, options)?
        }
        None => {
            let out = args.out.clone().unwrap_or_else(|| default_out_dir(&args.runs));
            let (runs, best_run) = open_runs(&args.runs)?;
            let options = ReportOptions { best_run, ..options };
            let runs = report::load_runs(&runs, &options)?;
            if runs.len() > 1 {
                comparison = Some((comparison::render(&runs), comparison::differences(&runs)));
            }
            report::write_loaded(&runs, &out, &options)?
        }
    };
    let (table, differences) = comparison.unwrap_or_default();
    let mut document = json!({ "page": page, "figures": figures });
    if !table.is_empty() {
        document["differences"] = json!(differences);
    }
    let separator = if table.is_empty() { "" } else { "\n" };
    printer
        .result(&document, || format!("{table}{separator}{}", written_files(&page, &figures)))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens run directories. The directory of a sweep expands to all of its runs; a single sweep also
/// provides the best one.
fn open_runs(paths: &[PathBuf]) -> Result<(Vec<RunDir>, Option<BestRun>)> {
    let (mut runs, mut best_run) = (Vec::new(), None);
    for path in paths {
        match sweep::read(path)? {
            Some((points, found)) => {
                runs.extend(points.iter().map(RunDir::open).collect::<Result<Vec<_>, _>>()?);
                best_run = Some(found);
            }
            None => runs.push(RunDir::open(path)?),
        }
    }
    Ok((runs, best_run.filter(|_| paths.len() == 1)))
}

/// The training directories at these paths; `None` if none of them is one.
fn training_dirs(paths: &[PathBuf]) -> Result<Option<Vec<TrainingDir>>> {
    let found: Vec<TrainingDir> = paths.iter().filter_map(|path| TrainingDir::find(path)).collect();
    let other = paths.iter().find(|path| TrainingDir::find(path).is_none());
    if let (Some(other), [training, ..]) = (other, &found[..]) {
        bail!(
            "{} is a training directory and {} is not; report trainings and runs separately",
            training.path().display(),
            other.display()
        );
    }
    Ok((!found.is_empty()).then_some(found))
}

/// The default output directory for trainings: beside the log of a single one, to keep the model
/// directory clean, or `report` beside the first of several.
fn training_out_dir(paths: &[PathBuf], trainings: &[TrainingDir]) -> PathBuf {
    match trainings {
        [one] => one.path().to_owned(),
        _ => default_out_dir(paths),
    }
}

/// The default output directory: the directory of a single run, or `report` beside the first of
/// several.
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
