//! Reinforcement learning as a task of the training loop.
//!
//! A round samples the groups of `updates` optimizer steps with the weights at its start. With one
//! update per round, the gradient is on-policy and needs no importance ratio. With several, updates
//! after the first are off-policy and use clipped ratios, and a state saved within a round contains
//! the unused groups.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use data::TrainExample;
use engine::{Engine, LatentModel, Method, Reasoner, RewardModel};
use model::{Cache, FrozenElements, ModelFiles, Parameter, Tokenizer};
use record::Losses;
use serde_json::Value;
use tensor::{Device, DeviceError};

use super::estimator::{ClipRange, Estimator, LossNorm, kl_estimate};
use super::evaluation::EvaluationConfig;
use super::policy::{ActionValues, PolicyBatch, PolicyConfig, PolicyStep};
use super::rollout::{RolloutConfig, SampledGroup, log_means};
use crate::activations::BatchRows;
use crate::data_loader::ExampleSource;
use crate::error::TrainError;
use crate::model_dir::WeightWriter;
use crate::trainer::{EvalResult, MicroBatch, TrainTask};

mod saved;

/// Size limit of the KV cache for sampling on a GPU in bytes, in addition to the training memory.
const GPU_MEMORY: usize = 4 << 30;

/// Settings of reinforcement learning.
#[derive(Clone, Copy, Debug)]
pub struct RlSettings {
    /// Sampling, rewards and advantages of groups.
    pub rollout: RolloutConfig,
    /// Questions per micro-batch.
    pub batch_size: usize,
    /// Micro-batches per step.
    pub accumulation_steps: u32,
    /// Optimizer steps per round of sampling.
    pub updates: u32,
    /// The trust region of off-policy updates.
    pub clip: ClipRange,
    /// Weight of the KL divergence from the initial model; 0 disables it.
    pub kl_coef: f32,
    /// Whether groups with equal rewards are excluded from means.
    pub filter_groups: bool,
    /// Normalization of the loss.
    pub loss_norm: LossNorm,
    /// Maximum number of trajectories per forward and backward pass.
    pub pass_trajectories: usize,
    /// Held-out evaluation.
    pub evaluation: EvaluationConfig,
}

/// The parts of an [`RlTask`].
pub struct RlSetup {
    /// Device of the model.
    pub device: Device,
    /// The policy.
    pub policy: PolicyStep,
    /// The initial model, if the loss includes the KL divergence from it.
    pub reference: Option<PolicyStep>,
    /// The reward model for [`RewardKind::Model`](super::reward::RewardKind).
    pub reward_model: Option<Arc<RewardModel>>,
    /// Prompt template, end tokens and answer rule.
    pub method: Method,
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Writes the weights.
    pub writer: WeightWriter,
    /// The questions.
    pub source: ExampleSource,
    /// Problems for evaluation; may be empty.
    pub held_out: Vec<TrainExample>,
    /// Output directory; configuration and tokenizer are already in it.
    pub out: PathBuf,
    /// Settings.
    pub settings: RlSettings,
}

/// Trains a reasoner by reinforcement learning.
pub struct RlTask {
    setup: RlSetup,
    round: Option<Round>,
}

/// The groups of a round, in the order of its steps.
struct Round {
    /// Index of the round.
    index: u32,
    groups: Vec<SampledGroup>,
}

/// Sums over the forward passes of a micro-batch.
#[derive(Default)]
struct PassSums {
    loss: f64,
    kl: f64,
    clipped: f64,
    tokens: f64,
    fed: usize,
}

/// The trajectories of one forward and backward pass.
struct PolicyPass<'a> {
    batch: PolicyBatch,
    advantages: Vec<f64>,
    old: Vec<Option<&'a [Vec<f32>; 2]>>,
    reference: Option<ActionValues>,
}

impl RlTask {
    /// A new training.
    pub fn new(setup: RlSetup) -> Self {
        Self { setup, round: None }
    }

    /// An engine that shares the trained weights. It must be dropped before they change.
    pub fn engine(&self) -> Result<Engine, DeviceError> {
        let RlSetup { device, policy, method, tokenizer, out, .. } = &self.setup;
        let model = LatentModel {
            decoder: Arc::clone(&policy.model.decoder),
            method: method.clone(),
            head: Arc::new(policy.head.to_latent_head(device)?),
            marker_embeddings: BTreeMap::new(),
            gate: None,
        };
        let memory = if device.is_cuda() { GPU_MEMORY } else { Engine::DEFAULT_MEMORY };
        let engine = Engine::new(Reasoner {
            tokenizer: Arc::clone(tokenizer),
            model,
            files: ModelFiles::Directory(out.clone()),
            warnings: Vec::new(),
        });
        Ok(engine.with_memory(memory))
    }

