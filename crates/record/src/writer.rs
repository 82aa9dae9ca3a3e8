//! Writes a run: samples and timings, appended line by line.
//!
//! One writer per directory, enforced by a file lock that the operating system releases with the
//! process. Each line is one unbuffered write, newline included: if the process is killed, the file
//! contains complete lines and at most one partial line after them.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::files::{self, DirLock, Fingerprint};
use serde::Serialize;

use crate::document;
use crate::error::RecordError;
use crate::lines::{add_digest, recover_lines};
use crate::manifest::{self, Manifest};
use crate::run_dir::{MANIFEST_FILE, RunDir, SAMPLES_FILE, TIMINGS_FILE};
use crate::sample::{Sample, Validate};
use schema::StageSeconds;

/// A run directory open for writing.
#[derive(Debug)]
pub struct RunWriter {
    path: PathBuf,
    samples: LineAppender,
    timings: LineAppender,
    /// The recorded (seed, id) pairs.
    done: HashSet<(u64, u32)>,
    _lock: DirLock,
}

impl RunWriter {
    /// Whether this question is recorded under this seed.
    pub fn is_done(&self, seed: u64, id: u32) -> bool {
        self.done.contains(&(seed, id))
    }

    /// The number of recorded samples.
    pub fn done_count(&self) -> usize {
        self.done.len()
    }

    /// Appends one sample. When this returns, the operating system has it.
    pub fn append(&mut self, sample: &Sample) -> Result<(), RecordError> {
        if self.is_done(sample.seed, sample.id) {
            let path = self.samples.path.clone();
            let line = self.done_count() + 1;
            return Err(RecordError::Duplicate { path, line, id: sample.id, seed: sample.seed });
        }
        self.samples.append(sample)?;
        self.done.insert((sample.seed, sample.id));
        Ok(())
    }

    /// Appends the seconds spent since the last call.
    pub fn append_timing(&mut self, seconds: &StageSeconds) -> Result<(), RecordError> {
        self.timings.append(seconds)
    }

    /// Syncs both files to disk and opens the run for reading.
    pub fn finish(self) -> Result<RunDir, RecordError> {
        self.samples.sync()?;
        self.timings.sync()?;
        RunDir::open(&self.path)
    }
}

/// An exclusive lock on a directory, acquired before its content is examined.
pub(crate) struct RunLock<'a> {
    path: &'a Path,
    lock: DirLock,
}

impl<'a> RunLock<'a> {
    /// Creates the directory if it is missing and locks it.
    pub(crate) fn new(path: &'a Path) -> Result<Self, RecordError> {
        Ok(Self { path, lock: lock_dir(path)? })
    }

    /// Writes the manifest, which makes the directory a run, and opens it for writing.
    pub(crate) fn start(self, manifest: &Manifest) -> Result<RunWriter, RecordError> {
        document::write_document(&self.path.join(MANIFEST_FILE), manifest)?;
        self.resume(manifest)
    }

    /// Opens an existing run for writing.
    pub(crate) fn resume(self, manifest: &Manifest) -> Result<RunWriter, RecordError> {
        let samples = self.path.join(SAMPLES_FILE);
        let timings = self.path.join(TIMINGS_FILE);
        let mut done = HashSet::new();
        let run = manifest::digest(manifest);
        recover_lines(&samples, Some(run.clone()), |sample: Sample, line| {
            match done.insert((sample.seed, sample.id)) {
                true => Ok(()),
                false => Err(RecordError::Duplicate {
                    path: samples.clone(),
                    line,
                    id: sample.id,
                    seed: sample.seed,
                }),
            }
        })?;
        recover_lines(&timings, None, |_: StageSeconds, _| Ok(()))?;
        Ok(RunWriter {
            path: self.path.into(),
            samples: LineAppender::open(samples, Some(run))?,
            timings: LineAppender::open(timings, None)?,
            done,
            _lock: self.lock,
        })
    }
}

/// Locks a directory for one writer, and removes the temporary files of killed writers.
pub fn lock_dir(path: &Path) -> Result<DirLock, RecordError> {
    DirLock::exclusive(path).map_err(|source| lock_error(path, source))
}

/// Locks one of several parts of a directory's files.
pub fn lock_part(path: &Path, part: &str) -> Result<DirLock, RecordError> {
    DirLock::part(path, part).map_err(|source| lock_error(path, source))
}

fn lock_error(path: &Path, source: io::Error) -> RecordError {
    if source.kind() == io::ErrorKind::ResourceBusy {
        return RecordError::Locked { path: path.to_owned() };
    }
    dir_error(path, source)
}

/// The error for a directory that cannot be created.
pub(crate) fn dir_error(path: &Path, source: io::Error) -> RecordError {
    match path.ancestors().find(|above| above.exists()) {
        Some(file) if !file.is_dir() => RecordError::NotADirectory { path: file.to_owned() },
        _ => RecordError::Write { path: path.to_owned(), source },
    }
}

/// Creates a directory and its parents.
pub fn create_dir(path: &Path) -> Result<(), RecordError> {
    std::fs::create_dir_all(path).map_err(|source| dir_error(path, source))
}

/// A JSON Lines file open for appending.
#[derive(Debug)]
struct LineAppender {
    path: PathBuf,
    file: File,
    /// The length in bytes up to the last complete line.
    length: u64,
    /// The digest from which each line's digest is computed, if lines have one.
    run: Option<Fingerprint>,
}

impl LineAppender {
    fn open(path: PathBuf, run: Option<Fingerprint>) -> Result<Self, RecordError> {
        match files::open_append(&path).and_then(|file| Ok((file.metadata()?.len(), file))) {
            Ok((length, file)) => Ok(Self { path, file, length, run }),
            Err(source) => Err(RecordError::Write { path, source }),
        }
    }

    fn append(&mut self, record: &(impl Serialize + Validate)) -> Result<(), RecordError> {
        record.validate().map_err(|error| error.into_record_error(&self.path))?;
        self.write(record).map_err(|source| {
            // Undo a partial write (disk full): the next append would otherwise continue that line.
            let _ = self.file.set_len(self.length);
            RecordError::Write { path: self.path.clone(), source }
        })
    }

    fn write(&mut self, record: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        if let Some(run) = &self.run {
            add_digest(run, &mut line);
        }
        line.push(b'\n');
        self.file.write_all(&line)?;
        self.length += line.len() as u64;
        Ok(())
    }

    fn sync(&self) -> Result<(), RecordError> {
        self.file
            .sync_all()
            .map_err(|source| RecordError::Write { path: self.path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_reported_with_a_hint() {
        let mut full = LineAppender::open("/dev/full".into(), None).unwrap();
        let error = full.append(&StageSeconds::default()).unwrap_err();
        assert_eq!(error.to_string(), "cannot write /dev/full (free some space and run it again)");
        let RecordError::Write { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn values_that_json_cannot_represent_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("timings.jsonl");
        let mut timings = LineAppender::open(path.clone(), None).unwrap();
        let error = timings
            .append(&StageSeconds { total: f64::NAN, ..StageSeconds::default() })
            .unwrap_err();
        assert!(matches!(error, RecordError::InvalidRecord { .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"");
    }
}
