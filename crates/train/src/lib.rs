//! Learning to think and to judge.
//!
//! ```text
//! corpus -> reasoner (the latent curriculum) -> annotate (rollouts) -> reward (the LatentRM)
//! ```
//!
//! [`study`] is one batch of a reasoner, forward and back; [`course`] is the loop around every
//! training.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod annotate;
pub mod bench;
pub mod corpus;
pub mod curriculum;
pub mod data_loader;
pub mod dataset;
pub mod digit_head;
pub mod error;
pub mod example_encoder;
pub mod latent_step;
pub mod loss;
pub mod model_dir;
pub mod reasoner;
pub mod reward;
pub mod reward_step;
pub mod schedule;
pub mod tokenized_example;
pub mod trainer;
pub mod vocabulary;

pub use error::TrainError;
