//! Incremental decoding of an answer's text while its tokens are generated.

use model::Tokenizer;

use crate::error::EngineError;

/// Trailing characters that the next token may still change, for tokenizers that remove spaces
/// before punctuation.
const UNSETTLED_CHARS: usize = 4;

/// Decodes an answer token by token, as [`Event::Token`](crate::scheduler::Event::Token) reports
/// them.
#[derive(Clone, Debug, Default)]
pub struct AnswerText {
    tokens: Vec<u32>,
    text: String,
    settled: usize,
}

impl AnswerText {
    /// Adds the next token.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: u32) -> Result<(), EngineError> {
        self.tokens.push(token);
        self.text = tokenizer.decode(&self.tokens)?;
        // A character's bytes may span several tokens.
        let mut settled = self.text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        if tokenizer.cleans_up_spaces() {
            let cut = settled.char_indices().rev().nth(UNSETTLED_CHARS - 1);
            settled = &settled[..cut.map_or(0, |(at, _)| at)];
        }
        self.settled = self.settled.max(settled.len()).min(self.text.len());
        Ok(())
    }

    /// The text that no further token can change. Each return value is a prefix of the next one and
    /// of the trajectory's text.
    pub fn settled(&self) -> &str {
        self.text.get(..self.settled).unwrap_or_default()
    }
}
