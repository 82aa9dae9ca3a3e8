//! config.json as types.
//!
//! GPT-2, Llama, Qwen2 and Qwen3 share one decoder; their differences are fields of [`Config`], not
//! code paths chosen by model name. `fields` reads single values and checks their range, `parse`
//! maps each architecture's field names to [`Config`].
//!
//! Invariants of a parsed [`Config`]: no count is zero, `kv_heads` divides `heads`, `head_dim` is
//! even with rotary positions, and no tensor size computed from the counts overflows.

mod fields;
mod parse;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::ModelError;
use crate::model_files::ModelFiles;

/// The transformers model class of the base model; decides tensor names and weight layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// GPT-2: fused QKV, `Conv1D` weights stored as (in, out), biases in every layer.
    Gpt2,
    /// Llama 2 and 3: separate projections stored as (out, in), no biases.
    Llama,
    /// Qwen2 and Qwen2.5: Llama with biases on queries, keys and values.
    Qwen2,
    /// Qwen3: Llama with QK-norm.
    Qwen3,
    /// The text tower of Qwen3-VL: Qwen3 under other tensor names.
    Qwen3Vl,
}

/// The normalization layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NormConfig {
    /// LayerNorm with weight and bias.
    LayerNorm {
        /// Added to the variance.
        eps: f32,
    },
    /// RMSNorm with weight, no bias.
    RmsNorm {
        /// Added to the mean square.
        eps: f32,
    },
}

/// Position encoding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PositionEncoding {
    /// Learned absolute positions: a (context, width) table added to the embeddings.
    Learned,
    /// Rotary positions on queries and keys; element i of a head pairs with i + head_dim / 2.
    Rope {
        /// `rope_theta`, the base of the frequencies.
        theta: f64,
        /// Llama 3's frequency scaling, if any.
        scaling: Option<Llama3Scaling>,
    },
}

/// Llama 3's RoPE scaling: frequencies with a wavelength beyond `original_context / low` are
/// divided by `factor`, those with one below `original_context / high` are unchanged, those between
/// are interpolated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama3Scaling {
    /// The divisor of low frequencies.
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
    /// `out(gelu(in(x)))` with the tanh approximation (`gelu_new`).
    GeluTanh,
    /// `out(gelu(in(x)))` with the exact, erf form.
    GeluErf,
    /// `down(silu(gate(x)) * up(x))`.
    SwiGlu,
}

/// Fields that latent reasoners add to their base model's config.json. An id of -1 means "not used"
/// and is read as `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LatentConfig {
    /// `latent_start_id`: the token before the first thought.
    pub start_id: Option<u32>,
    /// `latent_end_id`: the token after the last thought.
    pub end_id: Option<u32>,
    /// `latent_id`: the token at the positions of thoughts.
    pub latent_id: Option<u32>,
    /// `latent_embedding_std` (CoLaR): the factor of a predicted thought.
    pub embedding_std: Option<f32>,
    /// `stop_threshold` (SLPO): the probability of the stop gate above which a thought is the last.
    pub stop_threshold: Option<f32>,
    /// Settings of adaptive latent reasoning.
    pub adaptive: Option<AdaptiveConfig>,
}

/// The config.json fields of adaptive latent reasoning: its tokens, and the filter applied before a
/// hidden state is fed back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveConfig {
    /// The token that starts the thoughts.
    pub start: u32,
    /// The token whose row of the LM head votes for continuing.
    pub go_on: u32,
    /// The token whose row of the LM head votes for stopping.
    pub stop: u32,
    /// The token fed after the last thought.
    pub end: u32,
    /// The filter.
    pub filter: RecurrentFilter,
}

/// The transformation of a hidden state before it is fed back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecurrentFilter {
    /// No filter.
    None,
    /// Linear, GELU, linear, LayerNorm.
    Mlp,
    /// Linear, LayerNorm.
    LinearNorm,
}

/// The `latent_tts` object of config.json: the generation defaults chosen when the model was
/// trained. Each field is optional and overrides detection and the family's default. Numbers are
/// f64, the width of JSON numbers, so that a round trip preserves them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GenerationDefaults {
    /// The name of the method family.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// Thoughts per trajectory: the exact number or the maximum, depending on the family's length
    /// rule; may be 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thoughts: Option<usize>,
    /// Maximum number of answer tokens; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_new_tokens: Option<usize>,
    /// The dropout rate, in `[0, 1)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// The standard deviation of Gaussian noise; finite and not negative.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sigma: Option<f64>,
    /// Text before the question, replacing the family's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_prefix: Option<String>,
    /// Text after the question, replacing the family's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_suffix: Option<String>,
    /// Blocks of latent positions, in a looped family; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocks: Option<usize>,
    /// Latent positions of a block; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_width: Option<usize>,
    /// Passes over the latent positions whose hidden states are fed back; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loops: Option<usize>,
}

