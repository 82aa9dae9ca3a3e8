//! Every way in which annotations cannot be written or read.

use std::io;
use std::path::PathBuf;

/// What went wrong with a directory of annotations.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnnotationError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },

    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] record::RecordError),

    /// There is something already.
    #[error("{} already holds annotations; pass --resume to continue them, --overwrite to replace them, or another --out", dir.display())]
    Exists {
        /// The directory.
        dir: PathBuf,
    },

    /// No index.
    #[error("{} holds no annotations: it has no index.json; name a directory that `annotate` wrote", dir.display())]
    NoIndex {
        /// The directory.
        dir: PathBuf,
    },

    /// The index is not one.
    #[error("{}: not an index of annotations: {why}; run `annotate` again with --overwrite", path.display())]
    BadIndex {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },

    /// Written by another version of the format.
    #[error("{}: format version {found}, this program reads version {reads}; read it with the version that wrote it or run `annotate` again", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The version it carries.
        found: u64,
        /// The version that is read.
        reads: u32,
    },

    /// The run that is to be continued was another one.
    #[error("{}: it was begun with {} = {}, now it is {}; continue with what it was begun with, or pass another --out", path.display(), .by.field, .by.stored, .by.requested)]
    SettingsDiffer {
        /// The index.
        path: PathBuf,
        /// Where they differ.
        by: record::FieldDifference,
    },

    /// Shards are missing.
    #[error("{}: {missing} of {shards} shards are missing, the first is {first}; finish with `annotate --resume`, or copy the files that other machines made", dir.display())]
    MissingShards {
        /// The directory.
        dir: PathBuf,
        /// How many there should be.
        shards: usize,
        /// How many are not there.
        missing: usize,
        /// The first of them.
        first: String,
    },

    /// A shard does not hold what it should.
    #[error("{}: {why}; remove the file and run `annotate --resume`", path.display())]
    BadShard {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },

    /// A question that the engine labelled does not fit the index.
    #[error(
        "question {id}: {found} {what} where the index says {wanted}; annotate with the settings of the index"
    )]
    ShapeMismatch {
        /// The question's number.
        id: u32,
        /// What differs.
        what: &'static str,
        /// What came.
        found: usize,
        /// What the index says.
        wanted: usize,
    },
}
