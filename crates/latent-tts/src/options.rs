//! Sampling options whose open parts the model's defaults fill in.

use std::num::NonZeroUsize;

use aggregate::{Aggregator, VoteParams};
use engine::{
    AdaptiveSampling, BeamSize, DropoutScope, DropoutSites, LatentLength, MaskLifetime, Method,
    Perturbation, Probability, SamplingParams, Temperature, TokenSampling,
};

/// How to sample, before it is known for which model. `None` is the model's default.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingOptions {
    /// Trajectories of each question.
    pub samples: NonZeroUsize,
    /// The seed of all random numbers.
    pub seed: u64,
    /// What makes trajectories differ.
    pub perturbation: Option<PerturbationOptions>,
    /// Thoughts of each trajectory.
    pub length: Option<LatentLength>,
    /// Answer tokens of each trajectory, at most.
    pub max_new_tokens: Option<NonZeroUsize>,
    /// A beam search beside the samples; it runs only where there are thoughts, unless forced.
    pub beam: Option<BeamOptions>,
    /// Early stopping of a question's samples.
    pub adaptive: Option<AdaptiveSampling>,
    /// The rule that chooses a reply's answer.
    pub rule: Option<Aggregator>,
    /// The numbers in the voting rules.
    pub vote: VoteParams,
}

/// A beam search that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeamOptions {
    /// Its size.
    pub size: BeamSize,
    /// Refuse models without thoughts instead of leaving the search out.
    pub forced: bool,
}

/// A perturbation whose strengths may be the model's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PerturbationOptions {
    /// All trajectories are the greedy one.
    None,
    /// Monte Carlo dropout.
    Dropout {
        /// The probability that an element is dropped.
        p: Option<Probability>,
        /// The block outputs it falls on.
        sites: Option<DropoutSites>,
        /// The passes it falls on.
        scope: DropoutScope,
        /// The positions that share a mask.
        mask: MaskLifetime,
    },
    /// Gaussian noise on every thought.
    Noise {
        /// Its standard deviation.
        sigma: Option<f32>,
    },
    /// Gumbel noise on mixtures of token embeddings.
    Gumbel {
        /// Their temperature; 1 unless given.
        tau: Option<Temperature>,
    },
    /// Sampled answer tokens.
    Tokens(TokenSampling),
}

impl SamplingOptions {
    /// The model's defaults with so many samples.
    pub fn new(samples: NonZeroUsize) -> Self {
        Self {
            samples,
            seed: 0,
            perturbation: None,
            length: None,
            max_new_tokens: None,
            beam: None,
            adaptive: None,
            rule: None,
            vote: VoteParams::default(),
        }
    }

    /// The parameters for a model: what is given here, else what its checkpoint says, else its
    /// family's customs. The greedy trajectory is always added.
    pub fn resolve(&self, method: &Method) -> SamplingParams {
        let length = self.length.unwrap_or(method.length);
        let defaults = SamplingParams::defaults_for(&Method { length, ..method.clone() });
        let perturbation = self.perturbation.map(|options| options.resolve(method));
        let beam = self.beam.filter(|beam| beam.forced || length.limit() > 0);
        SamplingParams {
            samples: self.samples,
            greedy: true,
            perturbation: perturbation.unwrap_or(defaults.perturbation),
            length,
            max_new_tokens: self.max_new_tokens.unwrap_or(defaults.max_new_tokens),
            seed: self.seed,
            beam: beam.map(|beam| beam.size),
            adaptive: self.adaptive,
            rule: self.rule,
            vote: self.vote,
        }
    }
}

impl PerturbationOptions {
    /// The perturbation with the model's strengths where none are given.
    pub fn resolve(self, method: &Method) -> Perturbation {
        match self {
            Self::None => Perturbation::None,
            Self::Tokens(sampling) => Perturbation::Tokens(sampling),
            Self::Gumbel { tau } => Perturbation::Gumbel { tau: tau.unwrap_or(Temperature::ONE) },
            Self::Noise { sigma } => Perturbation::Gaussian { std: sigma.unwrap_or(method.sigma) },
            Self::Dropout { p, sites, scope, mask } => {
                let sites = sites.unwrap_or(method.sites);
                let p = p.or_else(|| Probability::new(method.p));
                p.map_or(Perturbation::None, |p| Perturbation::Dropout { p, sites, scope, mask })
            }
        }
    }
}
