//! Errors of reading and writing annotations.

use std::io;
use std::path::PathBuf;

/// Why a directory of annotations cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnnotationError {
    /// A file cannot be read.
    #[error("cannot read {}; check that it is there and may be read", path.display())]
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
        "{} already holds annotations; resume them, overwrite them, or use another directory",
        dir.display()
    )]
    Exists {
        /// The directory.
        dir: PathBuf,
    },

    /// The directory has no index.
    #[error(
        "{} holds no annotations: it has no index.json; name a directory that `annotate` wrote",
        dir.display()
    )]
    NoIndex {
        /// The directory.
        dir: PathBuf,
    },

    /// The index cannot be parsed.
    #[error(
        "{}: not an index of annotations: {why}; overwrite it with a new `annotate`",
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
        "{}: format version {found}, this program reads version {reads}; read it with the version \
         that wrote it or run `annotate` again",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version that is read.
        reads: u32,
    },

    /// The stored annotations were begun with other settings.
    #[error(
        "{}: it was begun with {} = {}, now it is {}; continue with what it was begun with, or use \
         another directory",
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
         copy the files that other machines made",
        dir.display()
    )]
    MissingShards {
        /// The directory.
        dir: PathBuf,
        /// Expected shards.
        shards: usize,
        /// Missing shards.
        missing: usize,
        /// File name of the first missing one.
        first: String,
    },

    /// A shard does not have the expected content.
    #[error("{}: {why}; remove the file and resume `annotate`", path.display())]
    BadShard {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },

    /// An annotated question does not have the shape that the index states.
    #[error(
        "question {id}: {found} {what} where the index says {wanted}; annotate with the settings \
         of the index"
    )]
    ShapeMismatch {
        /// The question's id.
        id: u32,
        /// What differs.
        what: &'static str,
        /// Its value.
        found: usize,
        /// The value of the index.
        wanted: usize,
    },
}
