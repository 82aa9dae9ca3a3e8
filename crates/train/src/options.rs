//! Training options. Rust code sets them as fields, TOML files and Python use keys of the same
//! names, and with the feature `clap` the command line has flags of the same names.
//!
//! `numbers` defines the ranges of numeric options, `names` the enumerations, and `presets` named
//! sets of values. An unknown key is an error that suggests the closest known one.

mod names;
mod numbers;
mod presets;
mod rl;

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use data::FieldNames;
use model::hub::{HubId, MODEL_EXTENSIONS};
use model::save::SaveDtype;
use model::{LoraConfig, LoraTargets};
use schema::Weight;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::error::TrainError;
use crate::loss::Objective;
use crate::model_dir::{AdapterSpec, AdapterStart};
use crate::reward_step::RewardHeadKind;
use crate::trainer::KeepPolicy;

pub use names::{CurriculumKind, ReasonerMode, Warmup, WeightedData};
pub(crate) use numbers::invalid;
pub use presets::Preset;
pub use rl::{PolicyOptions, RlTrainerOptions, RolloutOptions};

/// Options for training a reasoner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(remote = "Self", default)]
#[non_exhaustive]
pub struct TrainerOptions {
    /// Training method
    #[cfg_attr(feature = "clap", arg(
        long, value_parser = names::method_parser(), default_value_t = Self::default().method
    ))]
    pub method: String,

    /// Initialize from this GPT-2, Llama, Qwen2 or Qwen3 model (a directory or a GGUF file) or from
    /// an adapter directory (see --adapter) [default: random weights]
    #[cfg_attr(feature = "clap", arg(long, value_name = "DIR"))]
    pub init: Option<String>,

    /// Training data, one or more sources: a file (the paper's JSON, GSM8K's JSON lines, or lines
    /// `question||steps #### answer`), or `corpus` for the built-in corpus. WEIGHT is the relative
    /// share of examples; for a file it defaults to its number of examples [default: corpus]
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "FILE[:WEIGHT]", value_delimiter = ',', help_heading = "Data")
    )]
    #[serde(deserialize_with = "names::one_or_several")]
    pub data: Vec<WeightedData>,

    /// Held-out data file [default: the corpus's valid split when training on the corpus]
    #[cfg_attr(feature = "clap", arg(long, value_name = "FILE", help_heading = "Data"))]
    pub held_out: Option<PathBuf>,

    /// Number of held-out problems to evaluate on
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", help_heading = "Data",
        default_value_t = Self::default().held_out_count
    ))]
    pub held_out_count: usize,

    /// Names of the fields in the data files.
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(flatten)]
    pub fields: FieldNames,

    /// Reasoning mode, curriculum and method-specific options.
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(flatten)]
    pub thinking: MethodOptions,

    /// LoRA adapters.
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(flatten)]
    pub lora: LoraOptions,

    /// Hidden size of a new model
    #[cfg_attr(feature = "clap", arg(
        long, help_heading = "Shape (without --init)", default_value_t = Self::default().width
    ))]
    pub width: NonZeroUsize,

    /// Layers of a new model
    #[cfg_attr(feature = "clap", arg(
        long, help_heading = "Shape (without --init)", default_value_t = Self::default().layers
    ))]
    pub layers: NonZeroUsize,

    /// Attention heads of a new model
    #[cfg_attr(feature = "clap", arg(
        long, help_heading = "Shape (without --init)", default_value_t = Self::default().heads
    ))]
    pub heads: NonZeroUsize,

    /// Maximum sequence length of a new model
    #[cfg_attr(feature = "clap", arg(
        long, help_heading = "Shape (without --init)", default_value_t = Self::default().context
    ))]
    pub context: NonZeroUsize,

    /// The training loop and the optimizer.
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(flatten)]
    pub training: TrainingOptions,
}

