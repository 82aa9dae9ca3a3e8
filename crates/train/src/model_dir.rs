//! Model directories, as this program and transformers read them: config.json, tokenizer, weights.
//!
//! Everything but the weights is written before training starts, and the model is loaded from what
//! was written.

use std::path::{Path, PathBuf};

use model::save::{self, SaveDtype};
use model::{
    Checkpoint, Config, InitialWeights, LmHead, NamedTensor, Parameter, ResizedEmbeddings,
    Tokenizer, TrainableDecoder,
};
use serde_json::{Value, json};
use tensor::Device;

use crate::error::TrainError;
use crate::example_encoder::LatentMarkers;
use crate::vocabulary::{self, END_LATENT, END_OF_TEXT, LATENT, START_LATENT};

/// The initial model of a training.
#[derive(Clone, Debug)]
pub enum ModelInit {
    /// Random weights of this shape, with the corpus's vocabulary.
    Scratch(ScratchShape),
    /// A GPT-2, Llama or Qwen3 directory; latent markers that its vocabulary lacks are added.
    Pretrained(PathBuf),
}

/// The shape of a new GPT-2.
#[derive(Clone, Copy, Debug)]
pub struct ScratchShape {
    /// Hidden size.
    pub width: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads; a divisor of the width.
    pub heads: usize,
    /// Positions of the context.
    pub context: usize,
    /// Seed of the weights.
    pub seed: u64,
}

/// A model with its tokenizer, ready for training.
pub struct TrainableModel {
    /// The weights.
    pub decoder: TrainableDecoder,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Its latent markers and end of text.
    pub markers: LatentMarkers,
}

/// Writes configuration and tokenizer to `out` and loads the initial weights. `usage` becomes
/// config.json's `latent_tts`: the method and defaults that the engine applies.
pub fn init_model(
    device: &Device,
    init: &ModelInit,
    out: &Path,
    usage: Value,
) -> Result<TrainableModel, TrainError> {
    std::fs::create_dir_all(out)
        .map_err(|source| TrainError::Io { path: out.to_owned(), source })?;
    match init {
        ModelInit::Scratch(shape) => {
            vocabulary::write(out)?;
            let tokenizer = Tokenizer::read(out)?;
            let markers = markers(&tokenizer)?;
            let mut config = scratch_config(shape, tokenizer.vocab_size(), &tokenizer);
            config["latent_tts"] = usage;
            write_json(&out.join("config.json"), &config)?;
            let source = InitialWeights { seed: shape.seed, layers: shape.layers };
            let config = Config::read(out)?;
            let decoder =
                device.run(|| TrainableDecoder::load(device, &config, &source, LmHead::With))?;
            Ok(TrainableModel { decoder, tokenizer, markers })
        }
        ModelInit::Pretrained(dir) => init_from_pretrained(device, dir, out, usage),
    }
}

/// Copies the tokenizer of `dir` to `out` and adds the latent markers that it lacks.
fn init_from_pretrained(
    device: &Device,
    dir: &Path,
    out: &Path,
    usage: Value,
) -> Result<TrainableModel, TrainError> {
    let checkpoint = Checkpoint::open(dir)?;
    let before = Tokenizer::read(dir)?;
    copy_tokenizer(dir, out)?;
    // An embedding table may be padded beyond its vocabulary: new tokens take the padding first.
    let (old_vocab, first) = (checkpoint.config().vocab, before.vocab_size());
    let mut missing = vec![START_LATENT, END_LATENT, LATENT];
    missing.retain(|marker| before.token_to_id(marker).is_none());
    if !missing.is_empty() {
        add_tokens(&out.join("tokenizer.json"), &missing, first)?;
    }
    let new_vocab = old_vocab.max(first + missing.len());
    let tokenizer = Tokenizer::read(out)?;
    let markers = markers(&tokenizer)?;
    let copy_from = tokenizer.encode("<<")?.first().copied().unwrap_or(markers.eos);
    let mut config = read_json(&dir.join("config.json"))?;
    let vocab = json!(new_vocab);
    match config.get_mut("text_config") {
        Some(text) => text["vocab_size"] = vocab, // Qwen3-VL's text tower
        None => config["vocab_size"] = vocab,
    }
    config["latent_tts"] = usage;
    for (field, token) in
        [("latent_id", LATENT), ("latent_start_id", START_LATENT), ("latent_end_id", END_LATENT)]
    {
        config[field] = json!(tokenizer.token_to_id(token));
    }
    write_json(&out.join("config.json"), &config)?;
    let config = Config::read(out)?;
    let source = ResizedEmbeddings { source: &checkpoint, old_vocab, new_vocab, copy_from };
    let decoder = device.run(|| TrainableDecoder::load(device, &config, &source, LmHead::With))?;
    Ok(TrainableModel { decoder, tokenizer, markers })
}

