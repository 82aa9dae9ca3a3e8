//! COCONUT: the last hidden state is the next input embedding, between two marker tokens.

use model::config::Architecture;
use model::{Checkpoint, Tokenizer};

use super::FamilySpec;
use crate::error::EngineError;
use crate::method::{Method, START_LATENT, TokenLookup};

pub(super) struct Coconut;

impl FamilySpec for Coconut {
    fn name(&self) -> &'static str {
        "coconut"
    }

    fn detect(&self, checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> bool {
        let config = checkpoint.config();
        let has_markers =
            tokenizer.token_to_id(START_LATENT).is_some() || config.latent.start_id.is_some();
        has_markers && config.architecture != Architecture::Qwen3Vl
    }

    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError> {
        let [start, end] = tokens.latent_markers(None)?;
        let base = tokens.base()?;
        Ok(Method {
            prompt_suffix: "\n".into(),
            begin_latent: vec![start],
            end_latent: vec![end],
            ..base
        })
    }
}
