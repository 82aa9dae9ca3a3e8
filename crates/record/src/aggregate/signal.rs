//! Numbers that say how good a trajectory is, made comparable: their spread within a question, and weights from them.
//!
//! A signal that is not there is negative infinity; it takes no part in mean and deviation, and weighs nothing.

/// The mean and the standard deviation of what is finite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) mean: f64,
    pub(super) deviation: f64,
}

impl Spread {
    /// `None` where values do not differ: then nothing can be told from them.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let count = values.iter().filter(|x| x.is_finite()).count() as f64;
        let sum = |of: &dyn Fn(f64) -> f64| values.iter().copied().filter(|x| x.is_finite()).map(of).sum::<f64>();
        let mean = sum(&|x| x) / count;
        let deviation = (sum(&|x| (x - mean) * (x - mean)) / count).sqrt();
        (deviation.is_finite() && deviation > f64::EPSILON * mean.abs()).then_some(Self { mean, deviation })
    }
}

/// Values in units of their own spread around their mean; 0 where they do not differ.
pub(super) fn standardized(values: &[f64]) -> Vec<f64> {
    let spread = Spread::of(values);
    let place = |x: f64| spread.map_or(0.0, |s| (x - s.mean) / s.deviation);
    values.iter().map(|&x| if x.is_finite() { place(x) } else { x }).collect()
}

/// Weights exp(x - largest x); where nobody has a signal, everybody has the same weight.
pub(super) fn softmax(values: &[f64]) -> Vec<f64> {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.iter().map(|x| if largest.is_finite() { (x - largest).exp() } else { 1.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_leave_out_what_is_not_there() {
        let spread = Spread::of(&[1.0, f64::NEG_INFINITY, 3.0]).unwrap();
        assert_eq!((spread.mean, spread.deviation), (2.0, 1.0));
        assert_eq!(standardized(&[1.0, f64::NEG_INFINITY, 3.0]), [-1.0, f64::NEG_INFINITY, 1.0]);
        for alike in [&[][..], &[5.0], &[0.1, 0.1, 0.1], &[f64::NEG_INFINITY, 7.0], &[f64::NEG_INFINITY; 2]] {
            assert_eq!(Spread::of(alike), None, "{alike:?}");
        }
        assert_eq!(standardized(&[4.0, f64::NEG_INFINITY]), [0.0, f64::NEG_INFINITY]);
    }

    #[test]
    fn standardized_signals_do_not_depend_on_their_scale() {
        let signal = [0.5, -1.0, 2.0, 0.25];
        let scaled = signal.map(|x| 1024.0 * x);
        assert_eq!(standardized(&signal), standardized(&scaled));
    }

    #[test]
    fn weights() {
        assert_eq!(softmax(&[0.0, 1e300, f64::NEG_INFINITY]), [0.0, 1.0, 0.0]);
        assert_eq!(softmax(&[f64::NEG_INFINITY; 2]), [1.0, 1.0]);
    }
}
