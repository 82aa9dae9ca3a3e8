//! Arguments of `augment`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use latent_tts::FieldNames;

use super::OutputArgs;

/// Flags of `augment`.
#[derive(Debug, Args)]
pub struct AugmentArgs {
    /// Problems with annotated steps: GSM8K JSON lines, the paper's JSON, or lines
    /// `question||<<48/2=24>> #### 24`; or story templates (`.stories`)
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    #[command(flatten)]
    pub fields: FieldNames,

    /// Number of variants per problem
    #[arg(long, value_name = "COUNT", default_value = "50")]
    pub count: NonZeroUsize,

    /// Total number of variants, distributed evenly over the problems, instead of --count
    #[arg(long, value_name = "COUNT", conflicts_with = "count")]
    pub total: Option<NonZeroUsize>,

    /// Random seed of numbers and names
    #[arg(long, default_value = "0")]
    pub seed: u64,

    /// Also write the original problems as variant 0, including rejected ones, unless they overlap
    /// with --decontaminate
    #[arg(long)]
    pub keep_original: bool,

    /// Drop problems and variants that share nine consecutive words with a question of these files,
    /// such as test sets
    #[arg(long, alias = "without", value_name = "FILE", value_delimiter = ',')]
    pub decontaminate: Vec<PathBuf>,

    /// The file to write, replaced if it exists [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    #[command(flatten)]
    pub output: OutputArgs,
}
