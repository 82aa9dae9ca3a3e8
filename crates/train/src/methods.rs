//! The training methods: how each encodes an example as tokens, and its losses.
//!
//! | method | layout | losses |
//! |---|---|---|
//! | [`coconut`] (with CoT and no-CoT) | steps replaced one by one by thoughts | tokens, digits |
//! | [`codi`] | a student with thoughts, a teacher with steps | tokens of both, distillation |
//! | [`simcot`] | as CODI or COCONUT | as CODI or COCONUT, and the steps decoded from the thoughts |
//! | [`colar`] | steps compressed into sums of embeddings | tokens, the next compressed embedding |
//! | [`latent_sft`] | steps compressed into mixtures of embeddings | tokens, the next mixture |
//! | [`lotus`] | blocks of latent positions, computed in loops | tokens, the steps' tokens at the blocks |
//! | [`rot`] | steps compressed into a fixed number of slots | tokens, the next slot |
//!
//! Each method is one file with a [`TrainingMethod`] (its settings), an [`ExampleEncoder`] (its
//! layout) and a [`TrainStep`] (its losses); data, optimizer, log, checkpoints and evaluation are
//! shared. To add a method, write its file and add its [`MethodEntry`] to [`METHODS`]; users of the
//! library pass an entry to the trainer instead.

pub mod coconut;
pub mod codi;
pub mod colar;
pub mod compressed;
pub mod latent_sft;
pub mod layout;
pub mod lotus;
pub mod rot;
pub mod simcot;

use std::fmt::Debug;

use data::TrainExample;
use model::{ModelError, Parameter, Tokenizer, TrainableDecoder};
use record::Losses;
use serde_json::Value;
use tensor::DeviceError;

use crate::dropout::DropoutConfig;
use crate::error::TrainError;
use crate::model_dir::ModelUsage;
use crate::options::{MethodOptions, ReasonerMode};
use crate::reasoner::TaskSetup;
use crate::trainer::TrainTask;

/// Every method, in the order of help texts.
pub const METHODS: [MethodEntry; 6] =
    [coconut::METHOD, codi::METHOD, colar::METHOD, latent_sft::METHOD, lotus::METHOD, rot::METHOD];

/// A registered training method.
#[derive(Clone, Copy)]
pub struct MethodEntry {
    /// The name in options and configurations.
    pub name: &'static str,
    /// One-line description for help texts.
    pub about: &'static str,
    /// Builds the method from options.
    pub configure: ConfigureMethod,
}

/// Builds a method from the options and rejects options of other methods. The tokenizer determines
/// settings that depend on the vocabulary.
pub type ConfigureMethod =
    fn(&MethodOptions, &Tokenizer) -> Result<Box<dyn TrainingMethod>, TrainError>;

impl MethodEntry {
    /// Looks up a built-in method by name.
    pub fn named(name: &str) -> Result<Self, TrainError> {
        METHODS.into_iter().find(|entry| entry.name == name).ok_or_else(|| {
            let known = METHODS.map(|entry| entry.name).join(", ");
            let reason = format!("`method` {name} is unknown; available: {known}");
            TrainError::Options { reason }
        })
    }
}

/// A method with its settings.
pub trait TrainingMethod: Debug + Send + Sync {
    /// The family and the defaults to write to the trained model's configuration, and the tokens
    /// to add to its vocabulary.
    fn usage(&self) -> ModelUsage;

    /// All settings that determine the trained weights, for the training records.
    fn settings(&self) -> Value;

    /// Adds heads, losses and encoder to a model; implementations end with [`TaskSetup::task`].
    fn task(&self, setup: TaskSetup) -> Result<Box<dyn TrainTask>, TrainError>;
}

/// Rejects options that belong to other methods.
pub(crate) struct OptionCheck<'a> {
    method: &'static str,
    options: &'a MethodOptions,
}

impl<'a> OptionCheck<'a> {
    /// For a method with latent thoughts: rejects other values of `mode`.
    pub(crate) fn latent(
        method: &'static str,
        options: &'a MethodOptions,
    ) -> Result<Self, TrainError> {
        let check = Self { method, options };
        check.refuse(
            options.mode != ReasonerMode::Latent,
            "`method` {} only supports latent thoughts; omit `mode`",
        )?;
        Ok(check)
    }

    fn refuse(&self, is_given: bool, reason: &str) -> Result<(), TrainError> {
        match is_given {
            true => Err(TrainError::Options { reason: reason.replace("{}", self.method) }),
            false => Ok(()),
        }
    }

