//! Errors of the library. Messages name fields and files; the command line appends hints with
//! flags.

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

/// An error of this library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Sampling options that contradict one another.
    #[error(transparent)]
    Sampling(#[from] schema::SamplingError),
    /// An error of a model, a request, or the device while running.
    #[error(transparent)]
    Engine(#[from] EngineError),

    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),

    /// A checkpoint cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),

    /// The reward model cannot be loaded.
    #[error("reward model {}: {error}", path.display())]
    RewardModel {
        /// The reward model's directory.
        path: PathBuf,
        /// The cause. It is part of the message, and therefore not also its source.
        error: Box<EngineError>,
    },

    /// A probe for the states of another reasoner.
    #[error(
        "probe {}: trained for a {of} reasoner, but the model is {reasoner}; train one for it with \
         `train probe`",
        path.display()
    )]
    UnfitProbe {
        /// The directory of the probe.
        path: PathBuf,
        /// The family and width that it was trained for.
        of: String,
        /// The family and width of the reasoner.
        reasoner: String,
    },

    /// A calibration cannot be fitted.
    #[error(transparent)]
    Fit(#[from] aggregate::FitError),

    /// A data file cannot be read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),

    /// Invalid name of a part of the embedded corpus.
    #[error("{name}: {problem}")]
    Corpus {
        /// The given name.
        name: String,
        /// The problem with the name.
        problem: String,
    },

    /// A run directory cannot be written or read.
    #[error(transparent)]
    Record(#[from] RecordError),

    /// The run directory was written with different input files.
    #[error("model, reward model or data changed since the run started: {0}")]
    InputsChanged(RecordError),

    /// Annotations cannot be written or read.
    #[error(transparent)]
    Annotations(#[from] AnnotationError),

    /// The annotations were written with different input files.
    #[error("model or data changed since the annotation started: {0}")]
    AnnotatedInputsChanged(AnnotationError),

    /// A training cannot start or continue.
    #[error(transparent)]
    Train(#[from] TrainError),

    /// A reference dump is incomplete or does not fit its models.
    #[error("{reason}")]
    Dump {
        /// The problem and its location.
        reason: String,
    },

    /// Metrics or the report cannot be computed.
    #[error(transparent)]
    Report(#[from] ReportError),

    /// A checkpoint cannot be converted.
    #[error("{}: {reason}", path.display())]
    Conversion {
        /// The file or directory.
        path: PathBuf,
        /// The problem and how to solve it.
        reason: String,
    },

    /// A file covered by a fingerprint cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The cause. It is part of the message, and therefore not also its source.
        error: std::io::Error,
    },

    /// A file cannot be fetched from the Hugging Face Hub.
    #[error(transparent)]
    Hub(#[from] HubError),

    /// Not in the Hugging Face cache, in a build without downloads.
    #[error("{name}: path not found, and not cached in {}; fetch it with `{how}`", hub.display())]
    NotCached {
        /// The requested name.
        name: String,
        /// The cache that was searched.
        hub: PathBuf,
        /// The command that fetches it.
        how: String,
    },

    /// The base model of an adapter was not found and could not be downloaded.
    #[error("{}: base model of the adapter not found: {error}; {how}", file.display())]
    Base {
        /// The adapter_config.json file.
        file: PathBuf,
        /// Another way to get the base model.
        how: String,
        /// The cause. It is part of the message, and therefore not also its source.
        error: Box<HubError>,
    },

    /// A base was given, but no model is an adapter.
    #[error("{base}: given as the base of an adapter, but no model is an adapter")]
    NoAdapter {
        /// The name of the base.
        base: String,
    },

    /// A user-defined voting rule, scorer or sampler failed.
    #[error("{name}: {error}")]
    Callback {
        /// The name of the callback.
        name: String,
        /// The cause. It is part of the message, and therefore not also its source.
        error: Arc<dyn StdError + Send + Sync>,
    },

    /// A scorer returned invalid rewards.
    #[error("scorer {name}: {problem}")]
    InvalidRewards {
        /// The name of the scorer.
        name: String,
        /// The problem with the rewards.
        problem: String,
    },

    /// A text to score is longer than the model's context.
    #[error("a continuation of {tokens} tokens exceeds the model's {context} positions")]
    LongContinuation {
        /// Number of tokens of the continuation.
        tokens: usize,
        /// Number of positions of the model.
        context: usize,
    },

    /// A sweep without any strength.
    #[error("no values to sweep; pass values of p, sigma or tau")]
    EmptySweep,

    /// A new sweep would replace an existing one.
    #[error("{} already holds a sweep; continue it or write to another directory", dir.display())]
    SweepExists {
        /// The directory of the sweep.
        dir: PathBuf,
    },

    /// A sweep cannot be continued with settings that change its results.
    #[error(
        "{}: the sweep was started with {field} = {stored}, now it is {requested}; use the same \
         settings or write to another directory",
        path.display()
    )]
    SweepChanged {
        /// The summary file of the sweep.
        path: PathBuf,
        /// The first setting that differs.
        field: String,
        /// The value in the summary.
        stored: String,
        /// The requested value.
        requested: String,
    },

    /// The results of an unfinished sweep were requested.
    #[error("the sweep in {} is not finished; continue it", dir.display())]
    SweepUnfinished {
        /// The directory of the sweep.
        dir: PathBuf,
    },

    /// This build does not contain the embedded models.
    #[error("this program was built without the embedded models (feature `embedded`)")]
    NotEmbedded,
}
