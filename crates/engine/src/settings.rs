//! What a run is told: everything that the stages need beside the model, resolved.

use std::num::NonZeroUsize;

use tensor::ops::Nucleus;

use crate::error::Error;
use crate::method::{LatentLength, Method};
use crate::perturb::{Perturbation, Probability, Scope};

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

    /// The family's defaults: dropout on thoughts, or drawn words where there are none.
    pub fn of(method: &Method) -> Self {
        let perturbation = match (method.length, Probability::new(method.p)) {
            (LatentLength::None, _) => Perturbation::Tokens(Nucleus::WHOLE),
            (_, Some(p)) => Perturbation::Dropout { p, sites: method.sites, scope: Scope::Thoughts },
            (_, None) => Perturbation::None,
        };
        Self {
            samples: NonZeroUsize::MIN,
            greedy: false,
            perturbation,
            length: method.length,
            max_new_tokens: NonZeroUsize::new(method.max_new_tokens).unwrap_or(NonZeroUsize::MIN),
            seed: 0,
            memory: Self::MEMORY,
        }
    }

    /// Refuses what has no meaning for a family.
    pub(crate) fn check(&self, method: &Method) -> Result<(), Error> {
        match self.length {
            LatentLength::AtMost(_) if method.end.is_empty() => Err(Error::EndlessThoughts { family: method.family }),
            LatentLength::None if self.perturbation.is_of_thoughts_alone() => {
                Err(Error::NothingToPerturb { family: method.family })
            }
            _ => Ok(()),
        }
    }
}
