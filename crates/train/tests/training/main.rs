//! Training as a whole, on tiny models: gradients match finite differences, a batch's gradients are
//! the sum of its examples', an interrupted training ends with the same bytes as an uninterrupted
//! one, recomputed activations give the same gradients, saved models compute what was trained, and
//! ten problems can be overfitted by each method.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod batch_additivity;
mod divergence;
mod early_stopping;
mod gradients;
mod methods;
mod overfit;
mod recompute;
mod resumable;
mod resume;
mod rl;
mod rl_reference;
mod saved_models;
mod support;
