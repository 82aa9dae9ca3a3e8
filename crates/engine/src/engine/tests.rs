//! Cancellation tests: a request cancelled at any of the engine's checks is reported as cancelled,
//! does not affect the others, and soon stops being checked because its sequences have left the
//! batch.

use std::num::NonZeroUsize;
use std::path::Path;

use aggregate::Confidence;
use model::RewardHead;
use model::source::RandomWeights;
use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use tensor::Device;

use super::*;
use crate::family::Family;
use crate::method::{LatentLength, LengthRange};
use crate::sampling_params::{AdaptiveSampling, Search, SearchMethod};
use schema::{
    DropoutScope, DropoutSites, MaskLifetime, Perturbation, Probability, Temperature, TopP,
};

/// Tiny models: COCONUT; CoLaR with open-ended thoughts; and a chain-of-thought baseline without
/// end tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TinyModel {
    Coconut,
    Colar,
    Cot,
}

/// The reward model of a test.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TinyRewards {
    None,
    Process,
    /// With an outcome head and a reference reasoner.
    Outcome,
}

fn load<T>(family: CheckpointFamily, seed: u64, load: impl FnOnce(&Path) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    let spec = CheckpointSpec { family, seed, ..CheckpointSpec::default() };
    write_checkpoint(dir.path(), &spec).unwrap();
    load(dir.path())
}

pub(crate) fn engine(model: TinyModel, rewards: TinyRewards) -> Engine {
    let device = Device::cpu(NonZeroUsize::new(2)).unwrap();
    let (checkpoint, family, reward) = match model {
        TinyModel::Coconut => {
            (CheckpointFamily::Coconut, Family::COCONUT, CheckpointFamily::RewardGpt2)
        }
        TinyModel::Cot => (CheckpointFamily::Coconut, Family::COT, CheckpointFamily::RewardGpt2),
        TinyModel::Colar => (CheckpointFamily::Colar, Family::COLAR, CheckpointFamily::RewardLlama),
    };
    let reasoner =
        |seed| load(checkpoint, seed, |dir| Reasoner::load(&device, dir, Some(family)).unwrap());
    let mut own = reasoner(11);
    own.model.method.eos.clear();
    let mut reward_model =
        load(reward, 111, |dir: &Path| RewardModel::load(&device, dir, &own).unwrap());
    if matches!(rewards, TinyRewards::Outcome) {
        let config = reward_model.decoder.config();
        let weights = RandomWeights { seed: 5 };
        reward_model.outcome_head = RewardHead::outcome(&device, config, &weights).unwrap();
        reward_model.reference = Some(reasoner(321).model);
    }
    match rewards {
        TinyRewards::None => Engine::new(own),
        _ => Engine::new(own).with_reward_model(reward_model),
    }
}

/// Replaces the tokens that end answers.
pub(crate) fn set_eos(engine: &mut Engine, eos: Vec<u32>) {
    Arc::get_mut(&mut engine.reasoner).unwrap().model.method.eos = eos;
}

pub(crate) fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap()
}

fn dropout(p: f32, scope: DropoutScope) -> Perturbation {
    let p = Probability::new(p).unwrap();
    let mask = MaskLifetime::Step;
    Perturbation::Dropout { p, sites: DropoutSites::BOTH, scope, mask }
}

/// Parameters of every kind that the model supports.
pub(crate) fn all_params(engine: &Engine, thoughts: usize, tokens: usize) -> Vec<SamplingParams> {
    let base = SamplingParams {
        samples: count(3),
        greedy: true,
        perturbation: dropout(0.3, DropoutScope::Thoughts),
        length: LatentLength::Exactly(count(thoughts)),
        max_new_tokens: count(tokens),
        seed: 7,
        ..engine.default_params()
    };
    let length = match engine.reasoner().method.end_latent[..] {
        [] => base.length,
        _ => LatentLength::AtMost(count(thoughts)),
    };
    let perturbation = Perturbation::Gaussian { std: 0.4 };
    let noise = SamplingParams { perturbation, length, ..base };
    let sampled = SamplingParams {
        perturbation: Perturbation::Tokens { temperature: Temperature::ONE, top_p: TopP::ONE },
        length: LatentLength::None,
        ..base
    };
    let adaptive = Some(AdaptiveSampling { confidence: Confidence::new(1.0).unwrap() });
    let rounds = SamplingParams { samples: count(9), adaptive, ..base };
    let private =
        SamplingParams { perturbation: dropout(0.2, DropoutScope::All), greedy: false, ..base };
    let mut all = vec![base, noise, sampled, rounds, private];
    if engine.reward_model().is_some() {
        let search = Some(Search::beam(count(2), count(2)));
        all.push(SamplingParams { search, ..base });
        all.push(SamplingParams { search, samples: count(1), greedy: false, ..noise });
        let particles = Some(Search::for_samples(SearchMethod::Particles, count(4)));
        all.push(SamplingParams { search: particles, ..base });
        let subtrees = Some(Search::for_samples(SearchMethod::Dvts, count(4)));
        all.push(SamplingParams { search: subtrees, ..noise });
    }
    all
}

