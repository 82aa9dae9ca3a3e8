//! Arguments of `train reasoner` and `train reward`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{DeviceArgs, DtypeKind, OutputArgs, PresetKind, values};

/// Subcommands of `latent-tts train`.
#[derive(Debug, Subcommand)]
pub enum TrainCommand {
    /// Train a latent reasoner, or a baseline with or without a chain of thought
    ///
    /// COCONUT's curriculum: the steps of a model's chain of thought are removed one by one, and
    /// latent thoughts take their place. Start with --mode cot, then train --mode latent with
    /// --init on its output. The result is a directory that eval, annotate and transformers load.
    #[command(after_help = "\
Examples:
  latent-tts train reasoner --mode cot --out models/cot --steps 3300
  latent-tts train reasoner --mode latent --init models/cot --out models/latent --steps 8200 \
    --lr 1e-3 --floor 0.01 --dropout 0.1
  latent-tts train reasoner --mode latent --init ./gpt2 --data gsm8k_train.jsonl \
    --out models/mine --removal stages")]
    Reasoner(Box<ReasonerArgs>),

    /// Train a latent reward model on the output of annotate
    ///
    /// Starts from a reasoner's weights and learns to rank the thoughts of one problem's
    /// trajectories by their labels.
    #[command(after_help = "\
Examples:
  latent-tts train reward --model models/latent --annotations labels/ \
    --held-out labels-valid/ --out models/rm
  latent-tts train reward --model models/latent --annotations labels/ --out models/rm-bce \
    --objective bce --head linear
  latent-tts train reward --model models/latent --out models/rm-none --objective untrained")]
    Reward(Box<RewardArgs>),
}

/// What a reasoner generates before its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReasonerMode {
    /// Latent thoughts
    Latent,
    /// A chain of thought in text
    Cot,
    /// Nothing
    NoCot,
}

/// The schedule by which thoughts replace steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RemovalKind {
    /// All thoughts from the start, steps removed at a constant rate
    Smooth,
    /// COCONUT's stages: thoughts are added as steps are removed
    Stages,
}

/// Flags of `train reasoner`.
#[derive(Debug, Args)]
pub struct ReasonerArgs {
    /// The directory to write
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Published settings in place of the defaults below: `paper` is COCONUT's run on GSM8K. Other
    /// flags override it
    #[arg(long, value_enum)]
    pub preset: Option<PresetKind>,

    /// What the model generates before its answer
    #[arg(long, value_enum, default_value = "latent")]
    pub mode: ReasonerMode,

    /// Initialise from this directory of a GPT-2, Llama or Qwen2, or from a GGUF file of llama or
    /// qwen2 [default: random weights]
    #[arg(long, value_name = "DIR")]
    pub init: Option<PathBuf>,

    /// Training data: a file (the paper's JSON, GSM8K's JSON lines, or lines `question||steps ####
    /// answer`) [default: the built-in corpus, which is unbounded]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<PathBuf>,

    /// Held-out data: a file [default: the corpus's valid split when training on the corpus]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub held_out: Option<PathBuf>,

    /// Held-out problems to evaluate on
    #[arg(long, value_name = "COUNT", default_value = "500", help_heading = "Data")]
    pub held_out_count: usize,

    /// Thoughts of each example at the end of the curriculum
    #[arg(long, value_name = "T", default_value = "6", help_heading = "Curriculum")]
    pub thoughts: NonZeroUsize,

    /// The schedule by which thoughts replace steps
    #[arg(long, value_enum, default_value = "smooth", help_heading = "Curriculum")]
    pub removal: RemovalKind,

    /// The share of training after which all steps are removed
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = values::share,
        default_value = "0.4",
        help_heading = "Curriculum"
    )]
    pub rise: f32,

    /// Smooth: the share of examples that have no steps from the start
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = values::share,
        default_value = "0.15",
        help_heading = "Curriculum"
    )]
    pub ahead: f32,

    /// The share of examples whose number of removed steps (or stage) is sampled uniformly
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = values::share,
        default_value = "0.1",
        help_heading = "Curriculum"
    )]
    pub mixed: f32,

    /// Stages: the number of stages with a fixed number of removed steps
    #[arg(long, value_name = "COUNT", default_value = "3", help_heading = "Curriculum")]
    pub stages: usize,

    /// Stages: thoughts for each removed step
    #[arg(long, value_name = "COUNT", default_value = "2", help_heading = "Curriculum")]
    pub thoughts_per_step: usize,

    /// The weight of an auxiliary loss that predicts the digits of step t's result from thought t;
    /// 0 for none
    #[arg(long, value_name = "WEIGHT", default_value = "0.3", help_heading = "Curriculum")]
    pub digits: f32,

    /// A new model's hidden size
    #[arg(long, default_value = "256", help_heading = "Shape (without --init)")]
    pub width: NonZeroUsize,

    /// A new model's layers
    #[arg(long, default_value = "6", help_heading = "Shape (without --init)")]
    pub layers: NonZeroUsize,

    /// A new model's attention heads
    #[arg(long, default_value = "8", help_heading = "Shape (without --init)")]
    pub heads: NonZeroUsize,

    /// A new model's maximum sequence length
    #[arg(long, default_value = "256", help_heading = "Shape (without --init)")]
    pub context: NonZeroUsize,

    #[command(flatten)]
    pub training: TrainingArgs,

    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of the training loop and the optimizer.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Training")]
