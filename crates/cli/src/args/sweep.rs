//! Arguments of `sweep`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use latent_tts::record::MetricName;
use latent_tts::sweep::{SweepGrid, parse_width};
use latent_tts::{DropoutScope, DropoutSites, FieldNames, LatentLength, MaskLifetime};

use super::{ModelArgs, OutputArgs, RunArgs};

/// Flags of `sweep`.
#[derive(Debug, Args)]
pub struct SweepArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// The questions: a file or a split of the embedded corpus, as for eval [default: the first 200
    /// of embedded:test]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<String>,

    /// Use only the first COUNT questions
    #[arg(long, value_name = "COUNT", help_heading = "Data")]
    pub limit: Option<NonZeroUsize>,

    #[command(flatten)]
    pub fields: FieldNames,

    /// The sampler whose strength is swept [default: the samplers of the given strengths, otherwise
    /// dropout]
    #[arg(long, value_enum, help_heading = "Sampling")]
    pub sampler: Option<SweepSamplerKind>,

    /// Dropout: values 0.1,0.2,0.3, a range 0.05:0.5:0.05, or an interval 0:0.9 in which to search
    /// for the highest --metric [default: 0:0.9, unless --noise-std or --gumbel-tau is given]
    #[arg(
        long,
        alias = "p",
        value_name = "VALUES",
        value_parser = SweepGrid::shares,
        help_heading = "Sampling"
    )]
    pub dropout_p: Option<SweepGrid>,

    /// Noise: values, a range, or an interval to search, as for --dropout-p [default with --sampler
    /// noise: 0.01:1.5, as in the paper]
    #[arg(
        long,
        alias = "sigma",
        value_name = "VALUES",
        value_parser = SweepGrid::deviations,
        help_heading = "Sampling"
    )]
    pub noise_std: Option<SweepGrid>,

    /// Gumbel: temperatures of the mixtures, as values, a range, or an interval to search, as for
    /// --dropout-p [default with --sampler gumbel: 0.1:3]
    #[arg(
        long,
        alias = "tau",
        value_name = "VALUES",
        value_parser = SweepGrid::temperatures,
        help_heading = "Sampling"
    )]
    pub gumbel_tau: Option<SweepGrid>,

    /// Dropout: block outputs to apply it to; each of several values is swept [default: the
    /// family's]
    #[arg(
        long,
        value_enum,
        value_name = "SITES,...",
        value_delimiter = ',',
        help_heading = "Sampling"
    )]
    pub sites: Option<Vec<DropoutSites>>,

    /// Dropout: forward passes to apply it in; each of several values is swept [default: thoughts]
    #[arg(
        long,
        value_enum,
        value_name = "SCOPE,...",
        value_delimiter = ',',
        help_heading = "Sampling"
    )]
    pub scope: Option<Vec<DropoutScope>>,

    /// Dropout: how long a trajectory keeps its masks; each of several values is swept [default:
    /// step]
    #[arg(
        long,
        value_enum,
        value_name = "MASK,...",
        value_delimiter = ',',
        help_heading = "Sampling"
    )]
    pub mask: Option<Vec<MaskLifetime>>,

    /// The metric that a search maximizes and that selects the best value; weighted and best_of use
    /// the reward model
    #[arg(long, value_enum, default_value = "coverage", help_heading = "Sampling")]
    pub metric: SweepMetric,

    /// Width of the interval at which a search ends [default: 1/50 of the initial interval]
    #[arg(long, value_name = "WIDTH", value_parser = parse_width, help_heading = "Sampling")]
    pub tolerance: Option<f64>,

    /// Maximum number of evaluations of a search [default: the number required by the tolerance,
    /// printed at the start]
    #[arg(long, value_name = "COUNT", help_heading = "Sampling")]
    pub evaluations: Option<NonZeroUsize>,

    /// Number of trajectories per question [default: 64]
    #[arg(long, short = 'n', value_name = "N", help_heading = "Sampling")]
    pub samples: Option<NonZeroU32>,

    /// Numbers of trajectories in the table; values are compared at the largest [default: 1, 4, 16,
    /// ... and --samples]
    #[arg(long, value_name = "K,...", value_delimiter = ',', help_heading = "Output")]
    pub k: Option<Vec<NonZeroUsize>>,

    /// Number of thoughts per trajectory, as for eval [default: the family's]
    #[arg(long, visible_alias = "thoughts", value_name = "T", help_heading = "Sampling")]
    pub latent_length: Option<LatentLength>,

    /// Maximum number of answer tokens [default: the family's]
    #[arg(long, value_name = "COUNT", help_heading = "Sampling")]
    pub max_new_tokens: Option<NonZeroU32>,

    /// Random seed, the same for every value [default: 0]
    #[arg(long, help_heading = "Sampling")]
    pub seed: Option<u64>,

    #[command(flatten)]
    pub run: RunArgs,

    /// The directory of the sweep, with one run directory per value, sweep.json and the report
    /// [default: runs/sweep-MODEL-DATA-DIGEST, where the digest covers the settings]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Read flags from a TOML file; the command line and the environment take precedence
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pub config: Option<PathBuf>,
}

/// The samplers with a strength parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SweepSamplerKind {
    /// Monte Carlo dropout, by its probability (see --dropout-p, --sites, --scope, --mask)
    Dropout,
    /// Gaussian noise on every thought, by its standard deviation (see --noise-std)
    Noise,
    /// Gumbel noise on mixtures of token embeddings, by their temperature (see --gumbel-tau)
    Gumbel,
}

/// What a sweep maximizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum SweepMetric {
    /// At least one trajectory is correct
    Coverage,
    /// The majority answer is correct
    Majority,
    /// The answer of the reward-weighted vote is correct
    Weighted,
    /// The answer of the trajectory with the highest reward is correct
    BestOf,
}

impl SweepMetric {
    /// The name in results.json.
    pub fn name(self) -> MetricName {
        match self {
            Self::Coverage => MetricName::Coverage,
            Self::Majority => MetricName::MAJORITY,
            Self::Weighted => MetricName::WEIGHTED,
            Self::BestOf => MetricName::BEST_OF,
        }
    }
}
