//! Parallel latent reasoning.

pub mod answer;
pub mod question;
