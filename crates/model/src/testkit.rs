//! Random checkpoints in every published layout, for tests and benchmarks.
//!
//! [`write_checkpoint`] writes what a user would download: config.json, weights, side files,
//! tokenizer. `layout` lists a family's tensors, `writer` streams them to disk, `vocabulary` writes
//! the tokenizer. A weight's values depend on the seed and its canonical name alone, so the same
//! model can be written in another layout, dtype or number of shards.

mod layout;
mod vocabulary;
mod writer;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::ModelError;
use crate::tokenizer::Tokenizer;
use layout::CheckpointLayout;

/// A published family, on the backbone that it is published on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointFamily {
    /// COCONUT on GPT-2: nothing but GPT-2.
    Coconut,
    /// CODI on GPT-2: a projector.
    CodiGpt2,
    /// CODI on Llama: a projector.
    CodiLlama,
    /// CoLaR on Llama: a latent head.
    Colar,
    /// Latent-SFT on Llama: nothing but Llama.
    LatentSft,
    /// Render-of-Thought on Qwen3-VL: a projection head and marker embeddings in files of their
    /// own.
    Rot,
    /// A latent reward model on GPT-2: a classifier.
    RewardGpt2,
    /// A latent reward model on Llama: a classifier.
    RewardLlama,
}

impl CheckpointFamily {
    /// All of them.
    pub const ALL: [CheckpointFamily; 8] = [
        CheckpointFamily::Coconut,
        CheckpointFamily::CodiGpt2,
        CheckpointFamily::CodiLlama,
        CheckpointFamily::Colar,
        CheckpointFamily::LatentSft,
        CheckpointFamily::Rot,
        CheckpointFamily::RewardGpt2,
        CheckpointFamily::RewardLlama,
    ];

    pub(crate) fn backbone(self) -> Backbone {
        match self {
            CheckpointFamily::Coconut
            | CheckpointFamily::CodiGpt2
            | CheckpointFamily::RewardGpt2 => Backbone::Gpt2,
            CheckpointFamily::CodiLlama
            | CheckpointFamily::Colar
            | CheckpointFamily::LatentSft
            | CheckpointFamily::RewardLlama => Backbone::Llama,
            CheckpointFamily::Rot => Backbone::Qwen3Vl,
        }
    }

    /// `architectures[0]`.
    fn class_name(self) -> &'static str {
        match self {
            CheckpointFamily::Coconut => "COCONUTGPT2",
            CheckpointFamily::CodiGpt2 => "CODIGPT2",
            CheckpointFamily::CodiLlama => "CODILlama",
            CheckpointFamily::Colar => "ColarLlama",
            CheckpointFamily::LatentSft => "LlamaForCausalLM",
            CheckpointFamily::Rot => "Qwen3VLForConditionalGeneration",
            CheckpointFamily::RewardGpt2 => "COCONUTGPT2ForTokenClassification",
            CheckpointFamily::RewardLlama => "LlamaForTokenClassification",
        }
    }
}

/// The model under a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backbone {
    Gpt2,
    Llama,
    Qwen3Vl,
}

/// The number format of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDtype {
    /// 32 bits.
    F32,
    /// 16 bits, IEEE.
    F16,
    /// 16 bits, the upper half of an f32.
    Bf16,
}

/// What to write. The default is a tiny COCONUT; `Spec { family, ..Spec::default() }` is a tiny
/// model of any family.
#[derive(Debug, Clone)]
pub struct CheckpointSpec {
    /// The family, which decides backbone and layout.
    pub family: CheckpointFamily,
    /// Number of blocks.
    pub layers: usize,
    /// Width of the hidden state.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; GPT-2 has as many as query heads whatever is said here.
    pub kv_heads: usize,
    /// Width of a head; GPT-2's is `width / heads` whatever is said here.
    pub head_dim: usize,
    /// Width of the feed-forward block.
    pub ffn: usize,
    /// Largest number of positions.
    pub context: usize,
    /// Inner width of the latent head (projector, `lt_head`, projection head).
    pub head_width: usize,
    /// Which random numbers.
    pub seed: u64,
    /// The number format of the weights.
    pub dtype: WeightDtype,
    /// Number of weight files; more than one get an index.
    pub shards: usize,
    /// Whether to leave low-rank adapters unmerged, in the family's own training layout.
    pub lora: bool,
    /// A directory whose tokenizer to copy, vocabulary included, instead of writing one over
    /// single bytes.
    pub tokenizer_from: Option<PathBuf>,
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
            lora: false,
            tokenizer_from: None,
        }
    }
}

/// Writes a complete checkpoint into a directory, which is made if need be.
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
        "model_type": "gpt2", "n_layer": spec.layers, "n_embd": spec.width, "n_head": spec.heads, "n_inner": spec.ffn,
        "n_positions": spec.context, "vocab_size": tokenizer.vocab_size(), "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
        "tie_word_embeddings": true, "bos_token_id": tokenizer.eos(), "eos_token_id": tokenizer.eos(),
    })
}

fn llama(spec: &CheckpointSpec, tokenizer: &Tokenizer) -> Value {
    json!({
        "model_type": "llama", "num_hidden_layers": spec.layers, "hidden_size": spec.width,
        "num_attention_heads": spec.heads, "num_key_value_heads": spec.kv_heads, "head_dim": spec.head_dim,
        "intermediate_size": spec.ffn, "max_position_embeddings": spec.context, "vocab_size": tokenizer.vocab_size(),
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "attention_bias": false, "mlp_bias": false,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": spec.context.div_ceil(4),
        },
        "tie_word_embeddings": true, "eos_token_id": tokenizer.eos(),
    })
}

fn qwen3_vl(spec: &CheckpointSpec, tokenizer: &Tokenizer) -> Value {
    json!({
        "model_type": "qwen3_vl", "tie_word_embeddings": true,
        "text_config": {
            "model_type": "qwen3_vl_text", "num_hidden_layers": spec.layers, "hidden_size": spec.width,
            "num_attention_heads": spec.heads, "num_key_value_heads": spec.kv_heads, "head_dim": spec.head_dim,
            "intermediate_size": spec.ffn, "max_position_embeddings": spec.context,
            "vocab_size": tokenizer.vocab_size(), "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 5000000.0,
            "rope_scaling": { "rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": true },
            "attention_bias": false, "tie_word_embeddings": true, "eos_token_id": tokenizer.eos(),
        },
    })
}
