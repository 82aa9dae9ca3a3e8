//! The effects of dropout and noise on a trajectory, which vanish at strength zero.

use latent_tts_engine::{DropoutScope, DropoutSites, Perturbation, SamplingParams, reference};
use model::config::Config;
use model::testkit::CheckpointFamily;
use model::{Cache, Decoder, Dropout, LmHead, Pass, Sequence, TensorSource};
use tensor::ops::{RowPerturbation, SiteSet};
use tensor::rng::{RngKey, Site};
use tensor::{Device, Tensor};

use crate::common::*;

#[test]
fn one_unperturbed_trajectory_is_the_greedy_one() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let params = short_params(&pair.reasoner, 1, Perturbation::None);
        for reply in pair.run(SamplingParams { greedy: true, ..params }, &questions()) {
            let greedy = reply.greedy.as_slice();
            assert_same_trajectories(greedy, &reply.trajectories, &format!("{family:?}"));
        }
    }
}

/// Rewards are functions of the thoughts, so they are also compared bitwise.
#[test]
fn the_greedy_trajectory_of_a_stochastic_run_is_the_deterministic_one() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let plain = pair.run(short_params(&pair.reasoner, 1, Perturbation::None), &questions());
        for perturbation in perturbations() {
            let params = short_params(&pair.reasoner, 8, perturbation);
            let params = SamplingParams { greedy: true, ..params };
            for (plain, reply) in plain.iter().zip(pair.run(params, &questions())) {
                let what = format!("{family:?}, {perturbation:?}");
                let greedy = reply.greedy.as_slice();
                assert_same_trajectories(greedy, &plain.trajectories, &what);
                assert_eq!(reply.trajectories.len(), 8);
            }
        }
    }
}

#[test]
fn masks_that_are_kept_make_other_trajectories_than_fresh_ones() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let run = |perturbation| {
            let params = short_params(&pair.reasoner, 3, perturbation);
            latents(&pair.run(params, &questions()[..1])[0])
        };
        let fresh = run(thought_dropout(0.4));
        let kept = run(with_kept_masks(thought_dropout(0.4)));
        for k in 0..3 {
            assert_ne!(fresh[k], kept[k], "{family:?}, trajectory {k}");
            assert_ne!(kept[k], kept[(k + 1) % 3], "{family:?}, trajectory {k}");
        }
    }
}

/// Noise of standard deviation 0 adds zero; dropout at rate 0 keeps every element and multiplies it
/// by 1 / (1 - 0) = 1. Both are exact: the runs are equal to the bit, not merely close.
#[test]
fn strength_zero_is_no_perturbation_to_the_bit() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let run =
            |perturbation| pair.run(short_params(&pair.reasoner, 2, perturbation), &questions());
        let plain = run(Perturbation::None);
        let no_sites = DropoutSites { attn_out: false, mlp_out: false };
        let ineffective = [
            Perturbation::Gaussian { std: 0.0 },
            thought_dropout(0.0),
            dropout(0.0, DropoutSites::BOTH, DropoutScope::Prompt),
            dropout(0.0, DropoutSites::BOTH, DropoutScope::All),
            dropout(0.5, no_sites, DropoutScope::All),
        ];
        for perturbation in ineffective {
            for (plain, reply) in plain.iter().zip(run(perturbation)) {
                let what = format!("{family:?}, {perturbation:?}");
                assert_same_trajectories(&plain.trajectories, &reply.trajectories, &what);
            }
        }
    }
}

/// The first thought is the unperturbed head output plus the noise of the position where it is fed.
#[test]
fn the_first_thought_is_the_head_output_plus_noise() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let question = &questions()[2];
        let prompt = prompt_of(&pair.reasoner, question);
        let hidden = reference::prompt_hidden(&pair.reasoner, &prompt.tokens).unwrap();
        let last = matrix(hidden.row(hidden.rows() - 1));
        let clean = pair.reasoner.head.forward(&pair.reasoner.decoder, &last).unwrap().thoughts;
        for std in [0.3, 1.4] {
            let params = short_params(&pair.reasoner, 3, Perturbation::Gaussian { std });
            // With exact length, because an open-ended family may stop at once; at length 1 the
            // first thought is also the last.
            for length in [exactly(1), exactly(4)] {
                let reply = pair.solve(SamplingParams { length, ..params }, question);
                for (k, thoughts) in latents(&reply).iter().enumerate() {
                    let mut expected = clean.clone();
                    let key = row_id(question.id, k).rng_key(SEED, prompt.tokens.len());
                    key.add_noise(std, expected.data_mut());
                    let what = format!("{family:?}, {std}, {length:?}");
                    assert_same_bits(&first_rows(1, thoughts), &expected, &what);
                }
            }
        }
    }
}