/// Reasoning mode, curriculum and method-specific options. Each method rejects the options of
/// other methods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default)]
#[non_exhaustive]
pub struct MethodOptions {
    /// What the model generates before the answer
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value = "latent"))]
    pub mode: ReasonerMode,

    /// Thoughts per example at the end of the curriculum; for latent-sft the maximum number
    /// generated [default: 6; latent-sft: 64; rot: 32]
    #[cfg_attr(feature = "clap", arg(long, value_name = "T", help_heading = "Curriculum"))]
    pub thoughts: Option<NonZeroUsize>,

    /// Schedule by which thoughts replace steps
    #[cfg_attr(
        feature = "clap",
        arg(
            long,
            alias = "removal",
            value_enum,
            default_value = "smooth",
            help_heading = "Curriculum"
        )
    )]
    pub curriculum: CurriculumKind,

    /// Fraction of training after which all steps are removed
    #[cfg_attr(feature = "clap", arg(
        long, alias = "rise", value_name = "SHARE", help_heading = "Curriculum",
        default_value_t = Self::default().curriculum_end
    ))]
    pub curriculum_end: f32,

    /// Smooth curriculum: fraction of examples without steps from the start
    #[cfg_attr(feature = "clap", arg(
        long, alias = "ahead", value_name = "SHARE", help_heading = "Curriculum",
        default_value_t = Self::default().no_cot_fraction
    ))]
    pub no_cot_fraction: f32,

    /// Fraction of examples whose number of removed steps (or stage) is sampled uniformly
    #[cfg_attr(feature = "clap", arg(
        long, alias = "mixed", value_name = "SHARE", help_heading = "Curriculum",
        default_value_t = Self::default().uniform_stage_prob
    ))]
    pub uniform_stage_prob: f32,

    /// Stages curriculum: number of stages with a fixed number of removed steps
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", help_heading = "Curriculum",
        default_value_t = Self::default().stages
    ))]
    pub stages: usize,

    /// Thoughts per step [default: 1; with --curriculum stages: 2]
    #[cfg_attr(feature = "clap", arg(long, value_name = "COUNT", help_heading = "Curriculum"))]
    pub thoughts_per_step: Option<NonZeroUsize>,

    /// Weight of the auxiliary loss that predicts the digits of each step's result from the last
    /// thought of the step, and the digits of its operands from the first thought if the step has
    /// several; 0 disables it
    #[cfg_attr(feature = "clap", arg(
        long, alias = "digits", value_name = "WEIGHT", help_heading = "Curriculum",
        default_value_t = Self::default().digit_loss_weight
    ))]
    pub digit_loss_weight: f32,

    /// SIM-CoT (with coconut and codi): weight of the auxiliary loss that decodes each step from
    /// its thoughts with a second model, which is discarded after training; 0 disables it
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "WEIGHT", help_heading = "Methods",
        default_value_t = Self::default().step_decoder
    ))]
    pub step_decoder: f32,

    /// CODI: weight of the distillation loss; Render-of-Thought: weight of the regression loss
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "WEIGHT", help_heading = "Methods",
        default_value_t = Self::default().gamma
    ))]
    pub gamma: f32,

    /// CODI: inner width of the projector [default: the hidden size]
    #[cfg_attr(feature = "clap", arg(long, value_name = "WIDTH", help_heading = "Methods"))]
    pub projector: Option<NonZeroUsize>,

    /// CODI: keep the last step, whose result is the answer, in the teacher's chain of thought
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Methods"))]
    pub keep_last_step: bool,

    /// CoLaR: minimum number of tokens per thought
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "TOKENS", help_heading = "Methods",
        default_value_t = Self::default().min_speed
    ))]
    pub min_speed: NonZeroUsize,

    /// CoLaR: maximum number of tokens per thought; the number is sampled uniformly between the
    /// minimum and the maximum for each example
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "TOKENS", help_heading = "Methods",
        default_value_t = Self::default().max_speed
    ))]
    pub max_speed: NonZeroUsize,

    /// Latent-SFT, Render-of-Thought: tokens per thought; rot raises it for chains that would need
    /// more than --thoughts [default: 2]
    #[cfg_attr(feature = "clap", arg(long, value_name = "TOKENS", help_heading = "Methods"))]
    pub compression: Option<NonZeroUsize>,

    /// Latent-SFT, Render-of-Thought: fraction of examples whose input thoughts are predicted by
    /// the model in a first forward pass instead of computed from the steps; 0 disables it
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "SHARE", help_heading = "Methods",
        default_value_t = Self::default().scheduled_sampling
    ))]
    pub scheduled_sampling: f32,

    /// CoLaR, Latent-SFT, Render-of-Thought: give later tokens of a thought smaller weights, so
    /// that their order can be recovered; CoLaR as published weights all tokens equally
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Methods"))]
    pub ordered: bool,

    /// LOTUS: blocks of latent positions, one per step [default: 6]
    #[cfg_attr(feature = "clap", arg(long, value_name = "COUNT", help_heading = "Methods"))]
    pub blocks: Option<NonZeroUsize>,

    /// LOTUS: latent positions per block; further tokens of a step are excluded from the loss
    /// [default: 13]
    #[cfg_attr(feature = "clap", arg(long, value_name = "TOKENS", help_heading = "Methods"))]
    pub block_width: Option<NonZeroUsize>,

    /// LOTUS: forward passes over the latent positions before the last one [default: 6]
    #[cfg_attr(feature = "clap", arg(long, value_name = "COUNT", help_heading = "Methods"))]
    pub loops: Option<NonZeroUsize>,

    /// LOTUS: weight of the loss on the steps' tokens at the blocks [default: 0.05]
    #[cfg_attr(feature = "clap", arg(long, value_name = "WEIGHT", help_heading = "Methods"))]
    pub step_loss_weight: Option<Weight>,

    /// CoLaR, Render-of-Thought: inner width of the latent head
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "WIDTH", help_heading = "Methods",
        default_value_t = Self::default().latent_head
    ))]
    pub latent_head: NonZeroUsize,
}

