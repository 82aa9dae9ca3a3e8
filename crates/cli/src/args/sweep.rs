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

    /// The questions: a file or a part of the embedded corpus, as for eval [default: the first 200
    /// of embedded:test]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<String>,

    /// Take only the first questions
    #[arg(long, value_name = "COUNT", help_heading = "Data")]
    pub limit: Option<NonZeroUsize>,

    #[command(flatten)]
    pub fields: FieldNames,

    /// Whose strength is swept [default: the samplers whose strengths are given, else dropout]
    #[arg(long, value_enum, help_heading = "Sampling")]
    pub sampler: Option<SweepSamplerKind>,

    /// Dropout: values 0.1,0.2,0.3, a range 0.05:0.5:0.05, or an interval 0:0.9 to search for the
    /// largest --metric [default: 0:0.9, unless --noise-std or --gumbel-tau is given]
    #[arg(
        long,
        alias = "p",
        value_name = "VALUES",
        value_parser = SweepGrid::shares,
        help_heading = "Sampling"
    )]
    pub dropout_p: Option<SweepGrid>,

    /// Noise: values, a range, or an interval to search, as for --dropout-p
    /// [default with --sampler noise: 0.01:1.5, the paper's]
    #[arg(
        long,
        alias = "sigma",
        value_name = "VALUES",
        value_parser = SweepGrid::deviations,
        help_heading = "Sampling"
    )]
    pub noise_std: Option<SweepGrid>,

    /// Gumbel: temperatures of mixtures, as values, a range, or an interval to search, as for
    /// --dropout-p [default with --sampler gumbel: 0.1:3]
    #[arg(
        long,
        alias = "tau",
        value_name = "VALUES",
        value_parser = SweepGrid::temperatures,
        help_heading = "Sampling"
    )]
    pub gumbel_tau: Option<SweepGrid>,

    /// Dropout: the block outputs it is applied to; each of several is swept [default: the
    /// family's]
    #[arg(
        long,
        value_enum,
        value_name = "SITES,...",
        value_delimiter = ',',
        help_heading = "Sampling"
    )]
    pub sites: Option<Vec<DropoutSites>>,

    /// Dropout: the forward passes it is applied in; each of several is swept [default: thoughts]
    #[arg(
        long,
        value_enum,
        value_name = "SCOPE,...",
        value_delimiter = ',',
        help_heading = "Sampling"
    )]
    pub scope: Option<Vec<DropoutScope>>,

    /// Dropout: how long a trajectory keeps its masks; each of several is swept [default: step]
    #[arg(
        long,
        value_enum,
        value_name = "MASK,...",
        value_delimiter = ',',
        help_heading = "Sampling"
    )]
    pub mask: Option<Vec<MaskLifetime>>,

    /// What is maximized: by a search, and by the value called best; weighted and best_of use the
    /// reward model
    #[arg(long, value_enum, default_value = "coverage", help_heading = "Sampling")]
    pub metric: SweepMetric,

    /// A search ends when its interval is this wide [default: a fiftieth of the whole interval]
    #[arg(long, value_name = "WIDTH", value_parser = parse_width, help_heading = "Sampling")]
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
    #[arg(long, visible_alias = "thoughts", value_name = "T", help_heading = "Sampling")]
    pub latent_length: Option<LatentLength>,

    /// Maximum number of answer tokens [default: the family's]
    #[arg(long, value_name = "COUNT", help_heading = "Sampling")]
    pub max_new_tokens: Option<NonZeroU32>,

    /// The random seed, the same for every value [default: 0]
    #[arg(long, help_heading = "Sampling")]
    pub seed: Option<u64>,

    #[command(flatten)]
    pub run: RunArgs,

    /// The directory of the sweep: one run directory per value, sweep.json and the report [default:
    /// runs/sweep-MODEL-DATA-DIGEST, the digest of the settings]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Read flags that are not given otherwise from a TOML file
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pub config: Option<PathBuf>,
}

/// The samplers that have a strength.
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
            Self::Majority => MetricName::MAJORITY,
            Self::Weighted => MetricName::WEIGHTED,
            Self::BestOf => MetricName::BEST_OF,
        }
    }
}
