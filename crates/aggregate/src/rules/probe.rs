//! Votes weighted by exp(s), s the score of a probe: a logit, like an outcome reward.

use super::{Signals, VotingRule};
use crate::standardize::softmax_weights;
use crate::voting::{Ballot, TieBreak, VoteParams};
use crate::{Candidate, signals};

pub(super) struct ProbeVote;

impl VotingRule for ProbeVote {
    fn name(&self) -> &str {
        "probe"
    }

    fn describe(&self) -> &str {
        "votes weighted by the probe's score of the hidden states"
    }

    fn needs(&self) -> Signals {
        Signals { signal: Some(signals::PROBE), ..Signals::default() }
    }

    fn choose(&self, candidates: &[&dyn Candidate], _: &VoteParams) -> Option<usize> {
        let ballot = Ballot::new(candidates);
        let weights = softmax_weights(&ballot.signals(signals::PROBE));
        ballot.elect(&weights, TieBreak::Number)
    }
}
