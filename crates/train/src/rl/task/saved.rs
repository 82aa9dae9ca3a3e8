//! The unused groups of a round in a training state, as JSON. Floats are stored as their bits.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tensor::Tensor;

use crate::rl::policy::PolicyTrajectory;
use crate::rl::rollout::{GroupStats, SampledGroup};

#[derive(Serialize, Deserialize)]
struct SavedGroup {
    prompt: Vec<u32>,
    trajectories: Vec<SavedTrajectory>,
    stats: [u64; 8],
}

#[derive(Serialize, Deserialize)]
struct SavedTrajectory {
    question: u32,
    number: u32,
    thoughts: usize,
    ended_early: bool,
    answer: Vec<u32>,
    /// Bits of the thoughts, (thoughts, width); empty unless they are needed.
    latents: Vec<u32>,
    advantage: u64,
    old_logprobs: [Vec<u32>; 2],
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().map(|&bits| f32::from_bits(bits)).collect()
}

/// The groups as JSON.
pub(super) fn to_json(groups: &[SampledGroup]) -> Value {
    json!(groups.iter().map(SavedGroup::new).collect::<Vec<_>>())
}

/// The groups from JSON; `None` if it does not have the format of [`to_json`].
pub(super) fn from_json(json: Value) -> Option<Vec<SampledGroup>> {
    let groups: Vec<SavedGroup> = serde_json::from_value(json).ok()?;
    groups.into_iter().map(SavedGroup::restored).collect()
}

impl SavedGroup {
    fn new(group: &SampledGroup) -> Self {
        let trajectory = |(n, one): (usize, &PolicyTrajectory)| SavedTrajectory {
            question: one.question,
            number: one.number,
            thoughts: one.thoughts,
            ended_early: one.ended_early,
            answer: one.answer.clone(),
            latents: bits(one.latents.data()),
            advantage: group.advantages[n].to_bits(),
            old_logprobs: match group.old_logprobs.get(n) {
                Some([tokens, thoughts]) => [bits(tokens), bits(thoughts)],
                None => [Vec::new(), Vec::new()],
            },
        };
        let stats = &group.stats;
        let stats = [
            stats.reward,
            stats.accuracy,
            stats.coverage,
            stats.logprob,
            stats.tokens,
            stats.thoughts,
            stats.distinct,
            stats.truncated,
        ];
        Self {
            prompt: group.prompt.clone(),
            trajectories: group.trajectories.iter().enumerate().map(trajectory).collect(),
            stats: stats.map(f64::to_bits),
        }
    }

    fn restored(self) -> Option<SampledGroup> {
        let [reward, accuracy, coverage, logprob, tokens, thoughts, distinct, truncated] =
            self.stats.map(f64::from_bits);
        let mut group = SampledGroup {
            prompt: self.prompt,
            stats: GroupStats {
                reward,
                accuracy,
                coverage,
                logprob,
                tokens,
                thoughts,
                distinct,
                truncated,
            },
            ..SampledGroup::default()
        };
        for one in self.trajectories {
            let latents = match one.latents.is_empty() {
                true => Tensor::default(),
                false => {
                    let width = one.latents.len().checked_div(one.thoughts)?;
                    if width * one.thoughts != one.latents.len() {
                        return None;
                    }
                    Tensor::from_vec(one.thoughts, width, floats(&one.latents))
                }
            };
            let [tokens, thoughts] = one.old_logprobs;
            if tokens.len() != one.answer.len() {
                return None;
            }
            group.old_logprobs.push([floats(&tokens), floats(&thoughts)]);
            group.advantages.push(f64::from_bits(one.advantage));
            group.trajectories.push(PolicyTrajectory {
                prompt: 0,
                question: one.question,
                number: one.number,
                thoughts: one.thoughts,
                ended_early: one.ended_early,
                answer: one.answer,
                latents,
            });
        }
        Some(group)
    }
}
