//! 95% confidence intervals of means over questions.
//!
//! Proportions, such as accuracies, have Wilson's interval, which never has zero width. Other means
//! and paired differences have a percentile bootstrap interval: questions are resampled with
//! replacement, and the interval is the middle 95% of the resampled means. Differences use a paired
//! bootstrap with two pseudo-observations (one win, one loss), so that a tiny test set never yields
//! a zero-width interval; with hundreds of questions their effect is negligible.
//!
//! The generator is reseeded for every call, so all metrics of a run use the same resamples and the
//! intervals are reproducible on every machine.

/// A mean with its 95% confidence interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The mean.
    pub value: f64,
    /// The lower bound, at most `value`.
    pub low: f64,
    /// The upper bound, at least `value`.
    pub high: f64,
}

/// The 0.975 quantile of the standard normal distribution.
const Z: f64 = 1.959_964;

/// Sum of the squared deviations of the two pseudo-observations of a proportion: one correct, one
/// wrong.
const PSEUDO_VARIANCE: f64 = 0.5;

impl Interval {
    /// The mean of values from 0 to 1, one per question, with Wilson's interval; `None` if there
    /// are none.
    ///
    /// Values between 0 and 1 (means over seeds or subsets) have a smaller variance than binary
    /// values: the effective number of questions is larger by the ratio of the variances. Two
    /// pseudo-observations, one correct and one wrong, keep the variance of equal values positive.
    pub fn of_share(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let count = values.len() as f64;
        let value = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|x| (x - value).powi(2)).sum::<f64>() / count;
        let binomial = value * (1.0 - value);
        let effective =
            count * (count * binomial + PSEUDO_VARIANCE) / (count * variance + PSEUDO_VARIANCE);
        let z = Z * Z / effective;
        let centre = (value + z / 2.0) / (1.0 + z);
        let half = (z * binomial + z * z / 4.0).sqrt() / (1.0 + z);
        let low = centre - half;
        let high = centre + half;
        Some(Self { value, low: low.clamp(0.0, value), high: high.clamp(value, 1.0) })
    }
}

/// Parameters of the bootstrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bootstrap {
    /// The number of resamples. With 0 both bounds equal the mean.
    pub resamples: usize,
    /// The seed of the generator.
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { resamples: 1000, seed: 0 }
    }
}

impl Bootstrap {
    /// The mean of `values`, one per question, with its interval; `None` if there are none.
    pub fn mean(&self, values: &[f64]) -> Option<Interval> {
        self.resample(values, &[])
    }

    /// The mean of differences of accuracies, one per question, with its interval; `None` if there
    /// are none.
    pub fn difference(&self, values: &[f64]) -> Option<Interval> {
        self.resample(values, &[1.0, -1.0])
    }

    /// The mean of `values`, with the interval of `values` and `pseudo` observations.
    fn resample(&self, values: &[f64], pseudo: &[f64]) -> Option<Interval> {
        if values.is_empty() {
            return None;
        }
        let value = values.iter().sum::<f64>() / values.len() as f64;
        let all = [values, pseudo].concat();
        let mut rng = SplitMix64(self.seed);
        let mut resampled = || all.iter().map(|_| all[rng.below(all.len())]).sum::<f64>();
        let mut means: Vec<f64> =
            (0..self.resamples).map(|_| resampled() / all.len() as f64).collect();
        means.sort_by(f64::total_cmp);
        // With few questions or resamples the middle 95% may exclude the mean.
        let low = quantile(&means, 0.025).unwrap_or(value).min(value);
        let high = quantile(&means, 0.975).unwrap_or(value).max(value);
        Some(Interval { value, low, high })
    }
}

/// The q-quantile of sorted values, linearly interpolated.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let place = q * sorted.len().checked_sub(1)? as f64;
    let below = sorted[place.floor() as usize];
    let above = sorted[place.ceil() as usize];
    Some(below + (above - below) * place.fract())
}

