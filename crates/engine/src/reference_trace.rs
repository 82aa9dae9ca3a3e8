//! The reference trace: the thoughts of a reward model's reference reasoner about a question.
//!
//! It is unperturbed, computed once per question by the reference reasoner
//! ([`RewardModel::reference`](crate::RewardModel)), and inserted between the prompt and the
//! candidate's thoughts.

use model::Cache;
use tensor::{Device, DeviceError, Tensor, ops};

use crate::aligned_batch::ensure_slots;
use crate::batch::BatchItem;
use crate::executor::{Executor, Gather, SequenceSpec};
use crate::perturb::Perturbation;
use crate::prompt::Prompt;
use crate::reasoner::LatentModel;
use crate::request::CancelToken;
use crate::sampler::{Sampler, SequenceId};
use crate::sampling_params::SamplingParams;

/// A reference reasoner's thoughts about some prompts.
#[derive(Clone, Debug, Default)]
pub struct ReferenceTrace {
    /// All thoughts, prompt after prompt: (thoughts, width), on the device.
    pub thoughts: Tensor,
    /// Number of thoughts of each prompt.
    pub lengths: Vec<usize>,
}

impl ReferenceTrace {
    /// Selects the thoughts about some of the prompts, in the given order.
    pub(crate) fn select(&self, device: &Device, prompts: &[usize]) -> Result<Self, DeviceError> {
        let ends: Vec<usize> = self.lengths.iter().scan(0, running_sum).collect();
        let rows = |&prompt: &usize| ends[prompt] - self.lengths[prompt]..ends[prompt];
        let rows: Vec<usize> = prompts.iter().flat_map(rows).collect();
        let lengths = prompts.iter().map(|&prompt| self.lengths[prompt]).collect();
        Ok(Self { thoughts: ops::select(device, [&self.thoughts], &rows)?, lengths })
    }
}

fn running_sum(sum: &mut usize, length: &usize) -> Option<usize> {
    *sum += length;
    Some(*sum)
}

/// Computes reference traces; reuses its KV cache between calls.
#[derive(Default)]
pub struct ReferenceTracer {
    cache: Option<Cache>,
}

impl ReferenceTracer {
    /// The greedy thoughts of `model` about each prompt.
    pub fn trace(
        &mut self,
        model: &LatentModel,
        prompts: &[&Prompt],
    ) -> Result<ReferenceTrace, DeviceError> {
        let thoughts = Cache::slots_for(model.method.length.limit());
        ensure_slots(
            &mut self.cache,
            prompts
                .iter()
                .map(|prompt: &&Prompt| Cache::slots_for(prompt.tokens.len()) + thoughts)
                .sum(),
            &model.decoder,
        )?;
        let Some(cache) = &mut self.cache else { return Ok(ReferenceTrace::default()) };
        let params = Self::params(model);
        let cancel = CancelToken::default();
        let items: Vec<BatchItem<'_>> =
            prompts.iter().map(|&prompt| BatchItem::new(prompt, &params, &cancel)).collect();
        let spec = |(item, of): (usize, &&Prompt)| {
            let id = SequenceId { question: of.id, trajectory: 0 };
            SequenceSpec { item, id, perturbed: false }
        };
        let specs: Vec<SequenceSpec> = prompts.iter().enumerate().map(spec).collect();
        let mut executor = Executor::aligned(model, &specs);
        executor.sequences.iter_mut().for_each(|sequence| sequence.without_answer = true);
        executor.run(cache, Sampler::new(&items))?;
        let sequences = &executor.sequences;
        let thoughts = sequences.iter().flat_map(|sequence| &sequence.thoughts);
        Ok(ReferenceTrace {
            thoughts: Gather::of_thoughts(thoughts).select(model.decoder.device())?,
            lengths: sequences.iter().map(|sequence| sequence.thoughts.len()).collect(),
        })
    }

    fn params(model: &LatentModel) -> SamplingParams {
        let defaults = SamplingParams::defaults_for(&model.method);
        SamplingParams { perturbation: Perturbation::None, ..defaults }
    }
}
