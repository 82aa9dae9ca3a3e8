//! Every way a run can fail to be measured, one variant each.

/// Why there are no metrics.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The run directory could not be read.
    #[error(transparent)]
    Record(#[from] record::Error),
    /// There is nothing to measure.
    #[error("the run holds no samples yet; wait for its first question, or continue it with --resume")]
    Empty,
    /// A figure was asked for that needs more, or fewer, trajectories than there are.
    #[error("k = {k} was asked for, but the run has {n} trajectories per question; ask for k >= 1 and <= {n}")]
    K {
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
    Uneven {
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
    #[error("question {id} under seed {seed} appears twice in the samples; remove one of the lines")]
    Duplicate {
        /// The question.
        id: u32,
        /// The seed.
        seed: u64,
    },
}
