//! Flags of `annotate`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use latent_tts::Family;

use super::{MachineArgs, OutputArgs, PresetKind, SamplingArgs, values};

/// What a thought is labelled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LabelsKind {
    /// The share of its rollouts that answer right (see --rollouts)
    Rollouts,
    /// Whether its trajectory answers right; there are no rollouts
    Final,
}

/// How thoughts are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ThoughtsDtypeKind {
    /// As they are
    F32,
    /// Rounded to half the size
    Bf16,
}

/// Flags of `annotate`.
#[derive(Debug, Args)]
pub struct AnnotateArgs {
    /// The reasoner: a checkpoint directory, a Hugging Face id in the local cache, or `embedded`
    /// [default: embedded]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub model: Option<String>,

    /// The reasoner's family [default: what the checkpoint says]
    #[arg(long, value_name = "FAMILY", value_parser = values::family(), help_heading = "Model")]
    pub method: Option<Family>,

    /// The questions: a file or a part of the embedded corpus, as for eval [default: the first
    /// 1024 of embedded:train]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<String>,

    /// Take only the first questions
    #[arg(long, value_name = "COUNT", help_heading = "Data")]
    pub limit: Option<NonZeroUsize>,

    /// How to sample.
    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// Published settings in place of the defaults: `paper` is 8 trajectories and 128 rollouts from
    /// every thought. What is given otherwise wins
    #[arg(long, value_enum, help_heading = "Labels")]
    pub preset: Option<PresetKind>,

    /// What a thought is labelled with [default: rollouts]
    #[arg(long, value_enum, help_heading = "Labels")]
    pub labels: Option<LabelsKind>,

    /// Rollouts from every thought; the paper has 128 (--preset paper) [default: 4]
    #[arg(long, short = 'm', value_name = "M", help_heading = "Labels")]
    pub rollouts: Option<NonZeroU32>,

    /// With what.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Make only one part of the shards, e.g. 2/8 on the second of eight machines; put all files
    /// into one directory afterwards
    #[arg(long, value_name = "PART/PARTS", value_parser = values::part, help_heading = "Machine")]
    pub shard: Option<(usize, usize)>,

    /// The directory of the labels [default: annotations/MODEL-DATA-DIGEST, named by model, data
    /// and settings]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,

    /// Questions of a shard, which is written when all are done [default: 1024]
    #[arg(long, value_name = "COUNT", help_heading = "Output")]
    pub per_shard: Option<NonZeroU32>,

    /// How thoughts are kept [default: f32]
    #[arg(long, value_enum, help_heading = "Output")]
    pub thoughts_dtype: Option<ThoughtsDtypeKind>,

    /// Continue what the directory holds, or begin it where there is nothing
    #[arg(long, help_heading = "Output")]
    pub resume: bool,

    /// Replace what the directory holds
    #[arg(long, help_heading = "Output")]
    pub overwrite: bool,

    /// How to print.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Read flags that are not given otherwise from a TOML file
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pub config: Option<PathBuf>,
}
