//! The error of this crate.

use std::io;
use std::path::{Path, PathBuf};

/// Why metrics could not be computed or a report not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The run directory could not be read.
    #[error(transparent)]
    Record(#[from] record::RecordError),
    /// The run has no samples.
    #[error("the run holds no samples yet; wait for its first question, or resume it")]
    Empty,
    /// A requested k is 0 or exceeds the number of trajectories.
    #[error(
        "k = {k} was asked for, but the run has {n} trajectories per question; \
         ask for k >= 1 and <= {n}"
    )]
    InvalidK {
        /// The requested k.
        k: usize,
        /// The number of trajectories.
        n: usize,
    },
    /// Samples of one run differ in the requested number of trajectories.
    #[error(
        "question {id} under seed {seed} has {found} trajectories, \
         those before it have {expected}; \
         the samples are of different runs: report them one by one"
    )]
    UnevenTrajectories {
        /// The question.
        id: u32,
        /// The seed.
        seed: u64,
        /// Its number of trajectories.
        found: usize,
        /// That of the first sample.
        expected: usize,
    },
    /// One question appears twice under one seed.
    #[error(
        "question {id} under seed {seed} appears twice in the samples; remove one of the lines"
    )]
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
    #[error("{path} holds {found} of {expected} records; resume it, or report it as partial")]
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
        "{path} holds {found} records where its manifest.json says {expected}; \
         its samples.jsonl is of another run"
    )]
    Surplus {
        /// The run directory.
        path: PathBuf,
        /// The number of records.
        found: usize,
        /// The number of records according to the manifest.
        expected: usize,
    },
    /// A sample has a seed that the manifest does not name.
    #[error(
        "{path} holds records under seed {seed}, which its manifest.json does not name; \
         its samples.jsonl is of another run"
    )]
    ForeignSeed {
        /// The run directory.
        path: PathBuf,
        /// The seed.
        seed: u64,
    },
    /// `latents.safetensors` is damaged.
    #[error("{path} cannot be used; remove it, or run again and keep the latents")]
    Latents {
        /// The file.
        path: PathBuf,
        /// The I/O or format error.
        source: io::Error,
    },
    /// The log of a training has no steps.
    #[error("{path} holds no steps yet; wait for the first")]
    NoSteps {
        /// The log.
        path: PathBuf,
    },
    /// No run was named.
    #[error("no run directory was given; name one or more that `latent-tts eval` wrote")]
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
        "the figure {name} of {panels} panels is too large for a picture; report fewer runs at once"
    )]
    FigureTooLarge {
        /// The figure's name.
        name: &'static str,
        /// Its number of panels.
        panels: usize,
    },
}

impl ReportError {
    /// Adds the run's path, unless the error names its file already.
    pub(crate) fn in_run(self, path: &Path) -> Self {
        match self {
            Self::Record(_) => self,
            source => Self::Run { path: path.into(), source: Box::new(source) },
        }
    }
}
