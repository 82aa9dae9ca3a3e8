//! Requests with different parameters share the batches and passes of one run, and each has bitwise
//! the same output as alone.

use std::sync::{Arc, LazyLock};

use aggregate::Rule;
use data::answer::AnswerKind;
use latent_tts_engine::{
    DropoutScope, DropoutSites, Engine, LatentLength, Output, Perturbation, Reasoner, Request,
    SamplingParams,
};
use model::testkit::CheckpointSpec;
use proptest::prelude::*;

use crate::adaptive::adaptive;
use crate::beam_search::size;
use crate::common::*;
use crate::token_sampling;

/// Every kind of perturbation at several strengths, sites and scopes; every kind of length; with
/// and without greedy trajectories, adaptive sampling and beam searches.
pub fn mixed_requests(reasoner: &Reasoner) -> Vec<Request> {
    let base = short_params(reasoner, 2, Perturbation::None);
    let with = |samples, perturbation, length| SamplingParams {
        samples: nonzero(samples),
        perturbation,
        length,
        ..base
    };
    let gaussian = |std| Perturbation::Gaussian { std };
    let mlp = |p| dropout(p, DropoutSites::MLP, DropoutScope::Thoughts);
    let prompt = |p| dropout(p, DropoutSites::ATTN, DropoutScope::Prompt);
    let all = |p| dropout(p, DropoutSites::BOTH, DropoutScope::All);
    let tokens = |n| nonzero(n);
    let searched =
        SamplingParams { search: size(2, 2), ..with(2, thought_dropout(0.3), exactly(3)) };
    let params = [
        SamplingParams { greedy: true, ..with(2, Perturbation::None, exactly(3)) },
        with(3, thought_dropout(0.2), exactly(4)),
        SamplingParams { greedy: true, seed: 5, ..with(2, mlp(0.4), between(1, 5)) },
        with(1, Perturbation::None, LatentLength::None),
        SamplingParams { seed: 6, ..with(2, prompt(0.2), at_most(4)) },
        SamplingParams { max_new_tokens: tokens(9), ..with(3, all(0.1), LatentLength::None) },
        with(4, gaussian(0.3), at_most(5)),
        SamplingParams { adaptive: adaptive(0.7), ..with(13, thought_dropout(0.3), exactly(2)) },
        SamplingParams { greedy: true, seed: 7, ..with(1, gaussian(1.2), between(2, 3)) },
        SamplingParams { greedy: true, ..with(4, sampled(0.8, 0.9), LatentLength::None) },
        SamplingParams { max_new_tokens: tokens(12), ..with(2, sampled(1.5, 1.0), exactly(2)) },
        searched,
        SamplingParams { adaptive: adaptive(1.0), greedy: true, ..with(9, all(0.4), exactly(1)) },
        SamplingParams { search: size(3, 1), max_new_tokens: tokens(3), ..searched },
        SamplingParams { search: size(1, 3), ..with(2, gaussian(0.6), at_most(3)) },
        SamplingParams { search: size(2, 2), greedy: true, ..with(1, prompt(0.3), between(1, 3)) },
        searched,
        SamplingParams { max_new_tokens: tokens(1), ..with(3, thought_dropout(0.5), exactly(1)) },
        SamplingParams { adaptive: adaptive(0.6), ..with(6, sampled(1.0, 0.5), exactly(2)) },
    ];
    let questions = questions();
    let request = |(i, params): (usize, SamplingParams)| Request {
        id: 7 * i as u32,
        ..questions[i % questions.len()].request(params)
    };
    params.into_iter().enumerate().map(request).collect()
}

/// The same without beam searches, for an engine without a reward model.
pub fn without_searches(requests: &[Request]) -> Vec<Request> {
    let unsearched = |params| SamplingParams { search: None, ..params };
    let requests = requests.iter().cloned();
    requests.map(|r| Request { params: unsearched(r.params), ..r }).collect()
}

/// The output of each request run alone.
pub fn solve_alone(engine: &Engine, requests: &[Request]) -> Vec<Output> {
    requests.iter().map(|request| engine.solve(request).unwrap()).collect()
}

