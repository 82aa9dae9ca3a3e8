//! Axis ranges and ticks.

use crate::figures::AxisScale;

/// The range of an axis, in transformed (linear or logarithmic) coordinates.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisRange {
    scale: AxisScale,
    low: f64,
    high: f64,
}

/// The approximate number of ticks of a linear axis.
const TARGET_TICKS: f64 = 5.0;
/// Labels with more decimals than this use scientific notation, because they would not fit beside
/// the axis.
const MAX_TICK_DIGITS: usize = 3;
/// The smallest range of a percent axis, so that insignificant differences look small.
const MIN_PERCENT_SPAN: f64 = 0.05;
/// The smallest range of a linear axis, as a fraction of its largest absolute value. Without it, a
/// single value or nearly equal values would get tick labels with many digits.
const MIN_RELATIVE_SPAN: f64 = 0.05;
/// The smallest range of a logarithmic axis, in powers of its base; wide enough for one tick.
const MIN_LOG2_SPAN: f64 = 1.0;
const MIN_LOG10_SPAN: f64 = 0.4;

impl AxisRange {
    /// A range that contains all values, with padding; 0 to 1 if there are none.
    pub fn enclosing(scale: AxisScale, values: impl Iterator<Item = f64>) -> Self {
        let mut low = f64::INFINITY;
        let mut high = f64::NEG_INFINITY;
        values
            .map(|value| transform(scale, value))
            .filter(|value| value.is_finite())
            .for_each(|v| (low, high) = (low.min(v), high.max(v)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let min_span = min_span(scale, low, high);
        let span = high - low;
        let padding = 0.06 * span.max(min_span) + (min_span - span).max(0.0) / 2.0;
        (low, high) = (low - padding, high + padding);
        if scale == AxisScale::Percent {
            // Values cannot be outside 0 to 1. Nothing is clipped, so markers at the bounds are
            // drawn completely.
            low = low.max(0.0);
            high = high.min(1.0);
        }
        let is_linear = matches!(scale, AxisScale::Linear | AxisScale::Count);
        if is_linear && low < 0.0 && low + padding >= 0.0 {
            low = 0.0;
        }
        Self { scale, low, high }
    }

    /// The position of a value in the range: 0 at the lower end, 1 at the upper.
    pub fn fraction(&self, value: f64) -> f32 {
        ((transform(self.scale, value) - self.low) / (self.high - self.low)) as f32
    }

    /// The ticks: values and labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        match self.scale {
            AxisScale::Unlabelled => Vec::new(),
            AxisScale::Log2 => (self.low.ceil() as i32..=self.high.floor() as i32)
                .map(|power| (2f64.powi(power), format!("{}", 2f64.powi(power))))
                .collect(),
            AxisScale::Log10 => self.log10_ticks(),
            AxisScale::Linear => self.linear_ticks(self.low, self.high, 1.0),
            AxisScale::Count => {
                let step = nice_step((self.high - self.low) / TARGET_TICKS).max(1.0);
                self.ticks_every(step, self.low, self.high, 1.0)
            }
            AxisScale::Percent => self.linear_ticks(self.low.max(0.0), self.high.min(1.0), 100.0),
        }
    }

    fn linear_ticks(&self, low: f64, high: f64, unit: f64) -> Vec<(f64, String)> {
        self.ticks_every(nice_step((high - low) * unit / TARGET_TICKS), low, high, unit)
    }

    fn ticks_every(&self, step: f64, low: f64, high: f64, unit: f64) -> Vec<(f64, String)> {
        let digits = (-step.log10().floor()).clamp(0.0, 12.0) as usize;
        let first = (low * unit / step).ceil() as i64;
        let last = (high * unit / step + 1e-9).floor() as i64;
        // At most 21 ticks, in case rounding makes the step degenerate.
        (first..=last.min(first + 20))
            .map(|i| {
                let label = match digits > MAX_TICK_DIGITS {
                    true => format_small(i as f64 * step),
                    false => format!("{:.digits$}", i as f64 * step),
                };
                (i as f64 * step / unit, label)
            })
            .collect()
    }

