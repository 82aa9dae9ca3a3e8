//! Arguments of `sweep`, and the grids of strengths that they describe.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use engine::LatentLength;
use record::MetricName;

use super::{MaskKind, ModelArgs, OutputArgs, RunArgs, ScopeKind, SitesKind, values};

/// Flags of `sweep`.
#[derive(Debug, Args)]
pub struct SweepArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// The questions: a file or a part of the embedded corpus, as for eval [default: the first 200
    /// of embedded:test]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<String>,

    /// Take only the first questions
    #[arg(long, value_name = "COUNT", help_heading = "Data")]
    pub limit: Option<NonZeroUsize>,

    /// Dropout: values 0.1,0.2,0.3, a range 0.05:0.5:0.05, or an interval 0:0.9 to search for the
    /// largest --metric [default: 0:0.9, unless --sigma or --tau is given]
    #[arg(long, value_name = "VALUES", value_parser = shares, help_heading = "Sampling")]
    pub p: Option<SweepGrid>,

    /// Noise: values, a range, or an interval to search, as for --p; the paper searches 0.01:1.5
    #[arg(long, value_name = "VALUES", value_parser = deviations, help_heading = "Sampling")]
    pub sigma: Option<SweepGrid>,

    /// Gumbel: temperatures of mixtures, as values, a range, or an interval to search, as for --p
    #[arg(long, value_name = "VALUES", value_parser = temperatures, help_heading = "Sampling")]
    pub tau: Option<SweepGrid>,

    /// Dropout: the block outputs it is applied to; each of several is swept [default: the
    /// family's]
    #[arg(
        long,
        value_enum,
        value_name = "SITES,...",
        value_delimiter = ',',
        help_heading = "Sampling"
    )]
    pub sites: Option<Vec<SitesKind>>,

    /// Dropout: the forward passes it is applied in; each of several is swept [default: thoughts]
    #[arg(
        long,
        value_enum,
        value_name = "SCOPE,...",
        value_delimiter = ',',
        help_heading = "Sampling"
    )]
    pub scope: Option<Vec<ScopeKind>>,

    /// Dropout: how long a trajectory keeps its masks; each of several is swept [default: step]
    #[arg(
        long,
        value_enum,
        value_name = "MASK,...",
        value_delimiter = ',',
        help_heading = "Sampling"
    )]
    pub mask: Option<Vec<MaskKind>>,

    /// What is maximized: by a search, and by the value called best; weighted and best_of use the reward model
    #[arg(long, value_enum, default_value = "coverage", help_heading = "Sampling")]
    pub metric: SweepMetric,

    /// A search ends when its interval is this wide [default: a fiftieth of the whole interval]
    #[arg(long, value_name = "WIDTH", value_parser = width, help_heading = "Sampling")]
    pub tolerance: Option<f64>,

    /// Maximum number of evaluations of a search [default: as many as the tolerance needs, which
    /// is printed at the start]
    #[arg(long, value_name = "COUNT", help_heading = "Sampling")]
    pub evaluations: Option<NonZeroUsize>,

    /// Trajectories of each question [default: 64]
    #[arg(long, short = 'n', value_name = "N", help_heading = "Sampling")]
    pub samples: Option<NonZeroU32>,

    /// Numbers of trajectories in the table; values are compared at the largest [default: 1, 4,
    /// 16, ... and --samples]
    #[arg(long, value_name = "K,...", value_delimiter = ',', help_heading = "Output")]
    pub k: Option<Vec<NonZeroUsize>>,

    /// Thoughts of each trajectory, as for eval [default: the family's]
    #[arg(long, value_name = "T", value_parser = values::thoughts, help_heading = "Sampling")]
    pub thoughts: Option<LatentLength>,

    /// Maximum number of answer tokens [default: the family's]
    #[arg(long, value_name = "COUNT", help_heading = "Sampling")]
    pub max_new_tokens: Option<NonZeroU32>,

    /// The random seed, the same for every value [default: 0]
    #[arg(long, help_heading = "Sampling")]
    pub seed: Option<u64>,

    #[command(flatten)]
    pub run: RunArgs,

    /// The directory of the sweep: one run directory per value, sweep.json and the report [default:
    /// runs/sweep-MODEL-DATA]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Read flags that are not given otherwise from a TOML file
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pub config: Option<PathBuf>,
}

