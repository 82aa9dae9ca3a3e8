//! The file `sweep.json`: what a sweep found, and the settings that a resumed one must share.
//!
//! It is written when a sweep begins, without points, and again when it ends.

use std::path::Path;

use anyhow::{Context, Result, bail};
use latent_tts::record::{self, DirLock};
use latent_tts::sweep::{SUMMARY_FILE, SweepSummary};
use serde_json::Value;

/// Begins the sweep in `dir`: an existing one is only continued on request, with equal settings.
/// The lock is held until the sweep ends.
pub fn start(dir: &Path, begun: &SweepSummary, resume: bool) -> Result<DirLock> {
    let lock = record::lock_dir(dir)?;
    let path = dir.join(SUMMARY_FILE);
    if path.is_file() {
        if !resume {
            bail!(
                "{} already holds a sweep; continue it with --resume, or name another directory \
                 with --out",
                dir.display()
            );
        }
        let stored = parse(&path)?;
        let difference = record::first_difference("settings", &stored.settings, &begun.settings);
        if let Some(record::FieldDifference { field, stored, requested }) = difference {
            bail!(
                "{}: the sweep was begun with {field} = {stored}, now it is {requested}; use the \
                 same settings, or name another directory with --out",
                path.display()
            );
        }
        // What it found stays until there is something to replace it.
        return Ok(lock);
    }
    record::write_document(&path, begun)?;
    Ok(lock)
}

/// The summary in `dir`; `None` if there is none.
pub fn read(dir: &Path) -> Result<Option<SweepSummary>> {
    let path = dir.join(SUMMARY_FILE);
    if !path.is_file() {
        return Ok(None);
    }
    let summary = parse(&path)?;
    if summary.points.is_empty() {
        bail!("the sweep in {} is not finished; continue it with --resume", dir.display());
    }
    Ok(Some(summary))
}

fn parse(path: &Path) -> Result<SweepSummary> {
    let parse = || -> Result<SweepSummary> {
        let summary: Value = serde_json::from_slice(&std::fs::read(path)?)?;
        match summary["version"].as_u64() {
            Some(version) if version == u64::from(record::FORMAT) => {
                Ok(serde_json::from_value(summary)?)
            }
            _ => bail!("it is not of format version {}", record::FORMAT),
        }
    };
    parse()
        .with_context(|| format!("cannot use {}; sweep again with another --out", path.display()))
}
