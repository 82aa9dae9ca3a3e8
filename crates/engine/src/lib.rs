//! Parallel latent reasoning. The data flow:
//!
//! ```text
//! request -> prompt -> executor (prompts, thoughts, answers) -> score -> reply (vote)
//!                        ^    ^                                   ^
//!                  sampler    beam_search, rollout         reference_trace
//! ```
//!
//! The executor advances sequences by one forward pass at a time. [`Engine`] runs a given list of
//! requests in batches that fit the memory (`batch_plan`, `aligned_batch`); [`Scheduler`] runs
//! requests that arrive over time; [`family`] contains the differences between the families;
//! [`rollout`] labels thoughts for reward model training; [`mod@reference`] exposes the individual
//! steps for comparison with other implementations. The engine does not use gold answers and does
//! not write result files.

mod aligned_batch;
mod answer_text;
mod batch;
mod batch_plan;
mod beam_search;
pub mod bench;
mod cost;
mod engine;
mod error;
mod executor;
pub mod family;
mod first_expansion;
mod hidden_states;
mod logprobs;
mod method;
mod perturb;
mod perturbation_keys;
mod probed;
mod prompt;
mod question;
mod reasoner;
pub mod reference;
mod reference_trace;
mod reply;
mod request;
pub mod rollout;
mod sampler;
mod sampling_params;
pub mod scheduler;
mod score;
mod stage_timer;
mod streams;

pub use answer_text::AnswerText;
pub use engine::{Engine, OutputStream};
pub use error::EngineError;
pub use executor::AnswerTokens;
pub use family::{Family, FamilySpec};
pub use hidden_states::{GivenTrajectory, HiddenStates};
pub use logprobs::TokenScore;
pub use method::{LatentLoop, Method, TokenLookup};
pub use perturbation_keys::{PassStage, PerturbationKeys};
pub use prompt::Prompt;
pub use reasoner::{
    FamilyParts, LatentModel, OLD_REFERENCE_DIR, REFERENCE_DIR, Reasoner, RewardModel,
    reference_files,
};
pub use reference_trace::{ReferenceTrace, ReferenceTracer};
pub use reply::{ComputeCost, LensToken, Output, SearchResult, StageSeconds, Trajectory};
pub use request::{AnswerSampling, CancelToken, Lens, Request};
pub use sampler::{RecordedNoise, SequenceId};
pub use scheduler::Scheduler;
pub use schema::{
    AdaptiveSampling, ColdStop, DropoutScope, DropoutSites, LatentLength, LengthRange,
    MaskLifetime, OneSidedNoise, Perturbation, Probability, PromptSharing, SamplingParams, Search,
    SearchMethod, Temperature, TopP,
};
pub use score::{AnswerBatch, Rewards};
