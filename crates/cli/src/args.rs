//! Command-line arguments of every command, as clap parses them.
//!
//! Defaults that depend on the model are not filled in here: an omitted flag is `None`, and
//! [`crate::settings`] turns flags into library options. A value comes from the command line,
//! otherwise from `LATENT_TTS_<FLAG>`, otherwise from `--config FILE.toml`, otherwise from
//! `--preset`; [`layers`] merges these sources. `common` holds flags shared by several commands,
//! `values` the value parsers.

mod aggregation;
mod annotate;
mod augment;
mod calibrate;
mod common;
pub(crate) mod layers;
mod preset;
mod report;
#[cfg(feature = "serve")]
mod serve;
mod sweep;
mod train;
pub mod values;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use latent_tts::bench::BenchShape;
use latent_tts::{AblationKind, FieldNames, SamplingOptions};

pub use aggregation::AggregationArgs;
pub use annotate::{AnnotateArgs, LabelsKind};
pub use augment::AugmentArgs;
pub use calibrate::CalibrateArgs;
pub use common::{
    DeviceArgs, DtypeKind, IsaKind, MachineArgs, ModelArgs, OutputArgs, RunArgs, ScorerArgs,
    StoredDtypeKind, TooLongKind,
};
pub(crate) use layers::command_of;
pub use layers::{parse, variable_of};
pub use report::ReportArgs;
#[cfg(feature = "serve")]
pub use serve::{HttpArgs, LimitArgs, LogFormat, ServeArgs, UpstreamArgs};
pub use sweep::{SweepArgs, SweepSamplerKind};
pub use train::{ProbeArgs, ReasonerArgs, RewardArgs, RlArgs, TrainCommand};

/// Precedence of flag sources, printed below the help of every command.
const LAYERS: &str = "\
Every flag can also be set by an environment variable (LATENT_TTS_MAX_NEW_TOKENS for \
--max-new-tokens) or, for eval, solve, sweep and annotate, in a TOML file passed with --config \
(max-new-tokens = 64). The command line takes precedence over the environment, the environment \
over the file, and the file over the model's defaults.";

