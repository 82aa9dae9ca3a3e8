//! The candidate with the largest score of a probe.

use super::{Signals, VotingRule};
use crate::voting::{Ballot, VoteParams};
use crate::{Candidate, signals};

pub(super) struct BestProbe;

impl VotingRule for BestProbe {
    fn name(&self) -> &str {
        "best_probe"
    }

    fn label(&self) -> &str {
        "best probe"
    }

    fn describe(&self) -> &str {
        "the answer of the trajectory with the highest probe score"
    }

    fn needs(&self) -> Signals {
        Signals { signal: Some(signals::PROBE), ..Signals::default() }
    }

    fn choose(&self, candidates: &[&dyn Candidate], _: &VoteParams) -> Option<usize> {
        let ballot = Ballot::new(candidates);
        ballot.best(&ballot.signals(signals::PROBE))
    }
}
