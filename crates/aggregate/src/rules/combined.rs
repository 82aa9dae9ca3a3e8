//! Votes weighted by exp((z(r) + L z(l)) / T).

use super::{Signals, VotingRule};
use crate::Candidate;
use crate::standardize::{sharpen, standardize};
use crate::voting::{Ballot, TieBreak, VoteParams};

pub(super) struct Combined;

impl VotingRule for Combined {
    fn name(&self) -> &str {
        "combined"
    }

    fn describe(&self) -> &str {
        "votes weighted by standardized reward and log-probability"
    }

    fn needs(&self) -> Signals {
        Signals { rewards: true, logprobs: true, ..Signals::default() }
    }

    fn choose(&self, candidates: &[&dyn Candidate], params: &VoteParams) -> Option<usize> {
        let ballot = Ballot::new(candidates);
        let rewards = standardize(&ballot.rewards());
        let logprobs = standardize(&ballot.logprobs());
        let sum = |(reward, logprob): (f64, f64)| match logprob.is_finite() {
            true => reward + params.likelihood_weight * logprob,
            false => logprob,
        };
        let scores: Vec<f64> = rewards.into_iter().zip(logprobs).map(sum).collect();
        ballot.elect(&sharpen(scores, params.temperature), TieBreak::Reward)
    }
}
