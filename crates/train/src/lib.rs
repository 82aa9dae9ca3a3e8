//! Training of latent reasoners and of reward models over their thoughts.
//!
//! ```text
//! corpus -> reasoner (latent curriculum) -> annotate (rollout labels) -> reward (LatentRM)
//! ```
//!
//! [`trainer`] is the loop: batches, optimizer steps, log, checkpoints, evaluation. What it trains
//! implements [`trainer::TrainTask`]: [`reasoner`] and [`reward`]. Forward and backward of one
//! batch are in [`latent_step`] and [`reward_step`].
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod activations;
pub mod annotate;

pub mod bench;
pub mod curriculum;
pub mod data_loader;
pub mod digit_head;
pub mod dropout;
pub mod error;
pub mod latent_step;
pub mod loss;
pub mod methods;
pub mod model_dir;
pub mod options;
pub mod order_preference;
pub mod probe;
pub mod reasoner;
pub mod reward;
pub mod reward_step;
pub mod rl;
mod rows;
pub mod schedule;
pub mod tokenized_example;
pub mod trainer;
pub mod vocabulary;

pub use error::TrainError;
