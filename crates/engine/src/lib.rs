//! Parallel latent reasoning.
