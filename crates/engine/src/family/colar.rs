//! CoLaR: a Gaussian head predicts the next compressed embedding; the model decides when to stop.

use data::answer::AnswerRule;
use model::head::GaussianMeanNames;
use model::{Checkpoint, LatentHead, Tokenizer};
use tensor::Device;

use super::FamilySpec;
use crate::error::EngineError;
use crate::method::{LatentLength, Method, TokenLookup, non_zero};

pub(super) struct Colar;

/// The module names of CoLaR's latent head.
pub const COLAR_HEAD: GaussianMeanNames = GaussianMeanNames {
    up: "lt_head.fc.0",
    down: "lt_head.fc.2",
    norm: "lt_head.fc.3",
    mean: "lt_head.mean",
    log_std: "lt_head.log_std",
};
/// Default standard deviation of the embeddings if config.json has none: that of Llama-3.2-1B.
const EMBEDDING_STD: f32 = 0.018;

impl FamilySpec for Colar {
    fn name(&self) -> &'static str {
        "colar"
    }

    fn detect(&self, checkpoint: &Checkpoint, _tokenizer: &Tokenizer) -> bool {
        checkpoint.has("lt_head.mean.weight")
    }

    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError> {
        let end_latent = tokens.encoded("###")?;
        if end_latent.len() != 1 {
            return Err(tokens.absent("###", "as a single token"));
        }
        Ok(Method {
            prompt_prefix: "Question: ".into(),
            prompt_suffix: " Let's think step by step:(Thinking speed: 2)###".into(),
            end_latent,
            length: LatentLength::AtMost(non_zero(64)),
            answer_rule: AnswerRule::AnswerColon,
            p: 0.03,
            sigma: 0.01,
            ..tokens.base()?
        })
    }

    fn latent_head(
        &self,
        device: &Device,
        checkpoint: &Checkpoint,
    ) -> Result<LatentHead, EngineError> {
        let std = checkpoint.config().latent.embedding_std.unwrap_or(EMBEDDING_STD);
        Ok(LatentHead::gaussian_mean(device, checkpoint, &COLAR_HEAD, std)?)
    }
}
