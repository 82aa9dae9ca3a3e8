//! A checkpoint becomes a decoder.
//!
//! ```text
//! config.json ──> Config ─┐
//! *.safetensors ─> names ─┴─> Checkpoint ──> decoder, heads
//! tokenizer.json ───────────> Tokenizer
//! ```

pub mod adapter;
pub mod cache;
pub mod checkpoint;
pub mod config;
pub mod decoder;
pub mod error;
pub mod head;
pub mod names;
pub mod source;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod tokenizer;
mod weights;

pub use cache::{Cache, Pass, Sequence};
pub use checkpoint::Checkpoint;
pub use config::Config;
pub use decoder::{Decoder, Dropout, LmHead, Masks};
pub use error::Error;
pub use head::{Judged, LatentHead, RewardHead};
pub use source::{RandomWeights, TensorSource};
pub use tokenizer::Tokenizer;
