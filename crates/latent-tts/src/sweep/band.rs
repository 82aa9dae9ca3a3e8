//! The perturbation strengths that the paper recommends for a backbone without a sweep (section
//! 5.1).

use model::config::Architecture;
use serde::{Deserialize, Serialize};

/// A recommended range of strengths, and whether the result of a sweep agrees with it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RecommendedBand {
    /// Weakest recommended strength.
    pub low: f64,
    /// Strongest recommended strength.
    pub high: f64,
    /// Whether the range contains the best strength.
    pub contains_best: bool,
    /// Whether the range contains a strength that does not differ significantly from the best.
    pub contains_as_good: bool,
}

impl RecommendedBand {
    /// The recommended range of a sampler for an architecture. The paper gives none for Qwen, and
    /// none for samplers other than dropout and noise.
    pub fn of_sampler(architecture: Architecture, kind: &str) -> Option<Self> {
        let (low, high) = match (architecture, kind) {
            (Architecture::Gpt2, "dropout") => (0.1, 0.3),
            (Architecture::Gpt2, "noise") => (0.5, 0.7),
            (Architecture::Llama, "dropout" | "noise") => (0.01, 0.03),
            _ => return None,
        };
        Some(Self { low, high, contains_best: false, contains_as_good: false })
    }

    /// Whether the range, including its ends, contains `strength`.
    pub fn contains(&self, strength: f64) -> bool {
        (self.low..=self.high).contains(&strength)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn band_includes_its_ends() {
        let band = RecommendedBand::of_sampler(Architecture::Gpt2, "dropout").unwrap();
        assert!([0.1, 0.2, 0.3].iter().all(|p| band.contains(*p)));
        assert!([0.0, 0.09, 0.31].iter().all(|p| !band.contains(*p)));
        assert_eq!(RecommendedBand::of_sampler(Architecture::Qwen3, "noise"), None);
        assert_eq!(RecommendedBand::of_sampler(Architecture::Llama, "gumbel"), None);
    }
}
