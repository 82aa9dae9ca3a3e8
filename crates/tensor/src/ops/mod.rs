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
mod mask;
mod norm;
mod replay;
mod rope;
mod rows;
#[cfg(test)]
mod tests;
mod topk;

pub use activation::{Activation, Format, swiglu};
pub(crate) use attention::HostKv;
pub use attention::{Attend, KvStore, Layer, Span, Views, attention};
pub use draw::{Nucleus, drawn};
pub use linear::{Linear, linear, residual};
pub use mask::{Draws, Keep, Mask};
pub use norm::{Norm, norm};
pub use replay::{Key, Replays};
pub use rope::{Place, Rope, Seats, place};
pub use rows::{Indices, add, add_noise, add_rows, concat, gather, lookup, scale, select};
pub use topk::{Word, argmax, likeliest, mixture, top_k};
