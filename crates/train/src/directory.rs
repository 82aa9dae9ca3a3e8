//! A model directory as this program and transformers read it: config.json, tokenizer, weights.
//!
//! Everything but the weights is written before training begins, so that what is trained is what is described.

use std::path::{Path, PathBuf};

use model::save::{self, Saved};
use model::{Checkpoint, Config, Grown, InitialWeights, Learner, LmHead, Named, Parameter, Tokenizer};
use serde_json::{Value, json};
use tensor::Device;

use crate::error::Error;
use crate::scribe::Markers;
use crate::vocabulary::{self, END_LATENT, END_OF_TEXT, LATENT, START_LATENT};

/// What a model begins as.
#[derive(Clone, Debug)]
pub enum Start {
    /// Nothing: random weights of this shape and the corpus's vocabulary.
    Scratch(Shape),
    /// A GPT-2 or Llama directory, with markers added to its vocabulary if it has none.
    From(PathBuf),
}

/// The shape of a new model, which is a GPT-2.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Width of the hidden state.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads; a divisor of the width.
    pub heads: usize,
    /// Positions.
    pub context: usize,
    /// Which random weights.
    pub seed: u64,
}

/// A model that is about to learn.
pub struct Begun {
    /// Who learns.
    pub learner: Learner,
    /// Text to tokens.
    pub tokenizer: Tokenizer,
    /// The markers.
    pub markers: Markers,
}

/// Writes `out`'s configuration and tokenizer and loads the weights that it begins with. `usage` becomes config.json's
/// `latent_tts`: how the model is meant to be used.
pub fn begin(device: &Device, start: &Start, out: &Path, usage: Value) -> Result<Begun, Error> {
    std::fs::create_dir_all(out).map_err(|source| Error::Io { path: out.to_owned(), source })?;
    match start {
        Start::Scratch(shape) => {
            vocabulary::write(out)?;
            let tokenizer = Tokenizer::read(out)?;
            let markers = markers(&tokenizer)?;
            let mut config = fresh_config(shape, tokenizer.vocab_size(), &tokenizer);
            config["latent_tts"] = usage;
            write_json(&out.join("config.json"), &config)?;
            let source = InitialWeights { seed: shape.seed, layers: shape.layers };
            let config = Config::read(out)?;
            let learner = device.run(|| Learner::load(device, &config, &source, LmHead::With))?;
            Ok(Begun { learner, tokenizer, markers })
        }
        Start::From(dir) => continued(device, dir, out, usage),
    }
}

/// From a directory: its files are copied, its vocabulary grows by the markers that it lacks.
fn continued(device: &Device, dir: &Path, out: &Path, usage: Value) -> Result<Begun, Error> {
    let checkpoint = Checkpoint::open(dir)?;
    let before = Tokenizer::read(dir)?;
    copy_tokenizer(dir, out)?;
    // A table may be longer than its vocabulary: new tokens take the rows behind the last token, and make more where need be.
    let (rows, first) = (checkpoint.config().vocab, before.vocab_size());
    let absent: Vec<&str> = [START_LATENT, END_LATENT, LATENT].into_iter().filter(|m| before.id(m).is_none()).collect();
    if !absent.is_empty() {
        add_tokens(&out.join("tokenizer.json"), &absent, first)?;
    }
    let grown = rows.max(first + absent.len());
    let tokenizer = Tokenizer::read(out)?;
    let markers = markers(&tokenizer)?;
    let like = tokenizer.encode("<<")?.first().copied().unwrap_or(markers.eos);
    let mut config = read_json(&dir.join("config.json"))?;
    config["vocab_size"] = json!(grown);
    config["latent_tts"] = usage;
    for (field, token) in [("latent_id", LATENT), ("latent_start_id", START_LATENT), ("latent_end_id", END_LATENT)] {
        config[field] = json!(tokenizer.id(token));
    }
    write_json(&out.join("config.json"), &config)?;
    let config = Config::read(out)?;
    let source = Grown { source: &checkpoint, from: rows, to: grown, like };
    let learner = device.run(|| Learner::load(device, &config, &source, LmHead::With))?;
    Ok(Begun { learner, tokenizer, markers })
}

