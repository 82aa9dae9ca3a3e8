//! Mixtures with per-row rules: one-sided noise, sampled tokens, sharpened distributions, Cold
//! Stop; and dropout on generated positions.

use std::num::NonZeroU32;
use std::sync::Arc;

use latent_tts_engine::{
    ColdStop, DropoutScope, DropoutSites, EngineError, LatentLength, OneSidedNoise, Perturbation,
    PromptSharing, SamplingParams, Temperature, TopP,
};
use model::LatentHead;
use model::testkit::{CheckpointFamily, CheckpointSpec};

use crate::common::*;

fn one_sided(scale: f32) -> Perturbation {
    let scale = Temperature::new(scale).unwrap();
    let noise = OneSidedNoise { scale, top_p: OneSidedNoise::TOP_P };
    Perturbation::Gumbel { tau: Temperature::ONE, one_sided: Some(noise) }
}

fn multiplex(width: u32) -> Perturbation {
    let width = NonZeroU32::new(width).unwrap();
    Perturbation::Multiplex { width, temperature: Temperature::ONE, top_p: TopP::ONE }
}

fn plain_gumbel() -> Perturbation {
    Perturbation::Gumbel { tau: Temperature::ONE, one_sided: None }
}

/// Latent-SFT's plain mixtures, and those of Soft Thinking.
fn mixing() -> [RewardedReasoner; 2] {
    let plain = RewardedReasoner::of(CheckpointFamily::LatentSft);
    let mut soft = RewardedReasoner::of(CheckpointFamily::LatentSft);
    let head = LatentHead::SoftMixture { k: 10, temperature: 0.6, top_p: 0.95 };
    soft.reasoner_mut().model.head = Arc::new(head);
    [plain, soft]
}

fn fixed(pair: &RewardedReasoner, samples: usize, perturbation: Perturbation) -> SamplingParams {
    let params = short_params(&pair.reasoner, samples, perturbation);
    SamplingParams { length: exactly(4), greedy: true, ..params }
}

#[test]
fn a_row_does_not_depend_on_its_batch() {
    for pair in mixing() {
        for perturbation in [plain_gumbel(), one_sided(1.0), multiplex(3)] {
            let params = fixed(&pair, 5, perturbation);
            let together = pair.run(params, &questions());
            for (question, reply) in questions().iter().zip(&together) {
                assert_same(&pair.solve(params, question), reply, "alone");
                let few = SamplingParams { samples: nonzero(2), ..params };
                let few = pair.solve(few, question);
                let first = &reply.trajectories[..2];
                assert_same_trajectories(first, &few.trajectories, "fewer samples");
                let all = latents(reply);
                assert!((1..all.len()).all(|k| all[k] != all[0]), "trajectories differ");
                let plain = SamplingParams { perturbation: Perturbation::None, ..params };
                let plain = pair.solve(plain, question);
                assert_same_trajectories(
                    reply.greedy.as_slice(),
                    plain.greedy.as_slice(),
                    "greedy",
                );
            }
        }
    }
}

#[test]
fn requests_with_and_without_rules_share_a_batch() {
    for pair in mixing() {
        let kinds = [plain_gumbel(), one_sided(0.5), Perturbation::None, multiplex(2)];
        let requests: Vec<_> = questions()
            .iter()
            .zip(kinds.into_iter().cycle())
            .map(|(question, kind)| question.request(fixed(&pair, 3, kind)))
            .collect();
        let engine = pair.engine();
        let together = solve_all(&engine, &requests);
        for (request, reply) in requests.iter().zip(&together) {
            assert_same(&engine.solve(request).unwrap(), reply, "alone");
        }
    }
}

