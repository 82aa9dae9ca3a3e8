//! The texts that a published family puts around question, thoughts and answer, adapted to a
//! model's vocabulary.
//!
//! A word-level vocabulary, such as the corpus's, cannot represent the published prompts: there the
//! prompt is the bare question, and the markers become added tokens.

use model::{ModelError, Tokenizer};
use serde::Serialize;
use serde_json::json;

use crate::model_dir::ModelUsage;

/// The texts of a family for one vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FamilyLayout {
    /// Text before the question.
    pub prompt_prefix: String,
    /// Text after the question.
    pub prompt_suffix: String,
    /// Texts to add to the vocabulary as single tokens.
    pub added_tokens: Vec<String>,
}

impl FamilyLayout {
    /// With the published prefix and suffix if the vocabulary has their words, else with the
    /// question on a separate line.
    pub(crate) fn with_prompt(
        tokenizer: &Tokenizer,
        [prefix, suffix]: [&str; 2],
    ) -> Result<Self, ModelError> {
        let has = |text| is_in_vocabulary(tokenizer, text);
        let published = has(prefix)? && has(suffix)?;
        let [prefix, suffix] = if published { [prefix, suffix] } else { ["", "\n"] };
        Ok(Self {
            prompt_prefix: prefix.to_owned(),
            prompt_suffix: suffix.to_owned(),
            added_tokens: Vec::new(),
        })
    }

    /// The configuration of a model of a family with these texts.
    pub(crate) fn usage(&self, family: &str, thoughts: usize) -> ModelUsage {
        ModelUsage {
            config: json!({
                "family": family, "thoughts": thoughts, "max_new_tokens": 24,
                "prompt_prefix": self.prompt_prefix, "prompt_suffix": self.prompt_suffix,
            }),
            added_tokens: self.added_tokens.clone(),
        }
    }

    /// The tokens of a question's prompt, without the tokens that begin the thoughts.
    pub(crate) fn prompt(
        &self,
        tokenizer: &Tokenizer,
        question: &str,
    ) -> Result<Vec<u32>, ModelError> {
        tokenizer.encode(&format!("{}{question}{}", self.prompt_prefix, self.prompt_suffix))
    }
}

/// Whether every word of a text is in the vocabulary.
pub(crate) fn is_in_vocabulary(tokenizer: &Tokenizer, text: &str) -> Result<bool, ModelError> {
    Ok(tokenizer.unknown_words(text)?.is_empty())
}
