//! External rewards: a [`Scorer`] replaces the reward model in an evaluation.
//!
//! A reward model scores thoughts inside the engine. A scorer receives finished trajectories:
//! texts, answers, thoughts, log-probabilities, and the rewards of the reward model if there is
//! one. Its rewards replace them for all rules: the reward of a trajectory becomes its outcome
//! reward and the process reward of each of its thoughts.
//!
//! Tested by tests/scorer.rs and, from Python, by python/tests/test_extensions.py.

#[cfg(feature = "http")]
mod http;

use std::error::Error as StdError;
use std::sync::Arc;

use aggregate::Rule;
use engine::{Output, SamplingParams, Trajectory};

use crate::Error;

#[cfg(feature = "http")]
pub use http::{HttpScorer, HttpScorerError, HttpScorerOptions};

/// Computes a reward for each trajectory of a question.
///
/// ```
/// use latent_tts::{Scorer, Trajectory};
///
/// /// Prefers short answers.
/// struct Brevity;
///
/// impl Scorer for Brevity {
///     fn name(&self) -> &str {
///         "brevity"
///     }
///
///     fn score(
///         &self,
///         _question: &str,
///         trajectories: &[&Trajectory],
///     ) -> Result<Vec<f32>, Box<dyn std::error::Error + Send + Sync>> {
///         Ok(trajectories.iter().map(|trajectory| -(trajectory.text.len() as f32)).collect())
///     }
/// }
/// ```
pub trait Scorer: Send + Sync {
    /// The name in the manifest. A run can only be resumed with the same scorer.
    fn name(&self) -> &str;

    /// Returns one finite reward per trajectory; larger is better. The greedy trajectory, if
    /// present, is last.
    ///
    /// # Errors
    ///
    /// An error ends the evaluation; recorded samples are kept.
    fn score(
        &self,
        question: &str,
        trajectories: &[&Trajectory],
    ) -> Result<Vec<f32>, Box<dyn StdError + Send + Sync>>;
}

/// Replaces the rewards of a reply by those of a scorer and selects the answer again: by weighted
/// votes, unless the parameters name another rule.
///
/// # Errors
///
/// The scorer fails, or returns rewards that are not finite or not one for each trajectory.
pub fn apply_scorer(
    scorer: &dyn Scorer,
    question: &str,
    params: &SamplingParams,
    reply: &mut Output,
) -> Result<(), Error> {
    let trajectories: Vec<&Trajectory> = reply.trajectories.iter().chain(&reply.greedy).collect();
    let rewards = scorer.score(question, &trajectories).map_err(|error| Error::Callback {
        name: scorer.name().to_owned(),
        error: Arc::from(error),
    })?;
    check(scorer, &rewards, trajectories.len())?;
    for (trajectory, reward) in reply.trajectories.iter_mut().chain(&mut reply.greedy).zip(rewards)
    {
        trajectory.process_rewards = Some(vec![reward; trajectory.thoughts]);
        trajectory.outcome_reward = Some(reward);
    }
    let learned = params.vote.calibration.map(|_| Rule::CALIBRATED);
    reply.rule = params.rule.or(learned).unwrap_or(Rule::WEIGHTED);
    reply.chosen = reply.rule.choose(&reply.trajectories, &params.vote);
    reply.confidence = params.vote.confidence(&reply.trajectories, reply.chosen);
    Ok(())
}

fn check(scorer: &dyn Scorer, rewards: &[f32], expected: usize) -> Result<(), Error> {
    let problem = if rewards.len() != expected {
        format!("returned {} rewards for {expected} trajectories", rewards.len())
    } else if let Some(reward) = rewards.iter().find(|reward| !reward.is_finite()) {
        format!("returned {reward}; rewards must be finite")
    } else {
        return Ok(());
    };
    Err(Error::InvalidRewards { name: scorer.name().to_owned(), problem })
}
