//! Model-specific defaults for options that a request omits.

use std::num::NonZeroUsize;

use crate::latent_length::LatentLength;
use crate::params::ColdStop;
use crate::perturbation::DropoutSites;

/// The defaults of a model: the values of its checkpoint, otherwise those of its family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelDefaults {
    /// Number of thoughts per trajectory.
    pub latent_length: LatentLength,
    /// Maximum number of answer tokens per trajectory.
    pub max_new_tokens: NonZeroUsize,
    /// The dropout probability. Dropout is off if this is not a valid
    /// [`Probability`](crate::Probability).
    pub dropout_p: f32,
    /// The standard deviation of Gaussian noise.
    pub noise_std: f32,
    /// The block outputs that dropout is applied to.
    pub sites: DropoutSites,
    /// When low entropy ends the thoughts; `None` disables Cold Stop.
    pub cold_stop: Option<ColdStop>,
    /// Whether thoughts are mixtures of token embeddings of an ordinary language model. Their
    /// default sampler is Gumbel noise.
    pub soft_thoughts: bool,
}