/// LoRA options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(next_help_heading = "LoRA"))]
#[serde(default)]
#[non_exhaustive]
pub struct LoraOptions {
    /// Train LoRA adapters of this rank and freeze the model; 0 trains all weights
    #[cfg_attr(feature = "clap", arg(
        id = "lora", long = "lora", value_name = "RANK", default_value_t = Self::default().rank
    ))]
    #[serde(rename = "lora")]
    pub rank: usize,

    /// Scale the adapters by ALPHA / RANK
    #[cfg_attr(feature = "clap", arg(
        id = "lora_alpha", long = "lora-alpha", value_name = "ALPHA",
        default_value_t = Self::default().alpha
    ))]
    #[serde(rename = "lora_alpha")]
    pub alpha: f64,

    /// Dropout probability on the adapters' inputs; training is faster without dropout
    #[cfg_attr(feature = "clap", arg(
        id = "lora_dropout", long = "lora-dropout", value_name = "P",
        default_value_t = Self::default().dropout
    ))]
    #[serde(rename = "lora_dropout")]
    pub dropout: f32,

    /// Modules to adapt, by the end of their names, such as q_proj,v_proj or c_attn
    /// [default: every linear layer of the blocks]
    #[cfg_attr(
        feature = "clap",
        arg(
            id = "lora_targets",
            long = "lora-targets",
            value_name = "NAMES",
            value_delimiter = ','
        )
    )]
    #[serde(rename = "lora_targets", deserialize_with = "names::one_or_several")]
    pub targets: Vec<String>,

    /// What --lora trains if the initial model is itself an adapter [default: continue for a
    /// reasoner, over for a reward model]
    #[cfg_attr(feature = "clap", arg(id = "adapter", long = "adapter", value_enum))]
    #[serde(rename = "adapter")]
    pub start: Option<AdapterStart>,

    /// Base model of the initial adapter: a directory, a GGUF file or a Hub id; for stacked
    /// adapters, the base of the lowest [default: the base recorded in the adapter]
    #[cfg_attr(feature = "clap", arg(id = "base", long = "base", value_name = "DIR"))]
    pub base: Option<String>,

    /// Hugging Face Hub id of the base to record in the adapter: owner/name or
    /// owner/name/file.gguf, optionally with @revision
    #[cfg_attr(feature = "clap", arg(id = "base_id", long = "base-id", value_name = "ID"))]
    pub base_id: Option<String>,

    /// Where to get the base, a line to record in the adapter; the error about a missing base
    /// shows it
    #[cfg_attr(
        feature = "clap",
        arg(id = "base_source", long = "base-source", value_name = "TEXT")
    )]
    pub base_source: Option<String>,
}

