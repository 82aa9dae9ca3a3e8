//! Checkpoints, tokenizers and the decoder. Files come from [`ModelFiles`]: a directory, a GGUF
//! file, or bytes embedded in the program.
//!
//! ```text
//! config.json ──> Config ─┐
//! *.safetensors ─> names ─┴─> Checkpoint ──> decoder, heads
//! tokenizer.json ───────────> Tokenizer
//!
//! *.gguf ─> gguf ──> all of them
//! ```

pub mod adapter;
pub mod cache;
pub mod checkpoint;
pub mod config;
pub mod decoder;
pub mod error;
mod gguf;
pub mod head;
pub mod hub;
mod lora;
pub mod model_files;
pub mod names;
pub mod parameters;
pub mod pickle;
pub mod save;
pub mod source;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
pub mod tokenizer;
mod weights;

pub use adapter::{BaseRecord, ModelWarning};
pub use cache::{Cache, CacheMark, Pass, Sequence, SlotGranularity};
pub use checkpoint::{Checkpoint, UnmergedCheckpoint};
pub use config::Config;
pub use decoder::{
    Decoder, DecoderTuning, DeferredInputs, Dropout, ForwardOptions, LmHead, Segment,
    TrainableDecoder,
};
pub use error::ModelError;
pub use head::{
    GaussianMeanNames, HeadActivations, LatentHead, MlpNames, MlpShape, RewardHead, RewardInputs,
    StopGate, SwiGluActivations, SwiGluNames, TrainableGaussianHead, TrainableHead,
    TrainableLinear, TrainableMlp, TrainableSwiGlu,
};
pub use model_files::{AdapterFiles, EmbeddedFiles, MemoryFiles, ModelFiles};
pub use parameters::{FrozenElements, LoraConfig, LoraTargets, NamedTensor, Parameter};
pub use source::{InitialWeights, RandomWeights, ResizedEmbeddings, TensorSource};
pub use tokenizer::Tokenizer;
