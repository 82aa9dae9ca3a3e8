//! The word-level tokenizer of models trained on the crate `corpus`.
//!
//! A closed vocabulary of whole words in lower case. Ids depend only on the corpus: added tokens,
//! digits, punctuation, then words in alphabetical order. White space separates tokens but is never
//! a token, including the line break after a COCONUT question. Decoding restores spaces: `### 19`,
//! `<<7*15=105>> <<105+15=120>>`, `each friend gets 7.`

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use model::Tokenizer;
use record::write_document;
use serde_json::{Map, Value, json};

use crate::error::TrainError;

/// End of text, also used for padding.
pub const END_OF_TEXT: &str = "<|endoftext|>";
/// Any word outside the vocabulary.
pub const UNKNOWN: &str = "<unk>";
/// Token before the first thought.
pub const START_LATENT: &str = "<|start-latent|>";
/// Token after the last thought.
pub const END_LATENT: &str = "<|end-latent|>";
/// Placeholder of a thought in text.
pub const LATENT: &str = "<|latent|>";

/// Tokens that are matched before text is split into words, and whether they are special, i.e.
/// skipped in decoding.
const ADDED_TOKENS: [(&str, bool); 8] = [
    (END_OF_TEXT, true),
    (UNKNOWN, true),
    (START_LATENT, false),
    (END_LATENT, false),
    (LATENT, false),
    ("<<", false),
    (">>", false),
    ("###", false),
];
const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
const PUNCTUATION: [&str; 8] = ["+", "-", "*", "/", "=", ".", ",", "?"];

/// All tokens in the order of their ids.
pub fn tokens() -> Vec<String> {
    let signs = ADDED_TOKENS.iter().map(|(token, _)| *token).chain(DIGITS).chain(PUNCTUATION);
    signs.map(str::to_owned).chain(words()).collect()
}

/// Writes tokenizer.json and tokenizer_config.json, which this project and transformers read.
///
/// # Errors
///
/// If a file cannot be written; the error contains its path.
pub fn write(dir: &Path) -> Result<(), record::RecordError> {
    write_document(&dir.join("tokenizer.json"), &tokenizer_json())?;
    write_document(&dir.join("tokenizer_config.json"), &config())
}

/// The tokenizer that [`fn@write`] writes.
///
/// # Errors
///
/// If a temporary file cannot be written.
pub fn tokenizer() -> Result<Tokenizer, TrainError> {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let name = format!("latent-tts-vocabulary-{}-{call}", std::process::id());
    let dir = std::env::temp_dir().join(name);
    let io = |source| TrainError::Io { path: dir.clone(), source };
    std::fs::create_dir_all(&dir).map_err(io)?;
    write(&dir)?;
    let tokenizer = Tokenizer::read(dir.as_path())?;
    std::fs::remove_dir_all(&dir).map_err(io)?;
    Ok(tokenizer)
}

/// The corpus's words in lower case, without `{slots}`.
fn words() -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for text in corpus::texts() {
        let outside =
            text.split('{').map(|part| part.split_once('}').map_or(part, |(_, after)| after));
        for word in outside
            .flat_map(|part| part.split(|c: char| !c.is_ascii_alphabetic()))
            .filter(|word| !word.is_empty())
        {
            words.insert(word.to_ascii_lowercase());
        }
    }
    words
}

fn tokenizer_json() -> Value {
    let vocab: Map<String, Value> =
        tokens().into_iter().zip(0..).map(|(token, id)| (token, json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "post_processor": null,
        "added_tokens": added_tokens().map(|(id, token)| with_id(id, token)).collect::<Vec<_>>(),
        "normalizer": { "type": "Lowercase" },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "WhitespaceSplit" },
            { "type": "Punctuation", "behavior": "Isolated" },
            { "type": "Digits", "individual_digits": true },
        ] },
        "decoder": decoder(),
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": UNKNOWN },
    })
}

/// The decoder, which restores spaces: before words, between a word or `###` and a number, and
/// between steps, but not at the start.
fn decoder() -> Value {
    let replace = |pattern: &str, content: &str| -> Value {
        json!({ "type": "Replace", "pattern": { "Regex": pattern }, "content": content })
    };
    json!({ "type": "Sequence", "decoders": [
        replace("^(?=[a-z])", " "),
        { "type": "Fuse" },
        replace("(?<=[a-z,.?#])(?=[0-9])|(?<=[>.?])(?=[<#])", " "),
        replace("^ ", ""),
    ] })
}

fn config() -> Value {
    let decoder: Map<String, Value> =
        added_tokens().map(|(id, token)| (id.to_string(), token)).collect();
    json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false,
        "do_lower_case": true, "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT, "unk_token": UNKNOWN,
        "added_tokens_decoder": decoder,
    })
}

/// The added tokens with their ids, in the format of the files.
fn added_tokens() -> impl Iterator<Item = (usize, Value)> {
    ADDED_TOKENS.iter().enumerate().map(|(id, (content, special))| {
        let token = json!({
            "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        });
        (id, token)
    })
}

fn with_id(id: usize, mut token: Value) -> Value {
    token["id"] = json!(id);
    token
}
