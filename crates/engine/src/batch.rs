//! What one batch runs on: the models, and the questions with their own parameters.

use crate::perturb::PromptSharing;
use crate::prompt::Prompt;
use crate::reasoner::{LatentModel, RewardModel};
use crate::request::CancelToken;
use crate::sampling_params::SamplingParams;

/// The models of a batch.
#[derive(Clone, Copy)]
pub(crate) struct BatchContext<'a> {
    pub(crate) model: &'a LatentModel,
    pub(crate) reward_model: Option<&'a RewardModel>,
    /// Copy latents to the host: one transfer a wave.
    pub(crate) return_latents: bool,
}

/// One question of a batch. Its rows are neighbours and refer to it by its index.
#[derive(Clone, Copy)]
pub(crate) struct BatchItem<'a> {
    pub(crate) prompt: &'a Prompt,
    pub(crate) params: &'a SamplingParams,
    pub(crate) cancel: &'a CancelToken,
}

impl BatchItem<'_> {
    /// Tokens of the prompt.
    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt.tokens.len()
    }

    /// Prompt tokens that are passed once for all rows.
    pub(crate) fn shared_tokens(&self) -> usize {
        self.prompt_len() - self.private_tokens()
    }

    /// Prompt tokens that every row passes by itself, because dropout makes them differ.
    pub(crate) fn private_tokens(&self) -> usize {
        match self.params.perturbation.prompt_sharing() {
            PromptSharing::Whole => 0,
            PromptSharing::AllButLast => 1,
            PromptSharing::Nothing => self.prompt_len(),
        }
    }
}
