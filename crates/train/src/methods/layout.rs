//! The texts around question, thoughts and answer of a published family, in a model's vocabulary.
//!
//! A vocabulary of whole words, such as the corpus's, cannot write the published prompts: there a
//! prompt is the bare question, and the markers become tokens of their own.

use model::{ModelError, Tokenizer};
use serde::Serialize;
use serde_json::json;

use crate::model_dir::ModelUsage;

/// The texts of a family for one vocabulary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FamilyLayout {
    /// Text before the question.
    pub prompt_prefix: String,
    /// Text after it.
    pub prompt_suffix: String,
    /// Texts that the vocabulary gets as tokens of their own.
    pub added_tokens: Vec<String>,
}

impl FamilyLayout {
    /// The published prompt, prefix and suffix, where the vocabulary has its words; else the
    /// question in a line of its own.
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

    /// How a model of a family with these texts will be used.
    pub(crate) fn usage(&self, family: &str, thoughts: usize) -> ModelUsage {
        ModelUsage {
            config: json!({
                "family": family, "thoughts": thoughts, "max_new_tokens": 24,
                "prompt_prefix": self.prompt_prefix, "prompt_suffix": self.prompt_suffix,
            }),
            added_tokens: self.added_tokens.clone(),
        }
    }

    /// The tokens of a question's prompt, without those that begin the thoughts.
    pub(crate) fn prompt(
        &self,
        tokenizer: &Tokenizer,
        question: &str,
    ) -> Result<Vec<u32>, ModelError> {
        tokenizer.encode(&format!("{}{question}{}", self.prompt_prefix, self.prompt_suffix))
    }
}

/// Whether every word of a text has tokens.
pub(crate) fn is_in_vocabulary(tokenizer: &Tokenizer, text: &str) -> Result<bool, ModelError> {
    Ok(tokenizer.unknown_words(text)?.is_empty())
}
