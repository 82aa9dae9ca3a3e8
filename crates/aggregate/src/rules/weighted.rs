//! Votes weighted by exp(r).

use super::{Signals, VotingRule};
use crate::Candidate;
use crate::voting::{VoteParams, weighted};

pub(super) struct Weighted;

impl VotingRule for Weighted {
    fn name(&self) -> &str {
        "weighted"
    }

    fn describe(&self) -> &str {
        "votes weighted by the reward"
    }

    fn needs(&self) -> Signals {
        Signals { rewards: true, logprobs: false, ..Signals::default() }
    }

    fn choose(&self, candidates: &[&dyn Candidate], _: &VoteParams) -> Option<usize> {
        weighted(candidates)
    }
}
