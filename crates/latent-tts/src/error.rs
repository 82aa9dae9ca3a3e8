//! Why the library could not do what it was asked to. Messages name fields and files; a command
//! line adds its own hints.

use std::error::Error as StdError;
use std::path::PathBuf;
use std::sync::Arc;

use data::DatasetError;
use engine::EngineError;
use model::ModelError;
use model::hub::HubError;
use record::RecordError;
use report::ReportError;
use tensor::DeviceError;
use train::TrainError;
use train::annotate::AnnotationError;

/// Every way in which a call of this library fails.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Sampling options contradict one another.
    #[error(transparent)]
    Sampling(#[from] schema::SamplingError),
    /// A model, a request, or the device while it ran.
    #[error(transparent)]
    Engine(#[from] EngineError),

    /// The device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// A checkpoint could not be read.
    #[error(transparent)]
    Model(#[from] ModelError),

    /// The reward model could not be loaded.
    #[error("reward model {}: {error}", path.display())]
    RewardModel {
        /// The reward model's directory.
        path: PathBuf,
        /// Why. Part of the message, and therefore not its source as well.
        error: Box<EngineError>,
    },

    /// A data file could not be read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),

    /// The name of a part of the built-in corpus is wrong.
    #[error("{name}: {problem}")]
    Corpus {
        /// The name that was given.
        name: String,
        /// What is wrong with it.
        problem: String,
    },

    /// A run directory could not be written or read.
    #[error(transparent)]
    Record(#[from] RecordError),

    /// A run directory was written with other files.
    #[error("a file of the model, the reward model or the data is not what it was: {0}")]
    InputsChanged(RecordError),

    /// Annotations could not be written or read.
    #[error(transparent)]
    Annotations(#[from] AnnotationError),

    /// Annotations were written with other files.
    #[error("a file of the model or the data is not what it was: {0}")]
    AnnotatedInputsChanged(AnnotationError),

    /// A training cannot start or continue.
    #[error(transparent)]
    Train(#[from] TrainError),

    /// A reference dump is incomplete, or does not fit its models.
    #[error("{reason}")]
    Dump {
        /// What is wrong, and where.
        reason: String,
    },

    /// Metrics or the report could not be made.
    #[error(transparent)]
    Report(#[from] ReportError),

    /// A checkpoint could not be converted.
    #[error("{}: {reason}", path.display())]
    Conversion {
        /// The file or directory.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },

    /// A file that a fingerprint covers could not be read.
    #[error("cannot read {}: {error}", path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// Why. Part of the message, and therefore not its source as well.
        error: std::io::Error,
    },

    /// Something of the Hugging Face Hub could not be had.
    #[error(transparent)]
    Hub(#[from] HubError),

    /// Not in the Hugging Face cache, and this build does not download.
    #[error("{name}: no such path, and not in {}; fetch it with `{how}`", hub.display())]
    NotCached {
        /// What was asked for.
        name: String,
        /// The cache that was searched.
        hub: PathBuf,
        /// The command that fetches it.
        how: String,
    },

    /// The model that an adapter belongs to is not there, and could not be downloaded.
    #[error("{}: the adapter's base model is not there: {error}; {how}", file.display())]
    Base {
        /// adapter_config.json.
        file: PathBuf,
        /// How to get it otherwise.
        how: String,
        /// Why. Part of the message, and therefore not its source as well.
        error: Box<HubError>,
    },

    /// A base without an adapter that it would be of.
    #[error("{base}: given as the base of an adapter, and no model is an adapter")]
    NoAdapter {
        /// The base.
        base: String,
    },

    /// A voting rule, a scorer or a sampler of the calling program failed.
    #[error("{name}: {error}")]
    Callback {
        /// Its name.
        name: String,
        /// Why. Part of the message, and therefore not its source as well.
        error: Arc<dyn StdError + Send + Sync>,
    },

    /// A scorer returned rewards that cannot be used.
    #[error("scorer {name}: {problem}")]
    InvalidRewards {
        /// The scorer.
        name: String,
        /// What is wrong with the rewards.
        problem: String,
    },

    /// A text whose likelihood is asked for is longer than the model reads.
    #[error("a continuation of {tokens} tokens does not fit in the model's {context} positions")]
    LongContinuation {
        /// Its tokens.
        tokens: usize,
        /// Positions that the model has.
        context: usize,
    },

    /// A sweep without a strength.
    #[error("there is no value to go over; give values of p, sigma or tau")]
    EmptySweep,

    /// A new sweep would have replaced an old one.
    #[error("{} already holds a sweep; continue it or write to another directory", dir.display())]
    SweepExists {
        /// The sweep's directory.
        dir: PathBuf,
    },

    /// A sweep was to be continued with settings that would change its results.
    #[error(
        "{}: the sweep was begun with {field} = {stored}, now it is {requested}; use the same \
         settings or write to another directory",
        path.display()
    )]
    SweepChanged {
        /// The sweep's summary.
        path: PathBuf,
        /// The first setting that differs.
        field: String,
        /// Its value in the summary.
        stored: String,
        /// Its value now.
        requested: String,
    },

    /// A sweep's results were asked for before it ended.
    #[error("the sweep in {} is not finished; continue it", dir.display())]
    SweepUnfinished {
        /// The sweep's directory.
        dir: PathBuf,
    },

    /// The embedded models were left out of this build.
    #[error("this program was built without the embedded models (the feature `embedded`)")]
    NotEmbedded,
}
