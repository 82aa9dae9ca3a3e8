//! The backward pass of a batch, segment by segment in reverse order.

use std::collections::BTreeMap;

use model::Cache;
use tensor::ops::{self, KvGrads};
use tensor::{DeviceError, Tensor};

use super::forward::{ForwardSegment, LatentForward, ThoughtStep};
use super::{AuxiliaryLosses, LatentLosses, LatentTrainStep};
use crate::digit_head::{DIGITS, DigitHead, ThoughtTarget};
use crate::rows::{assemble_rows, scatter_add};
use crate::tokenized_example::{DistillRole, TokenizedExample};

impl LatentForward {
    pub(super) fn backward(
        mut self,
        step: &mut LatentTrainStep,
        cache: &Cache,
        examples: &[TokenizedExample],
    ) -> Result<LatentLosses, DeviceError> {
        let device = step.device();
        let width = self.prompts.hidden.cols();
        let mut counts = LossCounts::new(examples);
        for (t, of) in self.thoughts.iter().enumerate() {
            let targets = of.targets(examples, t);
            counts.digits += targets.results.len() * DIGITS;
            counts.operand_digits += targets.operands.len() * DIGITS;
        }
        let dkv = cache.gradients(&device)?;
        let losses = LossSums::default();
        let mut context = BackwardContext { step, cache, dkv, counts, losses };
        let dcompared = self.add_distillation(&mut context)?;
        let mut dsteps = self.add_step_losses(&mut context, examples)?;

        let Self { prompts, mut thoughts, mut intermediate, completions, has_unfed_thought } = self;
        let unfed = has_unfed_thought.then(|| thoughts.pop()).flatten();
        let dunfed = match (unfed, dsteps.len() > thoughts.len()) {
            (Some(of), true) => {
                let dvectors = dsteps.pop().unwrap_or_default();
                Some(context.step.head.backward(&device, &of.activations, dvectors)?)
            }
            _ => None,
        };
        // Gradients of the last thoughts, concatenated over thought steps.
        let inner = HiddenGradients { thoughts: dunfed, compared: dcompared };
        let dlast = completions.map(|segment| segment.backward(&mut context, inner)).transpose()?;
        let dlast = dlast.unwrap_or_default();
        let mut dlast_rows: usize = thoughts.iter().map(|of| of.last.len()).sum();
        // Gradients of the hidden states that became the thoughts of the next step.
        let mut dhidden: Option<Tensor> = None;
        for (t, of) in thoughts.into_iter().enumerate().rev() {
            let mut dvectors = match dsteps.pop() {
                Some(dvectors) => dvectors,
                None => Tensor::zeros_on(&device, of.examples.len(), width)?,
            };
            if !of.last.is_empty() {
                let rows: Vec<usize> = (dlast_rows - of.last.len()..dlast_rows).collect();
                let own = ops::select(&device, [&dlast], &rows)?;
                scatter_add(&device, &own, &of.last, &mut dvectors)?;
                dlast_rows -= of.last.len();
            }
            if let Some(segment) =
                if of.intermediate.is_empty() { None } else { intermediate.pop() }
            {
                let dfed = segment.backward(&mut context, dhidden.take().into())?;
                scatter_add(&device, &dfed, &of.intermediate, &mut dvectors)?;
            }
            of.add_digit_loss(&mut context, examples, t, &mut dvectors)?;
            dhidden = Some(context.step.head.backward(&device, &of.activations, dvectors)?);
        }
        prompts.backward(&mut context, dhidden.into())?;
        context.losses.means(context.counts)
    }

    /// Adds the gradients of self-distillation to the segment of the students' completions; returns
    /// those of its last hidden states with their output rows.
    fn add_distillation(
        &mut self,
        context: &mut BackwardContext<'_>,
    ) -> Result<Option<(Tensor, Vec<usize>)>, DeviceError> {
        let device = context.step.device();
        let (Some(distillation), Some(students)) =
            (&context.step.auxiliary.distillation, &mut self.completions)
        else {
            return Ok(None);
        };
        let distilled = distillation.distill(&device, &self.prompts, students)?;
        let Some(distilled) = distilled else { return Ok(None) };
        context.losses.distill = Some(distilled.losses);
        Ok(Some((distilled.dhidden, distilled.outputs)))
    }

