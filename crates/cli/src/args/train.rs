//! Arguments of `train reasoner` and `train reward`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use model::{LoraConfig, LoraTargets};
use serde_json::{Value, json};
use tensor::rng::{MAX_ELEMENTS, MAX_LAYERS};
use train::model_dir::{AdapterSpec, AdapterStart};

use super::values::WeightedData;
use super::{DeviceArgs, OutputArgs, PresetKind, StoredDtypeKind, values};

/// The most examples of a batch: one more digit is a slip.
const MAX_BATCH: usize = 1 << 20;
/// The most thoughts of an example, and of what they are counted in.
const MAX_THOUGHTS: usize = 1 << 16;
/// The most positions of a new model.
const MAX_POSITIONS: usize = 1 << 24;
/// The largest rank of an adapter.
const MAX_RANK: usize = 1 << 16;

/// Subcommands of `latent-tts train`.
#[derive(Debug, Subcommand)]
pub enum TrainCommand {
    /// Train a latent reasoner, or a baseline with or without a chain of thought
    ///
    /// --method names how thoughts are learned. coconut removes the steps of a chain of thought one
    /// by one and puts thoughts in their place; start with --mode cot, then train --mode latent
    /// with --init on its output. codi learns both at once: the same model as a teacher that writes
    /// the steps and as a student that thinks, drawn to the teacher's hidden states. colar
    /// compresses the steps into vectors and learns to predict the next one. latent-sft does so
    /// with mixtures of token embeddings, which the language-model head predicts, and rot with a
    /// fixed number of vectors, which a projection head predicts; start both from --mode cot.
    /// --step-decoder adds SIM-CoT's auxiliary loss to coconut and codi. docs/training.md says
    /// which to choose.
    ///
    /// All weights are trained, or with --lora adapters on a frozen model. The result is a
    /// directory that eval, annotate, transformers and (an adapter) peft load.
    #[command(after_help = "\
Examples:
  latent-tts train reasoner --mode cot --out models/cot --steps 3300
  latent-tts train reasoner --mode latent --init models/cot --out models/latent --steps 8200 \
    --lr 1e-3 --floor 0.01 --dropout 0.1
  latent-tts train reasoner --method codi --preset codi-llama --init smollm2.gguf \
    --data gsm8k_train.jsonl --held-out valid.json --eval-every 200 --out models/codi \
    --steps 20000
  latent-tts train reasoner --method latent-sft --init models/cot --out models/latent-sft
  latent-tts train reasoner --method rot --init models/cot --thoughts 24 --out models/rot
  latent-tts train reasoner --preset paper --init ./gpt2 --data gsm8k_train.jsonl \
    --out models/mine
  latent-tts train reasoner --mode cot --init ./gpt2 --out models/mix \
    --data more.jsonl:4 --data extra.jsonl:1 --data corpus:1")]
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
  latent-tts train reward --model models/lora --lora 16 --reference reasoner --reads-answers \
    --objective pairwise --annotations labels/ --out models/judge
  latent-tts train reward --model models/latent --out models/rm-none --objective untrained")]
    Reward(Box<RewardArgs>),
}

