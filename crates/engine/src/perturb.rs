//! What makes N trajectories differ: Monte Carlo dropout, Gaussian noise on thoughts, or sampled
//! answer tokens. [`crate::sampler`] turns these settings into random numbers for rows.

use tensor::ops::{SiteSet, TokenSampling};

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

/// How the trajectories of a question are made to differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Perturbation {
    /// All trajectories are the greedy one.
    None,
    /// Inverted dropout with a fresh mask for every row, position, layer and site.
    Dropout {
        /// The probability that an element is dropped.
        p: Probability,
        /// The block outputs it falls on.
        sites: DropoutSites,
        /// The passes it falls on.
        scope: DropoutScope,
    },
    /// Additive Gaussian noise on every thought just before it is fed.
    Gaussian {
        /// The standard deviation of each element.
        std: f32,
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
            Self::None | Self::Gaussian { .. } | Self::Tokens(_) => PromptSharing::Whole,
        }
    }

    pub(crate) fn is_dropout(&self) -> bool {
        matches!(self, Self::Dropout { .. })
    }

    /// Whether it changes nothing in a trajectory without thoughts.
    pub(crate) fn only_affects_thoughts(&self) -> bool {
        matches!(self, Self::Dropout { scope: DropoutScope::Thoughts, .. } | Self::Gaussian { .. })
    }

    /// Whether dropout goes on after the last thought.
    pub(crate) fn affects_answer(&self) -> bool {
        matches!(self, Self::Dropout { scope: DropoutScope::All, .. })
    }
}
