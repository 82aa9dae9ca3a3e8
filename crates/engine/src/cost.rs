//! What a question costs, counted and not timed: a function of lengths, the same on every machine and in every batch.

use crate::method::LatentLength;
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
    /// The prompt, computed once a question however the rows are batched.
    pub(crate) fn of_prompt(party: &Party<'_>, prompt: usize) -> Self {
        let mind = positions(&party.mind.decoder, 0, prompt - own_prompt(party, prompt));
        let judge = party.judge.map_or(0.0, |judge| positions(&judge.decoder, 0, prompt));
        Self { steps: 0, flops: mind + judge }
    }

    /// One row with so many thoughts and answer tokens.
    pub(crate) fn add_row(&mut self, party: &Party<'_>, prompt: usize, thoughts: usize, answer: usize) {
        let steps = thoughts + party.mind.method.end.len() + answer;
        // The last answer token is said, not fed.
        self.flops += positions(&party.mind.decoder, prompt - own_prompt(party, prompt), prompt + steps - 1);
        self.add_made(party, thoughts, answer);
        if let Some(judge) = party.judge {
            self.flops += positions(&judge.decoder, prompt, prompt + thoughts);
        }
        self.steps += steps as u64;
    }

    /// A rollout that was given thoughts, of which it fed the last itself, and made so many more and answer tokens.
    pub(crate) fn add_rollout(&mut self, party: &Party<'_>, (prompt, given): (usize, usize), made: usize, answer: usize) {
        let from = prompt + given - 1;
        let steps = 1 + made + party.mind.method.end.len() + answer;
        self.flops += positions(&party.mind.decoder, from, from + steps - 1);
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

/// Positions of the prompt that every row computes for itself.
fn own_prompt(party: &Party<'_>, prompt: usize) -> usize {
    let perturbation = party.settings.perturbation;
    if perturbation.prompt_is_private() { prompt } else { usize::from(perturbation.last_token_is_private()) }
}

/// Positions `from .. to` of a sequence: the products, and attention over all before.
fn positions(decoder: &model::Decoder, from: usize, to: usize) -> f64 {
    let seen = (to * (to + 1) - from * (from + 1)) / 2;
    (to - from) as f64 * decoder.flops_per_position() + seen as f64 * decoder.flops_per_seen()
}
