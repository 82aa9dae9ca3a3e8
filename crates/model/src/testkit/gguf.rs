//! Converts a directory's model to a GGUF file: metadata, tokenizer and tensors as written by
//! llama.cpp's converter.
//!
//! [`GgufContent`] is the file before it is serialized, so that tests can change any part of it.

use std::path::Path;

use half::{bf16, f16};
use serde_json::Value;

use super::writer::NamedRng;
use crate::checkpoint::Checkpoint;
use crate::config::{Architecture, Config, NormConfig, PositionEncoding};
use crate::error::{self, ModelError};
use crate::gguf::GgmlType;
use crate::model_files::ModelFiles;

/// The alignment of tensors, the format's default.
const ALIGNMENT: usize = 32;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub enum GgufValue {
    /// UINT32.
    U32(u32),
    /// FLOAT32.
    F32(f32),
    /// BOOL.
    Bool(bool),
    /// STRING.
    Text(String),
    /// ARRAY of STRING.
    Texts(Vec<String>),
    /// ARRAY of INT32.
    Integers(Vec<i32>),
}

/// A tensor with its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredGgufTensor {
    /// llama.cpp's name.
    pub name: String,
    /// Type number in ggml.
    pub kind: u32,
    /// Row-major; the file lists it in reverse.
    pub shape: Vec<u64>,
    /// Raw bytes of the tensor.
    pub bytes: Vec<u8>,
}

/// The content of a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufContent {
    /// Keys and values, in the order of the file.
    pub metadata: Vec<(String, GgufValue)>,
    /// The tensors.
    pub tensors: Vec<StoredGgufTensor>,
}

impl GgufContent {
    /// The model of a Llama, Qwen2 or Qwen3 directory. Vectors are F32, matrices of type `kind`;
    /// those of a quantized type are random blocks instead of the directory's values.
    pub fn from_directory(dir: &Path, kind: GgmlType) -> Result<Self, ModelError> {
        let checkpoint = Checkpoint::open(dir)?;
        let config = checkpoint.config();
        let mut metadata = model_metadata(config);
        metadata.extend(tokenizer_metadata(&ModelFiles::from(dir))?);
        let mut tensors = Vec::new();
        for info in checkpoint.tensors().filter(|info| info.ignored.is_none()) {
            let values = checkpoint.tensor(&info.canonical, info.shape)?;
            tensors.push(stored_tensor(config, &info.canonical, info.shape, values, kind));
        }
        tensors.extend(rope_factors(config));
        Ok(Self { metadata, tensors })
    }

    /// Replaces the value of a key, or adds it.
    pub fn set(&mut self, key: &str, value: GgufValue) -> &mut Self {
        self.remove(key);
        self.metadata.push((key.to_owned(), value));
        self
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(known, _)| known != key);
        self
    }

    /// The file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            push_text(&mut out, key);
            push_value(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            push_text(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|size| out.extend(size.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += tensor.bytes.len().next_multiple_of(ALIGNMENT);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            out.extend(&tensor.bytes);
        }
        out
    }

    /// Writes the file.
    pub fn write(&self, file: &Path) -> Result<(), ModelError> {
        std::fs::write(file, self.to_bytes()).map_err(|e| ModelError::io(file, e))
    }
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn push_value(out: &mut Vec<u8>, value: &GgufValue) {
    let list = |out: &mut Vec<u8>, element: u32, count: usize| {
        out.extend(9u32.to_le_bytes());
        out.extend(element.to_le_bytes());
        out.extend((count as u64).to_le_bytes());
    };
    match value {
        GgufValue::U32(n) => out.extend([4u32.to_le_bytes(), n.to_le_bytes()].concat()),
        GgufValue::F32(x) => out.extend([6u32.to_le_bytes(), x.to_le_bytes()].concat()),
        GgufValue::Bool(b) => {
            out.extend(7u32.to_le_bytes());
            out.push(u8::from(*b));
        }
        GgufValue::Text(text) => {
            out.extend(8u32.to_le_bytes());
            push_text(out, text);
        }
        GgufValue::Texts(texts) => {
            list(out, 8, texts.len());
            texts.iter().for_each(|text| push_text(out, text));
        }
        GgufValue::Integers(integers) => {
            list(out, 5, integers.len());
            integers.iter().for_each(|n| out.extend(n.to_le_bytes()));
        }
    }
}

/// llama.cpp's name of an architecture.
fn architecture_name(config: &Config) -> &'static str {
    match config.architecture {
        Architecture::Qwen2 => "qwen2",
        Architecture::Qwen3 => "qwen3",
        _ => "llama",
    }
}

