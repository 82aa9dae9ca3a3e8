//! Every way a run can fail to be measured or shown, one variant each.

use std::io;
use std::path::{Path, PathBuf};

/// Why there are no metrics, or no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The run directory could not be read.
    #[error(transparent)]
    Record(#[from] record::RecordError),
    /// There is nothing to measure.
    #[error(
        "the run holds no samples yet; wait for its first question, or continue it with --resume"
    )]
    Empty,
    /// A figure was asked for that needs more, or fewer, trajectories than there are.
    #[error(
        "k = {k} was asked for, but the run has {n} trajectories per question; ask for k >= 1 and <= {n}"
    )]
    InvalidK {
        /// The k asked for.
        k: usize,
        /// The trajectories there are.
        n: usize,
    },
    /// Samples of one run have different numbers of trajectories.
    #[error(
        "question {id} under seed {seed} has {found} trajectories, those before it have {expected}; \
         the samples are of different runs: report them one by one"
    )]
    UnevenTrajectories {
        /// The question.
        id: u32,
        /// The seed.
        seed: u64,
        /// Its trajectories.
        found: usize,
        /// The trajectories of the first sample.
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
    /// Something is wrong with one of several runs.
    #[error("{path}")]
    Run {
        /// The run directory.
        path: PathBuf,
        /// What is wrong.
        source: Box<Self>,
    },
    /// The run did not end.
    #[error(
        "{path} holds {found} of {expected} records; continue it with `latent-tts eval --resume`, or pass --partial to \
         report what there is"
    )]
    Incomplete {
        /// The run directory.
        path: PathBuf,
        /// The records on file.
        found: usize,
        /// The records that its manifest promises.
        expected: usize,
    },
    /// The run has more than was asked for.
    #[error(
        "{path} holds {found} records where its manifest.json says {expected}; its samples.jsonl is of another run"
    )]
    Surplus {
        /// The run directory.
        path: PathBuf,
        /// The records on file.
        found: usize,
        /// The records that its manifest promises.
        expected: usize,
    },
    /// A sample is of another run.
    #[error(
        "{path} holds records under seed {seed}, which its manifest.json does not name; its samples.jsonl is of another run"
    )]
    ForeignSeed {
        /// The run directory.
        path: PathBuf,
        /// The seed.
        seed: u64,
    },
    /// The file of thoughts is damaged.
    #[error("{path} cannot be used; remove it, or run again with --latents --overwrite")]
    Latents {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// No run was named.
    #[error("no run directory was given; name one or more that `latent-tts eval` wrote")]
    NoRuns,
    /// A file could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: io::Error,
    },
    /// A figure is too large to become pixels.
    #[error(
        "the figure {name} of {panels} panels is too large for a picture; report fewer runs at once"
    )]
    FigureTooLarge {
        /// The figure.
        name: &'static str,
        /// Its panels.
        panels: usize,
    },
}

impl ReportError {
    /// The same, said of one run of several. What names its files already stays as it is.
    pub(crate) fn in_run(self, path: &Path) -> Self {
        match self {
            Self::Record(_) => self,
            source => Self::Run { path: path.into(), source: Box::new(source) },
        }
    }
}
