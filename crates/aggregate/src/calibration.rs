//! The learned combination of all signals: the correct answer, and its probability.
//!
//! Each answer a of a question has a feature for every signal x, which compares the trajectories
//! with that answer to all trajectories with an answer:
//!
//! ```text
//! f_votes(a) = ln(votes(a) / trajectories with an answer)
//! f_x(a)     = ln mean_{i gave a} exp(x_i) - ln mean_i exp(x_i)
//! P(a)       = softmax_a(sum_x w_x f_x(a))
//! confidence = sigmoid(intercept + slope ln(P(a) / (1 - P(a))))
//! ```
//!
//! The weights w are those of a conditional logit, which [`fit`](fit::fit_calibration) estimates on
//! questions with known answers; slope and intercept (Platt scaling) convert the share of the
//! chosen answer to the probability that it is correct, which is lower if possibly no trajectory is
//! correct. With w = (1, 0, ...) the choice is the plain majority, with (1, 1) on one signal the
//! weighted vote.
//!
//! A missing signal is replaced by the mean of the trajectories that have it; a signal that no
//! trajectory has contributes nothing.

mod fit;
mod reliability;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::voting::{RewardReduction, reward};
use crate::{Candidate, signals};

pub use fit::{CalibrationExample, FitError, fit_calibration};
pub use reliability::{Reliability, ReliabilityBin};

/// Number of features.
pub(crate) const FEATURES: usize = 7;

/// The features of an answer, in the order of [`CalibrationWeights`].
pub(crate) type Features = [f64; FEATURES];

/// The weight of each signal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CalibrationWeights {
    /// Weight of the share of votes.
    pub votes: f64,
    /// Weight of the log-probability of the decoded text.
    pub likelihood: f64,
    /// Weight of the reward model's reward.
    pub reward: f64,
    /// Weight of the probe's score.
    pub probe: f64,
    /// Weight of the share of correct equations.
    pub arithmetic: f64,
    /// Weight of the share of operands that come from the question or an earlier equation.
    pub grounding: f64,
    /// Weight of the agreement of the answer with the last equation.
    pub conclusion: f64,
}

impl CalibrationWeights {
    /// The names of the features, in their order.
    pub const NAMES: [&str; FEATURES] =
        ["votes", "likelihood", "reward", "probe", "arithmetic", "grounding", "conclusion"];

    /// The weights in the order of [`Self::NAMES`].
    pub fn to_array(self) -> [f64; FEATURES] {
        let Self { votes, likelihood, reward, probe, arithmetic, grounding, conclusion } = self;
        [votes, likelihood, reward, probe, arithmetic, grounding, conclusion]
    }

    pub(crate) fn from_array(weights: [f64; FEATURES]) -> Self {
        let [votes, likelihood, reward, probe, arithmetic, grounding, conclusion] = weights;
        Self { votes, likelihood, reward, probe, arithmetic, grounding, conclusion }
    }
}

/// The parameters of the rule `calibrated` and of the confidence of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The weight of each signal in the choice.
    pub weights: CalibrationWeights,
    /// Factor of the log-odds of the chosen answer's share in its confidence.
    pub slope: f64,
    /// Offset of the log-odds.
    pub intercept: f64,
}

impl Calibration {
    /// Whether all parameters are finite.
    pub fn is_finite(&self) -> bool {
        let weights = self.weights.to_array();
        weights.iter().chain([&self.slope, &self.intercept]).all(|x| x.is_finite())
    }

    /// The answers with their shares P(a), in the order of their first trajectories.
    pub fn shares<T: Candidate>(&self, candidates: &[T]) -> Vec<AnswerShare> {
        let answers = answer_features(candidates);
        let weights = self.weights.to_array();
        let scores: Vec<f64> =
            answers.iter().map(|answer| dot(&weights, &answer.features)).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
        let share = |(answer, score): (&AnswerFeatures, &f64)| AnswerShare {
            first: answer.first,
            share: (score - max).exp() / total,
        };
        answers.iter().zip(&scores).map(share).collect()
    }

    /// The chosen answer, as the index of its first candidate; the first one of a tie.
    pub fn choose<T: Candidate>(&self, candidates: &[T]) -> Option<usize> {
        let shares = self.shares(candidates);
        let best = shares.iter().reduce(|best, next| match next.share > best.share {
            true => next,
            false => best,
        });
        best.map(|best| best.first)
    }

    /// The probability that the answer of a candidate is correct; `None` without an answer.
    pub fn confidence<T: Candidate>(&self, candidates: &[T], chosen: usize) -> Option<f64> {
        let answer = candidates.get(chosen)?.answer()?;
        let same = |share: &AnswerShare| candidates[share.first].answer() == Some(answer);
        let share = self.shares(candidates).into_iter().find(same)?.share;
        Some(sigmoid(self.intercept + self.slope * log_odds(share)))
    }
}

/// An answer's share of the learned vote.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnswerShare {
    /// The index of the candidate with the lowest number that gave it.
    pub first: usize,
    /// In 0..=1; sums to 1 over all answers.
    pub share: f64,
}

/// An answer with its features.
pub(crate) struct AnswerFeatures {
    /// The index of its first candidate.
    pub(crate) first: usize,
    pub(crate) features: Features,
}