pub(crate) fn request(id: u32, params: SamplingParams) -> Request {
    Request { id, ..Request::new("A hen lays 12 eggs; how many do 3 hens lay?", params) }
}

/// Parameters of beam searches whose first extensions are among the samples.
fn searches(engine: &Engine) -> Vec<SamplingParams> {
    let search = Some(Search::beam(count(3), count(2)));
    let [base, noise, _, _, private, ..] = all_params(engine, 4, 3)[..] else { panic!("too few") };
    let open = SamplingParams { length: noise.length, ..base };
    let drawn = LengthRange::new(count(1), count(4)).unwrap();
    let drawn = SamplingParams { length: LatentLength::Between(drawn), greedy: false, ..base };
    let clean = SamplingParams { perturbation: Perturbation::None, ..base };
    [base, noise, open, drawn, clean, private]
        .map(|params| SamplingParams { search, samples: count(7), ..params })
        .to_vec()
}

/// A search that starts from a batch's caches has the same result as a search run from scratch.
#[test]
fn a_search_is_the_same_after_its_batch_and_by_itself() {
    let mut begun = 0;
    for (model, rewards) in MODELS {
        let engine = engine(model, rewards);
        if engine.reward_model().is_none() {
            continue;
        }
        for params in searches(&engine) {
            let context = engine.context();
            let cancel = CancelToken::default();
            let texts = ["2+2?", "A hen lays 12 eggs; how many do 3 hens lay?", "x"];
            let prompt = |(id, text)| Prompt::new(engine.reasoner(), id, text).unwrap();
            let prompts: Vec<Prompt> = (3..).zip(texts).map(prompt).collect();
            let items: Vec<BatchItem<'_>> =
                prompts.iter().map(|prompt| BatchItem::new(prompt, &params, &cancel)).collect();
            let plan = BatchPlan::new(&context, &items, engine.memory());
            let batches = plan.batches(
                &[0, 1, 2].map(|question| SequenceRange { question, rows: 0..params.rows() }),
            );
            let streams = streams::open(1);
            let seconds = &mut StageSeconds::default();
            let mut search = |questions: &[usize], caches: &mut BatchCaches| {
                context.search(&plan, questions, caches, seconds).unwrap()
            };
            let what = format!("{model:?}, {rewards:?}, {params:?}");
            let expected = search(&[0, 1, 2], &mut BatchCaches::default());
            assert!(expected.iter().all(Option::is_some), "{what}");
            // All at once, and in consecutive groups.
            for groups in [vec![vec![0, 1, 2]], vec![vec![2], vec![0, 1]]] {
                context
                    .run_batches(&plan, &batches, &streams, |_: &[SequenceRange], _, _| {
                        Ok::<_, EngineError>(())
                    })
                    .unwrap();
                let caches = &mut streams::lock(&streams[0]);
                for group in groups {
                    begun += usize::from(caches.hold_searches(&group));
                    let found = search(&group, caches);
                    let expected = group.iter().map(|&q| &expected[q]);
                    assert!(found.iter().eq(expected), "{what}, {group:?}: {found:?}");
                }
            }
        }
    }
    assert_eq!(begun, 4 * 6 * 3, "every search begins with the batch's rows");
}

/// All results, with times set to zero because they vary between runs.
fn run(engine: &Engine, requests: &[Request]) -> Vec<Result<Output, EngineError>> {
    let mut results = Vec::new();
    let take = |index, result: Result<Output, EngineError>| -> Result<(), EngineError> {
        assert_eq!(index, results.len());
        results.push(result.map(|reply| Output { seconds: StageSeconds::default(), ..reply }));
        Ok(())
    };
    engine.run(requests, take).unwrap();
    results
}

