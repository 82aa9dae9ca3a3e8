//! The candidate with the largest reward, under each reduction of process rewards to a number.

use super::{Signals, VotingRule};
use crate::Candidate;
use crate::voting::{RewardReduction, VoteParams, best_of};

pub(super) struct BestOf(pub(super) RewardReduction);

impl VotingRule for BestOf {
    fn name(&self) -> &str {
        match self.0 {
            RewardReduction::OutcomeOrMean => "best_of",
            RewardReduction::Mean => "best_of_mean",
            RewardReduction::Sum => "best_of_sum",
            RewardReduction::Last => "best_of_last",
            RewardReduction::Min => "best_of_min",
        }
    }

    fn label(&self) -> &str {
        match self.0 {
            RewardReduction::OutcomeOrMean => "best of k",
            RewardReduction::Mean => "best mean",
            RewardReduction::Sum => "best sum",
            RewardReduction::Last => "best last",
            RewardReduction::Min => "best min",
        }
    }

    fn describe(&self) -> &str {
        match self.0 {
            RewardReduction::OutcomeOrMean => {
                "the answer of the trajectory with the highest reward"
            }
            RewardReduction::Mean => {
                "the answer of the trajectory with the highest mean process reward"
            }
            RewardReduction::Sum => {
                "the answer of the trajectory with the highest sum of process rewards"
            }
            RewardReduction::Last => {
                "the answer of the trajectory with the highest last process reward"
            }
            RewardReduction::Min => {
                "the answer of the trajectory with the highest minimum process reward"
            }
        }
    }

    fn needs(&self) -> Signals {
        Signals { rewards: true, logprobs: false, ..Signals::default() }
    }

    fn reduction(&self) -> Option<RewardReduction> {
        Some(self.0)
    }

    fn choose(&self, candidates: &[&dyn Candidate], _: &VoteParams) -> Option<usize> {
        best_of(candidates, self.0)
    }
}