/// The features of every distinct answer, ordered by the number of its first candidate.
pub(crate) fn answer_features<T: Candidate>(candidates: &[T]) -> Vec<AnswerFeatures> {
    let mut answered: Vec<usize> =
        (0..candidates.len()).filter(|&index| candidates[index].answer().is_some()).collect();
    answered.sort_by_key(|&index| candidates[index].number());
    let mut answers: Vec<(usize, Vec<usize>)> = Vec::new();
    let mut positions = HashMap::new();
    for (row, &index) in answered.iter().enumerate() {
        let position = *positions.entry(candidates[index].answer()).or_insert_with(|| {
            answers.push((index, Vec::new()));
            answers.len() - 1
        });
        answers[position].1.push(row);
    }
    let signals: [Vec<f64>; FEATURES - 1] = [
        column(candidates, &answered, |candidate| candidate.logprob().map(f64::from)),
        column(candidates, &answered, |candidate| {
            Some(reward(candidate, RewardReduction::OutcomeOrMean))
        }),
        signal_column(candidates, &answered, signals::PROBE),
        signal_column(candidates, &answered, signals::ARITHMETIC),
        signal_column(candidates, &answered, signals::GROUNDING),
        signal_column(candidates, &answered, signals::CONCLUSION),
    ];
    let everyone: Vec<usize> = (0..answered.len()).collect();
    let overall = signals.each_ref().map(|values| log_mean_exp(values, &everyone));
    let features = |(first, rows): (usize, Vec<usize>)| {
        let mut features = [0.0; FEATURES];
        features[0] = (rows.len() as f64 / answered.len() as f64).ln();
        for (k, values) in signals.iter().enumerate() {
            features[k + 1] = log_mean_exp(values, &rows) - overall[k];
        }
        AnswerFeatures { first, features }
    };
    answers.into_iter().map(features).collect()
}

fn signal_column<T: Candidate>(candidates: &[T], answered: &[usize], name: &str) -> Vec<f64> {
    column(candidates, answered, |candidate| candidate.signal(name).map(f64::from))
}

/// A signal of the candidates with an answer. Missing or non-finite values are replaced by the mean
/// of the others, or 0.
fn column<T: Candidate>(
    candidates: &[T],
    answered: &[usize],
    signal: impl Fn(&T) -> Option<f64>,
) -> Vec<f64> {
    let values: Vec<Option<f64>> = answered
        .iter()
        .map(|&index| signal(&candidates[index]).filter(|value| value.is_finite()))
        .collect();
    let known = values.iter().flatten().count().max(1) as f64;
    let mean = values.iter().flatten().sum::<f64>() / known;
    values.into_iter().map(|value| value.unwrap_or(mean)).collect()
}

/// Logarithm of the mean of the exponentials of some values; 0 if there are none.
fn log_mean_exp(values: &[f64], rows: &[usize]) -> f64 {
    let max = rows.iter().map(|&row| values[row]).fold(f64::NEG_INFINITY, f64::max);
    if !max.is_finite() {
        return 0.0;
    }
    let sum: f64 = rows.iter().map(|&row| (values[row] - max).exp()).sum();
    max + (sum / rows.len() as f64).ln()
}

pub(crate) fn dot(a: &Features, b: &Features) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Log-odds of a share, which is clamped to at least a millionth from 0 and 1.
pub(crate) fn log_odds(share: f64) -> f64 {
    let share = share.clamp(1e-6, 1.0 - 1e-6);
    (share / (1.0 - share)).ln()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{candidates, scored, unscored};
    use crate::voting::{majority, weighted};

    fn calibration(weights: CalibrationWeights) -> Calibration {
        Calibration { weights, slope: 1.0, intercept: 0.0 }
    }

    const VOTES: CalibrationWeights = CalibrationWeights {
        votes: 1.0,
        likelihood: 0.0,
        reward: 0.0,
        probe: 0.0,
        arithmetic: 0.0,
        grounding: 0.0,
        conclusion: 0.0,
    };

    proptest! {
        #[test]
        fn votes_alone_are_the_majority(candidates in candidates()) {
            let mut candidates = candidates;
            candidates.iter_mut().for_each(|candidate| candidate.process_rewards = None);
            prop_assert_eq!(calibration(VOTES).choose(&candidates), majority(&candidates));
        }

        #[test]
        fn the_order_does_not_matter(candidates in candidates(), rotation in 0usize..8) {
            let all = CalibrationWeights { likelihood: 0.5, reward: 0.7, ..VOTES };
            let chosen = calibration(all).choose(&candidates).map(|i| candidates[i].number);
            let mut rotated = candidates;
            let by = rotation % rotated.len().max(1);
            rotated.rotate_left(by);
            let again = calibration(all).choose(&rotated).map(|i| rotated[i].number);
            prop_assert_eq!(again, chosen);
        }
    }

    #[test]
    fn votes_and_rewards_are_the_weighted_vote() {
        let of = [("1", 0.5), ("2", 3.0), ("1", 0.25), ("3", -1.0), ("1", 0.0)];
        let candidates = scored(&of);
        let both = calibration(CalibrationWeights { reward: 1.0, ..VOTES });
        assert_eq!(both.choose(&candidates), weighted(&candidates));
        assert_eq!(calibration(VOTES).choose(&candidates), Some(0));
        let total: f64 = of.iter().map(|(_, reward)| f64::from(*reward).exp()).sum();
        let shares = both.shares(&candidates);
        assert!((shares[1].share - 3f64.exp() / total).abs() < 1e-9, "{shares:?}");
    }

    #[test]
    fn confidence_is_of_the_chosen_answer() {
        let candidates = unscored(&["1", "1", "1", "2", ""]);
        let of = Calibration { slope: 2.0, intercept: -1.0, ..calibration(VOTES) };
        let expected = sigmoid(-1.0 + 2.0 * 3f64.ln());
        assert!((of.confidence(&candidates, 1).unwrap() - expected).abs() < 1e-9);
        assert_eq!(of.confidence(&candidates, 4), None);
        assert_eq!(of.choose(&unscored(&["", ""])), None);
    }
}
