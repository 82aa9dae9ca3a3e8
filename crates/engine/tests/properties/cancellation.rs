//! A cancelled request yields [`EngineError::Cancelled`] and does not affect the others. (That it
//! also stops at every possible moment is tested in the engine's unit tests, where its checks of
//! the token can be counted.)

use std::collections::BTreeSet;
use std::time::Duration;

use latent_tts_engine::{
    CancelToken, Engine, EngineError, Output, Perturbation, Request, SamplingParams,
};
use model::testkit::{CheckpointFamily, CheckpointSpec};

use crate::common::*;
use crate::mixed_requests::{mixed_requests, solve_alone, without_searches};
use crate::requests::results;

/// Fails unless the requests at `cancelled` are cancelled and the others have the outputs
/// `expected`.
fn assert_cancelled(
    found: &[(usize, Result<Output, EngineError>)],
    cancelled: &BTreeSet<usize>,
    expected: &[Output],
    what: &str,
) {
    assert!(found.iter().map(|(index, _)| *index).eq(0..expected.len()), "{what}: order");
    for ((index, result), expected) in found.iter().zip(expected) {
        match result {
            Ok(reply) if !cancelled.contains(index) => assert_same(reply, expected, what),
            Err(EngineError::Cancelled { id }) if cancelled.contains(index) => {
                assert_eq!(*id, expected.id, "{what}, request {index}");
            }
            other => panic!("{what}, request {index}: {:?}", other.as_ref().map(|r| r.id)),
        }
    }
}

/// The requests with separate tokens.
fn with_own_tokens(requests: &[Request]) -> Vec<Request> {
    let own = |request: &Request| Request { cancel: CancelToken::default(), ..request.clone() };
    requests.iter().map(own).collect()
}

/// Engines of a few families, with and without rewards for answers, with much memory and with so
/// little that the requests' sequences are split among batches.
fn engines() -> Vec<(String, Engine, Vec<Request>)> {
    let mut engines = Vec::new();
    for family in [CheckpointFamily::Coconut, CheckpointFamily::Colar] {
        let pair = RewardedReasoner::of(family);
        let referenced = RewardedReasoner::with_reference(family);
        let requests = mixed_requests(&pair.reasoner);
        for (rewards, engine, requests) in [
            ("no rewards", pair.unrewarded_engine(), without_searches(&requests)),
            ("process rewards", pair.engine(), requests.clone()),
            ("outcome rewards", referenced.engine(), requests),
        ] {
            let least = smallest_memory(&engine, &requests);
            for memory in [engine.memory(), least] {
                let what = format!("{family:?}, {rewards}, {memory} bytes");
                engines.push((what, engine.clone().with_memory(memory), requests.clone()));
            }
        }
    }
    engines
}

#[test]
fn requests_that_are_cancelled_before_the_run_change_nothing_in_the_others() {
    for (what, engine, requests) in engines() {
        let expected = solve_alone(&engine, &requests);
        let last = requests.len() - 1;
        let all: BTreeSet<usize> = (0..requests.len()).collect();
        let each = (0..requests.len()).step_by(4).map(|i| BTreeSet::from([i]));
        let several = [BTreeSet::from([0, 1, 7]), BTreeSet::from([2, last - 1, last]), all];
        for cancelled in each.chain(several) {
            let requests = with_own_tokens(&requests);
            cancelled.iter().for_each(|&i| requests[i].cancel.cancel());
            let what = format!("{what}, cancelled {cancelled:?}");
            assert_cancelled(&results(&engine, &requests), &cancelled, &expected, &what);
        }
    }
}

#[test]
fn a_timeout_of_zero_is_cancelled_before_the_run() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let engine = pair.engine();
    let mut requests = mixed_requests(&pair.reasoner);
    let expected = solve_alone(&engine, &requests);
    requests[3].cancel = CancelToken::with_timeout(Duration::ZERO);
    requests[5].cancel = CancelToken::with_timeout(Duration::from_secs(3600));
    let cancelled = BTreeSet::from([3]);
    assert_cancelled(&results(&engine, &requests), &cancelled, &expected, "a timeout of zero");
    let solved = engine.solve(&requests[3]);
    let id = requests[3].id;
    assert!(matches!(solved, Err(EngineError::Cancelled { id: found }) if found == id));
}

/// The callback of one request cancels a later one, whose sequences may already be computed;
/// cancelling an earlier one has no effect.
#[test]
fn requests_that_are_cancelled_by_the_callback_change_nothing_in_the_others() {
    for (what, engine, requests) in engines() {
        let expected = solve_alone(&engine, &requests);
        for (at, other) in [(0, 1), (0, 12), (3, 7), (4, requests.len() - 1), (6, 2)] {
            let requests = with_own_tokens(&requests);
            let mut found = Vec::new();
            let take = |index: usize, result| -> Result<(), EngineError> {
                if index == at {
                    requests[other].cancel.cancel();
                }
                found.push((index, result));
                Ok(())
            };
            engine.run(&requests, take).unwrap();
            let cancelled = BTreeSet::from_iter((other > at).then_some(other));
            let what = format!("{what}, request {at} cancels request {other}");
            assert_cancelled(&found, &cancelled, &expected, &what);
        }
    }
}

