//! What dropout and noise do to a trajectory, and that they do nothing at zero.

use engine::reference;
use engine::{DropoutScope, DropoutSites, Outcome, Perturbation, SamplingParams};
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
        let settings =
            SamplingParams { greedy: true, ..settings(&pair.reasoner, 1, Perturbation::None) };
        for outcome in pair.ask(settings, &questions()) {
            assert_eq!(
                outcome.sample.greedy.as_ref(),
                outcome.sample.trajectories.first(),
                "{family:?}"
            );
        }
    }
}

/// Its scores are those of its thoughts, so that they are compared to the bit with the rest.
#[test]
fn the_greedy_trajectory_of_a_stochastic_run_is_the_deterministic_one() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let plain = pair.ask(settings(&pair.reasoner, 1, Perturbation::None), &questions());
        for perturbation in perturbations() {
            let settings =
                SamplingParams { greedy: true, ..settings(&pair.reasoner, 8, perturbation) };
            for (plain, outcome) in plain.iter().zip(pair.ask(settings, &questions())) {
                assert_eq!(
                    outcome.sample.greedy.as_ref(),
                    plain.sample.trajectories.first(),
                    "{family:?}, {perturbation:?}"
                );
                assert_eq!(outcome.sample.trajectories.len(), 8);
            }
        }
    }
}

/// Noise of no width adds a zero; a rate of zero keeps every element and multiplies it by 1 / (1 -
/// 0) = 1. Both are exact, so that nothing is lost to rounding: the runs are equal to the bit, not
/// merely close.
#[test]
fn nothing_perturbed_is_no_perturbation_to_the_bit() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let thoughts = |perturbation| -> Vec<Outcome> {
            pair.ask(settings(&pair.reasoner, 2, perturbation), &questions())
        };
        let plain = thoughts(Perturbation::None);
        let nothings = [
            Perturbation::Gaussian { std: 0.0 },
            thoughtful(0.0),
            dropout(0.0, DropoutSites::BOTH, DropoutScope::Prompt),
            dropout(0.0, DropoutSites::BOTH, DropoutScope::All),
            dropout(0.5, DropoutSites { attn_out: false, mlp_out: false }, DropoutScope::All),
        ];
        for nothing in nothings {
            for (plain, outcome) in plain.iter().zip(thoughts(nothing)) {
                let what = format!("{family:?}, {nothing:?}");
                assert_eq!(plain.sample.trajectories, outcome.sample.trajectories, "{what}");
                plain
                    .thoughts
                    .iter()
                    .zip(&outcome.thoughts)
                    .for_each(|(a, b)| assert_same_bits(a, b, &what));
            }
        }
    }
}

/// The first thought is the clean head output and the noise that is drawn for the position where it
/// is fed.
#[test]
fn the_first_thought_is_the_clean_one_and_the_drawn_noise() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        let asked = &questions()[2];
        let prompt = prompted(&pair.reasoner, asked);
        let hidden = reference::prompt_hidden(&pair.reasoner, &prompt.tokens).unwrap();
        let last = matrix(hidden.row(hidden.rows() - 1));
        let clean = pair.reasoner.head.forward(&pair.reasoner.decoder, &last).unwrap().thoughts;
        for std in [0.3, 1.4] {
            let settings = settings(&pair.reasoner, 3, Perturbation::Gaussian { std });
            // Of exact length, lest a family that may stop at once does; at length 1 the first
            // thought is the last as well.
            for length in [exactly(1), exactly(4)] {
                let outcome = pair.ask_one(SamplingParams { length, ..settings }, asked);
                for (k, thoughts) in outcome.thoughts.iter().enumerate() {
                    let mut expected = clean.clone();
                    row(asked.id, k)
                        .rng_key(SEED, prompt.tokens.len())
                        .add_noise(std, expected.data_mut());
                    assert_same_bits(
                        &first(1, thoughts),
                        &expected,
                        &format!("{family:?}, {std}, {length:?}"),
                    );
                }
            }
        }
    }
}

/// Each stored thought is the noised head output after all stored ones before it, the last one
/// included; so the stored vectors are those that were fed. And they are those that were scored.
#[test]
fn every_noised_thought_is_stored_fed_and_scored() {
    let pair = RewardedReasoner::of(CheckpointFamily::CodiGpt2);
    let asked = &questions()[0];
    let prompt = prompted(&pair.reasoner, asked);
    let settings = settings(&pair.reasoner, 3, Perturbation::Gaussian { std: 0.7 });
    let outcome = pair.ask_one(settings, asked);
    let scores = reference::rewards(&pair.judge, &prompt, &outcome.thoughts).unwrap();
    for (k, thoughts) in outcome.thoughts.iter().enumerate() {
        assert_eq!(outcome.sample.trajectories[k].process_rewards.as_ref(), Some(&scores[k]));
        for t in 0..thoughts.rows() {
            let mut expected = next_thought(&pair, &prompt.tokens, &first(t, thoughts));
            row(asked.id, k)
                .rng_key(SEED, prompt.tokens.len() + t)
                .add_noise(0.7, expected.data_mut());
            assert_same_bits(
                &matrix(thoughts.row(t)),
                &expected,
                &format!("thought {t} of {}", thoughts.rows()),
            );
        }
    }
}

