//! The random numbers of sampled trajectories as functions of their keys, so that a training pass
//! can reproduce the executor's masks and noise at every position.
//!
//! [`crate::sampler`] uses the same functions, so sampling and training cannot diverge.

use std::num::NonZeroU32;

use tensor::ops::{RowPerturbation, SiteSet};

use crate::perturb::{Perturbation, mask_key, private_tokens, site_set};
use crate::request::AnswerSampling;
use crate::sampler::SequenceId;
use crate::sampling_params::SamplingParams;

/// The stage of a forward pass, which decides whether dropout is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassStage {
    /// Prompt tokens before the last one.
    Prompt,
    /// The forward pass whose output becomes thought `t`, counted from 0: over the last prompt
    /// token (t = 0) or over thought t - 1.
    Thought(usize),
    /// The forward pass over the last thought and the end tokens, and all answer tokens.
    Answer,
}

/// The random number keys of one request's trajectories.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerturbationKeys {
    /// The perturbation of the thoughts.
    pub perturbation: Perturbation,
    /// The seed of the request.
    pub seed: u64,
    /// Number of consecutive trajectories that share the random numbers of their thoughts.
    pub per_thoughts: NonZeroU32,
}

impl PerturbationKeys {
    /// The keys of a request with these parameters.
    pub fn new(params: &SamplingParams, answers: Option<AnswerSampling>) -> Self {
        Self {
            perturbation: params.perturbation,
            seed: params.seed,
            per_thoughts: answers.map_or(NonZeroU32::MIN, |answers| answers.per_thoughts),
        }
    }

    /// The id under which the thoughts of a trajectory are sampled: trajectories that share
    /// thoughts share it.
    pub fn thoughts_of(&self, id: SequenceId) -> SequenceId {
        SequenceId { trajectory: id.trajectory / self.per_thoughts, ..id }
    }

    /// The dropout of a perturbed trajectory at a position, counted from the first prompt token, if
    /// this stage has dropout. Shared prompt tokens have none.
    pub fn dropout(
        &self,
        id: SequenceId,
        position: usize,
        stage: PassStage,
    ) -> Option<RowPerturbation> {
        let Perturbation::Dropout { p, sites, mask, .. } = self.perturbation else { return None };
        if stage == PassStage::Answer && !self.perturbation.affects_answer() {
            return None;
        }
        let key = mask_key(mask, self.thoughts_of(id).rng_key(self.seed, position));
        Some(RowPerturbation { key, strength: p.get(), sites: site_set(sites) })
    }

    /// The Gaussian noise on the thought that a perturbed trajectory feeds at a position.
    pub fn noise(&self, id: SequenceId, position: usize) -> Option<RowPerturbation> {
        let Perturbation::Gaussian { std } = self.perturbation else { return None };
        let key = self.thoughts_of(id).rng_key(self.seed, position);
        Some(RowPerturbation { key, strength: std, sites: SiteSet::NOISE })
    }

    /// Number of tokens at the end of a prompt that every trajectory computes separately.
    pub fn private_tokens(&self, prompt: usize) -> usize {
        private_tokens(&self.perturbation, prompt)
    }
}
