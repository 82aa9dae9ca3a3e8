//! Votes weighted by exp(z(l) / T): needs no reward model.

use super::{Signals, VotingRule};
use crate::Candidate;
use crate::standardize::{sharpen, standardize};
use crate::voting::{Ballot, TieBreak, VoteParams};

pub(super) struct Likelihood;

impl VotingRule for Likelihood {
    fn name(&self) -> &str {
        "likelihood"
    }

    fn aliases(&self) -> &[&str] {
        &["likely"]
    }

    fn describe(&self) -> &str {
        "votes weighted by the text's standardized log-probability"
    }

    fn needs(&self) -> Signals {
        Signals { rewards: false, logprobs: true, ..Signals::default() }
    }

    fn choose(&self, candidates: &[&dyn Candidate], params: &VoteParams) -> Option<usize> {
        let ballot = Ballot::new(candidates);
        let weights = sharpen(standardize(&ballot.logprobs()), params.temperature);
        ballot.elect(&weights, TieBreak::Number)
    }
}
