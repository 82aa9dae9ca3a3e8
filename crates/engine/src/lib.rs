//! Parallel latent reasoning, one file per stage, in the order of the flow:
//!
//! ```text
//! question -> prompt -> prefill -> think -> score -> decode -> answer -> aggregate
//!                             |      ^        |       ^
//!                             |   perturb     |       |
//!                             +----> search (beams) --+
//! ```
//!
//! [`pipeline`] strings the stages together over waves that [`settings::Settings::memory`] bounds;
//! [`method`] holds what differs between the families; [`replay`] opens the stages for comparison
//! with other implementations.

pub mod answer;
mod batch_plan;
mod beam_search;
pub mod bench;
mod cost;
mod decode;
mod error;
pub mod method;
pub mod perturb;
pub mod pipeline;
mod prefill;
pub mod prompt;
pub mod question;
pub mod reasoner;
pub mod reference;
pub mod reference_trace;
pub mod rollout;
pub mod sampling_params;
mod score;
mod streams;
mod think;
mod wave;

pub use decode::AnswerTokens;
pub use error::EngineError;
pub use method::{Family, LatentLength, LengthRange, Method};
pub use perturb::{DropoutScope, DropoutSites, Perturbation, Probability};
pub use pipeline::{Engine, Outcome};
pub use question::Question;
pub use reasoner::{FamilyParts, LatentModel, Reasoner, RewardModel};
pub use sampling_params::{AdaptiveSampling, BeamSize, SamplingParams};
pub use score::{AnswerBatch, Rewards};
pub use tensor::ops::TokenSampling;