/// Parallel test-time scaling for latent reasoning models.
///
/// Loads a latent reasoner (COCONUT, CODI, CoLaR, Latent-SFT or Render-of-Thought) or its
/// chain-of-thought baseline, samples N trajectories of latent thoughts per question, scores them
/// with a latent reward model if one is given, and aggregates their answers.
#[derive(Debug, Parser)]
#[command(
    name = "latent-tts",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(after_help = "\
To get started, run `latent-tts eval`, which needs no files. For your own checkpoint, run \
`latent-tts inspect DIR`, then `latent-tts eval --model DIR`.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands of `latent-tts`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Evaluate a model on a benchmark with parallel sampling
    ///
    /// Samples N trajectories per question, records them in a run directory, and reports the
    /// accuracy of each aggregation rule for every number of trajectories up to N. An interrupted
    /// run continues with --resume and produces the same samples as an uninterrupted one.
    #[command(after_help = format!("\
Examples:
  latent-tts eval    (embedded models, 300 embedded problems; about a minute on two idle cores)
  latent-tts eval --data embedded:hard --limit 1000 --seeds 3
  latent-tts eval --model ./coconut-gpt2 --data gsm8k_test.jsonl
  latent-tts eval --model ./codi --reward-model ./latent-rm --data test.json --samples 16 \
    --sampler noise --noise-std 0.5
  latent-tts eval --model ./coconut-gpt2 --data test.json --limit 100 --seeds 3 \
    --out runs/mine --json
  latent-tts eval --model ./codi --reward-model ./latent-rm --data test.json --aggregate majority,beam \
    --beam-width 4
  latent-tts eval --model ./coconut-gpt2 --data test.json --adaptive --target-confidence 0.99
  latent-tts eval --model ./coconut-gpt2 --data test.json --ablate zero,mean,swap,freeze,shuffle,round
  latent-tts eval --model ./gpt2-cot --method cot --data test.json --temperature 0.7 --top-p 0.95

{LAYERS}"))]
    Eval(EvalArgs),

    /// Answer one question
    ///
    /// Samples N trajectories for one question and prints the answer, the votes, and the time of
    /// each stage. The question is the argument, or standard input if the argument is `-`.
    #[command(after_help = format!("\
Examples:
  latent-tts solve \"Grace has 484 muffins. Fiona has a quarter as many muffins as Grace. \
How many muffins do they have together?\"
  latent-tts solve --model ./coconut-gpt2 \"Tom has 3 boxes of 4 apples and eats 2. \
How many are left?\"
  latent-tts solve --lens 5 \"Tom has 3 boxes with 4 pens in each. How many pens are there?\"
  echo \"What is 12 times 11?\" | latent-tts solve --model ./codi --samples 64 -

{LAYERS}"))]
    Solve(SolveArgs),

    /// Serve an OpenAI-compatible API
    ///
    /// Chat and text completions with a thinking budget: `reasoning_effort` or `latent.samples`
    /// sets the number of trajectories that are sampled, scored and voted on. Requests are batched
    /// continuously, and batching never changes an answer. docs/reference/http.md lists all fields,
    /// limits, metrics and errors.
    #[cfg(feature = "serve")]
    #[command(after_help = format!("\
Examples:
  latent-tts serve    (embedded models at http://127.0.0.1:8000/v1)
  latent-tts serve --model ./codi --reward-model ./latent-rm --model-name codi --port 8080
  LATENT_TTS_API_KEY=secret latent-tts serve --host 0.0.0.0 --log-format json

{LAYERS}"))]
    Serve(ServeArgs),

    /// Find the best perturbation strength
    ///
    /// Runs an eval for each perturbation strength, or searches an interval for the highest
    /// coverage as in the paper. Each value gets its own run directory; a table, sweep.json and the
    /// HTML report compare the values and name the best one.
    #[command(after_help = format!("\
Examples:
  latent-tts sweep --model ./coconut-gpt2 --data test.json --dropout-p 0:0.9    (search)
  latent-tts sweep --model ./coconut-gpt2 --data test.json --dropout-p 0.05:0.5:0.05 \
    --noise-std 0.1,0.3,0.5 --limit 200
  latent-tts sweep --model ./coconut-gpt2 --data test.json --dropout-p 0.1,0.2 --sites both,mlp \
    --scope thoughts,all --out runs/sites

{LAYERS}"))]
    Sweep(SweepArgs),

    /// Write figures and an HTML report from runs
    ///
    /// Reads run directories and writes figures (SVG and PNG) and one self-contained HTML page with
    /// a summary, interactive figures and a browser for single questions. Several runs are
    /// compared. Needs no model.
    #[command(after_help = format!("\
Examples:
  latent-tts report runs/mine
  latent-tts report runs/dropout runs/noise --out docs/report
  latent-tts report runs/sweep-coconut-test-1a2b3c4d

{LAYERS}"))]
    Report(ReportArgs),

    /// Train a reasoner, a reward model or a probe
    ///
    /// The usual order is a chain-of-thought model (train reasoner --mode cot), a latent reasoner
    /// initialized from it (--mode latent), labeled thoughts (annotate), and a reward model trained
    /// on these labels (train reward). A probe (train probe) needs only the reasoner.
    #[command(subcommand)]
    Train(TrainCommand),

    /// Label thoughts for training a reward model
    ///
    /// Samples N trajectories per question and, from every thought, M rollouts to the end. The
    /// label of a thought is the fraction of its rollouts with a correct answer. Questions whose
    /// trajectories are all correct or all wrong are skipped. Finished shards are kept; --resume
    /// continues after the last one.
    #[command(after_help = format!("\
Examples:
  latent-tts annotate --model ./coconut-gpt2 --data train.json --out labels
  latent-tts annotate --model ./coconut-gpt2 --data train.json --preset paper --out labels
  latent-tts annotate --model ./coconut-gpt2 --data train.json --trajectories 8 --rollouts 128 \
    --shard 1/4 --out labels
  latent-tts annotate --model ./coconut-gpt2 --data train.json --labels final \
    --thoughts-dtype bf16 --json

{LAYERS}"))]
    Annotate(AnnotateArgs),

    /// Fit weights that combine the signals of a run
    ///
    /// Fits the weights of vote share, likelihood, reward, probe and checked steps to runs on
    /// problems that the models were not trained on, and writes the file for --calibration: the
    /// weights of the rule calibrated, and the parameters of the probability that its answer is
    /// correct (confidence). With --measure, the calibration is also evaluated on other runs
    /// (accuracy, difference from majority voting, expected calibration error) for each signal
    /// alone, all but each, and all. Needs no model.
    #[command(after_help = format!("\
Examples:
  latent-tts calibrate runs/valid --out calibration.json
  latent-tts calibrate runs/valid --measure runs/test --out calibration.json
  latent-tts eval --data embedded:hard --calibration calibration.json

{LAYERS}"))]
    Calibrate(CalibrateArgs),

    /// Describe a checkpoint
    ///
    /// Reads a checkpoint directory or a GGUF file and prints the detected family and backbone,
    /// their defaults, and the tensors that are unknown, missing or of unexpected shape (--tensors
    /// lists all). Works on reasoners and on reward models.
    #[command(after_help = format!("\
Examples:
  latent-tts inspect embedded
  latent-tts inspect ./coconut-gpt2
  latent-tts inspect ./latent-rm --json
  latent-tts inspect ./model.gguf --tensors
  latent-tts inspect ./large-model --headers    (do not read the weights)

{LAYERS}"))]
    Inspect(InspectArgs),

    /// Convert pickled checkpoints to safetensors
    ///
    /// Reads the tensors of files written by torch.save (.bin, .pt, .pth, .ckpt) without executing
    /// any of their code, and writes a directory that can be loaded. Supports the checkpoints of
    /// CODI, SIM-CoT and COCONUT as published, CoLaR's Lightning file (an adapter), and the heads
    /// of Render-of-Thought. Tensors used only in training are dropped.
    #[command(after_help = format!("\
Examples:
  latent-tts convert ./CODI-gpt2 ./codi --base ./gpt2
  latent-tts convert ./SIM_COT-GPT2-Coconut/checkpoint_28 ./simcot --base ./gpt2
  latent-tts convert colar.ckpt ./colar --base ./Llama-3.2-1B-Instruct
  latent-tts convert stage1/projection_head.bin stage1/special_tokens.bin ./rot-4b

{LAYERS}"))]
    Convert(ConvertArgs),

    /// Describe and measure this machine
    ///
    /// Prints the device, the instruction set, threads and memory, measures arithmetic throughput
    /// and memory bandwidth for about a second, and suggests how to run faster.
    #[command(after_help = format!("\
Examples:
  latent-tts doctor
  latent-tts doctor --threads 1 --json

{LAYERS}"))]
    Doctor(DoctorArgs),

    /// Compare this engine with a reference dump
    ///
    /// Runs the engine on the recorded inputs of another implementation and prints one line per
    /// check with its largest error. Exits with status 1 if any check exceeds its tolerance.
    #[command(after_help = format!("\
Examples:
  latent-tts verify ./goldens

{LAYERS}"))]
    Verify(VerifyArgs),

    /// Write word problems from the built-in generator
    ///
    /// Writes grade-school word problems in English with exact steps. The generator is
    /// deterministic: problem I of a split under a seed is always the same. Splits: `train`,
    /// `valid` and `test` share one distribution, `hard` has larger numbers, `ood` has combinations
    /// of sentences that do not occur in training. Splits are disjoint for every seed.
    ///
    /// The output has the paper's JSON format, a list of {question, steps, answer, idx}, which eval
    /// --data and training read.
    #[command(after_help = format!("\
Examples:
  latent-tts corpus --split test --count 3
  latent-tts corpus --split test --count 1000 --out test.json
  latent-tts corpus --split train --count 50000 --offset 100000 --seed 1 --out part.json

{LAYERS}"))]
    Corpus(CorpusArgs),

    /// Generate training problems by renumbering annotated ones
    ///
    /// The steps of a problem, such as <<48/2=24>>, are traced to the numbers of its question. New
    /// numbers are drawn, every step is recomputed exactly, and the question, steps and answer are
    /// rewritten with other first names. Draws that are not plausible are rejected: integers stay
    /// integers, differences stay positive, magnitudes and orderings stay similar. Problems whose
    /// numbers cannot be traced reliably are rejected; the table lists the reasons.
    ///
    /// The output is JSON lines of {question, steps, answer, source, variant}, which train reasoner
    /// --data and eval --data read. It does not depend on the number of threads.
    #[command(after_help = format!("\
Examples:
  latent-tts augment gsm8k_train.jsonl --out more.jsonl
  latent-tts augment gsm8k_train.jsonl extra.jsonl --count 20 --keep-original --out more.jsonl
  latent-tts augment gsm8k_train.jsonl --total 400000 --seed 1 --out more.jsonl \
    --decontaminate gsm8k_test.jsonl,multiarith.json
  latent-tts augment assets/stories/short_a.stories --count 300 --out stories.jsonl
  latent-tts augment gsm8k_train.jsonl --count 1 | head -3
  latent-tts train reasoner --mode cot --init ./gpt2 --data more.jsonl --out models/cot

{LAYERS}"))]
    Augment(AugmentArgs),

    /// Measure speed at realistic model shapes
    ///
    /// Runs a model with random weights and reports trajectories per second and the fraction of the
    /// machine's peak FLOP/s.
    #[command(after_help = format!("\
Examples:
  latent-tts bench
  latent-tts bench --shape gpt2 --questions 4 --samples 64 --threads 2 --json
  latent-tts bench --annotate --questions 512 --samples 8 --rollouts 4
  latent-tts bench --train reasoner --batch 256

{LAYERS}"))]
    Bench(BenchArgs),
}

/// The flags of `eval` when run without arguments.
pub fn default_eval_args() -> EvalArgs {
    match Cli::parse_from(["latent-tts", "eval"]).command {
        Command::Eval(args) => args,
        _ => unreachable!("`eval` is the command eval"),
    }
}

/// Flags of `eval`.
#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    /// The questions: a file (a JSON array or JSON lines of {question, answer}, GSM8K, MATH-500,
    /// GPQA and similar), a dataset on the Hugging Face Hub (owner/name, owner/name/file.jsonl), or
    /// generated word problems (embedded:SPLIT or embedded:SPLIT:FIRST..END, where SPLIT is test,
    /// hard, ood, valid or train) [default: the first 300 of embedded:test]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<String>,

    /// Use only the first COUNT questions
    #[arg(long, value_name = "COUNT", help_heading = "Data")]
    pub limit: Option<NonZeroUsize>,

    #[command(flatten)]
    pub fields: FieldNames,

    #[command(flatten)]
    pub sampling: SamplingOptions,

    #[command(flatten)]
    pub aggregation: AggregationArgs,

    #[command(flatten)]
    pub scorer: ScorerArgs,

    /// Also run the greedy trajectory with its thoughts replaced, to measure whether they are used;
    /// one more trajectory per question for each kind [default: none]
    #[arg(
        long,
        value_enum,
        value_name = "KIND,...",
        value_delimiter = ',',
        help_heading = "Ablation"
    )]
    pub ablate: Option<Vec<AblationKind>>,

    #[command(flatten)]
    pub run: RunArgs,

    /// Record the COUNT most probable tokens (at most 20) of each thought of the greedy trajectory,
    /// as decoded by the LM head from the hidden state that the thought is made from [default:
    /// none]
    #[arg(long, value_name = "COUNT", value_parser = values::lens, help_heading = "Output")]
    pub lens: Option<NonZeroUsize>,

    /// The run directory [default: runs/MODEL-DATA-DIGEST, where the digest covers the settings]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,

    /// Replace an existing run in the run directory
    #[arg(long, help_heading = "Output")]
    pub overwrite: bool,

    /// Numbers of trajectories to report [default: powers of two up to --samples]
    #[arg(long, value_name = "K,...", value_delimiter = ',', help_heading = "Output")]
    pub k: Option<Vec<NonZeroUsize>>,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Read flags from a TOML file; the command line and the environment take precedence
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pub config: Option<PathBuf>,
}

