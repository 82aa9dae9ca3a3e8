//! What one batch runs on: the models, and the questions with their own parameters.

use model::Cache;
use tensor::Tensor;

use crate::perturb::private_tokens;
use crate::perturbation_keys::PerturbationKeys;
use crate::prompt::Prompt;
use crate::reasoner::{LatentModel, RewardModel};
use crate::request::{AnswerSampling, CancelToken, Lens};
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
    /// See [`Request::forced_thoughts`](crate::Request::forced_thoughts).
    pub(crate) forced_thoughts: &'a [Tensor],
    pub(crate) lens: Option<Lens>,
    /// See [`Request::answer_sampling`](crate::Request::answer_sampling).
    pub(crate) answer_sampling: Option<AnswerSampling>,
    pub(crate) cancel: &'a CancelToken,
}

impl<'a> BatchItem<'a> {
    /// A question whose trajectories think by themselves, without a lens.
    pub(crate) fn new(
        prompt: &'a Prompt,
        params: &'a SamplingParams,
        cancel: &'a CancelToken,
    ) -> Self {
        Self { prompt, params, forced_thoughts: &[], lens: None, answer_sampling: None, cancel }
    }

    /// The random numbers of its trajectories.
    pub(crate) fn keys(&self) -> PerturbationKeys {
        PerturbationKeys::new(self.params, self.answer_sampling)
    }

    /// Tokens of the prompt.
    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt.tokens.len()
    }

    /// Prompt tokens that are passed once for all rows.
    pub(crate) fn shared_tokens(&self) -> usize {
        self.prompt_len() - self.private_tokens()
    }

    /// Prompt tokens that rows with looped latent positions share: whole chunks of slots, and not
    /// the last token.
    pub(crate) fn continued_tokens(&self) -> usize {
        Cache::shareable(self.prompt_len() - 1)
    }

    /// Prompt tokens that every row passes by itself, because dropout makes them differ.
    pub(crate) fn private_tokens(&self) -> usize {
        private_tokens(&self.params.perturbation, self.prompt_len())
    }
}
