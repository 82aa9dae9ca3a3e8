//! How trajectories are perturbed: Monte Carlo dropout, Gaussian noise on thoughts, Gumbel noise on
//! mixtures of token embeddings, averages of sampled tokens, or sampled answer tokens.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::latent_length::LatentLength;
use crate::latent_sampler::CustomSampler;
use crate::number::{Probability, Temperature, TopP};

/// The block outputs that dropout is applied to: `both`, `attn` or `mlp`.
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

/// The names of [`DropoutSites`].
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

    /// The name: `both`, `attn` or `mlp`.
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

/// The forward passes that dropout is applied in.
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
    /// Every thought and the entire prompt, as in the published Python code; disables prefix
    /// sharing
    Prompt,
    /// All generated positions: thoughts, end tokens and the answer
    ///
    /// The prompt is unperturbed and shared by all trajectories, so their first hidden state is the
    /// same.
    Generated,
    /// Every pass, including the answer
    All,
}

impl DropoutScope {
    /// The default scope for a number of thoughts: without thoughts, dropout must apply to the
    /// answer.
    pub fn default_for(length: LatentLength) -> Self {
        if length == LatentLength::None { Self::Generated } else { Self::Thoughts }
    }

    /// The name: `thoughts`, `prompt`, `generated` or `all`.
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
    /// A new mask at each position
    #[default]
    Step,
    /// One mask per layer and site for the entire trajectory, as in a single thinned network
    Trajectory,
}

impl MaskLifetime {
    /// The name: `step` or `trajectory`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Trajectory => "trajectory",
        }
    }
}

/// How the trajectories of a question are perturbed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Perturbation {
    /// No perturbation: all trajectories equal the greedy one.
    None,
    /// Inverted dropout with a separate mask for every sequence, layer and site.
    Dropout {
        /// The probability of dropping an element.
        p: Probability,
        /// The block outputs it is applied to.
        sites: DropoutSites,
        /// The forward passes it is applied in.
        scope: DropoutScope,
        /// How long a trajectory keeps a mask.
        mask: MaskLifetime,
    },
    /// Additive Gaussian noise on every thought just before it is fed.
    Gaussian {
        /// The standard deviation of each element.
        std: f32,
    },
    /// Gumbel noise on the logits of thoughts that are mixtures of token embeddings. The weights
    /// are softmax((logits + noise) / tau) over the tokens that the family mixes.
    Gumbel {
        /// The mixture temperature: towards 0 a thought is the embedding of one sampled token;
        /// large values even out the weights.
        tau: Temperature,
        /// The one-sided noise of Latent-GRPO, which never lowers a token's score.
        one_sided: Option<OneSidedNoise>,
    },
    /// Each thought is the average embedding of independently sampled tokens.
    Multiplex {
        /// The number of sampled tokens per thought.
        width: NonZeroU32,
        /// Divides the logits.
        temperature: Temperature,
        /// Tokens are drawn from the smallest set with this total probability.
        top_p: TopP,
    },
    /// Sampled answer tokens. Thoughts, if any, are the same in every trajectory.
    Tokens {
        /// Divides the logits.
        temperature: Temperature,
        /// Tokens are drawn from the smallest set with this total probability.
        top_p: TopP,
    },
    /// A registered user-defined sampler, which changes every thought just before it is fed.
    Custom(CustomSampler),
}

/// Gumbel noise clipped to [-1.5, 3] and shifted to start at 0, on the scores of a nucleus.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneSidedNoise {
    /// The factor applied to the noise.
    pub scale: Temperature,
    /// The probability mass of the nucleus, which contains at least the tokens of the mixture.
    pub top_p: TopP,
}

impl OneSidedNoise {
    /// The published probability mass.
    pub const TOP_P: TopP = TopP::PUBLISHED;
}

/// How much of a prompt's keys and values is shared by the trajectories of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptSharing {
    /// All positions.
    Whole,
    /// All positions except the last.
    AllButLast,
    /// No positions, because dropout makes them differ.
    Nothing,
}

impl Perturbation {
    /// How much of the prompt the trajectories share.
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

    /// Whether the sampler applies only to thoughts that are mixtures of token embeddings.
    pub fn needs_mixtures(&self) -> bool {
        matches!(self, Self::Gumbel { .. } | Self::Multiplex { .. })
    }

    /// Whether the sampler is dropout.
    pub fn is_dropout(&self) -> bool {
        matches!(self, Self::Dropout { .. })
    }

    /// Whether the perturbation has no effect on a trajectory without thoughts.
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

    /// Whether dropout continues after the last thought.
    pub fn affects_answer(&self) -> bool {
        matches!(self, Self::Dropout { scope: DropoutScope::All | DropoutScope::Generated, .. })
    }
}
