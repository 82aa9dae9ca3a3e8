//! Sampled answer tokens, and the baseline without latent thoughts: an explicit chain of thought.

use std::collections::BTreeSet;

use latent_tts_engine::{
    DropoutScope, DropoutSites, Engine, EngineError, Family, LatentLength, Output, Perturbation,
    Reasoner, SamplingParams,
};
use model::testkit::{CheckpointFamily, CheckpointSpec};
use tensor::Device;

use crate::common;
use crate::common::*;

/// A chain-of-thought baseline: the backbone of a family without the family's additions.
pub fn cot_reasoner(device: &Device, spec: &CheckpointSpec) -> Reasoner {
    // COCONUT and Latent-SFT add no tensors to their backbones.
    let plain =
        if is_gpt2(spec.family) { CheckpointFamily::Coconut } else { CheckpointFamily::LatentSft };
    with_checkpoint(&CheckpointSpec { family: plain, ..spec.clone() }, |dir| {
        Reasoner::load(device, dir, Some(Family::COT)).unwrap()
    })
}

/// The chain-of-thought baseline on the shared device.
fn cot_engine() -> Engine {
    Engine::new(cot_reasoner(device(), &CheckpointSpec::default()))
}

#[test]
fn the_cot_baseline_has_no_thoughts_and_does_not_depend_on_its_batch() {
    let engine = cot_engine();
    let method = &engine.reasoner().method;
    assert_eq!((method.length, method.max_new_tokens), (LatentLength::None, 128));
    assert!(method.end_latent.is_empty() && method.begin_latent.is_empty());
    let many = short_params(engine.reasoner(), 16, sampled(1.0, 0.95));
    let many = SamplingParams { greedy: true, ..many };
    let run = |params| common::run(&engine, params, &questions()).unwrap();
    let all = run(many);
    for reply in &all {
        assert!(reply.diversity.is_empty());
        for trajectory in &reply.trajectories {
            assert_eq!((trajectory.thoughts, trajectory.latents.rows()), (0, 0));
            assert!(trajectory.logprob.is_some_and(|logprob| logprob < 0.0));
        }
        let texts: BTreeSet<&str> = reply.trajectories.iter().map(|t| t.text.as_str()).collect();
        assert!(texts.len() > 8, "sampled answers differ");
    }
    let few = run(SamplingParams { samples: nonzero(4), ..many });
    // Memory for some sequences of a question at a time.
    let split = engine.clone().with_memory(200 << 10);
    let split = common::run(&split, many, &questions()).unwrap();
    for (((all, few), split), question) in all.iter().zip(&few).zip(&split).zip(questions()) {
        assert_same_trajectories(&all.trajectories[..4], &few.trajectories, "few samples");
        assert_same_trajectories(all.greedy.as_slice(), few.greedy.as_slice(), "few samples");
        assert_same(all, split, "in parts");
        assert_same(all, &engine.solve(&question.request(many)).unwrap(), "alone");
    }
    let other = run(SamplingParams { seed: SEED + 1, ..many });
    assert!(all.iter().zip(&other).all(|(a, b)| a.trajectories != b.trajectories));
    assert!(all.iter().zip(&other).all(|(a, b)| a.greedy == b.greedy));
}

/// Top-p of almost 0 and a temperature of almost 0 both leave the most probable token.
#[test]
fn the_smallest_top_p_and_the_lowest_temperature_are_greedy() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let run =
            |perturbation| pair.run(short_params(&pair.reasoner, 2, perturbation), &questions());
        let plain = run(Perturbation::None);
        for perturbation in [sampled(1.0, 1e-6), sampled(1e-6, 1.0)] {
            for (plain, found) in plain.iter().zip(run(perturbation)) {
                let what = format!("{family:?}, {perturbation:?}");
                assert_same_trajectories(&plain.trajectories, &found.trajectories, &what);
            }
        }
    }
}

/// If only tokens are sampled, all sequences have the same thoughts and different answers.
#[test]
fn sampled_tokens_leave_thoughts_unchanged() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let run = |samples, perturbation| {
            pair.run(short_params(&pair.reasoner, samples, perturbation), &questions())
        };
        let plain = run(1, Perturbation::None);
        for (plain, found) in plain.iter().zip(run(8, sampled(1.5, 1.0))) {
            for trajectory in &found.trajectories {
                let expected = &plain.trajectories[0].latents;
                assert_same_bits(&trajectory.latents, expected, &format!("{family:?}"));
            }
            let first = &found.trajectories[0].text;
            assert!(found.trajectories.iter().any(|t| t.text != *first), "{family:?}");
        }
    }
}

/// Every token is a step; the first is computed from the prompt and the last is not fed.
#[test]
fn the_cost_of_the_cot_baseline_is_counted() {
    let engine = cot_engine();
    let params = short_params(engine.reasoner(), 3, sampled(1.0, 1.0));
    let params = SamplingParams { greedy: true, ..params };
    let replies: Vec<Output> = common::run(&engine, params, &questions()).unwrap();
    for (reply, question) in replies.iter().zip(questions()) {
        let prompt = prompt_of(engine.reasoner(), &question);
        let greedy =
            SamplingParams { perturbation: Perturbation::None, samples: nonzero(1), ..params };
        let rows = |params| run_sequences(engine.reasoner(), params, &prompt);
        let lengths: Vec<usize> =
            rows(&params).iter().chain(&rows(&greedy)).map(|row| row.tokens.len()).collect();
        assert_eq!(reply.cost.steps, lengths.iter().sum::<usize>() as u64);
        let decoder = &engine.reasoner().decoder;
        let start = prompt.tokens.len();
        let position =
            |i: usize| decoder.flops_per_position() + (i + 1) as f64 * decoder.flops_per_attended();
        let mut flops: f64 = (0..start).map(position).sum();
        for length in lengths {
            flops += (start..start + length - 1).map(position).sum::<f64>();
            flops += length as f64 * decoder.flops_per_logits();
        }
        let found = reply.cost.flops;
        assert!((found - flops).abs() < 1e-9 * flops, "{found} and {flops}");
    }
}

#[test]
fn parameters_that_need_thoughts_are_refused_without_them() {
    let engine = cot_engine();
    let base = short_params(engine.reasoner(), 2, Perturbation::None);
    let result = |params| common::run(&engine, params, &questions());
    for perturbation in [thought_dropout(0.2), Perturbation::Gaussian { std: 0.3 }] {
        let found = result(SamplingParams { perturbation, ..base });
        assert!(
            matches!(found, Err(EngineError::NothingToPerturb { .. })),
            "{perturbation:?}: {found:?}"
        );
    }
    let found = result(SamplingParams { length: at_most(4), ..base });
    assert!(matches!(found, Err(EngineError::EndlessThoughts { .. })), "{found:?}");
    for perturbation in [
        Perturbation::None,
        dropout(0.2, DropoutSites::BOTH, DropoutScope::All),
        dropout(0.2, DropoutSites::BOTH, DropoutScope::Prompt),
    ] {
        result(SamplingParams { perturbation, ..base }).unwrap();
    }
    assert_eq!(engine.default_params().perturbation, sampled(1.0, 1.0));
}
