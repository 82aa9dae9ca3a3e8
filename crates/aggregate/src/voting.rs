//! The shared parts of the voting rules: rewards, tallies, ties. `rules` contains the rules
//! themselves.
//!
//! Each rule returns the index of the chosen candidate, or `None` if no candidate has an answer.
//! The order of the slice does not matter: where an order is needed it is that of the candidates'
//! numbers.
//!
//! With r the reward of a candidate (its outcome reward if it has one, else its mean process
//! reward), l its log-probability, and z(x) = (x - mean) / std over the k candidates that have an
//! answer:
//!
//! | [`Rule`](crate::Rule) | chooses | needs |
//! |---|---|---|
//! | `majority` | the answer with the most votes | |
//! | `weighted` | the answer with the largest sum of exp(r) | rewards |
//! | `normalized` | the answer with the largest sum of exp(z(r) / T) | rewards |
//! | `likelihood` | the answer with the largest sum of exp(z(l) / T) | log-probabilities |
//! | `combined` | the answer with the largest sum of exp((z(r) + L z(l)) / T) | both |
//! | `lcb` | the answer with the largest mean r - C std / sqrt(votes) | rewards |
//! | `best_of` | the candidate with the largest r | rewards |
//! | `best_of_mean` | the candidate with the largest mean process reward | rewards |
//! | `best_of_sum`, `_last`, `_min` | the same by the sum, the last, the smallest | rewards |
//! | `probe` | the answer with the largest sum of exp(s), s the probe's score | a probe |
//! | `best_probe` | the candidate with the largest s | a probe |
//! | `arithmetic` | the answer with the largest sum of exp of its steps' checks, z-scored | steps |
//! | `calibrated` | the answer with the largest learned share | a calibration |
//!
//! T, L and C are the constants of [`VoteParams`].
//!
//! Ties between answers go to the answer whose first candidate has the lowest number; the rules
//! that need rewards first compare the summed reward, if every candidate with an answer was scored.
//! Ties between candidates go to the lowest number.
//!
//! A candidate without an answer never votes and is never chosen. One without any reward ranks
//! lowest: it has weight 0, and is chosen only among candidates without rewards. If rewards do not
//! differ, or there are none, a weighted rule is equivalent to the plain majority.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::Candidate;
use crate::calibration::Calibration;
use crate::standardize::{MeanStd, softmax_weights, standardize};

#[cfg(test)]
mod tests;

/// How the rewards of a candidate are reduced to one number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RewardReduction {
    /// The outcome reward if there is one, else [`RewardReduction::Mean`].
    #[default]
    OutcomeOrMean,
    /// The mean process reward: the paper's length-normalized score.
    Mean,
    /// The sum of the process rewards.
    Sum,
    /// The process reward of the last thought.
    Last,
    /// The smallest process reward.
    Min,
}

/// The constants of the voting rules.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VoteParams {
    /// Divides standardized values before the softmax; above 0. Large values approach the majority.
    pub temperature: f64,
    /// Weight of the standardized log-probability relative to the standardized reward.
    #[serde(alias = "lambda")]
    pub likelihood_weight: f64,
    /// Standard errors between the mean reward and its lower bound.
    #[serde(alias = "caution")]
    pub lcb_coefficient: f64,
    /// The parameters of the rule `calibrated` and of the confidence of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

impl Default for VoteParams {
    fn default() -> Self {
        Self { temperature: 1.0, likelihood_weight: 1.0, lcb_coefficient: 1.0, calibration: None }
    }
}

impl VoteParams {
    /// The probability that the answer of the chosen candidate is correct, if there is a
    /// calibration.
    pub fn confidence<T: Candidate>(&self, candidates: &[T], chosen: Option<usize>) -> Option<f64> {
        self.calibration?.confidence(candidates, chosen?)
    }
}

/// How ties between answers of equal weight are broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TieBreak {
    /// The larger sum of rewards, then the lower number.
    Reward,
    /// The lower number only.
    Number,
}

/// The candidates with an answer, by number.
pub(crate) struct Ballot<'a, T> {
    candidates: &'a [T],
    answered: Vec<usize>,
}

impl<'a, T: Candidate> Ballot<'a, T> {
    pub(crate) fn new(candidates: &'a [T]) -> Self {
        Self { candidates, answered: answered_by_number(candidates) }
    }

    /// One reward per candidate with an answer.
    pub(crate) fn rewards(&self) -> Vec<f64> {
        rewards(self.candidates, &self.answered)
    }

    /// One log-probability per candidate with an answer; negative infinity if missing.
    pub(crate) fn logprobs(&self) -> Vec<f64> {
        let logprob = |&index: &usize| self.candidates[index].logprob();
        let values = self.answered.iter().map(logprob);
        values.map(|logprob| logprob.map_or(f64::NEG_INFINITY, f64::from)).collect()
    }