/// Training loop and optimizer options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[cfg_attr(feature = "clap", command(next_help_heading = "Training"))]
#[serde(default)]
#[non_exhaustive]
pub struct TrainingOptions {
    /// Optimizer steps
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", default_value_t = Self::default().steps
    ))]
    pub steps: NonZeroU32,

    /// Examples per batch; for a reward model, problems per batch, at most all of them
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", default_value_t = Self::default().batch
    ))]
    pub batch: NonZeroUsize,

    /// Gradient accumulation: batches per optimizer step
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", default_value_t = Self::default().accumulate
    ))]
    pub accumulate: NonZeroU32,

    /// Peak learning rate
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "RATE", default_value_t = Self::default().lr
    ))]
    pub lr: f32,

    /// Warmup steps before the peak learning rate, or a percentage of --steps
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT|PERCENT%", default_value_t = Self::default().warmup
    ))]
    pub warmup: Warmup,

    /// Final learning rate as a fraction of the peak; 1 keeps it constant
    #[cfg_attr(feature = "clap", arg(
        long, alias = "floor", value_name = "SHARE", default_value_t = Self::default().min_lr_ratio
    ))]
    pub min_lr_ratio: f32,

    /// AdamW's weight decay
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "RATE", default_value_t = Self::default().weight_decay
    ))]
    pub weight_decay: f32,

    /// AdamW's beta2
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "RATE", default_value_t = Self::default().beta2
    ))]
    pub beta2: f32,

    /// Clip the gradient to this norm; 0 disables clipping
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "NORM", default_value_t = Self::default().clip
    ))]
    pub clip: f32,

    /// Gradient checkpointing: keep only the inputs of the layers and recompute the other
    /// activations in the backward pass; less memory, about a third more time. On a CPU the trained
    /// weights are bit-identical with and without it, and --resume may change it
    #[cfg_attr(feature = "clap", arg(long))]
    pub recompute: bool,

    /// Dropout probability in training
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "P", default_value_t = Self::default().dropout
    ))]
    pub dropout: f32,

    /// Random seed
    #[cfg_attr(feature = "clap", arg(long, default_value_t = Self::default().seed))]
    pub seed: u64,

    /// Steps between evaluations on held-out problems; 0 evaluates once at the end
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", default_value_t = Self::default().eval_every
    ))]
    pub eval_every: u32,

    /// Which model to keep: the best of all evaluations, or the last
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value = "best"))]
    pub keep: KeepPolicy,

    /// Early stopping: stop after this many evaluations without improvement; 0 disables it
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", default_value_t = Self::default().patience
    ))]
    pub patience: u32,

    /// Steps between checkpoints for --resume; 0 writes them only with each kept model, at the end
    /// and on interruption
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "COUNT", default_value_t = Self::default().save_every
    ))]
    pub save_every: u32,

    /// Data type of the saved weights
    #[cfg_attr(feature = "clap", arg(
        long, value_parser = names::dtype_parser(), default_value = "f32"
    ))]
    pub save_dtype: SaveDtype,

    /// Stop when the loss has exploded: when its mean over 50 steps has been above this multiple of
    /// its minimum (or of 1, if the minimum is below 1) for 100 steps; 0 disables the check
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "RATIO", default_value_t = Self::default().max_loss_ratio
    ))]
    pub max_loss_ratio: f64,

    /// Continue the training in --out
    #[cfg_attr(feature = "clap", arg(long))]
    pub resume: bool,

    /// Replace the model in --out: its weights, configuration, tokenizer and training state are
    /// removed
    #[cfg_attr(feature = "clap", arg(long, conflicts_with = "resume"))]
    pub overwrite: bool,

    /// With --resume: continue with different values of --lr, --warmup, --min-lr-ratio,
    /// --weight-decay, --beta2 or --clip
    #[cfg_attr(feature = "clap", arg(long, requires = "resume"))]
    pub change_optimizer: bool,
}

