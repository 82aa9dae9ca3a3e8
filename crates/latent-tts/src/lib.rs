//! Parallel test-time scaling for latent reasoning models.
//!
//! A latent reasoner thinks in hidden states. This library samples N trajectories of such thoughts,
//! scores them with a Latent Reward Model, and aggregates their answers.
//!
//! ```
//! # #[cfg(feature = "embedded")] {
//! use latent_tts::{Model, Request, SamplingParams};
//!
//! let engine = Model::load("embedded")?.without_reward_model().engine()?;
//! let params = SamplingParams { samples: 8.try_into()?, ..engine.default_params() };
//! let reply = engine.solve(&Request::new("Tom has 3 boxes with 4 pens in each. \
//!     He gives away 5 pens. How many pens does Tom have?", params))?;
//! assert_eq!(reply.trajectories.len(), 8);
//! for vote in reply.votes() {
//!     println!("{} x {}", vote.votes, vote.answer);
//! }
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! * [`Model`] loads a reasoner and its reward model: embedded, from a directory, or by Hugging
//!   Face Hub id.
//! * [`Engine`] runs [`Request`]s, each with its own [`SamplingParams`] and [`CancelToken`], and
//!   returns [`Output`]s. Different requests are batched together without changing each other's
//!   results.
//! * [`Scheduler`] runs requests that arrive at any time with continuous batching, and reports
//!   events as their trajectories finish.
//! * [`aggregate`] contains the voting rules. [`DataSource`] and [`grade`] handle questions with
//!   known answers, [`Evaluation`] records a benchmark in a run directory, [`Ablator`] measures the
//!   accuracy with replaced thoughts, and [`Annotator`] labels thoughts for training a reward
//!   model.
//! * [`Trainer`], [`RewardTrainer`] and [`ProbeTrainer`] train the models, [`RlTrainer`] trains a
//!   reasoner by reinforcement learning, and [`calibrate()`] fits weights that combine all signals;
//!   [`training`] contains their options, presets and methods.
//!
//! The underlying crates are re-exported. Their public items can be used, but may change more often
//! than the items of this crate.

pub mod ablation;
pub mod annotate;
pub mod bench;
pub mod calibrate;
pub mod convert;
mod data_source;
mod device;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
mod evaluate;
mod fingerprint;
pub mod grade;
mod loglikelihood;
pub mod manifest;
mod model;
pub mod notes;
mod rescore;
mod sampling;
mod scorer;
mod source;
pub mod sweep;
mod too_long;
pub mod training;
pub mod verify;

pub use ::model::hub;
pub use ablation::Ablator;
pub use aggregate::{self, RewardReduction, Rule, VoteParams};
pub use annotate::Annotator;
pub use calibrate::{CalibrationReport, calibrate};
pub use data::answer::{self, Answer, AnswerKind, AnswerRule};
pub use data::{self, FieldNames, Question};
pub use data_source::DataSource;
pub use device::{DeviceKind, DeviceOptions, default_memory};
pub use engine::{
    self, AdaptiveSampling, CancelToken, ComputeCost, DropoutScope, DropoutSites, Engine,
    EngineError, Family, GivenTrajectory, HiddenStates, LatentLength, LengthRange, Lens, LensToken,
    MaskLifetime, Output, OutputStream, Perturbation, Probability, Reasoner, Request, RewardModel,
    SamplingParams, Scheduler, Search, SearchMethod, SearchResult, StageSeconds, Temperature, TopP,
    Trajectory, scheduler,
};
pub use error::Error;
pub use evaluate::{EvalObserver, EvalOutput, Evaluation, OnExisting, RunRecorder};
pub use fingerprint::{compute as input_fingerprint, of_files as file_fingerprint};
pub use loglikelihood::{Loglikelihood, loglikelihood};
pub use model::{
    Model, ModelSelection, RewardModelChoice, files as model_files, files_over, reward_model_files,
};
pub use notes::Note;
pub use record::{self, Ablation, AblationKind};
pub use report;
pub use rescore::rescore;
pub use sampling::{check_sampler, evaluation_params};
pub use schema::{
    self, CustomSampler, LatentSampler, ModelDefaults, NoiseStd, PositiveWeight, SamplerKind,
    SamplingError, SamplingOptions, ThoughtKey, TrajectoryRecord, Vote, Weight,
};
#[cfg(feature = "http")]
pub use scorer::{HttpScorer, HttpScorerError, HttpScorerOptions};
pub use scorer::{Scorer, apply_scorer};
pub use source::{EMBEDDED, data_file};
#[cfg(feature = "hub")]
pub use source::{fetch_bases, fetch_data, fetch_model};
pub use tensor::{self, Device};
pub use too_long::fitting_questions;
pub use train;
pub use training::{
    ProbeTrainer, ProbeTrainerOptions, RewardTrainer, RewardTrainerOptions, RlTrainer,
    RlTrainerOptions, TrainObserver, TrainReport, Trainer, TrainerOptions,
};

/// Compiles the Rust code of the README.
#[cfg(all(doctest, feature = "embedded"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
