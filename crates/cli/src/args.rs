//! Command-line arguments of every command, as clap parses them.
//!
//! Defaults that depend on the model are not filled in here: an omitted flag is `None`, and
//! [`crate::settings`] turns flags into options of the library. A value is taken from the command
//! line, else from `LATENT_TTS_<FLAG>`, else from `--config FILE.toml`, else from `--preset`;
//! [`layers`] merges them. `common` holds flags shared by several commands, `values` the value
//! parsers.

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
    DeviceArgs, DtypeKind, IsaKind, MachineArgs, ModelArgs, OutputArgs, RunArgs, StoredDtypeKind,
    TooLongKind,
};
pub(crate) use layers::command_of;
pub use layers::{parse, variable_of};
pub use report::ReportArgs;
#[cfg(feature = "serve")]
pub use serve::{HttpArgs, LimitArgs, LogFormat, ServeArgs, UpstreamArgs};
pub use sweep::{SweepArgs, SweepSamplerKind};
pub use train::{ProbeArgs, ReasonerArgs, RewardArgs, RlArgs, TrainCommand};

/// Precedence of flag sources, printed below every command's help.
const LAYERS: &str = "\
Every flag can also be set by an environment variable (--max-new-tokens by \
LATENT_TTS_MAX_NEW_TOKENS) or in a file (max-new-tokens = 64 in FILE.toml, given by --config \
FILE.toml, for eval, solve, sweep and annotate). The command line wins over the environment, the \
environment over the file, the file over the model's defaults.";

