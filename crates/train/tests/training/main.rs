//! Training as a whole, on tiny models: gradients match finite differences, a batch's gradients are
//! the sum of its examples', an interrupted training ends with the same bytes as an uninterrupted
//! one, saved models compute what was trained, and ten problems can be overfitted through six
//! latent thoughts.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod batch_additivity;
mod divergence;
mod early_stopping;
mod gradients;
mod overfit;
mod resumable;
mod resume;
mod saved_models;
mod support;
