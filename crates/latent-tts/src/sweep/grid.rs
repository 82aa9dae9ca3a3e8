//! The strengths that a sweep evaluates.

use std::fmt;

/// The strengths that a sweep evaluates.
#[derive(Debug, Clone, PartialEq)]
pub enum SweepGrid {
    /// These values, in this order.
    Values(Vec<f64>),
    /// A search for the best value between the two.
    Interval(f64, f64),
}

/// The format of command-line flags: comma-separated values, or an interval with a colon.
impl fmt::Display for SweepGrid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Values(values) => {
                let values: Vec<String> = values.iter().map(ToString::to_string).collect();
                f.write_str(&values.join(","))
            }
            Self::Interval(low, high) => write!(f, "{low}:{high}"),
        }
    }
}

/// Maximum number of values in a range; more are most likely a mistyped step.
const MAX_GRID_VALUES: f64 = 1000.0;
/// Scale for rounding values to five decimals, which keeps directory names and tables short.
const ROUNDING_SCALE: f64 = 1e5;

/// `x` rounded to the precision of a sweep's values.
pub fn rounded(x: f64) -> f64 {
    (x * ROUNDING_SCALE).round() / ROUNDING_SCALE
}

impl SweepGrid {
    /// Parses dropout probabilities: `0.1,0.2`, a range `0.05:0.5:0.05`, or an interval `0:0.9`.
    pub fn shares(text: &str) -> Result<Self, String> {
        parse_grid(text, |x| (0.0..1.0).contains(&x), "must be at least 0 and below 1")
    }

    /// Parses standard deviations of noise in the same format.
    pub fn deviations(text: &str) -> Result<Self, String> {
        parse_grid(text, |x| x.is_finite() && x >= 0.0, "must be finite and at least 0")
    }

    /// Parses temperatures of mixtures in the same format.
    pub fn temperatures(text: &str) -> Result<Self, String> {
        parse_grid(text, |x| x.is_finite() && rounded(x) > 0.0, "must be finite and above 0")
    }
}

/// Parses a width above 0.
pub fn parse_width(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number.is_finite() && number > 0.0 {
        Ok(number)
    } else {
        Err("must be larger than 0".to_owned())
    }
}

fn parse_grid(text: &str, allowed: fn(f64) -> bool, rule: &str) -> Result<SweepGrid, String> {
    let number = |text: &str| {
        let number: f64 =
            text.trim().parse().map_err(|_| format!("{:?} is not a number", text.trim()))?;
        if allowed(number) { Ok(rounded(number)) } else { Err(format!("{number} {rule}")) }
    };
    let mut values = Vec::new();
    for item in text.split(',') {
        match item.split(':').collect::<Vec<_>>()[..] {
            [one] => values.push(number(one)?),
            [low, high] if !text.contains(',') => {
                let (low, high) = (number(low)?, number(high)?);
                return if low < high {
                    Ok(SweepGrid::Interval(low, high))
                } else {
                    Err(format!("interval {item} is empty"))
                };
            }
            [low, high, step] => {
                values.extend(expand_range(number(low)?, number(high)?, parse_width(step)?)?)
            }
            _ => {
                return Err(format!(
                    "invalid strength {item:?}: expected a value, a range such as 0.1:0.5:0.1, or \
                     a single interval such as 0:0.9"
                ));
            }
        }
    }
    values.dedup();
    Ok(SweepGrid::Values(values))
}

fn expand_range(low: f64, high: f64, step: f64) -> Result<Vec<f64>, String> {
    let count = ((high - low) / step + 1e-9).floor();
    if !(0.0..MAX_GRID_VALUES).contains(&count) {
        return Err(format!("{low}:{high}:{step} must have 1 to {MAX_GRID_VALUES} values"));
    }
    Ok((0..=count as usize).map(|i| rounded(low + i as f64 * step)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_ranges_and_intervals() {
        let values = |text| SweepGrid::shares(text).unwrap();
        assert_eq!(values("0.1, 0.3"), SweepGrid::Values(vec![0.1, 0.3]));
        assert_eq!(values("0.1:0.3:0.1"), SweepGrid::Values(vec![0.1, 0.2, 0.3]));
        assert_eq!(values("0.05,0.1:0.2:0.05"), SweepGrid::Values(vec![0.05, 0.1, 0.15, 0.2]));
        assert_eq!(values("0:0.9"), SweepGrid::Interval(0.0, 0.9));
        assert_eq!(SweepGrid::deviations("0.01:1.5").unwrap(), SweepGrid::Interval(0.01, 1.5));
    }

    #[test]
    fn malformed_grids_are_rejected() {
        for text in [
            "",
            "x",
            "1",
            "-0.1",
            "0.1:",
            "0.5:0.1",
            "0.1:0.5:0",
            "0:0.9:1e-9",
            "0.1,0.2:0.4",
            "1:2:3:4",
            "nan",
            "0.5:0.1:0.1",
        ] {
            assert!(SweepGrid::shares(text).is_err(), "{text}");
        }
        assert!(SweepGrid::deviations("inf").is_err() && SweepGrid::deviations("3").is_ok());
        assert!(
            ["0", "1e-9", "-1", "nan"].iter().all(|text| SweepGrid::temperatures(text).is_err())
        );
        assert!(["0", "-1", "nan", "x"].iter().all(|text| parse_width(text).is_err()));
    }
}