/// How thoughts are learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MethodKind {
    /// Thoughts replace the steps one by one; the hidden state is the next thought
    Coconut,
    /// Self-distillation from written steps; a projector makes the next thought
    Codi,
    /// Compressed steps; a Gaussian head predicts the next one, the model decides when to end
    Colar,
    /// Compressed steps as mixtures of token embeddings; the LM head mixes the next one, the model
    /// decides when to end
    LatentSft,
    /// Compressed steps in a fixed number of slots; a SwiGLU head projects the next one
    Rot,
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

    /// Published settings in place of the defaults below: `paper` is COCONUT's run on GSM8K; or
    /// `tiny`, a small model for a processor. Other flags override it
    #[arg(long, value_enum)]
    pub preset: Option<PresetKind>,

    /// How thoughts are learned
    #[arg(long, value_enum, default_value = "coconut")]
    pub method: MethodKind,

    /// What the model generates before its answer
    #[arg(long, value_enum, default_value = "latent")]
    pub mode: ReasonerMode,

    /// Initialise from this directory or GGUF file of a GPT-2, Llama, Qwen2 or Qwen3, or from an
    /// adapter's directory (see --adapter) [default: random weights]
    #[arg(long, value_name = "DIR")]
    pub init: Option<String>,

    /// Training data, one or several: a file (the paper's JSON, GSM8K's JSON lines, or lines
    /// `question||steps #### answer`), or `corpus`, the built-in one. A weight is the relative
    /// share of examples; a file's is its number of examples if not given [default: corpus]
    #[arg(
        long,
        value_name = "FILE[:WEIGHT]",
        value_parser = values::weighted_data,
        value_delimiter = ',',
        help_heading = "Data"
    )]
    pub data: Vec<WeightedData>,

    /// Held-out data: a file [default: the corpus's valid split when training on the corpus]
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub held_out: Option<PathBuf>,

    /// Held-out problems to evaluate on
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = values::zero_to::<MAX_BATCH>,
        default_value = "500",
        help_heading = "Data"
    )]
    pub held_out_count: usize,

    /// Thoughts of each example at the end of the curriculum; with latent-sft the most that are
    /// generated [default: 6; latent-sft 64; rot 32]
    #[arg(
        long,
        value_name = "T",
        value_parser = values::up_to::<MAX_THOUGHTS>,
        help_heading = "Curriculum"
    )]
    pub thoughts: Option<NonZeroUsize>,

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
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = values::zero_to::<MAX_THOUGHTS>,
        default_value = "3",
        help_heading = "Curriculum"
    )]
    pub stages: usize,

    /// Thoughts for each step [default: 1, with --removal stages 2]
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = values::up_to::<MAX_THOUGHTS>,
        help_heading = "Curriculum"
    )]
    pub thoughts_per_step: Option<NonZeroUsize>,

    /// The weight of an auxiliary loss that predicts the digits of a step's result from the last of
    /// its thoughts, and where it has several those of its operands from the first; 0 for none
    #[arg(
        long,
        value_name = "WEIGHT",
        value_parser = values::deviation,
        default_value = "0.3",
        help_heading = "Curriculum"
    )]
    pub digits: f32,

    /// SIM-CoT: the weight of an auxiliary loss that decodes each step from its thoughts with a
    /// second model, which is thrown away; coconut and codi, 0 for none
    #[arg(
        long,
        value_name = "WEIGHT",
        value_parser = values::deviation,
        default_value = "0",
        help_heading = "Methods"
    )]
    pub step_decoder: f32,

    /// CODI: the weight of the distillation loss; Render-of-Thought: that of the regression
    #[arg(
        long,
        value_name = "WEIGHT",
        value_parser = values::deviation,
        default_value = "1",
        help_heading = "Methods"
    )]
    pub gamma: f32,

    /// CODI: the inner width of the projector [default: the hidden size]
    #[arg(
        long,
        value_name = "WIDTH",
        value_parser = values::up_to::<MAX_ELEMENTS>,
        help_heading = "Methods"
    )]
    pub projector: Option<NonZeroUsize>,

    /// CODI: the teacher writes the last step too, whose result is the answer
    #[arg(long, help_heading = "Methods")]
    pub keep_last_step: bool,

    /// CoLaR: the fewest tokens that a thought stands for
    #[arg(
        long,
        value_name = "TOKENS",
        value_parser = values::up_to::<MAX_THOUGHTS>,
        default_value = "1",
        help_heading = "Methods"
    )]
    pub min_speed: NonZeroUsize,

    /// CoLaR: the most tokens that a thought stands for; each example has from the fewest to so
    /// many
    #[arg(
        long,
        value_name = "TOKENS",
        value_parser = values::up_to::<MAX_THOUGHTS>,
        default_value = "5",
        help_heading = "Methods"
    )]
    pub max_speed: NonZeroUsize,

    /// Latent-SFT, Render-of-Thought: the tokens that a thought stands for; with rot more where a
    /// chain needs more than its thoughts [default: 2]
    #[arg(
        long,
        value_name = "TOKENS",
        value_parser = values::up_to::<MAX_THOUGHTS>,
        help_heading = "Methods"
    )]
    pub compression: Option<NonZeroUsize>,

    /// Latent-SFT, Render-of-Thought: the share of examples that are fed the model's own thoughts,
    /// predicted in a first pass, in place of the steps'; 0 for none
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = values::whole_share,
        default_value = "0.5",
        help_heading = "Methods"
    )]
    pub scheduled_sampling: f32,

    /// CoLaR, Latent-SFT, Render-of-Thought: a later token of a thought weighs less, so that their
    /// order can be told; CoLaR's published method has all alike
    #[arg(long, help_heading = "Methods")]
    pub ordered: bool,

    /// CoLaR, Render-of-Thought: the inner width of the latent head
    #[arg(
        long,
        value_name = "WIDTH",
        value_parser = values::up_to::<MAX_ELEMENTS>,
        default_value = "2048",
        help_heading = "Methods"
    )]
    pub latent_head: NonZeroUsize,

    #[command(flatten)]
    pub lora: LoraArgs,

    /// A new model's hidden size
    #[arg(
        long,
        value_parser = values::up_to::<MAX_ELEMENTS>,
        default_value = "256",
        help_heading = "Shape (without --init)"
    )]
    pub width: NonZeroUsize,

    /// A new model's layers
    #[arg(
        long,
        value_parser = values::up_to::<MAX_LAYERS>,
        default_value = "6",
        help_heading = "Shape (without --init)"
    )]
    pub layers: NonZeroUsize,

    /// A new model's attention heads
    #[arg(
        long,
        value_parser = values::up_to::<MAX_ELEMENTS>,
        default_value = "8",
        help_heading = "Shape (without --init)"
    )]
    pub heads: NonZeroUsize,

    /// A new model's maximum sequence length
    #[arg(
        long,
        value_parser = values::up_to::<MAX_POSITIONS>,
        default_value = "256",
        help_heading = "Shape (without --init)"
    )]
    pub context: NonZeroUsize,

    #[command(flatten)]
    pub training: TrainingArgs,

    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags of LoRA.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "LoRA")]
