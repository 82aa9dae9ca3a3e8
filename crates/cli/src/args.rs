//! What was typed: every command's flags, as clap reads them.
//!
//! Nothing here has a default that depends on the model; [`crate::settings`] says what the flags
//! mean. Values come from the command line, then `LATENT_TTS_<FLAG>`, then `--config FILE.toml`;
//! [`layers`] merges the three, and a flag that none of them gives is `None`. `common` holds what
//! commands share, `values` the readers of single values.

mod aggregation;
mod annotate;
mod common;
mod layers;
mod preset;
mod report;
mod sweep;
mod train;
pub mod values;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

pub use aggregation::AggregationArgs;
pub use annotate::{AnnotateArgs, LabelsKind, ThoughtsDtypeKind};
pub use common::{
    DeviceArgs, DtypeKind, IsaKind, MachineArgs, ModelArgs, OutputArgs, RunArgs, SamplerKind,
    SamplingArgs, ScopeKind, SitesKind,
};
pub use layers::parse;
pub use preset::PresetKind;
pub use report::ReportArgs;
pub use sweep::{SweepArgs, SweepGrid, rounded};
pub use train::{
    ObjectiveKind, ReasonerArgs, ReasonerMode, RemovalKind, RewardArgs, ScoreHeadKind,
    TrainCommand, TrainingArgs,
};

/// Said under every command's help.
const LAYERS: &str = "Every flag can also be set by an environment variable (--max-new-tokens by LATENT_TTS_MAX_NEW_TOKENS) \
or in a file (max-new-tokens = 64 in FILE.toml, given by --config FILE.toml, for eval, solve, sweep and annotate). The command line wins \
over the environment, the environment over the file, the file over the model's defaults.";