/// Fails unless a request can be cancelled at each of its checks. `others` run with it, some before
/// and some after it.
fn assert_cancels_at_every_check(
    engine: &Engine,
    cancelled: &Request,
    others: &[Request],
    what: &str,
) {
    let place = others.len() / 2;
    let with_token = |cancel: CancelToken| {
        let mut requests = others.to_vec();
        requests.insert(place, Request { cancel, ..cancelled.clone() });
        run(engine, &requests)
    };
    let never = CancelToken::at_check(usize::MAX);
    let expected = with_token(never.clone());
    assert!(expected.iter().all(Result::is_ok), "{what}: {expected:?}");
    // At most one check per sequence at the end of thinking, after it, while answering, and in a
    // beam search; plus some of the whole request.
    let rows = cancelled.params.rows() + cancelled.params.search.map_or(0, Search::extensions);
    let more = 4 * rows + 8;
    for check in 0..never.checks() {
        let token = CancelToken::at_check(check);
        let found = with_token(token.clone());
        let what = format!("{what}, check {check} of {}", never.checks());
        assert_eq!(found.len(), expected.len(), "{what}");
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            match (index == place, found, expected) {
                (true, Err(EngineError::Cancelled { id }), _) => assert_eq!(*id, cancelled.id),
                (false, Ok(found), Ok(expected)) => assert_eq!(found, expected, "{what}"),
                _ => panic!("{what}, request {index}: {:?}", found.as_ref().map(|reply| reply.id)),
            }
        }
        let checks = token.checks();
        assert!(checks <= check + more, "{what}: checked {checks} times");
    }
}

pub(crate) const MODELS: [(TinyModel, TinyRewards); 5] = [
    (TinyModel::Cot, TinyRewards::Process),
    (TinyModel::Coconut, TinyRewards::None),
    (TinyModel::Coconut, TinyRewards::Outcome),
    (TinyModel::Colar, TinyRewards::Process),
    (TinyModel::Colar, TinyRewards::Outcome),
];

/// With other requests of different parameters: the batch continues without the cancelled
/// sequences.
#[test]
fn a_request_can_be_cancelled_at_every_check_beside_others() {
    for (model, rewards) in MODELS {
        let engine = engine(model, rewards);
        let params = all_params(&engine, 2, 3);
        let others: Vec<Request> =
            (100..).zip([params[1], params[2]]).map(|(id, params)| request(id, params)).collect();
        for params in params {
            let what = format!("{model:?}, {rewards:?}, {params:?}");
            assert_cancels_at_every_check(&engine, &request(1, params), &others, &what);
        }
    }
}

/// Alone: the whole batch is cancelled, and no stage has a sequence left.
#[test]
fn a_request_can_be_cancelled_at_every_check_alone() {
    for (model, rewards) in MODELS {
        let engine = engine(model, rewards);
        for params in all_params(&engine, 2, 3) {
            let what = format!("{model:?}, {rewards:?}, {params:?}, alone");
            assert_cancels_at_every_check(&engine, &request(1, params), &[], &what);
        }
    }
}

/// With little memory, where a request's sequences are split among batches, and its last sequences
/// share a batch with those of the next request.
#[test]
fn a_request_can_be_cancelled_at_every_check_in_several_batches() {
    let engine = engine(TinyModel::Coconut, TinyRewards::None);
    let [params, noise, ..] = all_params(&engine, 2, 3)[..] else { panic!("too few") };
    let split = SamplingParams { samples: count(7), ..params };
    let one_row = SamplingParams { samples: count(1), greedy: false, ..params };
    let others = [noise, one_row, params].map(|params| request(100, params));
    let fits =
        |memory: &usize| engine.clone().with_memory(*memory).check(&[request(0, one_row)]).is_ok();
    let least = (1..).map(|n| n << 10).find(fits).unwrap();
    for memory in (4..13).map(|quarters| least * quarters / 4) {
        let engine = engine.clone().with_memory(memory);
        let what = format!("{memory} bytes");
        assert_cancels_at_every_check(&engine, &request(1, split), &others, &what);
    }
}

/// Cancelled in the middle of many thoughts or tokens, a request ends soon after: nearly all of the
/// remaining work is saved. (Its token is checked once per forward pass for as long as the batch
/// runs, so it runs alone here; the other tests cancel it together with others.)
#[test]
fn a_cancelled_request_frees_its_rows() {
    let engine = engine(TinyModel::Coconut, TinyRewards::Process);
    let params = all_params(&engine, 40, 40)[0];
    let long = |cancel| Request { cancel, ..request(1, params) };
    let never = CancelToken::at_check(usize::MAX);
    run(&engine, &[long(never.clone())]);
    let all = never.checks();
    // At least one check per forward pass.
    assert!(all >= 40 + 40 - 2, "{all} checks");
    for middle in [all / 4, all * 3 / 4] {
        let token = CancelToken::at_check(middle);
        let found = run(&engine, &[long(token.clone())]);
        assert!(matches!(found[0], Err(EngineError::Cancelled { id: 1 })));
        let more = token.checks() - middle;
        assert!(more < all / 10, "{more} of {all} checks after it was cancelled");
    }
}
