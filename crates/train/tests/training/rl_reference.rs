//! Compares log-probabilities and gradients of every policy with another implementation: NumPy in
//! float64, differentiated by autograd, with a separate random number generator.
//! `tests/data/rl_policy.py` wrote `tests/data/rl_policy`.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use engine::{
    DropoutScope, DropoutSites, MaskLifetime, Perturbation, PerturbationKeys, Probability,
    Temperature, TopP,
};
use latent_tts_train::rl::policy::{
    ActionValues, PolicyBatch, PolicyConfig, PolicyStep, PolicyTrajectory, ThoughtGradient,
};
use model::{Checkpoint, LmHead, TrainableDecoder, TrainableHead};
use safetensors::SafeTensors;
use serde_json::Value;
use tensor::Tensor;

use crate::support::device;

/// Tolerance of float32 against float64, relative to the largest element of a tensor.
const TOLERANCE: f64 = 2e-5;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/rl_policy")
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

fn batch(of: &Value, width: usize) -> PolicyBatch {
    let trajectory = |one: &Value| {
        let number = |name: &str| one[name].as_u64().unwrap();
        let latents = one["latents"].as_array().unwrap().iter();
        let latents: Vec<f32> = latents.map(|x| x.as_f64().unwrap() as f32).collect();
        PolicyTrajectory {
            prompt: number("prompt") as usize,
            question: number("question") as u32,
            number: number("number") as u32,
            thoughts: number("thoughts") as usize,
            ended_early: false,
            answer: numbers(&one["answer"]),
            latents: Tensor::from_vec(latents.len() / width, width, latents),
        }
    };
    PolicyBatch {
        prompts: of["prompts"].as_array().unwrap().iter().map(numbers).collect(),
        trajectories: of["trajectories"].as_array().unwrap().iter().map(trajectory).collect(),
    }
}

fn config(of: &Value, policy: &Value) -> PolicyConfig {
    let number = |name: &str| policy[name].as_f64().map(|x| x as f32);
    let temperature = number("temperature").unwrap_or(1.0);
    let perturbation = match policy["sampler"].as_str().unwrap() {
        "dropout" => Perturbation::Dropout {
            p: Probability::new(number("dropout_p").unwrap()).unwrap(),
            sites: DropoutSites::BOTH,
            scope: DropoutScope::Thoughts,
            mask: match policy["mask"].as_str() {
                Some("trajectory") => MaskLifetime::Trajectory,
                _ => MaskLifetime::Step,
            },
        },
        "noise" => Perturbation::Gaussian { std: number("noise_std").unwrap() },
        _ => Perturbation::Tokens { temperature: Temperature::ONE, top_p: TopP::ONE },
    };
    let seed = of["seed"].as_u64().unwrap();
    PolicyConfig {
        keys: PerturbationKeys { perturbation, seed, per_thoughts: NonZeroU32::MIN },
        end_latent: numbers(&of["end_latent"]),
        temperature,
        thoughts: match policy["thought_gradient"].as_str() {
            Some("density") => ThoughtGradient::Density,
            _ => ThoughtGradient::Pathwise,
        },
    }
}

/// The weights of the actions in the script.
fn weights(logprobs: &ActionValues) -> ActionValues {
    let weight = |n: usize, i: usize| ((n * 7 + i * 3) % 5) as f32 / 2.0 - 0.9;
    let of = |values: &[Vec<f32>]| {
        let own =
            |(n, values): (usize, &Vec<f32>)| (0..values.len()).map(|i| weight(n, i)).collect();
        values.iter().enumerate().map(own).collect()
    };
    ActionValues { tokens: of(&logprobs.tokens), thoughts: of(&logprobs.thoughts) }
}

/// Compares numbers with a tensor of the dump.
fn assert_close(expected: &SafeTensors<'_>, name: &str, found: &[f32]) {
    let tensor = expected.tensor(name).unwrap();
    let expected = tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let expected: Vec<f64> = expected.map(f64::from).collect();
    assert_eq!(expected.len(), found.len(), "{name}");
    let largest = expected.iter().fold(1e-2_f64, |largest, x| largest.max(x.abs()));
    for (i, (expected, found)) in expected.iter().zip(found).enumerate() {
        let error = (expected - f64::from(*found)).abs();
        assert!(error < TOLERANCE * largest, "{name}[{i}]: {found}, expected {expected}");
    }
}

#[test]
fn policies_agree_with_another_implementation() {
    let of: Value =
        serde_json::from_slice(&std::fs::read(data().join("batches.json")).unwrap()).unwrap();
    let bytes = std::fs::read(data().join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&bytes).unwrap();
    let checkpoint = Checkpoint::open(data().as_path()).unwrap();
    let batch = batch(&of, checkpoint.config().width);
    let policies = of["policies"].as_object().unwrap();
    assert!(policies.len() >= 5);
    for (name, policy) in policies {
        let model =
            TrainableDecoder::load(device(), checkpoint.config(), &checkpoint, LmHead::With)
                .unwrap();
        let mut step = PolicyStep::new(model, TrainableHead::Identity);
        let logprobs = step.accumulate(&config(&of, policy), &batch, weights).unwrap();
        for (n, tokens) in logprobs.tokens.iter().enumerate() {
            assert_close(&expected, &format!("{name}.tokens.{n}"), tokens);
        }
        let thoughts = logprobs.thoughts.iter().enumerate().filter(|(_, own)| !own.is_empty());
        for (n, own) in thoughts {
            assert_close(&expected, &format!("{name}.thoughts.{n}"), own);
        }
        for parameter in step.parameters() {
            for gradient in parameter.named_gradients().unwrap() {
                let tensor = format!("{name}.gradient.{}", gradient.name);
                assert_close(&expected, &tensor, &gradient.values);
            }
        }
    }
}
