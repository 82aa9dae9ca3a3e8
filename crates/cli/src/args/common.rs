//! Flags that several commands share.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use latent_tts::{DeviceKind, Family};

use super::values;

/// Flags that select the models.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// The reasoner: a checkpoint directory, an adapter's, a GGUF file (of llama, qwen2 or qwen3),
    /// an id of the Hugging Face Hub (owner/name, owner/name@revision, owner/name/file.gguf), or
    /// `embedded`, the small one in this binary [default: embedded]
    #[arg(long, value_name = "DIR")]
    pub model: Option<String>,

    /// The latent reward model that scores thoughts: a directory, an id of the Hub,
    /// `embedded` or `none` [default: embedded for the embedded reasoner, none for others;
    /// sweep has none unless --metric is weighted or best_of]
    #[arg(long, value_name = "DIR")]
    pub reward_model: Option<String>,

    /// A probe on the reasoner's hidden states, which `train probe` wrote: the signal probe of each
    /// trajectory [default: none]
    #[arg(long, value_name = "DIR")]
    pub probe: Option<PathBuf>,

    /// The model that an adapter (a reasoner, a reward model or both) is added to: a directory, a
    /// GGUF file or an id. Where adapters lie over one another it is the one at the bottom
    /// [default: the one that the adapter records]
    #[arg(long, value_name = "DIR")]
    pub base: Option<String>,

    /// The reasoner's family; cot is a language model with a chain of thought in text [default:
    /// detected from the checkpoint]
    #[arg(long, alias = "family", value_name = "FAMILY", value_parser = values::family())]
    pub method: Option<Family>,
}

/// The precision of weights and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DtypeKind {
    /// Single precision throughout
    F32,
    /// Weights and matrix operands in bf16, accumulation and the rest in f32; a GPU's
    Bf16,
    /// Weights and matrix operands in int8, exact sums, the rest in f32; a processor's
    Int8,
    /// The reasoner's weights and matrix operands in e4m3, the rest as in bf16, the reward model,
    /// too; a GPU's of compute capability 9.0
    Fp8,
}

/// The data type of what is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoredDtypeKind {
    /// Single precision
    F32,
    /// Rounded to bf16, half the size
    Bf16,
}

/// The CPU instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IsaKind {
    /// The fastest one that this CPU supports
    Auto,
    /// 512-bit vectors, and products by Intel's tiles: as accurate as the others, not the same bits
    Amx,
    /// 512-bit vectors
    Avx512,
    /// 256-bit vectors
    Avx2,
    /// 128-bit vectors of aarch64
    Neon,
    /// No CPU-specific instructions
    Portable,
}

/// Flags that select the device; [`crate::load`] opens it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Machine")]
pub struct DeviceArgs {
    /// The device: auto, cpu, cuda or cuda:NUMBER [default: auto, a GPU if there is one]
    #[arg(long, value_name = "DEVICE", value_parser = values::device)]
    pub device: Option<DeviceKind>,

    /// The precision [default: bf16 on a GPU, f32 on a processor]
    #[arg(long, value_enum)]
    pub dtype: Option<DtypeKind>,

    /// Worker threads [default: all cores]
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<NonZeroUsize>,

    /// Give a trajectory the same bits on a GPU whatever its batch: N, other questions, --memory,
    /// --resume. Slower where rows are few; a processor's bits never depend on the batch
    #[arg(long)]
    pub deterministic: bool,

    /// The CPU instruction set, for measurements and tests [default: auto]
    #[arg(long, value_enum, hide = true)]
    pub isa: Option<IsaKind>,
}

/// Flags that select the device and the memory of its key-value cache.
#[derive(Debug, Clone, Args)]
pub struct MachineArgs {
    #[command(flatten)]
    pub device: DeviceArgs,

    /// Memory for the key-value cache, e.g. 512MiB; it limits the batch size and changes no result
    /// [default: 1GiB, or most of a GPU's]
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Machine")]
    pub memory: Option<usize>,
}

/// Flags of a run over all questions: `eval`, and each point of `sweep`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Repeat everything under this many seeds, counted up from --seed [default: 1]
    #[arg(long, value_name = "COUNT", help_heading = "Sampling")]
    pub seeds: Option<NonZeroU32>,

    /// What becomes of questions that do not fit the model's positions [default: stop]
    #[arg(long, value_enum, help_heading = "Data")]
    pub too_long: Option<TooLongKind>,

    #[command(flatten)]
    pub machine: MachineArgs,

    /// Write all thoughts to latents.safetensors (trajectories x thoughts x width x 4 bytes per
    /// question); the report's map of thoughts needs them
    #[arg(long, help_heading = "Output")]
    pub latents: bool,

    /// Continue the run in --out, or start it where there is none: recorded questions are not
    /// sampled again
    #[arg(long, help_heading = "Output")]
    pub resume: bool,

    /// Do not write the HTML report
    #[arg(long, help_heading = "Output")]
    pub no_report: bool,
}

/// What becomes of questions that do not fit the model's positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TooLongKind {
    /// Nothing is run; the error names the first one
    Stop,
    /// They are left out, counted and listed
    Skip,
}

/// Flags that control the output.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print one JSON object on standard output instead of tables
    #[arg(long)]
    pub json: bool,

    /// Print only errors on standard error
    #[arg(long, short = 'q')]
    pub quiet: bool,
}
