//! The answer with the largest share of the learned vote; see [`crate::Calibration`]. Without a
//! calibration, the majority.

use super::{Signals, VotingRule};
use crate::Candidate;
use crate::voting::{VoteParams, majority};

pub(super) struct Calibrated;

impl VotingRule for Calibrated {
    fn name(&self) -> &str {
        "calibrated"
    }

    fn describe(&self) -> &str {
        "votes weighted by all signals, with weights learned on held-out problems"
    }

    fn needs(&self) -> Signals {
        Signals { calibration: true, ..Signals::default() }
    }

    fn choose(&self, candidates: &[&dyn Candidate], params: &VoteParams) -> Option<usize> {
        match params.calibration {
            Some(calibration) => calibration.choose(candidates),
            None => majority(candidates),
        }
    }
}
