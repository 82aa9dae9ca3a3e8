//! The append-only files of a training: `log.jsonl`, `evals.jsonl` and `timings.jsonl`.
//!
//! They may be ahead of the saved state if the process was killed after the last save.
//! [`TrainRecords::open`] removes the lines of steps that will be repeated.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use record::{EvalRecord, StepRecord, TrainTiming, TrainingDir};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::TrainError;

/// The records of a training, open for appending.
pub(super) struct TrainRecords {
    log: LineFile,
    evals: LineFile,
    timings: LineFile,
}

impl TrainRecords {
    /// Truncates the records to the first `steps` steps and returns their log.
    pub(super) fn open(
        dir: &TrainingDir,
        steps: u32,
    ) -> Result<(Self, Vec<StepRecord>), TrainError> {
        let path = dir.path();
        std::fs::create_dir_all(path)
            .map_err(|source| TrainError::Io { path: path.to_owned(), source })?;
        let (log, past) = LineFile::open(&dir.log_file(), |line: &StepRecord| line.step < steps)?;
        let (evals, _) = LineFile::open(&dir.evals_file(), |line: &EvalRecord| line.step <= steps)?;
        let (timings, _) =
            LineFile::open(&dir.timings_file(), |line: &TrainTiming| line.step < steps)?;
        Ok((Self { log, evals, timings }, past))
    }

    pub(super) fn add_step(&mut self, record: &StepRecord) -> Result<(), TrainError> {
        self.log.write(record)
    }

    pub(super) fn add_eval(&mut self, record: &EvalRecord) -> Result<(), TrainError> {
        self.evals.write(record)
    }

    pub(super) fn add_timing(&mut self, timing: &TrainTiming) -> Result<(), TrainError> {
        self.timings.write(timing)
    }

    /// Flushes everything to disk. Must precede every save of the state, which must not be ahead of
    /// the records.
    pub(super) fn sync(&mut self) -> Result<(), TrainError> {
        [&mut self.log, &mut self.evals, &mut self.timings].into_iter().try_for_each(LineFile::sync)
    }
}

/// A file of one JSON object per line.
struct LineFile {
    path: PathBuf,
    out: BufWriter<File>,
}

impl LineFile {
    /// Truncates the file before the first corrupt line or the first rejected by `keep`; returns
    /// the remaining lines.
    fn open<T: DeserializeOwned>(
        path: &Path,
        keep: impl Fn(&T) -> bool,
    ) -> Result<(Self, Vec<T>), TrainError> {
        let failed = |source| TrainError::Io { path: path.to_owned(), source };
        let text = match record::files::read_regular(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
            read => read.map_err(failed)?,
        };
        let mut kept = Vec::new();
        let mut length = 0;
        for line in text.split_inclusive(|&byte| byte == b'\n') {
            let record = serde_json::from_slice(line).ok().filter(|_| line.ends_with(b"\n"));
            let Some(record) = record.filter(&keep) else { break };
            kept.push(record);
            length += line.len();
        }
        let out = record::files::open_append(path).map_err(failed)?;
        out.set_len(length as u64).map_err(failed)?;
        Ok((Self { path: path.to_owned(), out: BufWriter::new(out) }, kept))
    }

    fn write(&mut self, record: &impl Serialize) -> Result<(), TrainError> {
        let text = serde_json::to_string(record).map_err(|e| self.error(e.into()))?;
        writeln!(self.out, "{text}").map_err(|source| self.error(source))
    }

    fn sync(&mut self) -> Result<(), TrainError> {
        let synced = self.out.flush().and_then(|()| self.out.get_ref().sync_data());
        synced.map_err(|source| self.error(source))
    }

    fn error(&self, source: std::io::Error) -> TrainError {
        TrainError::Io { path: self.path.clone(), source }
    }
}
