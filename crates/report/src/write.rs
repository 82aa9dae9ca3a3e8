//! The report on disk: every figure as SVG and PNG, and the page.
//!
//! Each file is written beside its place and renamed into it, so that a browser that is looking
//! never sees a part.

use std::fs;
use std::path::{Path, PathBuf};

use record::RunDir;

use crate::error::ReportError;
use crate::run_data::{RunData, assign_labels};
use crate::{draw, figures, page};

const PAGE_FILE: &str = "report.html";
const FIGURES_DIR: &str = "figures";

/// What to write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportOptions {
    /// Report runs that did not end as well.
    pub partial: bool,
    /// Leave out the pictures; the page draws its own.
    pub page_only: bool,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportFiles {
    /// The page.
    pub page: PathBuf,
    /// The pictures, SVG and PNG.
    pub figures: Vec<PathBuf>,
}

/// Reads the runs and writes their report into `out`.
pub fn write(
    runs: &[RunDir],
    out: &Path,
    options: ReportOptions,
) -> Result<ReportFiles, ReportError> {
    if runs.is_empty() {
        return Err(ReportError::NoRuns);
    }
    let mut studies = runs
        .iter()
        .map(|run| RunData::load(run.clone(), options.partial))
        .collect::<Result<Vec<_>, _>>()?;
    assign_labels(&mut studies);
    let figures = figures::all(&studies)?;

    let folder = out.join(FIGURES_DIR);
    let mut pictures = Vec::new();
    let drawn: &[figures::Figure] = if options.page_only { &[] } else { &figures };
    for figure in drawn {
        let sheet = draw::sheet(figure);
        let png = draw::png(&sheet).ok_or(ReportError::FigureTooLarge {
            name: figure.name,
            panels: figure.panels.len(),
        })?;
        for (ending, bytes) in [("svg", draw::svg(&sheet).into_bytes()), ("png", png)] {
            pictures.push(write_creating_dirs(
                &folder.join(format!("{}.{ending}", figure.name)),
                &bytes,
            )?);
        }
    }
    let page =
        write_creating_dirs(&out.join(PAGE_FILE), page::html(&studies, &figures)?.as_bytes())?;
    Ok(ReportFiles { page, figures: pictures })
}

/// Writes a file, all or nothing, and makes its folder where it is missing.
fn write_creating_dirs(path: &Path, bytes: &[u8]) -> Result<PathBuf, ReportError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder)
        .map_err(|source| record::RecordError::Write { path: folder.into(), source })?;
    record::write_atomic(path, bytes)?;
    Ok(path.into())
}
