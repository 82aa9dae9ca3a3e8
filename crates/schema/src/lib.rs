//! What all interfaces and files share, defined once: sampling parameters, results, the manifest of
//! a run, the log of a training.
//!
//! ```text
//! command line, TOML, HTTP `latent`, Python keywords -> SamplingOptions
//! SamplingOptions + the model's defaults             -> SamplingParams -> engine, manifest.json
//! ```
//!
//! [`SamplingOptions`] is what a person or a program asks for: every field is optional, and every
//! interface is derived from it (clap, serde, JSON Schema), so a field has one name, one range and
//! one description everywhere. [`SamplingOptions::resolve`] fills the open fields in with the
//! model's defaults and refuses fields of another sampler. The result, [`SamplingParams`], has no
//! options left; serialized, it is a complete set of options again. Results have one definition as
//! well ([`TrajectoryRecord`], [`Vote`], [`ComputeCost`], [`StageSeconds`]), and so have the
//! [`Manifest`] of a run and the log of a training ([`StepRecord`], [`EvalRecord`],
//! [`TrainTiming`]). Voting rules and early stopping are functions of trajectories, whose names
//! come from [`aggregate`].

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
pub use params::{AdaptiveSampling, BeamSize, ColdStop, SamplingParams};
pub use perturbation::{
    DropoutScope, DropoutSites, MaskLifetime, OneSidedNoise, Perturbation, PromptSharing,
};
pub use training_log::{EvalRecord, Losses, StepRecord, TrainTiming};
