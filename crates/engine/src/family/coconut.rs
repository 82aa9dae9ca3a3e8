//! COCONUT: the last hidden state is the next input embedding, between two marker tokens.
//! Optionally a gate on the thought decides which one is the last (SLPO).

use model::config::Architecture;
use model::{Checkpoint, StopGate, Tokenizer};
use tensor::Device;

use super::FamilySpec;
use crate::error::EngineError;
use crate::method::{LatentLength, Method, START_LATENT, TokenLookup, non_zero};

pub(super) struct Coconut;

/// Maximum thoughts of a model with a stop gate, as published for SLPO.
const GATED_THOUGHTS: usize = 12;
/// The gate probability above which a thought is the last, as published for SLPO.
const STOP_THRESHOLD: f32 = 0.6;

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
        let length = match StopGate::has_perceptron(tokens.checkpoint()) {
            true => LatentLength::AtMost(non_zero(GATED_THOUGHTS)),
            false => base.length,
        };
        Ok(Method {
            prompt_suffix: "\n".into(),
            begin_latent: vec![start],
            end_latent: vec![end],
            length,
            ..base
        })
    }

    fn stop_gate(
        &self,
        device: &Device,
        checkpoint: &Checkpoint,
    ) -> Result<Option<StopGate>, EngineError> {
        let threshold = checkpoint.config().latent.stop_threshold.unwrap_or(STOP_THRESHOLD);
        Ok(StopGate::perceptron(device, checkpoint, threshold)?)
    }
}
