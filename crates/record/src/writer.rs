//! A run being written: samples and timings, appended line by line.
//!
//! One writer per directory, held by a lock that the system drops with the process. Each line goes
//! out in one write, newline included, and nothing is buffered here: whatever kills the process,
//! the file holds whole lines and at most one part of a line after them.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::document;
use crate::error::RecordError;
use crate::lines::recover_lines;
use crate::manifest::Manifest;
use crate::results::Seconds;
use crate::run_dir::{MANIFEST_FILE, RunDir, SAMPLES_FILE, TIMINGS_FILE};
use crate::sample::{Sample, Validate};

/// A run directory that is being written.
#[derive(Debug)]
pub struct RunWriter {
    path: PathBuf,
    samples: LineAppender,
    timings: LineAppender,
    /// The (seed, id) pairs on file.
    done: HashSet<(u64, u32)>,
    _lock: Option<File>,
}

impl RunWriter {
    /// Whether this question is on file under this seed.
    pub fn is_done(&self, seed: u64, id: u32) -> bool {
        self.done.contains(&(seed, id))
    }

    /// How many samples are on file.
    pub fn done_count(&self) -> usize {
        self.done.len()
    }

    /// Writes one sample. When this returns, the system has it.
    pub fn append(&mut self, sample: &Sample) -> Result<(), RecordError> {
        if self.is_done(sample.seed, sample.id) {
            let (path, line) = (self.samples.path.clone(), self.done_count() + 1);
            return Err(RecordError::Duplicate { path, line, id: sample.id, seed: sample.seed });
        }
        self.samples.append(sample)?;
        self.done.insert((sample.seed, sample.id));
        Ok(())
    }

    /// Writes the seconds spent since the last call.
    pub fn append_timing(&mut self, seconds: &Seconds) -> Result<(), RecordError> {
        self.timings.append(seconds)
    }

    /// Puts everything on the disk and opens the run for reading.
    pub fn finish(self) -> Result<RunDir, RecordError> {
        self.samples.sync()?;
        self.timings.sync()?;
        RunDir::open(&self.path)
    }
}

/// A directory that is ours to write to, before it is known what it holds.
pub(crate) struct RunLock<'a> {
    path: &'a Path,
    lock: Option<File>,
}

impl<'a> RunLock<'a> {
    /// Makes the directory where it is missing and claims it.
    pub(crate) fn new(path: &'a Path) -> Result<Self, RecordError> {
        fs::create_dir_all(path)
            .map_err(|source| RecordError::Write { path: path.into(), source })?;
        // Not every system can lock a directory; there, the user has to keep writers apart.
        let Ok(lock) = File::open(path) else {
            return Ok(Self { path, lock: None });
        };
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, lock: Some(lock) }),
            Err(TryLockError::WouldBlock) => Err(RecordError::Locked { path: path.into() }),
            Err(TryLockError::Error(_)) => Ok(Self { path, lock: None }),
        }
    }

    /// Begins a run: from here on the directory is one.
    pub(crate) fn start(self, manifest: &Manifest) -> Result<RunWriter, RecordError> {
        document::write_document(&self.path.join(MANIFEST_FILE), manifest)?;
        self.resume()
    }

    /// Continues the run that is there.
    pub(crate) fn resume(self) -> Result<RunWriter, RecordError> {
        let (samples, timings) = (self.path.join(SAMPLES_FILE), self.path.join(TIMINGS_FILE));
        let mut done = HashSet::new();
        recover_lines(&samples, |sample: Sample, line| {
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
        recover_lines(&timings, |_: Seconds, _| Ok(()))?;
        Ok(RunWriter {
            path: self.path.into(),
            samples: LineAppender::open(samples)?,
            timings: LineAppender::open(timings)?,
            done,
            _lock: self.lock,
        })
    }
}

/// A file that grows by whole lines.
#[derive(Debug)]
struct LineAppender {
    path: PathBuf,
    file: File,
    /// The end of the last whole line.
    length: u64,
}

impl LineAppender {
    fn open(path: PathBuf) -> Result<Self, RecordError> {
        let opened = OpenOptions::new().append(true).create(true).open(&path);
        match opened.and_then(|file| Ok((file.metadata()?.len(), file))) {
            Ok((length, file)) => Ok(Self { path, file, length }),
            Err(source) => Err(RecordError::Write { path, source }),
        }
    }

    fn append(&mut self, record: &(impl Serialize + Validate)) -> Result<(), RecordError> {
        record.validate().map_err(|fault| fault.into_record_error(&self.path))?;
        self.write(record).map_err(|source| {
            // A full disk may have taken half a line. Were it left, the next append would put it in
            // the middle.
            let _ = self.file.set_len(self.length);
            RecordError::Write { path: self.path.clone(), source }
        })
    }

    fn write(&mut self, record: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
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
        let mut full = LineAppender::open("/dev/full".into()).unwrap();
        let error = full.append(&Seconds::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot write /dev/full (free some space, then pass --resume)"
        );
        let RecordError::Write { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    }

    #[test]
    fn values_that_json_cannot_represent_are_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("timings.jsonl");
        let mut timings = LineAppender::open(path.clone()).unwrap();
        let error = timings.append(&Seconds { total: f64::NAN, ..Seconds::default() }).unwrap_err();
        assert!(matches!(error, RecordError::InvalidRecord { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"");
    }
}
