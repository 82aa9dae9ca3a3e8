//! A judge's own thoughts: it thinks about a question by itself before it reads what others thought
//! about it.
//!
//! They are unperturbed, made once a question by the judge's own mind
//! ([`RewardModel::mind`](crate::RewardModel)), and stand between the prompt and whatever is
//! judged.

use model::Cache;
use tensor::{DeviceError, Tensor, ops};

use crate::perturb::{Perturbation, RandomSource, RowId, Sampler};
use crate::prefill::{RowSpec, prefill};
use crate::prompt::Prompt;
use crate::reasoner::LatentModel;
use crate::think::{ThinkParams, think};
use crate::wave::ensure_slots;

/// What a mind thinks about some prompts.
#[derive(Clone, Debug, Default)]
pub struct ReferenceTrace {
    /// All thoughts, prompt after prompt: (thoughts, width), on the device.
    pub thoughts: Tensor,
    /// How many each prompt has.
    pub lengths: Vec<usize>,
}

/// Who reflects again and again; its cache is kept.
#[derive(Default)]
pub struct ReferenceTracer {
    cache: Option<Cache>,
}

impl ReferenceTracer {
    /// Thinks about each prompt once.
    pub fn trace(
        &mut self,
        mind: &LatentModel,
        prompts: &[&Prompt],
    ) -> Result<ReferenceTrace, DeviceError> {
        let slots = prompts.iter().map(|prompt| slots(mind, prompt.tokens.len())).sum();
        ensure_slots(&mut self.cache, slots, |n| {
            Cache::new(mind.decoder.device(), mind.decoder.config(), n)
        })?;
        let Some(cache) = &mut self.cache else { return Ok(ReferenceTrace::default()) };
        let start = |(prompt, of): (usize, &&Prompt)| {
            let id = RowId { question: of.id, trajectory: 0 };
            RowSpec { prompt, id, perturbed: false }
        };
        let starts: Vec<RowSpec> = prompts.iter().enumerate().map(start).collect();
        let chance = Sampler { perturbation: Perturbation::None, source: RandomSource::Seeded(0) };
        let started = prefill(mind, cache, prompts, &starts, chance)?;
        let how = ThinkParams {
            length: mind.method.length,
            sampler: chance,
            hook: None,
            keep_noiseless: false,
        };
        let thoughts = think(mind, cache, started, how)?;
        let order: Vec<usize> =
            thoughts.rows.iter().flat_map(|row| &row.thoughts).copied().collect();
        Ok(ReferenceTrace {
            thoughts: ops::select(mind.decoder.device(), &thoughts.steps, &order)?,
            lengths: thoughts.rows.iter().map(|row| row.thoughts.len()).collect(),
        })
    }
}

/// Slots that a reflection on a prompt of so many tokens takes.
pub(crate) fn slots(mind: &LatentModel, prompt: usize) -> usize {
    Cache::slots_for(prompt) + Cache::slots_for(mind.method.length.limit())
}
