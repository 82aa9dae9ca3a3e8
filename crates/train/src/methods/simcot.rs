//! SIM-CoT's step decoder: an auxiliary language model that decodes each step of the solution from
//! the thoughts that replace it. It is used only during training and is not part of the saved
//! model.
//!
//! ```text
//! [thoughts of slot k] step k's tokens  ──decoder──>  cross entropy of step k's tokens and eos
//! ```
//!
//! The decoder has separate weights; step tokens are embedded by the reasoner's table, as in the
//! published code. Further steps are appended to the last slot. The loss is averaged over a slot's
//! tokens, then over the slots that have tokens.

use model::{Cache, Sequence, TrainableDecoder};
use serde::Serialize;
use tensor::ops;
use tensor::{DeviceError, Tensor};

use crate::error::TrainError;
use crate::latent_step::{StepLoss, ThoughtStep};
use crate::reasoner::TaskSetup;
use crate::rows::{PassRows, RowInput, assemble_rows, reuse_cache, scatter_add};
use crate::tokenized_example::TokenizedExample;

/// The settings of SIM-CoT's loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepDecoderSpec {
    /// Weight of the loss; 0 disables it.
    pub loss_weight: f32,
    /// Number of thoughts from which a step is decoded.
    pub thoughts_per_step: usize,
}

impl StepDecoderSpec {
    /// Disables the loss.
    pub const NONE: Self = Self { loss_weight: 0.0, thoughts_per_step: 1 };

    /// The step decoder, initialized as a copy of the model; `None` if its loss is disabled.
    pub(crate) fn load(self, setup: &TaskSetup) -> Result<Option<StepDecoder>, TrainError> {
        if self.loss_weight == 0.0 {
            return Ok(None);
        }
        let model = &setup.model;
        let mut copy = model.initial.load_copy(&setup.device, model.decoder.decoder.config())?;
        copy.set_recompute(model.decoder.recomputes());
        let mut decoder = StepDecoder::new(copy, self.thoughts_per_step.max(1), model.markers.eos);
        decoder.loss_weight = self.loss_weight;
        Ok(Some(decoder))
    }
}

/// Decodes steps from thoughts.
#[derive(Debug)]
pub struct StepDecoder {
    /// The auxiliary decoder with its language-model head.
    pub decoder: TrainableDecoder,
    /// Number of thoughts from which a step is decoded: 1 in CODI, 2 in COCONUT.
    pub thoughts_per_step: usize,
    /// Whether to also decode from the thought after the last one, which is not an input (CODI).
    pub reads_unfed_thought: bool,
    /// The token that ends a step.
    pub eos: u32,
    /// The weight of the loss.
    pub loss_weight: f32,
    cache: Option<Cache>,
}

/// The result of [`StepDecoder::accumulate_gradients`].
pub(crate) struct StepGradients {
    pub(crate) loss: StepLoss,
    /// The gradients of the thoughts, (examples, width) per thought step.
    pub(crate) dthoughts: Vec<Tensor>,
}

/// A step to decode from its thoughts.
struct StepSequence {
    slot: usize,
    example: usize,
    /// Indices of the step's thoughts in the concatenation of all thought steps.
    thoughts: Vec<usize>,
    tokens: Vec<u32>,
}

impl StepDecoder {
    /// A step decoder with these weights; see the fields for the other parameters.
    pub fn new(decoder: TrainableDecoder, thoughts_per_step: usize, eos: u32) -> Self {
        Self {
            decoder,
            thoughts_per_step,
            reads_unfed_thought: thoughts_per_step == 1,
            eos,
            loss_weight: 1.0,
            cache: None,
        }
    }