/// Fails unless the requests have the same outputs together as alone: with much memory, and with
/// little, where their sequences are split among batches.
fn assert_same_alone(engine: &Engine, requests: &[Request], what: &str) {
    let alone = solve_alone(engine, requests);
    let least = smallest_memory(engine, requests);
    for memory in [engine.memory(), least, least + least / 3, 3 * least] {
        let engine = engine.clone().with_memory(memory);
        let together = run_requests(&engine, requests).unwrap();
        assert_all_same(&together, &alone, &format!("{what}, {memory} bytes"));
    }
}

#[test]
fn mixed_requests_get_what_they_get_alone() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let requests = mixed_requests(&pair.reasoner);
        assert_same_alone(&pair.engine(), &requests, &format!("{family:?}, process rewards"));
        let plain = without_searches(&requests);
        assert_same_alone(&pair.unrewarded_engine(), &plain, &format!("{family:?}, no rewards"));
        let pair = RewardedReasoner::with_reference(family);
        assert_same_alone(&pair.engine(), &requests, &format!("{family:?}, outcome rewards"));
    }
}

/// A family without end tokens: sequences without thoughts answer from their prompt's last
/// position, together with sequences that still have to feed their last thought.
#[test]
fn mixed_requests_without_end_tokens_get_what_they_get_alone() {
    let engine = Engine::new(token_sampling::cot_reasoner(device(), &CheckpointSpec::default()));
    let without_open_length = |length| match length {
        LatentLength::AtMost(n) => LatentLength::Exactly(n),
        other => other,
    };
    let mut requests = without_searches(&mixed_requests(engine.reasoner()));
    for request in &mut requests {
        request.params.length = without_open_length(request.params.length);
    }
    assert!(requests.iter().any(|r| r.params.length == LatentLength::None));
    assert!(requests.iter().any(|r| r.params.length != LatentLength::None));
    assert_same_alone(&engine, &requests, "cot");
}

/// One request many times, with parameters that differ in one field: nothing leaks from adjacent
/// requests.
#[test]
fn requests_that_differ_in_one_field_do_not_share_it() {
    let pair = RewardedReasoner::of(FAMILIES[0]);
    let base = short_params(&pair.reasoner, 2, thought_dropout(0.3));
    let params = [
        base,
        SamplingParams { seed: base.seed + 1, ..base },
        SamplingParams { perturbation: thought_dropout(0.31), ..base },
        SamplingParams {
            perturbation: dropout(0.3, DropoutSites::MLP, DropoutScope::Thoughts),
            ..base
        },
        SamplingParams {
            perturbation: dropout(0.3, DropoutSites::BOTH, DropoutScope::All),
            ..base
        },
        SamplingParams { length: exactly(3), ..base },
    ];
    let question = &questions()[4];
    let requests: Vec<Request> = params.iter().map(|params| question.request(*params)).collect();
    let replies = run_requests(&pair.engine(), &requests).unwrap();
    assert_all_same(&replies, &solve_alone(&pair.engine(), &requests), "one field");
    for (i, a) in replies.iter().enumerate() {
        for b in &replies[..i] {
            assert_ne!(latents(a), latents(b), "requests that differ have different thoughts");
        }
    }
}

/// The models of every family: without a reward model, with one, and with one that has a reference
/// reasoner and an outcome head.
static ENGINES: LazyLock<Vec<[Engine; 3]>> = LazyLock::new(|| {
    let of_family = |family| {
        let pair = RewardedReasoner::of(family);
        let referenced = RewardedReasoner::with_reference(family);
        let referenced = Engine::new(Arc::clone(&pair.reasoner))
            .with_reward_model(Arc::clone(&referenced.reward_model));
        [pair.unrewarded_engine(), pair.engine(), referenced]
    };
    FAMILIES.into_iter().map(of_family).collect()
});

fn any_perturbation() -> impl Strategy<Value = Perturbation> {
    let sites = (any::<bool>(), any::<bool>())
        .prop_map(|(attn_out, mlp_out)| DropoutSites { attn_out, mlp_out });
    let scope =
        prop::sample::select(vec![DropoutScope::Thoughts, DropoutScope::Prompt, DropoutScope::All]);
    prop_oneof![
        1 => Just(Perturbation::None),
        4 => (0.0f32..0.6, sites, scope).prop_map(|(p, sites, scope)| dropout(p, sites, scope)),
        2 => (0.0f32..1.5).prop_map(|std| Perturbation::Gaussian { std }),
        2 => (0.2f32..2.0, 0.1f32..1.0).prop_map(|(temperature, p)| sampled(temperature, p)),
    ]
}