    fn log10_ticks(&self) -> Vec<(f64, String)> {
        let digits: &[f64] = match self.high - self.low {
            width if width < 0.7 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
            width if width < 3.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let powers = self.low.floor() as i32..=self.high.ceil() as i32;
        let values =
            powers.flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
        let inside = values.filter(|value| (self.low..=self.high).contains(&value.log10()));
        inside.map(|value| (value, format_tick(value))).collect()
    }
}

/// The smallest range of an axis with values from `low` to `high`, in transformed coordinates.
fn min_span(scale: AxisScale, low: f64, high: f64) -> f64 {
    match scale {
        AxisScale::Percent => MIN_PERCENT_SPAN,
        AxisScale::Log2 => MIN_LOG2_SPAN,
        AxisScale::Log10 => MIN_LOG10_SPAN,
        AxisScale::Count => (low.abs().max(high.abs()) * MIN_RELATIVE_SPAN).max(1.0),
        AxisScale::Linear | AxisScale::Unlabelled => {
            (low.abs().max(high.abs()) * MIN_RELATIVE_SPAN).max(1e-9)
        }
    }
}

fn transform(scale: AxisScale, value: f64) -> f64 {
    match scale {
        AxisScale::Linear | AxisScale::Count | AxisScale::Percent | AxisScale::Unlabelled => value,
        AxisScale::Log2 => value.log2(),
        AxisScale::Log10 => value.log10(),
    }
}

/// Rounds a step to 1, 2 or 5 times a power of ten.
fn nice_step(step: f64) -> f64 {
    let power = 10f64.powf(step.max(1e-12).log10().floor());
    let digit = step.max(1e-12) / power;
    power
        * if digit < 1.5 {
            1.0
        } else if digit < 3.5 {
            2.0
        } else if digit < 7.5 {
            5.0
        } else {
            10.0
        }
}

/// A small number in scientific notation without trailing zeros, e.g. `8e-4`.
fn format_small(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let text = format!("{value:.3e}");
    match text.split_once('e') {
        Some((mantissa, power)) => {
            format!("{}e{power}", mantissa.trim_end_matches('0').trim_end_matches('.'))
        }
        None => text,
    }
}

/// Formats numbers from 0.001 to 1000 in full (20 m could be read as minutes), others with an SI
/// prefix.
fn format_tick(value: f64) -> String {
    if (1e-3..1e3).contains(&value) {
        format!("{}", (value * 1e6).round() / 1e6)
    } else {
        format_si(value)
    }
}

/// A number with an SI prefix and one to three digits before the point.
fn format_si(value: f64) -> String {
    const PREFIXES: [&str; 10] = ["n", "µ", "m", "", "k", "M", "G", "T", "P", "E"];
    if value == 0.0 {
        return "0".into();
    }
    let thousands = ((value.abs().log10() + 1e-9) / 3.0).floor().clamp(-3.0, 6.0);
    let digits = format!("{:.3}", value / 1000f64.powf(thousands));
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    let prefix = PREFIXES[(thousands + 3.0) as usize];
    if prefix.is_empty() { digits.into() } else { format!("{digits} {prefix}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: AxisScale, values: &[f64]) -> Vec<String> {
        AxisRange::enclosing(scale, values.iter().copied())
            .ticks()
            .into_iter()
            .map(|(_, label)| label)
            .collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(AxisScale::Log2, &[1.0, 64.0]), ["1", "2", "4", "8", "16", "32", "64"]);
        assert_eq!(labels(AxisScale::Percent, &[0.3, 0.72]), ["30", "40", "50", "60", "70"]);
        assert_eq!(labels(AxisScale::Percent, &[0.0]), ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5"]);
        assert_eq!(labels(AxisScale::Percent, &[0.0, 1.0]), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(
            labels(AxisScale::Linear, &[0.02, 0.11]),
            ["0.02", "0.04", "0.06", "0.08", "0.10"]
        );
        assert_eq!(
            labels(AxisScale::Log10, &[2e9, 3e11]),
            ["2 G", "5 G", "10 G", "20 G", "50 G", "100 G", "200 G"]
        );
        assert_eq!(labels(AxisScale::Log10, &[2.0, 3e4]), ["10", "100", "1 k", "10 k"]);
        assert_eq!(labels(AxisScale::Log10, &[0.01, 0.05]), ["0.01", "0.02", "0.05"]);
        assert!(labels(AxisScale::Unlabelled, &[0.0, 1.0]).is_empty());
    }

    #[test]
    fn a_single_value_or_a_small_range_has_short_labels() {
        assert_eq!(labels(AxisScale::Count, &[500.0]), ["490", "495", "500", "505", "510"]);
        assert_eq!(labels(AxisScale::Count, &[1.0, 2.0]), ["1", "2"]);
        assert_eq!(labels(AxisScale::Count, &[0.0, 2000.0]), ["0", "500", "1000", "1500", "2000"]);
        assert_eq!(
            labels(AxisScale::Linear, &[0.73010, 0.73012]),
            ["0.71", "0.72", "0.73", "0.74", "0.75"]
        );
        assert_eq!(labels(AxisScale::Log2, &[12.0]), ["16"]);
        assert_eq!(labels(AxisScale::Log10, &[2.30e9, 2.31e9]), ["1.5 G", "2 G", "3 G"]);
        assert_eq!(
            labels(AxisScale::Linear, &[0.0, 9.1e-4]),
            ["0", "2e-4", "4e-4", "6e-4", "8e-4"]
        );
        for value in [1e-12, 0.0, 3.0, 7.77e7] {
            let longest = labels(AxisScale::Linear, &[value]).iter().map(String::len).max();
            assert!(longest.unwrap_or_default() <= 8, "{value}: {longest:?}");
        }
    }

    #[test]
    fn values_lie_inside() {
        for scale in [
            AxisScale::Linear,
            AxisScale::Count,
            AxisScale::Percent,
            AxisScale::Log2,
            AxisScale::Log10,
            AxisScale::Unlabelled,
        ] {
            for values in [&[0.5, 0.7][..], &[0.3, 0.3], &[1.0]] {
                let range = AxisRange::enclosing(scale, values.iter().copied());
                for &value in values {
                    assert!(
                        (0.0..=1.0).contains(&range.fraction(value)),
                        "{scale:?} {values:?} {range:?}"
                    );
                }
                assert!(range.ticks().len() < 30);
            }
            assert!(
                AxisRange::enclosing(scale, [f64::NAN].into_iter()).fraction(0.5).is_finite()
                    || scale == AxisScale::Log10
            );
        }
    }

    #[test]
    fn numbers_have_prefixes() {
        assert_eq!(
            [0.0, 1.0, 1500.0, 2e9, 0.012, 1e-4].map(format_si),
            ["0", "1", "1.5 k", "2 G", "12 m", "100 µ"]
        );
    }
}
