//! From many trajectories to one: the voting rules.
//!
//! Pure functions over a slice, usually the first k trajectories of a question. Each gives the
//! index of the chosen trajectory, or `None` where no trajectory has an answer. The order of the
//! slice never matters; where an order is needed, it is that of the trajectory numbers.
//!
//! With r the reward of a trajectory (the judge's verdict on its answer where it gives one, else
//! the mean step reward), l the log-probability of its text, and z(x) = (x - mean) / deviation of x
//! over the k trajectories that have an answer:
//!
//! | [`Aggregator`] | chooses | needs |
//! |---|---|---|
//! | `maj` | the answer with most votes | |
//! | `weighted` | the answer with the largest sum of exp(r) | rewards |
//! | `normalized` | the answer with the largest sum of exp(z(r) / temperature) | rewards |
//! | `likely` | the answer with the largest sum of exp(z(l) / temperature) | log-probabilities |
//! | `combined` | the answer with the largest sum of exp((z(r) + lambda z(l)) / temperature) | both |
//! | `pessimistic` | the answer with the largest mean r - caution * deviation / sqrt(votes) | rewards |
//! | `best_of` | the trajectory with the largest r | rewards |
//! | `best_of_sum`, `_last`, `_min` | the trajectory with the largest sum (last, smallest) of step rewards | rewards |
//!
//! Ties between answers go to the larger summed reward if all were scored, then to the answer whose
//! first supporter has the lowest number; ties between trajectories to the lowest number. A
//! trajectory without an answer never votes and is never chosen. One without thoughts has no step
//! to be rewarded for: its reward is the lowest there is, its weight is 0, and it is chosen only
//! among its like. Where nothing tells trajectories apart (no deviation, no reward at all), a
//! weighted rule is the plain vote.

mod signal;
#[cfg(test)]
pub(crate) mod tests;

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::sample::TrajectoryRecord;
use signal::{MeanStd, softmax_weights};

/// How what a judge says of a trajectory becomes one number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RewardReduction {
    /// Its verdict on the answer where it gives one, else the sum of the step rewards divided by
    /// their number, which is the paper's.
    #[default]
    OutcomeOrMean,
    /// The sum of the step rewards.
    Sum,
    /// The last thought's.
    Last,
    /// The smallest step reward.
    Min,
}

/// A rule that makes one answer of many trajectories; the module says what each one does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Aggregator {
    /// Most votes.
    Majority,
    /// Votes weighted by exp(reward): a softmax of the rewards as they are.
    Weighted,
    /// Votes weighted by a softmax of the rewards in units of their own spread, so that no scale of
    /// rewards overrules the vote.
    Normalized,
    /// Votes weighted by a softmax of the texts' log-probabilities in units of their own spread. It
    /// takes no reward model.
    Likelihood,
    /// Votes weighted by a softmax of both signals.
    Combined,
    /// A lower bound on each answer's mean reward: few supporters must be rewarded higher than
    /// many.
    Pessimistic,
    /// The trajectory with the largest reward.
    BestOf(RewardReduction),
}

/// The numbers in the rules.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct VoteParams {
    /// What normalised signals are divided by before the softmax, above 0: small trusts them,
    /// large trusts the vote.
    pub temperature: f64,
    /// The weight of a log-probability beside a reward, both in units of their spread.
    pub lambda: f64,
    /// Standard errors that a lower bound lies below the mean.
    pub caution: f64,
}

impl Default for VoteParams {
    fn default() -> Self {
        Self { temperature: 1.0, lambda: 1.0, caution: 1.0 }
    }
}

