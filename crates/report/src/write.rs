//! Writes the report: every figure as SVG and PNG, and the page. Files are replaced atomically.

use std::fs;
use std::path::{Path, PathBuf};

use record::RunDir;

use crate::error::ReportError;
use crate::run_data::{RunData, assign_labels};
use crate::{draw, figures, page};

const PAGE_FILE: &str = "report.html";
const FIGURES_DIR: &str = "figures";

/// Options of [`write()`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportOptions {
    /// Accept incomplete runs.
    pub partial: bool,
    /// Write the page without figure files; it embeds its own figures.
    pub page_only: bool,
}

/// The files written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportFiles {
    /// The page.
    pub page: PathBuf,
    /// The figures, SVG and PNG.
    pub figures: Vec<PathBuf>,
}

/// Loads the runs and writes their report into `out`.
pub fn write(
    runs: &[RunDir],
    out: &Path,
    options: ReportOptions,
) -> Result<ReportFiles, ReportError> {
    if runs.is_empty() {
        return Err(ReportError::NoRuns);
    }
    let mut loaded = runs
        .iter()
        .map(|run| RunData::load(run.clone(), options.partial))
        .collect::<Result<Vec<_>, _>>()?;
    assign_labels(&mut loaded);
    let figures = figures::all(&loaded)?;

    let dir = out.join(FIGURES_DIR);
    let mut files = Vec::new();
    let drawn: &[figures::Figure] = if options.page_only { &[] } else { &figures };
    for figure in drawn {
        let sheet = draw::sheet(figure);
        let png = draw::png(&sheet).ok_or(ReportError::FigureTooLarge {
            name: figure.name,
            panels: figure.panels.len(),
        })?;
        for (extension, bytes) in [("svg", draw::svg(&sheet).into_bytes()), ("png", png)] {
            files.push(write_creating_dirs(
                &dir.join(format!("{}.{extension}", figure.name)),
                &bytes,
            )?);
        }
    }
    let page =
        write_creating_dirs(&out.join(PAGE_FILE), page::html(&loaded, &figures)?.as_bytes())?;
    Ok(ReportFiles { page, figures: files })
}

/// Writes a file atomically and creates its directory if it is missing.
fn write_creating_dirs(path: &Path, bytes: &[u8]) -> Result<PathBuf, ReportError> {
    let dir = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(dir)
        .map_err(|source| record::RecordError::Write { path: dir.into(), source })?;
    record::write_atomic(path, bytes)?;
    Ok(path.into())
}