/// Each returned thought is the head output, plus noise, after all returned thoughts before it, the
/// last one included; so the returned vectors are those that were fed. They are also those that
/// were scored.
#[test]
fn every_noised_thought_is_returned_fed_and_scored() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiGpt2);
    let question = &questions()[0];
    let prompt = prompt_of(&pair.reasoner, question);
    let params = short_params(&pair.reasoner, 3, Perturbation::Gaussian { std: 0.7 });
    let reply = pair.solve(params, question);
    let rewards = reference::rewards(&pair.reward_model, &prompt, &latents(&reply)).unwrap();
    for (k, trajectory) in reply.trajectories.iter().enumerate() {
        assert_eq!(trajectory.process_rewards.as_ref(), Some(&rewards[k]));
        let thoughts = &trajectory.latents;
        for t in 0..thoughts.rows() {
            let mut expected = next_thought(&pair, &prompt.tokens, &first_rows(t, thoughts));
            let key = row_id(question.id, k).rng_key(SEED, prompt.tokens.len() + t);
            key.add_noise(0.7, expected.data_mut());
            let what = format!("thought {t} of {}", thoughts.rows());
            assert_same_bits(&matrix(thoughts.row(t)), &expected, &what);
        }
    }
}

/// The unperturbed thought after a prompt and some given thoughts.
fn next_thought(pair: &RewardedReasoner, prompt: &[u32], thoughts: &Tensor) -> Tensor {
    let decoder = &pair.reasoner.decoder;
    let mut x = pair.reasoner.embed(prompt).unwrap();
    (0..thoughts.rows()).for_each(|t| x.push(thoughts.row(t)));
    let mut cache =
        Cache::new(decoder.device(), decoder.config(), Cache::slots_for(x.rows())).unwrap();
    let mut pass = Pass::default();
    let mut sequence = Sequence::default();
    (0..x.rows()).for_each(|i| pass.push(&mut cache, &mut sequence, i + 1 == x.rows()));
    let hidden = decoder.forward(&mut cache, &pass, x, None).unwrap();
    pair.reasoner.head.forward(decoder, &hidden).unwrap().thoughts
}