pub struct LoraArgs {
    /// Train adapters of this rank and freeze the model; 0 trains all weights
    #[arg(
        id = "lora",
        long = "lora",
        value_name = "RANK",
        value_parser = values::zero_to::<MAX_RANK>,
        default_value = "0"
    )]
    pub rank: usize,

    /// The adapters' scale is ALPHA / RANK
    #[arg(
        id = "lora_alpha",
        long = "lora-alpha",
        value_name = "ALPHA",
        value_parser = values::above_zero,
        default_value = "32"
    )]
    pub alpha: f64,

    /// The probability of dropout on the adapters' inputs; a training without it is faster
    #[arg(
        id = "lora_dropout",
        long = "lora-dropout",
        value_name = "P",
        value_parser = values::share,
        default_value = "0"
    )]
    pub dropout: f32,

    /// The adapted modules by the end of their names, such as q_proj,v_proj or c_attn
    /// [default: every linear map of the blocks]
    #[arg(id = "lora_targets", long = "lora-targets", value_name = "NAMES", value_delimiter = ',')]
    pub targets: Vec<String>,

    /// What --lora trains where the initial model is an adapter itself [default: continue for a
    /// reasoner, over for a reward model]
    #[arg(id = "adapter", long = "adapter", value_enum)]
    pub start: Option<AdapterStartKind>,

    /// The model that an initial adapter is added to: a directory, a GGUF file or an id; that at
    /// the bottom of several adapters [default: the one that the adapter records]
    #[arg(id = "base", long = "base", value_name = "DIR")]
    pub base: Option<String>,

    /// Record this id of the base on the Hugging Face Hub with the adapter: owner/name,
    /// owner/name/file.gguf, perhaps with @revision
    #[arg(id = "base_id", long = "base-id", value_name = "ID", value_parser = values::hub_id)]
    pub base_id: Option<String>,

    /// Record this line with the adapter: how to get its base. It is told where the base is missing
    #[arg(id = "base_source", long = "base-source", value_name = "TEXT")]
    pub base_source: Option<String>,
}

