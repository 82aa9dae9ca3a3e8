//! A checkpoint becomes a decoder. Its files are in a [`Folder`]: a directory, or memory.
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
pub mod folder;
pub mod head;
pub mod names;
pub mod parameters;
pub mod save;
pub mod source;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod tokenizer;
mod weights;

pub use cache::{Cache, Mark, Pass, Sequence};
pub use checkpoint::Checkpoint;
pub use config::Config;
pub use decoder::{Decoder, Dropout, Learner, LmHead, Masks, Segment};
pub use error::Error;
pub use folder::{Folder, Packed};
pub use head::{HeadKept, HeadLearner, Judged, LatentHead, LearnedLinear, RewardHead};
pub use parameters::{LinearParameters, Named, NormParameters, Parameter};
pub use source::{Grown, InitialWeights, RandomWeights, TensorSource};
pub use tokenizer::Tokenizer;
