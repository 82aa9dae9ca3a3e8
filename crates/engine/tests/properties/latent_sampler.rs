//! Custom samplers: a function on the thoughts of a step.

use latent_tts_engine::{Perturbation, SamplingParams};
use model::testkit::CheckpointFamily;
use schema::{CustomSampler, LatentSampler, ThoughtKey};
use tensor::rng::RngKey;

use crate::common::*;

/// A reimplementation of the built-in Gaussian noise. Prompts differ in length, so it receives the
/// length of its question's prompt.
struct SameNoise {
    name: String,
    question: u32,
    prompt_len: u32,
    std: f32,
}

impl LatentSampler for SameNoise {
    fn name(&self) -> &str {
        &self.name
    }

    fn perturb(&self, keys: &[ThoughtKey], thoughts: &mut [f32], width: usize) {
        assert_eq!(keys.len() * width, thoughts.len());
        for (key, thought) in keys.iter().zip(thoughts.chunks_exact_mut(width)) {
            let ThoughtKey { seed, question, trajectory, step } = *key;
            assert_eq!(question, self.question);
            let position = self.prompt_len + step;
            RngKey { seed, question, trajectory, position }.add_noise(self.std, thought);
        }
    }
}

#[test]
fn noise_as_a_function_is_the_built_in_noise() {
    for family in FAMILIES {
        let pair = RewardedReasoner::of(family);
        for question in questions() {
            let prompt_len = prompt_of(&pair.reasoner, &question).tokens.len() as u32;
            let name = format!("same_noise_{family:?}_{}", question.id).to_lowercase();
            let sampler = SameNoise { name, question: question.id, prompt_len, std: 0.3 };
            let sampler = CustomSampler::register(Box::new(sampler)).unwrap();
            let built_in = Perturbation::Gaussian { std: 0.3 };
            let params = short_params(&pair.reasoner, 4, built_in);
            let params = SamplingParams { greedy: true, ..params };
            let expected = pair.solve(params, &question);
            let custom = SamplingParams { perturbation: Perturbation::Custom(sampler), ..params };
            let found = pair.solve(custom, &question);
            assert_same_trajectories(&found.trajectories, &expected.trajectories, "samples");
            let greedy = (found.greedy.as_slice(), expected.greedy.as_slice());
            assert_same_trajectories(greedy.0, greedy.1, "greedy");
        }
    }
}

/// A sampler that shifts a thought by its trajectory's index.
struct Numbered;

impl LatentSampler for Numbered {
    fn name(&self) -> &str {
        "numbered"
    }

    fn perturb(&self, keys: &[ThoughtKey], thoughts: &mut [f32], width: usize) {
        for (key, thought) in keys.iter().zip(thoughts.chunks_exact_mut(width)) {
            thought[0] += (key.trajectory + key.step) as f32 / 4.0;
        }
    }
}

#[test]
fn requests_with_other_samplers_in_the_batch_are_left_alone() {
    let pair = RewardedReasoner::of(CheckpointFamily::Coconut);
    let sampler = CustomSampler::register(Box::new(Numbered)).unwrap();
    assert_eq!(CustomSampler::from_name("numbered"), Some(sampler));
    let custom = short_params(&pair.reasoner, 3, Perturbation::Custom(sampler));
    let noise = short_params(&pair.reasoner, 3, Perturbation::Gaussian { std: 0.2 });
    let requests: Vec<_> = questions()
        .iter()
        .zip([custom, noise].iter().cycle())
        .map(|(q, p)| q.request(*p))
        .collect();
    for (request, reply) in requests.iter().zip(solve_all(&pair.engine(), &requests)) {
        let alone = pair.engine().solve(request).unwrap();
        assert_same(&alone, &reply, &format!("question {}", request.id));
    }
}
