//! The error of this crate: one variant per way in which a run directory can be invalid.
//!
//! Messages are lower case and name the file, the field and the remedy. The cause (an I/O or
//! JSON error) is the error's source and not repeated in the message.

use std::io;
use std::path::PathBuf;

use crate::manifest::FORMAT;

/// An error from reading or writing a run directory.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file could not be read.
    #[error("cannot read {path}; check that it exists and is readable")]
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
    /// The output directory of a new run already contains one.
    #[error("{path} already holds a run; resume it or write to another directory")]
    Exists {
        /// The run directory.
        path: PathBuf,
    },
    /// An output path is also an input.
    #[error("{output} is an input ({input}); write to another path")]
    OutputIsInput {
        /// The output path.
        output: PathBuf,
        /// The input path as specified by the user.
        input: PathBuf,
    },
    /// The output directory of a training run already contains one.
    #[error(
        "{path} already holds a training run; resume it, replace it or write to another \
         directory"
    )]
    TrainingExists {
        /// The directory.
        path: PathBuf,
    },
    /// The output directory of a training run already contains a model.
    #[error("{path} already holds a model; replace it or write to another directory")]
    ModelExists {
        /// The directory.
        path: PathBuf,
    },
    /// The output directory of a run contains the weights of a model.
    #[error("{path} holds a model; write to another directory")]
    WeightsInDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// The directory does not contain a run.
    #[error(
        "{path} is not a run directory: {}; pass a directory that `eval` wrote",
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
    /// The output directory is a file.
    #[error("{path} is a file; pass a directory to write to")]
    NotADirectory {
        /// The file.
        path: PathBuf,
    },
    /// The run was written in an older format.
    #[error(
        "{path} has format version {found}, which can be read but not resumed; start the run again \
         in another directory, or finish it with the version that wrote it"
    )]
    OldFormat {
        /// The manifest.
        path: PathBuf,
        /// The version in the manifest.
        found: u32,
    },
    /// The file has another format version.
    #[error(
        "{path} has format version {found}, but this program reads version {FORMAT}; \
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
        "{path}:{line}: invalid record; remove the damaged text or run again in another directory"
    )]
    Json {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A line was written by another run, or was changed afterwards.
    #[error(
        "{path}:{line}: changed since this run wrote it; remove this line and all later ones, or \
         run again in another directory"
    )]
    ForeignLine {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// A record does not match the question at its position in the data.
    #[error(
        "{path}:{line}: the record of seed {seed} and question {id} does not match the data \
         ({what}); remove this line and all later ones, or run again in another directory"
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
        /// The part that differs.
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
        /// The violated invariant.
        why: &'static str,
    },
    /// A record to be written violates an invariant, e.g. a reward that is not finite.
    #[error("cannot write a record to {path}: {field} {why}")]
    InvalidRecord {
        /// The file.
        path: PathBuf,
        /// The field, e.g. `trajectories[3].scores`.
        field: String,
        /// The violated invariant.
        why: &'static str,
    },
    /// A record received from another process cannot be parsed.
    #[error("received an invalid record; both processes must run the same version")]
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
    /// The thoughts of a run are missing, damaged or from another run.
    #[error("{path}: {why}; overwrite the run or run again in another directory")]
    Latents {
        /// The file that stores the thoughts.
        path: PathBuf,
        /// A description of the problem.
        why: String,
    },
    /// A run that records its thoughts was resumed without recording them.
    #[error(
        "{path}: the run records its thoughts; resume it with the same option, or remove the file"
    )]
    LatentsKept {
        /// The file that stores the thoughts.
        path: PathBuf,
    },
    /// A run was resumed with settings that would change its results.
    #[error(
        "{path}: the run was started with {field} = {stored}, now it is {requested}; \
         use the stored value to resume it or write to another directory"
    )]
    Mismatch {
        /// The manifest.
        path: PathBuf,
        /// The first field that differs, e.g. `settings.perturbation.p`.
        field: String,
        /// The value in the manifest.
        stored: String,
        /// The requested value.
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

/// The remedy for a failed write.
fn write_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free some space and run it again"
        }
        io::ErrorKind::FileTooLarge => "raise the file size limit and run it again",
        _ => "write to another path",
    }
}
