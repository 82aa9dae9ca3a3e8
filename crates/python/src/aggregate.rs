//! Voting over candidates passed as columns.

use latent_tts::aggregate::{self as voting, AnswerVotes};
use latent_tts::{Rule, TrajectoryRecord};
use pyo3::prelude::*;

use crate::errors::{check_rule, invalid};
use crate::options::{self, Sampling};

/// The candidates' columns: answers, process rewards, outcome rewards and log-probabilities.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Candidates {
    answers: Vec<Option<String>>,
    process_rewards: Option<Vec<Option<Vec<f32>>>>,
    outcome_rewards: Option<Vec<Option<f32>>>,
    logprobs: Option<Vec<Option<f32>>>,
}

impl Candidates {
    fn rows(self) -> PyResult<Vec<TrajectoryRecord>> {
        let count = self.answers.len();
        let columns = [
            ("process_rewards", self.process_rewards.as_ref().map(Vec::len)),
            ("outcome_rewards", self.outcome_rewards.as_ref().map(Vec::len)),
            ("logprobs", self.logprobs.as_ref().map(Vec::len)),
        ];
        for (name, len) in columns {
            if let Some(len) = len.filter(|len| *len != count) {
                return Err(invalid(format!("{name} has {len} entries for {count} answers")));
            }
        }
        let mut process = self.process_rewards.into_iter().flatten();
        let mut outcome = self.outcome_rewards.into_iter().flatten();
        let mut logprob = self.logprobs.into_iter().flatten();
        let row = |(number, answer): (usize, Option<String>)| TrajectoryRecord {
            index: number as u32,
            answer,
            process_rewards: process.next().flatten(),
            outcome_reward: outcome.next().flatten(),
            logprob: logprob.next().flatten(),
            ..TrajectoryRecord::default()
        };
        Ok(self.answers.into_iter().enumerate().map(row).collect())
    }
}

/// The index of the candidate selected by a rule, with the parameters in the sampling options.
#[pyfunction]
pub fn aggregate(candidates: Candidates, rule: &str, options: Sampling) -> PyResult<Option<usize>> {
    let rule = options::rule(rule)?;
    let chosen = rule.choose(&candidates.rows()?, &options.0.vote_params());
    check_rule(rule)?;
    Ok(chosen)
}

/// A distinct answer: its text, its votes, their weight and their mean reward.
pub type VoteTuple = (String, usize, f64, Option<f64>);

pub fn vote_tuples(votes: Vec<AnswerVotes<'_>>) -> Vec<VoteTuple> {
    let votes = votes.into_iter();
    votes.map(|v| (v.answer.to_owned(), v.votes, v.weight, v.mean_reward())).collect()
}

/// The distinct answers.
#[pyfunction]
pub fn votes(candidates: Candidates) -> PyResult<Vec<VoteTuple>> {
    Ok(vote_tuples(voting::votes(&candidates.rows()?)))
}

/// The names of all rules.
#[pyfunction]
pub fn rules() -> Vec<&'static str> {
    Rule::ALL.iter().map(|rule| rule.name()).collect()
}
