//! A reasoner like Render-of-Thought: a fixed number of thoughts, each predicted by a projection
//! head.
//!
//! ```text
//! question <img_begin>  [a b] [c d] [e] [end] …  <img_end> ### 18 [eos]
//!                       └─ slots: sums of embeddings / sqrt(count)
//! ```
//!
//! The steps' tokens fill the slots from the left, several tokens per slot; remaining slots hold
//! the end marker. At the position before a slot the head predicts the slot's vector (no gradient
//! flows into the target); after the last slot the model predicts the answer. The inputs are the
//! slots' vectors or, for a fraction of the examples, the head's predictions from a first forward
//! pass (scheduled sampling), so that the model learns to continue from its own thoughts.
//!
//! In the published method the targets are a vision encoder's features of the chain of thought
//! rendered as an image; here they are sums of the model's own embeddings.

use std::num::NonZeroUsize;
use std::sync::Arc;

use data::TrainExample;
use engine::family::{ROT_HEAD, ROT_MARKERS, ROT_PROMPT};
use model::{Cache, ModelError, Parameter, Tokenizer, TrainableDecoder, TrainableSwiGlu};
use record::Losses;
use serde::Serialize;
use serde_json::{Value, json};
use tensor::ops::{self, GaussianLoss};
use tensor::{DeviceError, Tensor};

use super::compressed::{
    CompressedBatch, CompressedExample, CompressedPass, FactorNorm, FedThoughts, GroupFactors, mean,
};
use super::layout::FamilyLayout;
use super::{
    ExampleEncoder, ExamplePlace, ExampleRows, MethodEntry, OptionCheck, TrainStep, TrainingMethod,
    guarded,
};
use crate::dropout::DropoutConfig;
use crate::error::TrainError;
use crate::model_dir::{self, ModelUsage};
use crate::options::MethodOptions;
use crate::reasoner::TaskSetup;
use crate::rows::{assemble_rows, reuse_cache};
use crate::trainer::TrainTask;

/// Render-of-Thought's entry.
pub const METHOD: MethodEntry = MethodEntry {
    name: "rot",
    about: "Compressed steps in a fixed number of slots; a SwiGLU head predicts the next one",
    configure: |options, tokenizer| Ok(Box::new(RotMethod::new(options, tokenizer)?)),
};

/// Render-of-Thought's settings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "method", rename = "rot")]
pub struct RotMethod {
    /// Number of thoughts of every example.
    pub thoughts: usize,
    /// Tokens per thought; more if the chain would not fit.
    pub compression: usize,
    /// Whether later tokens of a thought have smaller weights, so that their order can be
    /// recovered.
    pub ordered: bool,
    /// Weight of the regression loss.
    pub gamma: f32,
    /// Fraction of examples whose input thoughts are predicted by the head.
    pub scheduled_sampling: f32,
    /// Inner width of the projection head.
    pub latent_head: usize,
    /// Texts around the question and the thoughts.
    pub layout: FamilyLayout,
}

impl RotMethod {
    fn new(options: &MethodOptions, tokenizer: &Tokenizer) -> Result<Self, TrainError> {
        OptionCheck::latent(METHOD.name, options)?.no_step_decoder()?.no_blocks()?;
        Ok(Self {
            thoughts: options.thoughts.map_or(32, NonZeroUsize::get),
            compression: options.compression.map_or(2, NonZeroUsize::get),
            ordered: options.ordered,
            gamma: options.gamma,
            scheduled_sampling: options.scheduled_sampling,
            latent_head: options.latent_head.get(),
            layout: layout(tokenizer)?,
        })
    }
}

impl TrainingMethod for RotMethod {
    fn usage(&self) -> ModelUsage {
        self.layout.usage(METHOD.name, self.thoughts)
    }

    fn settings(&self) -> Value {
        json!(self)
    }

    fn task(&self, setup: TaskSetup) -> Result<Box<dyn TrainTask>, TrainError> {
        let source = setup.head_source()?;
        let hidden = source.rows(&format!("{}.weight", ROT_HEAD.up));
        let width = setup.model.decoder.decoder.config().width;
        let shape = (width, hidden.unwrap_or(self.latent_head));
        let head = TrainableSwiGlu::load(&setup.device, &source, &ROT_HEAD, shape)?;
        let std = setup.model.decoder.embedding_std()?;
        let encoder = RotEncoder {
            markers: model_dir::token_ids(&setup.model.tokenizer, ROT_MARKERS)?,
            tokenizer: setup.tokenizer(),
            layout: self.layout.clone(),
            eos: setup.model.markers.eos,
            thoughts: self.thoughts,
            compression: self.compression,
            scheduled_sampling: self.scheduled_sampling,
        };
        setup.task(encoder, |model| {
            let step = RotTrainStep::new(model, head, std);
            RotTrainStep { ordered: self.ordered, loss_weight: self.gamma, ..step }
        })
    }
}