fn fresh_config(shape: &Shape, vocab: usize, tokenizer: &Tokenizer) -> Value {
    let id = |token: &str| tokenizer.id(token);
    json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
        "n_embd": shape.width, "n_layer": shape.layers, "n_head": shape.heads, "n_positions": shape.context,
        "vocab_size": vocab, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
        "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
        "bos_token_id": id(END_OF_TEXT), "eos_token_id": id(END_OF_TEXT), "pad_token_id": id(END_OF_TEXT),
        "latent_id": id(LATENT), "latent_start_id": id(START_LATENT), "latent_end_id": id(END_LATENT),
    })
}

fn markers(tokenizer: &Tokenizer) -> Result<Markers, Error> {
    let find = |token: &str| {
        let how = "give a directory whose tokenizer.json has it, or train from scratch";
        tokenizer.id(token).ok_or_else(|| Error::AbsentToken { token: token.to_owned(), how })
    };
    let eos = tokenizer.eos().map_or_else(|| find(END_OF_TEXT), Ok)?;
    Ok(Markers { start: find(START_LATENT)?, end: find(END_LATENT)?, eos })
}

/// Files that a tokenizer may consist of.
const TOKENIZER: [&str; 6] =
    ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt", "added_tokens.json"];

/// Copies the files that a tokenizer consists of.
pub fn copy_tokenizer(from: &Path, to: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(to).map_err(|source| Error::Io { path: to.to_owned(), source })?;
    copy(from, to, &TOKENIZER)
}

/// Copies everything but the weights.
pub fn copy_description(from: &Path, to: &Path) -> Result<(), Error> {
    copy_tokenizer(from, to)?;
    copy(from, to, &["config.json"])
}

/// Copies a model: its description and its weights.
pub fn copy_model(from: &Path, to: &Path) -> Result<(), Error> {
    copy_description(from, to)?;
    let entries = std::fs::read_dir(from).map_err(|source| Error::Io { path: from.to_owned(), source })?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let weights: Vec<String> = names.filter(|name| name.contains(".safetensors")).collect();
    copy(from, to, &weights.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Copies those of some files that are there.
fn copy(from: &Path, to: &Path, names: &[&str]) -> Result<(), Error> {
    for name in names {
        let path = from.join(name);
        match std::fs::read(&path) {
            Ok(contents) => record::write_file(&to.join(name), &contents)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Io { path, source }),
        }
    }
    Ok(())
}

/// Adds tokens to tokenizer.json, from id `first` on. They are plain, as COCONUT's are: a decoded text shows them.
fn add_tokens(path: &Path, tokens: &[&str], first: usize) -> Result<(), Error> {
    let mut file = read_json(path)?;
    let Some(added) = file.get_mut("added_tokens").and_then(Value::as_array_mut) else {
        return Err(Error::BadFile { path: path.to_owned(), reason: "no list `added_tokens`".to_owned() });
    };
    for (id, content) in (first..).zip(tokens) {
        added.push(json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false }));
    }
    write_json(path, &file)
}

/// A JSON file.
pub fn read_json(path: &Path) -> Result<Value, Error> {
    let text = std::fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|e| Error::BadFile { path: path.to_owned(), reason: e.to_string() })
}

/// Writes a JSON file beside its name, then renames it.
pub fn write_json(path: &Path, value: &Value) -> Result<(), Error> {
    Ok(record::write_document(path, value)?)
}

/// Writes `out`'s weights: the decoder's under the names that published files have, heads under their own.
pub fn save_weights<'a>(
    out: &Path,
    config: &Config,
    decoder: impl IntoIterator<Item = &'a Parameter>,
    heads: impl IntoIterator<Item = &'a Parameter>,
    format: Saved,
) -> Result<(), Error> {
    let mut tensors: Vec<Named> = Vec::new();
    for parameter in decoder {
        for named in parameter.named()? {
            // The map to tokens stands beside the decoder in published files.
            let prefix = if named.name.starts_with("lm_head.") { "" } else { config.weight_prefix() };
            tensors.push(Named { name: format!("{prefix}{}", named.name), ..named });
        }
    }
    for parameter in heads {
        tensors.extend(parameter.named()?);
    }
    Ok(save::tensors(&out.join("model.safetensors"), &tensors, format, save::WEIGHTS)?)
}
