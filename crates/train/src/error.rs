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
    /// Options that are unknown, out of range, or do not go together. Their names stand in
    /// backticks, so that a command line can put its flags in their place.
    #[error("{reason}")]
    Options {
        /// What is wrong, and the next step.
        reason: String,
    },
    /// A checkpoint cannot be used.
    #[error(transparent)]
    Model(#[from] model::ModelError),
    /// Held-out problems cannot be solved.
    #[error(transparent)]
    Engine(#[from] engine::EngineError),
    /// A file or directory cannot be accessed.
    #[error("cannot access {}; check that it is there, and the space of its disk", path.display())]
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
        /// What was found.
        what: Divergence,
        /// Steps of the last saved state, if there is one.
        saved: Option<u32>,
    },
    /// The activations do not fit the device's memory.
    #[error(
        "the activations of a batch take about {needed} and {free} are free; take smaller batches, \
         and accumulate the gradients of more of them"
    )]
    Memory {
        /// With its unit.
        needed: String,
        /// With its unit.
        free: String,
    },
    /// A new model does not fit the device's memory.
    #[error(
        "training the new model takes at least {needed} and {free} are free; make it narrower, or \
         of fewer layers"
    )]
    ModelMemory {
        /// With its unit.
        needed: String,
        /// With its unit.
        free: String,
    },
    /// A training state cannot be read.
    #[error("{}: damaged ({reason}); delete it to begin anew", path.display())]
    BadState {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A training state belongs to a training with other settings.
    #[error(
        "{}: was written with other settings; use the same ones, or another output directory",
        path.display()
    )]
    SettingsChanged {
        /// The file.
        path: PathBuf,
    },
    /// A training state belongs to a training on other files.
    #[error(
        "{}: the initial model or the data are not what they were; use the same files, or another \
         output directory",
        path.display()
    )]
    InputsChanged {
        /// The state.
        path: PathBuf,
    },
    /// A finished training whose model is not there.
    #[error(
        "{}: the training is finished and its best model is gone; remove this directory to train \
         again",
        dir.display()
    )]
    MissingModel {
        /// The directory of the training's state.
        dir: PathBuf,
    },
    /// A training state was written with other settings of the optimizer.
    #[error(
        "{}: was written with other settings of the optimizer; use the same ones, or say that they \
         change",
        path.display()
    )]
    OptimizerChanged {
        /// The file.
        path: PathBuf,
    },
    /// An example does not fit the model's context.
    #[error(
        "example {id} takes {length} positions, the model has {context}; leave it out or take a \
         model with more"
    )]
    TooLong {
        /// The example's index.
        id: u64,
        /// Positions that it takes.
        length: usize,
        /// Positions of the model.
        context: usize,
    },
    /// A token has no embedding in a model.
    #[error(
        "problem {id} of the annotations has the token {token}, {what} has {vocab}; take models of \
         one vocabulary"
    )]
    UnknownToken {
        /// The problem's id.
        id: u32,
        /// The token.
        token: u32,
        /// Which model.
        what: &'static str,
        /// The model's vocabulary size.
        vocab: usize,
    },
    /// Annotations without a problem that has both correct and wrong trajectories.
    #[error(
        "{what}: nothing to learn from; of no problem some trajectories are right and others \
         wrong, annotate more of them"
    )]
    EmptyAnnotations {
        /// Which annotations.
        what: String,
    },
    /// A token is missing from a tokenizer's vocabulary.
    #[error("the tokenizer has no `{token}`; {how}")]
    MissingToken {
        /// The token.
        token: String,
        /// The next step.
        how: &'static str,
    },
}

/// Where a diverged training can go on.
fn resume_from(saved: Option<u32>) -> String {
    match saved {
        Some(steps) => format!("resume from the last saved state, after {steps} steps"),
        None => "begin anew: no state was saved yet".to_owned(),
    }
}

impl From<record::RecordError> for TrainError {
    fn from(error: record::RecordError) -> Self {
        Self::Record(Box::new(error))
    }
}
