//! The operations: contract, checks, and dispatch to a backend. Shapes are written (rows, columns).
//!
//! Operations panic when shapes disagree: shapes follow from a validated model configuration, so a
//! mismatch is a bug in this program, not an error in a user's file. Run-time failures of a device,
//! mostly lack of memory, are a [`DeviceError`](crate::DeviceError).
//!
//! The inputs that every layer of a pass reads ([`Indices`], [`AttentionMetadata`],
//! [`PerturbedRows`], [`KeepMask`]) are copied to the device once per pass.

mod activation;
mod attention;
mod dropout;
mod graph;
mod linear;
mod loss;
mod mixture;
mod norm;
mod optimizer;
mod qkv;
mod regression;
mod rows;
mod sample;
#[cfg(test)]
mod tests;
mod topk;

pub use crate::params::{Activation, RowPerturbation, SiteSet, TokenDraw, TokenSampling};
pub use activation::{OutputDtype, activate, activate_backward, swiglu, swiglu_backward};
pub use attention::{
    AttentionBackward, AttentionMetadata, AttentionSpans, KvGrads, KvLayer, KvLayerMut, KvStore,
    Span, attention, attention_backward,
};
pub(crate) use attention::{CpuKv, CpuLayerKv};
pub use dropout::{DropoutMask, KeepMask, PerturbedRows, dropout};
pub use graph::{GraphCache, GraphKey};
pub(crate) use linear::CpuWeights;
pub use linear::{
    Linear, LinearResidualNorm, linear, linear_add, linear_dw, linear_dx, linear_residual_norm,
};
pub use loss::{cross_entropy, logits};
pub use mixture::{MixedTokens, MixtureDraw, MixtureRule, MixtureTables, mix_tokens};
pub(crate) use norm::CpuNorm;
pub use norm::{
    LearnedPositions, NormBackward, Normalization, add_positions_norm, norm, norm_backward,
};
pub use optimizer::{AdamW, Moments, adamw, sum_of_squares};
pub use qkv::{
    QkvProjection, QkvRows, QkvTransform, Rope, SlotMapping, project_qkv, qk_norm_backward,
    rope_and_cache, rope_and_cache_backward,
};
pub use regression::{GaussianLoss, gaussian_loss, smooth_l1};
pub use rows::{
    Indices, add, add_noise, add_scaled, concat, fill_zero, gather, lookup, scale, scale_rows,
    scatter_add, select,
};
pub use sample::{sample_tokens, token_logprobs};
pub use topk::{
    PendingTokens, TokenLogprob, TopKMixture, argmax, greedy_tokens, top_k, top_k_mixture,
    top_tokens,
};
