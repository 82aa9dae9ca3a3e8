//! Learning as a whole, on models that fit a thumbnail: gradients are the slopes of the loss, a
//! lesson does not see its company, an interrupted training ends as if it had not been, what is
//! saved is what was learned, and ten problems can be learned by heart through six thoughts.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod batch_additivity;
mod early_stopping;
mod gradients;
mod overfit;
mod resume;
mod saved_models;
mod support;