impl Aggregator {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Majority,
        Self::Weighted,
        Self::Normalized,
        Self::Likelihood,
        Self::Combined,
        Self::Pessimistic,
        Self::BestOf(RewardReduction::OutcomeOrMean),
        Self::BestOf(RewardReduction::Sum),
        Self::BestOf(RewardReduction::Last),
        Self::BestOf(RewardReduction::Min),
    ];

    /// Those that are measured unless others are asked for: all but the other reductions of
    /// best-of.
    pub const DEFAULT: &[Self] = Self::ALL.split_at(7).0;

    /// The name in commands and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Majority => "maj",
            Self::Weighted => "weighted",
            Self::Normalized => "normalized",
            Self::Likelihood => "likely",
            Self::Combined => "combined",
            Self::Pessimistic => "pessimistic",
            Self::BestOf(RewardReduction::OutcomeOrMean) => "best_of",
            Self::BestOf(RewardReduction::Sum) => "best_of_sum",
            Self::BestOf(RewardReduction::Last) => "best_of_last",
            Self::BestOf(RewardReduction::Min) => "best_of_min",
        }
    }

    /// The rule of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == name)
    }

    /// Whether these trajectories have what the rule looks at.
    pub fn applies(self, trajectories: &[TrajectoryRecord]) -> bool {
        let (scored, told) = match self {
            Self::Majority => (false, false),
            Self::Likelihood => (false, true),
            Self::Combined => (true, true),
            Self::Weighted | Self::Normalized | Self::Pessimistic | Self::BestOf(_) => {
                (true, false)
            }
        };
        let has = |t: &TrajectoryRecord| {
            (!scored || t.process_rewards.is_some()) && (!told || t.logprob.is_some())
        };
        trajectories.iter().all(has)
    }

    /// The index of the chosen trajectory; of an answer's supporters the one with the lowest
    /// number.
    pub fn choose(self, trajectories: &[TrajectoryRecord], tuning: &VoteParams) -> Option<usize> {
        let answered = answered_by_number(trajectories);
        let rewards =
            || map_indices(&answered, |i| reward(&trajectories[i], RewardReduction::OutcomeOrMean));
        let likelihoods = || {
            map_indices(&answered, |i| trajectories[i].logprob.map_or(f64::NEG_INFINITY, f64::from))
        };
        let sharp =
            |signal: Vec<f64>| softmax_weights(&map_values(&signal, |x| x / tuning.temperature));
        let weights = match self {
            Self::BestOf(reduction) => return best_of(trajectories, reduction),
            Self::Pessimistic => return pessimistic(trajectories, tuning.caution),
            Self::Majority => vec![1.0; answered.len()],
            Self::Weighted => softmax_weights(&rewards()),
            Self::Normalized => sharp(signal::standardize(&rewards())),
            Self::Likelihood => sharp(signal::standardize(&likelihoods())),
            Self::Combined => {
                let likely = signal::standardize(&likelihoods());
                let both = signal::standardize(&rewards())
                    .into_iter()
                    .zip(likely)
                    .map(|(r, l)| if l.is_finite() { r + tuning.lambda * l } else { l });
                sharp(both.collect())
            }
        };
        pick_answer(tally(trajectories, &answered, &weights), |candidate| candidate.weight)
    }
}

/// One answer and the trajectories behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerVotes<'a> {
    /// The answer.
    pub answer: &'a str,
    /// The index of its supporter with the lowest trajectory number.
    pub first: usize,
    /// How many support it.
    pub votes: usize,
    /// The sum of their weights, exp(reward - largest reward).
    pub weight: f64,
    /// The sum of their rewards, where every trajectory with an answer was scored.
    pub reward: Option<f64>,
}

/// The reward of a trajectory: negative infinity without thoughts, without scores, or with one that
/// is not finite.
pub fn reward(trajectory: &TrajectoryRecord, reduction: RewardReduction) -> f64 {
    if let (RewardReduction::OutcomeOrMean, Some(verdict)) = (reduction, trajectory.outcome_reward)
    {
        return f64::from(verdict);
    }
    let scores = trajectory.process_rewards.as_deref().unwrap_or_default();
    let sum: f64 = scores.iter().copied().map(f64::from).sum();
    match (reduction, scores) {
        (RewardReduction::OutcomeOrMean, [_, ..]) if sum.is_finite() => sum / scores.len() as f64,
        (RewardReduction::Sum, [_, ..]) if sum.is_finite() => sum,
        (RewardReduction::Last, [.., last]) if sum.is_finite() => f64::from(*last),
        (RewardReduction::Min, [first, rest @ ..]) if sum.is_finite() => {
            f64::from(rest.iter().copied().fold(*first, f32::min))
        }
        _ => f64::NEG_INFINITY,
    }
}

/// The different answers, in the order of their first supporters' numbers.
pub fn votes(trajectories: &[TrajectoryRecord]) -> Vec<AnswerVotes<'_>> {
    let answered = answered_by_number(trajectories);
    let weights = softmax_weights(&map_indices(&answered, |i| {
        reward(&trajectories[i], RewardReduction::OutcomeOrMean)
    }));
    tally(trajectories, &answered, &weights)
}

/// The candidate that a plain vote elects.
pub fn leader<'c, 'a>(candidates: &'c [AnswerVotes<'a>]) -> Option<&'c AnswerVotes<'a>> {
    first_largest(candidates.iter().collect(), |a, b| {
        a.votes.cmp(&b.votes).then_with(|| cmp_summed_reward(a, b))
    })
}

/// The answer with the most votes, as the index of its first supporter.
pub fn majority(trajectories: &[TrajectoryRecord]) -> Option<usize> {
    leader(&votes(trajectories)).map(|candidate| candidate.first)
}