fn model_metadata(config: &Config) -> Vec<(String, GgufValue)> {
    let name = architecture_name(config);
    let mut metadata = vec![("general.architecture".to_owned(), GgufValue::Text(name.to_owned()))];
    for (key, count) in [
        ("block_count", config.layers),
        ("context_length", config.context),
        ("embedding_length", config.width),
        ("feed_forward_length", config.ffn),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.head_dim),
    ] {
        metadata.push((format!("{name}.{key}"), GgufValue::U32(count as u32)));
    }
    let (NormConfig::LayerNorm { eps } | NormConfig::RmsNorm { eps }) = config.norm;
    metadata.push((format!("{name}.attention.layer_norm_rms_epsilon"), GgufValue::F32(eps)));
    if let PositionEncoding::Rope { theta, scaling } = config.positions {
        metadata.push((format!("{name}.rope.freq_base"), GgufValue::F32(theta as f32)));
        if let Some(scaling) = scaling {
            let context = GgufValue::U32(scaling.original_context as u32);
            metadata.push((format!("{name}.rope.scaling.original_context_length"), context));
        }
    }
    metadata
}

/// The tokens by id, with those of tokenizer.json's `added_tokens` as control or user-defined ones.
fn tokenizer_metadata(files: &ModelFiles) -> Result<Vec<(String, GgufValue)>, ModelError> {
    let read = |name: &str| -> Result<Value, ModelError> {
        let file = files.file_path(name);
        error::parse_json(&file, &files.read_text(&file)?)
    };
    let tokenizer = read("tokenizer.json")?;
    let config = read("tokenizer_config.json")?;
    let vocab = tokenizer["model"]["vocab"].as_object().into_iter().flatten();
    let words = vocab.map(|(token, id)| (id.as_u64(), token.clone(), 1));
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten().map(|token| {
        let kind = if token["special"] == true { 3 } else { 4 };
        (token["id"].as_u64(), token["content"].as_str().unwrap_or_default().to_owned(), kind)
    });
    let mut tokens: Vec<_> = words.chain(added).collect();
    tokens.sort();
    let merge = |pair: &Value| {
        let half = |i: usize| pair[i].as_str().unwrap_or_default().to_owned();
        format!("{} {}", half(0), half(1))
    };
    let merges = tokenizer["model"]["merges"].as_array().into_iter().flatten().map(merge);
    let text = |text: &str| GgufValue::Text(text.to_owned());
    let mut metadata = vec![
        ("tokenizer.ggml.model".to_owned(), text("gpt2")),
        ("tokenizer.ggml.pre".to_owned(), text("gpt-2")),
        ("tokenizer.ggml.merges".to_owned(), GgufValue::Texts(merges.collect())),
        ("tokenizer.chat_template".to_owned(), text("{{ messages[0].content }}")),
    ];
    for name in ["bos", "eos"] {
        let token = config[format!("{name}_token")].as_str();
        if let Some(id) = token.and_then(|token| tokens.iter().position(|t| t.1 == token)) {
            let key = format!("tokenizer.ggml.{name}_token_id");
            metadata.push((key, GgufValue::U32(id as u32)));
        }
    }
    let kinds = tokens.iter().map(|t| t.2).collect();
    metadata.push(("tokenizer.ggml.token_type".to_owned(), GgufValue::Integers(kinds)));
    let tokens = tokens.into_iter().map(|t| t.1).collect();
    metadata.push(("tokenizer.ggml.tokens".to_owned(), GgufValue::Texts(tokens)));
    Ok(metadata)
}

