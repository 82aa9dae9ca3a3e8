//! Aggregation: from N sampled trajectories to one answer.
//!
//! Pure functions over a slice of [`Candidate`]s. The crate reads no files and does not use gold
//! answers, so the engine can vote on live trajectories and the report on recorded ones, with equal
//! results.
//!
//! | module | computes |
//! |---|---|
//! | rules | the registry of voting rules ([`Rule`], [`VotingRule`]), one file each |
//! | voting | shared parts of the rules: rewards, tallies, ties |
//! | early stopping | whether more samples could still change the majority ([`stop_reason`]) |
//! | arithmetic | which equations of a text hold ([`check_steps`]) |
//! | calibration | the learned combination of all signals and its confidence ([`Calibration`]) |
//! | diversity | mean pairwise cosine dissimilarity of thoughts at each step ([`StepDiversity`]) |
//! | ranking | pairwise ranking accuracy of rewards ([`ordered_pairs`]) |

mod arithmetic;
mod calibration;
mod diversity;
mod early_stopping;
mod ranking;
mod rules;
pub mod signals;
mod standardize;
#[cfg(test)]
mod testing;
mod voting;

pub use arithmetic::{Fraction, StepCheck, check_steps};
pub use calibration::{
    AnswerShare, Calibration, CalibrationExample, CalibrationWeights, FitError, Reliability,
    ReliabilityBin, fit_calibration,
};
pub use diversity::StepDiversity;
pub use early_stopping::{Confidence, EarlyStop, StopReason, lead_probability, stop_reason};
pub use ranking::ordered_pairs;
pub use rules::{Rule, RuleNameTaken, Signals, UnknownRule, VotingRule};
pub use voting::{
    AnswerVotes, RewardReduction, VoteParams, best_first, best_of, leader, majority, reward, votes,
    weighted,
};

/// One sampled trajectory, as seen by the voting rules.
pub trait Candidate {
    /// Its index among the trajectories sampled for the question; breaks ties.
    fn number(&self) -> u32;

    /// The canonical answer: two answers agree if the strings are equal. `None` never votes.
    fn answer(&self) -> Option<&str>;

    /// One reward per thought, if a reward model scored the trajectory.
    fn process_rewards(&self) -> Option<&[f32]>;

    /// The reward of the answer, if the reward model computes one.
    fn outcome_reward(&self) -> Option<f32>;

    /// The log-probability of the decoded text, if known.
    fn logprob(&self) -> Option<f32>;

    /// A signal by its name (see [`signals`]), if the trajectory has it.
    fn signal(&self, _name: &str) -> Option<f32> {
        None
    }
}

impl<T: Candidate + ?Sized> Candidate for &T {
    fn number(&self) -> u32 {
        (**self).number()
    }

    fn answer(&self) -> Option<&str> {
        (**self).answer()
    }

    fn process_rewards(&self) -> Option<&[f32]> {
        (**self).process_rewards()
    }

    fn outcome_reward(&self) -> Option<f32> {
        (**self).outcome_reward()
    }

    fn logprob(&self) -> Option<f32> {
        (**self).logprob()
    }

    fn signal(&self, name: &str) -> Option<f32> {
        (**self).signal(name)
    }
}
