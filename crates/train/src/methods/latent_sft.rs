//! A reasoner like Latent-SFT: a thought is a mixture of token embeddings, and the language-model
//! head says of which tokens.
//!
//! ```text
//! question <think>  [a b] [c d] [e]  </think> \boxed{18} [eos]
//!                   └─ groups: means of embeddings
//! ```
//!
//! The steps' tokens are taken some at a time. At the position before a group the head's
//! distribution is drawn to that of the group's tokens (the Kullback-Leibler divergence), at the
//! last group to the end marker, after it to the answer. Inference feeds the mixture of the most
//! probable tokens in place of the group's mean and stops where the end marker is the most
//! probable. So that the model learns to go on from its own mixtures, a share of the examples is
//! fed those of a first pass, as constants (scheduled sampling in two passes).
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
    about: "Compressed steps as mixtures of token embeddings; the LM head mixes the next one, the \
            model decides when to end",
    configure: |options, tokenizer| Ok(Box::new(LatentSftMethod::new(options, tokenizer)?)),
};

/// The settings of a training like Latent-SFT's.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "method", rename = "latent-sft")]
pub struct LatentSftMethod {
    /// Tokens that a thought stands for.
    pub compression: usize,
    /// Whether later tokens of a thought weigh less, so that their order can be recovered.
    pub ordered: bool,
    /// The share of examples that are fed the model's own mixtures.
    pub scheduled_sampling: f32,
    /// The most thoughts of inference.
    pub thoughts: usize,
    /// Texts around question and thoughts.
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

/// The text before an answer, and after it.
const ANSWER_BOX: [&str; 2] = ["\\boxed{", "}"];
/// How the steps of a solution begin.
const STEP_START: &str = "<<";

/// The texts of the family in a vocabulary. What it cannot write becomes a token of its own, and so
/// does an end marker whose first token also begins a step: thinking would end there.
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
    /// Ends an answer.
    pub eos: u32,
    /// Tokens of a group.
    pub compression: usize,
    /// The share of examples that are fed the model's own mixtures.
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

/// A reasoner with its gradients.
#[derive(Debug)]
pub struct LatentSftTrainStep {
    /// The decoder and its language-model head.
    pub model: TrainableDecoder,
    /// Whether a later token of a group weighs less, so that a thought tells their order.
    pub ordered: bool,
    cache: Option<Cache>,
}

/// Mean losses of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatentSftLosses {
    /// Cross entropy per token of end markers and answers, in nats.
    pub tokens: f64,
    /// Divergence of the head's distribution from the next group's, per thought, in nats.
    pub thoughts: f64,
}

/// The tokens that a batch's outputs predict. One that predicts a group has a row for each of its
/// tokens: the cross entropy with a distribution is the weighted sum of those with its tokens.
#[derive(Default)]
struct SoftTargets {
    /// Per row: the output that predicts it, the token, and its weight in the loss.
    outputs: Vec<usize>,
    tokens: Vec<u32>,
    weights: Vec<f32>,
    /// Rows of groups; those of completions follow.
    group_rows: usize,
    /// The mean entropy of the groups' distributions, the least that their cross entropy can be.
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

/// The entropy of a group's distribution, in nats; a token may occur twice in it.
fn entropy(group: &[u32], shares: &[f32]) -> f64 {
    let mut probabilities: BTreeMap<u32, f64> = BTreeMap::new();
    for (&token, &share) in group.iter().zip(shares) {
        *probabilities.entry(token).or_default() += f64::from(share);
    }
    -probabilities.values().map(|p| p * p.ln()).sum::<f64>()
}

impl LatentSftTrainStep {
    /// A step over this model.
    pub fn new(model: TrainableDecoder, ordered: bool) -> Self {
        Self { model, ordered, cache: None }
    }

    /// Adds the gradients of a batch's loss to all parameters; returns its parts.
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