pub struct TrainingArgs {
    /// Optimizer steps
    #[arg(long, value_name = "COUNT", default_value = "3300")]
    pub steps: NonZeroU32,

    /// Examples (problems, for a reward model) in a batch
    #[arg(long, value_name = "COUNT", default_value = "512")]
    pub batch: NonZeroUsize,

    /// Gradient accumulation: batches per optimizer step
    #[arg(long, value_name = "COUNT", default_value = "1")]
    pub accumulate: NonZeroU32,

    /// The peak learning rate
    #[arg(long, value_name = "RATE", default_value = "1.5e-3")]
    pub lr: f32,

    /// Warmup steps until the peak learning rate
    #[arg(long, value_name = "COUNT", default_value = "300")]
    pub warmup: u32,

    /// The final learning rate, as a share of the peak; 1 keeps it constant
    #[arg(long, value_name = "SHARE", default_value = "0.1")]
    pub floor: f32,

    /// AdamW's weight decay
    #[arg(long, value_name = "RATE", default_value = "0.05")]
    pub weight_decay: f32,

    /// AdamW's beta2
    #[arg(long, value_name = "RATE", default_value = "0.98")]
    pub beta2: f32,

    /// Clip the gradient to this norm; 0 for no clipping
    #[arg(long, value_name = "NORM", default_value = "1")]
    pub clip: f32,

    /// The dropout probability in training
    #[arg(long, value_name = "P", value_parser = values::share, default_value = "0.05")]
    pub dropout: f32,

    /// The random seed
    #[arg(long, default_value = "0")]
    pub seed: u64,

    /// Steps between evaluations on held-out problems; 0 for one at the end
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub look_every: u32,

    /// Early stopping: end after this many evaluations without improvement and keep the best
    /// weights; 0 for never
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub patience: u32,

    /// Steps between checkpoints that --resume continues from; 0 for one at the end or when
    /// interrupted
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub save_every: u32,

    /// The data type of the written weights
    #[arg(long, value_enum, default_value = "f32")]
    pub save_dtype: DtypeKind,

    /// Continue the training in --out
    #[arg(long)]
    pub resume: bool,
}

/// The training objective of a reward model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ObjectiveKind {
    /// Step-wise contrastive (the paper's): at each step, cross-entropy between the labels and the
    /// softmax of the scores over a problem's trajectories
    Contrastive,
    /// Binary cross-entropy of each score with its label
    Bce,
    /// Pairwise logistic: at each step, over all pairs of trajectories with unequal labels
    Pairwise,
    /// No training: the reasoner's weights and a random head (the paper's ablation)
    Untrained,
}

/// The head that maps hidden states to a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScoreHeadKind {
    /// A linear map of the hidden state (the published layout)
    Linear,
    /// Two layers over the hidden state before a thought and the thought itself
    Compare,
}

/// Flags of `train reward`.
#[derive(Debug, Args)]
pub struct RewardArgs {
    /// The reasoner whose thoughts are scored
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,

    /// Initialise from this model's weights [default: the reasoner's]
    #[arg(long, value_name = "DIR")]
    pub init: Option<PathBuf>,

    /// Directories that annotate wrote
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    pub annotations: Vec<PathBuf>,

    /// Annotations of held-out problems
    #[arg(long, value_name = "DIR")]
    pub held_out: Option<PathBuf>,

    /// The directory to write
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Published settings in place of the defaults below: `paper` is the LatentRM's head, loss,
    /// batch and learning rate. Other flags override it
    #[arg(long, value_enum)]
    pub preset: Option<PresetKind>,

    /// The training objective
    #[arg(long, value_enum, default_value = "contrastive")]
    pub objective: ObjectiveKind,

    /// Also train an outcome head: the reward model reads each answer after the thoughts and gives
    /// an outcome reward, which the voting rules then use
    #[arg(long)]
    pub reads_answers: bool,

    /// A reference reasoner: its unperturbed thoughts about each question precede the candidate's
    /// in the reward model's input. It is copied into the reward model's directory
    #[arg(id = "mind", long = "mind", value_name = "DIR")]
    pub reference: Option<PathBuf>,

    /// The head that maps hidden states to a score
    #[arg(long, value_enum, default_value = "compare")]
    pub head: ScoreHeadKind,

    /// The weight of an auxiliary loss that predicts the digits of step results from the reward
    /// model's hidden states; 0 for none
    #[arg(long, value_name = "WEIGHT", default_value = "0.3")]
    pub digits: f32,

    /// The loss weight of the last step relative to the first: step t of T weighs 1 + (FACTOR - 1)
    /// (t - 1) / (T - 1)
    #[arg(long, value_name = "FACTOR", default_value = "1")]
    pub late: f32,

    #[command(flatten)]
    pub training: TrainingArgs,

    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}
