//! Early stopping: whether the majority vote is decided before all N trajectories are sampled.
//!
//! There are two reasons to stop, both based on the plain majority ([`majority`](crate::majority)):
//!
//! * **certain**: no outcome of the remaining m samples changes the vote. An answer with b votes
//!   can reach b + m. The leader's a votes decide it if a > b + m for every other answer, including
//!   unseen ones (b = 0); a = b + m suffices if the leader's first trajectory has the lower index,
//!   which breaks ties.
//! * **confident**: with a uniform prior, the leader is more probable than the runner-up with at
//!   least the required probability: P(theta > 1/2) for theta ~ Beta(a + 1, b + 1), which equals
//!   P(X <= a) for X ~ Binomial(a + b + 1, 1/2).

use std::cmp::Reverse;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{AnswerVotes, Candidate, leader, votes};

/// A probability above 1/2 and at most 1. At 1, sampling stops only when the vote is certain.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Confidence(f64);

impl Confidence {
    /// Creates a confidence; `None` unless 1/2 < `probability` <= 1.
    pub fn new(probability: f64) -> Option<Self> {
        (probability > 0.5 && probability <= 1.0).then_some(Self(probability))
    }

    /// The probability.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// The error for a number that is not a valid [`Confidence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidConfidence;

impl fmt::Display for InvalidConfidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be above 0.5 and at most 1")
    }
}

impl std::error::Error for InvalidConfidence {}

impl TryFrom<f64> for Confidence {
    type Error = InvalidConfidence;

    fn try_from(probability: f64) -> Result<Self, InvalidConfidence> {
        Self::new(probability).ok_or(InvalidConfidence)
    }
}

impl From<Confidence> for f64 {
    fn from(confidence: Confidence) -> Self {
        confidence.0
    }
}

impl FromStr for Confidence {
    type Err = InvalidConfidence;

    fn from_str(text: &str) -> Result<Self, InvalidConfidence> {
        text.trim().parse::<f64>().map_err(|_| InvalidConfidence)?.try_into()
    }
}

/// Recorded for a question with fewer trajectories than requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyStop {
    /// The number of trajectories requested.
    #[serde(alias = "asked")]
    pub requested: u32,
    /// The reason that sampling stopped.
    #[serde(alias = "why")]
    pub reason: StopReason,
}

/// The reason that sampling stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// No further trajectory can change the majority.
    Certain,
    /// The leader is ahead with the required [`Confidence`].
    Confident,
    /// The deadline of the request has passed.
    Deadline,
}

/// Whether the majority of `candidates` is decided with `left` more to sample.
///
/// `candidates` are the first ones of the question: every later one has a larger index.
pub fn stop_reason<T: Candidate>(
    candidates: &[T],
    left: usize,
    confidence: Confidence,
) -> Option<StopReason> {
    let votes = votes(candidates);
    let leader = leader(&votes)?;
    let others = || votes.iter().filter(|other| other.answer != leader.answer);
    let rank =
        |of: &AnswerVotes<'_>, more| (of.votes + more, Reverse(candidates[of.first].number()));
    // An answer not given so far starts at 0 votes and loses every tie by index.
    let stays_ahead =
        leader.votes >= left && others().all(|other| rank(leader, 0) > rank(other, left));
    if stays_ahead {
        return Some(StopReason::Certain);
    }
    let runner_up = others().map(|other| other.votes).max().unwrap_or(0);
    let confident = confidence.0 < 1.0 && lead_probability(leader.votes, runner_up) >= confidence.0;
    confident.then_some(StopReason::Confident)
}

