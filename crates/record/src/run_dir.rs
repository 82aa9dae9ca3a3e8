//! Creating, resuming and reading a run directory.
//!
//! Creating and resuming return a [`RunWriter`]. A run can be read at any stage: finished, killed,
//! or still being written.

use std::fs;
use std::path::{Path, PathBuf};

use crate::ablation::Ablation;
use crate::document;
use crate::error::RecordError;
use crate::latents;
use crate::lines::JsonLines;
use crate::manifest::{self, Manifest};
use crate::results::Results;
use crate::sample::{Sample, Validate};
use crate::writer::{RunLock, RunWriter};
use schema::StageSeconds;

pub(crate) const MANIFEST_FILE: &str = "manifest.json";
pub(crate) const SAMPLES_FILE: &str = "samples.jsonl";
pub(crate) const TIMINGS_FILE: &str = "timings.jsonl";
const RESULTS_FILE: &str = "results.json";
const ABLATION_FILE: &str = "ablation.json";

/// A run directory open for reading.
#[derive(Debug, Clone, PartialEq)]
pub struct RunDir {
    path: PathBuf,
    manifest: Manifest,
}

impl RunDir {
    /// Starts a run in a directory that contains none. Creates the directory if it is missing.
    pub fn create(path: impl AsRef<Path>, manifest: &Manifest) -> Result<RunWriter, RecordError> {
        let path = path.as_ref();
        let lock = RunLock::new(path)?;
        if [MANIFEST_FILE, SAMPLES_FILE].iter().any(|name| path.join(name).exists()) {
            return Err(RecordError::Exists { path: path.into() });
        }
        lock.start(manifest)
    }

    /// Starts a run, replacing an existing one. Files that do not belong to a run are left
    /// unchanged.
    pub fn overwrite(
        path: impl AsRef<Path>,
        manifest: &Manifest,
    ) -> Result<RunWriter, RecordError> {
        let path = path.as_ref();
        let lock = RunLock::new(path)?;
        // The manifest is removed last: until then the directory is still recognized as a run.
        for name in [
            RESULTS_FILE,
            ABLATION_FILE,
            latents::LATENTS_FILE,
            latents::PART_FILE,
            TIMINGS_FILE,
            SAMPLES_FILE,
            MANIFEST_FILE,
        ] {
            remove_if_exists(&path.join(name))?;
        }
        lock.start(manifest)
    }

    /// Resumes a run, or starts it if the directory contains none.
    ///
    /// Every field of the manifest that affects results must equal the stored one, which is not
    /// rewritten. A damaged last line is removed, so that its question is recomputed; a damaged
    /// earlier line is an error.
    pub fn resume(path: impl AsRef<Path>, manifest: &Manifest) -> Result<RunWriter, RecordError> {
        let path = path.as_ref();
        let lock = RunLock::new(path)?;
        let stored = path.join(MANIFEST_FILE);
        if stored.exists() {
            let found: Manifest = document::read_document(&stored)?;
            manifest::check_resumable(&found, manifest, &stored)?;
            return lock.resume(&found);
        }
        // Samples whose settings are unknown cannot be resumed.
        match path.join(SAMPLES_FILE).exists() {
            true => Err(RecordError::NotARun { path: path.into() }),
            false => lock.start(manifest),
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

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content of `manifest.json`.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The file of the samples.
    pub fn samples_file(&self) -> PathBuf {
        self.path.join(SAMPLES_FILE)
    }

    /// Iterates over the samples recorded so far.
    pub fn samples(&self) -> Result<JsonLines<Sample>, RecordError> {
        JsonLines::open(&self.path.join(SAMPLES_FILE), Some(manifest::digest(&self.manifest)))
    }

    /// The total seconds by stage so far, over all resumptions.
    pub fn seconds(&self) -> Result<StageSeconds, RecordError> {
        let path = self.path.join(TIMINGS_FILE);
        let mut sum = StageSeconds::default();
        if path.exists() {
            for seconds in JsonLines::<StageSeconds>::open(&path, None)? {
                sum += seconds?;
            }
        }
        Ok(sum)
    }

    /// Reads `results.json`.
    pub fn results(&self) -> Result<Results, RecordError> {
        document::read_document(&self.path.join(RESULTS_FILE))
    }

    /// Writes `results.json`, replacing an older one.
    pub fn write_results(&self, results: &Results) -> Result<(), RecordError> {
        let path = self.path.join(RESULTS_FILE);
        results.validate().map_err(|error| error.into_record_error(&path))?;
        document::write_document(&path, results)
    }

    /// Reads `ablation.json`; `None` if thoughts were not replaced.
    pub fn ablation(&self) -> Result<Option<Ablation>, RecordError> {
        let path = self.path.join(ABLATION_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let ablation: Ablation = document::read_document(&path)?;
        ablation.validate().map_err(|error| error.into_record_error(&path))?;
        Ok(Some(ablation))
    }

    /// Writes `ablation.json`, replacing an older one.
    pub fn write_ablation(&self, ablation: &Ablation) -> Result<(), RecordError> {
        let path = self.path.join(ABLATION_FILE);
        ablation.validate().map_err(|error| error.into_record_error(&path))?;
        document::write_document(&path, ablation)
    }
}

pub(crate) fn remove_if_exists(path: &Path) -> Result<(), RecordError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(RecordError::Write { path: path.into(), source })
        }
        _ => Ok(()),
    }
}
