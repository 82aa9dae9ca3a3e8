//! Which rows run together: as many as the memory budget holds, in the order of the questions.
//!
//! A trajectory does not depend on its company, so the plan changes speed and memory and nothing else. A question whose
//! rows do not fit at once is split; its prompt is then computed once for each part.

use std::ops::Range;

use model::{Cache, Config};

use crate::error::Error;
use crate::prompt::Prompt;
use crate::reasoner::Mind;
use crate::wave::Party;

/// Some rows of one question. The row after the last sample, if asked for, is the deterministic one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Index of the question in the list.
    pub(crate) question: usize,
    /// Its rows in this wave.
    pub(crate) rows: Range<usize>,
}

/// What one row, one prompt and the whole wave may take.
pub(crate) struct Plan<'a> {
    prompts: &'a [Prompt],
    rows: usize,
    most_rows: usize, // beyond, speed does not grow
    budget: usize,
    private_prompt: bool,
    own: usize,                     // slots of one row beside the prompt
    reward: Option<(usize, usize)>, // bytes of a reward model's position, slots of a row there
    position: usize,                // bytes of a reasoner's position
    next: (usize, usize),           // the question and the row to start with
}

impl<'a> Plan<'a> {
    pub(crate) fn new(party: &Party<'_>, prompts: &'a [Prompt]) -> Result<Self, Error> {
        let Party { mind, judge, settings, .. } = *party;
        settings.check(&mind.method)?;
        // More thoughts than the context has positions are refused below, whatever their number.
        let thoughts = settings.length.limit().min(mind.decoder.config().context);
        let plan = Self {
            prompts,
            rows: party.rows(),
            most_rows: mind.decoder.device().rows_at_once(),
            budget: settings.memory,
            private_prompt: settings.perturbation.prompt_is_private(),
            own: Cache::slots_for(own_positions(mind, thoughts, settings.max_new_tokens.get())),
            reward: judge
                .map(|j| (Cache::bytes_per_position(j.decoder.device(), j.decoder.config()), Cache::slots_for(thoughts))),
            position: Cache::bytes_per_position(mind.decoder.device(), mind.decoder.config()),
            next: (0, 0),
        };
        for prompt in prompts {
            check(mind.decoder.config(), prompt, thoughts + mind.method.end.len())?;
            if let Some(judge) = judge {
                prompt.check_tokens(judge.decoder.config().vocab)?;
                check(judge.decoder.config(), prompt, thoughts)?;
            }
            let (shared, row) = plan.bytes(prompt);
            if shared + row > plan.budget {
                return Err(Error::Memory { id: prompt.id, need: (shared + row).div_ceil(1 << 20), budget: plan.budget >> 20 });
            }
        }
        Ok(plan)
    }

    /// What a question takes once, and what each of its rows takes.
    fn bytes(&self, prompt: &Prompt) -> (usize, usize) {
        let length = Cache::slots_for(prompt.tokens.len());
        let (reward_position, reward_own) = self.reward.unwrap_or((0, 0));
        let reward = (length * reward_position, reward_own * reward_position);
        if self.private_prompt {
            (reward.0, (length + self.own) * self.position + reward.1)
        } else {
            (length * self.position + reward.0, self.own * self.position + reward.1)
        }
    }

    /// The prompts of the run.
    pub(crate) fn prompts(&self) -> &[Prompt] {
        self.prompts
    }

    /// Slots of the reasoner's and the reward model's cache that a wave takes at most.
    pub(crate) fn slots(&self, wave: &[Share]) -> (usize, usize) {
        let (mut reasoner, mut reward) = (0, 0);
        for share in wave {
            let length = Cache::slots_for(self.prompts[share.question].tokens.len());
            let prompts = if self.private_prompt { share.rows.len() } else { 1 };
            reasoner += prompts * length + share.rows.len() * self.own;
            reward += self.reward.map_or(0, |(_, own)| length + share.rows.len() * own);
        }
        (reasoner, reward)
    }
}

impl Iterator for Plan<'_> {
    type Item = Vec<Share>;

    fn next(&mut self) -> Option<Vec<Share>> {
        let (mut wave, mut used, mut rows) = (Vec::new(), 0, 0);
        while self.next.0 < self.prompts.len() && rows < self.most_rows {
            let (question, first) = self.next;
            let (shared, row) = self.bytes(&self.prompts[question]);
            let room = self.budget.saturating_sub(used + shared) / row.max(1);
            let count = room.min(self.rows - first).min(self.most_rows - rows);
            // A question that would be split waits for a wave of its own, unless it has one already.
            if count == 0 || (count < self.rows - first && !wave.is_empty()) {
                break;
            }
            wave.push(Share { question, rows: first..first + count });
            (used, rows) = (used + shared + count * row, rows + count);
            self.next = if first + count == self.rows { (question + 1, 0) } else { (question, first + count) };
        }
        (!wave.is_empty()).then_some(wave)
    }
}

/// Positions that a row may have beside its prompt. Answers end with the context, so that no limit makes them longer.
pub(crate) fn own_positions(mind: &Mind, thoughts: usize, max_new_tokens: usize) -> usize {
    1 + thoughts + mind.method.end.len() + max_new_tokens.min(mind.decoder.config().context)
}

/// Refuses a prompt that leaves no room for an answer after so many positions more.
pub(crate) fn check(config: &Config, prompt: &Prompt, more: usize) -> Result<(), Error> {
    if prompt.tokens.len() + more >= config.context {
        return Err(Error::TooLong { id: prompt.id, prompt: prompt.tokens.len(), thoughts: more, context: config.context });
    }
    Ok(())
}
