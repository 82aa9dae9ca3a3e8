//! Forward and backward of one batch of latent reasoning.
//!
//! ```text
//! prompt ──> thought 1 ──> … ──> thought T ──> completion ──> cross entropy of its tokens
//!               └─ auxiliary losses: digits of step 1's result, its tokens
//! ```
//!
//! Each arrow is a segment: a forward pass of the decoder over some positions of some examples,
//! which attends to earlier segments. `forward` runs the segments; `backward` visits them in
//! reverse order, so gradients flow through every thought (backpropagation through time). An
//! example without thoughts is a single segment. Examples of different lengths are packed without
//! padding.
//!
//! Methods differ in their examples and auxiliary losses: COCONUT may have a [`DigitHead`], CODI
//! has a [`Distillation`] from teacher to student, SIM-CoT a [`StepDecoder`].

mod backward;
mod forward;

use model::{Cache, Parameter, TrainableDecoder, TrainableHead};
use record::Losses;
use tensor::{Device, DeviceError, Tensor};

use crate::digit_head::DigitHead;
use crate::dropout::DropoutConfig;
use crate::methods::TrainStep;
use crate::methods::codi::Distillation;
use crate::methods::simcot::StepDecoder;
use crate::rows::reuse_cache;
use crate::tokenized_example::TokenizedExample;
pub(crate) use backward::StepLoss;
use forward::LatentForward;
pub(crate) use forward::{ComparedRow, ForwardSegment, ThoughtStep};

/// Mean losses of a batch, unweighted. Losses that the method does not have are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatentLosses {
    /// Cross entropy per completion token, in nats.
    pub tokens: f64,
    /// Cross entropy per completion token of the teachers in self-distillation, in nats.
    pub teacher: Option<f64>,
    /// Distance between the hidden states of student and teacher.
    pub distill: Option<f64>,
    /// Cross entropy per step token of the step decoder, in nats.
    pub steps: Option<f64>,
    /// Cross entropy per digit of the steps' results, in nats.
    pub digits: Option<f64>,
    /// Cross entropy per digit of the steps' operands and operators, in nats.
    pub operands: Option<f64>,
}

impl LatentLosses {
    /// The losses of the method by their names in the log.
    pub fn named(&self) -> Losses {
        Losses::new(self.tokens)
            .with("teacher", self.teacher)
            .with("distill", self.distill)
            .with("steps", self.steps)
            .with("digits", self.digits)
            .with("operands", self.operands)
    }
}

/// Losses in addition to the cross entropy of completions.
#[derive(Debug, Default)]
pub struct AuxiliaryLosses {
    /// Predicts step results from thoughts.
    pub digit_head: Option<DigitHead>,
    /// Predicts the steps' operands and operators from thoughts: three numbers per step.
    pub operand_head: Option<DigitHead>,
    /// Pulls the students' hidden states towards the teachers' (CODI).
    pub distillation: Option<Distillation>,
    /// Decodes steps from thoughts (SIM-CoT).
    pub step_decoder: Option<StepDecoder>,
}

/// A trainable reasoner with sequential thoughts, and its losses.
#[derive(Debug)]
pub struct LatentTrainStep {
    /// The decoder and its language-model head.
    pub model: TrainableDecoder,
    /// Maps hidden states to thoughts.
    pub head: TrainableHead,
    /// Losses in addition to the cross entropy of completions.
    pub auxiliary: AuxiliaryLosses,
    cache: Option<Cache>,
}

impl LatentTrainStep {
    /// A train step on these modules.
    pub fn new(model: TrainableDecoder, head: TrainableHead, auxiliary: AuxiliaryLosses) -> Self {
        Self { model, head, auxiliary, cache: None }
    }

    /// Adds the gradients of a batch's loss to all parameters; returns its terms.
    pub fn batch_losses(
        &mut self,
        examples: &[TokenizedExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<LatentLosses, DeviceError> {
        let slots = examples.iter().map(|example| Cache::slots_for(example.len())).sum();
        let mut cache = reuse_cache(self.cache.take(), &self.model.decoder, slots)?;
        let forward = LatentForward::run(self, &mut cache, examples, dropout)?;
        let losses = forward.backward(self, &cache, examples);
        self.cache = Some(cache);
        self.model.collect_gradients()?;
        losses
    }

    /// The thoughts of every example, in order, (thoughts, width) each. If the step decoder uses
    /// it, the thought after the last one is included.
    pub fn thoughts(&mut self, examples: &[TokenizedExample]) -> Result<Vec<Tensor>, DeviceError> {
        let slots = examples.iter().map(|example| Cache::slots_for(example.len())).sum();
        let mut cache = reuse_cache(self.cache.take(), &self.model.decoder, slots)?;
        let forward = LatentForward::run(self, &mut cache, examples, None)?;
        self.cache = Some(cache);
        forward.thoughts_by_example(examples.len())
    }

    fn device(&self) -> Device {
        self.model.decoder.device().clone()
    }

    /// Whether to compute the thought after the last one, which is not an input.
    fn makes_unfed_thought(&self) -> bool {
        self.auxiliary.step_decoder.as_ref().is_some_and(|decoder| decoder.reads_unfed_thought)
    }
}

impl TrainStep for LatentTrainStep {
    type Example = TokenizedExample;

    fn accumulate_gradients(
        &mut self,
        examples: &[TokenizedExample],
        dropout: Option<DropoutConfig>,
    ) -> Result<Losses, DeviceError> {
        Ok(self.batch_losses(examples, dropout)?.named())
    }

    fn model(&self) -> &TrainableDecoder {
        &self.model
    }

    fn head_parameters(&self) -> Vec<&Parameter> {
        self.head.parameters().collect()
    }

    fn parameters(&self) -> Vec<&Parameter> {
        let AuxiliaryLosses { digit_head, operand_head, step_decoder, .. } = &self.auxiliary;
        let digits = digit_head.iter().chain(operand_head).flat_map(DigitHead::parameters);
        let steps = step_decoder.iter().flat_map(|decoder| decoder.decoder.parameters());
        self.model.parameters().chain(self.head.parameters()).chain(digits).chain(steps).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let AuxiliaryLosses { digit_head, operand_head, step_decoder, .. } = &mut self.auxiliary;
        let digits = digit_head.iter_mut().chain(operand_head).flat_map(DigitHead::parameters_mut);
        let steps = step_decoder.iter_mut().flat_map(|decoder| decoder.decoder.parameters_mut());
        let own = self.model.parameters_mut().chain(self.head.parameters_mut());
        own.chain(digits).chain(steps).collect()
    }

    fn sync_weights(&mut self) -> Result<(), DeviceError> {
        let device = self.device();
        self.model.sync_weights()?;
        self.head.sync_weights(&device)?;
        let AuxiliaryLosses { digit_head, operand_head, step_decoder, .. } = &mut self.auxiliary;
        digit_head
            .iter_mut()
            .chain(operand_head)
            .try_for_each(|head| head.sync_weights(&device))?;
        step_decoder.iter_mut().try_for_each(|decoder| decoder.decoder.sync_weights())
    }
}