/// Weights that expose a mask: everything is zero except the bias of one projection, which is one.
/// The residual then is the mask times its scale; after the final norm, kept elements are about
/// zero or above (zero if all are kept), and dropped ones, fewer than three in four, well below
/// zero.
struct SingleBias(&'static str);

impl TensorSource for SingleBias {
    fn has(&self, _: &str) -> bool {
        true
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, model::ModelError> {
        let value = if name == self.0 || name == "ln_f.weight" { 1.0 } else { 0.0 };
        Ok(vec![value; shape.iter().product()])
    }
}

/// The elements of the site that a decoder keeps, per row.
fn kept(
    device: &Device,
    bias: &'static str,
    config: &Config,
    p: f32,
    keys: &[Option<RngKey>],
) -> Vec<Vec<bool>> {
    let decoder = Decoder::load(device, config, &SingleBias(bias), LmHead::Without).unwrap();
    let mut cache = Cache::new(device, config, keys.len() * Cache::slots_for(1)).unwrap();
    let mut pass = Pass::default();
    keys.iter().for_each(|_| pass.push(&mut cache, &mut Sequence::default(), true));
    let row = |key| RowPerturbation { key, strength: p, sites: SiteSet::DROPOUT };
    let rows: Vec<_> = keys.iter().map(|key| key.map(row)).collect();
    let dropout = Dropout::Sampled(&rows);
    let x = Tensor::zeros(keys.len(), config.width).to_device(device).unwrap();
    let out = decoder.forward(&mut cache, &pass, x, Some(dropout)).unwrap().to_host().unwrap();
    (0..out.rows()).map(|r| out.row(r).iter().map(|&x| x > -0.3).collect()).collect()
}

#[test]
fn the_masks_of_a_pass_are_those_of_the_random_function() {
    assert_masks_match_the_random_function(device());
}

/// Fails unless a device's masks equal, element by element, those of the random number generator,
/// and keep the expected share of elements.
pub fn assert_masks_match_the_random_function(device: &Device) {
    let text = r#"{"model_type": "gpt2", "n_layer": 3, "n_embd": 68, "n_head": 4,
                  "n_positions": 8, "vocab_size": 4}"#;
    let config = Config::parse("config.json".as_ref(), text).unwrap();
    let key =
        |i: u32| RngKey { seed: SEED, question: i % 7, trajectory: i / 7, position: 3 + i % 5 };
    let keys: Vec<_> = (0..1000).map(|i| Some(key(i))).collect();
    let sites = [
        ("h.0.attn.c_proj.bias", 0, Site::AttnOut),
        ("h.1.mlp.c_proj.bias", 1, Site::MlpOut),
        ("h.2.attn.c_proj.bias", 2, Site::AttnOut),
    ];
    for p in [0.03f32, 0.2, 0.5] {
        for (bias, layer, site) in sites {
            let found = kept(device, bias, &config, p, &keys);
            for (row, key) in found.iter().zip(keys.iter().flatten()) {
                assert!(
                    row.iter().enumerate().all(|(i, &k)| k == key.keeps(layer, site, i, p)),
                    "{bias}, {p}, {key:?}"
                );
            }
            let n = (found.len() * 68) as f64;
            let share = f64::from(1.0 - p);
            let count = found.iter().flatten().filter(|k| **k).count() as f64;
            assert!(
                (count - n * share).abs() < 4.0 * (n * share * (1.0 - share)).sqrt(),
                "{bias}, {p}: kept {count} of {n}"
            );
        }
    }
}

/// The paper's algorithm stores a thought before its noise: the first ones are then all equal, and
/// the second ones less diverse than the fed ones. Under dropout there is no difference.
#[test]
fn diversity_is_that_of_thoughts_before_their_noise() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::CodiLlama, CheckpointFamily::Rot] {
        let pair = RewardedReasoner::of(family);
        let replies = |perturbation| {
            let params = short_params(&pair.reasoner, 8, perturbation);
            pair.run(SamplingParams { length: exactly(3), ..params }, &questions())
        };
        for reply in replies(Perturbation::Gaussian { std: 0.3 }) {
            let stored = &reply.diversity;
            let fed = &reply.fed_diversity;
            assert!(stored[0] < 1e-9, "{family:?}: {stored:?}");
            assert_eq!((stored.len(), fed.len()), (3, 3));
            // At the third step the thoughts of a random model have already diverged.
            assert!(stored[1] < fed[1], "{family:?}: {stored:?} {fed:?}");
        }
        for reply in replies(thought_dropout(0.2)) {
            assert!(reply.diversity[0] > 0.0 && reply.fed_diversity.is_empty());
        }
    }
}

/// The paper's premise: more dropout or more noise makes thoughts more diverse.
#[test]
fn diversity_grows_with_the_perturbation() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::CodiLlama, CheckpointFamily::Rot] {
        let pair = RewardedReasoner::of(family);
        let mean = |perturbation| {
            let params = short_params(&pair.reasoner, 16, perturbation);
            let replies = pair.run(SamplingParams { length: exactly(4), ..params }, &questions());
            let steps: Vec<f64> = replies.into_iter().flat_map(|reply| reply.diversity).collect();
            assert_eq!(steps.len(), 4 * questions().len());
            steps.iter().sum::<f64>() / steps.len() as f64
        };
        let by_dropout = [0.0, 0.05, 0.2, 0.6].map(|p| mean(thought_dropout(p)));
        let by_noise = [0.0, 0.05, 0.2, 0.8].map(|std| mean(Perturbation::Gaussian { std }));
        for diversity in [by_dropout, by_noise] {
            assert!(
                diversity[0].abs() < 1e-9 && diversity.is_sorted_by(|a, b| a < b),
                "{family:?}: {diversity:?}"
            );
        }
    }
}
