//! The context of a batch: the models, and the questions with their sampling parameters.

use model::{Cache, Probe};
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
    /// Scores trajectories from their hidden states.
    pub(crate) probe: Option<&'a Probe>,
    /// Copy latents to the host: one transfer per batch.
    pub(crate) return_latents: bool,
    /// Copy the hidden states that a probe reads to the host.
    pub(crate) return_states: bool,
}

impl BatchContext<'_> {
    /// Whether sequences store the hidden states of their thoughts and answers.
    pub(crate) fn keeps_states(&self) -> bool {
        self.probe.is_some() || self.return_states
    }
}

/// One question of a batch. Its sequences are adjacent and refer to it by index.
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
    /// A question without forced thoughts and without a lens.
    pub(crate) fn new(
        prompt: &'a Prompt,
        params: &'a SamplingParams,
        cancel: &'a CancelToken,
    ) -> Self {
        Self { prompt, params, forced_thoughts: &[], lens: None, answer_sampling: None, cancel }
    }

    /// The random number keys of its trajectories.
    pub(crate) fn keys(&self) -> PerturbationKeys {
        PerturbationKeys::new(self.params, self.answer_sampling)
    }

    /// Prompt length in tokens.
    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt.tokens.len()
    }

    /// Prompt tokens that are computed once for all sequences.
    pub(crate) fn shared_tokens(&self) -> usize {
        self.prompt_len() - self.private_tokens()
    }

    /// Prompt tokens shared by sequences with looped latent positions: whole chunks of slots,
    /// excluding the last token.
    pub(crate) fn continued_tokens(&self) -> usize {
        Cache::shareable(self.prompt_len() - 1)
    }

    /// Prompt tokens that every sequence computes separately, because dropout makes them differ.
    pub(crate) fn private_tokens(&self) -> usize {
        private_tokens(&self.params.perturbation, self.prompt_len())
    }
}
