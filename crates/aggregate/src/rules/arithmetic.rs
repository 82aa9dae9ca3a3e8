//! Votes weighted by exp((z(a) + z(g) + z(c)) / T): arithmetic, grounding and conclusion of the
//! checked steps. Needs neither labels nor a reward model.

use super::{Signals, VotingRule};
use crate::standardize::{sharpen, standardize};
use crate::voting::{Ballot, TieBreak, VoteParams};
use crate::{Candidate, signals};

pub(super) struct Arithmetic;

impl VotingRule for Arithmetic {
    fn name(&self) -> &str {
        "arithmetic"
    }

    fn describe(&self) -> &str {
        "votes weighted by checks of the equations in the steps"
    }

    fn needs(&self) -> Signals {
        Signals { signal: Some(signals::ARITHMETIC), ..Signals::default() }
    }

    fn choose(&self, candidates: &[&dyn Candidate], params: &VoteParams) -> Option<usize> {
        let ballot = Ballot::new(candidates);
        let mut sums = vec![0.0; ballot.len()];
        for name in [signals::ARITHMETIC, signals::GROUNDING, signals::CONCLUSION] {
            // A trajectory without equations gets the mean of the others.
            for (sum, z) in sums.iter_mut().zip(standardize(&ballot.signals(name))) {
                *sum += if z.is_finite() { z } else { 0.0 };
            }
        }
        ballot.elect(&sharpen(sums, params.temperature), TieBreak::Number)
    }
}
