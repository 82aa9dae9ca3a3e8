//! Every way a run directory can disappoint, one variant each.
//!
//! Messages are lower case and name the file, the field and the next step. The cause (an I/O or
//! JSON error) is kept as the source and not repeated in the message, so that printing the chain
//! says everything once.

use std::io;
use std::path::PathBuf;

use crate::manifest::FORMAT;

/// What went wrong with a run directory.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// A file or directory could not be written.
    #[error("cannot write {path} ({})", next_step(.source))]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// A new run would have replaced an old one.
    #[error("{path} already holds a run; pass --resume to continue it or --out to write elsewhere")]
    Exists {
        /// The run directory.
        path: PathBuf,
    },
    /// A directory that should hold a run does not.
    #[error(
        "{path} is not a run directory: it has no manifest.json; name a directory that `eval` wrote"
    )]
    NotARun {
        /// The directory.
        path: PathBuf,
    },
    /// Another process is writing this run.
    #[error(
        "{path} is being written by another process; wait for it or pass --out to write elsewhere"
    )]
    Locked {
        /// The run directory.
        path: PathBuf,
    },
    /// The file was written in another format.
    #[error(
        "{path} has format version {found}, this program reads version {FORMAT}; \
         read it with the version that wrote it or run again with --out"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version it carries.
        found: u64,
    },
    /// The file, or one line of it, is not the JSON it should be.
    #[error("{path}:{line}: not valid here; remove the damaged text or run again with --out")]
    Json {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The parser's word.
        source: serde_json::Error,
    },
    /// A line is valid JSON that says something impossible.
    #[error("{path}:{line}: {field} {why}; remove the line or run again with --out")]
    InvalidLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The field, e.g. `trajectories[3].scores`.
        field: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// What was to be written says something impossible, e.g. a score that is not a number.
    #[error("cannot record this in {path}: {field} {why}")]
    InvalidRecord {
        /// The file.
        path: PathBuf,
        /// The field, e.g. `trajectories[3].scores`.
        field: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// One question appears twice under one seed.
    #[error(
        "{path}:{line}: question {id} under seed {seed} is recorded twice; remove one of the lines"
    )]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The line, from 1, of the second one.
        line: usize,
        /// The question.
        id: u32,
        /// The seed.
        seed: u64,
    },
    /// A resumed run was asked for with settings that would change its results.
    #[error(
        "{path}: the run was started with {field} = {stored}, now it is {asked}; \
         use the stored value to resume it or pass --out to write elsewhere"
    )]
    Mismatch {
        /// The manifest.
        path: PathBuf,
        /// The first field that differs, e.g. `settings.perturbation.p`.
        field: String,
        /// Its value in the manifest.
        stored: String,
        /// Its value now.
        asked: String,
    },
}

/// A broken rule of a record, before it is known in which file and line.
#[derive(Debug)]
pub(crate) struct FieldError {
    pub(crate) field: String,
    pub(crate) why: &'static str,
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, why: &'static str) -> Self {
        Self { field: field.into(), why }
    }

    /// The error for a record that was about to be written to `path`.
    pub(crate) fn into_record_error(self, path: impl Into<PathBuf>) -> RecordError {
        RecordError::InvalidRecord { path: path.into(), field: self.field, why: self.why }
    }
}

/// What the user can do about a failed write.
fn next_step(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space, then pass --resume"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "pass --out to write elsewhere"
        }
        _ => "pass --resume to continue or --out to write elsewhere",
    }
}
