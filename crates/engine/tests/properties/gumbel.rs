//! Gumbel noise on thoughts that are mixtures of token embeddings.

use latent_tts_engine::{EngineError, Perturbation, SamplingParams, Temperature};
use model::testkit::CheckpointFamily;
use tensor::Tensor;
use tensor::ops;

use crate::common::*;
use crate::{beam_search, naive, rollout};

fn gumbel(tau: f32) -> Perturbation {
    Perturbation::Gumbel { tau: Temperature::new(tau).unwrap(), one_sided: None }
}

/// A reasoner with mixtures, and parameters of fixed length: no sequence ends before it is
/// perturbed.
fn mixing(samples: usize, tau: f32) -> (RewardedReasoner, SamplingParams) {
    let pair = RewardedReasoner::of(CheckpointFamily::LatentSft);
    let params = short_params(&pair.reasoner, samples, gumbel(tau));
    (pair, SamplingParams { length: exactly(4), ..params })
}

#[test]
fn noisy_mixtures_are_the_naive_ones() {
    for tau in [0.2, 1.0, 3.0] {
        let (pair, params) = mixing(3, tau);
        naive::assert_naive(&pair.reasoner, &params, &format!("tau {tau}"));
        let open = SamplingParams { length: at_most(5), ..params };
        naive::assert_naive(&pair.reasoner, &open, &format!("tau {tau}, open length"));
    }
}

#[test]
fn a_noisy_row_does_not_depend_on_its_batch() {
    let (pair, params) = mixing(6, 0.8);
    let params = SamplingParams { greedy: true, ..params };
    let together = pair.run(params, &questions());
    let few = pair.run(SamplingParams { samples: nonzero(2), ..params }, &questions());
    for (question, reply) in questions().iter().zip(&together) {
        assert_same(&pair.solve(params, question), reply, "alone");
        let few = &reply_to(&few, question.id).trajectories;
        assert_same_trajectories(&reply.trajectories[..2], few, "fewer samples");
        let plain = SamplingParams { perturbation: Perturbation::None, ..params };
        let plain = pair.solve(plain, question);
        assert_same_trajectories(reply.greedy.as_slice(), plain.greedy.as_slice(), "greedy");
        let all = latents(reply);
        assert!((1..all.len()).all(|k| all[k] != all[0]), "trajectories differ");
    }
}

/// At a small temperature a thought is the embedding of a single token.
#[test]
fn a_small_temperature_samples_a_token() {
    let (pair, params) = mixing(8, 1e-4);
    let decoder = &pair.reasoner.decoder;
    let vocab: Vec<u32> = (0..decoder.config().vocab as u32).collect();
    let table = ops::lookup(device(), decoder.embedding(), &vocab).unwrap();
    let reply = pair.solve(params, &questions()[0]);
    let firsts: Vec<Vec<f32>> =
        latents(&reply).iter().map(|own: &Tensor| own.row(0).to_vec()).collect();
    for first in &firsts {
        let distance = |r: usize| {
            table.row(r).iter().zip(first).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max)
        };
        let nearest = (0..table.rows()).map(distance).fold(f32::MAX, f32::min);
        assert!(nearest < 1e-5, "no token is nearer than {nearest}");
    }
    assert!(firsts.iter().any(|first| *first != firsts[0]), "all drew the same token");
}

#[test]
fn rollouts_and_beam_searches_draw_mixtures_by_their_definitions() {
    let (pair, params) = mixing(3, 0.5);
    rollout::assert_naive_labels(&pair.reasoner, &params, 3, "gumbel");
    let search = SamplingParams { search: beam_search::size(2, 2), ..params };
    beam_search::assert_naive(&pair, search, "gumbel");
}

#[test]
fn families_that_do_not_mix_refuse_it() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let params = short_params(&pair.reasoner, 2, gumbel(1.0));
        let checked = pair.engine().check(&[questions()[0].request(params)]);
        if family == CheckpointFamily::LatentSft {
            checked.unwrap();
        } else {
            assert!(matches!(checked, Err(EngineError::NothingToMix { .. })), "{family:?}");
        }
    }
}

#[test]
fn temperatures_are_finite_and_above_zero() {
    let refused = [0.0, -1.0, f32::NAN, f32::INFINITY];
    assert!(refused.into_iter().all(|tau| Temperature::new(tau).is_none()));
    assert_eq!(Temperature::new(0.5).map(Temperature::get), Some(0.5));
}
