//! What a run is told: everything that the stages need beside the model, resolved.

use std::num::NonZeroUsize;

use crate::method::{LatentLength, Method};
use crate::perturb::Probability;
use crate::perturb::{Perturbation, Scope};

/// How to think, and how much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Trajectories a question.
    pub samples: NonZeroUsize,
    /// Whether to add the deterministic trajectory.
    pub greedy: bool,
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

impl Settings {
    /// Memory for keys and values unless told otherwise: with a model of GPT-2's size well under 3 GiB in all.
    pub const MEMORY: usize = 1 << 30;

    /// The family's defaults.
    pub fn of(method: &Method) -> Self {
        let p = Probability::new(method.p).map(|p| Perturbation::Dropout { p, sites: method.sites, scope: Scope::Thoughts });
        Self {
            samples: NonZeroUsize::MIN,
            greedy: false,
            perturbation: p.unwrap_or(Perturbation::None),
            length: method.length,
            max_new_tokens: NonZeroUsize::new(method.max_new_tokens).unwrap_or(NonZeroUsize::MIN),
            seed: 0,
            memory: Self::MEMORY,
        }
    }
}
