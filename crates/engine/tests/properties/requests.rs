//! The delivery of outputs and errors to the caller: in request order, from any thread, and until
//! the caller's own error.

use aggregate::{Candidate, Rule};
use latent_tts_engine::{
    CancelToken, Engine, EngineError, LatentLength, Output, OutputStream, Perturbation, Request,
    SamplingParams,
};
use model::testkit::CheckpointFamily;

use crate::beam_search::size;
use crate::common::*;
use crate::mixed_requests::mixed_requests;

/// The types that servers share between threads.
const _: () = {
    const fn is_send_and_sync<T: Send + Sync + 'static>() {}
    const fn is_send<T: Send + 'static>() {}
    is_send_and_sync::<Engine>();
    is_send_and_sync::<Request>();
    is_send_and_sync::<Output>();
    is_send_and_sync::<CancelToken>();
    is_send_and_sync::<EngineError>();
    is_send::<OutputStream>();
};

/// Every result with its index, in order of delivery.
pub fn results(engine: &Engine, requests: &[Request]) -> Vec<(usize, Result<Output, EngineError>)> {
    let mut results = Vec::new();
    let take = |index, result| -> Result<(), EngineError> {
        results.push((index, result));
        Ok(())
    };
    engine.run(requests, take).unwrap();
    results
}

/// The reason that a caller ended a run.
#[derive(Debug)]
pub enum CallerError {
    Enough,
    Engine(EngineError),
}

impl From<EngineError> for CallerError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

/// Invalid requests: too long, without anything to perturb, with nothing to search.
fn refused_requests(params: SamplingParams) -> [Request; 3] {
    let long = question(100, &"too long ".repeat(200)).request(params);
    let gaussian = Perturbation::Gaussian { std: 0.3 };
    let none = SamplingParams { length: LatentLength::None, ..params };
    let unperturbed = SamplingParams { perturbation: gaussian, ..none };
    let unsearched =
        SamplingParams { search: size(2, 2), perturbation: Perturbation::None, ..none };
    [long, question(101, "x").request(unperturbed), question(102, "x").request(unsearched)]
}

fn is_refused_as_expected(error: &EngineError) -> bool {
    match error {
        EngineError::TooLong { id, .. } => *id == 100,
        EngineError::NothingToPerturb { .. } | EngineError::NothingToSearch => true,
        _ => false,
    }
}

#[test]
fn refused_requests_are_handed_over_at_their_places_and_the_others_run() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let engine = pair.engine();
        let params = short_params(&pair.reasoner, 3, thought_dropout(0.2));
        let [long, unperturbed, unsearched] = refused_requests(params);
        let good: Vec<Request> = questions().iter().map(|q| q.request(params)).collect();
        let expected = run_requests(&engine, &good).unwrap();
        let mut requests = good.clone();
        requests.push(unsearched.clone());
        requests.insert(3, unperturbed.clone());
        requests.insert(3, long.clone());
        requests.insert(0, long.clone());
        let found = results(&engine, &requests);
        assert!(found.iter().map(|(index, _)| *index).eq(0..requests.len()), "{family:?}");
        let mut replies = Vec::new();
        let mut errors = Vec::new();
        for (index, result) in found {
            match result {
                Ok(reply) => replies.push(reply),
                Err(error) => {
                    assert!(is_refused_as_expected(&error), "{family:?}, {index}: {error}");
                    errors.push(index);
                }
            }
        }
        assert_eq!(errors, [0, 4, 5, 8], "{family:?}");
        assert_all_same(&replies, &expected, &format!("{family:?}, beside refused requests"));
        for refused in [long, unperturbed, unsearched] {
            assert!(is_refused_as_expected(&engine.solve(&refused).unwrap_err()));
            let checked = engine.check(&[good[0].clone(), refused]).unwrap_err();
            assert!(is_refused_as_expected(&checked));
        }
        assert!(engine.check(&good).is_ok());
    }
}

/// A run of only invalid requests, and of no requests.
#[test]
fn a_run_without_rows_ends() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let params = short_params(&pair.reasoner, 2, thought_dropout(0.2));
    let refused = refused_requests(params);
    let found = results(&pair.engine(), &refused);
    assert!(found.iter().map(|(index, _)| *index).eq(0..3));
    assert!(found.iter().all(|(_, result)| result.is_err()));
    assert!(results(&pair.engine(), &[]).is_empty());
}