/// Options for training a reward model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(remote = "Self", default)]
#[non_exhaustive]
pub struct RewardTrainerOptions {
    /// Reasoner whose thoughts are scored
    #[cfg_attr(feature = "clap", arg(long, value_name = "DIR"))]
    pub model: String,

    /// Initialize from this model's weights [default: the reasoner's]
    #[cfg_attr(feature = "clap", arg(long, value_name = "DIR"))]
    pub init: Option<String>,

    /// Directories written by `latent-tts annotate`
    #[cfg_attr(feature = "clap", arg(long, value_name = "DIR", value_delimiter = ','))]
    #[serde(deserialize_with = "names::one_or_several")]
    pub annotations: Vec<PathBuf>,

    /// Annotations of held-out problems
    #[cfg_attr(feature = "clap", arg(long, value_name = "DIR"))]
    pub held_out: Option<PathBuf>,

    /// Training objective
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value = "contrastive"))]
    pub objective: Objective,

    /// Also train an outcome head: the reward model reads each answer after the thoughts and
    /// predicts an outcome reward, which the voting rules then use
    #[cfg_attr(feature = "clap", arg(long))]
    pub reads_answers: bool,

    /// Reference reasoner: its unperturbed thoughts about each question precede the candidate's in
    /// the reward model's input. `reasoner` uses that of --model, which is recorded and shared, not
    /// copied; a directory is copied into the reward model's; `none` disables it [default: none]
    #[cfg_attr(feature = "clap", arg(long, alias = "mind", value_name = "reasoner|DIR|none"))]
    pub reference: Option<String>,

    /// Head that maps hidden states to a score
    #[cfg_attr(feature = "clap", arg(long, value_enum, default_value = "compare"))]
    pub head: RewardHeadKind,

    /// Weight of the auxiliary loss that predicts the digits of step results from the reward
    /// model's hidden states; 0 disables it
    #[cfg_attr(feature = "clap", arg(
        long, alias = "digits", value_name = "WEIGHT",
        default_value_t = Self::default().digit_loss_weight
    ))]
    pub digit_loss_weight: f32,

    /// Loss weight of the last step relative to the first: step t of T has weight
    /// 1 + (FACTOR - 1) (t - 1) / (T - 1)
    #[cfg_attr(feature = "clap", arg(
        long, alias = "late", value_name = "FACTOR",
        default_value_t = Self::default().last_step_weight
    ))]
    pub last_step_weight: f32,

    /// Weight of the loss that prefers each correct trajectory over the same trajectory with
    /// permuted thoughts, so that the reward model cannot ignore their order; 0 disables it
    #[cfg_attr(feature = "clap", arg(
        long, value_name = "WEIGHT", default_value_t = Self::default().order_preference
    ))]
    pub order_preference: f32,

    /// LoRA adapters.
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(flatten)]
    pub lora: LoraOptions,

    /// The training loop and the optimizer.
    #[cfg_attr(feature = "clap", command(flatten))]
    #[serde(flatten)]
    pub training: TrainingOptions,
}

/// A non-zero count in const contexts; 0 becomes 1.
const fn count(n: usize) -> NonZeroUsize {
    match NonZeroUsize::new(n) {
        Some(count) => count,
        None => NonZeroUsize::MIN,
    }
}

impl Default for TrainerOptions {
    fn default() -> Self {
        Self {
            method: "coconut".to_owned(),
            init: None,
            data: Vec::new(),
            held_out: None,
            held_out_count: 500,
            fields: FieldNames::default(),
            thinking: MethodOptions::default(),
            lora: LoraOptions::default(),
            width: count(256),
            layers: count(6),
            heads: count(8),
            context: count(256),
            training: TrainingOptions::default(),
        }
    }
}

impl Default for MethodOptions {
    fn default() -> Self {
        Self {
            mode: ReasonerMode::Latent,
            thoughts: None,
            curriculum: CurriculumKind::Smooth,
            curriculum_end: 0.4,
            no_cot_fraction: 0.15,
            uniform_stage_prob: 0.1,
            stages: 3,
            thoughts_per_step: None,
            digit_loss_weight: 0.3,
            step_decoder: 0.0,
            gamma: 1.0,
            projector: None,
            keep_last_step: false,
            min_speed: count(1),
            max_speed: count(5),
            compression: None,
            scheduled_sampling: 0.5,
            ordered: false,
            blocks: None,
            block_width: None,
            loops: None,
            step_loss_weight: None,
            latent_head: count(2048),
        }
    }
}

