//! The deviation of confidences from accuracies: the reliability diagram and its summary.

use serde::{Deserialize, Serialize};

/// Confidences against accuracy, in bins of equal width.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reliability {
    /// Expected calibration error: the mean over answers of |accuracy - confidence| of their bin.
    pub expected_calibration_error: f64,
    /// The mean squared difference of confidence and outcome.
    pub brier_score: f64,
    /// Non-empty bins, ascending.
    pub bins: Vec<ReliabilityBin>,
}

/// The answers whose confidence is in one range.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReliabilityBin {
    /// Number of answers.
    pub count: usize,
    /// Their mean confidence.
    pub confidence: f64,
    /// Share of correct answers.
    pub accuracy: f64,
}

impl Reliability {
    /// Number of bins.
    const BINS: usize = 10;

    /// Computes the diagram from answers, each with its confidence and correctness; `None` without
    /// answers.
    pub fn new(answers: &[(f64, bool)]) -> Option<Self> {
        if answers.is_empty() {
            return None;
        }
        let mut sums = [(0_usize, 0.0, 0_usize); Self::BINS];
        let mut squares = 0.0;
        for &(confidence, correct) in answers {
            let bin = (confidence * Self::BINS as f64) as usize;
            let sum = &mut sums[bin.min(Self::BINS - 1)];
            sum.0 += 1;
            sum.1 += confidence;
            sum.2 += usize::from(correct);
            squares += (confidence - f64::from(u8::from(correct))).powi(2);
        }
        let total = answers.len() as f64;
        let bins: Vec<ReliabilityBin> = sums
            .into_iter()
            .filter(|(count, ..)| *count > 0)
            .map(|(count, confidence, right)| ReliabilityBin {
                count,
                confidence: confidence / count as f64,
                accuracy: right as f64 / count as f64,
            })
            .collect();
        let gap =
            |bin: &ReliabilityBin| bin.count as f64 / total * (bin.accuracy - bin.confidence).abs();
        Some(Self {
            expected_calibration_error: bins.iter().map(gap).sum(),
            brier_score: squares / total,
            bins,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_the_mean_distance_of_the_bins() {
        let answers = [(0.85, true), (0.85, false), (0.15, false), (1.0, true)];
        let reliability = Reliability::new(&answers).unwrap();
        assert_eq!(reliability.bins.len(), 3);
        let expected = 0.25 * 0.15 + 0.5 * 0.35;
        assert!((reliability.expected_calibration_error - expected).abs() < 1e-12);
        assert_eq!(Reliability::new(&[]), None);
    }
}
