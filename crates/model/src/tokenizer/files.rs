//! Reads tokenizer files and builds the tokenizer.
//!
//! tokenizer.json is not passed to the library as a whole. Its model, normalizer, pre-tokenizer and
//! decoder are validated and built one by one, because the library trusts its input (it slices
//! subword prefixes and adds ids without overflow checks) and because truncation, padding and
//! post-processing must not apply.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::HfTokenizer;
use crate::error::{self, ModelError};
use crate::model_files::ModelFiles;

/// Far above any vocabulary; ids below it can be incremented without overflow.
const MAX_TOKEN_ID: u32 = 1 << 30;
/// The fields that name a special token.
const SPECIAL_TOKEN_FIELDS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// The EOS token if no file names one and the vocabulary has it, as GPT-2's does.
const GPT2_EOS: &str = "<|endoftext|>";

/// A tokenizer with the settings of its side files.
pub(super) struct LoadedTokenizer {
    pub inner: HfTokenizer,
    /// The text of the EOS token.
    pub eos: Option<String>,
    /// `clean_up_tokenization_spaces`.
    pub clean_up_spaces: bool,
}

/// The fields of tokenizer.json that are read.
#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedTokenJson>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    model: TokenizerModelJson,
}

/// The `model` of tokenizer.json: BPE, or WordLevel, which has no merges.
#[derive(Deserialize)]
struct TokenizerModelJson {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: TokenIds,
    merges: Option<Vec<MergeJson>>,
}

type TokenIds = HashMap<String, u32>;

/// A BPE merge: a pair of strings, or in older files one string with a space between.
#[derive(Deserialize)]
#[serde(untagged)]
enum MergeJson {
    Pair(String, String),
    Line(String),
}

/// An added token. Its id is a field in tokenizer.json and the key in tokenizer_config.json.
#[derive(Deserialize, Clone)]
struct AddedTokenJson {
    id: Option<u32>,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

/// Reads tokenizer.json if there is one, else vocab.json with merges.txt.
///
/// An adapter without a tokenizer inherits its base's.
pub(super) fn read(files: &ModelFiles) -> Result<LoadedTokenizer, ModelError> {
    files.check_exists()?;
    let described = files.first_with(&["tokenizer.json", "vocab.json"])?;
    let files = described.as_ref().unwrap_or(files);
    let side = SideFiles::read(files)?;
    let whole = files.file_path("tokenizer.json");
    let vocab = files.file_path("vocab.json");
    let merges = files.file_path("merges.txt");
    let (file, inner, added) = if files.contains(&whole) {
        let (inner, added) = from_tokenizer_json(&whole, &files.read_text(&whole)?)?;
        (whole, inner, added)
    } else if files.contains(&vocab) && files.contains(&merges) {
        let words = error::parse_json(&vocab, &files.read_text(&vocab)?)?;
        let inner = from_vocab_and_merges(
            &vocab,
            words,
            &files.read_text(&merges)?,
            side.add_prefix_space,
        )?;
        (vocab, inner, Vec::new())
    } else {
        return Err(ModelError::MissingTokenizer { dir: files.path().to_owned() });
    };
    build(file, inner, added, side)
}

/// Adds the added tokens in transformers' order: those of tokenizer.json, those of the side files
/// by id, then special tokens that are in neither.
fn build(
    file: PathBuf,
    mut inner: HfTokenizer,
    mut added: Vec<AddedTokenJson>,
    side: SideFiles,
) -> Result<LoadedTokenizer, ModelError> {
    let eos = side.eos.or_else(|| inner.token_to_id(GPT2_EOS).map(|_| GPT2_EOS.to_owned()));
    let mut known: HashSet<String> = added.iter().map(|t| t.content.clone()).collect();
    let named =
        side.special_tokens.iter().chain(&eos).map(|name| AddedTokenJson::special_token(name));
    for token in side.added_tokens.into_iter().chain(named) {
        if known.insert(token.content.clone()) {
            added.push(token);
        }
    }
    added.retain(|t| !t.content.is_empty());
    check_stripping(&file, &added)?;
    inner.add_tokens(&added.iter().map(AddedTokenJson::to_added_token).collect::<Vec<_>>());
    check_added_ids(&file, &inner, &added)?;
    Ok(LoadedTokenizer { inner, eos, clean_up_spaces: side.clean_up_spaces })
}

/// The library assigns the ids of added tokens itself; rejects files whose ids would change.
fn check_added_ids(
    file: &Path,
    inner: &HfTokenizer,
    added: &[AddedTokenJson],
) -> Result<(), ModelError> {
    for token in added {
        let given = inner.token_to_id(&token.content);
        if let (Some(id), Some(given)) = (token.id, given)
            && id != given
        {
            let content = &token.content;
            let why = format!("added token `{content}` has id {id} but is at index {given}");
            return Err(bad_tokenizer(file, why + "; ids must be consecutive"));
        }
    }
    Ok(())
}

/// A token with `rstrip` consumes spaces that another token may start with; the library would then
/// split the text at overlapping positions and panic.
fn check_stripping(file: &Path, added: &[AddedTokenJson]) -> Result<(), ModelError> {
    let strips = added.iter().find(|t| t.rstrip);
    let starts_with_space = added.iter().find(|t| t.content.starts_with(char::is_whitespace));
    match (strips, starts_with_space) {
        (Some(AddedTokenJson { content: a, .. }), Some(AddedTokenJson { content: b, .. })) => {
            let why = format!("added token `{a}` takes the spaces that `{b}` begins with");
            Err(bad_tokenizer(file, why + "; set its rstrip to false"))
        }
        _ => Ok(()),
    }
}

impl AddedTokenJson {
    fn special_token(content: &str) -> AddedTokenJson {
        let content = content.to_owned();
        AddedTokenJson {
            id: None,
            content,
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: true,
        }
    }

