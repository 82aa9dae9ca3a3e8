//! The error of this crate.

use std::io;
use std::path::{Path, PathBuf};

/// Errors of computing metrics and writing reports.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The run directory could not be read.
    #[error(transparent)]
    Record(#[from] record::RecordError),
    /// The run has no samples.
    #[error("the run has no samples yet; wait for its first question, or resume it")]
    Empty,
    /// A requested k is 0 or exceeds the number of trajectories.
    #[error(
        "k = {k} was requested, but the run has {n} trajectories per question; use k from 1 to {n}"
    )]
    InvalidK {
        /// The requested k.
        k: usize,
        /// The number of trajectories.
        n: usize,
    },
    /// Samples of one run differ in the requested number of trajectories.
    #[error(
        "question {id} with seed {seed} has {found} trajectories, but earlier questions have \
         {expected}; the samples are from different runs: report them separately"
    )]
    UnevenTrajectories {
        /// The question.
        id: u32,
        /// The seed.
        seed: u64,
        /// The number of trajectories of the question.
        found: usize,
        /// The number of trajectories of the first sample.
        expected: usize,
    },
    /// A question occurs twice with the same seed.
    #[error("question {id} with seed {seed} occurs twice in the samples; delete one of the lines")]
    Duplicate {
        /// The question.
        id: u32,
        /// The seed.
        seed: u64,
    },
    /// An error in one of several runs.
    #[error("{path}")]
    Run {
        /// The run directory.
        path: PathBuf,
        /// The error.
        source: Box<Self>,
    },
    /// The run is incomplete.
    #[error("{path} has {found} of {expected} records; resume it, or report it as partial")]
    Incomplete {
        /// The run directory.
        path: PathBuf,
        /// The number of records.
        found: usize,
        /// The number of records according to the manifest.
        expected: usize,
    },
    /// The run has more records than its manifest requests.
    #[error(
        "{path} has {found} records, but its manifest.json says {expected}; its samples.jsonl \
         belongs to another run"
    )]
    Surplus {
        /// The run directory.
        path: PathBuf,
        /// The number of records.
        found: usize,
        /// The number of records according to the manifest.
        expected: usize,
    },
    /// A sample has a seed that is not in the manifest.
    #[error(
        "{path} has records with seed {seed}, which is not in its manifest.json; its samples.jsonl \
         belongs to another run"
    )]
    ForeignSeed {
        /// The run directory.
        path: PathBuf,
        /// The seed.
        seed: u64,
    },
    /// `latents.safetensors` is corrupt.
    #[error("cannot use {path}; delete it, or run again with latents recorded")]
    Latents {
        /// The file.
        path: PathBuf,
        /// The I/O or format error.
        source: io::Error,
    },
    /// The log of a training has no steps.
    #[error("{path} has no steps yet; wait for the first step")]
    NoSteps {
        /// The log.
        path: PathBuf,
    },
    /// No run was given.
    #[error(
        "no run directory was given; pass one or more directories written by `latent-tts eval`"
    )]
    NoRuns,
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// A figure exceeds the size limit of PNG files.
    #[error(
        "the figure {name} with {panels} panels is too large for a PNG image; report fewer runs at \
         once"
    )]
    FigureTooLarge {
        /// The figure's name.
        name: &'static str,
        /// The number of panels.
        panels: usize,
    },
}

impl ReportError {
    /// Adds the run's path, unless the error already contains a path.
    pub(crate) fn in_run(self, path: &Path) -> Self {
        match self {
            Self::Record(_) => self,
            source => Self::Run { path: path.into(), source: Box::new(source) },
        }
    }
}
