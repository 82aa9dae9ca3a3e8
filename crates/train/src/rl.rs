//! Reinforcement learning on latent trajectories: sample groups of trajectories with the engine,
//! reward their answers, and raise the probability of those above the group's mean.
//!
//! ```text
//! questions -> rollout (engine, weights shared) -> reward -> estimator -> policy (keys) -> AdamW
//! ```
//!
//! [`rollout`] samples, [`reward`] and [`estimator`] turn answers into weights, [`policy`] repeats
//! the trajectories with their own masks and noise for the gradient, and [`task`] is the training
//! that [`crate::trainer`] runs. The engine uses the weights of the training itself, on the device.

pub mod estimator;
pub mod evaluation;
pub mod policy;
pub mod reward;
pub mod rollout;
pub mod task;

pub use task::{RlSettings, RlTask};
