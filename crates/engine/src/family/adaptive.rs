//! Adaptive latent reasoning: a hidden state passes through a filter before it is fed back, and two
//! rows of the LM head decide at every step whether to continue.

use data::answer::AnswerRule;
use model::config::RecurrentFilter;
use model::head::MlpNames;
use model::{Checkpoint, LatentHead, StopGate, Tokenizer};
use tensor::Device;

use super::FamilySpec;
use crate::error::EngineError;
use crate::method::{LatentLength, Method, TokenLookup, non_zero};

pub(super) struct Adaptive;

/// The module names of the filter with two layers.
const MLP_FILTER: MlpNames = MlpNames {
    up: "recurrent_filter.input_layer",
    down: "recurrent_filter.output_layer",
    norm: "recurrent_filter.norm",
};
/// The module names of the filter with one layer.
const LINEAR_FILTER: [&str; 2] = ["recurrent_filter.linear_layer", "recurrent_filter.norm"];
/// Maximum thoughts, more than in training.
const MAX_THOUGHTS: usize = 64;

impl FamilySpec for Adaptive {
    fn name(&self) -> &'static str {
        "adaptive"
    }

    fn detect(&self, checkpoint: &Checkpoint, _tokenizer: &Tokenizer) -> bool {
        checkpoint.config().latent.adaptive.is_some()
    }

    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError> {
        let Some(adaptive) = tokens.config().latent.adaptive else {
            return Err(tokens.absent("<START>", "in config.json"));
        };
        let base = tokens.base()?;
        let begin_text = tokens.optional("<|begin_of_text|>").map(|_| "<|begin_of_text|>");
        Ok(Method {
            prompt_prefix: format!("{}Question: ", begin_text.unwrap_or_default()),
            begin_latent: vec![tokens.in_vocabulary("<START>", adaptive.start)?],
            end_latent: vec![tokens.in_vocabulary("<END>", adaptive.end)?],
            length: LatentLength::AtMost(non_zero(MAX_THOUGHTS)),
            answer_rule: AnswerRule::LastNumber,
            ..base
        })
    }

    fn latent_head(
        &self,
        device: &Device,
        checkpoint: &Checkpoint,
    ) -> Result<LatentHead, EngineError> {
        let filter = checkpoint.config().latent.adaptive.map(|adaptive| adaptive.filter);
        Ok(match filter {
            Some(RecurrentFilter::Mlp) => LatentHead::mlp(device, checkpoint, &MLP_FILTER)?,
            Some(RecurrentFilter::LinearNorm) => {
                LatentHead::affine(device, checkpoint, LINEAR_FILTER)?
            }
            Some(RecurrentFilter::None) | None => LatentHead::Identity,
        })
    }

    fn stop_gate(
        &self,
        _device: &Device,
        checkpoint: &Checkpoint,
    ) -> Result<Option<StopGate>, EngineError> {
        let adaptive = checkpoint.config().latent.adaptive;
        Ok(adaptive.map(|adaptive| StopGate::Rows { go_on: adaptive.go_on, stop: adaptive.stop }))
    }
}
