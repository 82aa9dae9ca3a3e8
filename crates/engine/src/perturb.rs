//! What makes N trajectories differ: Monte Carlo dropout, Gaussian noise on thoughts, Gumbel noise
//! on the mixtures they are, or sampled answer tokens. [`crate::sampler`] turns these settings into
//! random numbers for rows.

use tensor::ops::{SiteSet, TokenSampling};
use tensor::rng::RngKey;

/// A probability in `[0, 1)`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Probability(f32);

impl Probability {
    /// `p`, unless it is outside `[0, 1)` or NaN.
    pub fn new(p: f32) -> Option<Self> {
        (0.0..1.0).contains(&p).then_some(Self(p))
    }

    /// The value, in `[0, 1)`.
    pub fn get(self) -> f32 {
        self.0
    }
}

/// A softmax temperature: finite and above 0.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Temperature(f32);

impl Temperature {
    /// A temperature of 1.
    pub const ONE: Self = Self(1.0);

    /// `tau`, unless it is 0, negative or not finite.
    pub fn new(tau: f32) -> Option<Self> {
        (tau.is_finite() && tau > 0.0).then_some(Self(tau))
    }

    /// The value.
    pub fn get(self) -> f32 {
        self.0
    }
}

/// Which block outputs dropout falls on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropoutSites {
    /// The attention block's output, before the residual addition.
    pub attn_out: bool,
    /// The MLP block's output, before the residual addition.
    pub mlp_out: bool,
}

impl DropoutSites {
    /// Attention and MLP outputs: the default on GPT-2.
    pub const BOTH: Self = Self { attn_out: true, mlp_out: true };
    /// MLP outputs: the default on Llama and Qwen.
    pub const MLP: Self = Self { attn_out: false, mlp_out: true };
    /// Attention outputs.
    pub const ATTN: Self = Self { attn_out: true, mlp_out: false };

    pub(crate) fn site_set(self) -> SiteSet {
        let attn_out = if self.attn_out { SiteSet::ATTN_OUT } else { SiteSet::EMPTY };
        let mlp_out = if self.mlp_out { SiteSet::MLP_OUT } else { SiteSet::EMPTY };
        attn_out.union(mlp_out)
    }
}

/// Which passes dropout falls on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropoutScope {
    /// The passes whose output becomes a thought: the last prompt token and thoughts 1 to T-1. The
    /// rest of the prompt is clean and shared by all rows.
    Thoughts,
    /// The whole prompt as well, as the published Python code does. No prefix can be shared.
    Prompt,
    /// Every pass, the answer's included.
    All,
}

/// How long a row keeps its dropout masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaskLifetime {
    /// A fresh mask at each position.
    #[default]
    Step,
    /// One mask for each layer and site, at all positions of the trajectory that dropout falls on:
    /// the trajectory is that of one thinned network.
    Trajectory,
}

impl MaskLifetime {
    /// The key of the masks at a position, of which `key` names the random numbers.
    pub(crate) fn key(self, key: RngKey) -> RngKey {
        match self {
            Self::Step => key,
            Self::Trajectory => RngKey { position: 0, ..key },
        }
    }
}

/// How the trajectories of a question are made to differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Perturbation {
    /// All trajectories are the greedy one.
    None,
    /// Inverted dropout with masks of its own for every row, layer and site.
    Dropout {
        /// The probability that an element is dropped.
        p: Probability,
        /// The block outputs it falls on.
        sites: DropoutSites,
        /// The passes it falls on.
        scope: DropoutScope,
        /// The positions that share a mask.
        mask: MaskLifetime,
    },
    /// Additive Gaussian noise on every thought just before it is fed.
    Gaussian {
        /// The standard deviation of each element.
        std: f32,
    },
    /// Gumbel noise on the logits of thoughts that are mixtures of token embeddings: weights are
    /// softmax((logits + noise) / tau) over the tokens that the family mixes.
    Gumbel {
        /// Towards 0 a thought is one sampled token's embedding; above 1 the weights even out.
        tau: Temperature,
    },
    /// Answer tokens are sampled; thoughts, if there are any, are the same in every row.
    Tokens(TokenSampling),
}

/// How much of a prompt's keys and values the rows of a question share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PromptSharing {
    Whole,
    AllButLast,
    Nothing,
}

impl Perturbation {
    pub(crate) fn prompt_sharing(&self) -> PromptSharing {
        match self {
            Self::Dropout { scope: DropoutScope::Thoughts, .. } => PromptSharing::AllButLast,
            Self::Dropout { .. } => PromptSharing::Nothing,
            Self::None | Self::Gaussian { .. } | Self::Gumbel { .. } | Self::Tokens(_) => {
                PromptSharing::Whole
            }
        }
    }

    pub(crate) fn is_dropout(&self) -> bool {
        matches!(self, Self::Dropout { .. })
    }

    /// Whether it changes nothing in a trajectory without thoughts.
    pub(crate) fn only_affects_thoughts(&self) -> bool {
        matches!(
            self,
            Self::Dropout { scope: DropoutScope::Thoughts, .. }
                | Self::Gaussian { .. }
                | Self::Gumbel { .. }
        )
    }

    /// Whether dropout goes on after the last thought.
    pub(crate) fn affects_answer(&self) -> bool {
        matches!(self, Self::Dropout { scope: DropoutScope::All, .. })
    }
}

#[cfg(test)]
mod tests {
    use tensor::rng::Site;

    use super::*;

    /// Which of 64 elements are kept.
    fn mask(lifetime: MaskLifetime, trajectory: u32, position: u32) -> Vec<bool> {
        let key = lifetime.key(RngKey { seed: 1, question: 2, trajectory, position });
        (0..64).map(|element| key.keeps(3, Site::MlpOut, element, 0.5)).collect()
    }

    #[test]
    fn a_kept_mask_is_the_same_at_every_thought_and_differs_between_trajectories() {
        let kept = |trajectory, position| mask(MaskLifetime::Trajectory, trajectory, position);
        assert!((41..48).all(|position| kept(5, position) == kept(5, 40)));
        assert!((0..5).all(|trajectory| kept(trajectory, 40) != kept(5, 40)));
        let fresh = |position| mask(MaskLifetime::Step, 5, position);
        assert!((41..48).all(|position| fresh(position) != fresh(40)));
    }
}
