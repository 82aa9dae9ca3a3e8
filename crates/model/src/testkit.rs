//! Random checkpoints in every published layout, for tests and benchmarks.
//!
//! [`write_checkpoint`] writes a complete published directory: config.json, weights, side files and
//! tokenizer. `layout` lists a family's tensors, `writer` streams them to disk, `vocabulary` writes
//! the tokenizer, `gguf` a directory's model as a GGUF file. A weight's values depend on the seed
//! and its canonical name only, so the same model can be written in another layout, dtype or number
//! of shards.

mod gguf;
mod layout;
mod pickle;
mod vocabulary;
mod writer;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::ModelError;
use crate::tokenizer::Tokenizer;
use layout::CheckpointLayout;

pub use crate::gguf::GgmlType;
pub use gguf::{GgufContent, GgufValue, StoredGgufTensor};
pub use pickle::pickle_file;

/// A published model family with its backbone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointFamily {
    /// COCONUT on GPT-2; no head.
    Coconut,
    /// CODI on GPT-2, with a projector.
    CodiGpt2,
    /// CODI on Llama, with a projector.
    CodiLlama,
    /// CoLaR on Llama, with a Gaussian latent head.
    Colar,
    /// Latent-SFT on Llama; no head.
    LatentSft,
    /// Render-of-Thought on Qwen3-VL, with a projection head and marker embeddings in side files.
    Rot,
    /// A latent reward model on GPT-2, with a linear classifier.
    RewardGpt2,
    /// A latent reward model on Llama, with a linear classifier.
    RewardLlama,
    /// Llama, a plain language model.
    Llama,
    /// Qwen2, a plain language model.
    Qwen2,
    /// Qwen3, a plain language model.
    Qwen3,
}

impl CheckpointFamily {
    /// All families of latent reasoners and reward models.
    pub const ALL: [Self; 8] = [
        Self::Coconut,
        Self::CodiGpt2,
        Self::CodiLlama,
        Self::Colar,
        Self::LatentSft,
        Self::Rot,
        Self::RewardGpt2,
        Self::RewardLlama,
    ];

    pub(crate) fn backbone(self) -> Backbone {
        match self {
            Self::Coconut | Self::CodiGpt2 | Self::RewardGpt2 => Backbone::Gpt2,
            Self::CodiLlama | Self::Colar | Self::LatentSft | Self::RewardLlama | Self::Llama => {
                Backbone::Llama
            }
            Self::Qwen2 => Backbone::Qwen2,
            Self::Qwen3 => Backbone::Qwen3,
            Self::Rot => Backbone::Qwen3Vl,
        }
    }

    /// `architectures[0]`.
    fn class_name(self) -> &'static str {
        match self {
            Self::Coconut => "COCONUTGPT2",
            Self::CodiGpt2 => "CODIGPT2",
            Self::CodiLlama => "CODILlama",
            Self::Colar => "ColarLlama",
            Self::LatentSft | Self::Llama => "LlamaForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Rot => "Qwen3VLForConditionalGeneration",
            Self::RewardGpt2 => "COCONUTGPT2ForTokenClassification",
            Self::RewardLlama => "LlamaForTokenClassification",
        }
    }
}

/// The base model of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backbone {
    Gpt2,
    Llama,
    Qwen2,
    Qwen3,
    Qwen3Vl,
}

/// The dtype of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDtype {
    /// float32.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

/// The checkpoint to write. The default is a tiny COCONUT; `CheckpointSpec { family,
/// ..Default::default() }` is a tiny model of another family.
#[derive(Debug, Clone)]
pub struct CheckpointSpec {
    /// The family; determines backbone and layout.
    pub family: CheckpointFamily,
    /// Number of blocks.
    pub layers: usize,
    /// Size of the hidden state.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; ignored for GPT-2, which has as many as query heads.
    pub kv_heads: usize,
    /// Size of a head; ignored for GPT-2, where it is `width / heads`.
    pub head_dim: usize,
    /// Inner size of the feed-forward block.
    pub ffn: usize,
    /// Maximum number of positions.
    pub context: usize,
    /// Inner size of the latent head (projector, `lt_head`, projection head).
    pub head_width: usize,
    /// Seed of the weights.
    pub seed: u64,
    /// The dtype of the weights.
    pub dtype: WeightDtype,
    /// Number of weight files; several have an index.
    pub shards: usize,
    /// Whether the token embedding is also the LM head; ignored for GPT-2, where it is.
    pub tied: bool,
    /// Whether to add unmerged LoRA adapters, in the layout of the family's training code.
    pub lora: bool,
    /// A directory whose tokenizer is copied; if `None`, a tokenizer over single bytes is written.
    pub tokenizer_from: Option<PathBuf>,
}

impl CheckpointSpec {
    /// A checkpoint of a few kilobytes.
    pub fn tiny(family: CheckpointFamily) -> CheckpointSpec {
        CheckpointSpec {
            family,
            layers: 1,
            width: 8,
            heads: 2,
            head_dim: 4,
            ffn: 8,
            context: 16,
            head_width: 8,
            ..CheckpointSpec::default()
        }
    }
}