    /// The policy.
    pub fn policy_mut(&mut self) -> &mut PolicyStep {
        &mut self.setup.policy
    }

    /// The configuration for replaying the sampled trajectories.
    pub fn policy_config(&self) -> PolicyConfig {
        let RlSetup { method, settings, .. } = &self.setup;
        let rollout = &settings.rollout;
        PolicyConfig {
            keys: engine::PerturbationKeys::new(&rollout.params, rollout.answer_sampling()),
            end_latent: method.end_latent.clone(),
            temperature: rollout.temperature,
            thoughts: rollout.thoughts,
        }
    }

    /// Number of questions per round.
    fn round_size(&self) -> usize {
        let RlSettings { batch_size, accumulation_steps, updates, .. } = self.setup.settings;
        batch_size * accumulation_steps as usize * updates as usize
    }

    /// Samples the groups of a round.
    pub fn sample_round(&mut self, index: u32) -> Result<Vec<SampledGroup>, TrainError> {
        let size = self.round_size();
        let first = u64::from(index) * size as u64;
        let examples = self.setup.source.batch(first, size);
        let examples: Vec<TrainExample> =
            examples.into_iter().map(|(_, example)| example).collect();
        let mut engine = self.engine()?;
        if let Some(model) = &self.setup.reward_model {
            engine = engine.with_reward_model(Arc::clone(model));
        }
        let mut groups = self.setup.settings.rollout.sample(&engine, first, &examples)?;
        drop(engine);
        if self.setup.settings.updates > 1 {
            self.note_logprobs(&mut groups)?;
        }
        Ok(groups)
    }

    /// Stores the log-probabilities under the weights that sampled the groups.
    fn note_logprobs(&mut self, groups: &mut [SampledGroup]) -> Result<(), TrainError> {
        let config = self.policy_config();
        let limit = self.setup.settings.pass_trajectories;
        let RlSetup { device, policy, .. } = &mut self.setup;
        for group in groups {
            for first in (0..group.trajectories.len()).step_by(limit) {
                let end = group.trajectories.len().min(first + limit);
                let batch = PolicyBatch {
                    prompts: vec![group.prompt.clone()],
                    trajectories: group.trajectories[first..end].to_vec(),
                };
                let values = device.run(|| policy.logprobs(&config, &batch))?;
                let pairs = values.tokens.into_iter().zip(values.thoughts);
                group.old_logprobs.extend(pairs.map(|(tokens, thoughts)| [tokens, thoughts]));
            }
        }
        Ok(())
    }

    /// Accumulates the gradients of some groups.
    pub fn accumulate_groups(&mut self, groups: &[SampledGroup]) -> Result<MicroBatch, TrainError> {
        let settings = self.setup.settings;
        let norm = StepNorm::new(&settings, groups);
        let mut sums = PassSums::default();
        for mut pass in passes(&settings, groups) {
            self.add_reference(&mut pass)?;
            self.run_pass(&pass, &norm, &mut sums)?;
        }
        let tokens = sums.tokens.max(1.0);
        let losses = log_means(groups, Losses::new(sums.loss))
            .with("kl", (settings.kl_coef > 0.0).then_some(sums.kl / tokens))
            .with("clipped", (settings.updates > 1).then_some(sums.clipped / tokens));
        let examples: usize = groups.iter().map(|group| group.trajectories.len()).sum();
        Ok(MicroBatch { losses, examples: examples as u64, tokens: Some(sums.fed as u64) })
    }

    /// Adds the initial model's log-probabilities to a pass, if they are needed.
    fn add_reference(&mut self, pass: &mut PolicyPass<'_>) -> Result<(), TrainError> {
        let config = self.policy_config();
        let RlSetup { device, reference, .. } = &mut self.setup;
        if let Some(reference) = reference {
            let values = device.run(|| reference.logprobs(&config, &pass.batch))?;
            pass.reference = Some(values);
        }
        Ok(())
    }

    fn run_pass(
        &mut self,
        pass: &PolicyPass<'_>,
        norm: &StepNorm,
        sums: &mut PassSums,
    ) -> Result<(), TrainError> {
        let config = self.policy_config();
        let settings = self.setup.settings;
        let RlSetup { device, policy, .. } = &mut self.setup;
        sums.fed += pass.batch.fed(&config);
        device.run(|| {
            policy.accumulate(&config, &pass.batch, |logprobs| {
                pass.weigh(&settings, norm, logprobs, sums)
            })
        })?;
        Ok(())
    }
}

