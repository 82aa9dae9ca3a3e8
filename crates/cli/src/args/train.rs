//! Flags of `train reasoner` and `train reward`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{DeviceArgs, DtypeKind, OutputArgs, PresetKind, values};

/// What is trained.
#[derive(Debug, Subcommand)]
pub enum TrainCommand {
    /// Train a latent reasoner, or a baseline that thinks in words or not at all
    ///
    /// COCONUT's curriculum: a model that says every step of a solution loses them one by one and
    /// thinks in their place. Begin with --mode cot, go on with --mode latent --init from what
    /// it wrote. The result is a directory that eval, annotate and transformers load.
    #[command(after_help = "\
Examples:
  latent-tts train reasoner --mode cot --out models/cot --steps 3300
  latent-tts train reasoner --mode latent --init models/cot --out models/latent --steps 8200 --lr 1e-3 --floor 0.01 --dropout 0.1
  latent-tts train reasoner --mode latent --init ./gpt2 --data gsm8k_train.jsonl --out models/mine --removal stages")]
    Reasoner(Box<ReasonerArgs>),

    /// Train a latent reward model on what annotate wrote
    ///
    /// Starts from a reasoner's weights and learns to tell good thoughts from bad ones among the
    /// trajectories of one problem.
    #[command(after_help = "\
Examples:
  latent-tts train reward --model models/latent --annotations labels/ --held-out labels-valid/ --out models/rm
  latent-tts train reward --model models/latent --annotations labels/ --out models/rm-bce --objective bce --head linear
  latent-tts train reward --model models/latent --out models/rm-none --objective untrained")]
    Reward(Box<RewardArgs>),
}

/// What a reasoner learns to do before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReasonerMode {
    /// Think in vectors
    Latent,
    /// Say every step
    Cot,
    /// Answer at once
    NoCot,
}

/// How steps become thoughts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RemovalKind {
    /// All thoughts from the beginning, steps removed evenly
    Smooth,
    /// COCONUT's stages: thoughts come as steps go
    Stages,
}

/// Flags of `train reasoner`.
#[derive(Debug, Args)]
pub struct ReasonerArgs {
    /// The directory to write
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Published settings in place of the defaults below: `paper` is COCONUT's run on GSM8K. What
    /// is given otherwise wins
    #[arg(long, value_enum)]
    pub preset: Option<PresetKind>,

    /// What it learns to do before it answers
    #[arg(long, value_enum, default_value = "latent")]
    pub mode: ReasonerMode,

    /// Begin with this GPT-2 or Llama directory [default: random weights]
    #[arg(long, value_name = "DIR")]
    pub init: Option<PathBuf>,

    /// What to learn from: a file (the paper's JSON, GSM8K's JSON lines, or lines `question||steps
    /// #### answer`) [default: the built-in corpus, which never ends]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub data: Option<PathBuf>,

    /// What to look at on the way: a file [default: the corpus's valid split if it is learned
    /// from]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub held_out: Option<PathBuf>,

    /// Problems to look at
    #[arg(long, value_name = "COUNT", default_value = "500", help_heading = "Data")]
    pub held_out_count: usize,

    /// Thoughts
    #[arg(long, value_name = "T", default_value = "6", help_heading = "Curriculum")]
    pub thoughts: NonZeroUsize,

    /// How steps become thoughts
    #[arg(long, value_enum, default_value = "smooth", help_heading = "Curriculum")]
    pub removal: RemovalKind,

    /// The share of training until no step is said
    #[arg(long, value_name = "SHARE", value_parser = values::share, default_value = "0.4", help_heading = "Curriculum")]
    pub rise: f32,

    /// Smooth: the share of examples that say no step from the beginning
    #[arg(long, value_name = "SHARE", value_parser = values::share, default_value = "0.15", help_heading = "Curriculum")]
    pub ahead: f32,

    /// The share of examples that are as if from any moment of training
    #[arg(long, value_name = "SHARE", value_parser = values::share, default_value = "0.1", help_heading = "Curriculum")]
    pub mixed: f32,

    /// Stages: how many with a fixed number of removed steps
    #[arg(long, value_name = "COUNT", default_value = "3", help_heading = "Curriculum")]
    pub stages: usize,

    /// Stages: thoughts for each removed step
    #[arg(long, value_name = "COUNT", default_value = "2", help_heading = "Curriculum")]
    pub thoughts_per_step: usize,

    /// The weight of a loss that reads the digits of step t's result from thought t; 0 for none
    #[arg(long, value_name = "WEIGHT", default_value = "0.3", help_heading = "Curriculum")]
    pub digits: f32,

    /// A new model's width
    #[arg(long, default_value = "256", help_heading = "Shape (without --init)")]
    pub width: NonZeroUsize,

    /// A new model's blocks
    #[arg(long, default_value = "6", help_heading = "Shape (without --init)")]
    pub layers: NonZeroUsize,

    /// A new model's heads
    #[arg(long, default_value = "8", help_heading = "Shape (without --init)")]
    pub heads: NonZeroUsize,

