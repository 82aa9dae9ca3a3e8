//! The baseline without latent thoughts: an explicit chain of thought, or a direct answer.
//!
//! Every plain language model qualifies, so it is never detected: config.json or the caller must
//! name it.

use super::FamilySpec;
use crate::error::EngineError;
use crate::method::{LatentLength, Method, TokenLookup};

pub(super) struct Cot;

impl FamilySpec for Cot {
    fn name(&self) -> &'static str {
        "cot"
    }

    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError> {
        Ok(Method {
            prompt_suffix: "\n".into(),
            length: LatentLength::None,
            max_new_tokens: 128,
            ..tokens.base()?
        })
    }
}
