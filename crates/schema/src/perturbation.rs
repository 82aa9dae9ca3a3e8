//! What makes N trajectories differ: Monte Carlo dropout, Gaussian noise on thoughts, Gumbel noise
//! on the mixtures they are, averages of sampled tokens, or sampled answer tokens.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::latent_length::LatentLength;
use crate::latent_sampler::CustomSampler;
use crate::number::{Probability, Temperature, TopP};

/// Which block outputs dropout falls on: `both`, `attn` or `mlp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SitesName", into = "SitesName")]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "json-schema", schemars(with = "SitesName"))]
pub struct DropoutSites {
    /// The attention block's output, before the residual addition.
    pub attn_out: bool,
    /// The MLP block's output, before the residual addition.
    pub mlp_out: bool,
}

/// The sites by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "json-schema", schemars(inline))]
enum SitesName {
    /// Attention and MLP outputs
    Both,
    /// Attention outputs
    Attn,
    /// MLP outputs
    Mlp,
}

impl From<SitesName> for DropoutSites {
    fn from(name: SitesName) -> Self {
        match name {
            SitesName::Both => Self::BOTH,
            SitesName::Attn => Self::ATTN,
            SitesName::Mlp => Self::MLP,
        }
    }
}

impl From<DropoutSites> for SitesName {
    fn from(sites: DropoutSites) -> Self {
        match (sites.attn_out, sites.mlp_out) {
            (true, false) => Self::Attn,
            (false, true) => Self::Mlp,
            (true, true) | (false, false) => Self::Both,
        }
    }
}

impl DropoutSites {
    /// Attention and MLP outputs: the default on GPT-2.
    pub const BOTH: Self = Self { attn_out: true, mlp_out: true };
    /// MLP outputs: the default on Llama and Qwen.
    pub const MLP: Self = Self { attn_out: false, mlp_out: true };
    /// Attention outputs.
    pub const ATTN: Self = Self { attn_out: true, mlp_out: false };

    /// `both`, `attn` or `mlp`.
    pub fn name(self) -> &'static str {
        match SitesName::from(self) {
            SitesName::Both => "both",
            SitesName::Attn => "attn",
            SitesName::Mlp => "mlp",
        }
    }
}

#[cfg(feature = "clap")]
impl clap::ValueEnum for DropoutSites {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::BOTH, Self::ATTN, Self::MLP]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        let help = match SitesName::from(*self) {
            SitesName::Both => "Attention and MLP outputs",
            SitesName::Attn => "Attention outputs",
            SitesName::Mlp => "MLP outputs",
        };
        Some(clap::builder::PossibleValue::new(self.name()).help(help))
    }
}

/// Which forward passes dropout falls on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "json-schema", schemars(inline))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum DropoutScope {
    /// The passes whose output becomes a thought: the last prompt token and thoughts 1 to T-1
    ///
    /// The rest of the prompt is unperturbed and shared by all trajectories.
    #[default]
    Thoughts,
    /// The whole prompt as well, as the published Python code does; no prefix can be shared
    Prompt,
    /// What is generated: thoughts, end tokens and the answer
    ///
    /// The prompt is unperturbed and shared by all trajectories, which have its first hidden state
    /// in common.
    Generated,
    /// Every pass, the answer's included
    All,
}

impl DropoutScope {
    /// The scope that is meant where none is given: without thoughts dropout on them does nothing.
    pub fn default_for(length: LatentLength) -> Self {
        if length == LatentLength::None { Self::Generated } else { Self::Thoughts }
    }

    /// `thoughts`, `prompt`, `generated` or `all`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Thoughts => "thoughts",
            Self::Prompt => "prompt",
            Self::Generated => "generated",
            Self::All => "all",
        }
    }
}

/// How long a trajectory keeps its dropout masks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "json-schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "json-schema", schemars(inline))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum MaskLifetime {
    /// A fresh mask at each position
    #[default]
    Step,
    /// One mask for each layer and site for the whole trajectory: that of one thinned network
    Trajectory,
}

impl MaskLifetime {
    /// `step` or `trajectory`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Trajectory => "trajectory",
        }
    }
}

/// How the trajectories of a question are made to differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Perturbation {
    /// All trajectories are the greedy one.
    None,
    /// Inverted dropout with masks of its own for every sequence, layer and site.
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
        /// Latent-GRPO's noise, which never lowers a token's score.
        one_sided: Option<OneSidedNoise>,
    },
    /// A thought is the average embedding of tokens that are sampled independently.
    Multiplex {
        /// How many.
        width: NonZeroU32,
        /// Divides the logits.
        temperature: Temperature,
        /// Tokens are drawn from the smallest set with this total probability.
        top_p: TopP,
    },
    /// Answer tokens are sampled; thoughts, if there are any, are the same in every trajectory.
    Tokens {
        /// Divides the logits.
        temperature: Temperature,
        /// Tokens are drawn from the smallest set with this total probability.
        top_p: TopP,
    },
    /// A function of the calling program changes every thought just before it is fed.
    Custom(CustomSampler),
}

/// Gumbel noise clipped to [-1.5, 3] and shifted to begin at 0, on the scores of a nucleus.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneSidedNoise {
    /// Its factor.
    pub scale: Temperature,
    /// The share of the nucleus, which has at least the mixture's tokens.
    pub top_p: TopP,
}

impl OneSidedNoise {
    /// The published share.
    pub const TOP_P: TopP = TopP::PUBLISHED;
}

/// How much of a prompt's keys and values the trajectories of a question share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptSharing {
    /// All of them.
    Whole,
    /// All but those of the last token.
    AllButLast,
    /// None: dropout makes them differ.
    Nothing,
}

impl Perturbation {
    /// How much of the prompt all trajectories share.
    pub fn prompt_sharing(&self) -> PromptSharing {
        match self {
            Self::Dropout { scope: DropoutScope::Thoughts, .. } => PromptSharing::AllButLast,
            Self::Dropout { scope: DropoutScope::Generated, .. } => PromptSharing::Whole,
            Self::Dropout { .. } => PromptSharing::Nothing,
            Self::None
            | Self::Gaussian { .. }
            | Self::Gumbel { .. }
            | Self::Multiplex { .. }
            | Self::Tokens { .. }
            | Self::Custom(_) => PromptSharing::Whole,
        }
    }

    /// Whether it is made for thoughts that are mixtures of token embeddings.
    pub fn needs_mixtures(&self) -> bool {
        matches!(self, Self::Gumbel { .. } | Self::Multiplex { .. })
    }

    /// Whether it is dropout.
    pub fn is_dropout(&self) -> bool {
        matches!(self, Self::Dropout { .. })
    }

    /// Whether it changes nothing in a trajectory without thoughts.
    pub fn only_affects_thoughts(&self) -> bool {
        matches!(
            self,
            Self::Dropout { scope: DropoutScope::Thoughts, .. }
                | Self::Gaussian { .. }
                | Self::Gumbel { .. }
                | Self::Multiplex { .. }
                | Self::Custom(_)
        )
    }

    /// Whether dropout goes on after the last thought.
    pub fn affects_answer(&self) -> bool {
        matches!(self, Self::Dropout { scope: DropoutScope::All | DropoutScope::Generated, .. })
    }
}
