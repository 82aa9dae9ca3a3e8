//! Types shared by all interfaces and files, each defined once: sampling parameters, results, the
//! run manifest and the training log.
//!
//! ```text
//! command line, TOML, HTTP `latent`, Python keywords -> SamplingOptions
//! SamplingOptions + the model's defaults             -> SamplingParams -> engine, manifest.json
//! ```
//!
//! [`SamplingOptions`] holds the options of a request. Every field is optional, and every interface
//! is derived from it (clap, serde, JSON Schema), so a field has one name, one range and one
//! description everywhere. [`SamplingOptions::resolve`] fills omitted fields with the model's
//! defaults and rejects fields of other samplers. The result, [`SamplingParams`], has no optional
//! settings; serialized, it is again a complete set of options. Results ([`TrajectoryRecord`],
//! [`Vote`], [`ComputeCost`], [`StageSeconds`]), the run [`Manifest`] and the training log
//! ([`StepRecord`], [`EvalRecord`], [`TrainTiming`]) are defined here as well. Voting rules and
//! early stopping are functions of trajectories; their names come from [`aggregate`].

mod ablation;
mod defaults;
mod latent_length;
mod latent_sampler;
mod manifest;
mod number;
mod options;
mod output;
mod params;
mod perturbation;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
mod training_log;

pub use ablation::AblationKind;
pub use aggregate::{Confidence, EarlyStop, Rule, Signals, StopReason, VoteParams, VotingRule};
pub use defaults::ModelDefaults;
pub use latent_length::{InvalidLength, LatentLength, LengthRange};
pub use latent_sampler::{CustomSampler, LatentSampler, SamplerNameTaken, ThoughtKey};
pub use manifest::{FORMAT, Manifest, OLDEST_FORMAT};
pub use number::{InvalidNumber, NoiseStd, PositiveWeight, Probability, Temperature, TopP, Weight};
pub use options::{SamplerKind, SamplingError, SamplingOptions};
pub use output::{ComputeCost, StageSeconds, TrajectoryRecord, Vote};
pub use params::{AdaptiveSampling, ColdStop, SamplingParams, Search, SearchMethod};
pub use perturbation::{
    DropoutScope, DropoutSites, MaskLifetime, OneSidedNoise, Perturbation, PromptSharing,
};
pub use training_log::{EvalRecord, Losses, StepRecord, TrainTiming};
