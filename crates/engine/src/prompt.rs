//! A question becomes the tokens that the family was trained to see.

use crate::error::EngineError;
use crate::question::Question;
use crate::reasoner::Reasoner;

/// A question in the family's form.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The question's number in its data set.
    pub id: u32,
    /// The text, without the tokens that have none.
    pub text: String,
    /// All tokens.
    pub tokens: Vec<u32>,
}

/// Puts a question into the family's form.
pub fn prompt(reasoner: &Reasoner, question: &Question) -> Result<Prompt, EngineError> {
    let method = &reasoner.method;
    let text = format!("{}{}{}", method.prompt_prefix, question.text, method.prompt_suffix);
    let mut tokens = reasoner.tokenizer.encode(&text)?;
    tokens.extend(&method.begin_latent);
    if tokens.is_empty() {
        return Err(EngineError::Empty { id: question.id });
    }
    let prompt = Prompt { id: question.id, text, tokens };
    prompt.check_tokens(reasoner.decoder.config().vocab)?;
    Ok(prompt)
}

impl Prompt {
    /// Refuses tokens that a model of so many embeddings does not have.
    pub(crate) fn check_tokens(&self, vocab: usize) -> Result<(), EngineError> {
        match self.tokens.iter().find(|&&token| token as usize >= vocab) {
            Some(&token) => Err(EngineError::UnknownToken { id: self.id, token, vocab }),
            None => Ok(()),
        }
    }
}