    /// A new model's positions
    #[arg(long, default_value = "256", help_heading = "Shape (without --init)")]
    pub context: NonZeroUsize,

    /// How to learn.
    #[command(flatten)]
    pub training: TrainingArgs,

    /// With what.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// How to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// How to learn.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Learning")]
pub struct TrainingArgs {
    /// Steps of the optimizer
    #[arg(long, value_name = "COUNT", default_value = "3300")]
    pub steps: NonZeroU32,

    /// Examples (problems, for a reward model) of a batch
    #[arg(long, value_name = "COUNT", default_value = "512")]
    pub batch: NonZeroUsize,

    /// Batches whose gradients make one step
    #[arg(long, value_name = "COUNT", default_value = "1")]
    pub accumulate: NonZeroU32,

    /// The largest learning rate
    #[arg(long, value_name = "RATE", default_value = "1.5e-3")]
    pub lr: f32,

    /// Steps until the learning rate is at its largest
    #[arg(long, value_name = "COUNT", default_value = "300")]
    pub warmup: u32,

    /// The learning rate at the end, as a share of the largest; 1 keeps it constant
    #[arg(long, value_name = "SHARE", default_value = "0.1")]
    pub floor: f32,

    /// Decay of weights
    #[arg(long, value_name = "RATE", default_value = "0.05")]
    pub weight_decay: f32,

    /// Decay of the gradients' second moment
    #[arg(long, value_name = "RATE", default_value = "0.98")]
    pub beta2: f32,

    /// The largest norm of a gradient; 0 for none
    #[arg(long, value_name = "NORM", default_value = "1")]
    pub clip: f32,

    /// Dropout while learning
    #[arg(long, value_name = "P", value_parser = values::share, default_value = "0.05")]
    pub dropout: f32,

    /// The seed of everything random
    #[arg(long, default_value = "0")]
    pub seed: u64,

    /// Steps between looks at held-out problems; 0 for one at the end
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub look_every: u32,

    /// Stop after so many looks without improvement and keep what was best; 0 for never
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub patience: u32,

    /// Steps between states that --resume can go on from; 0 for one at the end or when interrupted
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub save_every: u32,

    /// The format of the weights that are written
    #[arg(long, value_enum, default_value = "f32")]
    pub save_dtype: DtypeKind,

    /// Go on where --out stopped
    #[arg(long)]
    pub resume: bool,
}

/// What a reward model is trained by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ObjectiveKind {
    /// At each step, trajectories compete for their share of success (the paper's)
    Contrastive,
    /// Each score is a logit of its label
    Bce,
    /// At each step, of every two trajectories with unlike labels the better one is to be scored
    /// higher
    Pairwise,
    /// Not at all: the reasoner's weights and a random head (the paper's ablation)
    Untrained,
}

/// What reads a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScoreHeadKind {
    /// A linear map of the hidden state (the published layout)
    Linear,
    /// Two layers that compare the hidden state before a thought with the thought itself
    Compare,
}

/// Flags of `train reward`.
#[derive(Debug, Args)]
pub struct RewardArgs {
    /// The reasoner whose thoughts are scored
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,

    /// Begin with this model's weights [default: the reasoner's]
    #[arg(long, value_name = "DIR")]
    pub init: Option<PathBuf>,

    /// What annotate wrote
    #[arg(long, value_name = "DIR", value_delimiter = ',')]
    pub annotations: Vec<PathBuf>,

    /// What annotate wrote for problems to look at
    #[arg(long, value_name = "DIR")]
    pub held_out: Option<PathBuf>,

    /// The directory to write
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Published settings in place of the defaults below: `paper` is the LatentRM's head, loss,
    /// batch and learning rate. What is given otherwise wins
    #[arg(long, value_enum)]
    pub preset: Option<PresetKind>,

    /// What it is trained by
    #[arg(long, value_enum, default_value = "contrastive")]
    pub objective: ObjectiveKind,

    /// Score whole answers, too: it reads each answer after the thoughts and gives an outcome
    /// reward, which the voting rules then use
    #[arg(long)]
    pub reads_answers: bool,

    /// A reference reasoner: its unperturbed thoughts about each question are read before the
    /// candidate's. The model is copied into the reward model's directory
    #[arg(long, value_name = "DIR")]
    pub mind: Option<PathBuf>,

    /// What reads a score
    #[arg(long, value_enum, default_value = "compare")]
    pub head: ScoreHeadKind,

    /// The weight of an auxiliary loss that predicts the digits of step results from the reward
    /// model's hidden states; 0 for none
    #[arg(long, value_name = "WEIGHT", default_value = "0.3")]
    pub digits: f32,

    /// How much more the last step weighs than the first: step t of T weighs 1 + (LATE - 1) (t -
    /// 1) / (T - 1)
    #[arg(long, value_name = "FACTOR", default_value = "1")]
    pub late: f32,

    /// How to learn.
    #[command(flatten)]
    pub training: TrainingArgs,

    /// With what.
    #[command(flatten)]
    pub device: DeviceArgs,

    /// How to print.
    #[command(flatten)]
    pub output: OutputArgs,
}
