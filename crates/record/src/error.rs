//! The error of this crate: one variant per way in which a run directory can be wrong.
//!
//! Messages are lower case and name the file, the field and the next step. The cause (an I/O or
//! JSON error) is the error's source and not repeated in the message.

use std::io;
use std::path::PathBuf;

use crate::manifest::FORMAT;

/// Why a run directory could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file could not be read.
    #[error("cannot read {path}; check that it is there and may be read")]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// A file or directory could not be written.
    #[error("cannot write {path} ({})", write_hint(.source))]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// A new run would have replaced an old one.
    #[error("{path} already holds a run; resume it or write to another directory")]
    Exists {
        /// The run directory.
        path: PathBuf,
    },
    /// An output is one of the inputs.
    #[error("{output} is an input ({input}); write to another place")]
    OutputIsInput {
        /// The output.
        output: PathBuf,
        /// The input, by the name that it was given.
        input: PathBuf,
    },
    /// A training would have replaced another one.
    #[error("{path} holds a training already; resume it, replace it or write to another directory")]
    TrainingExists {
        /// The directory.
        path: PathBuf,
    },
    /// A training would have replaced a model.
    #[error("{path} holds a model already; replace it or write to another directory")]
    ModelExists {
        /// The directory.
        path: PathBuf,
    },
    /// Records were to be written beside the weights of a model.
    #[error("{path} holds a model; write to another directory")]
    WeightsInDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// A directory that should hold a run does not.
    #[error(
        "{path} is not a run directory: {}; name a directory that `eval` wrote",
        if path.exists() { "it has no manifest.json" } else { "it does not exist" }
    )]
    NotARun {
        /// The directory.
        path: PathBuf,
    },
    /// Another process is writing this run.
    #[error(
        "{path} is being written by another process; wait for it or write to another directory"
    )]
    Locked {
        /// The run directory.
        path: PathBuf,
    },
    /// What should be a directory is a file.
    #[error("{path} is a file; name a directory to write to")]
    NotADirectory {
        /// The file.
        path: PathBuf,
    },
    /// The run was written in an older format.
    #[error(
        "{path} has format version {found}, which is read but not resumed; start the run again in \
         another directory, or finish it with the version that wrote it"
    )]
    OldFormat {
        /// The manifest.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file has another format version.
    #[error(
        "{path} has format version {found}, this program reads version {FORMAT}; \
         read it with the version that wrote it or run again in another directory"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in the file.
        found: u64,
    },
    /// The file, or one line of it, is not JSON of the expected schema.
    #[error(
        "{path}:{line}: not valid here; remove the damaged text or run again in another directory"
    )]
    Json {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A line was written by another run, or was changed since.
    #[error(
        "{path}:{line}: not as this run wrote it; remove the line and those after it, or run again \
         in another directory"
    )]
    ForeignLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A record is not of the question in its place.
    #[error(
        "{path}:{line}: the record of seed {seed} and question {id} is not that of the data there \
         ({what}); remove the line and those after it, or run again in another directory"
    )]
    OtherQuestion {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The recorded seed.
        seed: u64,
        /// The recorded id.
        id: u32,
        /// What differs.
        what: &'static str,
    },
    /// A line is valid JSON with a field that violates an invariant.
    #[error("{path}:{line}: {field} {why}; remove the line or run again in another directory")]
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
    /// A record to be written violates an invariant, e.g. a reward that is not finite.
    #[error("cannot record this in {path}: {field} {why}")]
    InvalidRecord {
        /// The file.
        path: PathBuf,
        /// The field, e.g. `trajectories[3].scores`.
        field: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A record that another process sent is not one.
    #[error("a record that was sent is damaged; both processes must run the same version")]
    Transfer {
        /// The parser's error.
        source: serde_json::Error,
    },
    /// One question appears twice under one seed.
    #[error(
        "{path}:{line}: question {id} under seed {seed} is recorded twice; remove one of the lines"
    )]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The line, from 1, of the second record.
        line: usize,
        /// The question's id.
        id: u32,
        /// The seed.
        seed: u64,
    },
    /// The thoughts of a run are not there, or not its own.
    #[error("{path}: {why}; run again in place of the run or in another directory")]
    Latents {
        /// The file of the thoughts.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A run that keeps its thoughts was to be resumed without them.
    #[error("{path}: the run keeps its thoughts; resume it with them, or remove the file")]
    LatentsKept {
        /// The thoughts so far.
        path: PathBuf,
    },
    /// A run was to be resumed with settings that would change its results.
    #[error(
        "{path}: the run was started with {field} = {stored}, now it is {requested}; \
         use the stored value to resume it or write to another directory"
    )]
    Mismatch {
        /// The manifest.
        path: PathBuf,
        /// The first field that differs, e.g. `settings.perturbation.p`.
        field: String,
        /// Its value in the manifest.
        stored: String,
        /// Its value now.
        requested: String,
    },
}

/// A field that violates an invariant, before file and line are known.
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

/// How to proceed after a failed write.
fn write_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space and run it again"
        }
        io::ErrorKind::FileTooLarge => "raise the limit of file sizes and run it again",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "write to another place"
        }
        _ => "write to another place",
    }
}
