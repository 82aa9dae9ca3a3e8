//! The plain majority vote.

use super::{Signals, VotingRule};
use crate::Candidate;
use crate::voting::{VoteParams, majority};

pub(super) struct Majority;

impl VotingRule for Majority {
    fn name(&self) -> &str {
        "majority"
    }

    fn aliases(&self) -> &[&str] {
        &["maj"]
    }

    fn describe(&self) -> &str {
        "the most frequent answer of k trajectories"
    }

    fn needs(&self) -> Signals {
        Signals::default()
    }

    fn choose(&self, candidates: &[&dyn Candidate], _: &VoteParams) -> Option<usize> {
        majority(candidates)
    }
}