impl Default for LoraOptions {
    fn default() -> Self {
        Self {
            rank: 0,
            alpha: 32.0,
            dropout: 0.0,
            targets: Vec::new(),
            start: None,
            base: None,
            base_id: None,
            base_source: None,
        }
    }
}

impl Default for TrainingOptions {
    fn default() -> Self {
        Self {
            steps: NonZeroU32::MIN.saturating_add(3299),
            batch: count(512),
            accumulate: NonZeroU32::MIN,
            lr: 1.5e-3,
            warmup: Warmup::Steps(300),
            min_lr_ratio: 0.1,
            weight_decay: 0.05,
            beta2: 0.98,
            clip: 1.0,
            recompute: false,
            dropout: 0.05,
            seed: 0,
            eval_every: 0,
            keep: KeepPolicy::Best,
            patience: 0,
            save_every: 0,
            save_dtype: SaveDtype::F32,
            max_loss_ratio: 3.0,
            resume: false,
            overwrite: false,
            change_optimizer: false,
        }
    }
}

impl Default for RewardTrainerOptions {
    fn default() -> Self {
        Self {
            model: String::new(),
            init: None,
            annotations: Vec::new(),
            held_out: None,
            objective: Objective::Contrastive,
            reads_answers: false,
            reference: None,
            head: RewardHeadKind::Compare,
            digit_loss_weight: 0.3,
            last_step_weight: 1.0,
            order_preference: 0.0,
            lora: LoraOptions::default(),
            training: TrainingOptions::default(),
        }
    }
}

impl LoraOptions {
    /// Checks the recorded Hub id of the base.
    fn check(&self) -> Result<(), TrainError> {
        match &self.base_id {
            Some(id) if HubId::parse(id, &MODEL_EXTENSIONS).is_none() => {
                let reason = format!(
                    "`base_id` {id}: expected owner/name or owner/name/file.gguf, optionally with \
                     @revision"
                );
                Err(TrainError::Options { reason })
            }
            _ => Ok(()),
        }
    }

    /// The adapter to train; `None` if all weights are trained.
    pub fn spec(&self, seed: u64, default_start: AdapterStart) -> Option<AdapterSpec> {
        if self.rank == 0 {
            return None;
        }
        let targets = match self.targets.is_empty() {
            true => LoraTargets::All,
            false => LoraTargets::Named(self.targets.clone()),
        };
        Some(AdapterSpec {
            config: LoraConfig {
                rank: self.rank,
                alpha: self.alpha as f32,
                targets,
                dropout: self.dropout,
                seed,
            },
            start: self.start.unwrap_or(default_start),
            base_id: self.base_id.clone(),
            base_source: self.base_source.clone(),
        })
    }
}

impl TrainerOptions {
    /// The defaults with the values of a preset; see [`Preset`].
    pub fn preset(name: &str) -> Result<Self, TrainError> {
        let preset = Preset::named(name, Preset::REASONER)?;
        Self::from_fields(preset.fields())
    }

    /// The defaults with the given fields. Unknown names and invalid values are errors.
    pub fn from_fields(fields: Map<String, Value>) -> Result<Self, TrainError> {
        serde_json::from_value(Value::Object(fields)).map_err(numbers::invalid)
    }

    /// Checks the range of every number.
    pub fn check(&self) -> Result<(), TrainError> {
        numbers::check(self)?;
        self.lora.check()?;
        let width = self.width.get();
        let heads = self.heads.get();
        if !width.is_multiple_of(heads) {
            let reason = format!("`width` {width} is not a multiple of `heads` {heads}");
            return Err(TrainError::Options { reason });
        }
        if self.init.is_none() && self.lora.rank > 0 {
            let reason = "`lora` needs an initial model; pass `init`, or omit `lora`".to_owned();
            return Err(TrainError::Options { reason });
        }
        Ok(())
    }
}

