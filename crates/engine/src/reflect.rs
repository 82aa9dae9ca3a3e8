//! A judge's own thoughts: it thinks about a question by itself before it reads what others thought about it.
//!
//! They are unperturbed, made once a question by the judge's own mind ([`RewardModel::mind`](crate::RewardModel)), and stand
//! between the prompt and whatever is judged.

use model::Cache;
use tensor::{DeviceError, Tensor, ops};

use crate::perturb::{Chance, Perturbation, Randomness, RowId};
use crate::prefill::{Start, prefill};
use crate::prompt::Prompt;
use crate::reasoner::Mind;
use crate::think::{Thinking, think};
use crate::wave::ready;

/// What a mind thinks about some prompts.
#[derive(Clone, Debug, Default)]
pub struct Reflection {
    /// All thoughts, prompt after prompt: (thoughts, width), on the device.
    pub thoughts: Tensor,
    /// How many each prompt has.
    pub lengths: Vec<usize>,
}

/// Who reflects again and again; its cache is kept.
#[derive(Default)]
pub struct Reflections {
    cache: Option<Cache>,
}

impl Reflections {
    /// Thinks about each prompt once.
    pub fn of(&mut self, mind: &Mind, prompts: &[&Prompt]) -> Result<Reflection, DeviceError> {
        let slots = prompts.iter().map(|prompt| slots(mind, prompt.tokens.len())).sum();
        ready(&mut self.cache, slots, |n| Cache::new(mind.decoder.device(), mind.decoder.config(), n))?;
        let Some(cache) = &mut self.cache else { return Ok(Reflection::default()) };
        let start = |(prompt, of): (usize, &&Prompt)| {
            let id = RowId { question: of.id, trajectory: 0 };
            Start { prompt, id, perturbed: false }
        };
        let starts: Vec<Start> = prompts.iter().enumerate().map(start).collect();
        let chance = Chance { perturbation: Perturbation::None, randomness: Randomness::Seeded(0) };
        let started = prefill(mind, cache, prompts, &starts, chance)?;
        let how = Thinking { length: mind.method.length, chance, steer: None, keep_clean: false };
        let thoughts = think(mind, cache, started, how)?;
        let order: Vec<usize> = thoughts.rows.iter().flat_map(|row| &row.thoughts).copied().collect();
        Ok(Reflection {
            thoughts: ops::select(mind.decoder.device(), &thoughts.all, &order)?,
            lengths: thoughts.rows.iter().map(|row| row.thoughts.len()).collect(),
        })
    }
}

/// Slots that a reflection on a prompt of so many tokens takes.
pub(crate) fn slots(mind: &Mind, prompt: usize) -> usize {
    Cache::slots_for(prompt) + Cache::slots_for(mind.method.length.limit())
}
