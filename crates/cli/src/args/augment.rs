//! Arguments of `augment`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use latent_tts::FieldNames;

use super::OutputArgs;

/// Flags of `augment`.
#[derive(Debug, Args)]
pub struct AugmentArgs {
    /// Problems with annotated steps: GSM8K's JSON lines, the paper's JSON, or lines
    /// `question||<<48/2=24>> #### 24`; or templates of stories (`.stories`)
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,

    #[command(flatten)]
    pub fields: FieldNames,

    /// Variants of each problem
    #[arg(long, value_name = "COUNT", default_value = "50")]
    pub count: NonZeroUsize,

    /// Variants in all, evenly over the problems, in place of --count
    #[arg(long, value_name = "COUNT", conflicts_with = "count")]
    pub total: Option<NonZeroUsize>,

    /// The seed; another one draws other numbers and names
    #[arg(long, default_value = "0")]
    pub seed: u64,

    /// Also write the problems themselves, as variant 0; even those that are refused, unless they
    /// overlap with --without
    #[arg(long)]
    pub keep_original: bool,

    /// Drop whatever shares nine words in a row with a question of these files, such as test sets
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub without: Vec<PathBuf>,

    /// The file to write, replaced if it exists [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,

    #[command(flatten)]
    pub output: OutputArgs,
}