/// Makes latent reasoning models better at answering by thinking many times in parallel.
///
/// It loads a latent reasoner (COCONUT, CODI, CoLaR, Latent-SFT or Render-of-Thought) or its
/// baseline in words, samples N trajectories of latent thoughts for each question, scores them with
/// a latent reward model if there is one, and aggregates their answers.
#[derive(Debug, Parser)]
#[command(
    name = "latent-tts",
    version,
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(
    after_help = "Start with `latent-tts eval`: it needs nothing but itself. For a checkpoint of yours, `latent-tts inspect DIR`, then `latent-tts eval --model DIR`."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a benchmark under parallel scaling
    ///
    /// Samples N trajectories for every question, records them in a run directory, and reports what
    /// each way of choosing an answer gives for every number of trajectories up to N. A run
    /// that was stopped, by whatever cause, goes on with --resume and ends with the same
    /// samples as one that was not.
    #[command(after_help = format!("\
Examples:
  latent-tts eval    (the embedded models on 300 embedded problems, about a minute)
  latent-tts eval --data embedded:hard --limit 1000 --seeds 3
  latent-tts eval --model ./coconut-gpt2 --data gsm8k_test.jsonl
  latent-tts eval --model ./codi --reward-model ./latent-rm --data test.json --samples 16 --sampler noise --sigma 0.5
  latent-tts eval --model ./coconut-gpt2 --data test.json --limit 100 --seeds 3 --out runs/mine --json
  latent-tts eval --model ./codi --reward-model ./latent-rm --data test.json --aggregate maj,beam --beam-width 4
  latent-tts eval --model ./coconut-gpt2 --data test.json --adaptive --confidence 0.99
  latent-tts eval --model ./gpt2-cot --method cot --data test.json --temperature 0.7 --top-p 0.95

{LAYERS}"))]
    Eval(EvalArgs),

    /// Answer one question
    ///
    /// Thinks N times about one question and prints the answer, how the trajectories voted, and
    /// where the time went. The question is the argument, or standard input if the argument is
    /// `-`.
    #[command(after_help = format!("\
Examples:
  latent-tts solve \"Grace has 484 muffins. Fiona has a quarter as many muffins as Grace. How many muffins do they have together?\"
  latent-tts solve --model ./coconut-gpt2 \"Tom has 3 boxes of 4 apples and eats 2. How many are left?\"
  echo \"What is 12 times 11?\" | latent-tts solve --model ./codi --samples 64 -

{LAYERS}"))]
    Solve(SolveArgs),

    /// Find how strongly to perturb
    ///
    /// Runs an eval for each strength of dropout or noise, or searches an interval for the largest
    /// coverage as the paper does. Each value has a run directory; a table, sweep.json and the
    /// page compare them and say which is best.
    #[command(after_help = format!("\
Examples:
  latent-tts sweep --model ./coconut-gpt2 --data test.json --p 0:0.9    (search)
  latent-tts sweep --model ./coconut-gpt2 --data test.json --p 0.05:0.5:0.05 --sigma 0.1,0.3,0.5 --limit 200
  latent-tts sweep --model ./coconut-gpt2 --data test.json --p 0.1,0.2 --sites both,mlp --scope thoughts,all --out runs/sites

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
  latent-tts report runs/sweep-coconut-test

{LAYERS}"))]
    Report(ReportArgs),

    /// Train a reasoner or a reward model
    ///
    /// First a model that says its steps, then one that thinks them, then rollouts (annotate), then
    /// a model that judges thoughts.
    #[command(subcommand)]
    Train(TrainCommand),

    /// Label thoughts for training a reward model
    ///
    /// Samples N trajectories for every question, and from every thought M rollouts to the end; a
    /// thought's label is the share of its rollouts that answer right. Questions whose
    /// trajectories are all right or all wrong are left out. What is done is kept shard by
    /// shard, and --resume goes on after the last.
    #[command(after_help = format!("\
Examples:
  latent-tts annotate --model ./coconut-gpt2 --data train.json --out labels
  latent-tts annotate --model ./coconut-gpt2 --data train.json --trajectories 8 --rollouts 128 --shard 1/4 --out labels
  latent-tts annotate --model ./coconut-gpt2 --data train.json --labels final --thoughts-dtype bf16 --json

{LAYERS}"))]
    Annotate(AnnotateArgs),

    /// Say what a checkpoint holds
    ///
    /// Reads the headers of a checkpoint directory: the family and the backbone that were
    /// recognised, the defaults they bring, and every tensor that is used, ignored, unknown or
    /// missing. Works on reasoners and on reward models.
    #[command(after_help = format!("\
Examples:
  latent-tts inspect embedded
  latent-tts inspect ./coconut-gpt2
  latent-tts inspect ./latent-rm --json
  latent-tts inspect ./coconut-gpt2 --values    (also reads every weight and checks that it is finite)

{LAYERS}"))]
    Inspect(InspectArgs),

    /// Say what this machine can do
    ///
    /// Names the device, the instruction set, threads and memory, measures arithmetic and memory
    /// speed for about a second, and says what is not as fast as it could be.
    #[command(after_help = format!("\
Examples:
  latent-tts doctor
  latent-tts doctor --threads 1 --json

{LAYERS}"))]
    Doctor(DoctorArgs),

    /// Compare this engine with a reference dump
    ///
    /// Runs the engine on what another implementation recorded and prints one line per check with
    /// its largest error. Exits with 1 if any check misses its tolerance.
    #[command(after_help = format!("\
Examples:
  latent-tts verify ./goldens

{LAYERS}"))]
    Verify(VerifyArgs),

    /// Write word problems of the built-in corpus
    ///
    /// Grade-school word problems in English with exact steps, made by a generator: problem I of a
    /// split under a seed is always the same. Splits: `train` to learn from, `valid` and `test`
    /// like it, `hard` with larger numbers, `ood` with combinations of sentences that training
    /// never shows. No question of one split can be in another, whatever the seed.
    ///
    /// Written is the paper's JSON: a list of {question, steps, answer, idx}, which eval --data and
    /// training read.
    #[command(after_help = format!("\
Examples:
  latent-tts corpus --split test --count 3
  latent-tts corpus --split test --count 1000 --out test.json
  latent-tts corpus --split train --count 50000 --offset 100000 --seed 1 --out part.json

{LAYERS}"))]
    Corpus(CorpusArgs),

    /// Measure speed at real shapes
    ///
    /// Runs a model of random weights and reports trajectories per second and the share of the
    /// machine's peak.
    #[command(after_help = format!("\
Examples:
  latent-tts bench
  latent-tts bench --shape gpt2 --questions 4 --samples 64 --threads 2 --json
  latent-tts bench --annotate --questions 512 --samples 8 --rollouts 4
  latent-tts bench --train reasoner --batch 256

{LAYERS}"))]
    Bench(BenchArgs),
}

/// The flags of an eval of which nothing is said.
pub fn default_eval_args() -> EvalArgs {
    match Cli::parse_from(["latent-tts", "eval"]).command {
        Command::Eval(args) => args,
        _ => unreachable!("`eval` is the command eval"),
    }
}

/// Flags of `eval`.
#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    /// Which models.
    #[command(flatten)]
    pub model: ModelArgs,

    /// The questions: a file (a JSON array or lines of {question, answer}, GSM8K, MATH-500, GPQA
    /// and their like), or word problems that the program makes itself, of embedded:SPLIT or
    /// embedded:SPLIT:FIRST..END with a split of test, hard, ood, valid, train [default: the
    /// first 300 of embedded:test]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<String>,

    /// Take only the first questions
    #[arg(long, value_name = "COUNT", help_heading = "Data")]
    pub limit: Option<NonZeroUsize>,

    /// How to sample.
    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// How trajectories become one answer.
    #[command(flatten)]
    pub aggregation: AggregationArgs,

    /// How to go over the questions.
    #[command(flatten)]
    pub run: RunArgs,

    /// The run directory [default: runs/MODEL-DATA-DIGEST, named by model, data and settings]
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,

    /// Replace the run in the run directory
    #[arg(long, help_heading = "Output")]
    pub overwrite: bool,

    /// Report these numbers of trajectories [default: powers of two up to --samples]
    #[arg(long, value_name = "K,...", value_delimiter = ',', help_heading = "Output")]
    pub k: Option<Vec<NonZeroUsize>>,

    /// How to print.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Read flags that are not given otherwise from a TOML file
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pub config: Option<PathBuf>,
}

