//! How many questions are followed at once, and how many rollouts, within the memory budget.
//!
//! Prompts and thoughts of a wave's trajectories stay in the cache until its last rollout is done.
//! What comes after them, the trajectories' answers and then one batch of rollouts after the other,
//! takes turns in what is left.

use model::Cache;

use super::{MOST_ROLLOUTS, MOST_THOUGHTS, MOST_TRAJECTORIES, RolloutRunner};
use crate::batch_plan::{check_context, row_positions};
use crate::error::EngineError;
use crate::prompt::Prompt;
use crate::streams;

/// What questions, answers and rollouts take, in slots of the cache.
pub(super) struct RolloutPlan<'a> {
    pub(super) prompts: &'a [Prompt],
    pub(super) lanes: usize, // in which waves run at the same time
    most_rows: usize,        // beyond, speed does not grow
    budget: usize,           // of a lane
    trajectories: usize,
    private_prompt: bool,
    path: usize,          // of a trajectory's thoughts
    answer: usize,        // of its answer
    branch: usize,        // of a rollout
    most_branches: usize, // of a question
}

impl<'a> RolloutPlan<'a> {
    pub(super) fn new(of: &RolloutRunner<'_>, prompts: &'a [Prompt]) -> Result<Self, EngineError> {
        let RolloutRunner { model: mind, settings, labels, .. } = of;
        let config = mind.decoder.config();
        let thoughts = settings.length.limit().min(config.context);
        let trajectories = settings.samples.get();
        let rollouts = labels.rollouts();
        for (what, count, most) in [
            ("trajectories", trajectories, MOST_TRAJECTORIES),
            ("thoughts", settings.length.limit(), MOST_THOUGHTS),
            ("rollouts", rollouts, MOST_ROLLOUTS),
        ] {
            if count > most {
                return Err(EngineError::TooMany { what, count, most });
            }
        }
        let own = |thoughts| {
            Cache::slots_for(row_positions(mind, thoughts, settings.max_new_tokens.get()))
        };
        let position = Cache::bytes_per_position(mind.decoder.device(), config);
        let mut plan = Self {
            prompts,
            lanes: 1,
            most_rows: mind.decoder.device().max_batch_rows(),
            budget: settings.memory / position,
            trajectories,
            private_prompt: settings.perturbation.prompt_is_private(),
            path: Cache::slots_for(1 + thoughts),
            answer: own(0),
            branch: if rollouts == 0 { 0 } else { own(thoughts) },
            most_branches: trajectories * thoughts * rollouts,
        };
        for (q, prompt) in prompts.iter().enumerate() {
            check_context(config, prompt, thoughts + mind.method.end_latent.len())?;
            let need = plan.slots(q, 1, 1);
            if need > plan.budget {
                let (need, budget) = ((need * position).div_ceil(1 << 20), settings.memory >> 20);
                return Err(EngineError::RolloutMemory {
                    id: prompt.id,
                    trajectories,
                    need,
                    budget,
                });
            }
        }
        if prompts.len() * (trajectories + plan.most_branches)
            >= streams::min_rows_for_streams(&mind.decoder)
        {
            plan.share_among(mind.decoder.device().streams().min(prompts.len()));
        }
        Ok(plan)
    }

    /// Shares memory and rows among lanes, if each can then hold every question.
    fn share_among(&mut self, lanes: usize) {
        let most = (0..self.prompts.len()).map(|question| self.slots(question, 1, 1)).max();
        if most.unwrap_or(0) <= self.budget / lanes {
            (self.lanes, self.most_rows, self.budget) =
                (lanes, self.most_rows / lanes, self.budget / lanes);
        }
    }

    /// The waves, each by its first question and how many it has; as many for every lane.
    pub(super) fn waves(&self) -> Vec<(usize, usize)> {
        let (mut waves, mut first) = (Vec::new(), 0);
        let even = self.prompts.len().div_ceil(self.lanes);
        while first < self.prompts.len() {
            let count = self.questions(first).min(even);
            waves.push((first, count));
            first += count;
        }
        waves
    }

    /// What a question takes until its last rollout is done.
    fn lasting(&self, question: usize) -> usize {
        let prompts = if self.private_prompt { self.trajectories } else { 1 };
        prompts * Cache::slots_for(self.prompts[question].tokens.len())
            + self.trajectories * self.path
    }

    /// Questions of the wave that begins with `first`: at least one.
    fn questions(&self, first: usize) -> usize {
        let (mut lasting, mut rows) = (0, 0);
        for question in first..self.prompts.len() {
            lasting += self.lasting(question);
            rows += self.trajectories;
            let fits = lasting + (rows * self.answer).max(self.branch) <= self.budget
                && rows <= self.most_rows;
            if !fits && question > first {
                return question - first;
            }
        }
        self.prompts.len() - first
    }

    /// Rollouts at a time that fit beside a wave: at least one.
    pub(super) fn rollouts(&self, first: usize, count: usize) -> usize {
        let lasting: usize = (first..first + count).map(|q| self.lasting(q)).sum();
        let room = self.budget.saturating_sub(lasting) / self.branch.max(1);
        room.min(self.most_rows).min(count * self.most_branches).max(1)
    }

    /// Slots that a wave takes with so many rollouts at a time.
    pub(super) fn slots(&self, first: usize, count: usize, at_once: usize) -> usize {
        let lasting: usize = (first..first + count).map(|q| self.lasting(q)).sum();
        lasting + (count * self.trajectories * self.answer).max(at_once * self.branch)
    }
}
