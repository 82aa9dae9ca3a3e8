//! `latent-tts report`: figures and one HTML page from run directories. Needs no model.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use record::RunDir;
use report::{ReportFiles, ReportOptions};
use serde_json::json;

use super::sweep;
use crate::args::ReportArgs;
use crate::printer::Printer;

/// Runs `report`.
pub fn run(args: &ReportArgs, printer: &Printer) -> Result<ExitCode> {
    let mut runs = Vec::new();
    for path in &args.runs {
        // The directory of a sweep stands for all of its runs.
        match sweep::run_dirs(path)? {
            Some(points) => {
                runs.extend(points.iter().map(RunDir::open).collect::<Result<Vec<_>, _>>()?)
            }
            None => runs.push(RunDir::open(path)?),
        }
    }
    let out = args.out.clone().unwrap_or_else(|| default_out_dir(&args.runs));
    let ReportFiles { page, figures } = report::write(
        &runs,
        &out,
        ReportOptions { partial: args.partial, page_only: args.page_only },
    )?;
    printer
        .result(&json!({ "page": page, "figures": figures }), || written_files(&page, &figures))?;
    Ok(ExitCode::SUCCESS)
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
