//! Flags of `annotate`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use latent_tts::training::Preset;
use latent_tts::{Family, FieldNames, SamplingOptions};

use super::{MachineArgs, OutputArgs, StoredDtypeKind, TooLongKind, values};

/// The kind of label that each thought gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LabelsKind {
    /// The share of its rollouts whose answer is correct (see --rollouts)
    Rollouts,
    /// Whether its trajectory's answer is correct; there are no rollouts
    Final,
}

/// Flags of `annotate`.
#[derive(Debug, Args)]
pub struct AnnotateArgs {
    /// The reasoner: a checkpoint directory, an id of the Hugging Face Hub, or `embedded`
    /// [default: embedded]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub model: Option<String>,

    /// The model that the reasoner, an adapter, is added to [default: the one that it records]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub base: Option<String>,

    /// The reasoner's family [default: detected from the checkpoint]
    #[arg(long, value_name = "FAMILY", value_parser = values::family(), help_heading = "Model")]
    pub method: Option<Family>,

    /// The questions: a file or a part of the embedded corpus, as for eval [default: the first
    /// 1024 of embedded:train]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<String>,

    /// Take only the first questions
    #[arg(long, value_name = "COUNT", help_heading = "Data")]
    pub limit: Option<NonZeroUsize>,

    #[command(flatten)]
    pub fields: FieldNames,

    /// What becomes of questions that do not fit the model's positions [default: stop]
    #[arg(long, value_enum, help_heading = "Data")]
    pub too_long: Option<TooLongKind>,

    #[command(flatten)]
    pub sampling: SamplingOptions,

    /// Published settings in place of the defaults: `paper` is 8 trajectories and 128 rollouts from
    /// every thought. Other flags override it
    #[arg(long, value_parser = super::preset::preset_parser(Preset::ANNOTATE), help_heading = "Labels")]
    pub preset: Option<String>,

    /// The kind of label that each thought gets [default: rollouts]
    #[arg(long, value_enum, help_heading = "Labels")]
    pub labels: Option<LabelsKind>,

    /// Rollouts from every thought; the paper uses 128 (--preset paper) [default: 4]
    #[arg(long, short = 'm', value_name = "M", help_heading = "Labels")]
    pub rollouts: Option<NonZeroU32>,

    #[command(flatten)]
    pub machine: MachineArgs,

    /// Compute only one part of the shards, e.g. 2/8 on the second of eight machines; put all
    /// files into one directory afterwards
    #[arg(long, value_name = "PART/PARTS", value_parser = values::part, help_heading = "Machine")]
    pub shard: Option<(usize, usize)>,

    /// The directory of the labels [default: annotations/MODEL-DATA-DIGEST, named by model, data
    /// and settings]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,

    /// Questions of a shard, which is written when all are done [default: 1024]
    #[arg(long, value_name = "COUNT", help_heading = "Output")]
    pub per_shard: Option<NonZeroU32>,

    /// The data type of the thoughts on disk [default: f32]
    #[arg(long, value_enum, help_heading = "Output")]
    pub thoughts_dtype: Option<StoredDtypeKind>,

    /// Continue the annotations in the directory, or start them where there are none
    #[arg(long, help_heading = "Output")]
    pub resume: bool,

    /// Replace the annotations in the directory
    #[arg(long, help_heading = "Output")]
    pub overwrite: bool,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Read flags that are not given otherwise from a TOML file
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pub config: Option<PathBuf>,
}