/// llama.cpp's name of a tensor.
fn gguf_name(canonical: &str) -> String {
    let pairs = [
        ("embed_tokens", "token_embd"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let name = if canonical == "norm.weight" { "output_norm.weight" } else { canonical };
    let name = name.replace("layers.", "blk.");
    pairs.iter().fold(name, |name, (ours, theirs)| name.replace(ours, theirs))
}

fn stored_tensor(
    config: &Config,
    canonical: &str,
    shape: &[usize],
    values: Vec<f32>,
    kind: GgmlType,
) -> StoredGgufTensor {
    let heads = match config.architecture {
        Architecture::Llama if canonical.ends_with("q_proj.weight") => Some(config.heads),
        Architecture::Llama if canonical.ends_with("k_proj.weight") => Some(config.kv_heads),
        _ => None,
    };
    let name = gguf_name(canonical);
    let kind = if shape.len() == 1 { GgmlType::F32 } else { kind };
    let values = match heads {
        Some(heads) => interleaved(&values, heads, shape[0] / heads, shape[1]),
        None => values,
    };
    let bytes = encode(&values, kind, &name);
    let shape = shape.iter().map(|size| *size as u64).collect();
    StoredGgufTensor { name, kind: kind.number(), shape, bytes }
}

/// The rows of each head as llama.cpp's converter orders them: 0, n/2, 1, n/2 + 1, ...
fn interleaved(values: &[f32], heads: usize, head_dim: usize, columns: usize) -> Vec<f32> {
    let rows = (0..heads).flat_map(|head| {
        (0..head_dim / 2).flat_map(move |i| [i, i + head_dim / 2].map(|r| head * head_dim + r))
    });
    rows.flat_map(|row| &values[row * columns..][..columns]).copied().collect()
}

fn encode(values: &[f32], kind: GgmlType, name: &str) -> Vec<u8> {
    match kind {
        GgmlType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        GgmlType::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        GgmlType::Bf16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        quantised => random_blocks(quantised, values.len() / quantised.block(), name),
    }
}

/// Blocks of random integers with scales such that values are about the size of weights.
fn random_blocks(kind: GgmlType, blocks: usize, name: &str) -> Vec<u8> {
    let (scale, places): (f32, &[usize]) = match kind {
        GgmlType::Q4_1 | GgmlType::Q5_1 => (0.01, &[0, 2]),
        GgmlType::Q8_0 => (0.001, &[0]),
        GgmlType::Q4K | GgmlType::Q5K => (0.0002, &[0, 2]),
        GgmlType::Q6K => (0.0001, &[208]),
        _ => (0.01, &[0]),
    };
    let mut random = NamedRng::new(1, name);
    let mut bytes = Vec::new();
    for _ in 0..blocks {
        let mut block: Vec<u8> = (0..kind.block_bytes()).map(|_| random.next() as u8).collect();
        for (place, sign) in places.iter().zip([1.0, -8.0]) {
            let minimum = matches!(kind, GgmlType::Q4K | GgmlType::Q5K);
            let value = if minimum { scale } else { scale * sign };
            block[*place..place + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        }
        bytes.extend(block);
    }
    bytes
}

/// `rope_freqs.weight`, as the converter computes it for Llama 3.
fn rope_factors(config: &Config) -> Option<StoredGgufTensor> {
    let PositionEncoding::Rope { theta, scaling: Some(scaling) } = config.positions else {
        return None;
    };
    let context = scaling.original_context as f64;
    let divisor = |i: usize| {
        let wavelength =
            std::f64::consts::TAU * theta.powf((2 * i) as f64 / config.head_dim as f64);
        let smooth = (context / wavelength - scaling.low) / (scaling.high - scaling.low);
        match smooth {
            s if s >= 1.0 => 1.0,
            s if s <= 0.0 => scaling.factor,
            s => 1.0 / ((1.0 - s) / scaling.factor + s),
        }
    };
    let values: Vec<f32> = (0..config.head_dim / 2).map(|i| divisor(i) as f32).collect();
    Some(StoredGgufTensor {
        name: "rope_freqs.weight".to_owned(),
        kind: GgmlType::F32.number(),
        shape: vec![values.len() as u64],
        bytes: encode(&values, GgmlType::F32, ""),
    })
}