    /// Accumulates the gradients of the step decoder; returns those of the thoughts per thought
    /// step. Empty without a step decoder.
    fn add_step_losses(
        &self,
        context: &mut BackwardContext<'_>,
        examples: &[TokenizedExample],
    ) -> Result<Vec<Tensor>, DeviceError> {
        let LatentTrainStep { model, auxiliary, .. } = &mut *context.step;
        let Some(decoder) = &mut auxiliary.step_decoder else { return Ok(Vec::new()) };
        let Some(read) = decoder.accumulate_gradients(model, &self.thoughts, examples)? else {
            return Ok(Vec::new());
        };
        context.losses.steps = Some(read.loss);
        Ok(read.dthoughts)
    }
}

/// Shared state of the backward passes of a batch's segments.
struct BackwardContext<'a> {
    step: &'a mut LatentTrainStep,
    cache: &'a Cache,
    dkv: KvGrads,
    counts: LossCounts,
    losses: LossSums,
}

/// The number of terms of each mean loss.
struct LossCounts {
    /// Number of tokens with a loss, by role.
    tokens: BTreeMap<DistillRole, usize>,
    /// Number of digits of results.
    digits: usize,
    /// Number of digits of operands and operators.
    operand_digits: usize,
}

impl LossCounts {
    /// Counts the tokens; digits are counted later.
    fn new(examples: &[TokenizedExample]) -> Self {
        let mut tokens = BTreeMap::new();
        for example in examples {
            *tokens.entry(example.role).or_default() += example.loss_tokens();
        }
        Self { tokens, digits: 0, operand_digits: 0 }
    }

    /// The weight of one token's loss.
    fn token_weight(&self, role: DistillRole) -> f32 {
        1.0 / self.tokens.get(&role).copied().unwrap_or(0).max(1) as f32
    }
}

/// Gradients of a segment's hidden states from other losses than those of its tokens.
#[derive(Default)]
struct HiddenGradients {
    /// Of the hidden states that became thoughts.
    thoughts: Option<Tensor>,
    /// Of the hidden states compared in self-distillation, with their output rows.
    compared: Option<(Tensor, Vec<usize>)>,
}

impl From<Option<Tensor>> for HiddenGradients {
    fn from(thoughts: Option<Tensor>) -> Self {
        Self { thoughts, compared: None }
    }
}

/// The numbers that digit heads predict from one thought step; rows index into its examples.
#[derive(Default)]
struct StepTargets {
    result_rows: Vec<usize>,
    results: Vec<i64>,
    operand_rows: Vec<usize>,
    operands: Vec<i64>, // three per row
}

impl ThoughtStep {
    /// The targets of thought `t` of its examples.
    fn targets(&self, examples: &[TokenizedExample], t: usize) -> StepTargets {
        let mut targets = StepTargets::default();
        for (row, &example) in self.examples.iter().enumerate() {
            match examples[example].thought_targets.get(t) {
                Some(Some(ThoughtTarget::Result(result))) => {
                    targets.result_rows.push(row);
                    targets.results.push(*result);
                }
                Some(Some(ThoughtTarget::Operands(operands))) => {
                    targets.operand_rows.push(row);
                    targets.operands.extend(operands);
                }
                _ => {}
            }
        }
        targets
    }

    /// Adds the gradients of the digit losses, if the model has digit heads.
    fn add_digit_loss(
        &self,
        context: &mut BackwardContext<'_>,
        examples: &[TokenizedExample],
        t: usize,
        dvectors: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let device = context.step.device();
        let StepTargets { result_rows, results, operand_rows, operands } =
            self.targets(examples, t);
        let AuxiliaryLosses { digit_head, operand_head, .. } = &mut context.step.auxiliary;
        let LossSums { digits, operand_digits, .. } = &mut context.losses;
        let mut add = |head: &mut Option<DigitHead>,
                       rows: &[usize],
                       numbers: &[i64],
                       count: usize,
                       sums: &mut Vec<Tensor>| {
            let Some(head) = head else { return Ok(()) };
            if rows.is_empty() {
                return Ok(());
            }
            let x = ops::select(&device, [&self.vectors], rows)?;
            let loss = head.accumulate_gradients(&device, &x, numbers, count)?;
            sums.push(loss.losses);
            scatter_add(&device, &loss.gradient, rows, dvectors)
        };
        let counts = &context.counts;
        add(digit_head, &result_rows, &results, counts.digits, digits)?;
        add(operand_head, &operand_rows, &operands, counts.operand_digits, operand_digits)
    }
}