/// The SplitMix64 generator (Steele, Lea and Flood, 2014).
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random number below `n`: the high half of a 128-bit product.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_generator_matches_its_reference_values() {
        let mut generator = SplitMix64(1234567);
        assert_eq!(generator.next(), 6457827717110365317);
        assert_eq!(generator.next(), 3203168211198807973);
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(quantile(&[0.0, 1.0, 2.0], 0.5), Some(1.0));
        assert_eq!(quantile(&[0.0, 1.0], 0.25), Some(0.25));
        assert_eq!(quantile(&[3.0], 0.975), Some(3.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn a_known_interval() {
        // 400 questions, half of them right: the interval is 0.5 +- 1.96 sqrt(0.25 / 400) = 0.5 +-
        // 0.049.
        let values: Vec<f64> = (0..400).map(|i| f64::from(i % 2)).collect();
        let interval = Bootstrap { resamples: 10_000, seed: 1 }.mean(&values).unwrap();
        assert_eq!(interval.value, 0.5);
        assert!((interval.low - 0.451).abs() < 0.004, "{interval:?}");
        assert!((interval.high - 0.549).abs() < 0.004, "{interval:?}");
    }

    #[test]
    fn shares_have_wilsons_interval() {
        // 3 of 10, as tabulated by Wilson's formula.
        let values: Vec<f64> = (0..10).map(|i| f64::from(u8::from(i < 3))).collect();
        let interval = Interval::of_share(&values).unwrap();
        assert!((interval.low - 0.1078).abs() < 1e-4, "{interval:?}");
        assert!((interval.high - 0.6032).abs() < 1e-4, "{interval:?}");
        let none = Interval::of_share(&[0.0; 3]).unwrap();
        assert_eq!((none.value, none.low), (0.0, 0.0));
        assert!((none.high - 0.5615).abs() < 1e-4, "{none:?}");
        let all = Interval::of_share(&[1.0; 3]).unwrap();
        assert_eq!((all.value, all.high), (1.0, 1.0));
        assert!((all.low - 0.4385).abs() < 1e-4, "{all:?}");
        assert_eq!(Interval::of_share(&[]), None);
        // Means over seeds have a smaller variance than binary values.
        let halves = Interval::of_share(&[0.4, 0.6, 0.4, 0.6]).unwrap();
        let wholes = Interval::of_share(&[0.0, 1.0, 0.0, 1.0]).unwrap();
        assert!(halves.high - halves.low < wholes.high - wholes.low);
    }

    #[test]
    fn an_interval_of_shares_does_not_jump() {
        for value in [0.0, 1e-9, 0.1, 0.5, 1.0] {
            for count in [1, 3, 40, 1000] {
                let equal = Interval::of_share(&vec![value; count]).unwrap();
                let mut values = vec![value; count];
                values[0] = (value - 1e-6_f64).abs();
                let changed = Interval::of_share(&values).unwrap();
                let difference =
                    (equal.low - changed.low).abs() + (equal.high - changed.high).abs();
                assert!(difference < 1e-4, "{count} of {value}: {equal:?}, {changed:?}");
            }
        }
        let one = Interval::of_share(&[0.5]).unwrap();
        assert!(one.high - one.low > 0.5, "a single question has a wide interval: {one:?}");
    }

    #[test]
    fn differences_admit_what_they_cannot_know() {
        let bootstrap = Bootstrap::default();
        let few = bootstrap.difference(&[0.0; 3]).unwrap();
        assert!(few.value == 0.0 && few.low < -0.2 && few.high > 0.2, "{few:?}");
        let many = bootstrap.difference(&[0.0; 1000]).unwrap();
        assert!(many.low < 0.0 && many.low > -0.01 && many.high < 0.01, "{many:?}");
    }

    #[test]
    fn empty_and_single_inputs() {
        assert_eq!(Bootstrap::default().mean(&[]), None);
        let point = |value| Some(Interval { value, low: value, high: value });
        assert_eq!(Bootstrap::default().mean(&[0.25]), point(0.25));
        assert_eq!(Bootstrap { resamples: 0, seed: 0 }.mean(&[0.0, 1.0]), point(0.5));
    }

    proptest! {
        #[test]
        fn the_interval_holds_the_value_and_repeats(
            values in prop::collection::vec(0.0f64..=1.0, 1..40),
            resamples in 0usize..60,
            seed in any::<u64>(),
        ) {
            let bootstrap = Bootstrap { resamples, seed };
            let interval = bootstrap.mean(&values).unwrap();
            prop_assert!(interval.low <= interval.value && interval.value <= interval.high);
            prop_assert!(interval.low >= 0.0 && interval.high <= 1.0 + 1e-12);
            prop_assert_eq!(bootstrap.mean(&values).unwrap(), interval);
        }
    }
}
