//! What a question costs, counted and not timed: a function of lengths, the same on every machine
//! and in every batch.

use std::ops::Range;

use crate::method::LatentLength;
use crate::reasoner::RewardModel;
use crate::wave::BatchContext;

/// Decoding steps and floating-point operations of a question.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ComputeCost {
    /// Positions computed after the prompt: thoughts, end tokens and answer tokens of all rows.
    pub(crate) steps: u64,
    /// Operations of all positions, heads and logits; a multiply-add counts as two.
    pub(crate) flops: f64,
}

impl ComputeCost {
    /// Both.
    pub(crate) fn add(&mut self, more: Self) {
        self.steps += more.steps;
        self.flops += more.flops;
    }

    /// The prompt, computed once a question and round however the rows are batched.
    pub(crate) fn of_prompt(party: &BatchContext<'_>, prompt: usize) -> Self {
        let mind = party.model.decoder.flops_for(0..prompt - private_prompt_len(party, prompt));
        let judge = party.reward_model.map_or(0.0, |judge| {
            // The last thought of one's own is made, not fed.
            let reflection = judge.reference.as_ref().map_or(0.0, |own| {
                own.decoder.flops_for(0..prompt + judge.reference_thoughts() - 1)
                    + judge.reference_thoughts() as f64 * own.head.flops(&own.decoder)
            });
            reflection + judge.decoder.flops_for(0..prompt + judge.reference_thoughts())
        });
        Self { steps: 0, flops: mind + judge }
    }

    /// One row with so many thoughts and answer tokens.
    pub(crate) fn add_row(
        &mut self,
        party: &BatchContext<'_>,
        prompt: usize,
        thoughts: usize,
        answer: usize,
    ) {
        let steps = thoughts + party.model.method.end_latent.len() + answer;
        // The last answer token is said, not fed.
        self.flops += party
            .model
            .decoder
            .flops_for(prompt - private_prompt_len(party, prompt)..prompt + steps - 1);
        self.add_heads(party, thoughts, answer);
        if let Some(judge) = party.reward_model {
            let start = prompt + judge.reference_thoughts();
            let said = party.model.method.end_latent.len() + answer;
            self.flops +=
                judge.decoder.flops_for(start..start + judge.positions_read(thoughts, said));
        }
        self.steps += steps as u64;
    }

    /// A rollout that was given thoughts, of which it fed the last itself, and made so many more
    /// and answer tokens.
    pub(crate) fn add_rollout(
        &mut self,
        party: &BatchContext<'_>,
        (prompt, given): (usize, usize),
        made: usize,
        answer: usize,
    ) {
        let from = prompt + given - 1;
        let steps = 1 + made + party.model.method.end_latent.len() + answer;
        self.flops += party.model.decoder.flops_for(from..from + steps - 1);
        self.add_heads(party, made, answer);
        self.steps += steps as u64;
    }

    /// What heads take: of thoughts, and of logits wherever a token is read.
    fn add_heads(&mut self, party: &BatchContext<'_>, thoughts: usize, answer: usize) {
        let mind = party.model;
        self.flops += thoughts as f64 * mind.head.flops(&mind.decoder)
            + answer as f64 * mind.decoder.flops_per_logits();
        if matches!(party.params.length, LatentLength::AtMost(_)) {
            self.flops += thoughts as f64 * mind.decoder.flops_per_logits();
        }
    }
}

/// The parts of a search, as they are made.
impl ComputeCost {
    /// The prompt, and what each of the first extensions passes of it for itself.
    pub(crate) fn of_search(party: &BatchContext<'_>, prompt: usize, extensions: usize) -> Self {
        let own = party.model.decoder.flops_for(prompt - private_prompt_len(party, prompt)..prompt);
        let shared = Self::of_prompt(party, prompt);
        Self { flops: shared.flops + extensions as f64 * own, ..shared }
    }

    /// A thought made of a hidden state.
    pub(crate) fn add_thought(&mut self, party: &BatchContext<'_>) {
        self.add_heads(party, 1, 0);
        self.steps += 1;
    }

    /// A pass of the reasoner over one thought at a position.
    pub(crate) fn add_pass(&mut self, party: &BatchContext<'_>, position: usize) {
        self.flops += party.model.decoder.flops_for(position..position + 1);
    }

    /// The judge's look at one thought at a position.
    pub(crate) fn add_process_reward(&mut self, judge: &RewardModel, position: usize) {
        let position = position + judge.reference_thoughts();
        self.flops += judge.decoder.flops_for(position..position + 1);
    }

    /// The judge's look at a whole path and its answer, after its look at the prompt if this is the
    /// question's first path.
    pub(crate) fn add_outcome_reward(
        &mut self,
        party: &BatchContext<'_>,
        (prompt, is_first): (usize, bool),
        thoughts: usize,
        answer: usize,
    ) {
        let Some(judge) = party.reward_model else { return };
        let start = prompt + judge.reference_thoughts();
        let read = judge.positions_read(thoughts, party.model.method.end_latent.len() + answer);
        self.flops += judge.decoder.flops_for(if is_first { 0 } else { start }..start + read);
    }

    /// What is fed after the search, at such positions, and an answer of so many tokens.
    pub(crate) fn add_answer(
        &mut self,
        party: &BatchContext<'_>,
        fed: Range<usize>,
        tokens: usize,
    ) {
        self.flops += party.model.decoder.flops_for(fed);
        self.add_heads(party, 0, tokens);
        self.steps += (party.model.method.end_latent.len() + tokens) as u64;
    }
}

/// Positions of the prompt that every row computes for itself.
fn private_prompt_len(party: &BatchContext<'_>, prompt: usize) -> usize {
    let perturbation = party.params.perturbation;
    if perturbation.prompt_is_private() {
        prompt
    } else {
        usize::from(perturbation.last_token_is_private())
    }
}
