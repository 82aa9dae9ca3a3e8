//! The reward of a sampled answer.

use aggregate::{Rule, VoteParams};
use engine::{Reply, Trajectory};
use serde::{Deserialize, Serialize};

/// What a trajectory is rewarded for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum RewardKind {
    /// 1 for the right answer
    #[default]
    Correct,
    /// 1 for the answer that most of the question's trajectories give: no gold answers are read
    /// (test-time training)
    Majority,
}

/// How trajectories are rewarded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RewardConfig {
    /// What for.
    pub kind: RewardKind,
    /// Subtracted for each thought and each answer token.
    pub length_penalty: f64,
}

impl RewardConfig {
    /// The reward of every trajectory of a question.
    pub fn rewards(&self, reply: &Reply, gold: &str) -> Vec<f64> {
        let leading = match self.kind {
            RewardKind::Correct => None,
            RewardKind::Majority => reply
                .choose(Rule::MAJORITY, &VoteParams::default())
                .and_then(|chosen| chosen.answer.as_ref()),
        };
        let hit = |trajectory: &Trajectory| match self.kind {
            RewardKind::Correct => is_correct(trajectory, gold),
            RewardKind::Majority => {
                let own = trajectory.answer.as_ref().map(data::answer::Answer::as_str);
                own.is_some() && own == leading.map(data::answer::Answer::as_str)
            }
        };
        let all = reply.trajectories.iter();
        all.map(|one| f64::from(u8::from(hit(one))) - self.length_penalty * length(one)).collect()
    }

    /// The reward of one trajectory for being correct; for the unperturbed one.
    pub fn of_correct(&self, trajectory: &Trajectory, gold: &str) -> f64 {
        f64::from(u8::from(is_correct(trajectory, gold))) - self.length_penalty * length(trajectory)
    }
}

/// Whether a trajectory's answer is the gold one.
pub fn is_correct(trajectory: &Trajectory, gold: &str) -> bool {
    trajectory.answer.as_ref().is_some_and(|answer| answer.matches(gold))
}

/// Thoughts and answer tokens.
fn length(trajectory: &Trajectory) -> f64 {
    (trajectory.thoughts + trajectory.tokens.len()) as f64
}
