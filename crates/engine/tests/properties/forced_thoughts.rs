//! Forced thoughts: they are fed instead of the computed ones, and nothing else changes.

use std::sync::Arc;

use latent_tts_engine::{EngineError, Family, LatentLength, Output, Perturbation, Request};
use model::testkit::CheckpointFamily;
use tensor::Tensor;

use crate::common::*;

/// Unperturbed requests and their outputs.
fn clean_run(pair: &RewardedReasoner) -> (Vec<Request>, Vec<Output>) {
    let params = short_params(&pair.reasoner, 1, Perturbation::None);
    let requests: Vec<Request> = questions().iter().map(|q| q.request(params)).collect();
    let replies = solve_all(&pair.engine(), &requests);
    (requests, replies)
}

fn forcing(request: &Request, thoughts: Vec<Tensor>) -> Request {
    let mut request = request.clone();
    request.params.samples = nonzero(thoughts.len());
    request.forced_thoughts = Arc::from(thoughts);
    request
}

#[test]
fn a_runs_own_thoughts_reproduce_it() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let (requests, clean) = clean_run(&pair);
        let forced: Vec<Request> =
            requests.iter().zip(&clean).map(|(r, reply)| forcing(r, latents(reply))).collect();
        let replies = solve_all(&pair.engine(), &forced);
        assert_all_same(&replies, &clean, &format!("{family:?}"));
    }
}

#[test]
fn a_row_does_not_depend_on_what_else_is_forced() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let (requests, clean) = clean_run(&pair);
        let zeros = |own: &Tensor| Tensor::zeros(own.rows(), own.cols());
        let both = |(request, reply): (&Request, &Output)| {
            let own = latents(reply).remove(0);
            forcing(request, vec![zeros(&own), own])
        };
        let mixed: Vec<Request> = requests.iter().zip(&clean).map(both).collect();
        // Sequences without forced thoughts are in the same passes.
        let mixed: Vec<Request> = mixed.into_iter().chain(requests.clone()).collect();
        let together = solve_all(&pair.engine(), &mixed);
        for (request, reply) in mixed.iter().zip(&together) {
            let alone = pair.engine().solve(request).unwrap();
            assert_same(&alone, reply, &format!("{family:?}, question {}", request.id));
        }
        for (forced, clean) in together.iter().zip(&clean) {
            let own = &forced.trajectories[1];
            assert_same_bits(&own.latents, &clean.trajectories[0].latents, "own thoughts");
            assert_eq!(own.tokens, clean.trajectories[0].tokens);
            assert_same_bits(
                &forced.trajectories[0].latents,
                &zeros(&clean.trajectories[0].latents),
                "zeros",
            );
        }
    }
}

#[test]
fn what_is_fed_decides_the_answer() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let (requests, clean) = clean_run(&pair);
        for (request, reply) in requests.iter().zip(&clean) {
            let own = latents(reply).remove(0);
            if own.rows() == 0 {
                continue;
            }
            let mut other = own.clone();
            other.data_mut().iter_mut().for_each(|x| *x = 1.0 - 2.0 * *x);
            let forced = pair.engine().solve(&forcing(request, vec![other])).unwrap();
            let a = &forced.trajectories[0];
            let b = &reply.trajectories[0];
            assert_eq!(a.thoughts, b.thoughts);
            assert_ne!(a.logprob, b.logprob, "{family:?}, question {}", request.id);
        }
    }
}

/// Fewer forced thoughts than the length allows end the sequence, whatever the model would decide.
#[test]
fn a_row_ends_with_its_forced_thoughts() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let (requests, clean) = clean_run(&pair);
        let width = pair.reasoner.decoder.config().width;
        for count in 0..=requests[0].params.length.limit() {
            let thoughts = Tensor::from_vec(count, width, vec![0.25; count * width]);
            let reply = pair.engine().solve(&forcing(&requests[0], vec![thoughts])).unwrap();
            assert_eq!(reply.trajectories[0].thoughts, count, "{family:?}");
        }
        // The greedy trajectory computes its thoughts.
        let mut request = forcing(&requests[0], vec![Tensor::zeros(1, width)]);
        request.params.greedy = true;
        let greedy = pair.engine().solve(&request).unwrap().greedy.unwrap();
        assert_same_bits(&greedy.latents, &clean[0].trajectories[0].latents, "greedy");
    }
}

#[test]
fn unfit_thoughts_are_refused() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let (requests, _) = clean_run(&pair);
    let width = pair.reasoner.decoder.config().width;
    let error = |request: &Request| pair.engine().check(std::slice::from_ref(request)).unwrap_err();
    for shape in [(5, width), (2, width + 1)] {
        let request = forcing(&requests[0], vec![Tensor::zeros(shape.0, shape.1)]);
        assert!(matches!(error(&request), EngineError::ForcedShape { trajectory: 0, .. }));
    }
    let mut silent = forcing(&requests[0], vec![Tensor::zeros(0, width)]);
    silent.params.length = LatentLength::None;
    assert!(matches!(
        error(&silent),
        EngineError::NothingToReplace { family } if family == Family::COCONUT
    ));
    let mut searching = forcing(&requests[0], vec![Tensor::zeros(1, width)]);
    searching.params.search = Some(latent_tts_engine::Search::for_samples(
        latent_tts_engine::SearchMethod::Beam,
        nonzero(4),
    ));
    assert!(matches!(error(&searching), EngineError::ForcedSearch { id: 9 }));
}
