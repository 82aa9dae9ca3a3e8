//! The work of a question, counted from lengths: the same on every machine and in every batch.

use std::ops::Range;

use crate::batch::{BatchContext, BatchItem};
use crate::method::{LatentLength, LatentLoop};
use crate::reply::ComputeCost;

/// Counts the work of one question's stages.
#[derive(Clone, Copy)]
pub(crate) struct CostModel<'a> {
    pub(crate) context: BatchContext<'a>,
    pub(crate) item: BatchItem<'a>,
}

impl CostModel<'_> {
    /// The prompt, computed once a question and round however the rows are batched.
    pub(crate) fn prompt(&self) -> ComputeCost {
        let prompt = self.item.prompt_len();
        let model = self.context.model.decoder.flops_for(0..prompt - self.item.private_tokens());
        let reward = self.context.reward_model.map_or(0.0, |reward| {
            let thoughts = reward.reference_thoughts();
            // The last thought of the trace is made, not fed.
            let trace = reward.reference.as_ref().map_or(0.0, |reference| {
                reference.decoder.flops_for(0..prompt + thoughts - 1)
                    + thoughts as f64 * reference.head.flops(&reference.decoder)
            });
            trace + reward.decoder.flops_for(0..prompt + thoughts)
        });
        ComputeCost { steps: 0, flops: model + reward }
    }

    /// One row with so many thoughts and answer tokens.
    pub(crate) fn row(&self, thoughts: usize, answer: usize) -> ComputeCost {
        let BatchContext { model, reward_model, .. } = self.context;
        let (prompt, end) = (self.item.prompt_len(), model.method.end_latent.len());
        let positions = thoughts + end + answer;
        // The last answer token is decoded, not fed.
        let fed = prompt - self.item.private_tokens()..prompt + positions - 1;
        let mut flops = model.decoder.flops_for(fed);
        let mut steps = positions;
        if let (Some(LatentLoop { loops, .. }), 1..) = (model.method.looped, thoughts) {
            flops += loops as f64 * model.decoder.flops_for(prompt..prompt + thoughts);
            // All positions of a loop are one step.
            steps = loops + 1 + end + answer;
        }
        flops += self.heads(thoughts, answer);
        if let Some(reward) = reward_model {
            let start = prompt + reward.reference_thoughts();
            let read = reward.positions_read(thoughts, end + answer);
            flops += reward.decoder.flops_for(start..start + read);
        }
        ComputeCost { steps: steps as u64, flops }
    }

    /// A rollout from thought `given`, which it feeds again, with so many more thoughts and answer
    /// tokens.
    pub(crate) fn rollout(&self, given: usize, thoughts: usize, answer: usize) -> ComputeCost {
        let model = self.context.model;
        let from = self.item.prompt_len() + given - 1;
        let steps = 1 + thoughts + model.method.end_latent.len() + answer;
        let flops = model.decoder.flops_for(from..from + steps - 1) + self.heads(thoughts, answer);
        ComputeCost { steps: steps as u64, flops }
    }

    /// Operations of the latent head, and of the LM head wherever a token is read.
    fn heads(&self, thoughts: usize, answer: usize) -> f64 {
        let model = self.context.model;
        let logits = model.decoder.flops_per_logits();
        let mut flops = thoughts as f64 * model.head.flops(&model.decoder) + answer as f64 * logits;
        if matches!(self.item.params.length, LatentLength::AtMost(_)) {
            flops += thoughts as f64 * logits;
        }
        flops
    }
}

/// The parts of a beam search.
impl CostModel<'_> {
    /// The prompt, and what each of the first extensions passes of it by itself.
    pub(crate) fn search_prompt(&self, extensions: usize) -> ComputeCost {
        let prompt = self.item.prompt_len();
        let private = prompt - self.item.private_tokens()..prompt;
        let private = self.context.model.decoder.flops_for(private);
        let shared = self.prompt();
        ComputeCost { flops: shared.flops + extensions as f64 * private, ..shared }
    }

    /// A thought made of a hidden state.
    pub(crate) fn thought(&self) -> ComputeCost {
        ComputeCost { steps: 1, flops: self.heads(1, 0) }
    }

    /// A pass of the reasoner over one thought at a position.
    pub(crate) fn pass(&self, position: usize) -> ComputeCost {
        let flops = self.context.model.decoder.flops_for(position..position + 1);
        ComputeCost { steps: 0, flops }
    }

    /// The process reward of one thought at a position.
    pub(crate) fn process_reward(&self, position: usize) -> ComputeCost {
        let flops = self.context.reward_model.map_or(0.0, |reward| {
            let position = position + reward.reference_thoughts();
            reward.decoder.flops_for(position..position + 1)
        });
        ComputeCost { steps: 0, flops }
    }

    /// The outcome reward of a path: its answer, after the thoughts that were read in the search.
    pub(crate) fn outcome_reward(&self, thoughts: usize, answer: usize) -> ComputeCost {
        let BatchContext { model, reward_model, .. } = self.context;
        let flops = reward_model.map_or(0.0, |reward| {
            let start = self.item.prompt_len() + reward.reference_thoughts();
            let answer = model.method.end_latent.len() + answer;
            let read = reward.positions_read(thoughts, answer);
            reward.decoder.flops_for(start + thoughts..start + read)
        });
        ComputeCost { steps: 0, flops }
    }

    /// What is fed after the search, at such positions, and an answer of so many tokens.
    pub(crate) fn answer(&self, fed: Range<usize>, tokens: usize) -> ComputeCost {
        let model = self.context.model;
        let steps = (model.method.end_latent.len() + tokens) as u64;
        ComputeCost { steps, flops: model.decoder.flops_for(fed) + self.heads(0, tokens) }
    }
}