    fn to_added_token(&self) -> AddedToken {
        AddedToken {
            content: self.content.clone(),
            single_word: self.single_word,
            lstrip: self.lstrip,
            rstrip: self.rstrip,
            normalized: self.normalized,
            special: self.special,
        }
    }
}

fn from_tokenizer_json(
    file: &Path,
    text: &str,
) -> Result<(HfTokenizer, Vec<AddedTokenJson>), ModelError> {
    let parsed: TokenizerJson = error::parse_json(file, text)?;
    let mut inner = HfTokenizer::new(build_model(file, parsed.model)?);
    inner.with_normalizer(pipeline_stage::<NormalizerWrapper>(
        file,
        "normalizer",
        parsed.normalizer,
        &["NFC", "Lowercase", "Sequence"],
    )?);
    inner.with_pre_tokenizer(pipeline_stage::<PreTokenizerWrapper>(
        file,
        "pre_tokenizer",
        parsed.pre_tokenizer,
        &["ByteLevel", "Split", "Digits", "WhitespaceSplit", "Punctuation", "Sequence"],
    )?);
    check_decoder_growth(file, &parsed.decoder)?;
    inner.with_decoder(pipeline_stage::<DecoderWrapper>(
        file,
        "decoder",
        parsed.decoder,
        &["ByteLevel", "Replace", "Fuse", "Sequence"],
    )?);
    let mut added = parsed.added_tokens;
    check_ids(file, added.iter().filter_map(|t| t.id))?;
    added.sort_by_key(|t| t.id);
    Ok((inner, added))
}

/// GPT-2's vocab.json and merges.txt; `file` is the former, for errors.
fn from_vocab_and_merges(
    file: &Path,
    vocab: TokenIds,
    merges: &str,
    prefix_space: bool,
) -> Result<HfTokenizer, ModelError> {
    let parts = TokenizerModelJson {
        kind: None,
        dropout: None,
        unk_token: None,
        continuing_subword_prefix: None,
        end_of_word_suffix: None,
        fuse_unk: false,
        byte_fallback: false,
        ignore_merges: false,
        vocab,
        merges: Some(parse_merges(merges)),
    };
    let mut inner = HfTokenizer::new(build_model(file, parts)?);
    let bytes = ByteLevel::new(prefix_space, true, true);
    inner.with_pre_tokenizer(Some(PreTokenizerWrapper::ByteLevel(bytes)));
    inner.with_decoder(Some(DecoderWrapper::ByteLevel(bytes)));
    Ok(inner)
}

fn parse_merges(text: &str) -> Vec<MergeJson> {
    // Only the first line can be the version; further down `#version` is a merge.
    let skip = usize::from(text.starts_with("#version"));
    text.lines()
        .skip(skip)
        .filter(|l| !l.is_empty())
        .map(|l| MergeJson::Line(l.to_owned()))
        .collect()
}

fn build_model(file: &Path, model: TokenizerModelJson) -> Result<ModelWrapper, ModelError> {
    check_ids(file, model.vocab.values().copied())?;
    let distinct: HashSet<u32> = model.vocab.values().copied().collect();
    if distinct.len() != model.vocab.len() {
        return Err(bad_tokenizer(file, "two tokens of the vocabulary share an id"));
    }
    match model.kind.as_deref() {
        None | Some("BPE") => Ok(bpe(file, model)?.into()),
        Some("WordLevel") => Ok(word_level(file, model)?.into()),
        Some(kind) => Err(bad_tokenizer(
            file,
            format!("model type {kind} is not supported; supported: BPE, WordLevel"),
        )),
    }
}

fn bpe(file: &Path, model: TokenizerModelJson) -> Result<BPE, ModelError> {
    if model.dropout.is_some_and(|p| p != 0.0) {
        return Err(bad_tokenizer(
            file,
            "BPE dropout is not supported; set the model's dropout to null",
        ));
    }
    for affix in [model.continuing_subword_prefix, model.end_of_word_suffix] {
        if affix.is_some_and(|affix| !affix.is_empty()) {
            return Err(bad_tokenizer(
                file,
                "subword prefixes and suffixes are not supported; supported: byte-level BPE",
            ));
        }
    }
    let merges = model
        .merges
        .ok_or_else(|| bad_tokenizer(file, "the model has no merges; copy the file again"))?;
    let merges = merges.into_iter().map(|m| m.into_pair(file)).collect::<Result<Vec<_>, _>>()?;
    let mut builder = BPE::builder()
        .vocab_and_merges(
            model.vocab.into_iter().collect::<tokenizers::models::bpe::Vocab>(),
            merges,
        )
        .fuse_unk(model.fuse_unk)
        .byte_fallback(model.byte_fallback)
        .ignore_merges(model.ignore_merges);
    if let Some(unknown) = model.unk_token {
        builder = builder.unk_token(unknown);
    }
    builder.build().map_err(|e| bad_tokenizer(file, e.to_string()))
}

/// A closed vocabulary of words; all other words become the unknown token.
fn word_level(file: &Path, model: TokenizerModelJson) -> Result<WordLevel, ModelError> {
    let unknown = model.unk_token.filter(|token| model.vocab.contains_key(token));
    let unknown = unknown.ok_or_else(|| {
        bad_tokenizer(file, "the unk_token of a WordLevel model must be in its vocabulary")
    })?;
    let builder = WordLevel::builder().vocab(model.vocab.into_iter().collect()).unk_token(unknown);
    builder.build().map_err(|e| bad_tokenizer(file, e.to_string()))
}

fn bad_tokenizer(file: &Path, why: impl Into<String>) -> ModelError {
    ModelError::BadTokenizer { file: file.to_path_buf(), why: why.into() }
}

impl MergeJson {
    fn into_pair(self, file: &Path) -> Result<(String, String), ModelError> {
        match self {
            MergeJson::Pair(a, b) => Ok((a, b)),
            MergeJson::Line(line) => match line.split_once(' ') {
                Some((a, b)) if !b.contains(' ') => Ok((a.to_owned(), b.to_owned())),
                _ => {
                    let why = format!("merge `{line}` is not two tokens separated by a space");
                    Err(bad_tokenizer(file, why))
                }
            },
        }
    }
}

fn check_ids(file: &Path, mut ids: impl Iterator<Item = u32>) -> Result<(), ModelError> {
    match ids.find(|id| *id > MAX_TOKEN_ID) {
        Some(id) => {
            Err(bad_tokenizer(file, format!("token id {id} is larger than {MAX_TOKEN_ID}")))
        }
        None => Ok(()),
    }
}

/// Builds a stage of the pipeline if all types in it are in `allowed`, the types known to be safe.
fn pipeline_stage<T: DeserializeOwned>(
    file: &Path,
    field: &str,
    value: Value,
    allowed: &[&str],
) -> Result<Option<T>, ModelError> {
    if value.is_null() {
        return Ok(None);
    }
    if let Some(found) = unsupported_type(&value, allowed) {
        return Err(ModelError::Unsupported {
            file: file.to_path_buf(),
            field: field.to_owned(),
            found,
            supported: allowed.join(", "),
        });
    }
    serde_json::from_value(value)
        .map(Some)
        .map_err(|e| bad_tokenizer(file, format!("{field}: {e}")))
}

/// Replacements compound: each may insert its content between all characters. Limiting them to a
/// few of one character each bounds a text's length by a small multiple of its number of tokens.
fn check_decoder_growth(file: &Path, decoder: &Value) -> Result<(), ModelError> {
    const MAX_REPLACEMENTS: usize = 4;
    let stages = decoder
        .get("decoders")
        .and_then(Value::as_array)
        .map_or(std::slice::from_ref(decoder), Vec::as_slice);
    let nested = stages.iter().any(|stage| stage.get("decoders").is_some());
    let contents: Vec<&Value> = stages.iter().filter_map(|stage| stage.get("content")).collect();
    let short = contents.iter().all(|content| content.as_str().is_some_and(|text| text.len() <= 1));
    if short && contents.len() <= MAX_REPLACEMENTS && !nested {
        return Ok(());
    }
    let why = format!("decoder: at most {MAX_REPLACEMENTS} replacements by one character");
    Err(bad_tokenizer(file, why + " are supported, and none nested"))
}

/// The first type that is not allowed, including those nested in sequences.
fn unsupported_type(value: &Value, allowed: &[&str]) -> Option<String> {
    let kind = value.get("type").and_then(Value::as_str).unwrap_or("without a type");
    if !allowed.contains(&kind) {
        return Some(kind.to_owned());
    }
    let inner = ["normalizers", "pretokenizers", "decoders"]
        .iter()
        .find_map(|key| value.get(key)?.as_array());
    inner?.iter().find_map(|stage| unsupported_type(stage, allowed))
}

/// The settings of tokenizer_config.json, special_tokens_map.json and added_tokens.json.
#[derive(Default)]
struct SideFiles {
    added_tokens: Vec<AddedTokenJson>,
    special_tokens: Vec<String>,
    eos: Option<String>,
    clean_up_spaces: bool,
    add_prefix_space: bool,
}

impl SideFiles {
    fn read(files: &ModelFiles) -> Result<SideFiles, ModelError> {
        let mut side = SideFiles::default();
        if let Some((file, config)) = read_optional_json::<Value>(files, "tokenizer_config.json")? {
            side.collect_special_tokens(&config);
            side.clean_up_spaces = bool_field(&config, "clean_up_tokenization_spaces");
            side.add_prefix_space = bool_field(&config, "add_prefix_space");
            side.read_added_tokens_decoder(&file, &config)?;
        }
        if let Some((_, map)) = read_optional_json::<Value>(files, "special_tokens_map.json")? {
            side.collect_special_tokens(&map);
        }
        if let Some((file, map)) =
            read_optional_json::<BTreeMap<String, u32>>(files, "added_tokens.json")?
        {
            check_ids(&file, map.values().copied())?;
            let tokens = map.into_iter();
            side.added_tokens.extend(tokens.map(|(content, id)| AddedTokenJson {
                id: Some(id),
                special: false,
                ..AddedTokenJson::special_token(&content)
            }));
        }
        for token in &mut side.added_tokens {
            token.special |= side.special_tokens.contains(&token.content);
        }
        side.added_tokens.sort_by_key(|t| t.id);
        Ok(side)
    }

