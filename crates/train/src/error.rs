//! Errors of training.

use std::path::PathBuf;

use crate::trainer::Divergence;

/// Why training cannot start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] tensor::DeviceError),
    /// Unknown, out-of-range or conflicting options. Their names are in backticks, which the
    /// command line replaces with its flags.
    #[error("{reason}")]
    Options {
        /// The problem and how to fix it.
        reason: String,
    },
    /// A checkpoint cannot be used.
    #[error(transparent)]
    Model(#[from] model::ModelError),
    /// Held-out problems cannot be solved.
    #[error(transparent)]
    Engine(#[from] engine::EngineError),
    /// A file or directory cannot be accessed.
    #[error("cannot access {}; check that it exists and that the disk is not full", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// Annotations cannot be used.
    #[error(transparent)]
    Annotations(#[from] crate::annotate::AnnotationError),
    /// A file cannot be written.
    #[error(transparent)]
    Record(Box<record::RecordError>),
    /// A file does not have the expected content.
    #[error("{}: {reason}", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Losses, gradients or weights are not finite, or the loss has exploded.
    #[error(
        "step {step}: {what}; lower the learning rate by a factor of 3, lengthen the warmup, lower \
         the clipping norm or LoRA's alpha, and {}",
        resume_from(*saved)
    )]
    Diverged {
        /// Counted from 1.
        step: u32,
        /// What diverged, with its values.
        what: Divergence,
        /// Steps completed at the last saved state, if any.
        saved: Option<u32>,
    },
    /// The activations do not fit the device's memory.
    #[error(
        "the activations of a batch need about {needed}, but only {free} are free; use a smaller \
         batch and accumulate gradients over more batches"
    )]
    Memory {
        /// Estimated memory, formatted with its unit.
        needed: String,
        /// Free memory, formatted with its unit.
        free: String,
    },
    /// A new model does not fit the device's memory.
    #[error(
        "training the new model needs at least {needed}, but only {free} are free; reduce its \
         width or its number of layers"
    )]
    ModelMemory {
        /// Required memory, formatted with its unit.
        needed: String,
        /// Free memory, formatted with its unit.
        free: String,
    },
    /// A training state cannot be read.
    #[error("{}: corrupt ({reason}); delete it to start over", path.display())]
    BadState {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A training state was written with different settings.
    #[error(
        "{}: written with different settings; use the same settings or another output directory",
        path.display()
    )]
    SettingsChanged {
        /// The file.
        path: PathBuf,
    },
    /// A training state was written for different input files.
    #[error(
        "{}: the initial model or the data changed since training started; use the same files or \
         another output directory",
        path.display()
    )]
    InputsChanged {
        /// The state file.
        path: PathBuf,
    },
    /// The training is finished, but its model is missing.
    #[error(
        "{}: the training is finished, but its best model is missing; delete this directory to \
         train again",
        dir.display()
    )]
    MissingModel {
        /// The directory of the training's state.
        dir: PathBuf,
    },
    /// A training state was written with different optimizer settings.
    #[error(
        "{}: written with different optimizer settings; use the same settings, or allow the \
         change",
        path.display()
    )]
    OptimizerChanged {
        /// The file.
        path: PathBuf,
    },
    /// An example does not fit the model's context.
    #[error(
        "example {id} has {length} positions, but the model's context is {context}; remove the \
         example or use a model with a longer context"
    )]
    TooLong {
        /// The example's index.
        id: u64,
        /// Length of the example in positions.
        length: usize,
        /// Context of the model in positions.
        context: usize,
    },
    /// A token has no embedding in a model.
    #[error(
        "problem {id} of the annotations contains token {token}, but the vocabulary of {what} has \
         only {vocab}; use models with the same vocabulary"
    )]
    UnknownToken {
        /// The problem's id.
        id: u32,
        /// The token.
        token: u32,
        /// The model, such as "the reward model".
        what: &'static str,
        /// The model's vocabulary size.
        vocab: usize,
    },
    /// Annotations without a problem that has both correct and wrong trajectories.
    #[error(
        "{what}: nothing to learn from: no problem has both correct and wrong trajectories; \
         annotate more problems"
    )]
    EmptyAnnotations {
        /// The directories, or "the annotations".
        what: String,
    },
    /// A token is missing from a tokenizer's vocabulary.
    #[error("the tokenizer has no `{token}`; {how}")]
    MissingToken {
        /// The token.
        token: String,
        /// How to fix it.
        how: &'static str,
    },
}

/// How to continue after a divergence.
fn resume_from(saved: Option<u32>) -> String {
    match saved {
        Some(steps) => format!("resume from the last saved state, after {steps} steps"),
        None => "start over: no state was saved yet".to_owned(),
    }
}

impl From<record::RecordError> for TrainError {
    fn from(error: record::RecordError) -> Self {
        Self::Record(Box::new(error))
    }
}
