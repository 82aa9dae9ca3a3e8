//! Flags that several commands share.

use std::num::{NonZeroU32, NonZeroUsize};

use clap::{Args, ValueEnum};
use latent_tts::{DeviceKind, Family, LatentLength, Probability};

use super::values;

/// Which models.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// The reasoner: a checkpoint directory, a Hugging Face id in the local cache, or `embedded`,
    /// the small one inside this program [default: embedded]
    #[arg(long, value_name = "DIR")]
    pub model: Option<String>,

    /// The latent reward model that scores thoughts: a directory, a Hugging Face id in the local
    /// cache, `embedded` or `none` [default: embedded for the embedded reasoner, none for others;
    /// sweep has none unless one is named]
    #[arg(long, value_name = "DIR")]
    pub reward_model: Option<String>,

    /// The reasoner's family; cot is a language model that thinks in words [default: what the
    /// checkpoint says]
    #[arg(long, alias = "family", value_name = "FAMILY", value_parser = values::family())]
    pub method: Option<Family>,
}

/// What makes trajectories differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SamplerKind {
    /// Monte Carlo dropout (see --p, --sites, --scope)
    Dropout,
    /// Gaussian noise on every thought (see --sigma)
    Noise,
    /// Tokens of the answer are sampled (see --temperature, --top-p)
    Tokens,
    /// Nothing: all trajectories are the same
    None,
}

/// Where dropout falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SitesKind {
    /// Attention and MLP outputs
    Both,
    /// Attention outputs
    Attn,
    /// MLP outputs
    Mlp,
}

/// When dropout falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScopeKind {
    /// In the passes whose output becomes a thought
    Thoughts,
    /// In the prompt as well
    Prompt,
    /// Through the answer as well
    All,
}

/// How to sample.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Trajectories of each question [default: 64 for eval, 16 for solve, 8 for annotate]
    #[arg(long, short = 'n', value_name = "N", visible_alias = "trajectories")]
    pub samples: Option<NonZeroU32>,

    /// What makes trajectories differ [default: what the flags below belong to, else dropout, or
    /// tokens where there are no thoughts]
    #[arg(long, value_enum)]
    pub sampler: Option<SamplerKind>,

    /// Dropout: the share of elements dropped, at least 0 and below 1 [default: what the model's
    /// config.json says (`latent_tts`), else the paper's for the backbone]
    #[arg(long, value_name = "P", value_parser = values::probability, allow_negative_numbers = true)]
    pub p: Option<Probability>,

    /// Noise: its standard deviation [default: what the model's config.json says, else the paper's
    /// for the backbone]
    #[arg(long, value_name = "S", value_parser = values::deviation, allow_negative_numbers = true)]
    pub sigma: Option<f32>,

    /// Tokens: what logits are divided by, above 0 [default: 1]
    #[arg(long, value_name = "T", value_parser = values::temperature, allow_negative_numbers = true)]
    pub temperature: Option<f32>,

    /// Tokens: draw from the fewest that together have this share, above 0 and at most 1 [default:
    /// 1]
    #[arg(long, value_name = "SHARE", value_parser = values::top_p, allow_negative_numbers = true)]
    pub top_p: Option<f32>,

    /// Dropout: where it falls [default: both for GPT-2, mlp for Llama and Qwen]
    #[arg(long, value_enum)]
    pub sites: Option<SitesKind>,

    /// Dropout: when it falls [default: thoughts]
    #[arg(long, value_enum)]
    pub scope: Option<ScopeKind>,

    /// Thoughts of each trajectory: 6 for exactly six, <=64 until the model ends them, 4-6 for a
    /// number drawn from the range, 0 for none [default: what the model's config.json says, else
    /// the family's]
    #[arg(long, value_name = "T", value_parser = values::thoughts)]
    pub thoughts: Option<LatentLength>,

    /// Answer tokens at most [default: what the model's config.json says, else the family's]
    #[arg(long, value_name = "COUNT")]
    pub max_new_tokens: Option<NonZeroU32>,

    /// The seed of all randomness [default: 0]
    #[arg(long)]
    pub seed: Option<u64>,
}

/// How numbers are kept on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DtypeKind {
    /// Everything in single precision
    F32,
    /// Weights and operands of products in bf16, the rest in single precision
    Bf16,
}

/// A choice of instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IsaKind {
    /// The best one this processor has
    Auto,
    /// 512-bit vectors
    Avx512,
    /// 256-bit vectors
    Avx2,
    /// What every processor has
    Portable,
}

/// With what; [`crate::load`] opens it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Machine")]
pub struct DeviceArgs {
    /// Where to compute: auto, cpu, cuda or cuda:NUMBER [default: auto, a GPU if there is one]
    #[arg(long, value_name = "DEVICE", value_parser = values::device)]
    pub device: Option<DeviceKind>,

    /// How a GPU keeps numbers; a processor keeps all in f32 [default: bf16]
    #[arg(long, value_enum)]
    pub dtype: Option<DtypeKind>,

    /// Worker threads [default: all cores]
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<NonZeroUsize>,

    /// The instruction set, for measurements and tests [default: auto]
    #[arg(long, value_enum, hide = true)]
    pub isa: Option<IsaKind>,
}

/// Where to compute, and in how much memory.
#[derive(Debug, Clone, Args)]
pub struct MachineArgs {
    /// Where.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// Memory for keys and values, e.g. 512MiB; it sizes batches and changes no result [default:
    /// 1GiB, or most of a GPU's]
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Machine")]
    pub memory: Option<usize>,
}

/// How questions are gone over, by `eval` and by each of a sweep's evals.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Repeat everything under this many seeds, counted up from --seed [default: 1]
    #[arg(long, value_name = "COUNT", help_heading = "Sampling")]
    pub seeds: Option<NonZeroU32>,

    /// With what.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// Keep all thoughts as well, in latents.safetensors (trajectories x thoughts x width x 4
    /// bytes a question); the map of thoughts is drawn from them
    #[arg(long, help_heading = "Output")]
    pub latents: bool,

    /// Continue what --out holds, or begin where there is nothing: what is on file is not run
    /// again
    #[arg(long, help_heading = "Output")]
    pub resume: bool,

    /// Do not write the page
    #[arg(long, help_heading = "Output")]
    pub no_report: bool,
}

/// How to print.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print one JSON object on standard output instead of tables
    #[arg(long)]
    pub json: bool,

    /// Say nothing on standard error but errors
    #[arg(long, short = 'q')]
    pub quiet: bool,
}