    /// A special token is given as a string, or as an object with the field `content`.
    fn collect_special_tokens(&mut self, fields: &Value) {
        let text = |v: &Value| v.as_str().or_else(|| v.get("content")?.as_str()).map(str::to_owned);
        let single = SPECIAL_TOKEN_FIELDS.iter().filter_map(|name| text(fields.get(name)?));
        let listed = fields.get("additional_special_tokens").and_then(Value::as_array);
        self.special_tokens.extend(single.chain(listed.into_iter().flatten().filter_map(text)));
        self.eos = self.eos.take().or_else(|| text(fields.get("eos_token")?));
    }

    /// Reads `added_tokens_decoder`, a map from id to token.
    fn read_added_tokens_decoder(&mut self, file: &Path, config: &Value) -> Result<(), ModelError> {
        let Some(decoder) = config.get("added_tokens_decoder") else {
            return Ok(());
        };
        let bad = |why: String| bad_tokenizer(file, format!("added_tokens_decoder: {why}"));
        let decoder: BTreeMap<String, AddedTokenJson> =
            serde_json::from_value(decoder.clone()).map_err(|e| bad(e.to_string()))?;
        for (id, token) in decoder {
            let id: u32 = id.parse().map_err(|_| bad(format!("`{id}` is not a token id")))?;
            check_ids(file, std::iter::once(id))?;
            self.added_tokens.push(AddedTokenJson { id: Some(id), ..token });
        }
        Ok(())
    }
}

fn bool_field(config: &Value, name: &str) -> bool {
    config.get(name).and_then(Value::as_bool).unwrap_or(false)
}

fn read_optional_json<T: DeserializeOwned>(
    files: &ModelFiles,
    name: &str,
) -> Result<Option<(PathBuf, T)>, ModelError> {
    let file = files.file_path(name);
    if !files.contains(&file) {
        return Ok(None);
    }
    let value = error::parse_json(&file, &files.read_text(&file)?)?;
    Ok(Some((file, value)))
}
