//! The reward of a sampled answer.

use aggregate::{Rule, VoteParams};
use data::answer::Answer;
use engine::{Output, Trajectory};
use serde::{Deserialize, Serialize};

/// The reward of a trajectory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum RewardKind {
    /// 1 for a correct answer, else 0
    #[default]
    Correct,
    /// 1 for the majority answer of the question's trajectories, else 0; uses no gold answers
    /// (test-time training)
    Majority,
    /// Probability of a correct answer by the reward model: sigmoid of the outcome reward, or of
    /// the mean process reward if there is none
    Model,
}

/// How trajectories are rewarded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RewardConfig {
    /// The kind of reward.
    pub kind: RewardKind,
    /// Penalty subtracted for each thought and each answer token.
    pub length_penalty: f64,
}

impl RewardConfig {
    /// The reward of every trajectory of a question.
    pub fn rewards(&self, reply: &Output, gold: &str) -> Vec<f64> {
        let leading = match self.kind {
            RewardKind::Correct | RewardKind::Model => None,
            RewardKind::Majority => reply
                .choose(Rule::MAJORITY, &VoteParams::default())
                .and_then(|chosen| chosen.answer.as_ref()),
        };
        let reward = |one: &Trajectory| {
            let earned = match self.kind {
                RewardKind::Correct => share(is_correct(one, gold)),
                RewardKind::Majority => {
                    let own = one.answer.as_ref().map(Answer::as_str);
                    share(own.is_some() && own == leading.map(Answer::as_str))
                }
                RewardKind::Model => model_reward(one),
            };
            earned - self.length_penalty * length(one)
        };
        reply.trajectories.iter().map(reward).collect()
    }

    /// The reward of the unperturbed trajectory, which does not take part in majority votes: 1 if
    /// correct, or the reward model's.
    pub fn of_greedy(&self, greedy: &Trajectory, gold: &str) -> f64 {
        let earned = match self.kind {
            RewardKind::Correct | RewardKind::Majority => share(is_correct(greedy, gold)),
            RewardKind::Model => model_reward(greedy),
        };
        earned - self.length_penalty * length(greedy)
    }
}

fn share(hit: bool) -> f64 {
    f64::from(u8::from(hit))
}

/// The sigmoid of a trajectory's reward; 0 without an answer.
fn model_reward(trajectory: &Trajectory) -> f64 {
    if trajectory.answer.is_none() {
        return 0.0;
    }
    let process = trajectory.process_rewards.iter().flatten();
    let mean = process.clone().sum::<f32>() / process.count().max(1) as f32;
    let logit = f64::from(trajectory.outcome_reward.unwrap_or(mean));
    1.0 / (1.0 + (-logit).exp())
}

/// Whether a trajectory's answer equals the gold answer.
pub fn is_correct(trajectory: &Trajectory, gold: &str) -> bool {
    trajectory.answer.as_ref().is_some_and(|answer| answer.matches(gold))
}

/// Number of thoughts and answer tokens.
fn length(trajectory: &Trajectory) -> f64 {
    (trajectory.thoughts + trajectory.tokens.len()) as f64
}
