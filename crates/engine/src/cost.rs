//! What a question costs, counted and not timed: a function of lengths, the same on every machine and in every batch.

use std::ops::Range;

use crate::method::LatentLength;
use crate::reasoner::RewardModel;
use crate::wave::Party;

/// Decoding steps and floating-point operations of a question.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    /// Positions computed after the prompt: thoughts, end tokens and answer tokens of all rows.
    pub(crate) steps: u64,
    /// Operations of all positions, heads and logits; a multiply-add counts as two.
    pub(crate) flops: f64,
}

impl Cost {
    /// Both.
    pub(crate) fn add(&mut self, more: Self) {
        self.steps += more.steps;
        self.flops += more.flops;
    }

    /// The prompt, computed once a question and round however the rows are batched.
    pub(crate) fn of_prompt(party: &Party<'_>, prompt: usize) -> Self {
        let mind = party.mind.decoder.flops_of(0..prompt - own_prompt(party, prompt));
        let judge = party.judge.map_or(0.0, |judge| {
            // The last thought of one's own is made, not fed.
            let reflection = judge.mind.as_ref().map_or(0.0, |own| {
                own.decoder.flops_of(0..prompt + judge.reflects() - 1) + judge.reflects() as f64 * own.head.flops(&own.decoder)
            });
            reflection + judge.decoder.flops_of(0..prompt + judge.reflects())
        });
        Self { steps: 0, flops: mind + judge }
    }

    /// One row with so many thoughts and answer tokens.
    pub(crate) fn add_row(&mut self, party: &Party<'_>, prompt: usize, thoughts: usize, answer: usize) {
        let steps = thoughts + party.mind.method.end.len() + answer;
        // The last answer token is said, not fed.
        self.flops += party.mind.decoder.flops_of(prompt - own_prompt(party, prompt)..prompt + steps - 1);
        self.add_made(party, thoughts, answer);
        if let Some(judge) = party.judge {
            let start = prompt + judge.reflects();
            let said = party.mind.method.end.len() + answer;
            self.flops += judge.decoder.flops_of(start..start + judge.reads(thoughts, said));
        }
        self.steps += steps as u64;
    }

    /// A rollout that was given thoughts, of which it fed the last itself, and made so many more and answer tokens.
    pub(crate) fn add_rollout(&mut self, party: &Party<'_>, (prompt, given): (usize, usize), made: usize, answer: usize) {
        let from = prompt + given - 1;
        let steps = 1 + made + party.mind.method.end.len() + answer;
        self.flops += party.mind.decoder.flops_of(from..from + steps - 1);
        self.add_made(party, made, answer);
        self.steps += steps as u64;
    }

    /// What heads take: of thoughts, and of logits wherever a token is read.
    fn add_made(&mut self, party: &Party<'_>, thoughts: usize, answer: usize) {
        let mind = party.mind;
        self.flops += thoughts as f64 * mind.head.flops(&mind.decoder) + answer as f64 * mind.decoder.flops_per_logits();
        if matches!(party.settings.length, LatentLength::AtMost(_)) {
            self.flops += thoughts as f64 * mind.decoder.flops_per_logits();
        }
    }
}

/// The parts of a search, as they are made.
impl Cost {
    /// The prompt, and what each of the first extensions passes of it for itself.
    pub(crate) fn of_search(party: &Party<'_>, prompt: usize, extensions: usize) -> Self {
        let own = party.mind.decoder.flops_of(prompt - own_prompt(party, prompt)..prompt);
        let shared = Self::of_prompt(party, prompt);
        Self { flops: shared.flops + extensions as f64 * own, ..shared }
    }

    /// A thought made of a hidden state.
    pub(crate) fn add_thought(&mut self, party: &Party<'_>) {
        self.add_made(party, 1, 0);
        self.steps += 1;
    }

    /// A pass of the reasoner over one thought at a position.
    pub(crate) fn add_pass(&mut self, party: &Party<'_>, position: usize) {
        self.flops += party.mind.decoder.flops_of(position..position + 1);
    }

    /// The judge's look at one thought at a position.
    pub(crate) fn add_reading(&mut self, judge: &RewardModel, position: usize) {
        let position = position + judge.reflects();
        self.flops += judge.decoder.flops_of(position..position + 1);
    }

    /// The judge's look at a whole path and its answer, after its look at the prompt if this is the question's first path.
    pub(crate) fn add_verdict(&mut self, party: &Party<'_>, (prompt, is_first): (usize, bool), thoughts: usize, answer: usize) {
        let Some(judge) = party.judge else { return };
        let start = prompt + judge.reflects();
        let read = judge.reads(thoughts, party.mind.method.end.len() + answer);
        self.flops += judge.decoder.flops_of(if is_first { 0 } else { start }..start + read);
    }

    /// What is fed after the search, at such positions, and an answer of so many tokens.
    pub(crate) fn add_answer(&mut self, party: &Party<'_>, fed: Range<usize>, tokens: usize) {
        self.flops += party.mind.decoder.flops_of(fed);
        self.add_made(party, 0, tokens);
        self.steps += (party.mind.method.end.len() + tokens) as u64;
    }
}

/// Positions of the prompt that every row computes for itself.
fn own_prompt(party: &Party<'_>, prompt: usize) -> usize {
    let perturbation = party.settings.perturbation;
    if perturbation.prompt_is_private() { prompt } else { usize::from(perturbation.last_token_is_private()) }
}
