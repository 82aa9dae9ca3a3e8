//! The backward pass over sampled trajectories, segment by segment in reverse order.

use model::Cache;
use tensor::ops::{self, KvGrads};
use tensor::{DeviceError, Tensor};

use super::forward::{PolicyForward, PolicySegment, PolicyThoughts};
use super::{ActionValues, PolicyConfig, PolicyStep};
use crate::rows::scatter_add;

/// Maximum number of rows whose logits and gradients are in memory at once.
const LOGIT_ROWS: usize = 4096;

/// Shared state of the backward passes of a batch's segments.
struct PolicyBackwardContext<'a> {
    step: &'a mut PolicyStep,
    cache: &'a Cache,
    config: &'a PolicyConfig,
    weights: &'a ActionValues,
    dkv: KvGrads,
}

impl PolicyForward {
    /// Adds the gradients of `- sum of weight * log-probability`.
    pub(super) fn backward(
        self,
        step: &mut PolicyStep,
        cache: &Cache,
        config: &PolicyConfig,
        weights: &ActionValues,
    ) -> Result<(), DeviceError> {
        let device = step.device();
        let width = self.prompts.hidden.cols();
        let dkv = cache.gradients(&device)?;
        let mut context = PolicyBackwardContext { step, cache, config, weights, dkv };
        let (mut dprompts, danswers) = context.predicting(&self)?;
        let Self { prompts, thoughts, mut intermediate, answers, .. } = self;
        // Gradients of the last thoughts, concatenated over thought steps.
        let dlast = match answers.zip(danswers) {
            Some((segment, dhidden)) => context.segment(segment, &dhidden)?,
            None => Tensor::default(),
        };
        let mut dlast_rows: usize = thoughts.iter().map(|of| of.last.len()).sum();
        // Gradients of the hidden states that became the thoughts of the next step.
        let mut dnext: Option<Tensor> = None;
        for (t, of) in thoughts.into_iter().enumerate().rev() {
            let mut dfed = Tensor::zeros_on(&device, of.trajectories.len(), width)?;
            if !of.last.is_empty() {
                let rows: Vec<usize> = (dlast_rows - of.last.len()..dlast_rows).collect();
                let own = ops::select(&device, [&dlast], &rows)?;
                scatter_add(&device, &own, &of.last, &mut dfed)?;
                dlast_rows -= of.last.len();
            }
            let segment = if of.more.is_empty() { None } else { intermediate.pop() };
            if let Some((segment, dhidden)) = segment.zip(dnext.take()) {
                let dvectors = context.segment(segment, &dhidden)?;
                scatter_add(&device, &dvectors, &of.more, &mut dfed)?;
            }
            let dthoughts = context.thoughts(t, &of, dfed)?;
            let dhidden = context.step.head.backward(&device, &of.activations, dthoughts)?;
            match t {
                0 => scatter_add(&device, &dhidden, &of.made_from, &mut dprompts)?,
                _ => dnext = Some(dhidden),
            }
        }
        context.segment(prompts, &dprompts)?;
        Ok(())
    }
}

impl PolicyBackwardContext<'_> {
    /// The gradients of the hidden states that predict tokens, in the prompts' segment and in the
    /// answers' segment. Accumulates the gradients of the LM head.
    fn predicting(
        &mut self,
        forward: &PolicyForward,
    ) -> Result<(Tensor, Option<Tensor>), DeviceError> {
        let device = self.step.device();
        let zeros =
            |of: &PolicySegment| Tensor::zeros_on(&device, of.hidden.rows(), of.hidden.cols());
        let mut dprompts = zeros(&forward.prompts)?;
        let mut danswers = forward.answers.as_ref().map(zeros).transpose()?;
        let prompt_outputs = dprompts.rows();
        let weights = self.weights;
        let weight = |i: usize| {
            let row = &forward.predicting[i];
            weights.tokens[row.trajectory][row.at]
        };
        let (at_answer, at_prompt): (Vec<usize>, Vec<usize>) = (0..forward.predicting.len())
            .filter(|&i| weight(i) != 0.0)
            .partition(|&i| forward.predicting[i].output >= prompt_outputs);
        let at_prompt = (at_prompt, Some(&mut dprompts), 0);
        let at_answer = (at_answer, danswers.as_mut(), prompt_outputs);
        for (rows, to, first) in [at_prompt, at_answer] {
            let Some(to) = to else { continue };
            for rows in rows.chunks(LOGIT_ROWS) {
                let hidden = forward.predicting_hidden(self.step, self.config, rows)?;
                let targets = rows.iter().map(|&i| forward.targets[i]).collect();
                let weights: Vec<f32> = rows.iter().map(|&i| weight(i)).collect();
                let (_, mut dhidden) = self.step.model.cross_entropy(&hidden, targets, &weights)?;
                if self.config.temperature != 1.0 {
                    ops::scale(&device, &mut dhidden, 1.0 / self.config.temperature)?;
                }
                let outputs: Vec<usize> =
                    rows.iter().map(|&i| forward.predicting[i].output - first).collect();
                scatter_add(&device, &dhidden, &outputs, to)?;
            }
        }
        Ok((dprompts, danswers))
    }

    /// The gradients of computed thoughts, given those of the input thoughts. With a density, an
    /// input thought h is a constant, and - weight * log N(h; m, std^2) has the gradient
    /// - weight * (h - m) / std^2 with respect to the computed thought m.
    fn thoughts(&self, t: usize, of: &PolicyThoughts, dfed: Tensor) -> Result<Tensor, DeviceError> {
        let Some(noise) = &of.noise else { return Ok(dfed) };
        let std = self.config.noise_std();
        let factors: Vec<f32> = of
            .trajectories
            .iter()
            .map(|&n: &usize| -self.weights.thoughts[n][t] / (std * std))
            .collect();
        let mut dthoughts = noise.clone();
        ops::scale_rows(&self.step.device(), &mut dthoughts, &factors)?;
        Ok(dthoughts)
    }

    /// Accumulates the gradients of a segment; returns those of its input thoughts.
    fn segment(&mut self, segment: PolicySegment, dhidden: &Tensor) -> Result<Tensor, DeviceError> {
        let PolicySegment { input, segment, .. } = segment;
        let model = &mut self.step.model;
        let dx = model.backward(self.cache, &mut self.dkv, segment, dhidden)?;
        input.accumulate_embedding_gradients(model, &dx)
    }
}