/// Flags of `solve`.
#[derive(Debug, Args)]
pub struct SolveArgs {
    /// The question; `-` reads questions from standard input, one per line
    #[arg(value_name = "TEXT")]
    pub text: String,

    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub sampling: SamplingOptions,

    #[command(flatten)]
    pub aggregation: AggregationArgs,

    #[command(flatten)]
    pub scorer: ScorerArgs,

    #[command(flatten)]
    pub machine: MachineArgs,

    /// Print every trajectory: its answer, rewards and text
    #[arg(long, help_heading = "Output")]
    pub show: bool,

    /// Print the COUNT most probable tokens (at most 20) of each thought of the selected and the
    /// greedy trajectory, as decoded by the LM head from the hidden state that the thought is made
    /// from [default: none]
    #[arg(long, value_name = "COUNT", value_parser = values::lens, help_heading = "Output")]
    pub lens: Option<NonZeroUsize>,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Read flags from a TOML file; the command line and the environment take precedence
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pub config: Option<PathBuf>,
}

/// Flags of `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The checkpoint: a directory, a GGUF file, a Hugging Face Hub id, `embedded` or
    /// `embedded:reward`
    #[arg(value_name = "DIR")]
    pub dir: String,

    /// The base model of an adapter: a directory, a GGUF file or a Hub id; for stacked adapters,
    /// the model below all of them [default: the model that the adapter records]
    #[arg(long, value_name = "DIR")]
    pub base: Option<String>,

    /// The family of the reasoner, overriding detection
    #[arg(long, alias = "family", value_name = "FAMILY", value_parser = values::family())]
    pub method: Option<engine::Family>,

    /// List all tensors, not only missing, unknown and mismatched ones
    #[arg(long)]
    pub tensors: bool,

    /// Read only headers; does not detect non-finite weights and adapters that do not fit
    #[arg(long)]
    pub headers: bool,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Files, or directories with such files
    #[arg(value_name = "IN", required = true)]
    pub inputs: Vec<PathBuf>,

    /// The directory to write
    #[arg(value_name = "OUT", required = true)]
    pub out: PathBuf,

    /// The model that provides the configuration and tokenizer if the checkpoint lacks them, and
    /// the base of an adapter: a directory, a GGUF file or a Hub id
    #[arg(long, value_name = "DIR")]
    pub base: Option<String>,

    /// The alpha of a LoRA adapter, which scales its products by ALPHA / rank [default: 32, as
    /// published]
    #[arg(long, value_name = "ALPHA")]
    pub lora_alpha: Option<f64>,

    /// Replace existing files in the directory
    #[arg(long)]
    pub overwrite: bool,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The directory of the reference dump
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// The base model, if the checkpoint of the dump is an adapter [default: the model that the
    /// adapter records]
    #[arg(long, value_name = "DIR")]
    pub base: Option<String>,

    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `corpus`.