impl Default for CheckpointSpec {
    fn default() -> CheckpointSpec {
        CheckpointSpec {
            family: CheckpointFamily::Coconut,
            layers: 2,
            width: 32,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            ffn: 48,
            context: 1024,
            head_width: 24,
            seed: 1,
            dtype: WeightDtype::F32,
            shards: 1,
            tied: true,
            lora: false,
            tokenizer_from: None,
        }
    }
}

/// Writes a complete checkpoint into a directory, which is created if it does not exist.
pub fn write_checkpoint(dir: &Path, spec: &CheckpointSpec) -> Result<(), ModelError> {
    std::fs::create_dir_all(dir).map_err(|e| ModelError::io(dir, e))?;
    vocabulary::write(dir, spec)?;
    let tokenizer = Tokenizer::read(dir)?;
    writer::write_json(&dir.join("config.json"), &config(spec, &tokenizer))?;
    let layout = CheckpointLayout::new(spec, &tokenizer);
    for (name, tensors) in &layout.side_files {
        writer::write_tensors(&dir.join(name), tensors, spec)?;
    }
    if let Some(adapter) = &layout.adapter_config {
        writer::write_json(&dir.join("adapter_config.json"), adapter)?;
    }
    writer::write_model(dir, layout.base_name, &layout.tensors, spec)
}

fn config(spec: &CheckpointSpec, tokenizer: &Tokenizer) -> Value {
    let mut config = match spec.family.backbone() {
        Backbone::Gpt2 => gpt2(spec, tokenizer),
        Backbone::Llama => llama(spec, tokenizer),
        Backbone::Qwen2 => qwen(spec, tokenizer, "qwen2"),
        Backbone::Qwen3 => qwen(spec, tokenizer, "qwen3"),
        Backbone::Qwen3Vl => qwen3_vl(spec, tokenizer),
    };
    let mut set = |name: &str, value: Value| config[name] = value;
    set("architectures", json!([spec.family.class_name()]));
    for (field, token) in [
        ("latent_id", "<|latent|>"),
        ("latent_start_id", "<|start-latent|>"),
        ("latent_end_id", "<|end-latent|>"),
    ] {
        if let Some(id) = tokenizer.token_to_id(token) {
            set(field, json!(id));
        }
    }
    match spec.family {
        CheckpointFamily::CodiGpt2 | CheckpointFamily::CodiLlama => {
            set("projector", json!(true));
            set("projector_dropout", json!(0.0));
            set("projector_hidden_size", json!(spec.head_width));
        }
        CheckpointFamily::Colar => {
            set("latent_start_id", json!(-1));
            set("latent_end_id", json!(tokenizer.token_to_id("###")));
            set("latent_intermediate_size", json!(spec.head_width));
            set("latent_embedding_std", json!(0.25));
        }
        _ => {}
    }
    config
}

fn gpt2(spec: &CheckpointSpec, tokenizer: &Tokenizer) -> Value {
    json!({
        "model_type": "gpt2", "n_layer": spec.layers, "n_embd": spec.width, "n_head": spec.heads,
        "n_inner": spec.ffn, "n_positions": spec.context, "vocab_size": tokenizer.vocab_size(),
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.1,
        "embd_pdrop": 0.1, "attn_pdrop": 0.1, "tie_word_embeddings": true,
        "bos_token_id": tokenizer.eos(), "eos_token_id": tokenizer.eos(),
    })
}

fn llama(spec: &CheckpointSpec, tokenizer: &Tokenizer) -> Value {
    json!({
        "model_type": "llama", "num_hidden_layers": spec.layers, "hidden_size": spec.width,
        "num_attention_heads": spec.heads, "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim, "intermediate_size": spec.ffn,
        "max_position_embeddings": spec.context, "vocab_size": tokenizer.vocab_size(),
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "attention_bias": false, "mlp_bias": false,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": spec.context.div_ceil(4),
        },
        "tie_word_embeddings": spec.tied, "eos_token_id": tokenizer.eos(),
    })
}

fn qwen(spec: &CheckpointSpec, tokenizer: &Tokenizer, model_type: &str) -> Value {
    let mut config = llama(spec, tokenizer);
    config["model_type"] = json!(model_type);
    config["rms_norm_eps"] = json!(1e-6);
    config["rope_theta"] = json!(1000000.0);
    config["rope_scaling"] = Value::Null;
    config
}

fn qwen3_vl(spec: &CheckpointSpec, tokenizer: &Tokenizer) -> Value {
    json!({
        "model_type": "qwen3_vl", "tie_word_embeddings": true,
        "text_config": {
            "model_type": "qwen3_vl_text", "num_hidden_layers": spec.layers,
            "hidden_size": spec.width, "num_attention_heads": spec.heads,
            "num_key_value_heads": spec.kv_heads, "head_dim": spec.head_dim,
            "intermediate_size": spec.ffn, "max_position_embeddings": spec.context,
            "vocab_size": tokenizer.vocab_size(), "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "rope_theta": 5000000.0, "rope_scaling": {
                "rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": true,
            },
            "attention_bias": false, "tie_word_embeddings": true, "eos_token_id": tokenizer.eos(),
        },
    })
}
