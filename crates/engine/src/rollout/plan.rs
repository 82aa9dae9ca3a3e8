//! Chooses how many questions, and how many rollouts, run at once within the memory budget.
//!
//! Prompts and thoughts of a batch's trajectories stay in the cache until its last rollout is done.
//! The remaining slots are used first for the trajectories' answers and then for one batch of
//! rollouts after another.

use std::ops::Range;

use model::Cache;

use super::{MAX_ROLLOUTS, MAX_THOUGHTS, MAX_TRAJECTORIES, RolloutRunner};
use crate::batch_plan::{check_context, row_positions};
use crate::error::EngineError;
use crate::perturb::PromptSharing;
use crate::prompt::Prompt;
use crate::streams;

/// Sizes in KV cache slots.
pub(super) struct RolloutPlan<'a> {
    pub(super) prompts: &'a [Prompt],
    /// GPU streams on which batches run concurrently.
    pub(super) streams: usize,
    /// Maximum sequences of a forward pass; more are not faster.
    max_rows: usize,
    /// Slots of each stream.
    budget: usize,
    /// Trajectories per question.
    trajectories: usize,
    private_prompt: bool,
    /// Slots of a trajectory's thoughts, of its answer, and of a rollout.
    thought_slots: usize,
    answer_slots: usize,
    rollout_slots: usize,
    /// Maximum rollouts of a question.
    max_rollouts: usize,
}

impl<'a> RolloutPlan<'a> {
    pub(super) fn new(
        runner: &RolloutRunner<'_>,
        prompts: &'a [Prompt],
    ) -> Result<Self, EngineError> {
        let RolloutRunner { model, params, labels, memory, .. } = runner;
        let config = model.decoder.config();
        if model.method.looped.is_some() && labels.rollouts() > 0 {
            return Err(EngineError::ParallelThoughts { family: model.method.family });
        }
        let thoughts = params.length.limit().min(config.context);
        let trajectories = params.samples.get();
        let rollouts = labels.rollouts();
        for (what, count, most) in [
            ("trajectories", trajectories, MAX_TRAJECTORIES),
            ("thoughts", params.length.limit(), MAX_THOUGHTS),
            ("rollouts", rollouts, MAX_ROLLOUTS),
        ] {
            if count > most {
                return Err(EngineError::TooMany { what, count, most });
            }
        }
        let row_slots = |thoughts| {
            Cache::slots_for(row_positions(model, thoughts, params.max_new_tokens.get()))
        };
        let position = Cache::bytes_per_position(model.decoder.device(), config);
        let mut plan = Self {
            prompts,
            streams: 1,
            max_rows: model.decoder.device().max_batch_rows(),
            budget: memory / position,
            trajectories,
            private_prompt: params.perturbation.prompt_sharing() == PromptSharing::Nothing,
            thought_slots: Cache::slots_for(1 + thoughts),
            answer_slots: row_slots(0),
            rollout_slots: if rollouts == 0 { 0 } else { row_slots(thoughts) },
            max_rollouts: trajectories * thoughts * rollouts,
        };
        for (q, prompt) in prompts.iter().enumerate() {
            check_context(config, prompt, thoughts, model.method.end_latent.len())?;
            let need = plan.slots(q..q + 1, 1);
            if need > plan.budget {
                let need = (need * position).div_ceil(1 << 20);
                let budget = memory >> 20;
                return Err(EngineError::RolloutMemory {
                    id: prompt.id,
                    trajectories,
                    need,
                    budget,
                });
            }
        }
        let rows = prompts.len() * (trajectories + plan.max_rollouts);
        if rows >= streams::min_rows_for_streams(&model.decoder) {
            plan.split_among_streams(model.decoder.device().streams().min(prompts.len()));
        }
        Ok(plan)
    }

    /// Divides memory and sequences among streams, if each can then hold every question.
    fn split_among_streams(&mut self, streams: usize) {
        let most = (0..self.prompts.len()).map(|q| self.slots(q..q + 1, 1)).max();
        if most.unwrap_or(0) <= self.budget / streams {
            self.streams = streams;
            self.max_rows /= streams;
            self.budget /= streams;
        }
    }

    /// Ranges of questions, one per batch; the same number of batches for every stream.
    pub(super) fn batches(&self) -> Vec<Range<usize>> {
        let mut batches = Vec::new();
        let mut first = 0;
        let even = self.prompts.len().div_ceil(self.streams);
        while first < self.prompts.len() {
            let end = first + self.questions(first).min(even);
            batches.push(first..end);
            first = end;
        }
        batches
    }

    /// Slots of a question until its last rollout is done.
    fn lasting_slots(&self, question: usize) -> usize {
        let prompts = if self.private_prompt { self.trajectories } else { 1 };
        let prompt_slots = Cache::slots_for(self.prompts[question].tokens.len());
        prompts * prompt_slots + self.trajectories * self.thought_slots
    }

    /// Number of questions of the batch that starts with `first`: at least one.
    fn questions(&self, first: usize) -> usize {
        let mut lasting = 0;
        let mut rows = 0;
        for question in first..self.prompts.len() {
            lasting += self.lasting_slots(question);
            rows += self.trajectories;
            let turns = (rows * self.answer_slots).max(self.rollout_slots);
            let fits = lasting + turns <= self.budget && rows <= self.max_rows;
            if !fits && question > first {
                return question - first;
            }
        }
        self.prompts.len() - first
    }

    /// Number of concurrent rollouts that fit in addition to a batch: at least one.
    pub(super) fn rollouts(&self, batch: Range<usize>) -> usize {
        let lasting: usize = batch.clone().map(|q| self.lasting_slots(q)).sum();
        let room = self.budget.saturating_sub(lasting) / self.rollout_slots.max(1);
        room.min(self.max_rows).min(batch.len() * self.max_rollouts).max(1)
    }

    /// Slots used by a batch with `at_once` concurrent rollouts.
    pub(super) fn slots(&self, batch: Range<usize>, at_once: usize) -> usize {
        let lasting: usize = batch.clone().map(|q| self.lasting_slots(q)).sum();
        let answers = batch.len() * self.trajectories * self.answer_slots;
        lasting + answers.max(at_once * self.rollout_slots)
    }
}