/// Parallel test-time scaling for latent reasoning models.
///
/// Loads a latent reasoner (COCONUT, CODI, CoLaR, Latent-SFT or Render-of-Thought) or its
/// chain-of-thought baseline, samples N trajectories of latent thoughts for each question, scores
/// them with a latent reward model if there is one, and aggregates their answers.
#[derive(Debug, Parser)]
#[command(
    name = "latent-tts",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(after_help = "\
Start with `latent-tts eval`: it needs no files. For a checkpoint of yours, `latent-tts inspect \
DIR`, then `latent-tts eval --model DIR`.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands of `latent-tts`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a benchmark under parallel scaling
    ///
    /// Samples N trajectories for every question, records them in a run directory, and reports the
    /// accuracy of each aggregation rule for every number of trajectories up to N. A run that was
    /// stopped continues with --resume and ends with the same samples as one that was not.
    #[command(after_help = format!("\
Examples:
  latent-tts eval    (the embedded models on 300 embedded problems, about a minute on two idle cores)
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
    /// Chats and completions with a thinking budget: `reasoning_effort` or `latent.samples`
    /// trajectories are sampled, scored and voted on. Requests share passes as they arrive, and
    /// none changes another's answer. docs/serving.md has every field, limit, metric and error.
    #[cfg(feature = "serve")]
    #[command(after_help = format!("\
Examples:
  latent-tts serve    (the embedded models at http://127.0.0.1:8000/v1)
  latent-tts serve --model ./codi --reward-model ./latent-rm --model-name codi --port 8080
  LATENT_TTS_API_KEY=secret latent-tts serve --host 0.0.0.0 --log-format json

{LAYERS}"))]
    Serve(ServeArgs),

    /// Find the best perturbation strength
    ///
    /// Runs an eval for each strength of dropout or noise, or searches an interval for the largest
    /// coverage as the paper does. Each value has a run directory; a table, sweep.json and the
    /// page compare them and name the best.
    #[command(after_help = format!("\
Examples:
  latent-tts sweep --model ./coconut-gpt2 --data test.json --dropout-p 0:0.9    (search)
  latent-tts sweep --model ./coconut-gpt2 --data test.json --dropout-p 0.05:0.5:0.05 \
    --noise-std 0.1,0.3,0.5 --limit 200
  latent-tts sweep --model ./coconut-gpt2 --data test.json --dropout-p 0.1,0.2 --sites both,mlp \
    --scope thoughts,all --out runs/sites

{LAYERS}"))]
    Sweep(SweepArgs),

    /// Figures and one page from runs
    ///
    /// Reads run directories and writes figures (SVG and PNG) and one self-contained HTML page:
    /// summary, figures with values to point at, and a browser for single questions. Several
    /// runs are compared. Needs no model.
    #[command(after_help = format!("\
Examples:
  latent-tts report runs/mine
  latent-tts report runs/dropout runs/noise --out docs/report
  latent-tts report runs/sweep-coconut-test-1a2b3c4d

{LAYERS}"))]
    Report(ReportArgs),

    /// Train a reasoner, a reward model or a probe
    ///
    /// In this order: a chain-of-thought model (train reasoner --mode cot), a latent reasoner
    /// initialised from it (--mode latent), labelled thoughts (annotate), a reward model on those
    /// labels (train reward). A probe (train probe) needs the reasoner alone.
    #[command(subcommand)]
    Train(TrainCommand),

    /// Label thoughts for training a reward model
    ///
    /// Samples N trajectories for every question, and from every thought M rollouts to the end; a
    /// thought's label is the share of its rollouts whose answer is correct. Questions whose
    /// trajectories are all correct or all wrong are left out. Finished shards are kept, and
    /// --resume continues after the last.
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

    /// Learn how to combine all signals of a run
    ///
    /// Fits the weights of vote share, likelihood, reward, probe and checked steps to runs on
    /// problems that the models were not trained on, and writes the file that --calibration takes:
    /// the rule calibrated, and the probability that its answer is right (confidence). With
    /// --measure it is also tried on other runs: accuracy, the difference from the majority, and
    /// the expected calibration error, for each signal alone, all but each, and all. Needs no
    /// model.
    #[command(after_help = format!("\
Examples:
  latent-tts calibrate runs/valid --out calibration.json
  latent-tts calibrate runs/valid --measure runs/test --out calibration.json
  latent-tts eval --data embedded:hard --calibration calibration.json

{LAYERS}"))]
    Calibrate(CalibrateArgs),

    /// Describe a checkpoint
    ///
    /// Reads the headers of a checkpoint directory or a GGUF file: the family and the backbone that
    /// were recognised, the defaults they bring, and the tensors that are unknown, missing or of
    /// another shape (--tensors lists all). Works on reasoners and on reward models.
    #[command(after_help = format!("\
Examples:
  latent-tts inspect embedded
  latent-tts inspect ./coconut-gpt2
  latent-tts inspect ./latent-rm --json
  latent-tts inspect ./model.gguf --tensors
  latent-tts inspect ./large-model --headers    (without reading the weights)

{LAYERS}"))]
    Inspect(InspectArgs),

    /// Convert pickled checkpoints to safetensors
    ///
    /// Reads the tensors of files that torch.save wrote (.bin, .pt, .pth, .ckpt) without executing
    /// anything in them, and writes a directory that loads: the checkpoints of CODI, SIM-CoT and
    /// COCONUT as their authors saved them, CoLaR's Lightning file (an adapter), and the heads of
    /// Render-of-Thought. What only training uses is left out.
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
    /// and memory bandwidth for about a second, and advises on what would be faster.
    #[command(after_help = format!("\
Examples:
  latent-tts doctor
  latent-tts doctor --threads 1 --json

{LAYERS}"))]
    Doctor(DoctorArgs),

    /// Compare this engine with a reference dump
    ///
    /// Runs the engine on what another implementation recorded and prints one line per check with
    /// its largest error. Exits with 1 if any check exceeds its tolerance.
    #[command(after_help = format!("\
Examples:
  latent-tts verify ./goldens

{LAYERS}"))]
    Verify(VerifyArgs),

    /// Write word problems of the built-in corpus
    ///
    /// Grade-school word problems in English with exact steps, from a deterministic generator:
    /// problem I of a split under a seed is always the same. Splits: `train`, `valid` and `test` of
    /// one distribution, `hard` with larger numbers, `ood` with combinations of sentences that are
    /// not in training. Splits are disjoint, whatever the seed.
    ///
    /// The output is the paper's JSON: a list of {question, steps, answer, idx}, which eval --data
    /// and training read.
    #[command(after_help = format!("\
Examples:
  latent-tts corpus --split test --count 3
  latent-tts corpus --split test --count 1000 --out test.json
  latent-tts corpus --split train --count 50000 --offset 100000 --seed 1 --out part.json

{LAYERS}"))]
    Corpus(CorpusArgs),

    /// Make more training problems by renumbering annotated ones
    ///
    /// A problem's steps, such as <<48/2=24>>, are traced to the numbers of its question. Other
    /// numbers are drawn, every step is recomputed exactly, and the question, the steps and the
    /// answer are written anew, with other first names. What does not stay sensible is drawn again:
    /// whole numbers stay whole, differences stay positive, sizes and orders stay alike. Problems
    /// whose numbers cannot be traced safely are refused, and the table says why.
    ///
    /// The output is JSON lines of {question, steps, answer, source, variant}, which train reasoner
    /// --data and eval --data read. It is the same for every number of threads.
    #[command(after_help = format!("\
Examples:
  latent-tts augment gsm8k_train.jsonl --out more.jsonl
  latent-tts augment gsm8k_train.jsonl extra.jsonl --count 20 --keep-original --out more.jsonl
  latent-tts augment gsm8k_train.jsonl --total 400000 --seed 1 --out more.jsonl \
    --without gsm8k_test.jsonl,multiarith.json
  latent-tts augment assets/stories/short_a.stories --count 300 --out stories.jsonl
  latent-tts augment gsm8k_train.jsonl --count 1 | head -3
  latent-tts train reasoner --mode cot --init ./gpt2 --data more.jsonl --out models/cot

{LAYERS}"))]
    Augment(AugmentArgs),

    /// Measure speed at real shapes
    ///
    /// Runs a model with random weights and reports trajectories per second and the share of the
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

/// The flags of `eval` without any argument.
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

    /// The questions: a file (a JSON array or lines of {question, answer}, GSM8K, MATH-500, GPQA
    /// and similar), a dataset of the Hugging Face Hub (owner/name, owner/name/file.jsonl), or
    /// generated word problems, embedded:SPLIT or embedded:SPLIT:FIRST..END with
    /// a split of test, hard, ood, valid, train [default: the first 300 of embedded:test]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<String>,

    /// Take only the first questions
    #[arg(long, value_name = "COUNT", help_heading = "Data")]
    pub limit: Option<NonZeroUsize>,

    #[command(flatten)]
    pub fields: FieldNames,

    #[command(flatten)]
    pub sampling: SamplingOptions,

    #[command(flatten)]
    pub aggregation: AggregationArgs,

    /// Also measure the greedy run with its thoughts replaced, to see whether they are used:
    /// another trajectory a question for each kind [default: none]
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

    /// Record what the greedy run's thoughts look like in tokens: the COUNT most probable ones of
    /// the LM head at the hidden state from which each is made, at most 20 [default: none]
    #[arg(long, value_name = "COUNT", value_parser = values::lens, help_heading = "Output")]
    pub lens: Option<NonZeroUsize>,

    /// The run directory [default: runs/MODEL-DATA-DIGEST, named by model, data and settings]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,

    /// Replace the run in the run directory
    #[arg(long, help_heading = "Output")]
    pub overwrite: bool,

    /// Report these numbers of trajectories [default: powers of two up to --samples]
    #[arg(long, value_name = "K,...", value_delimiter = ',', help_heading = "Output")]
    pub k: Option<Vec<NonZeroUsize>>,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Read flags that are not given otherwise from a TOML file
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pub config: Option<PathBuf>,
}

/// Flags of `solve`.
#[derive(Debug, Args)]
pub struct SolveArgs {
    /// The question; `-` reads questions from standard input, one a line
    #[arg(value_name = "TEXT")]
    pub text: String,

    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub sampling: SamplingOptions,

    #[command(flatten)]
    pub aggregation: AggregationArgs,

    #[command(flatten)]
    pub machine: MachineArgs,

    /// Print every trajectory: its answer, its rewards and what it said
    #[arg(long, help_heading = "Output")]
    pub show: bool,

    /// Print what the chosen and the greedy trajectory's thoughts look like in tokens: the COUNT
    /// most probable ones of the LM head at the hidden state from which each is made, at most 20
    /// [default: none]
    #[arg(long, value_name = "COUNT", value_parser = values::lens, help_heading = "Output")]
    pub lens: Option<NonZeroUsize>,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Read flags that are not given otherwise from a TOML file
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pub config: Option<PathBuf>,
}

/// Flags of `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The checkpoint: a directory, a GGUF file, an id of the Hugging Face Hub, `embedded`
    /// or `embedded:reward`
    #[arg(value_name = "DIR")]
    pub dir: String,

    /// The model that an adapter is added to: a directory, a GGUF file or an id; that at the bottom
    /// of several adapters [default: the one that the adapter records]
    #[arg(long, value_name = "DIR")]
    pub base: Option<String>,

    /// The reasoner's family, instead of the detected one
    #[arg(long, alias = "family", value_name = "FAMILY", value_parser = values::family())]
    pub method: Option<engine::Family>,

    /// List every tensor, not only those that are missing, unknown or of another shape
    #[arg(long)]
    pub tensors: bool,

    /// Read headers only: weights that are not finite and adapters that do not fit are not found
    #[arg(long)]
    pub headers: bool,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Files, or directories of them
    #[arg(value_name = "IN", required = true)]
    pub inputs: Vec<PathBuf>,

    /// The directory to write
    #[arg(value_name = "OUT", required = true)]
    pub out: PathBuf,

    /// The model that has the configuration and the tokenizer where the checkpoint has none, or
    /// that an adapter was trained on: a directory, a GGUF file or an id
    #[arg(long, value_name = "DIR")]
    pub base: Option<String>,

    /// An adapter's alpha: its products are scaled by ALPHA / rank [default: 32, as published]
    #[arg(long, value_name = "ALPHA")]
    pub lora_alpha: Option<f64>,

    /// Replace files in the directory
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
    /// The reference dump
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// The model that the dump's checkpoint, an adapter, is added to [default: the one that the
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

    /// How many problems
    #[arg(
        long,
        value_name = "COUNT",
        default_value = "1000",
        value_parser = clap::value_parser!(u64).range(1..)
    )]
    pub count: u64,

    /// The number of the first problem
    #[arg(long, value_name = "INDEX", default_value = "0")]
    pub offset: u64,

    /// The seed; another one makes other problems
    #[arg(long, default_value = "0")]
    pub seed: u64,

    /// The file to write, replaced if it exists: an array, or one problem a line if its name ends
    /// in .jsonl [default: an array on standard output]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// The model whose training step `bench --train` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TrainTarget {
    /// A latent reasoner, by the cross-entropy of the tokens after its thoughts (COCONUT)
    Reasoner,
    /// A reasoner that writes its steps
    Cot,
    /// A latent reasoner by self-distillation
    Codi,
    /// The same with a step decoder
    Simcot,
    /// A latent reasoner on compressed steps
    Colar,
    /// A reward model, by the contrastive loss over each problem's trajectories
    Reward,
}