/// Flags of `solve`.
#[derive(Debug, Args)]
pub struct SolveArgs {
    /// The question; `-` reads it from standard input
    #[arg(value_name = "TEXT")]
    pub text: String,

    /// Which models.
    #[command(flatten)]
    pub model: ModelArgs,

    /// How to sample.
    #[command(flatten)]
    pub sampling: SamplingArgs,

    /// How trajectories become one answer.
    #[command(flatten)]
    pub aggregation: AggregationArgs,

    /// With what.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// How to print.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Read flags that are not given otherwise from a TOML file
    #[arg(long, value_name = "FILE.toml", help_heading = "Output")]
    pub config: Option<PathBuf>,
}

/// Flags of `inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The checkpoint: a directory, a Hugging Face id in the local cache, `embedded` or
    /// `embedded:reward`
    #[arg(value_name = "DIR")]
    pub dir: String,

    /// Take it for this family instead of the one that is recognised
    #[arg(long, alias = "family", value_name = "FAMILY", value_parser = values::family())]
    pub method: Option<engine::Family>,

    /// Also read every weight and check that it is finite
    #[arg(long)]
    pub values: bool,

    /// How to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// With what.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// How to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The reference dump
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// With what.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// How to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of `corpus`.
#[derive(Debug, Args)]
pub struct CorpusArgs {
    /// Which part: train, valid, test, hard or ood
    #[arg(long, value_name = "SPLIT", default_value = "test")]
    pub split: ::train::corpus::Split,

    /// How many problems
    #[arg(long, value_name = "COUNT", default_value = "1000", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,

    /// The number of the first problem
    #[arg(long, value_name = "INDEX", default_value = "0")]
    pub offset: u64,

    /// The seed; another one makes other problems
    #[arg(long, default_value = "0")]
    pub seed: u64,

    /// The file to write, replaced if it is there [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// The shape of a model of random weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchShape {
    /// GPT-2, 124M
    Gpt2,
    /// Llama 3.2, 1B
    #[value(name = "llama-1b")]
    Llama1b,
    /// Qwen3-VL's text tower, 2B
    #[value(name = "qwen3-2b")]
    Qwen32b,
    /// The reasoner inside this program, 5M
    Embedded,
}

/// Who is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TrainTarget {
    /// A reasoner that thinks in latent steps, by the tokens that it says afterwards
    Reasoner,
    /// A reward model, by the trajectories of problems
    Reward,
}

/// Flags of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The model's shape
    #[arg(long, value_enum, default_value = "gpt2")]
    pub shape: BenchShape,

    /// Questions thought about together
    #[arg(long, value_name = "Q", default_value = "4")]
    pub questions: NonZeroUsize,

    /// Trajectories of each question [default: 64, or 8 with --annotate and --train reward]
    #[arg(long, short = 'n', value_name = "N")]
    pub samples: Option<NonZeroUsize>,

    /// Measure annotation: rollouts from every thought of every trajectory
    #[arg(long, conflicts_with = "reward")]
    pub annotate: bool,

    /// Measure a step of training: forward, backward, optimizer
    #[arg(long, value_enum, value_name = "WHO", conflicts_with_all = ["annotate", "reward", "data"])]
    pub train: Option<TrainTarget>,

    /// Sequences of a batch, for --train
    #[arg(long, value_name = "COUNT", default_value = "256")]
    pub batch: NonZeroUsize,

    /// Tokens that a reasoner learns to say in each sequence, for --train
    #[arg(long, value_name = "COUNT", default_value = "16")]
    pub target: NonZeroUsize,

    /// Rollouts from every thought, for --annotate
    #[arg(long, short = 'm', value_name = "M", default_value = "4")]
    pub rollouts: NonZeroUsize,

    /// Tokens of each prompt
    #[arg(long, value_name = "L", default_value = "72")]
    pub prompt: NonZeroUsize,

    /// Take the prompts of all questions of a file instead, read by --tokenizer
    #[arg(long, value_name = "FILE", requires = "tokenizer", conflicts_with_all = ["questions", "prompt"])]
    pub data: Option<PathBuf>,

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

    /// The share of elements that dropout drops; 0 for none [default: 0.2, or 0 with --train]
    #[arg(long, value_name = "P", value_parser = values::share, allow_negative_numbers = true)]
    pub p: Option<f32>,

    /// How often to measure; the best is reported
    #[arg(long, value_name = "COUNT", default_value = "3")]
    pub repeat: NonZeroUsize,

    /// The seed of weights and masks
    #[arg(long, default_value = "0")]
    pub seed: u64,

    /// With what.
    #[command(flatten)]
    pub machine: MachineArgs,

    /// How to print.
    #[command(flatten)]
    pub output: OutputArgs,
}
