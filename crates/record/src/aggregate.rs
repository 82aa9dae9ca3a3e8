//! From many trajectories to one: the voting rules.
//!
//! Pure functions over a slice, usually the first k trajectories of a question. Each gives the index of the
//! chosen trajectory, or `None` where no trajectory has an answer. The order of the slice never matters; where
//! an order is needed, it is that of the trajectory numbers.
//!
//! | rule | the answer with | ties |
//! |---|---|---|
//! | [`majority`] | most votes | larger summed reward if all were scored, then lowest trajectory number |
//! | [`weighted`] | largest sum of exp(mean reward - largest mean reward) | the same |
//! | [`best_of`] | the trajectory of the largest reward | lowest trajectory number |
//!
//! A trajectory without an answer never votes and is never chosen. One without thoughts has no step to be
//! rewarded for: its reward is the lowest there is, and it is chosen only among its like.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::sample::Trajectory;

/// How the step rewards of a trajectory become one number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Their sum divided by the number of thoughts; the paper's.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// The last thought's.
    Last,
    /// The smallest.
    Min,
}

/// One answer and the trajectories behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate<'a> {
    /// The answer.
    pub answer: &'a str,
    /// The index of its supporter with the lowest trajectory number.
    pub first: usize,
    /// How many support it.
    pub votes: usize,
    /// The sum of their weights, exp(mean reward - largest mean reward).
    pub weight: f64,
    /// The sum of their mean rewards, where every trajectory with an answer was scored.
    pub reward: Option<f64>,
}

/// The reward of a trajectory: negative infinity without thoughts, without scores, or with one that is not finite.
pub fn reward(trajectory: &Trajectory, reduction: Reduction) -> f64 {
    let scores = trajectory.scores.as_deref().unwrap_or_default();
    let sum: f64 = scores.iter().copied().map(f64::from).sum();
    match (reduction, scores) {
        (Reduction::Mean, [_, ..]) if sum.is_finite() => sum / scores.len() as f64,
        (Reduction::Sum, [_, ..]) if sum.is_finite() => sum,
        (Reduction::Last, [.., last]) if sum.is_finite() => f64::from(*last),
        (Reduction::Min, [first, rest @ ..]) if sum.is_finite() => f64::from(rest.iter().copied().fold(*first, f32::min)),
        _ => f64::NEG_INFINITY,
    }
}

/// The different answers, in the order of their first supporters' numbers.
pub fn candidates(trajectories: &[Trajectory]) -> Vec<Candidate<'_>> {
    let answered = by_number(trajectories);
    let rewards: Vec<f64> = answered.iter().map(|&i| reward(&trajectories[i], Reduction::Mean)).collect();
    let largest = rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let scored = answered.iter().all(|&i| trajectories[i].scores.is_some());

    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    let mut places = HashMap::new();
    for (&index, &reward) in answered.iter().zip(&rewards) {
        let Some(answer) = trajectories[index].answer.as_deref() else {
            continue;
        };
        let place = *places.entry(answer).or_insert_with(|| {
            let reward = scored.then_some(0.0);
            candidates.push(Candidate { answer, first: index, votes: 0, weight: 0.0, reward });
            candidates.len() - 1
        });
        let candidate = &mut candidates[place];
        candidate.votes += 1;
        // Where nobody has a reward, everybody has the same weight.
        candidate.weight += if largest.is_finite() { (reward - largest).exp() } else { 1.0 };
        candidate.reward = candidate.reward.map(|sum| sum + reward);
    }
    candidates
}

/// The answer with the most votes, as the index of its first supporter.
pub fn majority(trajectories: &[Trajectory]) -> Option<usize> {
    elect(trajectories, |candidate| candidate.votes as f64)
}

/// The answer with the most votes weighted by reward, as the index of its first supporter.
pub fn weighted(trajectories: &[Trajectory]) -> Option<usize> {
    elect(trajectories, |candidate| candidate.weight)
}

/// The trajectory with the largest reward among those with an answer.
pub fn best_of(trajectories: &[Trajectory], reduction: Reduction) -> Option<usize> {
    let reward = |&index: &usize| reward(&trajectories[index], reduction);
    first_largest(by_number(trajectories), |a, b| reward(a).total_cmp(&reward(b)))
}

