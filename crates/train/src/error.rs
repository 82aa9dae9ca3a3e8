//! Every way in which training can fail.

use std::path::PathBuf;

/// Why training cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] tensor::DeviceError),
    /// A checkpoint cannot be used.
    #[error(transparent)]
    Model(#[from] model::ModelError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] engine::EngineError),
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Annotations cannot be used.
    #[error(transparent)]
    Annotations(#[from] crate::annotate::AnnotationError),
    /// A file could not be written.
    #[error(transparent)]
    Record(Box<record::RecordError>),
    /// A file is not what it should be.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The loss became infinite.
    #[error(
        "step {step}: the gradient is not finite; lower --lr or --clip, then --resume from the last state"
    )]
    Diverged {
        /// Counted from 0.
        step: u32,
    },
    /// A state that cannot be read.
    #[error("{}: damaged ({reason}); delete it to begin anew", path.display())]
    BadState {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A state of a training with other settings.
    #[error("{}: was written with other settings; pass the same ones, or another --out", path.display())]
    SettingsChanged {
        /// The file.
        path: PathBuf,
    },
    /// An example that does not fit.
    #[error(
        "example {id} takes {length} positions, the model has {context}; leave it out or take a model with more"
    )]
    TooLong {
        /// The example's number.
        id: u64,
        /// Positions that it takes.
        length: usize,
        /// Positions that there are.
        context: usize,
    },
    /// A token that a model has no embedding for.
    #[error(
        "problem {id} of the annotations has the token {token}, {what} has {vocab}; take models of one vocabulary"
    )]
    UnknownToken {
        /// The problem's number.
        id: u32,
        /// The token.
        token: u32,
        /// Which model.
        what: &'static str,
        /// Its embeddings.
        vocab: usize,
    },
    /// Annotations that hold no problem.
    #[error(
        "{what}: nothing to learn from; of no problem some trajectories are right and others wrong, annotate more of them"
    )]
    EmptyAnnotations {
        /// Which annotations.
        what: String,
    },
    /// A token that the vocabulary lacks.
    #[error("the tokenizer has no `{token}`; {how}")]
    MissingToken {
        /// The token.
        token: String,
        /// What to do.
        how: &'static str,
    },
}

impl From<record::RecordError> for TrainError {
    fn from(error: record::RecordError) -> Self {
        Self::Record(Box::new(error))
    }
}