#[derive(Debug, Args)]
pub struct CorpusArgs {
    /// The split: train, valid, test, hard or ood
    #[arg(long, value_name = "SPLIT", default_value = "test")]
    pub split: ::corpus::Split,

    /// Number of problems
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "1000",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub count: u64,

    /// Index of the first problem
    #[arg(long, value_name = "INDEX", default_value = "0")]
    pub offset: u64,

    /// Random seed; different seeds give different problems
    #[arg(long, default_value = "0")]
    pub seed: u64,

    /// The file to write, replaced if it exists: a JSON array, or JSON lines if its name ends in
    /// .jsonl [default: a JSON array on standard output]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// The model whose training step `bench --train` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TrainTarget {
    /// A latent reasoner, trained by cross-entropy on the tokens after its thoughts (COCONUT)
    Reasoner,
    /// A chain-of-thought reasoner
    Cot,
    /// A latent reasoner, trained by self-distillation (CODI)
    Codi,
    /// CODI with a step decoder (SIM-CoT)
    Simcot,
    /// A latent reasoner, trained on compressed steps (CoLaR)
    Colar,
    /// A reward model, trained by the contrastive loss over the trajectories of each problem
    Reward,
}

/// Flags of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The shape of the model
    #[arg(long, value_enum, default_value = "gpt2")]
    pub shape: BenchShape,

    /// Number of questions per batch
    #[arg(long, value_name = "Q", default_value = "4")]
    pub questions: NonZeroUsize,

    /// Number of trajectories per question [default: 64, or 8 with --annotate and --train reward]
    #[arg(long, short = 'n', value_name = "N")]
    pub samples: Option<NonZeroUsize>,

    /// Measure annotation, with rollouts from every thought of every trajectory
    #[arg(long, conflicts_with = "reward")]
    pub annotate: bool,

    /// Measure a training step: forward, backward, optimizer
    #[arg(
        long,
        value_enum,
        value_name = "MODEL",
        conflicts_with_all = ["annotate", "reward", "data"]
    )]
    pub train: Option<TrainTarget>,

    /// For --train: the rank of trained adapters; 0 trains all weights
    #[arg(long, value_name = "RANK", default_value = "0")]
    pub lora: usize,

    /// For --lora: dropout probability on the adapters' inputs
    #[arg(long, value_name = "P", value_parser = values::share, default_value = "0")]
    pub lora_dropout: f32,

    /// For --train: recompute activations instead of storing them
    #[arg(long, requires = "train")]
    pub recompute: bool,

    /// For --train: number of sequences per batch
    #[arg(long, value_name = "COUNT", default_value = "256")]
    pub batch: NonZeroUsize,

    /// For --train reasoner: number of target tokens per sequence
    #[arg(long, value_name = "COUNT", default_value = "16")]
    pub target: NonZeroUsize,

    /// For --annotate: number of rollouts per thought
    #[arg(long, short = 'm', value_name = "M", default_value = "4")]
    pub rollouts: NonZeroUsize,

    /// Number of tokens per prompt
    #[arg(long, value_name = "L", default_value = "72")]
    pub prompt: NonZeroUsize,

    /// Use the questions of a file as prompts, encoded by --tokenizer
    #[arg(
        long,
        value_name = "FILE",
        requires = "tokenizer",
        conflicts_with_all = ["questions", "prompt"]
    )]
    pub data: Option<PathBuf>,

    #[command(flatten)]
    pub fields: FieldNames,

    /// For --data: the directory of the tokenizer
    #[arg(long, value_name = "DIR", requires = "data")]
    pub tokenizer: Option<PathBuf>,

    /// Score every thought with a reward model of the same shape
    #[arg(long)]
    pub reward: bool,

    /// Number of thoughts per trajectory
    #[arg(long, value_name = "T", default_value = "6")]
    pub thoughts: NonZeroUsize,

    /// Number of answer tokens per trajectory
    #[arg(long, value_name = "A", default_value = "6")]
    pub answer: NonZeroUsize,

    /// Dropout probability; 0 disables dropout [default: 0.2, or 0 with --train]
    #[arg(
        long = "dropout-p",
        alias = "p",
        value_name = "P",
        value_parser = values::share,
        allow_negative_numbers = true
    )]
    pub p: Option<f32>,

    /// Number of repetitions; reports the fastest and the median
    #[arg(long, value_name = "COUNT", default_value = "3")]
    pub repeat: NonZeroUsize,

    /// Random seed of weights and dropout masks
    #[arg(long, default_value = "0")]
    pub seed: u64,

    /// The dtype of the checkpoint. CPUs with AMX multiply bf16 weights faster
    #[arg(long, value_enum, value_name = "DTYPE", default_value = "f32", conflicts_with = "train")]
    pub weights: StoredDtypeKind,

    #[command(flatten)]
    pub machine: MachineArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}