/// The family's texts for a vocabulary; its markers become added tokens.
pub fn layout(tokenizer: &Tokenizer) -> Result<FamilyLayout, ModelError> {
    let mut layout = FamilyLayout::with_prompt(tokenizer, ROT_PROMPT)?;
    let missing = ROT_MARKERS.into_iter().filter(|text| tokenizer.token_to_id(text).is_none());
    layout.added_tokens = missing.map(str::to_owned).collect();
    Ok(layout)
}

/// Tokenizes examples and fills their slots.
#[derive(Clone)]
pub struct RotEncoder {
    /// Tokenizes text.
    pub tokenizer: Arc<Tokenizer>,
    /// Texts of the prompt.
    pub layout: FamilyLayout,
    /// The tokens before and after the thoughts.
    pub markers: [u32; 2],
    /// End-of-text token.
    pub eos: u32,
    /// Number of slots of every example.
    pub thoughts: usize,
    /// Tokens per slot; more if the chain would not fit.
    pub compression: usize,
    /// Fraction of examples whose input thoughts are predicted by the head.
    pub scheduled_sampling: f32,
}

impl ExampleEncoder for RotEncoder {
    type Encoded = CompressedExample;

    fn encode(
        &self,
        example: &TrainExample,
        place: ExamplePlace,
    ) -> Result<Vec<CompressedExample>, ModelError> {
        let example = &guarded(&self.tokenizer, example);
        let [begin, end] = self.markers;
        let mut prompt = self.layout.prompt(&self.tokenizer, &example.question)?;
        prompt.push(begin);
        let steps = self.tokenizer.encode(&example.steps.join("\n"))?;
        let mut completion = vec![end];
        completion.extend(self.tokenizer.encode(&format!("### {}", example.answer))?);
        completion.push(self.eos);
        Ok(vec![CompressedExample {
            id: place.id as u32,
            prompt,
            groups: slots(&steps, self.thoughts, self.compression, end),
            completion,
            loss_start: 1, // inference supplies the end marker
            feeds_thoughts: place.uniforms[0] < f64::from(self.scheduled_sampling),
        }])
    }

    fn rows(&self, encoded: &CompressedExample) -> ExampleRows {
        encoded.sequence().rows(encoded.targets().len())
    }
}

/// The tokens of each of `count` slots.
fn slots(tokens: &[u32], count: usize, compression: usize, blank: u32) -> Vec<Vec<u32>> {
    let each = compression.max(tokens.len().div_ceil(count));
    let mut slots: Vec<Vec<u32>> = tokens.chunks(each).map(<[u32]>::to_vec).collect();
    slots.resize(count, vec![blank]);
    slots
}

/// A trainable Render-of-Thought reasoner and its losses.
#[derive(Debug)]
pub struct RotTrainStep {
    /// The decoder and its language-model head.
    pub model: TrainableDecoder,
    /// Head that predicts the next slot.
    pub head: TrainableSwiGlu,
    /// Standard deviation of the embeddings, the unit of the regression loss.
    pub embedding_std: f32,
    /// Weight of the regression loss.
    pub loss_weight: f32,
    /// Whether later tokens of a slot have smaller weights, so that their order can be recovered.
    pub ordered: bool,
    cache: Option<Cache>,
}

/// Mean losses of a batch, unweighted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RotLosses {
    /// Cross entropy per answer token, in nats.
    pub tokens: f64,
    /// Squared error per element of a slot's vector, in units of the embeddings' variance.
    pub slots: f64,
}

impl RotTrainStep {
    /// A train step on these modules.
    pub fn new(model: TrainableDecoder, head: TrainableSwiGlu, embedding_std: f32) -> Self {
        Self { model, head, embedding_std, loss_weight: 1.0, ordered: false, cache: None }
    }

