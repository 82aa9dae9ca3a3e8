//! How a request is sampled: everything beside the question that decides its trajectories.

use std::num::NonZeroUsize;

use aggregate::{Aggregator, Confidence, VoteParams};
use tensor::ops::TokenSampling;

use crate::error::EngineError;
use crate::method::{LatentLength, Method};
use crate::perturb::{DropoutScope, MaskLifetime, Perturbation, Probability};
use crate::reasoner::RewardModel;

/// The parameters of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingParams {
    /// Trajectories, N.
    pub samples: NonZeroUsize,
    /// Adds the unperturbed trajectory.
    pub greedy: bool,
    /// Stops sampling before all N trajectories once the vote is decided.
    pub adaptive: Option<AdaptiveSampling>,
    /// Runs a beam search beside the samples; it needs a reward model.
    pub beam: Option<BeamSize>,
    /// What makes the trajectories differ.
    pub perturbation: Perturbation,
    /// Thoughts of each trajectory.
    pub length: LatentLength,
    /// Answer tokens of each trajectory, at most.
    pub max_new_tokens: NonZeroUsize,
    /// The seed of all random numbers.
    pub seed: u64,
    /// The rule that chooses the reply's answer; `None` is the best rule that the reward model
    /// allows, see [`Engine::default_rule`](crate::Engine::default_rule).
    pub rule: Option<Aggregator>,
    /// The numbers in the voting rules.
    pub vote: VoteParams,
}

/// The size of a beam search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BeamSize {
    /// Beams kept at each step, B.
    pub width: NonZeroUsize,
    /// Extensions tried for each beam, K.
    pub candidates: NonZeroUsize,
}

impl BeamSize {
    /// The size that costs about what `samples` trajectories do: B = K = round(sqrt(N)).
    pub fn for_samples(samples: NonZeroUsize) -> Self {
        let root = (samples.get() as f64).sqrt().round() as usize;
        let root = NonZeroUsize::new(root).unwrap_or(NonZeroUsize::MIN);
        Self { width: root, candidates: root }
    }

    /// Extensions tried at each step of a question, B x K.
    pub fn extensions(self) -> usize {
        self.width.get() * self.candidates.get()
    }

    /// Finished paths of a question that are decoded: B if an outcome reward chooses among their
    /// answers, else the best one.
    pub(crate) fn num_finalists(self, reward_model: &RewardModel) -> usize {
        if reward_model.outcome_head.is_some() { self.width.get() } else { 1 }
    }
}

/// Samples are drawn in rounds; after each the vote is looked at.
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
    /// The model's defaults with one sample: dropout on thoughts, or sampled tokens for a model
    /// without thoughts.
    pub fn defaults_for(method: &Method) -> Self {
        let perturbation = match (method.length, Probability::new(method.p)) {
            (LatentLength::None, _) => Perturbation::Tokens(TokenSampling::FULL_SOFTMAX),
            (_, Some(p)) => Perturbation::Dropout {
                p,
                sites: method.sites,
                scope: DropoutScope::Thoughts,
                mask: MaskLifetime::Step,
            },
            (_, None) => Perturbation::None,
        };
        let max_new_tokens = NonZeroUsize::new(method.max_new_tokens).unwrap_or(NonZeroUsize::MIN);
        Self {
            samples: NonZeroUsize::MIN,
            greedy: false,
            adaptive: None,
            beam: None,
            perturbation,
            length: method.length,
            max_new_tokens,
            seed: 0,
            rule: None,
            vote: VoteParams::default(),
        }
    }

    /// Rows of a request: the samples, and the greedy trajectory if it was asked for.
    pub(crate) fn rows(&self) -> usize {
        self.samples.get() + usize::from(self.greedy)
    }

    /// Refuses parameters that have no meaning for a family.
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
