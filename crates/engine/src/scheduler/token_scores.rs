//! Log-likelihoods in the scheduler: tokens are scored in bounded parts, one after each step of the
//! batch, so that a request with many prompts delays others by at most one part.

use std::collections::VecDeque;

use tensor::DeviceError;

use super::batch::SequenceBatch;
use super::source::SequenceSource;
use crate::error::EngineError;
use crate::logprobs::{TokenScore, TokenSequence, score_positions};
use crate::reasoner::LatentModel;
use crate::request::CancelToken;

/// Maximum positions that are scored per step.
pub(crate) const SCORED_POSITIONS: usize = 256;

/// A scoring job.
pub(crate) struct TokenJob {
    pub(crate) tokens: Vec<u32>,
    pub(crate) cancel: CancelToken,
    pub(crate) done: Box<dyn FnOnce(Result<Vec<TokenScore>, EngineError>) + Send>,
}

/// Scoring jobs in progress.
#[derive(Default)]
pub(crate) struct TokenScores {
    active: VecDeque<(TokenJob, TokenSequence)>,
}

impl TokenScores {
    pub(crate) fn is_empty(&self) -> bool {
        self.active.is_empty()
    }

    pub(crate) fn add(&mut self, job: TokenJob) {
        let sequence = TokenSequence::new(job.tokens.clone());
        self.active.push_back((job, sequence));
    }

    /// Scores the next positions. If there is no memory for any, the batch is closed until there
    /// is.
    pub(crate) fn step<S: SequenceSource>(
        &mut self,
        model: &LatentModel,
        batch: &mut SequenceBatch<'_, S>,
    ) -> Result<(), DeviceError> {
        self.remove_cancelled(batch);
        let mut left = SCORED_POSITIONS;
        let mut parts = Vec::new();
        for (_, sequence) in &mut self.active {
            let count = sequence.left().min(left);
            if count == 0 {
                break;
            }
            if sequence.is_new() && !batch.reserve(sequence.len()) {
                break;
            }
            left -= count;
            parts.push((sequence, count));
        }
        let has_none = parts.is_empty();
        if !has_none {
            score_positions(model, batch.cache()?, &mut parts)?;
        }
        batch.is_closed = has_none && !self.active.is_empty();
        if batch.is_closed && batch.sources.is_empty() {
            // Only after the device turned out to have less memory than budgeted.
            let why = "not enough device memory to score these tokens";
            self.active.pop_front().into_iter().for_each(|(job, _)| fail(job, why));
        }
        while let Some((job, sequence)) = self.active.pop_front() {
            if sequence.left() > 0 {
                self.active.push_front((job, sequence));
                break;
            }
            let scores = release(batch, sequence);
            (job.done)(Ok(scores));
        }
        batch.is_closed &= !self.active.is_empty();
        Ok(())
    }

    fn remove_cancelled<S: SequenceSource>(&mut self, batch: &mut SequenceBatch<'_, S>) {
        for (job, sequence) in std::mem::take(&mut self.active) {
            if job.cancel.is_cancelled() {
                release(batch, sequence);
                (job.done)(Err(EngineError::Cancelled { id: 0 }));
            } else {
                self.active.push_back((job, sequence));
            }
        }
    }

    /// Restarts all jobs after the cache was lost.
    pub(crate) fn restart(&mut self) {
        for (job, sequence) in &mut self.active {
            *sequence = TokenSequence::new(job.tokens.clone());
        }
    }

    /// Ends all jobs with an error.
    pub(crate) fn fail(&mut self, why: &str) {
        self.active.drain(..).for_each(|(job, _)| fail(job, why));
    }
}

fn fail(job: TokenJob, why: &str) {
    (job.done)(Err(EngineError::PassFailed { why: why.to_owned() }));
}

/// Frees a sequence's slots; returns its scores.
fn release<S: SequenceSource>(
    batch: &mut SequenceBatch<'_, S>,
    sequence: TokenSequence,
) -> Vec<TokenScore> {
    if !sequence.is_new() {
        batch.unreserve(sequence.len());
    }
    let (kv, scores) = sequence.into_parts();
    if let Ok(cache) = batch.cache() {
        cache.release(kv, 0);
    }
    scores
}
