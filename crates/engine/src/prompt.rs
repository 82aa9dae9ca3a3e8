//! Converts a question to the tokens of the family's prompt format.

use model::Tokenizer;

use crate::error::EngineError;
use crate::reasoner::Reasoner;

/// A question in the family's prompt template.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The request's id.
    pub id: u32,
    /// The text, without marker tokens that have no text.
    pub text: String,
    /// All tokens, including those that start the latent phase.
    pub tokens: Vec<u32>,
}

impl Prompt {
    /// Maximum length of a text in bytes: longer than any model's context, and fast to tokenize.
    pub const MAX_BYTES: usize = 1 << 20;

    /// Puts a question into the reasoner's prompt template.
    pub fn new(reasoner: &Reasoner, id: u32, question: &str) -> Result<Self, EngineError> {
        let method = &reasoner.method;
        let question = reasoner.tokenizer.guard(question);
        let text = format!("{}{question}{}", method.prompt_prefix, method.prompt_suffix);
        Self::verbatim(reasoner, id, text)
    }

    /// Uses a text as the prompt: only the tokens that start the latent phase are appended. Markers
    /// in it are control tokens, except in text that was [guarded](model::Tokenizer::guard).
    pub fn verbatim(reasoner: &Reasoner, id: u32, text: String) -> Result<Self, EngineError> {
        if text.len() > Self::MAX_BYTES {
            return Err(EngineError::LongText { id, bytes: text.len(), limit: Self::MAX_BYTES });
        }
        let tokens = reasoner.tokenizer.encode(&text)?;
        Self::from_tokens(reasoner, id, text.replace(Tokenizer::CUT, ""), tokens)
    }

    /// Puts the tokens of a question into the reasoner's prompt template: as text if the text has
    /// these tokens, else between the tokens of the template.
    pub fn of_tokens(reasoner: &Reasoner, id: u32, question: &[u32]) -> Result<Self, EngineError> {
        let tokenizer = &reasoner.tokenizer;
        let method = &reasoner.method;
        let text = tokenizer.decode(question)?;
        if tokenizer.encode(&tokenizer.guard(&text))? == question {
            return Self::new(reasoner, id, &text);
        }
        let mut tokens = tokenizer.encode(&method.prompt_prefix)?;
        tokens.extend(question);
        tokens.extend(tokenizer.encode(&method.prompt_suffix)?);
        Self::from_tokens(reasoner, id, text, tokens)
    }

    fn from_tokens(
        reasoner: &Reasoner,
        id: u32,
        text: String,
        mut tokens: Vec<u32>,
    ) -> Result<Self, EngineError> {
        tokens.extend(&reasoner.method.begin_latent);
        if tokens.is_empty() {
            return Err(EngineError::Empty { id });
        }
        let prompt = Self { id, text, tokens };
        prompt.check_tokens(reasoner.decoder.config().vocab)?;
        Ok(prompt)
    }

    /// Rejects tokens out of range of a model with `vocab` embeddings.
    pub(crate) fn check_tokens(&self, vocab: usize) -> Result<(), EngineError> {
        match self.tokens.iter().find(|&&token| token as usize >= vocab) {
            Some(&token) => Err(EngineError::UnknownToken { id: self.id, token, vocab }),
            None => Ok(()),
        }
    }
}
