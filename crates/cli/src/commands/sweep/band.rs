//! The strengths that the paper recommends for a backbone without a sweep (section 5.1).

use model::config::Architecture;
use serde::{Deserialize, Serialize};

/// The recommended strengths, and whether the result of a sweep agrees.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RecommendedBand {
    /// Weakest recommended strength.
    pub low: f64,
    /// Strongest recommended strength.
    pub high: f64,
    /// Whether the best value lies in the band.
    pub contains_best: bool,
    /// Whether a value in the band is statistically indistinguishable from the best.
    pub contains_as_good: bool,
}

impl RecommendedBand {
    /// The band for an architecture; the paper gives none for Qwen.
    pub fn for_architecture(architecture: Architecture, noise: bool) -> Option<Self> {
        let (low, high) = match (architecture, noise) {
            (Architecture::Gpt2, false) => (0.1, 0.3),
            (Architecture::Gpt2, true) => (0.5, 0.7),
            (Architecture::Llama, _) => (0.01, 0.03),
            (Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Qwen3Vl, _) => return None,
        };
        Some(Self { low, high, contains_best: false, contains_as_good: false })
    }

    /// Whether `strength` lies in the band, ends included.
    pub fn contains(&self, strength: f64) -> bool {
        (self.low..=self.high).contains(&strength)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn band_includes_its_ends() {
        let band = RecommendedBand::for_architecture(Architecture::Gpt2, false).unwrap();
        assert!([0.1, 0.2, 0.3].iter().all(|p| band.contains(*p)));
        assert!([0.0, 0.09, 0.31].iter().all(|p| !band.contains(*p)));
        assert_eq!(RecommendedBand::for_architecture(Architecture::Qwen3, true), None);
    }
}