fn scratch_config(shape: &ScratchShape, vocab: usize, tokenizer: &Tokenizer) -> Value {
    let id = |token: &str| tokenizer.token_to_id(token);
    json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
        "activation_function": "gelu_new", "n_embd": shape.width, "n_layer": shape.layers,
        "n_head": shape.heads, "n_positions": shape.context,
        "vocab_size": vocab, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
        "bos_token_id": id(END_OF_TEXT), "eos_token_id": id(END_OF_TEXT),
        "pad_token_id": id(END_OF_TEXT), "latent_id": id(LATENT),
        "latent_start_id": id(START_LATENT), "latent_end_id": id(END_LATENT),
    })
}

fn markers(tokenizer: &Tokenizer) -> Result<LatentMarkers, TrainError> {
    let find = |token: &str| {
        let how = "give a directory whose tokenizer.json has it, or train from scratch";
        tokenizer
            .token_to_id(token)
            .ok_or_else(|| TrainError::MissingToken { token: token.to_owned(), how })
    };
    let eos = tokenizer.eos().map_or_else(|| find(END_OF_TEXT), Ok)?;
    Ok(LatentMarkers { begin_latent: find(START_LATENT)?, end_latent: find(END_LATENT)?, eos })
}

/// Files that may belong to a tokenizer.
const TOKENIZER_FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
];

/// Copies the files of a tokenizer.
pub fn copy_tokenizer(from: &Path, to: &Path) -> Result<(), TrainError> {
    std::fs::create_dir_all(to).map_err(|source| TrainError::Io { path: to.to_owned(), source })?;
    copy_existing(from, to, &TOKENIZER_FILES)
}

/// Copies configuration and tokenizer.
pub fn copy_description(from: &Path, to: &Path) -> Result<(), TrainError> {
    copy_tokenizer(from, to)?;
    copy_existing(from, to, &["config.json"])
}

/// Copies configuration, tokenizer and weights.
pub fn copy_model(from: &Path, to: &Path) -> Result<(), TrainError> {
    copy_description(from, to)?;
    let entries = std::fs::read_dir(from)
        .map_err(|source| TrainError::Io { path: from.to_owned(), source })?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let weights: Vec<String> = names.filter(|name| name.contains(".safetensors")).collect();
    copy_existing(from, to, &weights.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Copies those of the named files that exist.
fn copy_existing(from: &Path, to: &Path, names: &[&str]) -> Result<(), TrainError> {
    for name in names {
        let path = from.join(name);
        match std::fs::read(&path) {
            Ok(contents) => record::write_atomic(&to.join(name), &contents)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(TrainError::Io { path, source }),
        }
    }
    Ok(())
}

/// Adds tokens to tokenizer.json, with ids from `first` on. They are not special, as in COCONUT:
/// decoded text contains them.
fn add_tokens(path: &Path, tokens: &[&str], first: usize) -> Result<(), TrainError> {
    let mut file = read_json(path)?;
    let Some(added) = file.get_mut("added_tokens").and_then(Value::as_array_mut) else {
        return Err(TrainError::BadFile {
            path: path.to_owned(),
            reason: "no list `added_tokens`".to_owned(),
        });
    };
    for (id, content) in (first..).zip(tokens) {
        added.push(json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false,
        }));
    }
    write_json(path, &file)
}

/// Reads a JSON file.
pub fn read_json(path: &Path) -> Result<Value, TrainError> {
    let text =
        std::fs::read(path).map_err(|source| TrainError::Io { path: path.to_owned(), source })?;
    serde_json::from_slice(&text)
        .map_err(|e| TrainError::BadFile { path: path.to_owned(), reason: e.to_string() })
}

/// Writes a JSON file atomically.
pub fn write_json(path: &Path, value: &Value) -> Result<(), TrainError> {
    Ok(record::write_document(path, value)?)
}

/// Writes `model.safetensors` to `out`: the decoder under transformers' names, heads under their
/// own.
pub fn save_weights<'a>(
    out: &Path,
    config: &Config,
    decoder: impl IntoIterator<Item = &'a Parameter>,
    heads: impl IntoIterator<Item = &'a Parameter>,
    dtype: SaveDtype,
) -> Result<(), TrainError> {
    let mut tensors: Vec<NamedTensor> = Vec::new();
    for parameter in decoder {
        for named in parameter.named_values()? {
            // transformers keeps the language-model head outside of the decoder's prefix.
            let prefix =
                if named.name.starts_with("lm_head.") { "" } else { config.weight_prefix() };
            tensors.push(NamedTensor { name: format!("{prefix}{}", named.name), ..named });
        }
    }
    for parameter in heads {
        tensors.extend(parameter.named_values()?);
    }
    let path = out.join("model.safetensors");
    Ok(save::write_safetensors(&path, &tensors, dtype, save::PT_METADATA)?)
}
