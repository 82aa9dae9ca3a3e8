//! The answer with the largest mean r - C std / sqrt(votes): answers with few votes need a higher
//! mean.

use super::{Signals, VotingRule};
use crate::Candidate;
use crate::voting::{VoteParams, lower_confidence_bound};

pub(super) struct LowerConfidenceBound;

impl VotingRule for LowerConfidenceBound {
    fn name(&self) -> &str {
        "lcb"
    }

    fn aliases(&self) -> &[&str] {
        &["pessimistic"]
    }

    fn describe(&self) -> &str {
        "the answer with the highest lower confidence bound on its mean reward"
    }

    fn needs(&self) -> Signals {
        Signals { rewards: true, logprobs: false, ..Signals::default() }
    }

    fn choose(&self, candidates: &[&dyn Candidate], params: &VoteParams) -> Option<usize> {
        lower_confidence_bound(candidates, params.lcb_coefficient)
    }
}
