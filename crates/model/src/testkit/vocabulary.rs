//! Writes a tokenizer over single bytes with the tokens of a backbone's families, or copies a real
//! one.

use std::path::Path;

use serde_json::{Map, Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::{Backbone, CheckpointSpec, writer};
use crate::error::ModelError;

/// The files that a tokenizer may consist of.
const FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];

/// The tokens of a backbone besides bytes. All families of a backbone share them, so that a reward
/// model can encode its reasoner's prompts.
struct BackboneTokens {
    /// BPE merges.
    merges: &'static [(&'static str, &'static str)],
    special: &'static [&'static str],
    added: &'static [&'static str],
    /// The fields of special_tokens_map.json.
    named: &'static [(&'static str, &'static str)],
}

const GPT2: BackboneTokens = BackboneTokens {
    merges: &[],
    special: &["<|endoftext|>"],
    added: &["<|start-latent|>", "<|end-latent|>", "<|latent|>"],
    named: &[
        ("bos_token", "<|endoftext|>"),
        ("eos_token", "<|endoftext|>"),
        ("unk_token", "<|endoftext|>"),
    ],
};
const LLAMA: BackboneTokens = BackboneTokens {
    // CoLaR's `###` is one token of Llama's vocabulary, not an added one.
    merges: &[("#", "#"), ("##", "#")],
    special: &[
        "<|begin_of_text|>",
        "<|eot_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "[PAD]",
    ],
    added: &["<|latent|>", "<|start-latent|>", "<|end-latent|>"],
    named: &[
        ("bos_token", "<|begin_of_text|>"),
        ("eos_token", "<|eot_id|>"),
        ("pad_token", "[PAD]"),
    ],
};
const QWEN: BackboneTokens = BackboneTokens {
    merges: &[],
    special: &["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    added: &["<img_begin>", "<img>", "<img_end>"],
    named: &[("eos_token", "<|im_end|>"), ("pad_token", "<|endoftext|>")],
};

/// Writes the tokenizer files of a checkpoint.
pub(super) fn write(dir: &Path, spec: &CheckpointSpec) -> Result<(), ModelError> {
    if let Some(from) = &spec.tokenizer_from {
        return copy(from, dir);
    }
    let tokens = match spec.family.backbone() {
        Backbone::Gpt2 => &GPT2,
        Backbone::Llama => &LLAMA,
        Backbone::Qwen2 | Backbone::Qwen3 | Backbone::Qwen3Vl => &QWEN,
    };
    let (tokenizer, decoder) = tokenizer(tokens);
    let named: Map<String, Value> =
        tokens.named.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
    let mut config = named.clone();
    config.insert("added_tokens_decoder".to_owned(), decoder);
    config.insert("clean_up_tokenization_spaces".to_owned(), json!(false));
    config.insert("tokenizer_class".to_owned(), json!("PreTrainedTokenizerFast"));
    writer::write_json(&dir.join("tokenizer.json"), &tokenizer)?;
    writer::write_json(&dir.join("tokenizer_config.json"), &Value::Object(config))?;
    writer::write_json(&dir.join("special_tokens_map.json"), &Value::Object(named))
}

fn copy(from: &Path, to: &Path) -> Result<(), ModelError> {
    for name in FILES {
        let file = from.join(name);
        if file.is_file() {
            std::fs::copy(&file, to.join(name)).map_err(|e| ModelError::io(&file, e))?;
        }
    }
    Ok(())
}

/// tokenizer.json, and the `added_tokens_decoder` of tokenizer_config.json.
fn tokenizer(tokens: &BackboneTokens) -> (Value, Value) {
    let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    bytes.sort_unstable();
    let mut vocab: Map<String, Value> = Map::new();
    let merged = tokens.merges.iter().map(|(a, b)| format!("{a}{b}"));
    for token in bytes.into_iter().map(String::from).chain(merged) {
        vocab.insert(token, json!(vocab.len()));
    }
    let special = tokens.special.iter().map(|t| (t, true));
    let all = special.chain(tokens.added.iter().map(|t| (t, false)));
    let mut added = Vec::new();
    let mut decoder = Map::new();
    for (id, (content, special)) in (vocab.len()..).zip(all) {
        let mut token = json!({
            "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        });
        decoder.insert(id.to_string(), token.clone());
        token["id"] = json!(id);
        added.push(token);
    }
    let merges: Vec<Value> = tokens.merges.iter().map(|(a, b)| json!([a, b])).collect();
    let stage = |add_prefix_space: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true,
            "use_regex": true,
        })
    };
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": stage(false), "post_processor": null,
        "decoder": stage(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocab, "merges": merges,
        },
    });
    (tokenizer, Value::Object(decoder))
}
