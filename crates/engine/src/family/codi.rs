//! CODI: hidden states pass through a projector (linear, GELU, linear, layer norm) before they are
//! fed back.

use data::answer::AnswerRule;
use model::head::MlpNames;
use model::{Checkpoint, LatentHead, Tokenizer};
use tensor::Device;

use super::FamilySpec;
use crate::error::EngineError;
use crate::method::{Method, TokenLookup};

pub(super) struct Codi;

/// The module names of CODI's projector.
pub const CODI_PROJECTOR: MlpNames =
    MlpNames { up: "projector.1", down: "projector.3", norm: "projector.4" };

impl FamilySpec for Codi {
    fn name(&self) -> &'static str {
        "codi"
    }

    fn detect(&self, checkpoint: &Checkpoint, _tokenizer: &Tokenizer) -> bool {
        checkpoint.has("projector.1.weight")
    }

    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError> {
        // The markers of the published checkpoints have no text: they are the last two rows of a
        // vocabulary that is three larger than the tokenizer's, or two larger if the tokenizer has
        // the padding token.
        let vocab = tokens.vocab();
        let own = usize::from(tokens.named("[PAD]").is_ok());
        let is_unnamed = tokens.tokenizer_vocab() + 3 == vocab + own;
        let unnamed = is_unnamed.then(|| [vocab as u32 - 2, vocab as u32 - 1]);
        let [start, end] = tokens.latent_markers(unnamed)?;
        let base = tokens.base()?;
        let gpt2 = tokens.is_gpt2();
        Ok(Method {
            prompt_prefix: if gpt2 { "" } else { "<|begin_of_text|>" }.into(),
            begin_latent: vec![start],
            end_latent: vec![end],
            answer_rule: AnswerRule::LastNumber,
            sigma: if gpt2 { 1.4 } else { base.sigma },
            ..base
        })
    }

    fn latent_head(
        &self,
        device: &Device,
        checkpoint: &Checkpoint,
    ) -> Result<LatentHead, EngineError> {
        Ok(LatentHead::mlp(device, checkpoint, &CODI_PROJECTOR)?)
    }
}
