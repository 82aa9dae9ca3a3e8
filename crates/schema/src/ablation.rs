//! Replacements for latent thoughts in an ablation.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The replacement for a question's thoughts. The number of thoughts stays the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum AblationKind {
    /// Zeros
    Zero,
    /// The mean thought of all questions at each position
    Mean,
    /// The thoughts of the next question
    Swap,
    /// The first thought at every position
    Freeze,
    /// The question's own thoughts in another order
    Shuffle,
    /// Each thought rounded to the nearest token embedding
    Round,
}

impl AblationKind {
    /// Every kind, in display order.
    pub const ALL: [Self; 6] =
        [Self::Zero, Self::Mean, Self::Swap, Self::Freeze, Self::Shuffle, Self::Round];

    /// The name in `ablation.json` and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Mean => "mean",
            Self::Swap => "swap",
            Self::Freeze => "freeze",
            Self::Shuffle => "shuffle",
            Self::Round => "round",
        }
    }

    /// A short description of the vectors that are fed instead of the thoughts.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Zero => "every thought is zero",
            Self::Mean => "the mean thought of all questions at each position",
            Self::Swap => "the thoughts of the next question",
            Self::Freeze => "the first thought at every position",
            Self::Shuffle => "the question's own thoughts in another order",
            Self::Round => "the token embedding nearest to each thought",
        }
    }
}

impl fmt::Display for AblationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