/// A request that needs more memory than available does not prevent smaller ones.
#[test]
fn a_request_beyond_the_memory_does_not_keep_the_others() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let small = short_params(&pair.reasoner, 2, thought_dropout(0.2));
    let large = SamplingParams { max_new_tokens: nonzero(900), ..small };
    let [first, _, second, ..] = &questions()[..] else { panic!("too few questions") };
    let requests = [first.request(small), second.request(large), second.request(small)];
    let engine = pair.engine().with_memory(400 << 10);
    let found = results(&engine, &requests);
    assert!(matches!(found[1].1, Err(EngineError::Memory { .. })), "{:?}", found[1].1);
    for i in [0, 2] {
        let alone = pair.engine().solve(&requests[i]).unwrap();
        assert_same(found[i].1.as_ref().unwrap(), &alone, "beside a request beyond the memory");
    }
}

#[test]
fn the_callers_error_ends_the_run_and_is_returned() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let requests = mixed_requests(&pair.reasoner);
    let expected = run_requests(&pair.engine(), &requests).unwrap();
    for stop_after in [1, 2, requests.len()] {
        let mut replies = Vec::new();
        let end = pair.engine().run(&requests, |_, reply| {
            replies.push(reply?);
            if replies.len() == stop_after { Err(CallerError::Enough) } else { Ok(()) }
        });
        assert!(matches!(end, Err(CallerError::Enough)), "{end:?}");
        assert_all_same(&replies, &expected[..stop_after], "until the caller's error");
    }
    let params = short_params(&pair.reasoner, 2, thought_dropout(0.2));
    let [long, ..] = refused_requests(params);
    let end = pair.engine().run(&[long], |_, reply| -> Result<(), CallerError> {
        reply?;
        Ok(())
    });
    assert!(matches!(end, Err(CallerError::Engine(EngineError::TooLong { id: 100, .. }))));
}

/// One engine serves several threads at once; each gets the same outputs as alone.
#[test]
fn an_engine_serves_several_threads() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiGpt2);
    let engine = pair.engine();
    let requests = mixed_requests(&pair.reasoner);
    let expected = run_requests(&engine, &requests).unwrap();
    std::thread::scope(|scope| {
        let run = || scope.spawn(|| run_requests(&engine, &requests).unwrap());
        for thread in [run(), run(), run()] {
            assert_all_same(&thread.join().unwrap(), &expected, "on several threads");
        }
    });
}

#[test]
fn the_stream_of_replies_is_the_run() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let params = short_params(&pair.reasoner, 2, thought_dropout(0.2));
    let mut requests = mixed_requests(&pair.reasoner);
    let expected = run_requests(&pair.engine(), &requests).unwrap();
    let [long, ..] = refused_requests(params);
    requests.insert(2, long);
    let mut streamed: Vec<_> = pair.engine().stream(requests).collect();
    let refused = streamed.remove(2);
    assert!(matches!(refused, Err(EngineError::TooLong { id: 100, .. })), "{refused:?}");
    let replies: Vec<Output> = streamed.into_iter().map(Result::unwrap).collect();
    assert_all_same(&replies, &expected, "streamed");
}

/// The rule that chooses the answer: the request's own, or the default for the available rewards.
#[test]
fn the_answer_is_that_of_the_rule() {
    let plain = RewardedReasoner::of(CheckpointFamily::CodiGpt2);
    let outcome = RewardedReasoner::with_reference(CheckpointFamily::CodiGpt2);
    let engines = [
        (plain.unrewarded_engine(), Rule::MAJORITY),
        (plain.engine(), Rule::NORMALIZED),
        (outcome.engine(), Rule::WEIGHTED),
    ];
    let mut answered = 0;
    for (engine, default) in engines {
        let params = short_params(engine.reasoner(), 16, thought_dropout(0.5));
        for rule in [None, Some(Rule::MAJORITY), Some(Rule::LCB)] {
            let params = SamplingParams { rule, max_new_tokens: nonzero(16), ..params };
            for reply in run(&engine, params, &questions()).unwrap() {
                let rule = rule.unwrap_or(default);
                assert_eq!(reply.rule, rule);
                assert_eq!(reply.chosen, rule.choose(&reply.trajectories, &params.vote));
                let chosen = reply.choose(rule, &params.vote);
                assert_eq!(reply.answer(), chosen.and_then(Candidate::answer));
                let with_answer = reply.trajectories.iter().filter(|t| t.answer.is_some()).count();
                let votes: usize = reply.votes().iter().map(|answer| answer.votes).sum();
                assert_eq!(votes, with_answer);
                answered += usize::from(reply.answer().is_some());
            }
        }
    }
    assert!(answered > 0, "no question has an answer");
}