    /// One value of a signal per candidate with an answer; negative infinity if missing.
    pub(crate) fn signals(&self, name: &str) -> Vec<f64> {
        let signal = |&index: &usize| self.candidates[index].signal(name);
        let values = self.answered.iter().map(signal);
        values.map(|value| value.map_or(f64::NEG_INFINITY, f64::from)).collect()
    }

    /// Number of candidates with an answer.
    pub(crate) fn len(&self) -> usize {
        self.answered.len()
    }

    /// The candidate with the largest value, given one per candidate with an answer; the lowest
    /// number of a tie.
    pub(crate) fn best(&self, values: &[f64]) -> Option<usize> {
        let items = self.answered.iter().copied().zip(values);
        first_max(items, |(_, a), (_, b)| a.total_cmp(b)).map(|(index, _)| index)
    }

    /// The answer with the largest sum of weights, given one per candidate with an answer.
    pub(crate) fn elect(&self, weights: &[f64], ties: TieBreak) -> Option<usize> {
        let mut votes = tally(self.candidates, &self.answered, weights);
        if ties == TieBreak::Number {
            votes.iter_mut().for_each(|votes| votes.reward = None);
        }
        pick_answer(votes, |votes| votes.weight)
    }
}

/// An answer and the candidates that gave it.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerVotes<'a> {
    /// The canonical answer.
    pub answer: &'a str,
    /// The index of the candidate with the lowest number that gave it.
    pub first: usize,
    /// Number of candidates that gave it.
    pub votes: usize,
    /// Their share of the summed weights, exp(reward), of all answers: 1 over all answers.
    pub weight: f64,
    /// The sum of their rewards, if every candidate with an answer was scored.
    pub reward: Option<f64>,
}

impl AnswerVotes<'_> {
    /// The mean of their rewards, if every candidate with an answer was scored and it is finite.
    pub fn mean_reward(&self) -> Option<f64> {
        self.reward.map(|sum| sum / self.votes as f64).filter(|mean| mean.is_finite())
    }
}

/// The reward of a candidate; negative infinity if it has none or one that is not finite.
pub fn reward<T: Candidate>(candidate: &T, reduction: RewardReduction) -> f64 {
    if let (RewardReduction::OutcomeOrMean, Some(reward)) = (reduction, candidate.outcome_reward())
    {
        return f64::from(reward);
    }
    let rewards = candidate.process_rewards().unwrap_or_default();
    let sum: f64 = rewards.iter().copied().map(f64::from).sum();
    match (reduction, rewards) {
        (_, []) => f64::NEG_INFINITY,
        _ if !sum.is_finite() => f64::NEG_INFINITY,
        (RewardReduction::OutcomeOrMean | RewardReduction::Mean, _) => sum / rewards.len() as f64,
        (RewardReduction::Sum, _) => sum,
        (RewardReduction::Last, [.., last]) => f64::from(*last),
        (RewardReduction::Min, [first, rest @ ..]) => {
            f64::from(rest.iter().copied().fold(*first, f32::min))
        }
    }
}

/// The distinct answers, ordered by the number of the first candidate that gave each.
pub fn votes<T: Candidate>(candidates: &[T]) -> Vec<AnswerVotes<'_>> {
    let mut votes = weighted_votes(candidates);
    let total: f64 = votes.iter().map(|votes| votes.weight).sum();
    votes.iter_mut().for_each(|votes| votes.weight /= total);
    votes
}

/// [`votes`] with sums of unnormalized weights, which rounding cannot make equal.
fn weighted_votes<T: Candidate>(candidates: &[T]) -> Vec<AnswerVotes<'_>> {
    let answered = answered_by_number(candidates);
    let weights = softmax_weights(&rewards(candidates, &answered));
    tally(candidates, &answered, &weights)
}

/// The answer that the plain majority elects. `votes` must be ordered as by [`votes`].
pub fn leader<'c, 'a>(votes: &'c [AnswerVotes<'a>]) -> Option<&'c AnswerVotes<'a>> {
    first_max(votes.iter(), |a, b| a.votes.cmp(&b.votes))
}

/// The answer with the most votes, as the index of its first candidate.
pub fn majority<T: Candidate>(candidates: &[T]) -> Option<usize> {
    leader(&votes(candidates)).map(|leader| leader.first)
}

/// The answer with the largest sum of exp(reward), as the index of its first candidate.
pub fn weighted<T: Candidate>(candidates: &[T]) -> Option<usize> {
    pick_answer(weighted_votes(candidates), |votes| votes.weight)
}

