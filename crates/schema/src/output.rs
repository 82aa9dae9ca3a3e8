//! Results. `samples.jsonl`, HTTP, `solve --json` and Python use the same keys.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use aggregate::{AnswerVotes, Candidate};
use serde::{Deserialize, Serialize};

/// A trajectory: its answer and rewards, and the requested data of its thoughts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct TrajectoryRecord {
    /// The index of the trajectory within the question.
    #[serde(alias = "k")]
    pub index: u32,
    /// The number of thoughts.
    #[serde(alias = "thoughts")]
    pub latent_steps: u32,
    /// The decoded text.
    pub text: String,
    /// The canonical answer: equal answers are equal strings. `None` is never counted as a vote and
    /// is never correct.
    #[serde(default)]
    pub answer: Option<String>,
    /// One reward per thought, if a reward model scored them.
    #[serde(default, alias = "scores")]
    pub process_rewards: Option<Vec<f32>>,
    /// The reward of the answer, if the reward model reads answers.
    #[serde(default, alias = "verdict", skip_serializing_if = "Option::is_none")]
    pub outcome_reward: Option<f32>,
    /// Whether the answer equals the gold answer; `None` if the gold answer is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correct: Option<bool>,
    /// Whether the text reached the limit of answer tokens without an answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// The log-probability of the decoded tokens including the end-of-sequence token, if finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob: Option<f32>,
    /// Further signals by name: `probe`, and `arithmetic`, `grounding` and `conclusion` if steps
    /// are checked.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub signals: BTreeMap<String, f32>,
    /// The most probable tokens (text, probability) at the hidden state of each thought, if
    /// requested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lens: Vec<Vec<(String, f32)>>,
    /// The thought vectors as fed to the model, if requested. A run directory stores them in
    /// `latents.safetensors` instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latents: Option<Vec<Vec<f32>>>,
}

impl TrajectoryRecord {
    /// Whether the answer is known to be correct.
    pub fn is_correct(&self) -> bool {
        self.correct == Some(true)
    }
}

impl Candidate for TrajectoryRecord {
    fn number(&self) -> u32 {
        self.index
    }

    fn answer(&self) -> Option<&str> {
        self.answer.as_deref()
    }

    fn process_rewards(&self) -> Option<&[f32]> {
        self.process_rewards.as_deref()
    }

    fn outcome_reward(&self) -> Option<f32> {
        self.outcome_reward
    }

    fn logprob(&self) -> Option<f32> {
        self.logprob
    }

    fn signal(&self, name: &str) -> Option<f32> {
        self.signals.get(name).copied()
    }
}

/// A distinct answer and the trajectories that gave it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct Vote {
    /// The canonical answer.
    pub answer: String,
    /// The number of trajectories with this answer.
    pub votes: usize,
    /// The answer's share of the summed weights exp(reward).
    pub weight: f64,
    /// The mean reward of its trajectories, if every trajectory with an answer was scored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
}

impl From<&AnswerVotes<'_>> for Vote {
    fn from(votes: &AnswerVotes<'_>) -> Self {
        Self {
            answer: votes.answer.to_owned(),
            votes: votes.votes,
            weight: votes.weight,
            reward: votes.mean_reward(),
        }
    }
}

/// The amount of computation, counted instead of timed: a function of sequence lengths, the same on
/// every machine and in every batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct ComputeCost {
    /// Positions computed after the prompt: thoughts, end tokens and answer tokens of all
    /// trajectories.
    pub steps: u64,
    /// Floating-point operations; a multiply-add counts as two.
    pub flops: f64,
}

impl AddAssign for ComputeCost {
    fn add_assign(&mut self, more: Self) {
        self.steps += more.steps;
        self.flops += more.flops;
    }
}

/// Wall-clock seconds by stage; a line of `timings.jsonl`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
pub struct StageSeconds {
    /// Prefill of the prompts.
    pub prefill: f64,
    /// Generating thoughts.
    pub thoughts: f64,
    /// Scoring with the reward model.
    pub scores: f64,
    /// Decoding answers.
    pub answers: f64,
    /// Beam search, including all its stages.
    #[serde(default)]
    pub beam: f64,
    /// Elapsed time, including work between the stages.
    pub total: f64,
}

impl StageSeconds {
    /// Scoring time as a fraction of sampling time; `None` without scoring.
    pub fn scoring_share(&self) -> Option<f64> {
        let sampling = self.prefill + self.thoughts + self.scores + self.answers;
        (self.scores > 0.0).then(|| self.scores / sampling)
    }

    /// Every field multiplied by `factor`.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            prefill: self.prefill * factor,
            thoughts: self.thoughts * factor,
            scores: self.scores * factor,
            answers: self.answers * factor,
            beam: self.beam * factor,
            total: self.total * factor,
        }
    }
}

impl AddAssign for StageSeconds {
    fn add_assign(&mut self, more: Self) {
        self.prefill += more.prefill;
        self.thoughts += more.thoughts;
        self.scores += more.scores;
        self.answers += more.answers;
        self.beam += more.beam;
        self.total += more.total;
    }
}
