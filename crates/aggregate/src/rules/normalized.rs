//! Votes weighted by exp(z(r) / T): no scale of rewards can dominate.

use super::{Signals, VotingRule};
use crate::Candidate;
use crate::standardize::{sharpen, standardize};
use crate::voting::{Ballot, TieBreak, VoteParams};

pub(super) struct Normalized;

impl VotingRule for Normalized {
    fn name(&self) -> &str {
        "normalized"
    }

    fn describe(&self) -> &str {
        "votes weighted by the reward, standardized within the question"
    }

    fn needs(&self) -> Signals {
        Signals { rewards: true, logprobs: false, ..Signals::default() }
    }

    fn choose(&self, candidates: &[&dyn Candidate], params: &VoteParams) -> Option<usize> {
        let ballot = Ballot::new(candidates);
        let weights = sharpen(standardize(&ballot.rewards()), params.temperature);
        ballot.elect(&weights, TieBreak::Reward)
    }
}
