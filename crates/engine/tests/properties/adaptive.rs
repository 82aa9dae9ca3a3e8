//! Adaptive sampling: rounds change no trajectory, and a decided vote equals the vote of the full
//! run.

use aggregate::{Candidate, Confidence, StopReason, majority};
use latent_tts_engine::{AdaptiveSampling, Engine, Output, Perturbation, SamplingParams};
use model::testkit::CheckpointFamily;

use crate::common::*;

pub fn adaptive(confidence: f64) -> Option<AdaptiveSampling> {
    Some(AdaptiveSampling { confidence: Confidence::new(confidence).unwrap() })
}

fn vote(reply: &Output) -> Option<&str> {
    majority(&reply.trajectories).and_then(|i| reply.trajectories[i].answer())
}

#[test]
fn rows_of_a_round_are_the_rows_of_the_full_run() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar] {
        let pair = RewardedReasoner::of(family);
        for perturbation in perturbations() {
            let params = short_params(&pair.reasoner, 13, perturbation);
            let params = SamplingParams { greedy: true, ..params };
            let full = pair.run(params, &questions());
            let default = Engine::DEFAULT_MEMORY;
            for (confidence, memory) in [(1.0, default), (0.7, default), (0.7, 1 << 20)] {
                let params = SamplingParams { adaptive: adaptive(confidence), ..params };
                let stopped = pair.run_in_memory(memory, params, &questions());
                assert_eq!(stopped.len(), full.len());
                for (a, b) in stopped.iter().zip(&full) {
                    let n = a.trajectories.len();
                    let what = format!("{family:?}, {perturbation:?}, {confidence}, {n} rows");
                    assert_eq!(a.id, b.id, "{what}");
                    assert_same_trajectories(&a.trajectories, &b.trajectories[..n], &what);
                    assert_same_trajectories(a.greedy.as_slice(), b.greedy.as_slice(), &what);
                    assert_eq!(a.stopped.is_some(), n < 13, "{what}");
                    assert!([4, 8, 13].contains(&n), "{what}");
                    if a.stopped.is_some_and(|stop| stop.reason == StopReason::Certain) {
                        assert_eq!(vote(a), vote(b), "{what}");
                    }
                }
            }
        }
    }
}

/// Without perturbation all sequences have the same answer, so that the first half of the samples
/// decides the vote and the rest is not computed.
#[test]
fn a_unanimous_question_stops_as_early_as_possible() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiGpt2);
    let base = short_params(&pair.reasoner, 64, Perturbation::None);
    let certain = SamplingParams { adaptive: adaptive(1.0), ..base };
    let confident = SamplingParams { adaptive: adaptive(0.95), ..base };
    let [all, certain, confident] =
        [base, certain, confident].map(|params| pair.run(params, &questions()));
    let mut answered = 0;
    for ((all, certain), confident) in all.iter().zip(&certain).zip(&confident) {
        let samples = [all, certain, confident].map(|reply| reply.trajectories.len());
        match vote(all) {
            // Half of the votes, if they are the first, win every tie, with or without rewards.
            Some(_) => assert_eq!(samples, [64, 32, 4]),
            None => assert_eq!(samples, [64; 3], "no row has an answer: nothing is decided"),
        }
        answered += usize::from(vote(all).is_some());
        assert!(confident.cost.flops < all.cost.flops || vote(all).is_none());
    }
    assert!(answered > 0, "no question has an answer to vote for");
    let params = SamplingParams { adaptive: adaptive(1.0), ..base };
    for reply in run(&pair.unrewarded_engine(), params, &questions()).unwrap() {
        let expected = if vote(&reply).is_some() { 32 } else { 64 };
        assert_eq!(reply.trajectories.len(), expected, "without a reward model");
    }
}