/// Flags of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The model's shape
    #[arg(long, value_enum, default_value = "gpt2")]
    pub shape: BenchShape,

    /// Questions in a batch
    #[arg(long, value_name = "Q", default_value = "4")]
    pub questions: NonZeroUsize,

    /// Trajectories of each question [default: 64, or 8 with --annotate and --train reward]
    #[arg(long, short = 'n', value_name = "N")]
    pub samples: Option<NonZeroUsize>,

    /// Measure annotation: rollouts from every thought of every trajectory
    #[arg(long, conflicts_with = "reward")]
    pub annotate: bool,

    /// Measure a step of training: forward, backward, optimizer
    #[arg(
        long,
        value_enum,
        value_name = "MODEL",
        conflicts_with_all = ["annotate", "reward", "data"]
    )]
    pub train: Option<TrainTarget>,

    /// Train adapters of this rank instead of all weights, for --train; 0 for all weights
    #[arg(long, value_name = "RANK", default_value = "0")]
    pub lora: usize,

    /// The probability of dropout on the adapters' inputs, for --lora
    #[arg(long, value_name = "P", value_parser = values::share, default_value = "0")]
    pub lora_dropout: f32,

    /// Recompute activations instead of keeping them, for --train
    #[arg(long, requires = "train")]
    pub recompute: bool,

    /// Sequences of a batch, for --train
    #[arg(long, value_name = "COUNT", default_value = "256")]
    pub batch: NonZeroUsize,

    /// Target tokens of each sequence, for --train reasoner
    #[arg(long, value_name = "COUNT", default_value = "16")]
    pub target: NonZeroUsize,

    /// Rollouts from every thought, for --annotate
    #[arg(long, short = 'm', value_name = "M", default_value = "4")]
    pub rollouts: NonZeroUsize,

    /// Tokens of each prompt
    #[arg(long, value_name = "L", default_value = "72")]
    pub prompt: NonZeroUsize,

    /// Use the prompts of all questions of a file instead, encoded by --tokenizer
    #[arg(
        long,
        value_name = "FILE",
        requires = "tokenizer",
        conflicts_with_all = ["questions", "prompt"]
    )]
    pub data: Option<PathBuf>,

    #[command(flatten)]
    pub fields: FieldNames,

    /// The tokenizer's directory, for --data
    #[arg(long, value_name = "DIR", requires = "data")]
    pub tokenizer: Option<PathBuf>,

    /// Score every thought with a reward model of the same shape
    #[arg(long)]
    pub reward: bool,

    /// Thoughts of each trajectory
    #[arg(long, value_name = "T", default_value = "6")]
    pub thoughts: NonZeroUsize,

    /// Answer tokens of each trajectory
    #[arg(long, value_name = "A", default_value = "6")]
    pub answer: NonZeroUsize,

    /// The dropout probability; 0 for none [default: 0.2, or 0 with --train]
    #[arg(
        long = "dropout-p",
        alias = "p",
        value_name = "P",
        value_parser = values::share,
        allow_negative_numbers = true
    )]
    pub p: Option<f32>,

    /// Repetitions; the fastest and the median are reported
    #[arg(long, value_name = "COUNT", default_value = "3")]
    pub repeat: NonZeroUsize,

    /// The seed of weights and dropout masks
    #[arg(long, default_value = "0")]
    pub seed: u64,

    /// The checkpoint's dtype. Processors with AMX multiply weights that are bf16 numbers faster
    #[arg(long, value_enum, value_name = "DTYPE", default_value = "f32", conflicts_with = "train")]
    pub weights: StoredDtypeKind,

    #[command(flatten)]
    pub machine: MachineArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}
