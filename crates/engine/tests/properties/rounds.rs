//! Stopping early: rounds change no trajectory, and a vote that is certain is the vote of the full
//! run.

use aggregate::{Confidence, StopReason, majority};
use engine::{AdaptiveSampling, Outcome, SamplingParams};
use model::testkit::CheckpointFamily;

use crate::common::*;

pub fn adaptive(confidence: f64) -> Option<AdaptiveSampling> {
    Some(AdaptiveSampling { confidence: Confidence::new(confidence).unwrap() })
}

fn vote(outcome: &Outcome) -> Option<&str> {
    let trajectories = &outcome.sample.trajectories;
    majority(trajectories).and_then(|i| trajectories[i].answer.as_deref())
}

#[test]
fn rows_of_a_round_are_the_rows_of_the_full_run() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar] {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            let full =
                SamplingParams { greedy: true, ..settings(&pair.reasoner, 13, perturbation) };
            for (confidence, memory) in [(1.0, full.memory), (0.7, full.memory), (0.7, 1 << 20)] {
                let stopping = SamplingParams { adaptive: adaptive(confidence), memory, ..full };
                let (stopped, full) =
                    (pair.ask(stopping, &questions()), pair.ask(full, &questions()));
                assert_eq!(stopped.len(), full.len());
                for (a, b) in stopped.iter().zip(&full) {
                    let n = a.sample.trajectories.len();
                    let what = format!("{family:?}, {perturbation:?}, {confidence}, {n} rows");
                    assert_eq!(a.sample.id, b.sample.id, "{what}");
                    assert_eq!(a.sample.trajectories, b.sample.trajectories[..n], "{what}");
                    assert_eq!(a.sample.greedy, b.sample.greedy, "{what}");
                    assert_eq!(a.thoughts, b.thoughts[..n], "{what}");
                    assert_eq!(a.sample.stopped.is_some(), n < 13, "{what}");
                    assert!([4, 8, 13].contains(&n), "{what}");
                    if a.sample.stopped.is_some_and(|s| s.reason == StopReason::Certain) {
                        assert_eq!(vote(a), vote(b), "{what}");
                    }
                }
            }
        }
    }
}

/// Without perturbation all rows answer alike, so that three of four settle a vote, and the rest is
/// not computed.
#[test]
fn a_unanimous_question_stops_as_soon_as_it_may() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiGpt2);
    let base = settings(&pair.reasoner, 64, engine::Perturbation::None);
    let all = pair.ask(base, &questions());
    let certain = pair.ask(SamplingParams { adaptive: adaptive(1.0), ..base }, &questions());
    let confident = pair.ask(SamplingParams { adaptive: adaptive(0.95), ..base }, &questions());
    let mut answered = 0;
    for ((all, certain), confident) in all.iter().zip(&certain).zip(&confident) {
        let spent = [all, certain, confident].map(|o| o.sample.trajectories.len());
        match vote(all) {
            // Half of the votes, given first, win every tie, with or without rewards.
            Some(_) => assert_eq!(spent, [64, 32, 4]),
            None => assert_eq!(spent, [64; 3], "nobody has answered: nothing is settled"),
        }
        answered += usize::from(vote(all).is_some());
        assert!(confident.sample.flops < all.sample.flops || vote(all).is_none());
    }
    assert!(answered > 0, "no question has an answer to vote for");
    let unjudged = engine::Engine {
        reward_model: None,
        ..pair.engine(SamplingParams { adaptive: adaptive(1.0), ..base })
    };
    for outcome in ask(unjudged, &questions()).unwrap() {
        let n = outcome.sample.trajectories.len();
        assert_eq!(
            n,
            if vote(&outcome).is_some() { 32 } else { 64 },
            "half of the votes, given first, settle it"
        );
    }
}