    /// Adds the gradients of a batch's loss to all parameters; returns its terms.
    pub fn batch_losses(
        &mut self,
        examples: &[CompressedExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<RotLosses, DeviceError> {
        let device = self.model.decoder.device().clone();
        let batch = CompressedBatch {
            sequences: examples.iter().map(CompressedExample::sequence).collect(),
            factors: GroupFactors { norm: FactorNorm::Squares, ordered: self.ordered },
            dropout,
        };
        let mut cache = reuse_cache(self.cache.take(), &self.model.decoder, batch.slots())?;
        let mut pass = batch.forward(&self.model, &mut cache, None)?;
        if examples.iter().any(|example| example.feeds_thoughts) {
            let (thoughts, _) = self.head.forward(&device, pass.before_groups(&self.model)?)?;
            cache.clear();
            let thoughts = FedThoughts::new(thoughts, examples);
            pass = batch.forward(&self.model, &mut cache, Some(thoughts))?;
        }
        let (tokens, dtokens, outputs) = self.token_losses(&pass, examples)?;
        let (slots, dslots) = self.slot_losses(&pass)?;
        let parts = vec![(dtokens, outputs), (dslots, pass.rows.before_groups.clone())];
        let dhidden = assemble_rows(&device, parts, &pass.hidden)?;
        pass.backward(&mut self.model, &cache, &dhidden)?;
        self.cache = Some(cache);
        Ok(RotLosses { tokens: mean(tokens)?, slots: mean(slots)? })
    }

    /// The losses of all answer tokens, the gradients of the hidden states that predict them, and
    /// the output rows of these states.
    fn token_losses(
        &mut self,
        pass: &CompressedPass,
        examples: &[CompressedExample],
    ) -> Result<(Tensor, Tensor, Vec<usize>), DeviceError> {
        let device = self.model.decoder.device().clone();
        let targets: Vec<u32> = examples.iter().flat_map(|of| of.targets()).copied().collect();
        let outputs = examples.iter().zip(&pass.rows.before_tokens);
        let outputs = outputs.flat_map(|(of, outputs)| &outputs[of.loss_start..]);
        let outputs: Vec<usize> = outputs.copied().collect();
        let predicting = ops::select(&device, [&pass.hidden], &outputs)?;
        let weights = vec![1.0 / targets.len() as f32; targets.len()];
        let (losses, dpredicting) = self.model.cross_entropy(&predicting, targets, &weights)?;
        Ok((losses, dpredicting, outputs))
    }

    /// The losses of all slots, and the gradients of the hidden states before them.
    fn slot_losses(&mut self, pass: &CompressedPass) -> Result<(Tensor, Tensor), DeviceError> {
        let device = self.model.decoder.device().clone();
        let before = pass.before_groups(&self.model)?;
        let (mut predicted, activations) = self.head.forward(&device, before)?;
        let mut target = pass.groups.vectors.clone();
        let unit = 1.0 / self.embedding_std;
        ops::scale(&device, &mut predicted, unit)?;
        ops::scale(&device, &mut target, unit)?;
        // A Gaussian loss without noise is the squared error of the mean.
        let slots = target.rows();
        let width = target.cols();
        let zeros = Tensor::zeros_on(&device, slots, width)?;
        let weight = self.loss_weight / slots as f32;
        let loss = GaussianLoss {
            mean: &predicted,
            log_std: &zeros,
            noise: &zeros,
            target: &target,
            weight,
        };
        let mut dpredicted = Tensor::default();
        let mut unused = Tensor::default();
        let losses = ops::gaussian_loss(&device, loss, &mut dpredicted, &mut unused)?;
        ops::scale(&device, &mut dpredicted, unit)?;
        Ok((losses, self.head.backward(&device, &activations, &dpredicted)?))
    }
}

impl TrainStep for RotTrainStep {
    type Example = CompressedExample;

    fn accumulate_gradients(
        &mut self,
        examples: &[CompressedExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<Losses, DeviceError> {
        let RotLosses { tokens, slots } = self.batch_losses(examples, dropout)?;
        Ok(Losses::new(tokens).with("latent", slots))
    }

    fn model(&self) -> &TrainableDecoder {
        &self.model
    }

    fn head_parameters(&self) -> Vec<&Parameter> {
        self.head.parameters().collect()
    }

    fn parameters(&self) -> Vec<&Parameter> {
        self.model.parameters().chain(self.head.parameters()).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.model.parameters_mut().chain(self.head.parameters_mut()).collect()
    }

    fn sync_weights(&mut self) -> Result<(), DeviceError> {
        let device = self.model.decoder.device().clone();
        self.model.sync_weights()?;
        self.head.sync_weights(&device)
    }
}

#[cfg(test)]
mod tests {
    use super::slots;

    #[test]
    fn a_chain_fills_the_slots_from_the_left() {
        assert_eq!(slots(&[1, 2, 3], 3, 2, 9), [vec![1, 2], vec![3], vec![9]]);
        assert_eq!(slots(&[1, 2, 3, 4, 5], 2, 1, 9), [vec![1, 2, 3], vec![4, 5]]);
        assert_eq!(slots(&[], 2, 1, 9), [[9], [9]]);
    }
}
