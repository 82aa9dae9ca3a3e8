//! Writes reports: every figure as SVG, PNG and CSV, and the page. Files are replaced atomically.

use std::fs;
use std::path::{Path, PathBuf};

use record::{MetricName, RunDir, TrainingDir};

use crate::error::ReportError;
use crate::figures::Figure;
use crate::run_data::{RunData, assign_labels};
use crate::training_data::{TrainingData, label_trainings};
use crate::{draw, figures, page};

const PAGE_FILE: &str = "report.html";
const FIGURES_DIR: &str = "figures";

/// Options of [`write()`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportOptions {
    /// Accept incomplete runs.
    pub partial: bool,
    /// Write only the page, which embeds its figures, and no figure files.
    pub page_only: bool,
    /// The best run, if it was selected before; otherwise the run with the largest coverage.
    pub best_run: Option<BestRun>,
}

/// The best of several runs, selected before the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BestRun {
    /// The index of the best run.
    pub index: usize,
    /// The metric of the selection.
    pub metric: MetricName,
    /// The number of trajectories of the selection.
    pub k: usize,
    /// The indices of the other runs with the same value.
    pub ties: Vec<usize>,
}

/// The written files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportFiles {
    /// The page.
    pub page: PathBuf,
    /// The figures: SVG, PNG and CSV.
    pub figures: Vec<PathBuf>,
}

/// Loads the runs and writes their report into `out`.
pub fn write(
    runs: &[RunDir],
    out: &Path,
    options: ReportOptions,
) -> Result<ReportFiles, ReportError> {
    write_loaded(&load_runs(runs, &options)?, out, &options)
}

/// Loads and labels runs; marks the best run of the options.
pub fn load_runs(runs: &[RunDir], options: &ReportOptions) -> Result<Vec<RunData>, ReportError> {
    if runs.is_empty() {
        return Err(ReportError::NoRuns);
    }
    let mut loaded = runs
        .iter()
        .map(|run| RunData::load(run.clone(), options.partial))
        .collect::<Result<Vec<_>, _>>()?;
    assign_labels(&mut loaded);
    if let Some(run) = options.best_run.as_ref().and_then(|best| loaded.get_mut(best.index)) {
        run.best = true;
    }
    Ok(loaded)
}

/// Writes the report of loaded runs into `out`.
pub fn write_loaded(
    runs: &[RunData],
    out: &Path,
    options: &ReportOptions,
) -> Result<ReportFiles, ReportError> {
    let figures = figures::all(runs)?;
    let page = page::html(runs, &figures, options.best_run.as_ref())?;
    write_files(&figures, &page, out, options)
}

/// The page of some runs, complete or not, as text; writes no files.
pub fn page_of_runs(runs: &[RunDir]) -> Result<String, ReportError> {
    let options = ReportOptions { partial: true, ..ReportOptions::default() };
    let runs = load_runs(runs, &options)?;
    page::html(&runs, &figures::all(&runs)?, None)
}

/// The page of some trainings as text; writes no files.
pub fn page_of_trainings(trainings: &[TrainingDir]) -> Result<String, ReportError> {
    Ok(training_page(trainings)?.1)
}

/// Loads the records of trainings and writes their learning curves into `out`.
pub fn write_trainings(
    trainings: &[TrainingDir],
    out: &Path,
    options: ReportOptions,
) -> Result<ReportFiles, ReportError> {
    let (figures, page) = training_page(trainings)?;
    write_files(&figures, &page, out, &options)
}

fn training_page(trainings: &[TrainingDir]) -> Result<(Vec<Figure>, String), ReportError> {
    if trainings.is_empty() {
        return Err(ReportError::NoRuns);
    }
    let mut loaded = trainings.iter().map(TrainingData::load).collect::<Result<Vec<_>, _>>()?;
    label_trainings(&mut loaded);
    let figures = figures::learning_curves(&loaded);
    let page = page::training::html(&loaded, &figures);
    Ok((figures, page))
}

fn write_files(
    figures: &[Figure],
    page: &str,
    out: &Path,
    options: &ReportOptions,
) -> Result<ReportFiles, ReportError> {
    let dir = out.join(FIGURES_DIR);
    let mut files = Vec::new();
    let drawn: &[Figure] = if options.page_only { &[] } else { figures };
    for figure in drawn {
        let sheet = draw::sheet(figure);
        let png = draw::png(&sheet).ok_or(ReportError::FigureTooLarge {
            name: figure.name,
            panels: figure.panels.len(),
        })?;
        let forms = [
            ("svg", draw::svg(&sheet).into_bytes()),
            ("png", png),
            ("csv", figure.csv().into_bytes()),
        ];
        for (extension, bytes) in forms {
            files.push(write_creating_dirs(
                &dir.join(format!("{}.{extension}", figure.name)),
                &bytes,
            )?);
        }
    }
    let page = write_creating_dirs(&out.join(PAGE_FILE), page.as_bytes())?;
    Ok(ReportFiles { page, figures: files })
}

/// Writes a file atomically, creating its directory if necessary.
fn write_creating_dirs(path: &Path, bytes: &[u8]) -> Result<PathBuf, ReportError> {
    let dir = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(dir)
        .map_err(|source| record::RecordError::Write { path: dir.into(), source })?;
    record::write_atomic(path, bytes)?;
    Ok(path.into())
}