fn any_length() -> impl Strategy<Value = LatentLength> {
    prop_oneof![
        Just(LatentLength::None),
        (1usize..6).prop_map(exactly),
        (1usize..6).prop_map(at_most),
        (1usize..4, 0usize..4).prop_map(|(low, more)| between(low, low + more)),
    ]
}

/// Parameters that every engine supports; beam searches are removed without a reward model.
fn any_params() -> impl Strategy<Value = SamplingParams> {
    let confidence = prop::option::of(prop::sample::select(vec![0.6, 0.95, 1.0]));
    let beam = prop::option::weighted(0.3, (1usize..4, 1usize..4));
    let rules = vec![Rule::MAJORITY, Rule::NORMALIZED, Rule::COMBINED];
    let rule = prop::option::of(prop::sample::select(rules));
    let counts = (1usize..8, 1usize..10, any::<bool>(), any::<u64>());
    (any_perturbation(), any_length(), counts, confidence, beam, rule).prop_map(
        |(
            perturbation,
            length,
            (samples, max_new_tokens, greedy, seed),
            confidence,
            beam,
            rule,
        )| {
            let only_thoughts = match perturbation {
                Perturbation::Dropout { scope, .. } => scope == DropoutScope::Thoughts,
                Perturbation::Gaussian { .. } => true,
                _ => false,
            };
            let is_refused = length == LatentLength::None && only_thoughts;
            let length = if is_refused { exactly(1) } else { length };
            let beam = beam.filter(|_| length != LatentLength::None);
            SamplingParams {
                samples: nonzero(samples),
                greedy,
                adaptive: confidence.and_then(adaptive),
                search: beam.and_then(|(width, candidates)| size(width, candidates)),
                perturbation,
                length,
                max_new_tokens: nonzero(max_new_tokens),
                seed,
                rule,
                ..SamplingParams::defaults_for(&ENGINES[0][0].reasoner().method)
            }
        },
    )
}

fn any_request() -> impl Strategy<Value = Request> {
    let kinds = vec![AnswerKind::Number, AnswerKind::Math, AnswerKind::Choice];
    let question = prop::sample::select(questions());
    (any_params(), question, 0u32..20, prop::sample::select(kinds)).prop_map(
        |(params, question, id, answer_kind)| Request {
            id,
            answer_kind,
            ..Request::new(question.text, params)
        },
    )
}

/// Requests, and a permutation of them.
fn any_requests() -> impl Strategy<Value = (Vec<Request>, Vec<usize>)> {
    prop::collection::vec(any_request(), 2..9).prop_flat_map(|requests| {
        let order = Just((0..requests.len()).collect::<Vec<_>>()).prop_shuffle();
        (Just(requests), order)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any requests in any order, with any memory that suffices for each of them alone.
    #[test]
    fn any_mixed_requests_get_what_they_get_alone(
        (requests, order) in any_requests(),
        family in 0..FAMILIES.len(),
        rewards in 0usize..3,
        thirds_of_memory in prop::option::of(3usize..12),
    ) {
        let engine = &ENGINES[family][rewards];
        let requests = if rewards == 0 { without_searches(&requests) } else { requests };
        let alone = solve_alone(engine, &requests);
        let memory = thirds_of_memory
            .map_or(engine.memory(), |thirds| smallest_memory(engine, &requests) * thirds / 3);
        let engine = engine.clone().with_memory(memory);
        let what = format!("{:?}, rewards {rewards}, {memory} bytes", FAMILIES[family]);
        assert_all_same(&run_requests(&engine, &requests).unwrap(), &alone, &what);
        let shuffled: Vec<Request> = order.iter().map(|&i| requests[i].clone()).collect();
        let replies = run_requests(&engine, &shuffled).unwrap();
        for (reply, &i) in replies.iter().zip(&order) {
            assert_same(reply, &alone[i], &format!("{what}, shuffled"));
        }
    }
}