    /// For a method without SIM-CoT's loss: rejects `step_decoder`.
    pub(crate) fn no_step_decoder(self) -> Result<Self, TrainError> {
        self.refuse(
            self.options.step_decoder != 0.0,
            "`step_decoder` works with coconut and codi, not with {}; omit it",
        )?;
        Ok(self)
    }

    /// For a method without looped blocks: rejects LOTUS's options.
    pub(crate) fn no_blocks(self) -> Result<Self, TrainError> {
        let MethodOptions { blocks, block_width, loops, step_loss_weight, .. } = self.options;
        let counts = [blocks, block_width, loops];
        self.refuse(
            counts.iter().any(|count| count.is_some()) || step_loss_weight.is_some(),
            "`blocks`, `block_width`, `loops` and `step_loss_weight` are options of lotus, not of \
             {}; omit them",
        )?;
        Ok(self)
    }

    /// For a method without a fixed number of tokens per thought: rejects `compression`.
    pub(crate) fn no_compression(self) -> Result<Self, TrainError> {
        self.refuse(
            self.options.compression.is_some(),
            "`compression` is an option of latent-sft and rot, not of {}; omit it (for colar, use \
             `min_speed` and `max_speed`)",
        )?;
        Ok(self)
    }

    /// For a method whose thoughts do not compress several tokens: rejects `ordered`.
    pub(crate) fn no_order(self) -> Result<Self, TrainError> {
        self.refuse(
            self.options.ordered,
            "`ordered` works with thoughts that compress several tokens (colar, latent-sft and \
             rot), not with {}; omit it",
        )?;
        Ok(self)
    }
}

/// Special tokens of latent reasoners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentMarkers {
    /// Token before the first thought.
    pub begin_latent: u32,
    /// Token after the last thought.
    pub end_latent: u32,
    /// End-of-text token, which ends an answer.
    pub eos: u32,
}

/// Position of an example in the training.
#[derive(Clone, Copy, Debug)]
pub struct ExamplePlace {
    /// Index in the stream of examples.
    pub id: u64,
    /// Completed fraction of the training, 0 to 1.
    pub progress: f64,
    /// Two uniform random numbers in [0, 1), determined by the seed and the index.
    pub uniforms: [f64; 2],
}

/// Escapes the texts of an example, so that they cannot be tokenized as control tokens.
fn guarded(tokenizer: &Tokenizer, example: &TrainExample) -> TrainExample {
    let guard = |text: &String| tokenizer.guard(text).into_owned();
    TrainExample {
        question: guard(&example.question),
        steps: example.steps.iter().map(guard).collect(),
        answer: guard(&example.answer),
    }
}

/// Tokenizes examples for a method.
pub trait ExampleEncoder: Send + Sync {
    /// A tokenized example.
    type Encoded: Send + 'static;

    /// Tokenizes an example: to one sequence, or to student and teacher.
    fn encode(
        &self,
        example: &TrainExample,
        place: ExamplePlace,
    ) -> Result<Vec<Self::Encoded>, ModelError>;

    /// The number of rows of a tokenized example.
    fn rows(&self, encoded: &Self::Encoded) -> ExampleRows;
}

/// Numbers of rows that an example has in the decoder's forward passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExampleRows {
    /// Input positions.
    pub fed: usize,
    /// Positions whose last hidden state is used.
    pub output: usize,
    /// Positions with logits.
    pub logits: usize,
}

/// A model with gradients and the losses of a method.
pub trait TrainStep: Send {
    /// A tokenized example.
    type Example: Send + Sync;

    /// Adds the gradients of a batch's loss to all parameters; returns the unweighted losses.
    fn accumulate_gradients(
        &mut self,
        examples: &[Self::Example],
        dropout: Option<DropoutConfig>,
    ) -> Result<Losses, DeviceError>;

    /// The decoder.
    fn model(&self) -> &TrainableDecoder;

    /// The parameters that are saved in addition to the decoder's.
    fn head_parameters(&self) -> Vec<&Parameter>;

    /// All trained parameters, in a fixed order.
    fn parameters(&self) -> Vec<&Parameter>;

    /// All trained parameters, mutably. Call [`Self::sync_weights`] after changing them.
    fn parameters_mut(&mut self) -> Vec<&mut Parameter>;

    /// Copies changed parameters to the weights that the forward pass uses.
    fn sync_weights(&mut self) -> Result<(), DeviceError>;
}