    /// Accumulates the gradients of the decoder and of the reasoner's embeddings; returns those of
    /// the thoughts. `None` if no example has a step to decode.
    pub(crate) fn accumulate_gradients(
        &mut self,
        reasoner: &mut TrainableDecoder,
        thoughts: &[ThoughtStep],
        examples: &[TokenizedExample],
    ) -> Result<Option<StepGradients>, DeviceError> {
        let sequences = self.sequences(thoughts, examples);
        if sequences.is_empty() {
            return Ok(None);
        }
        let device = reasoner.decoder.device().clone();
        let slots =
            sequences.iter().map(|of| Cache::slots_for(of.thoughts.len() + of.tokens.len()));
        let mut cache = reuse_cache(self.cache.take(), &self.decoder.decoder, slots.sum())?;
        let (rows, targets) = self.rows(&mut cache, &sequences);
        let indices: Vec<usize> =
            sequences.iter().flat_map(|of| of.thoughts.iter().copied()).collect();
        let vectors = ops::select(&device, thoughts.iter().map(|of| &of.vectors), &indices)?;
        let x = rows.embed(&reasoner.decoder, Some(vectors))?;
        let (hidden, segment) = self.decoder.forward(&mut cache, &rows.pass, x, None)?;
        let means = token_weights(&sequences);
        let weights: Vec<f32> = means.iter().map(|mean| mean * self.loss_weight).collect();
        let (losses, dhidden) = self.decoder.cross_entropy(&hidden, targets, &weights)?;
        let dhidden = assemble_rows(&device, vec![(dhidden, (0..means.len()).collect())], &hidden)?;
        let mut dkv = cache.gradients(&device)?;
        let dx = self.decoder.backward(&cache, &mut dkv, segment, &dhidden)?;
        let dvectors = rows.accumulate_embedding_gradients(reasoner, &dx)?;
        self.cache = Some(cache);
        self.decoder.collect_gradients()?;
        let count = thoughts.iter().map(|of| of.vectors.rows()).sum();
        let mut all = Tensor::zeros_on(&device, count, dvectors.cols())?;
        scatter_add(&device, &dvectors, &indices, &mut all)?;
        let mut start = 0;
        let split = |of: &ThoughtStep| {
            let rows: Vec<usize> = (start..start + of.vectors.rows()).collect();
            start += rows.len();
            ops::select(&device, [&all], &rows)
        };
        let dthoughts = thoughts.iter().map(split).collect::<Result<_, _>>()?;
        Ok(Some(StepGradients { loss: StepLoss { losses, weights: means }, dthoughts }))
    }

    /// The steps to decode from the thoughts of a batch.
    fn sequences(
        &self,
        thoughts: &[ThoughtStep],
        examples: &[TokenizedExample],
    ) -> Vec<StepSequence> {
        let indices = thought_indices(thoughts, examples.len());
        let mut sequences = Vec::new();
        for (example, own) in indices.iter().enumerate() {
            let slots = own.len() / self.thoughts_per_step;
            let steps = &examples[example].step_tokens;
            for slot in 0..slots.min(steps.len()) {
                let tokens =
                    if slot + 1 == slots { steps[slot..].concat() } else { steps[slot].clone() };
                let first = slot * self.thoughts_per_step;
                let thoughts = own[first..first + self.thoughts_per_step].to_vec();
                if !tokens.is_empty() {
                    sequences.push(StepSequence { slot, example, thoughts, tokens });
                }
            }
        }
        sequences.sort_by_key(|of| (of.slot, of.example));
        sequences
    }

    /// The rows of the decoder's forward pass, and the target of each output row.
    fn rows(&self, cache: &mut Cache, sequences: &[StepSequence]) -> (PassRows, Vec<u32>) {
        let mut rows = PassRows::default();
        let mut targets = Vec::new();
        for of in sequences {
            let mut sequence = Sequence::default();
            for t in 1..=of.thoughts.len() {
                let is_last = t == of.thoughts.len();
                rows.push(cache, &mut sequence, RowInput::Vector, None, is_last);
            }
            for &token in &of.tokens {
                rows.push(cache, &mut sequence, RowInput::Token(token), None, true);
            }
            targets.extend(of.tokens.iter().copied().chain([self.eos]));
        }
        (rows, targets)
    }
}

/// Per example: the indices of its thoughts in the concatenation of all thought steps.
fn thought_indices(thoughts: &[ThoughtStep], examples: usize) -> Vec<Vec<usize>> {
    let mut indices = vec![Vec::new(); examples];
    let mut start = 0;
    for of in thoughts {
        for (at, &example) in of.examples.iter().enumerate() {
            indices[example].push(start + at);
        }
        start += of.vectors.rows();
    }
    indices
}

/// The weight of each target in the loss: 1 / (tokens of its slot * number of slots).
fn token_weights(sequences: &[StepSequence]) -> Vec<f32> {
    let targets = |of: &StepSequence| of.tokens.len() + 1;
    let last = sequences.iter().map(|of| of.slot).max().unwrap_or(0);
    let mut tokens = vec![0usize; last + 1];
    sequences.iter().for_each(|of| tokens[of.slot] += targets(of));
    let slots = tokens.iter().filter(|&&count| count > 0).count();
    let weight = |of: &StepSequence| {
        let each = 1.0 / (slots * tokens[of.slot]) as f32;
        std::iter::repeat_n(each, targets(of))
    };
    sequences.iter().flat_map(weight).collect()
}
