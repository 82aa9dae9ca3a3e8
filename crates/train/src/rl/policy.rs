//! Forward and backward over sampled trajectories, with the random numbers of their sampling.
//!
//! ```text
//! prompt (shared) ─┬─ last prompt token ── thought 1 ── … ── thought T, end tokens, answer
//!                  ├─ …                      └ mask and noise of this trajectory's key
//!                  └─ …
//! ```
//!
//! The trajectories of a prompt share its keys and values, as in the engine. Dropout masks and
//! noise are functions of their keys ([`engine::PerturbationKeys`]), so the pass computes the
//! thoughts that were sampled, and on a CPU the log-probabilities of the answer's tokens to the
//! bit. Gradients flow through every thought, unless thoughts are actions of a Gaussian policy
//! ([`ThoughtGradient::Density`]): then they are fed as they were sampled.
//!
//! [`PolicyStep::logprobs`] computes log-probabilities alone, [`PolicyStep::accumulate`] adds the
//! gradients of their weighted sum.

mod backward;
mod forward;

use engine::{PerturbationKeys, RowId};
use model::{Cache, FrozenElements, Parameter, TrainableDecoder, TrainableHead};
use serde::{Deserialize, Serialize};
use tensor::{Device, DeviceError, Tensor};

use crate::rows::reuse_cache;
use forward::PolicyForward;

/// How the gradient reaches the computation of sampled thoughts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum ThoughtGradient {
    /// Through the thoughts: masks and noise are constants of the trajectory, and the answer's
    /// log-probability is differentiated through every thought
    #[default]
    Pathwise,
    /// By the log-density of the thoughts: each is an action drawn from a Gaussian around the
    /// computed one (noise alone), and later passes see it as a constant
    Density,
}

/// A sampled trajectory.
#[derive(Clone, Debug, Default)]
pub struct PolicyTrajectory {
    /// Index of its prompt in the batch.
    pub prompt: usize,
    /// The number of the question in the random function.
    pub question: u32,
    /// Its number among the trajectories of the question.
    pub number: u32,
    /// Thoughts.
    pub thoughts: usize,
    /// Whether the model ended its thoughts before their limit: then the last one was fed alone.
    pub ended_early: bool,
    /// The answer's tokens, the EOS token included.
    pub answer: Vec<u32>,
    /// The thoughts as they were fed, (thoughts, width) on the host; read with
    /// [`ThoughtGradient::Density`] alone.
    pub latents: Tensor,
}

impl PolicyTrajectory {
    pub(crate) fn id(&self) -> RowId {
        RowId { question: self.question, trajectory: self.number }
    }
}

/// Prompts with some sampled trajectories of each.
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
    /// Their masks and noise.
    pub keys: PerturbationKeys,
    /// Tokens fed between the last thought and the answer.
    pub end_latent: Vec<u32>,
    /// The temperature of the answer's tokens.
    pub temperature: f32,
    /// How the gradient reaches the thoughts.
    pub thoughts: ThoughtGradient,
}

/// Numbers of every answer token and every thought, by trajectory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActionValues {
    /// One per answer token.
    pub tokens: Vec<Vec<f32>>,
    /// One per thought with [`ThoughtGradient::Density`], else none.
    pub thoughts: Vec<Vec<f32>>,
}

/// A policy with its gradients: decoder and latent head.
#[derive(Debug)]
pub struct PolicyStep {
    /// The decoder and its language-model head.
    pub model: TrainableDecoder,
    /// Maps hidden states to thoughts.
    pub head: TrainableHead,
    cache: Option<Cache>,
}

impl PolicyStep {
    /// A policy of these modules.
    pub fn new(model: TrainableDecoder, head: TrainableHead) -> Self {
        Self { model, head, cache: None }
    }

    /// The log-probability of every action of a batch: of each answer token under the softmax at
    /// the temperature, and with [`ThoughtGradient::Density`] of each thought.
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

    /// Adds the gradients of `- sum of weight * log-probability` over all actions; `weigh` gives
    /// the weights for the log-probabilities. Returns the latter.
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

    /// All trained parameters, mutably. [`Self::sync_weights`] has to follow a change.
    pub fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.model.parameters_mut().chain(self.head.parameters_mut()).collect()
    }

    /// Copies changed parameters to the weights that passes use. No engine may share them.
    pub fn sync_weights(&mut self) -> Result<(), DeviceError> {
        let device = self.device();
        self.model.sync_weights()?;
        self.head.sync_weights(&device)
    }

    /// What no optimizer changes.
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
