//! A run directory, to begin, continue or read.
//!
//! Beginning and continuing give a [`Writer`]; reading needs only the path and the manifest, and
//! sees a run at any stage: finished, killed, or still being written.

use std::fs;
use std::path::{Path, PathBuf};

use crate::document;
use crate::error::RecordError;
use crate::latents;
use crate::lines::JsonLines;
use crate::manifest::Manifest;
use crate::results::{Results, Seconds};
use crate::sample::{Sample, Validate};
use crate::writer::{RunLock, RunWriter};

pub(crate) const MANIFEST_FILE: &str = "manifest.json";
pub(crate) const SAMPLES_FILE: &str = "samples.jsonl";
pub(crate) const TIMINGS_FILE: &str = "timings.jsonl";
const RESULTS_FILE: &str = "results.json";

/// A run directory that can be read.
#[derive(Debug, Clone, PartialEq)]
pub struct RunDir {
    path: PathBuf,
    manifest: Manifest,
}

impl RunDir {
    /// Begins a run in a directory that holds none; the directory is made where it is missing.
    pub fn create(path: impl AsRef<Path>, manifest: &Manifest) -> Result<RunWriter, RecordError> {
        let path = path.as_ref();
        let claim = RunLock::new(path)?;
        if [MANIFEST_FILE, SAMPLES_FILE].iter().any(|name| path.join(name).exists()) {
            return Err(RecordError::Exists { path: path.into() });
        }
        claim.start(manifest)
    }

    /// Begins a run in place of the one that is there, if any. Files that are not a run's stay.
    pub fn overwrite(
        path: impl AsRef<Path>,
        manifest: &Manifest,
    ) -> Result<RunWriter, RecordError> {
        let path = path.as_ref();
        let claim = RunLock::new(path)?;
        // The manifest goes last: until then the directory is still recognised as a run.
        for name in [
            RESULTS_FILE,
            latents::LATENTS_FILE,
            latents::PART_FILE,
            TIMINGS_FILE,
            SAMPLES_FILE,
            MANIFEST_FILE,
        ] {
            remove_if_exists(&path.join(name))?;
        }
        claim.start(manifest)
    }

    /// Continues a run, or begins it where none was begun.
    ///
    /// What changes results must be as it was. A last line that was cut short is removed, to be
    /// done again; a damaged line before it is an error. The stored manifest stays as it is.
    pub fn resume(path: impl AsRef<Path>, manifest: &Manifest) -> Result<RunWriter, RecordError> {
        let path = path.as_ref();
        let claim = RunLock::new(path)?;
        let stored = path.join(MANIFEST_FILE);
        if stored.exists() {
            document::read_document::<Manifest>(&stored)?.check_resumable(manifest, &stored)?;
            return claim.resume();
        }
        // Samples that nobody can say the settings of cannot be continued.
        match path.join(SAMPLES_FILE).exists() {
            true => Err(RecordError::NotARun { path: path.into() }),
            false => claim.start(manifest),
        }
    }

    /// Opens a run for reading.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, RecordError> {
        let path = path.as_ref();
        let stored = path.join(MANIFEST_FILE);
        if !stored.exists() {
            return Err(RecordError::NotARun { path: path.into() });
        }
        Ok(Self { path: path.into(), manifest: document::read_document(&stored)? })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was asked for.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The samples written so far, one at a time.
    pub fn samples(&self) -> Result<JsonLines<Sample>, RecordError> {
        JsonLines::open(&self.path.join(SAMPLES_FILE))
    }

    /// The seconds spent so far, over every part of a run that was resumed.
    pub fn seconds(&self) -> Result<Seconds, RecordError> {
        let path = self.path.join(TIMINGS_FILE);
        let mut sum = Seconds::default();
        if path.exists() {
            for seconds in JsonLines::<Seconds>::open(&path)? {
                sum += seconds?;
            }
        }
        Ok(sum)
    }

    /// The results, where they were written.
    pub fn results(&self) -> Result<Results, RecordError> {
        document::read_document(&self.path.join(RESULTS_FILE))
    }

    /// Writes the results, in place of older ones.
    pub fn write_results(&self, results: &Results) -> Result<(), RecordError> {
        let path = self.path.join(RESULTS_FILE);
        results.validate().map_err(|fault| fault.into_record_error(&path))?;
        document::write_document(&path, results)
    }
}

fn remove_if_exists(path: &Path) -> Result<(), RecordError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(RecordError::Write { path: path.into(), source })
        }
        _ => Ok(()),
    }
}
