//! The report on disk: every figure as SVG and PNG, and the page.
//!
//! Each file is written beside its place and renamed into it, so that a browser that is looking never sees a part.

use std::fs;
use std::path::{Path, PathBuf};

use record::RunDir;

use crate::error::Error;
use crate::study::{Study, label};
use crate::{draw, figures, page};

const PAGE: &str = "report.html";
const FIGURES: &str = "figures";

/// What to write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Report runs that did not end as well.
    pub partial: bool,
    /// Leave out the pictures; the page draws its own.
    pub page_only: bool,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The page.
    pub page: PathBuf,
    /// The pictures, SVG and PNG.
    pub figures: Vec<PathBuf>,
}

/// Reads the runs and writes their report into `out`.
pub fn write(runs: &[RunDir], out: &Path, options: Options) -> Result<Written, Error> {
    if runs.is_empty() {
        return Err(Error::NoRuns);
    }
    let mut studies = runs.iter().map(|run| Study::load(run.clone(), options.partial)).collect::<Result<Vec<_>, _>>()?;
    label(&mut studies);
    let figures = figures::all(&studies)?;

    let folder = out.join(FIGURES);
    let mut pictures = Vec::new();
    let drawn: &[figures::Figure] = if options.page_only { &[] } else { &figures };
    for figure in drawn {
        let sheet = draw::sheet(figure);
        let png = draw::png(&sheet).ok_or(Error::Picture { name: figure.name, panels: figure.panels.len() })?;
        for (ending, bytes) in [("svg", draw::svg(&sheet).into_bytes()), ("png", png)] {
            pictures.push(put(&folder.join(format!("{}.{ending}", figure.name)), &bytes)?);
        }
    }
    let page = put(&out.join(PAGE), page::html(&studies, &figures)?.as_bytes())?;
    Ok(Written { page, figures: pictures })
}

/// Writes a file, all or nothing, and makes its folder where it is missing.
fn put(path: &Path, bytes: &[u8]) -> Result<PathBuf, Error> {
    let folder = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder).map_err(|source| record::Error::Write { path: folder.into(), source })?;
    record::write_file(path, bytes)?;
    Ok(path.into())
}