impl ForwardSegment {
    /// Accumulates the gradients of this segment; returns those of its input thoughts.
    fn backward(
        self,
        context: &mut BackwardContext<'_>,
        inner: HiddenGradients,
    ) -> Result<Tensor, DeviceError> {
        let device = context.step.device();
        let model = &mut context.step.model;
        let Self { rows, segment, hidden } = self;
        let mut parts = Vec::new();
        if !rows.logit_outputs.is_empty() {
            let predicting = ops::select(&device, [&hidden], &rows.logit_outputs)?;
            let weights: Vec<f32> =
                rows.roles.iter().map(|&role| context.counts.token_weight(role)).collect();
            let (losses, dpredicting) = model.cross_entropy(&predicting, rows.targets, &weights)?;
            context.losses.tokens.push((losses, rows.roles));
            parts.push((dpredicting, rows.logit_outputs));
        }
        if let Some(dthoughts) = inner.thoughts {
            parts.push((dthoughts, rows.thought_outputs));
        }
        parts.extend(inner.compared);
        let dhidden = assemble_rows(&device, parts, &hidden)?;
        let dx = model.backward(context.cache, &mut context.dkv, segment, &dhidden)?;
        rows.input.accumulate_embedding_gradients(model, &dx)
    }
}

/// Losses per token and digit. They stay on the device until the end of the batch, so that segments
/// are launched without host synchronization.
#[derive(Default)]
struct LossSums {
    tokens: Vec<(Tensor, Vec<DistillRole>)>,
    digits: Vec<Tensor>,
    operand_digits: Vec<Tensor>,
    distill: Option<Tensor>, // (layers, 1)
    steps: Option<StepLoss>,
}

/// The losses of a step decoder's tokens, and the weight of each in the mean.
pub(crate) struct StepLoss {
    pub(crate) losses: Tensor, // (tokens, 1)
    pub(crate) weights: Vec<f32>,
}

impl LossSums {
    fn means(self, counts: LossCounts) -> Result<LatentLosses, DeviceError> {
        let mut tokens: BTreeMap<DistillRole, f64> = BTreeMap::new();
        for (losses, roles) in self.tokens {
            let losses = losses.to_host()?;
            for (loss, role) in losses.data().iter().zip(roles) {
                *tokens.entry(role).or_default() += f64::from(*loss);
            }
        }
        let mean = |role: DistillRole| {
            let count = counts.tokens.get(&role).copied()?;
            Some(tokens.get(&role).copied().unwrap_or(0.0) / count.max(1) as f64)
        };
        let digit_mean = |parts: &[Tensor], count: usize| -> Result<_, DeviceError> {
            let total = parts.iter().map(sum).sum::<Result<f64, _>>()?;
            Ok((count > 0 && !parts.is_empty()).then(|| total / count as f64))
        };
        let digits = digit_mean(&self.digits, counts.digits)?;
        let operands = digit_mean(&self.operand_digits, counts.operand_digits)?;
        let distill = match &self.distill {
            Some(of) => Some(sum(of)? / of.rows().max(1) as f64),
            None => None,
        };
        let steps = self.steps.map(StepLoss::mean).transpose()?;
        Ok(LatentLosses {
            tokens: mean(DistillRole::Student).unwrap_or(0.0),
            teacher: mean(DistillRole::Teacher),
            distill,
            steps,
            digits,
            operands,
        })
    }
}

impl StepLoss {
    fn mean(self) -> Result<f64, DeviceError> {
        let losses = self.losses.to_host()?;
        let terms = losses.data().iter().zip(&self.weights);
        Ok(terms.map(|(loss, weight)| f64::from(*loss) * f64::from(*weight)).sum())
    }
}

fn sum(losses: &Tensor) -> Result<f64, DeviceError> {
    Ok(losses.clone().to_host()?.data().iter().map(|&x| f64::from(x)).sum())
}
