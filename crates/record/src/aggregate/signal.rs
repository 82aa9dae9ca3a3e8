//! Numbers that say how good a trajectory is, made comparable: their spread within a question, and
//! weights from them.
//!
//! A signal that is not there is negative infinity; it takes no part in mean and deviation, and
//! weighs nothing.

/// The mean and the standard deviation of what is finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct MeanStd {
    pub(super) mean: f64,
    pub(super) std: f64,
}

impl MeanStd {
    /// `None` where values do not differ: then nothing can be told from them.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let count = values.iter().filter(|x| x.is_finite()).count() as f64;
        let sum = |of: &dyn Fn(f64) -> f64| {
            values.iter().copied().filter(|x| x.is_finite()).map(of).sum::<f64>()
        };
        let mean = sum(&|x| x) / count;
        let deviation = (sum(&|x| (x - mean) * (x - mean)) / count).sqrt();
        (deviation.is_finite() && deviation > f64::EPSILON * mean.abs())
            .then_some(Self { mean, std: deviation })
    }
}

/// Values in units of their own spread around their mean; 0 where they do not differ.
pub(super) fn standardize(values: &[f64]) -> Vec<f64> {
    let spread = MeanStd::of(values);
    let place = |x: f64| spread.map_or(0.0, |s| (x - s.mean) / s.std);
    values.iter().map(|&x| if x.is_finite() { place(x) } else { x }).collect()
}

/// Weights exp(x - largest x); where nobody has a signal, everybody has the same weight.
pub(super) fn softmax_weights(values: &[f64]) -> Vec<f64> {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.iter().map(|x| if largest.is_finite() { (x - largest).exp() } else { 1.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_values_do_not_count() {
        let spread = MeanStd::of(&[1.0, f64::NEG_INFINITY, 3.0]).unwrap();
        assert_eq!((spread.mean, spread.std), (2.0, 1.0));
        assert_eq!(standardize(&[1.0, f64::NEG_INFINITY, 3.0]), [-1.0, f64::NEG_INFINITY, 1.0]);
        for alike in
            [&[][..], &[5.0], &[0.1, 0.1, 0.1], &[f64::NEG_INFINITY, 7.0], &[f64::NEG_INFINITY; 2]]
        {
            assert_eq!(MeanStd::of(alike), None, "{alike:?}");
        }
        assert_eq!(standardize(&[4.0, f64::NEG_INFINITY]), [0.0, f64::NEG_INFINITY]);
    }

    #[test]
    fn standardized_values_do_not_depend_on_scale() {
        let signal = [0.5, -1.0, 2.0, 0.25];
        let scaled = signal.map(|x| 1024.0 * x);
        assert_eq!(standardize(&signal), standardize(&scaled));
    }

    #[test]
    fn weights() {
        assert_eq!(softmax_weights(&[0.0, 1e300, f64::NEG_INFINITY]), [0.0, 1.0, 0.0]);
        assert_eq!(softmax_weights(&[f64::NEG_INFINITY; 2]), [1.0, 1.0]);
    }
}