/// Normalization factors of a step.
struct StepNorm {
    norm: LossNorm,
    count: f64,
}

impl StepNorm {
    fn new(settings: &RlSettings, groups: &[SampledGroup]) -> Self {
        let used = groups.iter().filter(|group| !settings.filter_groups || group.has_weight());
        // Imitation averages only over the trajectories that it imitates.
        let all = settings.estimator() != Estimator::Imitation;
        let trajectories = used.flat_map(|group| group.trajectories.iter().zip(&group.advantages));
        let trajectories =
            trajectories.filter(|(_, weight)| all || **weight != 0.0).map(|(one, _)| one);
        let count = match settings.loss_norm {
            LossNorm::Token => trajectories.map(|one| one.answer.len()).sum::<usize>(),
            LossNorm::Sequence | LossNorm::Trajectory => trajectories.count(),
        };
        Self { norm: settings.loss_norm, count: count.max(1) as f64 }
    }

    /// The factor of each token of an answer with `tokens` tokens.
    fn factor(&self, tokens: usize) -> f64 {
        match self.norm {
            LossNorm::Token | LossNorm::Trajectory => 1.0 / self.count,
            LossNorm::Sequence => 1.0 / (self.count * tokens.max(1) as f64),
        }
    }
}

/// The trajectories with a gradient, split into passes.
fn passes<'a>(settings: &RlSettings, groups: &'a [SampledGroup]) -> Vec<PolicyPass<'a>> {
    let all = settings.kl_coef > 0.0;
    let mut passes: Vec<PolicyPass<'a>> = Vec::new();
    for group in groups {
        let mut prompt_in = None;
        for (n, trajectory) in group.trajectories.iter().enumerate() {
            if group.advantages[n] == 0.0 && !all {
                continue;
            }
            let is_full =
                |pass: &PolicyPass<'_>| pass.advantages.len() >= settings.pass_trajectories;
            if passes.last().is_none_or(is_full) {
                passes.push(PolicyPass::empty());
            }
            let last = passes.len() - 1;
            let pass = &mut passes[last];
            if prompt_in != Some(last) {
                pass.batch.prompts.push(group.prompt.clone());
                prompt_in = Some(last);
            }
            let prompt = pass.batch.prompts.len() - 1;
            let mut trajectory = trajectory.clone();
            trajectory.prompt = prompt;
            pass.batch.trajectories.push(trajectory);
            pass.advantages.push(group.advantages[n]);
            pass.old.push(group.old_logprobs.get(n));
        }
    }
    passes
}

impl PolicyPass<'_> {
    fn empty() -> Self {
        Self {
            batch: PolicyBatch::default(),
            advantages: Vec::new(),
            old: Vec::new(),
            reference: None,
        }
    }

    /// The weight of every action's log-probability.
    fn weigh(
        &self,
        settings: &RlSettings,
        norm: &StepNorm,
        logprobs: &ActionValues,
        sums: &mut PassSums,
    ) -> ActionValues {
        let mut weights = logprobs.clone();
        for (n, tokens) in weights.tokens.iter_mut().enumerate() {
            let factor = norm.factor(tokens.len());
            let advantage = self.advantages[n] as f32;
            for (at, value) in tokens.iter_mut().enumerate() {
                let logprob = *value;
                let slope = match self.old[n] {
                    Some([old, _]) if settings.estimator() != Estimator::Imitation => {
                        settings.clip.slope(logprob - old[at], advantage)
                    }
                    _ => 1.0,
                };
                let mut weight = slope * advantage;
                sums.clipped += f64::from(u8::from(slope == 0.0));
                sums.loss -= factor * f64::from(weight * logprob);
                if let Some(reference) = &self.reference {
                    let (kl, dkl) = kl_estimate(logprob, reference.tokens[n][at]);
                    weight -= settings.kl_coef * dkl;
                    sums.kl += f64::from(kl);
                    sums.loss += factor * f64::from(settings.kl_coef * kl);
                }
                *value = (factor * f64::from(weight)) as f32;
            }
            sums.tokens += tokens.len() as f64;
        }
        for (n, thoughts) in weights.thoughts.iter_mut().enumerate() {
            let factor = norm.factor(self.batch.trajectories[n].answer.len());
            let advantage = self.advantages[n] as f32;
            let width = self.batch.trajectories[n].latents.cols().max(1) as f32;
            for (t, value) in thoughts.iter_mut().enumerate() {
                // The ratio of a thought is the geometric mean over its dimensions; the product
                // over hundreds of dimensions would leave every trust region immediately.
                let slope = match self.old[n] {
                    Some([_, old]) => settings.clip.slope((*value - old[t]) / width, advantage),
                    None => 1.0,
                };
                sums.loss -= factor * f64::from(slope * advantage * *value / width);
                *value = (factor * f64::from(slope * advantage)) as f32;
            }
        }
        weights
    }
}

