//! Errors of reading and writing annotations.

use std::io;
use std::path::PathBuf;

/// Why a directory of annotations cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnnotationError {
    /// A file cannot be read.
    #[error("cannot read {}; check that it exists and is readable", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },

    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] record::RecordError),

    /// The directory already holds annotations.
    #[error(
        "{} already holds annotations; resume or overwrite them, or use another directory",
        dir.display()
    )]
    Exists {
        /// The directory.
        dir: PathBuf,
    },

    /// The directory has no index.
    #[error(
        "{} holds no annotations: index.json is missing; pass a directory that `annotate` wrote",
        dir.display()
    )]
    NoIndex {
        /// The directory.
        dir: PathBuf,
    },

    /// The index cannot be parsed.
    #[error(
        "{}: not an annotation index: {why}; run `annotate` again and overwrite it",
        path.display()
    )]
    BadIndex {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },

    /// The index has another format version.
    #[error(
        "{}: format version {found} is not supported (this program reads version {reads}); use \
         the version that wrote it or run `annotate` again",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The version of the file.
        found: u64,
        /// The supported version.
        reads: u32,
    },

    /// The stored annotations were started with different settings.
    #[error(
        "{}: started with {} = {}, now it is {}; use the original settings or another directory",
        path.display(),
        .by.field,
        .by.stored,
        .by.requested
    )]
    SettingsDiffer {
        /// The index.
        path: PathBuf,
        /// The first difference.
        by: record::FieldDifference,
    },

    /// Shards are missing.
    #[error(
        "{}: {missing} of {shards} shards are missing, the first is {first}; resume `annotate`, or \
         copy the shards written on other machines",
        dir.display()
    )]
    MissingShards {
        /// The directory.
        dir: PathBuf,
        /// Number of expected shards.
        shards: usize,
        /// Number of missing shards.
        missing: usize,
        /// File name of the first missing shard.
        first: String,
    },

    /// A shard does not have the expected content.
    #[error("{}: {why}; delete the file and resume `annotate`", path.display())]
    BadShard {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },

    /// An annotated question does not have the shape given in the index.
    #[error(
        "question {id}: found {found} {what}, but the index says {wanted}; annotate with the \
         settings of the index"
    )]
    ShapeMismatch {
        /// The question's id.
        id: u32,
        /// The quantity that differs, in the plural.
        what: &'static str,
        /// Its value in the question.
        found: usize,
        /// Its value in the index.
        wanted: usize,
    },
}