/// A decoder's configuration. Its invariants are listed in the module documentation.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The base architecture.
    pub architecture: Architecture,
    /// `architectures[0]`: the Python class that saved the checkpoint, e.g. `CODIGPT2`.
    pub class_name: Option<String>,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Size of the hidden state, d.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Size of one head; `heads * head_dim` need not equal `width`.
    pub head_dim: usize,
    /// Inner size of the feed-forward block.
    pub ffn: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Maximum number of positions.
    pub context: usize,
    /// The norm of every block and the final one.
    pub norm: NormConfig,
    /// The position encoding.
    pub positions: PositionEncoding,
    /// The feed-forward block.
    pub mlp: Mlp,
    /// QK-norm: each head's query and key are normalized (weights `q_norm`, `k_norm`).
    pub qk_norm: bool,
    /// Biases on queries, keys and values, in architectures without biases on other projections.
    pub qkv_bias: bool,
    /// Weight tying: the token embedding is also the LM head.
    pub tied: bool,
    /// EOS token ids; empty if no file has them (the tokenizer's EOS applies then).
    pub eos: Vec<u32>,
    /// Fields of latent reasoners.
    pub latent: LatentConfig,
    /// Generation defaults stored with the model.
    pub defaults: GenerationDefaults,
    /// The reference reasoner of a reward model that contains no copy of it.
    pub reference: Option<ReferenceRecord>,
}

/// A reference to a reward model's reference reasoner in another directory: usually the reasoner
/// itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReferenceRecord {
    /// Path relative to the reward model's directory.
    pub path: PathBuf,
    /// The digest of its weights, see [`Checkpoint::digest`](crate::Checkpoint::digest).
    pub digest: String,
}

impl Config {
    /// The prefix that published files put before the canonical tensor names of the decoder.
    pub fn weight_prefix(&self) -> &'static str {
        match self.architecture {
            Architecture::Gpt2 => "transformer.",
            Architecture::Llama | Architecture::Qwen2 | Architecture::Qwen3 => "model.",
            Architecture::Qwen3Vl => "model.language_model.",
        }
    }

    /// Number of elements of the matrices and tables, without biases and norms; for a new model
    /// with tied embeddings.
    pub fn parameters(&self) -> u64 {
        let [width, ffn, heads, kv_heads, head_dim, layers] =
            [self.width, self.ffn, self.heads, self.kv_heads, self.head_dim, self.layers]
                .map(|count| count as u64);
        let attention = 2 * (heads + kv_heads) * head_dim * width;
        let mlp = if self.mlp == Mlp::SwiGlu { 3 } else { 2 } * width * ffn;
        let positions = if self.positions == PositionEncoding::Learned { self.context } else { 0 };
        layers * (attention + mlp) + (self.vocab + positions) as u64 * width
    }

    /// The canonical module name of the token embedding.
    pub(crate) fn embedding_name(&self) -> &'static str {
        match self.architecture {
            Architecture::Gpt2 => "wte",
            _ => "embed_tokens",
        }
    }

    /// Reads `config.json` (an adapter without one inherits its base's), and
    /// `generation_config.json` if there is one: its EOS tokens take precedence, as in
    /// transformers.
    pub fn read(files: impl Into<ModelFiles>) -> Result<Config, ModelError> {
        let files = files.into();
        files.check_exists()?;
        let described = files.first_with(&["config.json"])?;
        let files =
            described.ok_or_else(|| ModelError::MissingConfig { dir: files.path().to_owned() })?;
        let file = files.file_path("config.json");
        let mut config = Config::parse(&file, &files.read_text(&file)?)?;
        let generation = files.file_path("generation_config.json");
        if files.contains(&generation) {
            let eos = parse::eos_tokens(&generation, &files.read_text(&generation)?)?;
            if !eos.is_empty() {
                config.eos = eos;
            }
        }
        Ok(config)
    }

    /// Parses the text of a config.json; `file` is used in error messages only.
    pub fn parse(file: &Path, json: &str) -> Result<Config, ModelError> {
        parse::config(file, json)
    }
}
