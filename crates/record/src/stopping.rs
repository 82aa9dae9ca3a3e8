//! When a vote is settled before all trajectories are there.
//!
//! A pure function of the first trajectories, beside the voting rules it speaks of
//! ([`majority`](crate::aggregate::majority)). Two reasons to stop:
//!
//! * **certain**: whatever the remaining trajectories answer, the vote stays as it is. An answer
//!   with b votes reaches b + m with m to come; the leader's a votes settle it if a > b + m for
//!   every other answer, unseen ones (b = 0) included. Equal votes are enough where ties go by
//!   trajectory number, that is without rewards, and the leader was given first.
//! * **confident**: with a uniform prior, the chance that the leader is given more often than the
//!   runner-up is large enough: P(theta > 1/2) of theta ~ Beta(a + 1, b + 1), which is P(X <= a) of
//!   X ~ Binomial(a + b + 1, 1/2).

use serde::{Deserialize, Serialize};

use crate::aggregate::{AnswerVotes, leader, votes};
use crate::sample::TrajectoryRecord;

/// How sure to be: above one half, at most 1. 1 is certainty.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Confidence(f64);

impl Confidence {
    /// The confidence, if it is one.
    pub fn new(share: f64) -> Option<Self> {
        (share > 0.5 && share <= 1.0).then_some(Self(share))
    }

    /// The share.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// A question that was not sampled as often as was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyStop {
    /// The trajectories that were asked for.
    pub requested: u32,
    /// Why fewer were enough.
    pub reason: StopReason,
}

/// Why a vote is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// No further trajectory can change it.
    Certain,
    /// The lead is large enough.
    Confident,
}

/// Whether the majority vote of these trajectories is settled although `left` more could follow.
/// They must be the first ones, so that no later one has a lower number.
pub fn stop_reason(
    trajectories: &[TrajectoryRecord],
    left: usize,
    confidence: Confidence,
) -> Option<StopReason> {
    let candidates = votes(trajectories);
    let leader = leader(&candidates)?;
    let mut others = candidates.iter().filter(|other| other.answer != leader.answer);
    let by_number = |other: &AnswerVotes<'_>| {
        leader.reward.is_none() && trajectories[leader.first].k < trajectories[other.first].k
    };
    let stays = |other: &AnswerVotes<'_>| {
        leader.votes > other.votes + left
            || (leader.votes == other.votes + left && by_number(other))
    };
    // An answer nobody gave yet has no votes and comes last in a tie by number.
    let stays_before_new = leader.votes > left || (leader.votes == left && leader.reward.is_none());
    if stays_before_new && others.all(stays) {
        return Some(StopReason::Certain);
    }
    let runner_up = candidates
        .iter()
        .filter(|other| other.answer != leader.answer)
        .map(|other| other.votes)
        .max();
    let sure = confidence.0 < 1.0
        && lead_probability(leader.votes, runner_up.unwrap_or(0)) >= confidence.0;
    sure.then_some(StopReason::Confident)
}

/// The chance that an answer with `a` votes is given more often than one with `b`.
pub fn lead_probability(a: usize, b: usize) -> f64 {
    let trials = a + b + 1;
    // C(n, 0) / 2^n, then C(n, i + 1) = C(n, i) (n - i) / (i + 1). In logarithms, since 2^-n may be
    // too small.
    let mut log = -(trials as f64) * std::f64::consts::LN_2;
    let mut sum = 0.0;
    for i in 0..=a {
        sum += log.exp();
        log += ((trials - i) as f64).ln() - ((i + 1) as f64).ln();
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::aggregate::{majority, tests::trajectories};

    const CERTAIN: Confidence = Confidence(1.0);

    fn answers(given: &str) -> Vec<TrajectoryRecord> {
        let one = |(k, c): (usize, char)| TrajectoryRecord {
            k: k as u32,
            answer: (c != '-').then(|| c.to_string()),
            ..TrajectoryRecord::default()
        };
        given.chars().enumerate().map(one).collect()
    }

    fn scored(given: &str) -> Vec<TrajectoryRecord> {
        let mut trajectories = answers(given);
        trajectories
            .iter_mut()
            .for_each(|t| (t.thoughts, t.process_rewards) = (1, Some(vec![0.0])));
        trajectories
    }

    #[test]
    fn a_lead_that_cannot_be_lost_is_certain() {
        assert_eq!(stop_reason(&answers("aaab"), 1, CERTAIN), Some(StopReason::Certain));
        assert_eq!(stop_reason(&answers("aaab"), 3, CERTAIN), None);
        // Two more for b make a tie, which the lower number wins, unless rewards decide.
        assert_eq!(stop_reason(&answers("aaab"), 2, CERTAIN), Some(StopReason::Certain));
        assert_eq!(stop_reason(&answers("baaa"), 2, CERTAIN), None);
        assert_eq!(stop_reason(&scored("aaab"), 2, CERTAIN), None);
        // An answer that nobody gave yet comes last in a tie, too.
        assert_eq!(stop_reason(&answers("aa"), 2, CERTAIN), Some(StopReason::Certain));
        assert_eq!(stop_reason(&scored("aa"), 2, CERTAIN), None);
        assert_eq!(stop_reason(&answers("aa"), 3, CERTAIN), None);
    }

    #[test]
    fn without_answers_sampling_goes_on() {
        let half = Confidence::new(0.51).unwrap();
        assert_eq!(stop_reason(&answers("----"), 1, half), None);
        assert_eq!(stop_reason(&answers("-a--"), 4, half), Some(StopReason::Confident));
    }

    #[test]
    fn a_large_lead_is_enough_below_full_confidence() {
        let sure = Confidence::new(0.95).unwrap();
        assert_eq!(stop_reason(&answers("aaaa"), 60, sure), Some(StopReason::Confident));
        assert_eq!(stop_reason(&answers("aaaa"), 60, CERTAIN), None);
        assert_eq!(stop_reason(&answers("aaab"), 60, sure), None);
    }

    #[test]
    fn leads_are_binomial_sums() {
        // 4 to 0: 1 - 2^-5; 3 to 1: (1 + 5 + 10 + 10) / 32.
        assert!((lead_probability(4, 0) - 31.0 / 32.0).abs() < 1e-12);
        assert!((lead_probability(3, 1) - 26.0 / 32.0).abs() < 1e-12);
        assert!((lead_probability(5, 5) - 0.5).abs() < 1e-12);
        assert!(
            (lead_probability(50_000, 50_000) - 0.5).abs() < 1e-5
                && (lead_probability(100_000, 0) - 1.0).abs() < 1e-5,
            "far out, too"
        );
    }

    #[test]
    fn confidences_are_shares() {
        assert_eq!(Confidence::new(1.0).map(Confidence::get), Some(1.0));
        for bad in [0.5, 1.1, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Confidence::new(bad), None);
        }
    }

    proptest! {
        #[test]
        fn a_certain_vote_is_the_vote_of_the_full_run(full in trajectories(), scored in any::<bool>()) {
            let mut full = full;
            for t in &mut full {
                // As runs are: all scored or none.
                t.process_rewards = scored.then(|| t.process_rewards.clone().unwrap_or_default());
            }
            let answer = |t: &[TrajectoryRecord]| majority(t).and_then(|i| t[i].answer.clone());
            for n in 0..full.len() {
                if stop_reason(&full[..n], full.len() - n, CERTAIN).is_some() {
                    prop_assert_eq!(answer(&full[..n]), answer(&full), "{} of {}", n, full.len());
                }
            }
        }
    }
}