impl RlSettings {
    fn estimator(&self) -> Estimator {
        self.rollout.estimator
    }
}

impl PolicyBatch {
    /// Number of input positions of a forward pass.
    pub fn fed(&self, config: &PolicyConfig) -> usize {
        let shared = |prompt: &Vec<u32>| prompt.len() - config.keys.private_tokens(prompt.len());
        let own = self.trajectories.iter().map(|one| {
            let private = config.keys.private_tokens(self.prompts[one.prompt].len());
            private + one.thoughts + config.end_latent.len() + one.answer.len().saturating_sub(1)
        });
        self.prompts.iter().map(shared).sum::<usize>() + own.sum::<usize>()
    }
}

impl TrainTask for RlTask {
    fn accumulate_gradients(
        &mut self,
        step: u32,
        micro_batch: u32,
    ) -> Result<MicroBatch, TrainError> {
        let RlSettings { batch_size, accumulation_steps, updates, .. } = self.setup.settings;
        let index = step / updates;
        let update = step % updates;
        let round = match self.round.take().filter(|round| round.index == index) {
            Some(round) => round,
            None => Round { index, groups: self.sample_round(index)? },
        };
        let first = (update * accumulation_steps + micro_batch) as usize * batch_size;
        let micro = self.accumulate_groups(&round.groups[first..first + batch_size]);
        self.round = Some(round);
        micro
    }

    fn parameters(&self) -> Vec<&Parameter> {
        self.setup.policy.parameters()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.setup.policy.parameters_mut()
    }

    fn sync_weights(&mut self) -> Result<(), TrainError> {
        let RlSetup { device, policy, .. } = &mut self.setup;
        Ok(device.run(|| policy.sync_weights())?)
    }

    fn evaluate(&mut self, _: u32) -> Result<Option<EvalResult>, TrainError> {
        if self.setup.held_out.is_empty() {
            return Ok(None);
        }
        let engine = self.engine()?;
        self.setup.settings.evaluation.evaluate(&engine, &self.setup.held_out).map(Some)
    }

    fn save(&mut self) -> Result<(), TrainError> {
        let RlSetup { writer, out, policy, .. } = &self.setup;
        writer.write(out, &policy.model, policy.head.parameters())
    }

    fn is_saved(&self) -> bool {
        self.setup.writer.is_written(&self.setup.out)
    }

    fn frozen(&self) -> FrozenElements {
        self.setup.policy.frozen()
    }

    fn activation_bytes(&mut self) -> Result<Option<u64>, TrainError> {
        let settings = &self.setup.settings;
        let params = &settings.rollout.params;
        let samples = params.samples.get();
        let answer = params.max_new_tokens.get();
        let trajectories = settings.pass_trajectories.min(settings.batch_size * samples);
        let prompts = trajectories.div_ceil(samples);
        let mut rows = BatchRows::default();
        let engine = self.engine()?;
        for (id, example) in self.setup.source.batch(0, prompts) {
            let prompt = engine::Prompt::new(engine.reasoner(), id as u32, &example.question)?;
            rows.fed += prompt.tokens.len();
            rows.slots += Cache::slots_for(prompt.tokens.len());
        }
        let thoughts = params.length.limit();
        let own = thoughts + self.setup.method.end_latent.len() + answer;
        rows.fed += trajectories * own;
        rows.output += trajectories * (thoughts + answer);
        rows.logits += trajectories * answer;
        rows.slots += trajectories * Cache::slots_for(own);
        Ok(Some(rows.activation_bytes(&self.setup.policy.model)))
    }

    fn unfinished(&self, steps: u32) -> Option<Value> {
        let round = self.round.as_ref()?;
        (round.index == steps / self.setup.settings.updates).then(|| saved::to_json(&round.groups))
    }

    fn restore(&mut self, steps: u32, unfinished: Value) -> Result<(), TrainError> {
        let index = steps / self.setup.settings.updates;
        let groups =
            saved::from_json(unfinished).filter(|groups| groups.len() == self.round_size());
        let Some(groups) = groups else {
            let reason = "the sampled trajectories in the training state are corrupt; start over \
                          with `overwrite`";
            return Err(TrainError::Options { reason: reason.to_owned() });
        };
        self.round = Some(Round { index, groups });
        Ok(())
    }
}
