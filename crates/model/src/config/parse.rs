//! Parses each architecture's config.json into [`Config`].
//!
//! Defaults are those of the transformers class that defines the field. A field that would enable a
//! computation that the decoder does not implement is an error that names it, never ignored.

use std::path::Path;

use serde_json::Value;

use super::fields::JsonFields;
use super::{
    AdaptiveConfig, Architecture, Config, GenerationDefaults, LatentConfig, Llama3Scaling, Mlp,
    NormConfig, PositionEncoding, RecurrentFilter, ReferenceRecord,
};
use crate::error::{self, ModelError};

/// Above any real model; bounds loops over the blocks. The layer has ten bits of a random number
/// key, so random numbers would repeat beyond this.
const MAX_LAYERS: usize = tensor::rng::MAX_LAYERS;
/// Above any real model. A random number key covers this many elements of a row.
const MAX_WIDTH: usize = tensor::rng::MAX_ELEMENTS;
/// Above any real model.
const MAX_FFN: usize = 1 << 24;
/// Above any real model; bounds tables over the positions.
const MAX_POSITIONS: usize = 1 << 24;

pub(super) fn config(file: &Path, json: &str) -> Result<Config, ModelError> {
    let value: Value = error::parse_json(file, json)?;
    let top = JsonFields::new(file, &value)?;
    let model_type = top.string("model_type")?.ok_or_else(|| top.missing("model_type"))?;
    let mut config = match model_type {
        "gpt2" => gpt2(top)?,
        "llama" => llama(top, Architecture::Llama)?,
        "qwen2" => llama(top, Architecture::Qwen2)?,
        "qwen3" => llama(top, Architecture::Qwen3)?,
        "qwen3_vl_text" => llama(top, Architecture::Qwen3Vl)?,
        "qwen3_vl" => qwen3_vl(top)?,
        other => {
            let supported = "gpt2, llama, qwen2, qwen3, qwen3_vl";
            return Err(top.unsupported("model_type", other, supported));
        }
    };
    validate(top, &config)?;
    config.defaults = generation_defaults(top)?;
    config.reference = reference(top)?;
    Ok(config)
}

/// The EOS tokens of a generation_config.json; empty if it has none.
pub(super) fn eos_tokens(file: &Path, json: &str) -> Result<Vec<u32>, ModelError> {
    let value: Value = error::parse_json(file, json)?;
    JsonFields::new(file, &value)?.tokens("eos_token_id")
}

fn gpt2(f: JsonFields) -> Result<Config, ModelError> {
    f.must_be_false("scale_attn_by_inverse_layer_idx")?;
    f.must_be_false("add_cross_attention")?;
    if f.boolean("scale_attn_weights")? == Some(false) {
        return Err(f.unsupported("scale_attn_weights", "false", "true"));
    }
    let width = f.count("n_embd")?;
    let heads = f.count("n_head")?;
    if !width.is_multiple_of(heads) {
        return Err(f.bad("n_head", &format!("is {heads}; it must divide n_embd, {width}")));
    }
    let mlp = match f.string("activation_function")?.unwrap_or("gelu_new") {
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Mlp::GeluTanh,
        "gelu" => Mlp::GeluErf,
        other => {
            return Err(f.unsupported(
                "activation_function",
                other,
                "gelu_new, gelu_pytorch_tanh, gelu_fast, gelu",
            ));
        }
    };
    Ok(Config {
        architecture: Architecture::Gpt2,
        class_name: class_name(f),
        layers: f.count("n_layer")?,
        width,
        heads,
        kv_heads: heads,
        head_dim: width / heads,
        ffn: f.opt_count("n_inner")?.unwrap_or(4 * width),
        vocab: f.count("vocab_size")?,
        context: f.opt_count("n_positions")?.map_or_else(|| f.count("n_ctx"), Ok)?,
        norm: NormConfig::LayerNorm {
            eps: f.positive("layer_norm_epsilon")?.unwrap_or(1e-5) as f32,
        },
        positions: PositionEncoding::Learned,
        mlp,
        qk_norm: false,
        qkv_bias: false,
        tied: f.boolean("tie_word_embeddings")?.unwrap_or(true),
        eos: f.tokens("eos_token_id")?,
        latent: latent(f)?,
        defaults: GenerationDefaults::default(),
        reference: None,
    })
}

