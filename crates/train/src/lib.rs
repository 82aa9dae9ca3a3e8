//! Learning to think and to judge.
//!
//! ```text
//! corpus -> reasoner (the latent curriculum) -> annotate (rollouts) -> reward (the LatentRM)
//! ```
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod corpus;
pub mod dataset;
pub mod vocabulary;
