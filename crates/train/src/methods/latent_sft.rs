//! A reasoner like Latent-SFT: a thought is a mixture of token embeddings, weighted by the
//! distribution of the language-model head.
//!
//! ```text
//! question <think>  [a b] [c d] [e]  </think> \boxed{18} [eos]
//!                   └─ groups: means of embeddings
//! ```
//!
//! The steps' tokens are split into groups. At the position before a group, the loss is the
//! Kullback-Leibler divergence between the head's distribution and that of the group's tokens; at
//! the last group the target is the end marker, then the answer. Inference feeds the mixture of the
//! most probable tokens instead of the group's mean and stops when the end marker is the most
//! probable token. To teach the model to continue from its own mixtures, a fraction of the examples
//! uses mixtures from a first forward pass as constant inputs (scheduled sampling).
//!
//! The published method learns its mixtures with an encoder in a first stage; here they are fixed.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use data::TrainExample;
use engine::family::{LATENT_SFT_MARKERS, LATENT_SFT_MIXTURE, LATENT_SFT_PROMPT};
use model::{Cache, LatentHead, ModelError, Parameter, Tokenizer, TrainableDecoder};
use record::Losses;
use serde::Serialize;
use serde_json::{Value, json};
use tensor::{DeviceError, ops};

use super::compressed::{
    CompressedBatch, CompressedExample, CompressedPass, FactorNorm, FedThoughts, GroupFactors,
    weighted_sum,
};
use super::layout::{FamilyLayout, is_in_vocabulary};
use super::{
    ExampleEncoder, ExamplePlace, ExampleRows, MethodEntry, OptionCheck, TrainStep, TrainingMethod,
    guarded,
};
use crate::dropout::DropoutConfig;
use crate::error::TrainError;
use crate::model_dir::ModelUsage;
use crate::options::MethodOptions;
use crate::reasoner::TaskSetup;
use crate::rows::{assemble_rows, reuse_cache};
use crate::trainer::TrainTask;

/// Latent-SFT's entry.
pub const METHOD: MethodEntry = MethodEntry {
    name: "latent-sft",
    about: "Compressed steps as mixtures of token embeddings; the LM head predicts the next \
            mixture, and the model decides when to stop",
    configure: |options, tokenizer| Ok(Box::new(LatentSftMethod::new(options, tokenizer)?)),
};

/// Latent-SFT's settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "method", rename = "latent-sft")]
pub struct LatentSftMethod {
    /// Tokens per thought.
    pub compression: usize,
    /// Whether later tokens of a thought have smaller weights, so that their order can be
    /// recovered.
    pub ordered: bool,
    /// Fraction of examples whose input thoughts are the model's own mixtures.
    pub scheduled_sampling: f32,
    /// Maximum number of thoughts in inference.
    pub thoughts: usize,
    /// Texts around the question and the thoughts.
    pub layout: FamilyLayout,
}

impl LatentSftMethod {
    fn new(options: &MethodOptions, tokenizer: &Tokenizer) -> Result<Self, TrainError> {
        OptionCheck::latent(METHOD.name, options)?.no_step_decoder()?.no_blocks()?;
        Ok(Self {
            compression: options.compression.map_or(2, NonZeroUsize::get),
            ordered: options.ordered,
            scheduled_sampling: options.scheduled_sampling,
            thoughts: options.thoughts.map_or(64, NonZeroUsize::get),
            layout: layout(tokenizer)?,
        })
    }
}

impl TrainingMethod for LatentSftMethod {
    fn usage(&self) -> ModelUsage {
        self.layout.usage(METHOD.name, self.thoughts)
    }

    fn settings(&self) -> Value {
        json!(self)
    }

    fn task(&self, setup: TaskSetup) -> Result<Box<dyn TrainTask>, TrainError> {
        let encoder = LatentSftEncoder {
            tokenizer: setup.tokenizer(),
            layout: self.layout.clone(),
            eos: setup.model.markers.eos,
            compression: self.compression,
            scheduled_sampling: self.scheduled_sampling,
        };
        setup.task(encoder, |model| LatentSftTrainStep::new(model, self.ordered))
    }
}

/// The text before and after an answer.
const ANSWER_BOX: [&str; 2] = ["\\boxed{", "}"];
/// The beginning of a worked step.
const STEP_START: &str = "<<";