/// What is trained where the initial model is an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AdapterStartKind {
    /// Its factors go on: an adapter of the same base and rank
    Continue,
    /// New factors over it: an adapter whose base is the initial one
    Over,
}

impl LoraArgs {
    /// The adapter to train; `None` if all weights are trained.
    pub fn spec(&self, seed: u64, default_start: AdapterStart) -> Option<AdapterSpec> {
        let start = self.start.map_or(default_start, |start| match start {
            AdapterStartKind::Continue => AdapterStart::Continue,
            AdapterStartKind::Over => AdapterStart::Over,
        });
        let (base_id, base_source) = (self.base_id.clone(), self.base_source.clone());
        Some(AdapterSpec { config: self.config(seed)?, start, base_id, base_source })
    }

    /// Those that determine the trained weights.
    pub fn settings(&self) -> Value {
        let Self { rank, alpha, dropout, targets, start, .. } = self;
        let start = start.map(|start| json!(format!("{start:?}")));
        let settings = [json!(rank), json!(alpha), json!(dropout), json!(targets)];
        settings.into_iter().chain(start).collect()
    }

    /// The adapters' configuration; `None` if all weights are trained.
    fn config(&self, seed: u64) -> Option<LoraConfig> {
        let targets = match self.targets.is_empty() {
            true => LoraTargets::All,
            false => LoraTargets::Named(self.targets.clone()),
        };
        let (rank, alpha, dropout) = (self.rank, self.alpha as f32, self.dropout);
        (rank > 0).then_some(LoraConfig { rank, alpha, targets, dropout, seed })
    }
}

/// Flags of the training loop and the optimizer.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Training")]
pub struct TrainingArgs {
    /// Optimizer steps
    #[arg(long, value_name = "COUNT", default_value = "3300")]
    pub steps: NonZeroU32,

