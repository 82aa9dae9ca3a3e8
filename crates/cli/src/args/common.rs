//! Flags shared by several commands.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use latent_tts::{DeviceKind, Family};

use super::values;

/// Flags that select the models.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// The reasoner: a checkpoint or adapter directory, a GGUF file (llama, qwen2 or qwen3), a
    /// Hugging Face Hub id (owner/name, owner/name@revision, owner/name/file.gguf), or `embedded`,
    /// the small model built into this binary [default: embedded]
    #[arg(long, value_name = "DIR")]
    pub model: Option<String>,

    /// The latent reward model that scores thoughts: a directory, a Hub id, `embedded` or `none`
    /// [default: embedded for the embedded reasoner, otherwise none; none for sweep unless --metric
    /// is weighted or best_of]
    #[arg(long, value_name = "DIR")]
    pub reward_model: Option<String>,

    /// A probe on the reasoner's hidden states, written by `train probe`; adds the signal probe to
    /// each trajectory [default: none]
    #[arg(long, value_name = "DIR")]
    pub probe: Option<PathBuf>,

    /// The base model of an adapter (reasoner or reward model, or both): a directory, a GGUF file
    /// or a Hub id. For stacked adapters, the model below all of them [default: the model that the
    /// adapter records]
    #[arg(long, value_name = "DIR")]
    pub base: Option<String>,

    /// The family of the reasoner; cot is a language model that writes a chain of thought as text
    /// [default: detected from the checkpoint]
    #[arg(long, alias = "family", value_name = "FAMILY", value_parser = values::family())]
    pub method: Option<Family>,
}

/// An HTTP endpoint that scores trajectories.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "External scorer")]
pub struct ScorerArgs {
    /// Take the rewards of trajectories from this URL instead of a reward model: an endpoint that
    /// gets {question, answers} and returns {rewards}, or a chat endpoint (a URL that ends in
    /// /chat/completions) whose model grades each answer from 0 to 10 [default: none]
    #[arg(long, value_name = "URL")]
    pub scorer: Option<String>,

    /// The model named in requests to the scorer; required for a chat endpoint
    #[arg(long, value_name = "NAME", requires = "scorer")]
    pub scorer_model: Option<String>,

    /// The key sent to the scorer; set LATENT_TTS_SCORER_API_KEY rather than this flag, which other
    /// users of the machine can read
    #[arg(long, value_name = "KEY", requires = "scorer")]
    pub scorer_api_key: Option<String>,

    /// The time limit of one request to the scorer, in seconds
    #[arg(long, value_name = "S", value_parser = values::above_zero, default_value = "60")]
    pub scorer_timeout: f64,

    /// Requests to a chat endpoint that run at a time, for one question
    #[arg(long, value_name = "COUNT", default_value = "8")]
    pub scorer_concurrency: NonZeroUsize,
}

/// The precision of weights and activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DtypeKind {
    /// Single precision throughout
    F32,
    /// Weights and matrix operands in bf16, accumulation and everything else in f32; GPU only
    Bf16,
    /// Weights and matrix operands in int8, exact integer sums, everything else in f32; CPU only
    Int8,
    /// The reasoner's weights and matrix operands in e4m3; everything else, including the reward
    /// model, as for bf16; only on GPUs of compute capability 9.0
    Fp8,
}

/// The data type of stored tensors.
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
    /// The fastest set that this CPU supports
    Auto,
    /// 512-bit vectors and Intel AMX tiles for matrix products; as accurate as the others, but not
    /// bit-identical
    Amx,
    /// 512-bit vectors
    Avx512,
    /// 256-bit vectors
    Avx2,
    /// 128-bit vectors on aarch64
    Neon,
    /// No CPU-specific instructions
    Portable,
}

/// Flags that select the device; [`crate::load`] opens it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Machine")]
pub struct DeviceArgs {
    /// The device: auto, cpu, cuda or cuda:INDEX [default: auto, which uses a GPU if present]
    #[arg(long, value_name = "DEVICE", value_parser = values::device)]
    pub device: Option<DeviceKind>,

    /// The precision [default: bf16 on a GPU, f32 on a CPU]
    #[arg(long, value_enum)]
    pub dtype: Option<DtypeKind>,

    /// Number of worker threads [default: all cores]
    #[arg(long, value_name = "COUNT")]
    pub threads: Option<NonZeroUsize>,

    /// Make GPU results independent of the batch, bit for bit: of N, other questions, --memory and
    /// --resume. Slower for small batches; CPU results never depend on the batch
    #[arg(long)]
    pub deterministic: bool,

    /// The CPU instruction set, for benchmarks and tests [default: auto]
    #[arg(long, value_enum, hide = true)]
    pub isa: Option<IsaKind>,
}

/// Flags that select the device and the size of its key-value cache.
#[derive(Debug, Clone, Args)]
pub struct MachineArgs {
    #[command(flatten)]
    pub device: DeviceArgs,

    /// Memory for the key-value cache, e.g. 512MiB; limits the batch size and does not change
    /// results [default: 1GiB, or most of the memory of a GPU]
    #[arg(long, value_name = "SIZE", value_parser = values::size, help_heading = "Machine")]
    pub memory: Option<usize>,
}

/// Flags of a run over all questions, used by `eval` and by each point of `sweep`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Repeat the run under COUNT consecutive seeds, starting at --seed [default: 1]
    #[arg(long, value_name = "COUNT", help_heading = "Sampling")]
    pub seeds: Option<NonZeroU32>,

    /// How to handle questions that exceed the model's context [default: stop]
    #[arg(long, value_enum, help_heading = "Data")]
    pub too_long: Option<TooLongKind>,

    #[command(flatten)]
    pub machine: MachineArgs,

    /// Write all thoughts to latents.safetensors (trajectories x thoughts x width x 4 bytes per
    /// question); required for the report's map of thoughts
    #[arg(long, help_heading = "Output")]
    pub latents: bool,

    /// Continue the run in --out, or start a new one if there is none; recorded questions are not
    /// sampled again
    #[arg(long, help_heading = "Output")]
    pub resume: bool,

    /// Do not write the HTML report
    #[arg(long, help_heading = "Output")]
    pub no_report: bool,
}

/// How to handle questions that exceed the model's context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TooLongKind {
    /// Exit with an error that names the first such question
    Stop,
    /// Skip them, and report their number and ids
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
