//! The operations, each once: contract, checks, dispatch. Shapes are written (rows, columns).
//!
//! Operations panic when shapes disagree: shapes follow from a checked model configuration, so a mismatch is a defect of
//! this program and never of a user's file. Each message names the operation and both shapes. What a device may refuse at
//! run time (memory, above all) is a [`DeviceError`](crate::DeviceError).
//!
//! What every layer of a pass needs ([`Indices`], [`Views`], [`Draws`], [`Keep`]) is brought to the device once a pass.

mod activation;
mod attention;
mod draw;
mod linear;
mod loss;
mod mask;
mod norm;
mod optimizer;
mod replay;
mod rope;
mod rows;
#[cfg(test)]
mod tests;
mod topk;

pub use activation::{Activation, Format, activate, activate_backward, swiglu, swiglu_backward};
pub use attention::{Attend, AttentionBackward, KvGrads, KvStore, Layer, Span, Views, attention, attention_backward};
pub(crate) use attention::{HostKv, LayerKv};
pub use draw::{Nucleus, drawn};
pub use linear::{Linear, linear, linear_dw, linear_dx, residual};
pub use loss::{cross_entropy, logits};
pub use mask::{Draws, Keep, Mask, dropout};
pub(crate) use norm::HostNorm;
pub use norm::{Norm, enter, norm, norm_backward};
pub(crate) use optimizer::Step;
pub use optimizer::{AdamW, Moments, adamw, sum_of_squares};
pub use replay::{Key, Replays};
pub use rope::{Place, Rope, Seats, place, place_backward, project};
pub use rows::{Indices, add, add_noise, concat, fill_zero, gather, lookup, scale, scatter_add, select};
pub use topk::{Asked, Word, argmax, likeliest, mixture, top_k};
