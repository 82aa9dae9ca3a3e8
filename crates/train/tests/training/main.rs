//! End-to-end tests of training on tiny models: gradients match finite differences, a batch's
//! gradients are the sum over its examples, an interrupted training ends with the same bytes as an
//! uninterrupted one, recomputed activations give the same gradients, saved models compute the same
//! as trained models, and every method can overfit ten problems.

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
