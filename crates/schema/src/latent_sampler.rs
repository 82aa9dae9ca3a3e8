//! Samplers of the calling program: functions on the latents of a step, registered by name.
//!
//! A registered sampler is named like a built-in one (`sampler = "mine"`); the command line and the
//! JSON schema list the built-in ones only. The engine calls it where it adds Gaussian noise.

use std::error::Error;
use std::sync::{Arc, PoisonError, RwLock};

use crate::options::SamplerKind;

/// A function that makes trajectories differ: it changes thoughts just before they are fed.
///
/// Thoughts of several trajectories and questions come together. What a sampler does to a thought
/// must depend on that thought and its [`ThoughtKey`] alone, or results depend on the batch.
pub trait LatentSampler: Send + Sync {
    /// The name in options and manifests; `snake_case`.
    fn name(&self) -> &str;

    /// Changes thoughts in place: one of `width` elements for each key, one after the other.
    fn perturb(&self, keys: &[ThoughtKey], thoughts: &mut [f32], width: usize);

    /// Why the sampler failed since this was last called, where it calls code that can fail. The
    /// trajectories sampled since then are not to be used.
    fn take_failure(&self) -> Option<Arc<dyn Error + Send + Sync>> {
        None
    }
}

/// The name of a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThoughtKey {
    /// The seed of the request.
    pub seed: u64,
    /// The question's index in its data set.
    pub question: u32,
    /// The trajectory's number.
    pub trajectory: u32,
    /// The thought's number in its trajectory, from 0.
    pub step: u32,
}

/// A sampler of the calling program by its name: an index of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CustomSampler(u16);

/// Samplers registered by the program. They live as long as the program.
static REGISTERED: RwLock<Vec<&'static dyn LatentSampler>> = RwLock::new(Vec::new());

/// Why a sampler cannot be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a built-in sampler is called {0:?}; choose another name")]
pub struct SamplerNameTaken(pub String);

impl CustomSampler {
    /// Adds a sampler, or replaces a registered one of the same name.
    ///
    /// # Errors
    ///
    /// When a built-in sampler has the name.
    pub fn register(sampler: Box<dyn LatentSampler>) -> Result<Self, SamplerNameTaken> {
        if SamplerKind::BUILT_IN.into_iter().any(|kind| kind.name() == sampler.name()) {
            return Err(SamplerNameTaken(sampler.name().to_owned()));
        }
        let sampler: &'static dyn LatentSampler = Box::leak(sampler);
        let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        let index = match registered.iter().position(|other| other.name() == sampler.name()) {
            Some(index) => {
                registered[index] = sampler;
                index
            }
            None => {
                registered.push(sampler);
                registered.len() - 1
            }
        };
        Ok(Self(index as u16))
    }

    /// The registered sampler of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
        registered.iter().position(|sampler| sampler.name() == name).map(|index| Self(index as u16))
    }

    fn implementation(self) -> &'static dyn LatentSampler {
        let registered = REGISTERED.read().unwrap_or_else(PoisonError::into_inner);
        registered[usize::from(self.0)]
    }

    /// See [`LatentSampler::name`].
    pub fn name(self) -> &'static str {
        self.implementation().name()
    }

    /// See [`LatentSampler::perturb`].
    pub fn perturb(self, keys: &[ThoughtKey], thoughts: &mut [f32], width: usize) {
        self.implementation().perturb(keys, thoughts, width);
    }

    /// See [`LatentSampler::take_failure`].
    pub fn take_failure(self) -> Option<Arc<dyn Error + Send + Sync>> {
        self.implementation().take_failure()
    }
}
