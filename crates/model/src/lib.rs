//! A checkpoint becomes a decoder.
//!
//! ```text
//! config.json ──> Config ─┐
//! *.safetensors ─> names ─┴─> Checkpoint ──> decoder, heads
//! tokenizer.json ───────────> Tokenizer
//! ```

pub mod adapter;
pub mod checkpoint;
pub mod config;
pub mod error;
pub mod names;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod tokenizer;

pub use checkpoint::Checkpoint;
pub use config::Config;
pub use error::Error;
pub use tokenizer::Tokenizer;
