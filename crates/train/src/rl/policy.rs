//! Forward and backward passes over sampled trajectories, with the random numbers used in sampling.
//!
//! ```text
//! prompt (shared) ─┬─ last prompt token ── thought 1 ── … ── thought T, end tokens, answer
//!                  ├─ …                      └ mask and noise of this trajectory's key
//!                  └─ …
//! ```
//!
//! The trajectories of a prompt share its keys and values, as in the engine. Dropout masks and
//! noise are functions of their RNG keys ([`engine::PerturbationKeys`]), so the forward pass
//! reproduces the sampled thoughts and, bit for bit on a CPU, the log-probabilities of the answer
//! tokens. Gradients flow through every thought, unless thoughts are actions of a Gaussian policy
//! ([`ThoughtGradient::Density`]): then the sampled thoughts are constant inputs.
//!
//! [`PolicyStep::logprobs`] only computes log-probabilities; [`PolicyStep::accumulate`] adds the
//! gradients of their weighted sum.

mod backward;
mod forward;

use engine::{PerturbationKeys, SequenceId};
use model::{Cache, FrozenElements, Parameter, TrainableDecoder, TrainableHead};
use serde::{Deserialize, Serialize};
use tensor::{Device, DeviceError, Tensor};

use crate::rows::reuse_cache;
use forward::PolicyForward;

/// How the gradient is propagated to sampled thoughts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum ThoughtGradient {
    /// Differentiate the answer's log-probability through every thought; masks and noise are
    /// constants of the trajectory
    #[default]
    Pathwise,
    /// Differentiate the log-density of the thoughts: each is an action from a Gaussian around the
    /// computed thought (only with noise) and a constant input of later passes
    Density,
}

/// A sampled trajectory.
#[derive(Clone, Debug, Default)]
pub struct PolicyTrajectory {
    /// Index of the prompt in the batch.
    pub prompt: usize,
    /// Question number, part of the RNG key.
    pub question: u32,
    /// Number of the trajectory within the question, part of the RNG key.
    pub number: u32,
    /// Number of thoughts.
    pub thoughts: usize,
    /// Whether the model ended its thoughts before the limit; if so, the last thought was fed in a
    /// separate forward pass.
    pub ended_early: bool,
    /// Answer tokens, including the EOS token.
    pub answer: Vec<u32>,
    /// The input thoughts, (thoughts, width) on the host; used only with
    /// [`ThoughtGradient::Density`].
    pub latents: Tensor,
}

impl PolicyTrajectory {
    pub(crate) fn id(&self) -> SequenceId {
        SequenceId { question: self.question, trajectory: self.number }
    }
}

/// Prompts with sampled trajectories.
#[derive(Clone, Debug, Default)]
pub struct PolicyBatch {
    /// The tokens of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// The trajectories of all prompts.
    pub trajectories: Vec<PolicyTrajectory>,
}

/// How the trajectories of a batch were sampled.
#[derive(Clone, Debug)]
pub struct PolicyConfig {
    /// RNG keys of masks and noise.
    pub keys: PerturbationKeys,
    /// Tokens fed between the last thought and the answer.
    pub end_latent: Vec<u32>,
    /// Softmax temperature of answer tokens.
    pub temperature: f32,
    /// How the gradient is propagated to thoughts.
    pub thoughts: ThoughtGradient,
}

/// One number per answer token and per thought, by trajectory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActionValues {
    /// One per answer token.
    pub tokens: Vec<Vec<f32>>,
    /// One per thought with [`ThoughtGradient::Density`], else empty.
    pub thoughts: Vec<Vec<f32>>,
}

/// A trainable policy: decoder and latent head.
#[derive(Debug)]
pub struct PolicyStep {
    /// The decoder and its language-model head.
    pub model: TrainableDecoder,
    /// Maps hidden states to thoughts.
    pub head: TrainableHead,
    cache: Option<Cache>,
}

impl PolicyStep {
    /// A policy with these modules.
    pub fn new(model: TrainableDecoder, head: TrainableHead) -> Self {
        Self { model, head, cache: None }
    }

    /// The log-probability of every action of a batch: each answer token, under the softmax with
    /// the temperature, and with [`ThoughtGradient::Density`] each thought.
    pub fn logprobs(
        &mut self,
        config: &PolicyConfig,
        batch: &PolicyBatch,
    ) -> Result<ActionValues, DeviceError> {
        let mut cache = self.cache_for(config, batch)?;
        let forward = PolicyForward::run(self, &mut cache, config, batch);
        self.cache = Some(cache);
        forward?.logprobs(self, config, batch)
    }

    /// Accumulates the gradients of `- sum of weight * log-probability` over all actions; `weigh`
    /// computes the weights from the log-probabilities. Returns the log-probabilities.
    pub fn accumulate(
        &mut self,
        config: &PolicyConfig,
        batch: &PolicyBatch,
        weigh: impl FnOnce(&ActionValues) -> ActionValues,
    ) -> Result<ActionValues, DeviceError> {
        let mut cache = self.cache_for(config, batch)?;
        let forward = PolicyForward::run(self, &mut cache, config, batch)?;
        let logprobs = forward.logprobs(self, config, batch)?;
        let weights = weigh(&logprobs);
        let backward = forward.backward(self, &cache, config, &weights);
        self.cache = Some(cache);
        backward?;
        self.model.collect_gradients()?;
        Ok(logprobs)
    }

    /// All trained parameters, in a fixed order.
    pub fn parameters(&self) -> Vec<&Parameter> {
        self.model.parameters().chain(self.head.parameters()).collect()
    }

    /// All trained parameters, mutably. Call [`Self::sync_weights`] after changing them.
    pub fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.model.parameters_mut().chain(self.head.parameters_mut()).collect()
    }

    /// Copies changed parameters to the weights of the forward pass. No engine may share them.
    pub fn sync_weights(&mut self) -> Result<(), DeviceError> {
        let device = self.device();
        self.model.sync_weights()?;
        self.head.sync_weights(&device)
    }

    /// The number of frozen elements.
    pub fn frozen(&self) -> FrozenElements {
        self.model.frozen()
    }

    pub(crate) fn device(&self) -> Device {
        self.model.decoder.device().clone()
    }

    fn cache_for(
        &mut self,
        config: &PolicyConfig,
        batch: &PolicyBatch,
    ) -> Result<Cache, DeviceError> {
        let private = |prompt: usize| config.keys.private_tokens(batch.prompts[prompt].len());
        let shared = batch.prompts.iter().map(|prompt| prompt.len());
        let shared: usize = shared.map(Cache::slots_for).sum();
        let own = batch.trajectories.iter().map(|one| {
            let after = one.thoughts + config.end_latent.len() + one.answer.len();
            Cache::slots_for(private(one.prompt) + after)
        });
        let slots = shared + own.sum::<usize>();
        reuse_cache(self.cache.take(), &self.model.decoder, slots)
    }
}