/// Requests that share a token are cancelled together; those with a child of it too.
#[test]
fn clones_and_children_of_a_token_are_cancelled_with_it() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let engine = pair.engine();
    let mut requests = mixed_requests(&pair.reasoner);
    let expected = solve_alone(&engine, &requests);
    let token = CancelToken::default();
    let child = token.child();
    requests[2].cancel = token.clone();
    requests[4].cancel = token.clone();
    requests[9].cancel = child.clone();
    token.cancel();
    let cancelled = BTreeSet::from([2, 4, 9]);
    assert_cancelled(&results(&engine, &requests), &cancelled, &expected, "a shared token");
}

/// A reasoner with such a long context that filling it takes hours, and a request that ends soon.
struct EndlessContext {
    engine: Engine,
    short: Request,
}

/// Positions of the context, minus those of prompt and end tokens.
const ENDLESS: usize = (1 << 20) - 256;

impl EndlessContext {
    fn new() -> Self {
        let spec = CheckpointSpec {
            family: CheckpointFamily::CodiLlama,
            layers: 1,
            kv_heads: 1,
            context: 1 << 20,
            ..CheckpointSpec::default()
        };
        let mut reasoner = reasoner(device(), &spec);
        reasoner.model.method.eos.clear();
        let params = short_params(&reasoner, 2, thought_dropout(0.2));
        let short = questions()[0].request(params);
        Self { engine: Engine::new(reasoner), short }
    }

    /// The short request, with enough thoughts to fill the context.
    fn endless_thoughts(&self) -> Request {
        let params = SamplingParams { length: exactly(ENDLESS), ..self.short.params };
        self.endless(params)
    }

    /// The short request, with enough answer tokens to fill the context.
    fn endless_answer(&self) -> Request {
        let params = SamplingParams { max_new_tokens: nonzero(ENDLESS), ..self.short.params };
        self.endless(params)
    }

    fn endless(&self, params: SamplingParams) -> Request {
        let params = SamplingParams {
            samples: nonzero(1),
            perturbation: Perturbation::Gaussian { std: 0.1 },
            ..params
        };
        Request { id: 1000, params, cancel: CancelToken::default(), ..self.short.clone() }
    }
}

/// The run terminates only because the cancelled sequences leave the batch; otherwise it would take
/// hours.
#[test]
fn another_thread_cancels_a_request_that_thinks_or_answers() {
    let EndlessContext { engine, short } = &EndlessContext::new();
    let context = EndlessContext { engine: engine.clone(), short: short.clone() };
    let expected = engine.solve(short).unwrap();
    for endless in [context.endless_thoughts(), context.endless_answer()] {
        let token = endless.cancel.clone();
        let canceller = std::thread::spawn(move || {
            // Usually long enough to be in the middle of the run; the result is the same at any
            // moment.
            std::thread::sleep(Duration::from_millis(100));
            token.cancel();
        });
        let found = results(engine, &[endless, short.clone()]);
        canceller.join().unwrap();
        assert!(matches!(found[0].1, Err(EngineError::Cancelled { id: 1000 })));
        assert_same(found[1].1.as_ref().unwrap(), &expected, "beside a cancelled request");
    }
}

#[test]
fn a_timeout_ends_a_request_that_thinks_or_answers() {
    let context = EndlessContext::new();
    let expected = context.engine.solve(&context.short).unwrap();
    for endless in [context.endless_thoughts(), context.endless_answer()] {
        let limit = CancelToken::with_timeout(Duration::from_millis(100));
        let requests = [context.short.clone(), Request { cancel: limit, ..endless }];
        let found = results(&context.engine, &requests);
        assert_same(found[0].1.as_ref().unwrap(), &expected, "beside a timeout");
        assert!(matches!(found[1].1, Err(EngineError::Cancelled { id: 1000 })));
    }
}

/// Dropping the iterator cancels the rest of the stream and waits for its thread; the caller's
/// tokens are not cancelled.
#[test]
fn dropping_a_stream_ends_it() {
    let context = EndlessContext::new();
    let expected = context.engine.solve(&context.short).unwrap();
    let endless = context.endless_thoughts();
    // The endless request only fits into a separate batch, so that the short one is done before.
    let memory = smallest_memory(&context.engine, std::slice::from_ref(&endless));
    let engine = context.engine.clone().with_memory(memory);
    let token = endless.cancel.clone();
    let mut stream = engine.stream(vec![context.short.clone(), endless.clone()]);
    assert_same(&stream.next().unwrap().unwrap(), &expected, "streamed");
    drop(stream);
    assert!(!token.is_cancelled() && !context.short.cancel.is_cancelled());
    // Dropped before the first reply was taken.
    drop(engine.stream(vec![endless.clone(), context.short.clone()]));
    assert!(!token.is_cancelled());
    // Cancelled by the caller's own token, in a stream that is read to its end.
    token.cancel();
    let rest: Vec<_> = engine.stream(vec![endless, context.short]).collect();
    assert!(matches!(rest[0], Err(EngineError::Cancelled { id: 1000 })));
    assert_same(rest[1].as_ref().unwrap(), &expected, "after a cancelled request");
}