/// The candidate with the largest reward among those with an answer.
pub fn best_of<T: Candidate>(candidates: &[T], reduction: RewardReduction) -> Option<usize> {
    best_first(candidates, reduction).first().copied()
}

/// The candidates with an answer, from the largest reward to the smallest: of any subset,
/// [`best_of`] chooses the first in this order.
pub fn best_first<T: Candidate>(candidates: &[T], reduction: RewardReduction) -> Vec<usize> {
    let reward = |index: usize| reward(&candidates[index], reduction);
    let mut answered = answered_by_number(candidates);
    answered.sort_by(|&a, &b| reward(b).total_cmp(&reward(a))); // stable: ties by number
    answered
}

/// Candidates without a reward count neither in the mean nor in the number of votes.
pub(crate) fn lower_confidence_bound<T: Candidate>(
    candidates: &[T],
    coefficient: f64,
) -> Option<usize> {
    let answered = answered_by_number(candidates);
    let rewards = rewards(candidates, &answered);
    let Some(MeanStd { std, .. }) = MeanStd::of(&rewards) else {
        // The rewards do not differ: use the majority of the candidates that have one.
        let weights = softmax_weights(&standardize(&rewards));
        let votes = tally(candidates, &answered, &weights);
        return pick_answer(votes, |votes| votes.weight);
    };
    let mut sums: HashMap<&str, (f64, f64)> = HashMap::new();
    for (&index, reward) in answered.iter().zip(rewards).filter(|(_, reward)| reward.is_finite()) {
        let answer = candidates[index].answer().unwrap_or_default();
        let (sum, count) = sums.entry(answer).or_default();
        (*sum, *count) = (*sum + reward, *count + 1.0);
    }
    let bound = |(sum, count): &(f64, f64)| sum / count - coefficient * std / count.sqrt();
    let strength =
        |votes: &AnswerVotes<'_>| sums.get(votes.answer).map_or(f64::NEG_INFINITY, bound);
    pick_answer(votes(candidates), strength)
}

fn rewards<T: Candidate>(candidates: &[T], indices: &[usize]) -> Vec<f64> {
    indices.iter().map(|&i| reward(&candidates[i], RewardReduction::OutcomeOrMean)).collect()
}

/// Sums `weights`, one for each index of `answered`, by answer.
fn tally<'a, T: Candidate>(
    candidates: &'a [T],
    answered: &[usize],
    weights: &[f64],
) -> Vec<AnswerVotes<'a>> {
    let scored = answered.iter().all(|&i| candidates[i].process_rewards().is_some());
    let mut votes: Vec<AnswerVotes<'_>> = Vec::new();
    let mut positions = HashMap::new();
    for (&first, &weight) in answered.iter().zip(weights) {
        let Some(answer) = candidates[first].answer() else {
            continue;
        };
        let position = *positions.entry(answer).or_insert_with(|| {
            let reward = scored.then_some(0.0);
            votes.push(AnswerVotes { answer, first, votes: 0, weight: 0.0, reward });
            votes.len() - 1
        });
        let entry = &mut votes[position];
        entry.votes += 1;
        entry.weight += weight;
        let own = reward(&candidates[first], RewardReduction::OutcomeOrMean);
        entry.reward = entry.reward.map(|sum| sum + own);
    }
    votes
}

/// The answer with the largest strength; ties go to the larger summed reward, then to the first.
fn pick_answer<'a>(
    votes: Vec<AnswerVotes<'a>>,
    strength: impl Fn(&AnswerVotes<'a>) -> f64,
) -> Option<usize> {
    let summed_reward = |votes: &AnswerVotes<'a>| votes.reward.unwrap_or_default();
    let order = |a: &_, b: &_| {
        let by_reward = || summed_reward(a).total_cmp(&summed_reward(b));
        strength(a).total_cmp(&strength(b)).then_with(by_reward)
    };
    first_max(votes.into_iter(), order).map(|votes| votes.first)
}

/// The largest item; the first one of a tie. (`Iterator::max_by` returns the last.)
fn first_max<T>(items: impl Iterator<Item = T>, order: impl Fn(&T, &T) -> Ordering) -> Option<T> {
    items.reduce(|best, item| if order(&item, &best).is_gt() { item } else { best })
}

/// The indices of the candidates with an answer, by number. All floating-point sums run in this
/// order, so a shuffled slice gives the same bits.
fn answered_by_number<T: Candidate>(candidates: &[T]) -> Vec<usize> {
    let answered = |&index: &usize| candidates[index].answer().is_some();
    let mut indices: Vec<usize> = (0..candidates.len()).filter(answered).collect();
    indices.sort_by_key(|&index| candidates[index].number());
    indices
}