/// What a sweep maximizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum SweepMetric {
    /// At least one trajectory is right
    Coverage,
    /// The majority's answer is right
    Majority,
    /// The answer of the vote weighted by rewards is right
    Weighted,
    /// The answer of the trajectory with the highest reward is right
    BestOf,
}

impl SweepMetric {
    /// Its name in results.json.
    pub fn name(self) -> MetricName {
        match self {
            Self::Coverage => MetricName::Coverage,
            Self::Majority => MetricName::Majority,
            Self::Weighted => MetricName::Weighted,
            Self::BestOf => MetricName::BestOf,
        }
    }

    /// Whether it is measured with a reward model only.
    pub fn needs_rewards(self) -> bool {
        matches!(self, Self::Weighted | Self::BestOf)
    }
}

/// The strengths that a sweep evaluates.
#[derive(Debug, Clone, PartialEq)]
pub enum SweepGrid {
    /// These values, in this order.
    Values(Vec<f64>),
    /// A search for the best value between the two.
    Interval(f64, f64),
}

/// As a flag gives it: values with commas, an interval with a colon.
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

/// Largest number of values in a range; more are most likely a mistyped step.
const MAX_GRID_VALUES: f64 = 1000.0;
/// Values are rounded to five decimals, so that directory names and tables stay short.
const ROUNDING_SCALE: f64 = 1e5;

/// `x` rounded to the precision of a sweep's values.
pub fn rounded(x: f64) -> f64 {
    (x * ROUNDING_SCALE).round() / ROUNDING_SCALE
}

fn shares(text: &str) -> Result<SweepGrid, String> {
    parse_grid(text, |x| (0.0..1.0).contains(&x), "must be at least 0 and below 1")
}

fn deviations(text: &str) -> Result<SweepGrid, String> {
    parse_grid(text, |x| x.is_finite() && x >= 0.0, "must be finite and at least 0")
}

fn temperatures(text: &str) -> Result<SweepGrid, String> {
    parse_grid(text, |x| x.is_finite() && rounded(x) > 0.0, "must be finite and above 0")
}

fn width(text: &str) -> Result<f64, String> {
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
                    Err(format!("the interval {item} is empty"))
                };
            }
            [low, high, step] => {
                values.extend(expand_range(number(low)?, number(high)?, width(step)?)?)
            }
            _ => {
                return Err(format!(
                    "{item:?} is neither a value, nor a range 0.1:0.5:0.1, nor an interval 0:0.9 \
                     alone"
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
        return Err(format!("{low}:{high}:{step} is no range of 1 to {MAX_GRID_VALUES} values"));
    }
    Ok((0..=count as usize).map(|i| rounded(low + i as f64 * step)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_ranges_and_intervals() {
        let values = |text| shares(text).unwrap();
        assert_eq!(values("0.1, 0.3"), SweepGrid::Values(vec![0.1, 0.3]));
        assert_eq!(values("0.1:0.3:0.1"), SweepGrid::Values(vec![0.1, 0.2, 0.3]));
        assert_eq!(values("0.05,0.1:0.2:0.05"), SweepGrid::Values(vec![0.05, 0.1, 0.15, 0.2]));
        assert_eq!(values("0:0.9"), SweepGrid::Interval(0.0, 0.9));
        assert_eq!(deviations("0.01:1.5").unwrap(), SweepGrid::Interval(0.01, 1.5));
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
            assert!(shares(text).is_err(), "{text}");
        }
        assert!(deviations("inf").is_err() && deviations("3").is_ok());
        assert!(["0", "1e-9", "-1", "nan"].iter().all(|text| temperatures(text).is_err()));
        assert!(["0", "-1", "nan", "x"].iter().all(|text| width(text).is_err()));
    }
}
