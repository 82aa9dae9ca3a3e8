//! Flags of `annotate`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use latent_tts::training::Preset;
use latent_tts::{Family, FieldNames, SamplingOptions};

use super::{MachineArgs, OutputArgs, StoredDtypeKind, TooLongKind, values};

/// The kind of label computed for each thought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LabelsKind {
    /// The fraction of its rollouts with a correct answer (see --rollouts)
    Rollouts,
    /// Whether the answer of its trajectory is correct; uses no rollouts
    Final,
}

/// Flags of `annotate`.
#[derive(Debug, Args)]
pub struct AnnotateArgs {
    /// The reasoner: a checkpoint directory, a Hugging Face Hub id, or `embedded` [default:
    /// embedded]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub model: Option<String>,

    /// The base model, if the reasoner is an adapter [default: the model that the adapter records]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub base: Option<String>,

    /// The family of the reasoner [default: detected from the checkpoint]
    #[arg(long, value_name = "FAMILY", value_parser = values::family(), help_heading = "Model")]
    pub method: Option<Family>,

    /// The questions: a file or a split of the embedded corpus, as for eval [default: the first
    /// 1024 of embedded:train]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<String>,

    /// Use only the first COUNT questions
    #[arg(long, value_name = "COUNT", help_heading = "Data")]
    pub limit: Option<NonZeroUsize>,

    #[command(flatten)]
    pub fields: FieldNames,

    /// How to handle questions that exceed the model's context [default: stop]
    #[arg(long, value_enum, help_heading = "Data")]
    pub too_long: Option<TooLongKind>,

    #[command(flatten)]
    pub sampling: SamplingOptions,

    /// Use published settings as defaults: `paper` uses 8 trajectories and 128 rollouts per
    /// thought. Other flags override it
    #[arg(long, value_parser = super::preset::preset_parser(Preset::ANNOTATE), help_heading = "Labels")]
    pub preset: Option<String>,

    /// The kind of label computed for each thought [default: rollouts]
    #[arg(long, value_enum, help_heading = "Labels")]
    pub labels: Option<LabelsKind>,

    /// Number of rollouts per thought; the paper uses 128 (--preset paper) [default: 4]
    #[arg(long, short = 'm', value_name = "M", help_heading = "Labels")]
    pub rollouts: Option<NonZeroU32>,

    #[command(flatten)]
    pub machine: MachineArgs,

    /// Compute only one part of the shards, e.g. 2/8 on the second of eight machines; combine the
    /// files of all parts in one directory afterwards
    #[arg(long, value_name = "PART/PARTS", value_parser = values::part, help_heading = "Machine")]
    pub shard: Option<(usize, usize)>,

    /// The output directory [default: annotations/MODEL-DATA-DIGEST, where the digest covers the
    /// settings]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,

    /// Number of questions per shard; a shard is written when all its questions are done [default:
    /// 1024]
    #[arg(long, value_name = "COUNT", help_heading = "Output")]
    pub per_shard: Option<NonZeroU32>,

    /// The data type of the stored thoughts [default: f32]
    #[arg(long, value_enum, help_heading = "Output")]
    pub thoughts_dtype: Option<StoredDtypeKind>,

    /// Continue existing annotations in the directory, or start new ones if there are none
    #[arg(long, help_heading = "Output")]
    pub resume: bool,

    /// Replace existing annotations in the directory
    #[arg(long, help_heading = "Output")]
    pub overwrite: bool,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Read flags from a TOML file; the command line and the environment take precedence
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pub config: Option<PathBuf>,
}
