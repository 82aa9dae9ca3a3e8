//! Converts the tokenizer of a GGUF file to a tokenizer.json and a tokenizer_config.json that
//! transformers can read, too.
//!
//! llama.cpp calls byte-level BPE `gpt2` and stores only the name of the pre-tokenizer, not its
//! regular expressions.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::reader::GgufFile;
use crate::error::ModelError;

/// Token types of llama.cpp.
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Llama 3's split: digits in groups of up to three.
const LLAMA3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen2's split: single digits.
const QWEN2_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How a text is split into words before BPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PreTokenizerKind {
    Gpt2,
    /// GPT-2's, with single digits.
    SmolLm,
    Llama3,
    Qwen2,
}

/// Names in llama.cpp.
const PRE_TOKENIZERS: [(&str, PreTokenizerKind); 10] = [
    ("gpt-2", PreTokenizerKind::Gpt2),
    ("gpt2", PreTokenizerKind::Gpt2),
    ("olmo", PreTokenizerKind::Gpt2),
    ("smollm", PreTokenizerKind::SmolLm),
    ("llama-bpe", PreTokenizerKind::Llama3),
    ("llama3", PreTokenizerKind::Llama3),
    ("llama-v3", PreTokenizerKind::Llama3),
    ("qwen2", PreTokenizerKind::Qwen2),
    ("deepseek-r1-qwen", PreTokenizerKind::Qwen2),
    ("megrez", PreTokenizerKind::Qwen2),
];

impl PreTokenizerKind {
    /// Files older than the key, and those whose converter did not recognize the tokenizer, use the
    /// default of their architecture.
    fn of(gguf: &GgufFile) -> Result<Self, ModelError> {
        let key = "tokenizer.ggml.pre";
        let name = gguf.opt_text(key)?.unwrap_or("default");
        if name == "default" {
            let qwen = gguf.text("general.architecture")?.starts_with("qwen");
            return Ok(if qwen { Self::Qwen2 } else { Self::Gpt2 });
        }
        let found = PRE_TOKENIZERS.iter().find(|(known, _)| *known == name);
        let names = || PRE_TOKENIZERS.map(|(name, _)| name).join(", ");
        found
            .map(|(_, kind)| *kind)
            .ok_or_else(|| gguf.unsupported(key, &format!("`{name}`"), &names()))
    }

    fn pre_tokenizer(self) -> Value {
        let split = |pattern: &str| {
            json!({
                "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
                "invert": false,
            })
        };
        let stages = match self {
            Self::Gpt2 => vec![byte_level(true)],
            Self::SmolLm => {
                vec![json!({ "type": "Digits", "individual_digits": true }), byte_level(true)]
            }
            Self::Llama3 => vec![split(LLAMA3_PATTERN), byte_level(false)],
            Self::Qwen2 => vec![split(QWEN2_PATTERN), byte_level(false)],
        };
        json!({ "type": "Sequence", "pretokenizers": stages })
    }

    fn normalizer(self) -> Value {
        if self == Self::Qwen2 { json!({ "type": "NFC" }) } else { Value::Null }
    }
}

fn byte_level(use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": use_regex,
    })
}

/// The tokens, without padding tokens at the end.
struct TokenList<'a> {
    gguf: &'a GgufFile,
    tokens: Vec<&'a str>,
    types: Vec<i32>, // (tokens)
}

impl<'a> TokenList<'a> {
    fn read(gguf: &'a GgufFile) -> Result<Self, ModelError> {
        let key = "tokenizer.ggml.token_type";
        let mut tokens = gguf.texts("tokenizer.ggml.tokens")?;
        let types = gguf.opt_integers(key)?;
        let mut types = types.unwrap_or_else(|| vec![1; tokens.len()]);
        if types.len() != tokens.len() {
            let why = format!("has {} entries for {} tokens", types.len(), tokens.len());
            return Err(gguf.bad_value(key, why));
        }
        // Converters pad the list up to the embedding's rows.
        let used = types.iter().rposition(|kind| *kind != UNUSED).map_or(0, |last| last + 1);
        tokens.truncate(used);
        types.truncate(used);
        let mut seen = HashSet::new();
        match tokens.iter().find(|token| !seen.insert(**token)) {
            Some(twice) => {
                let why = format!("has `{twice}` twice; convert the model again");
                Err(gguf.bad_value("tokenizer.ggml.tokens", why))
            }
            None => Ok(Self { gguf, tokens, types }),
        }
    }

