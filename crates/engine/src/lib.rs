//! Parallel latent reasoning, one file per stage, in the order of the flow:
//!
//! ```text
//! question -> prompt -> prefill -> think -> score -> decode -> answer -> record::aggregate
//!                             |      ^        |       ^
//!                             |   perturb     |       |
//!                             +----> search (beams) --+
//! ```
//!
//! [`pipeline`] strings the stages together over waves that [`settings::Settings::memory`] bounds; [`method`] holds what
//! differs between the families; [`replay`] opens the stages for comparison with other implementations.

pub mod answer;
pub mod bench;
mod cost;
mod decode;
mod error;
mod lanes;
pub mod method;
pub mod perturb;
pub mod pipeline;
mod plan;
mod prefill;
pub mod prompt;
pub mod question;
pub mod reasoner;
pub mod reflect;
pub mod replay;
pub mod rollout;
mod score;
mod search;
pub mod settings;
mod think;
mod wave;

pub use decode::AnswerTokens;
pub use error::Error;
pub use method::{Family, LatentLength, Method, Range};
pub use perturb::{Perturbation, Probability, Scope, Sites};
pub use pipeline::{Engine, Outcome};
pub use question::Question;
pub use reasoner::{Extras, Mind, Reasoner, RewardModel};
pub use score::{Reading, Said};
pub use settings::{Adaptive, BeamSize, Settings};
pub use tensor::ops::Nucleus;
