//! Reinforcement learning on latent trajectories: sample groups of trajectories with the engine,
//! reward their answers, and raise the probability of those above the group's mean.
//!
//! ```text
//! questions -> rollout (engine, weights shared) -> reward -> estimator -> policy (keys) -> AdamW
//! ```
//!
//! [`rollout`] samples trajectories, [`reward`] and [`estimator`] compute their advantages,
//! [`policy`] replays the trajectories with the same dropout masks and noise to compute gradients,
//! and [`task`] implements the [`crate::trainer`] task. The engine shares the trained weights on
//! the device.

pub mod estimator;
pub mod evaluation;
pub mod policy;
pub mod reward;
pub mod rollout;
pub mod task;

pub use task::{RlSettings, RlTask};