/// Llama, and Qwen2 and Qwen3, which have the same field names.
fn llama(f: JsonFields, architecture: Architecture) -> Result<Config, ModelError> {
    let qwen3 = matches!(architecture, Architecture::Qwen3 | Architecture::Qwen3Vl);
    for switch in ["attention_bias", "mlp_bias", "use_sliding_window"] {
        f.must_be_false(switch)?;
    }
    require_full_attention(f)?;
    match f.string("hidden_act")?.unwrap_or("silu") {
        "silu" | "swish" => {}
        other => return Err(f.unsupported("hidden_act", other, "silu")),
    }
    let width = f.count("hidden_size")?;
    let heads = f.count("num_attention_heads")?;
    let head_dim = match f.opt_count("head_dim")? {
        Some(head_dim) => head_dim,
        None if qwen3 => 128,
        None if width.is_multiple_of(heads) => width / heads,
        None => {
            return Err(f.bad(
                "num_attention_heads",
                &format!("is {heads}; it must divide hidden_size, {width}"),
            ));
        }
    };
    Ok(Config {
        architecture,
        class_name: class_name(f),
        layers: f.count("num_hidden_layers")?,
        width,
        heads,
        kv_heads: f.opt_count("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        ffn: f.count("intermediate_size")?,
        vocab: f.count("vocab_size")?,
        context: f.count("max_position_embeddings")?,
        norm: NormConfig::RmsNorm { eps: f.positive("rms_norm_eps")?.unwrap_or(1e-6) as f32 },
        positions: rope(f)?,
        mlp: Mlp::SwiGlu,
        qk_norm: qwen3,
        qkv_bias: architecture == Architecture::Qwen2,
        tied: f.boolean("tie_word_embeddings")?.unwrap_or(false),
        eos: f.tokens("eos_token_id")?,
        latent: latent(f)?,
        defaults: GenerationDefaults::default(),
        reference: None,
    })
}

/// Qwen3-VL nests the fields of its text tower in `text_config`; those of the whole model are at
/// the top level.
fn qwen3_vl(top: JsonFields) -> Result<Config, ModelError> {
    let text = top.object("text_config")?.ok_or_else(|| top.missing("text_config"))?;
    let mut config = llama(text, Architecture::Qwen3Vl)?;
    config.class_name = class_name(top);
    config.latent = latent(top)?;
    if let Some(tied) = top.boolean("tie_word_embeddings")? {
        config.tied = tied;
    }
    if config.eos.is_empty() {
        config.eos = top.tokens("eos_token_id")?;
    }
    Ok(config)
}

fn require_full_attention(f: JsonFields) -> Result<(), ModelError> {
    let Some(types) = f.get("layer_types") else {
        return Ok(());
    };
    let types = types.as_array().ok_or_else(|| f.bad("layer_types", "must be a list"))?;
    match types.iter().find(|t| t.as_str() != Some("full_attention")) {
        Some(other) => {
            Err(f.unsupported("layer_types", &other.to_string(), "full_attention in every layer"))
        }
        None => Ok(()),
    }
}

/// RoPE in either form: `rope_theta` and `rope_scaling`, or both inside `rope_parameters`.
///
/// Qwen3-VL's `mrope_section` splits the frequencies among three position axes. Text has equal
/// positions on all three, so the split has no effect.
fn rope(f: JsonFields) -> Result<PositionEncoding, ModelError> {
    let parameters = f.object("rope_parameters")?;
    let scaling = match parameters {
        Some(parameters) => Some(parameters),
        None => f.object("rope_scaling")?,
    };
    let theta = match parameters.map(|p| p.positive("rope_theta")).transpose()?.flatten() {
        Some(theta) => theta,
        None => f.positive("rope_theta")?.unwrap_or(10_000.0),
    };
    for holder in [Some(f), scaling].into_iter().flatten() {
        if holder.positive("partial_rotary_factor")?.is_some_and(|x| x != 1.0) {
            return Err(f.unsupported("partial_rotary_factor", "not 1", "1"));
        }
    }
    let scaling = match scaling {
        None => None,
        Some(s) => match s.string("rope_type")?.or(s.string("type")?).unwrap_or("default") {
            "default" | "mrope" => None,
            "llama3" => Some(llama3(s)?),
            other => return Err(f.unsupported("rope_scaling.rope_type", other, "default, llama3")),
        },
    };
    Ok(PositionEncoding::Rope { theta, scaling })
}

fn llama3(s: JsonFields) -> Result<Llama3Scaling, ModelError> {
    let number = |name: &str| s.positive(name)?.ok_or_else(|| s.missing(name));
    let scaling = Llama3Scaling {
        factor: number("factor")?,
        low: number("low_freq_factor")?,
        high: number("high_freq_factor")?,
        original_context: s.count("original_max_position_embeddings")?,
    };
    if scaling.high <= scaling.low {
        return Err(s.bad("high_freq_factor", "must be larger than low_freq_factor"));
    }
    Ok(scaling)
}

fn latent(f: JsonFields) -> Result<LatentConfig, ModelError> {
    Ok(LatentConfig {
        start_id: f.token("latent_start_id")?,
        end_id: f.token("latent_end_id")?,
        latent_id: f.token("latent_id")?,
        embedding_std: f.positive("latent_embedding_std")?.map(|x| x as f32),
        stop_threshold: f
            .number("stop_threshold", |p| p > 0.0 && p < 1.0, "above 0 and below 1")?
            .map(|x| x as f32),
        adaptive: f.object("_inserted_LatentThinkingModelSettings")?.map(adaptive).transpose()?,
    })
}

fn adaptive(f: JsonFields) -> Result<AdaptiveConfig, ModelError> {
    let token = |name: &str| f.token(name)?.ok_or_else(|| f.missing(name));
    for switch in ["add_latent_to_end", "lora_mode"] {
        f.must_be_false(switch)?;
    }
    let filter = match f.string("recurrent_filter_mode")? {
        None => RecurrentFilter::None,
        Some("MLP") => RecurrentFilter::Mlp,
        Some("linear_ln") => RecurrentFilter::LinearNorm,
        Some(other) => {
            return Err(f.unsupported("recurrent_filter_mode", other, "MLP, linear_ln, null"));
        }
    };
    Ok(AdaptiveConfig {
        start: token("start_token_id")?,
        go_on: token("continue_token_id")?,
        stop: token("stop_token_id")?,
        end: token("end_token_id")?,
        filter,
    })
}

fn generation_defaults(top: JsonFields) -> Result<GenerationDefaults, ModelError> {
    let Some(f) = top.object("latent_tts")? else { return Ok(GenerationDefaults::default()) };
    f.deny_unknown(&[
        "family",
        "thoughts",
        "max_new_tokens",
        "p",
        "sigma",
        "prompt_prefix",
        "prompt_suffix",
        "blocks",
        "block_width",
        "loops",
        "reference",
    ])?;
    let no_thoughts = f.get("thoughts").is_some_and(|n| n.as_u64() == Some(0));
    Ok(GenerationDefaults {
        family: f.string("family")?.map(str::to_owned),
        thoughts: if no_thoughts { Some(0) } else { f.opt_count("thoughts")? },
        max_new_tokens: f.opt_count("max_new_tokens")?,
        p: f.number("p", |p| (0.0..1.0).contains(&p), "at least 0 and below 1")?,
        sigma: f.number("sigma", |s| s.is_finite() && s >= 0.0, "a finite number, at least 0")?,
        prompt_prefix: f.string("prompt_prefix")?.map(str::to_owned),
        prompt_suffix: f.string("prompt_suffix")?.map(str::to_owned),
        blocks: f.opt_count("blocks")?,
        block_width: f.opt_count("block_width")?,
        loops: f.opt_count("loops")?,
    })
}

fn reference(top: JsonFields) -> Result<Option<ReferenceRecord>, ModelError> {
    let Some(usage) = top.object("latent_tts")? else { return Ok(None) };
    let Some(f) = usage.object("reference")? else { return Ok(None) };
    f.deny_unknown(&["path", "digest"])?;
    let text = |name: &str| f.string(name)?.ok_or_else(|| f.missing(name));
    Ok(Some(ReferenceRecord { path: text("path")?.into(), digest: text("digest")?.to_owned() }))
}

fn class_name(f: JsonFields) -> Option<String> {
    Some(f.get("architectures")?.get(0)?.as_str()?.to_owned())
}

/// Checks the invariants listed in the header of [`super`].
fn validate(f: JsonFields, c: &Config) -> Result<(), ModelError> {
    let gpt2 = c.architecture == Architecture::Gpt2;
    let name = |gpt2_name, llama_name| if gpt2 { gpt2_name } else { llama_name };
    let limits = [
        (name("n_layer", "num_hidden_layers"), c.layers, MAX_LAYERS),
        (name("n_positions", "max_position_embeddings"), c.context, MAX_POSITIONS),
        (name("n_embd", "hidden_size"), c.width, MAX_WIDTH),
        (name("n_head", "num_attention_heads"), c.heads, MAX_WIDTH),
        ("head_dim", c.head_dim, MAX_WIDTH),
        (name("n_inner", "intermediate_size"), c.ffn, MAX_FFN),
    ];
    if let Some((field, found, limit)) = limits.into_iter().find(|(_, found, limit)| found > limit)
    {
        return Err(f.bad(field, &format!("is {found}; the maximum is {limit}")));
    }
    if !c.heads.is_multiple_of(c.kv_heads) {
        let why = format!("is {}; it must divide num_attention_heads, {}", c.kv_heads, c.heads);
        return Err(f.bad("num_key_value_heads", &why));
    }
    if c.positions != PositionEncoding::Learned && !c.head_dim.is_multiple_of(2) {
        return Err(f.bad(
            "head_dim",
            &format!("is {}; rotary embeddings need an even number", c.head_dim),
        ));
    }
    Ok(())
}
