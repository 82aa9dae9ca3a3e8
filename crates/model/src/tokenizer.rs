//! Text to token ids and back, exactly as transformers does it.
//!
//! The `tokenizers` library does the work; `files` reads what the published directories hold
//! (tokenizer.json, or vocab.json with merges.txt), refuses what would make the library panic or
//! answer differently each time, and builds one of two kinds of tokenizer: byte-level BPE, or whole
//! words of a closed vocabulary. Nothing is ever added to a text: prompts that start with a begin
//! token say so themselves.

mod files;

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

/// What transformers replaces when `clean_up_tokenization_spaces` is set, in its order.
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
}

impl Tokenizer {
    /// Reads the tokenizer of a checkpoint directory.
    pub fn read(folder: impl Into<ModelFiles>) -> Result<Tokenizer, ModelError> {
        let files::LoadedTokenizer { inner, eos, clean_up_spaces: clean_up } =
            files::read(&folder.into())?;
        let largest = inner.get_vocab(true).into_values().max();
        let eos = eos.and_then(|token| inner.token_to_id(&token));
        Ok(Tokenizer {
            vocab_size: largest.map_or(0, |id| id as usize + 1),
            inner,
            eos,
            clean_up_spaces: clean_up,
        })
    }

    /// The ids of a text. Added tokens are recognised inside it; no begin or end token is put
    /// around it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|e| ModelError::Tokenize { why: e.to_string() })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The words of a text that a closed vocabulary lacks, each once, in the order of the text;
    /// byte-level tokenizers lack none.
    pub fn unknown_words(&self, text: &str) -> Result<Vec<String>, ModelError> {
        let ModelWrapper::WordLevel(words) = self.inner.get_model() else { return Ok(Vec::new()) };
        let encoding = self
            .inner
            .encode(text, false)
            .map_err(|e| ModelError::Tokenize { why: e.to_string() })?;
        let lacks = |token: &String| *token == words.unk_token;
        let places = encoding
            .get_tokens()
            .iter()
            .zip(encoding.get_offsets())
            .filter(|(token, _)| lacks(token));
        let mut unknown: Vec<String> = Vec::new();
        for word in places.filter_map(|(_, &(from, to))| text.get(from..to)) {
            if !unknown.iter().any(|known| known == word) {
                unknown.push(word.to_owned());
            }
        }
        Ok(unknown)
    }

    /// The text of some ids without special tokens, like transformers' `decode(ids,
    /// skip_special_tokens=True)`. Bytes that are no UTF-8 become U+FFFD. Ids without a token
    /// have no text: embedding tables are often padded, and a model may say a row that no token
    /// has.
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

    /// The id of a token, added tokens included.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The id of the token that the tokenizer's own files call the end token.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// One more than the largest id, added tokens included: the rows that an embedding needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}