impl RewardTrainerOptions {
    /// The defaults with the values of a preset; see [`Preset`].
    pub fn preset(name: &str) -> Result<Self, TrainError> {
        let preset = Preset::named(name, Preset::REWARD)?;
        Self::from_fields(preset.fields())
    }

    /// The defaults with the given fields. Unknown names and invalid values are errors.
    pub fn from_fields(fields: Map<String, Value>) -> Result<Self, TrainError> {
        serde_json::from_value(Value::Object(fields)).map_err(numbers::invalid)
    }

    /// Checks the range of every number.
    pub fn check(&self) -> Result<(), TrainError> {
        numbers::check(self)?;
        self.lora.check()?;
        match self.model.is_empty() {
            true => Err(TrainError::Options { reason: "`model` is missing".to_owned() }),
            false => Ok(()),
        }
    }
}

/// Implements (de)serialization that rejects unknown fields, on top of the derived functions of the
/// remote type: `deny_unknown_fields` does not work with flattened fields.
macro_rules! refuse_unknown_fields {
    ($options:ident) => {
        impl Serialize for $options {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                Self::serialize(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $options {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let fields = Map::<String, Value>::deserialize(deserializer)?;
                names::check_fields(&fields, &Self::default()).map_err(D::Error::custom)?;
                let field_error = |(name, value): (&String, &Value)| {
                    let single = Map::from_iter([(name.clone(), value.clone())]);
                    let error = Self::deserialize(Value::Object(single)).err()?;
                    Some(format!("`{name}`: {error}"))
                };
                Self::deserialize(Value::Object(fields.clone())).map_err(|error| {
                    let named = fields.iter().find_map(field_error);
                    D::Error::custom(named.unwrap_or_else(|| error.to_string()))
                })
            }
        }
    };
}

refuse_unknown_fields!(TrainerOptions);
refuse_unknown_fields!(RewardTrainerOptions);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn options_round_trip_by_name() {
        let options = TrainerOptions::default();
        let written = fields(serde_json::to_value(&options).unwrap());
        assert_eq!(TrainerOptions::from_fields(written).unwrap(), options);
        let reward = RewardTrainerOptions::default();
        let written = fields(serde_json::to_value(&reward).unwrap());
        assert_eq!(RewardTrainerOptions::from_fields(written).unwrap(), reward);
        let given = json!({
            "method": "codi", "thoughts": 4, "warmup": "3%", "lora": 8, "lora_targets": "a,b",
            "data": "corpus:2", "save_dtype": "bf16", "seed": 18_446_744_073_709_551_615u64,
        });
        let options = TrainerOptions::from_fields(fields(given)).unwrap();
        assert_eq!(options.thinking.thoughts, Some(count(4)));
        assert_eq!(options.training.warmup.steps(200), 6);
        assert_eq!((options.lora.rank, options.lora.targets.len()), (8, 2));
        assert_eq!((options.training.seed, options.data.len()), (u64::MAX, 1));
    }

    #[test]
    fn unknown_and_invalid_fields_are_rejected() {
        for (given, expected) in [
            (json!({ "min_lr_rato": 0.1 }), "min_lr_ratio"),
            (json!({ "steps": "many" }), "steps"),
            (json!({ "mode": "spoken" }), "spoken"),
            (json!({ "warmup": "300%" }), "percentage"),
            (json!({ "data": "embedded:test" }), "corpus"),
        ] {
            let error = TrainerOptions::from_fields(fields(given)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        for (given, expected) in [
            (json!({ "dropout": 1.0 }), "`dropout` 1"),
            (json!({ "batch": 1 << 30 }), "`batch`"),
            (json!({ "lr": -1 }), "`lr` -1"),
            (json!({ "heads": 5 }), "`heads` 5"),
            (json!({ "lora": 4 }), "`init`"),
        ] {
            let options = TrainerOptions::from_fields(fields(given)).unwrap();
            let error = options.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let mut options = TrainerOptions::default();
        options.training.clip = f32::NAN;
        assert!(options.check().unwrap_err().to_string().contains("`clip`"));
    }
}