    /// Examples (problems, for a reward model) in a batch
    #[arg(
        long,
        value_name = "COUNT",
        value_parser = values::up_to::<MAX_BATCH>,
        default_value = "512"
    )]
    pub batch: NonZeroUsize,

    /// Gradient accumulation: batches per optimizer step
    #[arg(long, value_name = "COUNT", default_value = "1")]
    pub accumulate: NonZeroU32,

    /// The peak learning rate
    #[arg(
        long,
        value_name = "RATE",
        value_parser = values::learning_rate,
        default_value = "1.5e-3"
    )]
    pub lr: f32,

    /// Warmup steps until the peak learning rate, or a percentage of --steps
    #[arg(
        long,
        value_name = "COUNT|PERCENT%",
        value_parser = values::warmup,
        default_value = "300"
    )]
    pub warmup: values::Warmup,

    /// The final learning rate, as a share of the peak; 1 keeps it constant
    #[arg(long, value_name = "SHARE", value_parser = values::whole_share, default_value = "0.1")]
    pub floor: f32,

    /// AdamW's weight decay
    #[arg(long, value_name = "RATE", value_parser = values::deviation, default_value = "0.05")]
    pub weight_decay: f32,

    /// AdamW's beta2
    #[arg(long, value_name = "RATE", value_parser = values::share, default_value = "0.98")]
    pub beta2: f32,

    /// Clip the gradient to this norm; 0 for no clipping
    #[arg(long, value_name = "NORM", value_parser = values::deviation, default_value = "1")]
    pub clip: f32,

    /// Keep only the inputs of the layers, and recompute their other activations for the gradients
    /// (gradient checkpointing): less memory, about a third more time. On a processor the trained
    /// weights are the same to the bit, and --resume may change it
    #[arg(long)]
    pub recompute: bool,

    /// The dropout probability in training
    #[arg(long, value_name = "P", value_parser = values::share, default_value = "0.05")]
    pub dropout: f32,

    /// The random seed
    #[arg(long, default_value = "0")]
    pub seed: u64,

    /// Steps between evaluations on held-out problems; 0 for one at the end
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub eval_every: u32,

    /// The model to keep: the best of all evaluations, or the last
    #[arg(long, value_enum, default_value = "best")]
    pub keep: KeepKind,

    /// Early stopping: end after this many evaluations without improvement; 0 for never
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub patience: u32,

    /// Steps between checkpoints that --resume continues from; 0 for those with every model that is
    /// kept, at the end and when interrupted
    #[arg(long, value_name = "COUNT", default_value = "0")]
    pub save_every: u32,

    /// The data type of the written weights
    #[arg(long, value_enum, default_value = "f32")]
    pub save_dtype: StoredDtypeKind,

    /// Stop when the loss has exploded: when its mean over 50 steps has been above this multiple of
    /// its smallest value (of 1, if that is smaller) for 100 steps; 0 for never
    #[arg(long, value_name = "RATIO", value_parser = values::weight, default_value = "3")]
    pub max_loss_ratio: f64,

    /// Continue the training in --out
    #[arg(long)]
    pub resume: bool,

    /// Replace the model in --out: its weights, configuration, tokenizer and training state are
    /// removed
    #[arg(long, conflicts_with = "resume")]
    pub overwrite: bool,

    /// With --resume: go on with another --lr, --warmup, --floor, --weight-decay, --beta2 or --clip
    /// than before
    #[arg(long, requires = "resume")]
    pub change_optimizer: bool,
}

/// The model that a training keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KeepKind {
    /// The one with the best score on held-out problems
    Best,
    /// The last
    Last,
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
    pub model: String,

    /// Initialise from this model's weights [default: the reasoner's]
    #[arg(long, value_name = "DIR")]
    pub init: Option<String>,

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
    #[arg(long, value_parser = values::paper_preset())]
    pub preset: Option<PresetKind>,

    /// The training objective
    #[arg(long, value_enum, default_value = "contrastive")]
    pub objective: ObjectiveKind,

    /// Also train an outcome head: the reward model reads each answer after the thoughts and gives
    /// an outcome reward, which the voting rules then use
    #[arg(long)]
    pub reads_answers: bool,

    /// A reference reasoner: its unperturbed thoughts about each question precede the candidate's
    /// in the reward model's input. `reasoner` is that of --model, which is recorded and shared,
    /// not copied; a directory is copied into the reward model's; `none` is none [default: none]
    #[arg(long, alias = "mind", value_name = "reasoner|DIR|none")]
    pub reference: Option<String>,

    /// The head that maps hidden states to a score
    #[arg(long, value_enum, default_value = "compare")]
    pub head: ScoreHeadKind,

    /// The weight of an auxiliary loss that predicts the digits of step results from the reward
    /// model's hidden states; 0 for none
    #[arg(long, value_name = "WEIGHT", value_parser = values::deviation, default_value = "0.3")]
    pub digits: f32,

    /// The loss weight of the last step relative to the first: step t of T weighs 1 + (FACTOR - 1)
    /// (t - 1) / (T - 1)
    #[arg(long, value_name = "FACTOR", value_parser = values::deviation, default_value = "1")]
    pub late: f32,

    #[command(flatten)]
    pub lora: LoraArgs,

    #[command(flatten)]
    pub training: TrainingArgs,

    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}