fn elect(trajectories: &[Trajectory], strength: impl Fn(&Candidate<'_>) -> f64) -> Option<usize> {
    let summed = |candidate: &Candidate<'_>| candidate.reward.unwrap_or_default();
    let elected = first_largest(candidates(trajectories), |a, b| {
        strength(a).total_cmp(&strength(b)).then_with(|| summed(a).total_cmp(&summed(b)))
    });
    elected.map(|candidate| candidate.first)
}

/// The largest item; of equals the first. (`Iterator::max_by` gives the last.)
fn first_largest<T>(items: Vec<T>, order: impl Fn(&T, &T) -> Ordering) -> Option<T> {
    items.into_iter().reduce(|best, item| if order(&item, &best).is_gt() { item } else { best })
}

/// The indices of the trajectories with an answer, by trajectory number. Everything that sums floats goes in
/// this order, so that a shuffled slice gives the same bits.
fn by_number(trajectories: &[Trajectory]) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..trajectories.len()).filter(|&index| trajectories[index].answer.is_some()).collect();
    indices.sort_by_key(|&index| trajectories[index].k);
    indices
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Trajectory `k`; an empty answer is none.
    fn trajectory(k: u32, answer: &str, scores: Option<&[f32]>) -> Trajectory {
        Trajectory {
            k,
            thoughts: scores.map_or(0, |scores| scores.len() as u32),
            answer: (!answer.is_empty()).then(|| answer.into()),
            scores: scores.map(Into::into),
            ..Trajectory::default()
        }
    }

    fn unscored(answers: &[&str]) -> Vec<Trajectory> {
        answers.iter().zip(0..).map(|(answer, k)| trajectory(k, answer, None)).collect()
    }

    fn scored(answers: &[(&str, f32)]) -> Vec<Trajectory> {
        answers.iter().zip(0..).map(|((answer, score), k)| trajectory(k, answer, Some(&[*score]))).collect()
    }

    #[test]
    fn majority_counts() {
        assert_eq!(majority(&unscored(&["1", "2", "2"])), Some(1));
        assert_eq!(majority(&unscored(&["7"])), Some(0));
    }

    #[test]
    fn none_never_votes() {
        assert_eq!(majority(&unscored(&["", "", "3"])), Some(2));
        assert_eq!(weighted(&scored(&[("", 9.0), ("", 9.0), ("3", 0.0)])), Some(2));
        assert_eq!(best_of(&scored(&[("", 9.0), ("3", 0.0)]), Reduction::Mean), Some(1));
    }

    #[test]
    fn without_answers_there_is_no_verdict() {
        for trajectories in [unscored(&[]), unscored(&["", ""]), scored(&[("", 1.0), ("", 2.0)])] {
            assert_eq!(majority(&trajectories), None);
            assert_eq!(weighted(&trajectories), None);
            assert_eq!(best_of(&trajectories, Reduction::Mean), None);
        }
    }

    #[test]
    fn tied_votes_go_to_the_summed_reward_then_to_the_lowest_number() {
        assert_eq!(majority(&unscored(&["1", "2", "2", "1"])), Some(0));
        assert_eq!(majority(&scored(&[("1", 0.1), ("2", 0.9), ("2", 0.2), ("1", 0.3)])), Some(1));
        assert_eq!(majority(&scored(&[("1", 0.5), ("2", 0.5)])), Some(0));
        // One trajectory without scores, and sums of rewards no longer compare.
        let mut partly = scored(&[("1", 0.1), ("2", 0.9)]);
        partly[0].scores = None;
        assert_eq!(majority(&partly), Some(0));
    }

    #[test]
    fn weights_outvote_numbers() {
        // e^0 = 1 against 2 e^-2 = 0.27, then against 2 e^-0.5 = 1.21.
        assert_eq!(weighted(&scored(&[("1", 2.0), ("2", 0.0), ("2", 0.0)])), Some(0));
        assert_eq!(weighted(&scored(&[("1", 2.0), ("2", 1.5), ("2", 1.5)])), Some(1));
        let trajectories = scored(&[("1", 2.0), ("2", 1.5), ("2", 1.5)]);
        let weights: Vec<f64> = candidates(&trajectories).iter().map(|candidate| candidate.weight).collect();
        assert_eq!(weights, [1.0, 2.0 * (-0.5f64).exp()]);
    }

    #[test]
    fn weights_survive_large_rewards() {
        assert_eq!(weighted(&scored(&[("1", 1e30), ("2", 3e38), ("1", -3e38)])), Some(1));
        // A large reward without an answer must not push every other weight to zero.
        assert_eq!(weighted(&scored(&[("", 1e6), ("1", 0.0), ("2", 1.0)])), Some(2));
    }

    #[test]
    fn best_of_takes_the_largest_then_the_lowest_number() {
        let trajectories = scored(&[("1", 0.2), ("2", 0.7), ("3", 0.7)]);
        assert_eq!(best_of(&trajectories, Reduction::Mean), Some(1));
        assert_eq!(best_of(&trajectories[..1], Reduction::Mean), Some(0));
    }

    #[test]
    fn reductions() {
        let trajectories = [
            trajectory(0, "a", Some(&[3.0, 1.0])),
            trajectory(1, "b", Some(&[1.5, 1.5, 1.5])),
            trajectory(2, "c", Some(&[0.0, 1.9])),
        ];
        let rewards = |reduction| [0, 1, 2].map(|i| reward(&trajectories[i], reduction));
        assert_eq!(rewards(Reduction::Mean)[..2], [2.0, 1.5]);
        assert_eq!(rewards(Reduction::Sum)[..2], [4.0, 4.5]);
        assert_eq!(rewards(Reduction::Last)[..2], [1.0, 1.5]);
        assert_eq!(rewards(Reduction::Min), [1.0, 1.5, 0.0]);
        assert_eq!(best_of(&trajectories, Reduction::Mean), Some(0));
        assert_eq!(best_of(&trajectories, Reduction::Sum), Some(1));
        assert_eq!(best_of(&trajectories, Reduction::Last), Some(2));
        assert_eq!(best_of(&trajectories, Reduction::Min), Some(1));
    }

    #[test]
    fn without_thoughts_the_reward_is_lowest_but_the_answer_still_counts() {
        let thoughtless = [trajectory(0, "1", Some(&[])), trajectory(1, "2", Some(&[]))];
        assert_eq!(best_of(&thoughtless, Reduction::Mean), Some(0));
        assert_eq!(weighted(&thoughtless), Some(0));
        let mixed = [trajectory(0, "1", Some(&[])), trajectory(1, "2", Some(&[-1e30]))];
        assert_eq!(best_of(&mixed, Reduction::Mean), Some(1));
        assert_eq!(weighted(&mixed), Some(1));
        assert_eq!(majority(&mixed), Some(1));
    }

    #[test]
    fn scores_that_are_not_numbers_are_the_lowest() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for reduction in [Reduction::Mean, Reduction::Sum, Reduction::Last, Reduction::Min] {
                let trajectories = [trajectory(0, "1", Some(&[bad, 0.0])), trajectory(1, "2", Some(&[-5.0]))];
                assert_eq!(best_of(&trajectories, reduction), Some(1));
                assert_eq!(weighted(&trajectories), Some(1));
            }
        }
    }

    /// Few answers and few scores, so that ties are common.
    fn trajectories() -> impl Strategy<Value = Vec<Trajectory>> {
        let scores = prop::option::weighted(0.9, prop::collection::vec((-2i8..3).prop_map(f32::from), 0..3));
        let one = (prop::sample::select(vec!["", "1", "2", "3"]), scores);
        prop::collection::vec(one, 0..9).prop_map(|drawn| {
            let numbered = drawn.into_iter().zip(0..);
            numbered.map(|((answer, scores), k)| trajectory(k, answer, scores.as_deref())).collect()
        })
    }

    proptest! {
        #[test]
        fn the_order_of_the_slice_does_not_matter(
            (ordered, shuffled) in trajectories().prop_flat_map(|t| (Just(t.clone()), Just(t).prop_shuffle())),
        ) {
            for rule in [majority, weighted, |t: &[Trajectory]| best_of(t, Reduction::Mean)] {
                let verdict = |t: &[Trajectory]| rule(t).map(|index| t[index].k);
                prop_assert_eq!(verdict(&ordered), verdict(&shuffled));
            }
        }

        #[test]
        fn of_one_trajectory_every_rule_gives_its_answer(t in trajectories()) {
            let one = &t[..t.len().min(1)];
            let answered = one.first().and_then(|t| t.answer.as_ref()).map(|_| 0);
            prop_assert_eq!(majority(one), answered);
            prop_assert_eq!(weighted(one), answered);
            prop_assert_eq!(best_of(one, Reduction::Mean), answered);
        }

        #[test]
        fn a_verdict_exists_where_an_answer_does(t in trajectories()) {
            let answered = t.iter().any(|t| t.answer.is_some());
            for chosen in [majority(&t), weighted(&t), best_of(&t, Reduction::Mean)] {
                prop_assert_eq!(chosen.is_some(), answered);
                prop_assert!(chosen.is_none_or(|index| t[index].answer.is_some()));
            }
        }
    }
}
