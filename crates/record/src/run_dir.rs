//! A run directory, to begin, continue or read.
//!
//! Beginning and continuing give a [`Writer`]; reading needs only the path and the manifest, and sees a
//! run at any stage: finished, killed, or still being written.

use std::fs;
use std::path::{Path, PathBuf};

use crate::document;
use crate::error::Error;
use crate::latents;
use crate::lines::Lines;
use crate::manifest::Manifest;
use crate::results::{Results, Seconds};
use crate::sample::{Check, Sample};
use crate::writer::{Claim, Writer};

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const SAMPLES: &str = "samples.jsonl";
pub(crate) const TIMINGS: &str = "timings.jsonl";
const RESULTS: &str = "results.json";

/// A run directory that can be read.
#[derive(Debug, Clone, PartialEq)]
pub struct RunDir {
    path: PathBuf,
    manifest: Manifest,
}

impl RunDir {
    /// Begins a run in a directory that holds none; the directory is made where it is missing.
    pub fn create(path: impl AsRef<Path>, manifest: &Manifest) -> Result<Writer, Error> {
        let path = path.as_ref();
        let claim = Claim::new(path)?;
        if [MANIFEST, SAMPLES].iter().any(|name| path.join(name).exists()) {
            return Err(Error::Exists { path: path.into() });
        }
        claim.begin(manifest)
    }

    /// Begins a run in place of the one that is there, if any. Files that are not a run's stay.
    pub fn overwrite(path: impl AsRef<Path>, manifest: &Manifest) -> Result<Writer, Error> {
        let path = path.as_ref();
        let claim = Claim::new(path)?;
        // The manifest goes last: until then the directory is still recognised as a run.
        for name in [RESULTS, latents::FINAL, latents::PART, TIMINGS, SAMPLES, MANIFEST] {
            remove(&path.join(name))?;
        }
        claim.begin(manifest)
    }

    /// Continues a run, or begins it where none was begun.
    ///
    /// What changes results must be as it was. A last line that was cut short is removed, to be done again; a
    /// damaged line before it is an error. The stored manifest stays as it is.
    pub fn resume(path: impl AsRef<Path>, manifest: &Manifest) -> Result<Writer, Error> {
        let path = path.as_ref();
        let claim = Claim::new(path)?;
        let stored = path.join(MANIFEST);
        if stored.exists() {
            document::read::<Manifest>(&stored)?.admits(manifest, &stored)?;
            return claim.resume();
        }
        // Samples that nobody can say the settings of cannot be continued.
        match path.join(SAMPLES).exists() {
            true => Err(Error::NotARun { path: path.into() }),
            false => claim.begin(manifest),
        }
    }

    /// Opens a run for reading.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let stored = path.join(MANIFEST);
        if !stored.exists() {
            return Err(Error::NotARun { path: path.into() });
        }
        Ok(Self { path: path.into(), manifest: document::read(&stored)? })
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
    pub fn samples(&self) -> Result<Lines<Sample>, Error> {
        Lines::open(&self.path.join(SAMPLES))
    }

    /// The seconds spent so far, over every part of a run that was resumed.
    pub fn seconds(&self) -> Result<Seconds, Error> {
        let path = self.path.join(TIMINGS);
        let mut sum = Seconds::default();
        if path.exists() {
            for seconds in Lines::<Seconds>::open(&path)? {
                sum += seconds?;
            }
        }
        Ok(sum)
    }

    /// The results, where they were written.
    pub fn results(&self) -> Result<Results, Error> {
        document::read(&self.path.join(RESULTS))
    }

    /// Writes the results, in place of older ones.
    pub fn write_results(&self, results: &Results) -> Result<(), Error> {
        let path = self.path.join(RESULTS);
        results.check().map_err(|fault| fault.unwritable(&path))?;
        document::write(&path, results)
    }
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::Write { path: path.into(), source }),
        _ => Ok(()),
    }
}