/// The answer with the most votes weighted by reward, as the index of its first supporter.
pub fn weighted(trajectories: &[TrajectoryRecord]) -> Option<usize> {
    pick_answer(votes(trajectories), |candidate| candidate.weight)
}

/// The trajectory with the largest reward among those with an answer.
pub fn best_of(trajectories: &[TrajectoryRecord], reduction: RewardReduction) -> Option<usize> {
    let reward = |&index: &usize| reward(&trajectories[index], reduction);
    first_largest(answered_by_number(trajectories), |a, b| reward(a).total_cmp(&reward(b)))
}

/// Supporters without a reward count neither in the mean nor in the number that makes it certain.
fn pessimistic(trajectories: &[TrajectoryRecord], caution: f64) -> Option<usize> {
    let answered = answered_by_number(trajectories);
    let rewards =
        map_indices(&answered, |i| reward(&trajectories[i], RewardReduction::OutcomeOrMean));
    let Some(MeanStd { std: deviation, .. }) = MeanStd::of(&rewards) else {
        // Nothing tells those with a reward apart: they vote.
        let weights = softmax_weights(&signal::standardize(&rewards));
        return pick_answer(tally(trajectories, &answered, &weights), |candidate| candidate.weight);
    };
    let mut of: HashMap<&str, (f64, f64)> = HashMap::new();
    for (&index, reward) in answered.iter().zip(rewards).filter(|(_, reward)| reward.is_finite()) {
        let (sum, count) =
            of.entry(trajectories[index].answer.as_deref().unwrap_or_default()).or_default();
        (*sum, *count) = (*sum + reward, *count + 1.0);
    }
    let bound = |(sum, count): &(f64, f64)| sum / count - caution * deviation / count.sqrt();
    pick_answer(votes(trajectories), |candidate| {
        of.get(candidate.answer).map_or(f64::NEG_INFINITY, bound)
    })
}

/// The answers of the `answered` trajectories, their weights summed.
fn tally<'a>(
    trajectories: &'a [TrajectoryRecord],
    answered: &[usize],
    weights: &[f64],
) -> Vec<AnswerVotes<'a>> {
    let scored = answered.iter().all(|&i| trajectories[i].process_rewards.is_some());
    let mut candidates: Vec<AnswerVotes<'_>> = Vec::new();
    let mut places = HashMap::new();
    for (&index, &weight) in answered.iter().zip(weights) {
        let Some(answer) = trajectories[index].answer.as_deref() else {
            continue;
        };
        let place = *places.entry(answer).or_insert_with(|| {
            let reward = scored.then_some(0.0);
            candidates.push(AnswerVotes { answer, first: index, votes: 0, weight: 0.0, reward });
            candidates.len() - 1
        });
        let candidate = &mut candidates[place];
        candidate.votes += 1;
        candidate.weight += weight;
        candidate.reward = candidate
            .reward
            .map(|sum| sum + reward(&trajectories[index], RewardReduction::OutcomeOrMean));
    }
    candidates
}

fn pick_answer(
    candidates: Vec<AnswerVotes<'_>>,
    strength: impl Fn(&AnswerVotes<'_>) -> f64,
) -> Option<usize> {
    let stronger = |a: &AnswerVotes<'_>, b: &AnswerVotes<'_>| {
        strength(a).total_cmp(&strength(b)).then_with(|| cmp_summed_reward(a, b))
    };
    first_largest(candidates, stronger).map(|candidate| candidate.first)
}

/// What decides between candidates that are otherwise equal, before their numbers do.
fn cmp_summed_reward(a: &AnswerVotes<'_>, b: &AnswerVotes<'_>) -> Ordering {
    a.reward.unwrap_or_default().total_cmp(&b.reward.unwrap_or_default())
}

/// The largest item; of equals the first. (`Iterator::max_by` gives the last.)
fn first_largest<T>(items: Vec<T>, order: impl Fn(&T, &T) -> Ordering) -> Option<T> {
    items.into_iter().reduce(|best, item| if order(&item, &best).is_gt() { item } else { best })
}

/// The indices of the trajectories with an answer, by trajectory number. Everything that sums
/// floats goes in this order, so that a shuffled slice gives the same bits.
fn answered_by_number(trajectories: &[TrajectoryRecord]) -> Vec<usize> {
    let mut indices: Vec<usize> =
        (0..trajectories.len()).filter(|&index| trajectories[index].answer.is_some()).collect();
    indices.sort_by_key(|&index| trajectories[index].k);
    indices
}

fn map_indices(indices: &[usize], value: impl Fn(usize) -> f64) -> Vec<f64> {
    indices.iter().map(|&index| value(index)).collect()
}

fn map_values(values: &[f64], value: impl Fn(f64) -> f64) -> Vec<f64> {
    values.iter().map(|&x| value(x)).collect()
}