/// The family's texts for a vocabulary. Texts that it cannot represent become added tokens, as does
/// an end marker whose first token also begins a step, which would end the thoughts early.
pub fn layout(tokenizer: &Tokenizer) -> Result<FamilyLayout, ModelError> {
    let mut layout = FamilyLayout::with_prompt(tokenizer, LATENT_SFT_PROMPT)?;
    let [begin, end] = LATENT_SFT_MARKERS;
    let first = |text: &str| Ok::<_, ModelError>(tokenizer.encode(text)?.first().copied());
    let begins_steps = first(end)? == first(STEP_START)?;
    let [open, close] = ANSWER_BOX;
    for text in [begin, end, open, close] {
        if !is_in_vocabulary(tokenizer, text)? || (text == end && begins_steps) {
            layout.added_tokens.push(text.to_owned());
        }
    }
    Ok(layout)
}

/// Tokenizes and compresses examples.
#[derive(Clone)]
pub struct LatentSftEncoder {
    /// Tokenizes text.
    pub tokenizer: Arc<Tokenizer>,
    /// Texts of the prompt.
    pub layout: FamilyLayout,
    /// End-of-text token.
    pub eos: u32,
    /// Tokens per group.
    pub compression: usize,
    /// Fraction of examples whose input thoughts are the model's own mixtures.
    pub scheduled_sampling: f32,
}

impl ExampleEncoder for LatentSftEncoder {
    type Encoded = CompressedExample;

    fn encode(
        &self,
        example: &TrainExample,
        place: ExamplePlace,
    ) -> Result<Vec<CompressedExample>, ModelError> {
        let example = &guarded(&self.tokenizer, example);
        let encode = |text: &str| self.tokenizer.encode(text);
        let [begin, end] = LATENT_SFT_MARKERS;
        let mut prompt = self.layout.prompt(&self.tokenizer, &example.question)?;
        prompt.extend(encode(begin)?);
        let steps = encode(&example.steps.join("\n"))?;
        let groups = steps.chunks(self.compression).map(<[u32]>::to_vec).collect();
        let [open, close] = ANSWER_BOX;
        let mut completion = encode(end)?;
        completion.extend(encode(&format!("{open}{}{close}", example.answer))?);
        completion.push(self.eos);
        Ok(vec![CompressedExample {
            id: place.id as u32,
            prompt,
            groups,
            completion,
            loss_start: 0,
            feeds_thoughts: place.uniforms[0] < f64::from(self.scheduled_sampling),
        }])
    }

    fn rows(&self, encoded: &CompressedExample) -> ExampleRows {
        let thoughts: usize = encoded.groups.iter().map(Vec::len).sum();
        encoded.sequence().rows(thoughts + encoded.targets().len())
    }
}

/// A trainable Latent-SFT reasoner and its losses.
#[derive(Debug)]
pub struct LatentSftTrainStep {
    /// The decoder and its language-model head.
    pub model: TrainableDecoder,
    /// Whether later tokens of a group have smaller weights, so that their order can be recovered.
    pub ordered: bool,
    cache: Option<Cache>,
}

/// Mean losses of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatentSftLosses {
    /// Cross entropy per token of end markers and answers, in nats.
    pub tokens: f64,
    /// KL divergence between the next group's distribution and the head's, per thought, in nats.
    pub thoughts: f64,
}

/// Targets of a batch's outputs. An output that predicts a group has one row per token of the
/// group: the cross entropy with a distribution is the weighted sum over its tokens.
#[derive(Default)]
struct SoftTargets {
    /// Per row: the output row, the target token, and its weight in the loss.
    outputs: Vec<usize>,
    tokens: Vec<u32>,
    weights: Vec<f32>,
    /// Number of rows of groups, which precede those of completions.
    group_rows: usize,
    /// Mean entropy of the groups' distributions, the minimum of their cross entropy.
    entropy: f64,
}

impl SoftTargets {
    fn new(pass: &CompressedPass, examples: &[CompressedExample], factors: GroupFactors) -> Self {
        let mut targets = Self::default();
        let groups = pass.rows.before_groups.len() as f32;
        let all = examples.iter().flat_map(|example| &example.groups);
        for (group, &output) in all.zip(&pass.rows.before_groups) {
            let shares = factors.of(group.len());
            targets.entropy += entropy(group, &shares) / f64::from(groups);
            for (&token, share) in group.iter().zip(shares) {
                targets.push(output, token, share / groups);
            }
        }
        targets.group_rows = targets.tokens.len();
        let tokens: usize = examples.iter().map(|example| example.targets().len()).sum();
        for (example, outputs) in examples.iter().zip(&pass.rows.before_tokens) {
            for (&token, &output) in example.targets().iter().zip(&outputs[example.loss_start..]) {
                targets.push(output, token, 1.0 / tokens as f32);
            }
        }
        targets
    }

