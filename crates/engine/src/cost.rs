//! Floating-point operations and steps of a question, computed from lengths only: independent of
//! machine and batching.

use std::ops::Range;

use crate::batch::{BatchContext, BatchItem};
use crate::method::{LatentLength, LatentLoop};
use crate::reply::ComputeCost;

/// Computes the cost of the stages of one question.
#[derive(Clone, Copy)]
pub(crate) struct CostModel<'a> {
    pub(crate) context: BatchContext<'a>,
    pub(crate) item: BatchItem<'a>,
}

impl CostModel<'_> {
    /// The prompt, counted once per question and round however the sequences are batched.
    pub(crate) fn prompt(&self) -> ComputeCost {
        let prompt = self.item.prompt_len();
        let model = self.context.model.decoder.flops_for(0..prompt - self.item.private_tokens());
        let reward = self.context.reward_model.map_or(0.0, |reward| {
            let thoughts = reward.reference_thoughts();
            // The last thought of the trace is computed but not fed.
            let trace = reward.reference.as_ref().map_or(0.0, |reference| {
                reference.decoder.flops_for(0..prompt + thoughts - 1)
                    + thoughts as f64 * reference.head.flops(&reference.decoder)
            });
            trace + reward.decoder.flops_for(0..prompt + thoughts)
        });
        ComputeCost { steps: 0, flops: model + reward }
    }

    /// One sequence with `thoughts` thoughts and `answer` answer tokens.
    pub(crate) fn row(&self, thoughts: usize, answer: usize) -> ComputeCost {
        let BatchContext { model, reward_model, .. } = self.context;
        let prompt = self.item.prompt_len();
        let end = model.method.end_latent.len();
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

    /// A rollout from thought `given`, which is fed again, with `thoughts` more thoughts and
    /// `answer` answer tokens.
    pub(crate) fn rollout(&self, given: usize, thoughts: usize, answer: usize) -> ComputeCost {
        let model = self.context.model;
        let from = self.item.prompt_len() + given - 1;
        let steps = 1 + thoughts + model.method.end_latent.len() + answer;
        let flops = model.decoder.flops_for(from..from + steps - 1) + self.heads(thoughts, answer);
        ComputeCost { steps: steps as u64, flops }
    }

    /// Operations of the latent head, and of the LM head for every decoded token.
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

/// The cost of the parts of a beam search.
impl CostModel<'_> {
    /// The prompt, including the part that each of the first extensions computes separately.
    pub(crate) fn search_prompt(&self, extensions: usize) -> ComputeCost {
        let prompt = self.item.prompt_len();
        let private = prompt - self.item.private_tokens()..prompt;
        let private = self.context.model.decoder.flops_for(private);
        let shared = self.prompt();
        ComputeCost { flops: shared.flops + extensions as f64 * private, ..shared }
    }

    /// Computing a thought from a hidden state.
    pub(crate) fn thought(&self) -> ComputeCost {
        ComputeCost { steps: 1, flops: self.heads(1, 0) }
    }

    /// A forward pass of the reasoner over one thought at `position`.
    pub(crate) fn pass(&self, position: usize) -> ComputeCost {
        let flops = self.context.model.decoder.flops_for(position..position + 1);
        ComputeCost { steps: 0, flops }
    }

    /// The process reward of one thought at `position`.
    pub(crate) fn process_reward(&self, position: usize) -> ComputeCost {
        let flops = self.context.reward_model.map_or(0.0, |reward| {
            let position = position + reward.reference_thoughts();
            reward.decoder.flops_for(position..position + 1)
        });
        ComputeCost { steps: 0, flops }
    }

    /// The outcome reward of a path: reading its answer after the thoughts, which the search has
    /// already scored.
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

    /// Feeding the positions `fed` after the search, and decoding an answer of `tokens` tokens.
    pub(crate) fn answer(&self, fed: Range<usize>, tokens: usize) -> ComputeCost {
        let model = self.context.model;
        let steps = (model.method.end_latent.len() + tokens) as u64;
        ComputeCost { steps, flops: model.decoder.flops_for(fed) + self.heads(0, tokens) }
    }
}
