//! Learning to think and to judge.
//!
//! ```text
//! corpus -> reasoner (the latent curriculum) -> annotate (rollouts) -> reward (the LatentRM)
//! ```
//!
//! [`study`] is one batch of a reasoner, forward and back; [`course`] is the loop around every training.
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod annotate;
pub mod bench;
pub mod corpus;
pub mod course;
pub mod curriculum;
pub mod dataset;
pub mod digits;
pub mod directory;
pub mod error;
pub mod feed;
pub mod judge;
pub mod lesson;
pub mod loss;
pub mod reasoner;
pub mod reward;
pub mod schedule;
pub mod scribe;
pub mod study;
pub mod vocabulary;

pub use error::Error;