/// The clean thought after a prompt and some thoughts, however those came about.
fn next_thought(pair: &RewardedReasoner, prompt: &[u32], thoughts: &Tensor) -> Tensor {
    let decoder = &pair.reasoner.decoder;
    let mut x = pair.reasoner.embed(prompt).unwrap();
    (0..thoughts.rows()).for_each(|t| x.push(thoughts.row(t)));
    let mut cache =
        Cache::new(decoder.device(), decoder.config(), Cache::slots_for(x.rows())).unwrap();
    let (mut pass, mut sequence) = (Pass::default(), Sequence::default());
    (0..x.rows()).for_each(|i| pass.push(&mut cache, &mut sequence, i + 1 == x.rows()));
    let hidden = decoder.forward(&mut cache, &pass, x, None).unwrap();
    pair.reasoner.head.forward(decoder, &hidden).unwrap().thoughts
}

/// Weights that let a mask be seen: everything is zero but the bias of one projection, which is
/// one. The residual then is the mask times its scale, and after the final norm kept elements are
/// at least about zero (zero where all are kept) and dropped ones, being fewer than three in four,
/// well below.
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

/// Which elements of the site a decoder keeps, row by row.
fn kept(
    device: &Device,
    bias: &'static str,
    config: &Config,
    p: f32,
    draws: &[Option<RngKey>],
) -> Vec<Vec<bool>> {
    let decoder = Decoder::load(device, config, &SingleBias(bias), LmHead::Without).unwrap();
    let mut cache = Cache::new(device, config, draws.len() * Cache::slots_for(1)).unwrap();
    let mut pass = Pass::default();
    draws.iter().for_each(|_| pass.push(&mut cache, &mut Sequence::default(), true));
    let row = |key| RowPerturbation { key, strength: p, sites: SiteSet::DROPOUT };
    let rows: Vec<_> = draws.iter().map(|key| key.map(row)).collect();
    let dropout = Dropout::Sampled(&rows);
    let x = Tensor::zeros(draws.len(), config.width).to_device(device).unwrap();
    let out = decoder.forward(&mut cache, &pass, x, Some(dropout)).unwrap().to_host().unwrap();
    (0..out.rows()).map(|r| out.row(r).iter().map(|&x| x > -0.3).collect()).collect()
}

#[test]
fn the_masks_of_a_pass_are_the_drawn_ones_and_keep_their_share() {
    assert_masks_are_drawn(device());
}

/// Fails unless a device's masks are, element by element, those of the random function.
pub fn assert_masks_are_drawn(device: &Device) {
    let text = r#"{"model_type": "gpt2", "n_layer": 3, "n_embd": 68, "n_head": 4, "n_positions": 8, "vocab_size": 4}"#;
    let config = Config::parse("config.json".as_ref(), text).unwrap();
    let draw =
        |i: u32| RngKey { seed: SEED, question: i % 7, trajectory: i / 7, position: 3 + i % 5 };
    let draws: Vec<_> = (0..1000).map(|i| Some(draw(i))).collect();
    let sites = [
        ("h.0.attn.c_proj.bias", 0, Site::AttnOut),
        ("h.1.mlp.c_proj.bias", 1, Site::MlpOut),
        ("h.2.attn.c_proj.bias", 2, Site::AttnOut),
    ];
    for p in [0.03f32, 0.2, 0.5] {
        for (bias, layer, site) in sites {
            let found = kept(device, bias, &config, p, &draws);
            for (row, draw) in found.iter().zip(draws.iter().flatten()) {
                assert!(
                    row.iter().enumerate().all(|(i, &k)| k == draw.keeps(layer, site, i, p)),
                    "{bias}, {p}, {draw:?}"
                );
            }
            let (n, share) = ((found.len() * 68) as f64, f64::from(1.0 - p));
            let count = found.iter().flatten().filter(|k| **k).count() as f64;
            assert!(
                (count - n * share).abs() < 4.0 * (n * share * (1.0 - share)).sqrt(),
                "{bias}, {p}: kept {count} of {n}"
            );
        }
    }
}

/// The paper's premise: more dropout, or more noise, more diverse thoughts.
#[test]
fn diversity_grows_with_the_perturbation() {
    for family in [CheckpointFamily::Coconut, CheckpointFamily::CodiLlama, CheckpointFamily::Rot] {
        let pair = RewardedReasoner::of(family);
        let mean = |perturbation| {
            let all = pair.ask(
                SamplingParams {
                    samples: count(16),
                    length: exactly(4),
                    ..settings(&pair.reasoner, 1, perturbation)
                },
                &questions(),
            );
            let steps: Vec<f64> =
                all.iter().flat_map(|o| o.sample.diversity.clone().unwrap()).collect();
            steps.iter().sum::<f64>() / steps.len() as f64
        };
        let by_dropout = [0.0, 0.05, 0.2, 0.6].map(|p| mean(thoughtful(p)));
        let by_noise = [0.0, 0.05, 0.2, 0.8].map(|std| mean(Perturbation::Gaussian { std }));
        for diversity in [by_dropout, by_noise] {
            assert!(
                diversity[0].abs() < 1e-9 && diversity.is_sorted_by(|a, b| a < b),
                "{family:?}: {diversity:?}"
            );
        }
    }
}