/// The probability that an answer with `a` votes is more probable than one with `b` votes.
pub fn lead_probability(a: usize, b: usize) -> f64 {
    let trials = a + b + 1;
    // C(n, 0) / 2^n, then C(n, i + 1) = C(n, i) (n - i) / (i + 1). In logarithms: 2^-n may
    // underflow.
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
    use crate::majority;
    use crate::testing::{TestCandidate, candidate, candidates};

    const CERTAIN: Confidence = Confidence(1.0);

    /// One candidate per character; `-` is a candidate without an answer.
    fn answers(given: &str) -> Vec<TestCandidate> {
        let one = |(answer, number): (&str, u32)| candidate(number, answer.trim_matches('-'), None);
        given.split("").filter(|answer| !answer.is_empty()).zip(0..).map(one).collect()
    }

    #[test]
    fn a_lead_that_cannot_be_lost_is_certain() {
        assert_eq!(stop_reason(&answers("aaab"), 1, CERTAIN), Some(StopReason::Certain));
        assert_eq!(stop_reason(&answers("aaab"), 3, CERTAIN), None);
        // Two more votes for b make a tie, which the lower index wins.
        assert_eq!(stop_reason(&answers("aaab"), 2, CERTAIN), Some(StopReason::Certain));
        assert_eq!(stop_reason(&answers("baaa"), 2, CERTAIN), None);
        // An answer not given so far loses the tie, too.
        assert_eq!(stop_reason(&answers("aa"), 2, CERTAIN), Some(StopReason::Certain));
        assert_eq!(stop_reason(&answers("aa"), 3, CERTAIN), None);
    }

    #[test]
    fn rewards_do_not_matter() {
        let mut scored = answers("aaab");
        scored.iter_mut().zip([0.0, 0.0, 0.0, 9.0]).for_each(|(candidate, reward)| {
            candidate.process_rewards = Some(vec![reward]);
        });
        assert_eq!(stop_reason(&scored, 2, CERTAIN), Some(StopReason::Certain));
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
    fn lead_probabilities_are_binomial_sums() {
        // 4 to 0: 1 - 2^-5; 3 to 1: (1 + 5 + 10 + 10) / 32.
        assert!((lead_probability(4, 0) - 31.0 / 32.0).abs() < 1e-12);
        assert!((lead_probability(3, 1) - 26.0 / 32.0).abs() < 1e-12);
        assert!((lead_probability(5, 5) - 0.5).abs() < 1e-12);
        assert!((lead_probability(50_000, 50_000) - 0.5).abs() < 1e-5, "2^-n underflows");
        assert!((lead_probability(100_000, 0) - 1.0).abs() < 1e-5, "2^-n underflows");
    }

    #[test]
    fn confidences_are_probabilities_above_one_half() {
        assert_eq!(Confidence::new(1.0).map(Confidence::get), Some(1.0));
        for bad in [0.5, 1.1, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Confidence::new(bad), None);
        }
    }

    proptest! {
        #[test]
        fn a_certain_vote_is_the_vote_of_the_full_run(full in candidates()) {
            let answer = |t: &[TestCandidate]| majority(t).and_then(|i| t[i].answer.clone());
            for n in 0..full.len() {
                if stop_reason(&full[..n], full.len() - n, CERTAIN).is_some() {
                    prop_assert_eq!(answer(&full[..n]), answer(&full), "{} of {}", n, full.len());
                }
            }
        }

        #[test]
        fn an_open_vote_can_still_change(prefix in candidates(), left in 1usize..5) {
            // The converse of certainty: some answer that gets all remaining votes takes the lead.
            let first = majority(&prefix);
            let next = prefix.len() as u32;
            let elected = |answer: &str| {
                let more = (0..left as u32).map(|i| candidate(next + i, answer, None));
                let full: Vec<TestCandidate> = prefix.iter().cloned().chain(more).collect();
                majority(&full).and_then(|i| full[i].answer.clone())
            };
            let leader = first.and_then(|i| prefix[i].answer.clone());
            let changes = ["1", "2", "3", "new"].iter().any(|answer| elected(answer) != leader);
            let settled = stop_reason(&prefix, left, CERTAIN).is_some();
            prop_assert_eq!(settled, !changes);
        }
    }
}