    /// Added tokens, which are recognized in a text before it is split.
    fn added(&self) -> Vec<Value> {
        let entries = self.tokens.iter().zip(&self.types).enumerate();
        let added = entries.filter(|(_, (_, kind))| [CONTROL, USER_DEFINED].contains(kind));
        let entry = |(id, (content, kind)): (usize, (&&str, &i32))| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": *kind == CONTROL,
            })
        };
        added.map(entry).collect()
    }

    fn vocab(&self) -> Map<String, Value> {
        let ids = self.tokens.iter().enumerate();
        ids.map(|(id, token)| ((*token).to_owned(), json!(id))).collect()
    }

    /// The token whose id is stored under a key, with the id.
    fn named(&self, name: &str) -> Result<Option<(u64, &'a str)>, ModelError> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = self.gguf.opt_integer(&key)? else { return Ok(None) };
        let token = usize::try_from(id).ok().and_then(|id| self.tokens.get(id));
        match token {
            Some(token) => Ok(Some((id, token))),
            None => {
                let why = format!("is {id}, but there are {} tokens", self.tokens.len());
                Err(self.gguf.bad_value(&key, why))
            }
        }
    }

    /// The token that transformers prepends to a text, if any. llama.cpp's default depends on the
    /// pre-tokenizer.
    fn prepended(&self, kind: PreTokenizerKind) -> Result<Option<(u64, &'a str)>, ModelError> {
        let add = self.gguf.opt_bool("tokenizer.ggml.add_bos_token")?;
        match add.unwrap_or(kind == PreTokenizerKind::Llama3) {
            true => self.named("bos"),
            false => Ok(None),
        }
    }
}

/// The content of tokenizer.json.
pub(super) fn tokenizer_json(gguf: &GgufFile) -> Result<Value, ModelError> {
    let key = "tokenizer.ggml.model";
    let list = TokenList::read(gguf)?;
    match gguf.text(key)? {
        "gpt2" => {}
        other => {
            let supported = "`gpt2` (byte-level BPE); convert other models to a directory";
            return Err(gguf.unsupported(key, &format!("`{other}`"), supported));
        }
    }
    let kind = PreTokenizerKind::of(gguf)?;
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": list.added(),
        "normalizer": kind.normalizer(),
        "pre_tokenizer": kind.pre_tokenizer(),
        "post_processor": list.prepended(kind)?.map(|(id, token)| prepending(id, token)),
        "decoder": byte_level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": kind == PreTokenizerKind::Llama3, "vocab": list.vocab(),
            "merges": gguf.texts("tokenizer.ggml.merges")?,
        },
    }))
}

/// A post-processor that prepends a token to a text.
fn prepending(id: u64, token: &str) -> Value {
    let special = json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let text = |name: &str, type_id: u32| json!({ "Sequence": { "id": name, "type_id": type_id } });
    json!({
        "type": "TemplateProcessing",
        "single": [special, text("A", 0)],
        "pair": [special, text("A", 0), text("B", 1)],
        "special_tokens": { token: { "id": token, "ids": [id], "tokens": [token] } },
    })
}

/// The content of tokenizer_config.json, with the chat template if the file has one.
pub(super) fn tokenizer_config_json(gguf: &GgufFile) -> Result<Value, ModelError> {
    let list = TokenList::read(gguf)?;
    let kind = PreTokenizerKind::of(gguf)?;
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": false,
        "add_bos_token": list.prepended(kind)?.is_some(),
    });
    let names = [
        ("bos", "bos_token"),
        ("eos", "eos_token"),
        ("unknown", "unk_token"),
        ("padding", "pad_token"),
    ];
    for (name, field) in names {
        if let Some((_, token)) = list.named(name)? {
            config[field] = json!(token);
        }
    }
    if let Some(template) = gguf.opt_text("tokenizer.chat_template")? {
        config["chat_template"] = json!(template);
    }
    Ok(config)
}
