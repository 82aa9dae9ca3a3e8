//! Tokenization with the ids and texts of transformers.
//!
//! A wrapper of the `tokenizers` library. `files` reads tokenizer.json, or vocab.json with
//! merges.txt, rejects what would make the library panic or non-deterministic, and builds a
//! byte-level BPE or a WordLevel tokenizer. No special tokens are added to a text: a prompt that
//! starts with BOS contains it.

mod files;
mod guard;

use std::collections::HashSet;

use tokenizers::models::ModelWrapper;
use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
};

use crate::error::ModelError;
use crate::model_files::ModelFiles;

type HfTokenizer = TokenizerImpl<
    ModelWrapper,
    NormalizerWrapper,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// The replacements of transformers' `clean_up_tokenization_spaces`, in its order.
const CLEAN_UP_REPLACEMENTS: [(&str, &str); 10] = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
];

/// A tokenizer with its added tokens.
pub struct Tokenizer {
    inner: HfTokenizer,
    vocab_size: usize,
    eos: Option<u32>,
    clean_up_spaces: bool,
    /// The texts of control tokens, the longest first.
    controls: Vec<String>,
    /// Their ids.
    control_ids: HashSet<u32>,
}

/// The texts of added tokens that control a model: special ones, and those in brackets, because
/// latent markers are often added as plain words. Single characters are excluded, because they
/// occur in ordinary text.
fn control_texts(inner: &HfTokenizer) -> Vec<String> {
    let added = inner.get_added_vocabulary().get_added_tokens_decoder();
    let bracketed = |text: &str| {
        text.starts_with(['<', '[']) && text.ends_with(['>', ']']) || text.starts_with("<|")
    };
    let controls = added.values().filter(|token| token.special || bracketed(&token.content));
    // A token whose text contains the cut character is never recognized, and cutting it would not
    // terminate.
    let recognised = |text: &String| {
        text.chars().count() > 1 && !text.trim().is_empty() && !text.contains(Tokenizer::CUT)
    };
    let mut texts: Vec<String> =
        controls.map(|token| token.content.clone()).filter(recognised).collect();
    texts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    texts
}

impl Tokenizer {
    /// Reads the tokenizer of a checkpoint.
    pub fn read(files: impl Into<ModelFiles>) -> Result<Tokenizer, ModelError> {
        let files::LoadedTokenizer { inner, eos, clean_up_spaces } = files::read(&files.into())?;
        let largest = inner.get_vocab(true).into_values().max();
        let eos = eos.and_then(|token| inner.token_to_id(&token));
        let vocab_size = largest.map_or(0, |id| id as usize + 1);
        let controls = control_texts(&inner);
        let control_ids = controls.iter().filter_map(|text| inner.token_to_id(text)).collect();
        Ok(Tokenizer { vocab_size, inner, eos, clean_up_spaces, controls, control_ids })
    }

    /// A character that [`Tokenizer::encode`] drops and that no token spans: a Unicode
    /// noncharacter.
    pub const CUT: char = '\u{fdd0}';

    /// The token ids of a text. Added tokens are recognized inside it; no special tokens are added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let mut ids = Vec::new();
        for piece in text.split(Self::CUT) {
            let encoding = self
                .inner
                .encode_fast(piece, false)
                .map_err(|e| ModelError::Tokenize { why: e.to_string() })?;
            ids.extend(encoding.get_ids());
        }
        Ok(ids)
    }

    /// The words of a text that are not in the vocabulary of a WordLevel tokenizer, each once, in
    /// the order of the text. Byte-level tokenizers encode every text, so they have none.
    pub fn unknown_words(&self, text: &str) -> Result<Vec<String>, ModelError> {
        let ModelWrapper::WordLevel(words) = self.inner.get_model() else { return Ok(Vec::new()) };
        let encoding = self
            .inner
            .encode(text, false)
            .map_err(|e| ModelError::Tokenize { why: e.to_string() })?;
        let tokens = encoding.get_tokens().iter().zip(encoding.get_offsets());
        let unknown_tokens = tokens.filter(|(token, _)| **token == words.unk_token);
        let words = unknown_tokens.filter_map(|(_, &(from, to))| text.get(from..to));
        let mut seen = HashSet::new();
        Ok(words.filter(|word| seen.insert(*word)).map(str::to_owned).collect())
    }

    /// The text of token ids, like transformers' `decode(ids, skip_special_tokens=True)`. Invalid
    /// UTF-8 becomes U+FFFD. Ids without a token decode to nothing: embeddings are often padded, so
    /// a model can generate such ids.
    pub fn decode(&self, ids: &[u32]) -> Result<String, ModelError> {
        let text = self
            .inner
            .decode(ids, true)
            .map_err(|e| ModelError::Tokenize { why: e.to_string() })?;
        if !self.clean_up_spaces {
            return Ok(text);
        }
        Ok(CLEAN_UP_REPLACEMENTS.iter().fold(text, |text, (from, to)| text.replace(from, to)))
    }

    /// Whether decoded texts lose the spaces before punctuation.
    pub fn cleans_up_spaces(&self) -> bool {
        self.clean_up_spaces
    }

    /// The text of token ids, including special tokens.
    pub fn decode_with_special(&self, ids: &[u32]) -> Result<String, ModelError> {
        self.inner.decode(ids, false).map_err(|e| ModelError::Tokenize { why: e.to_string() })
    }

    /// A token as spelled in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token, including added tokens.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The EOS token of the tokenizer's files.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The largest id plus one, including added tokens: the number of rows that an embedding needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}
