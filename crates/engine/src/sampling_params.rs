//! What a run is told: everything that the stages need beside the model, resolved.

use std::num::NonZeroUsize;

use aggregate::Confidence;
use tensor::ops::TokenSampling;

use crate::error::EngineError;
use crate::method::{LatentLength, Method};
use crate::perturb::{DropoutScope, Perturbation, Probability};
use crate::reasoner::RewardModel;

/// How to think, and how much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// Trajectories a question.
    pub samples: NonZeroUsize,
    /// Whether to add the deterministic trajectory.
    pub greedy: bool,
    /// Whether to stop sampling a question before all its trajectories, and when.
    pub adaptive: Option<AdaptiveSampling>,
    /// Whether to search with beams beside; it takes a judge.
    pub beam: Option<BeamSize>,
    /// What makes the trajectories differ.
    pub perturbation: Perturbation,
    /// How long to think.
    pub length: LatentLength,
    /// Answer tokens at most.
    pub max_new_tokens: NonZeroUsize,
    /// The seed.
    pub seed: u64,
    /// Bytes that keys and values may take.
    pub memory: usize,
}

/// How wide a beam search is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeamSize {
    /// Beams kept at each step, B.
    pub width: NonZeroUsize,
    /// Extensions tried for each beam, K.
    pub candidates: NonZeroUsize,
}

impl BeamSize {
    /// The size that spends about what so many samples do: B = K = round(sqrt(N)).
    pub fn for_samples(samples: NonZeroUsize) -> Self {
        let root = NonZeroUsize::new((samples.get() as f64).sqrt().round() as usize)
            .unwrap_or(NonZeroUsize::MIN);
        Self { width: root, candidates: root }
    }

    /// Extensions tried at each step of a question, B x K.
    pub fn extensions(self) -> usize {
        self.width.get() * self.candidates.get()
    }

    /// Ended paths of a question that are decoded: B if a verdict chooses among their answers, else
    /// the best one.
    pub(crate) fn num_finalists(self, judge: &RewardModel) -> usize {
        if judge.outcome_head.is_some() { self.width.get() } else { 1 }
    }
}

/// When a question has been thought about enough: samples are drawn in rounds, and after each the
/// vote is looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveSampling {
    /// How sure of the leading answer to be; 1 waits until no further sample can change the vote.
    pub confidence: Confidence,
}

impl AdaptiveSampling {
    /// Samples of the first round; each further round doubles the samples drawn so far.
    pub const FIRST_ROUND: usize = 4;
}

impl SamplingParams {
    /// Memory for keys and values unless told otherwise: with a model of GPT-2's size well under 3
    /// GiB in all.
    pub const DEFAULT_MEMORY: usize = 1 << 30;

    /// The family's defaults: dropout on thoughts, or drawn words where there are none.
    pub fn defaults_for(method: &Method) -> Self {
        let perturbation = match (method.length, Probability::new(method.p)) {
            (LatentLength::None, _) => Perturbation::Tokens(TokenSampling::FULL_SOFTMAX),
            (_, Some(p)) => {
                Perturbation::Dropout { p, sites: method.sites, scope: DropoutScope::Thoughts }
            }
            (_, None) => Perturbation::None,
        };
        Self {
            samples: NonZeroUsize::MIN,
            greedy: false,
            adaptive: None,
            beam: None,
            perturbation,
            length: method.length,
            max_new_tokens: NonZeroUsize::new(method.max_new_tokens).unwrap_or(NonZeroUsize::MIN),
            seed: 0,
            memory: Self::DEFAULT_MEMORY,
        }
    }

    /// Refuses what has no meaning for a family.
    pub(crate) fn check(&self, method: &Method) -> Result<(), EngineError> {
        match self.length {
            LatentLength::AtMost(_) if method.end_latent.is_empty() => {
                Err(EngineError::EndlessThoughts { family: method.family })
            }
            LatentLength::None if self.perturbation.only_affects_thoughts() => {
                Err(EngineError::NothingToPerturb { family: method.family })
            }
            _ => Ok(()),
        }
    }
}