    fn push(&mut self, output: usize, token: u32, weight: f32) {
        self.outputs.push(output);
        self.tokens.push(token);
        self.weights.push(weight);
    }
}

/// The entropy of a group's distribution, in nats; a token may occur more than once in a group.
fn entropy(group: &[u32], shares: &[f32]) -> f64 {
    let mut probabilities: BTreeMap<u32, f64> = BTreeMap::new();
    for (&token, &share) in group.iter().zip(shares) {
        *probabilities.entry(token).or_default() += f64::from(share);
    }
    -probabilities.values().map(|p| p * p.ln()).sum::<f64>()
}

impl LatentSftTrainStep {
    /// A train step on this model.
    pub fn new(model: TrainableDecoder, ordered: bool) -> Self {
        Self { model, ordered, cache: None }
    }

    /// Adds the gradients of a batch's loss to all parameters; returns its terms.
    pub fn batch_losses(
        &mut self,
        examples: &[CompressedExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<LatentSftLosses, DeviceError> {
        let device = self.model.decoder.device().clone();
        let batch = CompressedBatch {
            sequences: examples.iter().map(CompressedExample::sequence).collect(),
            factors: GroupFactors { norm: FactorNorm::Sum, ordered: self.ordered },
            dropout,
        };
        let mut cache = reuse_cache(self.cache.take(), &self.model.decoder, batch.slots())?;
        let mut pass = batch.forward(&self.model, &mut cache, None)?;
        if examples.iter().any(|example| example.feeds_thoughts && !example.groups.is_empty()) {
            let before = pass.before_groups(&self.model)?;
            let head = LatentHead::TopKMixture { k: LATENT_SFT_MIXTURE };
            let thoughts = head.forward(&self.model.decoder, &before)?.thoughts;
            cache.clear();
            let thoughts = FedThoughts::new(thoughts, examples);
            pass = batch.forward(&self.model, &mut cache, Some(thoughts))?;
        }
        let SoftTargets { outputs, tokens, weights, group_rows, entropy } =
            SoftTargets::new(&pass, examples, batch.factors);
        let predicting = ops::select(&device, [&pass.hidden], &outputs)?;
        let (losses, dpredicting) = self.model.cross_entropy(&predicting, tokens, &weights)?;
        let dhidden = assemble_rows(&device, vec![(dpredicting, outputs)], &pass.hidden)?;
        pass.backward(&mut self.model, &cache, &dhidden)?;
        self.cache = Some(cache);
        let losses = losses.to_host()?;
        let (of_groups, of_tokens) = losses.data().split_at(group_rows);
        let (group_weights, token_weights) = weights.split_at(group_rows);
        Ok(LatentSftLosses {
            tokens: weighted_sum(of_tokens, token_weights),
            thoughts: weighted_sum(of_groups, group_weights) - entropy,
        })
    }
}

impl TrainStep for LatentSftTrainStep {
    type Example = CompressedExample;

    fn accumulate_gradients(
        &mut self,
        examples: &[CompressedExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<Losses, DeviceError> {
        let LatentSftLosses { tokens, thoughts } = self.batch_losses(examples, dropout)?;
        Ok(Losses::new(tokens).with("latent", thoughts))
    }

    fn model(&self) -> &TrainableDecoder {
        &self.model
    }

    fn head_parameters(&self) -> Vec<&Parameter> {
        Vec::new()
    }

    fn parameters(&self) -> Vec<&Parameter> {
        self.model.parameters().collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.model.parameters_mut().collect()
    }

    fn sync_weights(&mut self) -> Result<(), DeviceError> {
        self.model.sync_weights()
    }
}

#[cfg(test)]
mod tests {
    use super::entropy;

    #[test]
    fn a_token_that_occurs_twice_is_one_outcome() {
        assert!((entropy(&[3, 4], &[0.5, 0.5]) - 2f64.ln()).abs() < 1e-6);
        assert!(entropy(&[3, 3], &[0.5, 0.5]).abs() < 1e-6);
    }
}
