//! User-defined samplers: functions on the latents of a step, registered by name.
//!
//! A registered sampler is selected like a built-in one (`sampler = "mine"`); the command line and
//! the JSON schema list only the built-in ones. The engine calls it at the point where it adds
//! Gaussian noise.

use std::error::Error;
use std::sync::{Arc, PoisonError, RwLock};

use crate::options::SamplerKind;

/// A function that perturbs thoughts just before they are fed to the model.
///
/// A call covers thoughts of several trajectories and questions. The perturbation of a thought must
/// depend only on that thought and its [`ThoughtKey`]; otherwise results depend on the batch.
pub trait LatentSampler: Send + Sync {
    /// The name in options and manifests, in `snake_case`.
    fn name(&self) -> &str;

    /// Perturbs thoughts in place. `thoughts` has shape `[keys.len(), width]`, row-major.
    fn perturb(&self, keys: &[ThoughtKey], thoughts: &mut [f32], width: usize);

    /// The failure since the last call, if the sampler calls code that can fail. Trajectories
    /// sampled since then must be discarded.
    fn take_failure(&self) -> Option<Arc<dyn Error + Send + Sync>> {
        None
    }
}

/// Identifies a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThoughtKey {
    /// The seed of the request.
    pub seed: u64,
    /// The index of the question in its data set.
    pub question: u32,
    /// The index of the trajectory.
    pub trajectory: u32,
    /// The index of the thought in its trajectory, counted from 0.
    pub step: u32,
}

/// A registered sampler: an index into the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CustomSampler(u16);

/// Registered samplers. They are never freed.
static REGISTERED: RwLock<Vec<&'static dyn LatentSampler>> = RwLock::new(Vec::new());

/// A sampler cannot be registered because a built-in sampler has the same name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is the name of a built-in sampler; choose another name")]
pub struct SamplerNameTaken(pub String);

impl CustomSampler {
    /// Registers a sampler, replacing a registered one of the same name.
    ///
    /// # Errors
    ///
    /// If a built-in sampler has the same name.
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
