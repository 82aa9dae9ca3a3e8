//! The range from which a variable is sampled: numbers of similar size, roundness and kind.

use super::graph::GraphVariable;
use super::rational::Rational;
use super::stream::VariantRng;

/// `low, low + step, ..., low + count * step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NumberRange {
    low: Rational,
    step: Rational,
    count: u32,
}

/// Maximum number of values of a range.
const MAX_COUNT: i128 = 1 << 20;

impl NumberRange {
    /// The range of a variable.
    pub(super) fn of(variable: &GraphVariable) -> Self {
        let value = variable.value;
        if variable.in_fraction {
            return Self::of_fraction_part(variable);
        }
        match value.as_whole() {
            Some(whole) if variable.decimals == 0 => Self::of_whole(variable, whole),
            _ => Self::of_decimal(variable),
        }
    }

    /// The range of a variable in a text about ages, bodies or speeds, which is half as wide.
    pub(super) fn narrow(variable: &GraphVariable) -> Self {
        let whole = Self::of(variable);
        let value = variable.value;
        if variable.in_fraction || variable.is_percent() || value <= Rational::whole(12) {
            return whole;
        }
        let bound = |numerator| Rational::new(numerator, 10).and_then(|factor| value.mul(factor));
        let in_bounds = |drawn: &Rational| Some(*drawn) >= bound(7) && Some(*drawn) <= bound(15);
        let at = |index: u32| whole.at(index).filter(in_bounds);
        let first = (0..=whole.count).find(|index| at(*index).is_some());
        let last = (0..=whole.count).rev().find(|index| at(*index).is_some());
        match (first, last, first.and_then(|first| whole.at(first))) {
            (Some(first), Some(last), Some(low)) => Self { low, count: last - first, ..whole },
            _ => whole,
        }
    }

    fn at(&self, index: u32) -> Option<Rational> {
        self.low.add(self.step.mul(Rational::whole(i128::from(index)))?)
    }

    /// Samples a number uniformly.
    pub(super) fn draw(&self, rng: &mut VariantRng) -> Option<Rational> {
        self.at(rng.below(self.count + 1))
    }

    fn new(low: Rational, high: Rational, step: Rational) -> Self {
        let steps = high.sub(low).and_then(|span| span.div(step));
        let count = steps.map_or(0, |steps| steps.numerator() / steps.denominator());
        Self { low, step, count: count.clamp(0, MAX_COUNT) as u32 }
    }

    fn only(value: Rational) -> Self {
        Self { low: value, step: Rational::ONE, count: 0 }
    }

    /// The range of a part of a fraction, which stays small; 1 stays 1.
    fn of_fraction_part(variable: &GraphVariable) -> Self {
        if variable.value <= Rational::ONE {
            return Self::only(variable.value);
        }
        Self::new(Rational::whole(2), Rational::whole(10), Rational::ONE)
    }

    fn of_whole(variable: &GraphVariable, value: i128) -> Self {
        if variable.is_percent() {
            return Self::of_percent(value);
        }
        let step = roundness(value);
        let (low, high) = match value {
            ..=2 => (2, 5),
            _ if variable.is_speed() => (value * 2 / 3, value * 5 / 4),
            3..=12 => (value / 2, value * 2 - value / 3),
            _ => (value / 2, value * 2),
        };
        let high = high.min(upper_bound(variable, value));
        let high = if variable.in_words { high.min(99) } else { high };
        let low = (low.max(2) + step - 1) / step * step;
        Self::new(Rational::whole(low), Rational::whole(high), Rational::whole(step))
    }

    fn of_percent(value: i128) -> Self {
        let step = if value % 10 == 0 {
            10
        } else if value % 5 == 0 {
            5
        } else {
            1
        };
        let (low, high) = match value {
            100 => return Self::only(Rational::whole(100)),
            ..100 => ((value / 3).max(2), (value * 3).min(95)),
            _ => (100 + step, value * 2),
        };
        let low = (low + step - 1) / step * step;
        Self::new(Rational::whole(low), Rational::whole(high), Rational::whole(step))
    }

    /// The range of a decimal: `1.25` varies by quarters, `0.4` by tenths, `4.99` by ones.
    fn of_decimal(variable: &GraphVariable) -> Self {
        let value = variable.value;
        let decimals = variable.decimals.max(value.decimals().unwrap_or(0));
        let unit = Rational::new(1, 10i128.pow(decimals)).unwrap_or(Rational::ONE);
        let cents = value.div(unit).and_then(Rational::as_whole).unwrap_or(1);
        let per_one = 10i128.pow(decimals);
        let step = match cents {
            _ if cents % per_one == 0 && cents >= 2 * per_one => per_one,
            _ if cents % per_one == per_one - 1 && cents > per_one => per_one,
            _ if decimals == 2 && cents % 25 == 0 => 25,
            _ if decimals >= 2 && cents % 10 == 0 => 10,
            _ if decimals >= 1 && cents % 5 == 0 => 5,
            _ => 1,
        };
        let rest = cents % step;
        let half = cents / 2;
        let low = rest + ((half - rest).max(0) + step - 1) / step * step;
        let low = if low == 0 { step } else { low };
        let high = cents * 2;
        let scaled = |count: i128| unit.mul(Rational::whole(count)).unwrap_or(value);
        Self::new(scaled(low), scaled(high), scaled(step))
    }
}

/// The largest round number that divides the value and leaves a sufficient range.
fn roundness(value: i128) -> i128 {
    const STEPS: [i128; 12] = [100_000, 50_000, 10_000, 5000, 1000, 500, 100, 50, 10, 5, 2, 1];
    let fits = |step: &&i128| value % **step == 0 && value / **step >= 4 && **step != 2;
    STEPS.iter().find(fits).copied().unwrap_or(1)
}

/// Upper bound of a number of hours, days or months.
fn upper_bound(variable: &GraphVariable, value: i128) -> i128 {
    const LIMITS: &[(&[&str], i128)] = &[
        (&["hour", "hr"], 12),
        (&["hour", "hr"], 24),
        (&["minute", "min", "second"], 60),
        (&["day"], 7),
        (&["day"], 30),
        (&["week"], 4),
        (&["week"], 52),
        (&["month"], 12),
        (&["year"], 95),
        (&["point"], 100),
        (&["degree"], 180),
    ];
    let of_unit = LIMITS.iter().filter(|(nouns, limit)| value <= *limit && variable.counts(nouns));
    of_unit.map(|(_, limit)| *limit).min().unwrap_or(i128::MAX)
}