#[test]
fn cold_stop_ends_thoughts_that_stay_certain() {
    for pair in mixing() {
        let stop = |entropy: f32, steps: u32| {
            let steps = NonZeroU32::new(steps).unwrap();
            let params = fixed(&pair, 2, plain_gumbel());
            SamplingParams {
                length: at_most(5),
                cold_stop: Some(ColdStop { entropy, steps }),
                ..params
            }
        };
        let lengths = |params: SamplingParams| -> Vec<usize> {
            let reply = pair.solve(params, &questions()[2]);
            reply.trajectories.iter().map(|trajectory| trajectory.latents.rows()).collect()
        };
        let free = lengths(stop(0.0, 1));
        // Every thought counts as low-entropy: the first position ends the thoughts, or the third.
        assert_eq!(lengths(stop(1e9, 1)), [0, 0]);
        let expected: Vec<usize> = free.iter().map(|&thoughts| thoughts.min(2)).collect();
        assert_eq!(lengths(stop(1e9, 3)), expected);
        assert_eq!(lengths(stop(1e-9, 1)), free, "nothing is that certain");
    }
}

#[test]
fn families_that_do_not_mix_refuse_rules_of_mixtures() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let cold = SamplingParams {
        cold_stop: Some(ColdStop::PUBLISHED),
        ..fixed(&pair, 2, Perturbation::None)
    };
    for params in [fixed(&pair, 2, multiplex(2)), fixed(&pair, 2, one_sided(1.0)), cold] {
        let error = pair.engine().solve(&questions()[0].request(params)).unwrap_err();
        assert!(matches!(error, EngineError::NothingToMix { .. }), "{error}");
    }
}

/// With dropout on generated positions the prompt is shared: the first token, which is computed
/// from it, is the greedy one, and the others differ.
#[test]
fn the_prompt_of_generated_dropout_is_shared_and_clean() {
    let perturbation = dropout(0.4, DropoutSites::BOTH, DropoutScope::Generated);
    assert_eq!(perturbation.prompt_sharing(), PromptSharing::Whole);
    for family in [CheckpointFamily::Llama, CheckpointFamily::Qwen2] {
        let reasoner = reasoner(device(), &CheckpointSpec { family, ..CheckpointSpec::default() });
        let params = short_params(&reasoner, 6, perturbation);
        assert_eq!(params.length, LatentLength::None);
        let params = SamplingParams { greedy: true, max_new_tokens: nonzero(12), ..params };
        let engine = latent_tts_engine::Engine::new(Arc::new(reasoner));
        let together = run(&engine, params, &questions()).unwrap();
        for (question, reply) in questions().iter().zip(&together) {
            let alone = engine.solve(&question.request(params)).unwrap();
            assert_same(&alone, reply, "alone");
            let greedy = reply.greedy.as_ref().unwrap();
            let firsts = reply.trajectories.iter().map(|trajectory| trajectory.tokens[0]);
            assert!(firsts.into_iter().all(|token| token == greedy.tokens[0]), "{family:?}");
        }
        let differs = |reply: &latent_tts_engine::Output| {
            let greedy = reply.greedy.as_ref().unwrap();
            reply.trajectories.iter().any(|trajectory| trajectory.tokens != greedy.tokens)
        };
        assert!(together.iter().any(differs), "{family:?}");
        let clean = SamplingParams {
            perturbation: dropout(0.0, DropoutSites::BOTH, DropoutScope::Generated),
            ..params
        };
        for reply in run(&engine, clean, &questions()).unwrap() {
            let greedy = reply.greedy.as_ref().unwrap();
            assert!(reply.trajectories.iter().all(|row| row.tokens == greedy.tokens), "p = 0");
        }
    }
}

/// In latent reasoners the thoughts after the first one differ as well.
#[test]
fn generated_dropout_reaches_thoughts_and_answers() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let perturbation = dropout(0.3, DropoutSites::BOTH, DropoutScope::Generated);
    let params = fixed(&pair, 4, perturbation);
    let reply = pair.solve(params, &questions()[0]);
    let all = latents(&reply);
    assert!((1..all.len()).all(|k| all[k].row(0) == all[0].row(0)), "read from the prompt");
    assert!((1..all.len()).all(|k| all[k].row(1) != all[0].row(1)), "read from a noisy pass");
    assert_same(&pair.run(params, &questions())[0], &reply, "in a batch");
}
