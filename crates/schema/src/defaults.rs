//! What a model says about fields that a request leaves open.

use std::num::NonZeroUsize;

use crate::latent_length::LatentLength;
use crate::params::ColdStop;
use crate::perturbation::DropoutSites;

/// The defaults of a model: what its checkpoint says, else its family's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelDefaults {
    /// Thoughts of each trajectory.
    pub latent_length: LatentLength,
    /// Answer tokens of each trajectory, at most.
    pub max_new_tokens: NonZeroUsize,
    /// The dropout probability; dropout is off where it is not a
    /// [`Probability`](crate::Probability).
    pub dropout_p: f32,
    /// The standard deviation of Gaussian noise.
    pub noise_std: f32,
    /// The block outputs that dropout falls on.
    pub sites: DropoutSites,
    /// When low entropy ends the thoughts.
    pub cold_stop: Option<ColdStop>,
    /// Whether thoughts are mixtures of a plain language model, which differ by Gumbel noise.
    pub soft_thoughts: bool,
}
