//! What config.json says, as types.
//!
//! GPT-2, Llama and Qwen3 are one decoder; what differs between them is a field here, never a
//! second code path by name. `fields` reads single values with bounds, `parse` knows each
//! architecture's spelling.
//!
//! Invariants of a parsed [`Config`]: no count is zero, `kv_heads` divides `heads`, `head_dim` is
//! even where positions are rotary, and no tensor size computed from the counts overflows.

mod fields;
mod parse;

use std::path::Path;

use serde::Serialize;

use crate::error::ModelError;
use crate::model_files::ModelFiles;

/// Which published model class the weights were written by; decides the weight names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// GPT-2: fused qkv, `Conv1D` weights stored as (in, out), biases everywhere.
    Gpt2,
    /// Llama 2, 3 and their kin: separate projections stored as (out, in), no biases.
    Llama,
    /// Qwen3 and the text tower of Qwen3-VL: Llama with a norm on each head's query and key.
    Qwen3,
}

/// How a hidden state is normalised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NormConfig {
    /// Mean and variance, with weight and bias.
    LayerNorm {
        /// Added to the variance.
        eps: f32,
    },
    /// Root mean square, with weight.
    RmsNorm {
        /// Added to the mean square.
        eps: f32,
    },
}

/// How a token's position reaches the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PositionEncoding {
    /// A table of vectors added to the embeddings.
    Learned,
    /// Queries and keys are rotated, first half of a head against its second half.
    Rope {
        /// The base of the frequencies.
        theta: f64,
        /// Llama 3's stretching of the low frequencies.
        scaling: Option<Llama3Scaling>,
    },
}

/// Llama 3's rope scaling: wavelengths beyond `original_context / low` are divided by `factor`,
/// those below `original_context / high` are kept, those between are interpolated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama3Scaling {
    /// How far low frequencies are stretched.
    pub factor: f64,
    /// `low_freq_factor`.
    pub low: f64,
    /// `high_freq_factor`, larger than `low`.
    pub high: f64,
    /// `original_max_position_embeddings`.
    pub original_context: usize,
}

/// The feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mlp {
    /// Two matrices with GELU between, in its tanh form (`gelu_new`).
    GeluTanh,
    /// Two matrices with GELU between, in its exact form.
    GeluErf,
    /// Three matrices: `down(silu(gate(x)) * up(x))`.
    SwiGlu,
}

/// What a latent reasoner's config.json adds to its base model's. Ids of -1 mean "not used" and are
/// read as `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LatentConfig {
    /// `latent_id`: the placeholder token that stands for a thought.
    pub latent_id: Option<u32>,
    /// `latent_start_id`: the token that opens the thoughts.
    pub start_id: Option<u32>,
    /// `latent_end_id`: the token that closes them.
    pub end_id: Option<u32>,
    /// `projector_hidden_size` (CODI).
    pub projector_hidden: Option<usize>,
    /// `latent_intermediate_size` (CoLaR).
    pub latent_intermediate: Option<usize>,
    /// `latent_embedding_std` (CoLaR): what a predicted thought is multiplied by.
    pub embedding_std: Option<f32>,
}

/// `latent_tts`: what whoever trained a model says about using it. Each field wins over what is
/// recognised and over its family's default; none has to be there. It is written as it is read;
/// numbers are as wide as JSON's, so that they stay what was typed.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GenerationDefaults {
    /// The family's name, as `--method` takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// Thoughts of a trajectory, exactly or at most as the family counts them; 0 is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thoughts: Option<usize>,
    /// Answer tokens at most; not 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_new_tokens: Option<usize>,
    /// The dropout rate, in `[0, 1)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// The noise's standard deviation; finite and not negative.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sigma: Option<f64>,
}

/// The blueprint of a decoder. See the module's header for what holds of every value.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The base architecture.
    pub architecture: Architecture,
    /// `architectures[0]`: the class that wrote the checkpoint, e.g. `CODIGPT2`.
    pub class_name: Option<String>,
    /// Number of blocks.
    pub layers: usize,
    /// Width of the hidden state, d.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; `heads * head_dim` need not be `width`.
    pub head_dim: usize,
    /// Width of the feed-forward block.
    pub ffn: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Largest number of positions.
    pub context: usize,
    /// The norm of every block and the final one.
    pub norm: NormConfig,
    /// How positions are told apart.
    pub positions: PositionEncoding,
    /// The feed-forward block.
    pub mlp: Mlp,
    /// Whether each head's query and key are normalised (weights `q_norm`, `k_norm`).
    pub qk_norm: bool,
    /// Whether the embedding also is the output matrix.
    pub tied: bool,
    /// Tokens that end an answer. Empty when no file says; ask the tokenizer then.
    pub eos: Vec<u32>,
    /// What latent reasoners add.
    pub latent: LatentConfig,
    /// How to use the model, as far as it says.
    pub defaults: GenerationDefaults,
}

impl Config {
    /// What published files put before the decoder's canonical names.
    pub fn weight_prefix(&self) -> &'static str {
        match self.architecture {
            Architecture::Gpt2 => "transformer.",
            Architecture::Llama => "model.",
            Architecture::Qwen3 => "model.language_model.",
        }
    }

    /// Reads `config.json`, and `generation_config.json` beside it, whose end tokens win as they do
    /// in transformers.
    pub fn read(folder: impl Into<ModelFiles>) -> Result<Config, ModelError> {
        let folder = folder.into();
        folder.check_exists()?;
        let file = folder.file_path("config.json");
        if !folder.contains(&file) {
            return Err(ModelError::MissingConfig { dir: folder.path().to_owned() });
        }
        let mut config = Config::parse(&file, &folder.read_text(&file)?)?;
        let generation = folder.file_path("generation_config.json");
        if folder.contains(&generation) {
            let eos = parse::eos_tokens(&generation, &folder.read_text(&generation)?)?;
            if !eos.is_empty() {
                config.eos = eos;
            }
        }
        Ok(config)
    }

    /// Parses the text of a config.json; `file` is only named in errors.
    pub fn parse(file: &Path, json: &str) -> Result<Config, ModelError> {
        parse::config(file, json)
    }
}
