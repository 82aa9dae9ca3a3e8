//! Default sampling parameters of a method, and validation against a family's capabilities.

use std::num::NonZeroUsize;

use schema::ModelDefaults;
pub use schema::{AdaptiveSampling, SamplingParams, Search, SearchMethod};

use crate::error::EngineError;
use crate::method::{LatentLength, Method};

impl From<&Method> for ModelDefaults {
    fn from(method: &Method) -> Self {
        Self {
            latent_length: method.length,
            max_new_tokens: NonZeroUsize::new(method.max_new_tokens).unwrap_or(NonZeroUsize::MIN),
            dropout_p: method.p,
            noise_std: method.sigma,
            sites: method.sites,
            cold_stop: method.cold_stop,
            soft_thoughts: method.soft_thoughts,
        }
    }
}

/// Rejects parameters that do not apply to a family.
pub(crate) fn check(params: &SamplingParams, method: &Method) -> Result<(), EngineError> {
    match params.length {
        LatentLength::AtMost(_) if method.end_latent.is_empty() => {
            Err(EngineError::EndlessThoughts { family: method.family })
        }
        LatentLength::None if params.perturbation.only_affects_thoughts() => {
            Err(EngineError::NothingToPerturb { family: method.family })
        }
        _ => Ok(()),
    }
}
