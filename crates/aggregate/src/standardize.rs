//! Rewards and log-probabilities on a common scale: z-scores within a question, softmax weights.
//!
//! A missing value is represented by negative infinity: it is excluded from the mean and the
//! standard deviation, and its weight is 0.

/// Mean and standard deviation (with 1/n) of the finite values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MeanStd {
    pub(crate) mean: f64,
    pub(crate) std: f64,
}

impl MeanStd {
    /// `None` if no two finite values differ.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let finite = || values.iter().copied().filter(|x| x.is_finite());
        let count = finite().count() as f64;
        let mean = finite().sum::<f64>() / count;
        let std = (finite().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count).sqrt();
        (std.is_finite() && std > f64::EPSILON * mean.abs()).then_some(Self { mean, std })
    }
}

/// (x - mean) / std of every finite value; 0 if they do not differ. Other values are unchanged.
pub(crate) fn standardize(values: &[f64]) -> Vec<f64> {
    let stats = MeanStd::of(values);
    let z_score = |x: f64| stats.map_or(0.0, |s| (x - s.mean) / s.std);
    values.iter().map(|&x| if x.is_finite() { z_score(x) } else { x }).collect()
}

/// Unnormalized softmax, exp(x - max); all 1 if no value is finite.
pub(crate) fn softmax_weights(values: &[f64]) -> Vec<f64> {
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.iter().map(|x| if max.is_finite() { (x - max).exp() } else { 1.0 }).collect()
}

/// The softmax weights of `values / temperature`.
pub(crate) fn sharpen(mut values: Vec<f64>, temperature: f64) -> Vec<f64> {
    values.iter_mut().for_each(|value| *value /= temperature);
    softmax_weights(&values)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING: f64 = f64::NEG_INFINITY;

    #[test]
    fn missing_values_do_not_count() {
        let stats = MeanStd::of(&[1.0, MISSING, 3.0]).unwrap();
        assert_eq!((stats.mean, stats.std), (2.0, 1.0));
        assert_eq!(standardize(&[1.0, MISSING, 3.0]), [-1.0, MISSING, 1.0]);
        for equal in [&[][..], &[5.0], &[0.1, 0.1, 0.1], &[MISSING, 7.0], &[MISSING; 2]] {
            assert_eq!(MeanStd::of(equal), None, "{equal:?}");
        }
        assert_eq!(standardize(&[4.0, MISSING]), [0.0, MISSING]);
    }

    #[test]
    fn standardized_values_do_not_depend_on_scale() {
        let values = [0.5, -1.0, 2.0, 0.25];
        let scaled = values.map(|x| 1024.0 * x);
        assert_eq!(standardize(&values), standardize(&scaled));
    }

    #[test]
    fn softmax_weights_do_not_overflow() {
        assert_eq!(softmax_weights(&[0.0, 1e300, MISSING]), [0.0, 1.0, 0.0]);
        assert_eq!(softmax_weights(&[MISSING; 2]), [1.0, 1.0]);
    }
}
