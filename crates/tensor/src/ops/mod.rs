//! The operations, each once: contract, checks, dispatch. Shapes are written (rows, columns).
//!
//! Operations panic when shapes disagree: shapes follow from a checked model configuration, so a mismatch is a defect of
//! this program and never of a user's file. Each message names the operation and both shapes. What a device may refuse at
//! run time (memory, above all) is a [`DeviceError`](crate::DeviceError).

mod activation;
mod attention;
mod linear;
mod norm;
mod rope;
mod rows;
mod topk;

pub use activation::{Activation, swiglu};
pub use attention::{Attend, KvStore, Layer, Span, attention};
pub use linear::{Finish, Linear, Mask, argmax, linear};
pub use norm::{Norm, norm, norm_heads};
pub use rope::{Rope, rope};
pub use rows::{add, add_noise, add_rows, concat, lookup, scale, select};
pub use topk::top_k;
