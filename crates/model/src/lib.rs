//! A checkpoint becomes a decoder. Its files are in a [`Folder`]: a directory, or memory.
//!
//! ```text
//! config.json ──> Config ─┐
//! *.safetensors ─> names ─┴─> Checkpoint ──> decoder, heads
//! tokenizer.json ───────────> Tokenizer
//! ```

pub mod cache;
pub mod checkpoint;
pub mod config;
pub mod decoder;
pub mod error;
pub mod head;
pub mod lora;
pub mod model_files;
pub mod names;
pub mod parameters;
pub mod save;
pub mod source;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod tokenizer;
mod weights;

pub use cache::{Cache, CacheMark, Pass, Sequence};
pub use checkpoint::Checkpoint;
pub use config::Config;
pub use decoder::{Decoder, Dropout, LmHead, Segment, TrainableDecoder};
pub use error::ModelError;
pub use head::{
    GaussianMeanNames, HeadActivations, LatentHead, MlpNames, RewardHead, RewardInputs,
    SwiGluNames, TrainableHead, TrainableLinear,
};
pub use model_files::{EmbeddedFiles, ModelFiles};
pub use parameters::{LinearParameters, NamedTensor, NormParameters, Parameter};
pub use source::{InitialWeights, RandomWeights, ResizedEmbeddings, TensorSource};
pub use tokenizer::Tokenizer;
