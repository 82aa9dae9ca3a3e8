//! The training methods: how each lays an example out as tokens, and the losses that it adds.
//!
//! | method | layout | losses |
//! |---|---|---|
//! | [`coconut`] (with CoT and no-CoT) | steps removed one by one, thoughts in their place | tokens, digits |
//! | [`codi`] | a student with thoughts, a teacher with steps | tokens of both, distillation |
//! | [`simcot`] | CODI's or COCONUT's | theirs, and the steps decoded from the thoughts |
//! | [`colar`] | steps compressed into sums of embeddings | tokens, the next compressed embedding |
//! | [`latent_sft`] | steps compressed into mixtures of embeddings | tokens, the next mixture |
//! | [`lotus`] | blocks of latent positions, computed in loops | tokens, the steps' tokens at the blocks |
//! | [`rot`] | steps compressed into a fixed number of slots | tokens, the next slot |
//!
//! A method is one file: a [`TrainingMethod`] with its settings, an [`ExampleEncoder`] that lays
//! examples out, and a [`TrainStep`] with the losses; data, optimizer, log, checkpoints and
//! evaluation are the same for all. To add one, write its file and add its [`MethodEntry`] to
//! [`METHODS`]; a user of the library passes an entry to the trainer instead.

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

/// A method by name.
#[derive(Clone, Copy)]
pub struct MethodEntry {
    /// The name in options and configurations.
    pub name: &'static str,
    /// How thoughts are learned, in one line.
    pub about: &'static str,
    /// Makes the method of options.
    pub configure: ConfigureMethod,
}

/// Takes a method's settings from the options, and refuses options of other methods. What depends
/// on the vocabulary is decided by the tokenizer.
pub type ConfigureMethod =
    fn(&MethodOptions, &Tokenizer) -> Result<Box<dyn TrainingMethod>, TrainError>;

impl MethodEntry {
    /// The entry of this name.
    pub fn named(name: &str) -> Result<Self, TrainError> {
        METHODS.into_iter().find(|entry| entry.name == name).ok_or_else(|| {
            let known = METHODS.map(|entry| entry.name).join(", ");
            let reason = format!("`method` {name} is unknown; there are {known}");
            TrainError::Options { reason }
        })
    }
}

/// A method with its settings.
pub trait TrainingMethod: Debug + Send + Sync {
    /// The family and the defaults that the trained model's configuration names, and the tokens
    /// that the method adds to the vocabulary.
    fn usage(&self) -> ModelUsage;

    /// Every setting that determines the trained weights, for the record of the training.
    fn settings(&self) -> Value;

    /// The heads, losses and encoder on a model: ends with [`TaskSetup::task`].
    fn task(&self, setup: TaskSetup) -> Result<Box<dyn TrainTask>, TrainError>;
}

/// Refuses options that belong to other methods.
pub(crate) struct OptionCheck<'a> {
    method: &'static str,
    options: &'a MethodOptions,
}

impl<'a> OptionCheck<'a> {
    /// Of a method that learns latent thoughts.
    pub(crate) fn latent(
        method: &'static str,
        options: &'a MethodOptions,
    ) -> Result<Self, TrainError> {
        let check = Self { method, options };
        check.refuse(
            options.mode != ReasonerMode::Latent,
            "`method` {} learns latent thoughts; leave `mode` out",
        )?;
        Ok(check)
    }

    fn refuse(&self, is_given: bool, reason: &str) -> Result<(), TrainError> {
        match is_given {
            true => Err(TrainError::Options { reason: reason.replace("{}", self.method) }),
            false => Ok(()),
        }
    }

    /// Of a method without SIM-CoT's loss.
    pub(crate) fn no_step_decoder(self) -> Result<Self, TrainError> {
        self.refuse(
            self.options.step_decoder != 0.0,
            "`step_decoder` reads steps from the thoughts of coconut and codi, not of {}; leave it \
             out",
        )?;
        Ok(self)
    }

    /// Of a method without looped blocks.
    pub(crate) fn no_blocks(self) -> Result<Self, TrainError> {
        let MethodOptions { blocks, block_width, loops, step_loss_weight, .. } = self.options;
        let counts = [blocks, block_width, loops];
        self.refuse(
            counts.iter().any(|count| count.is_some()) || step_loss_weight.is_some(),
            "`blocks`, `block_width`, `loops` and `step_loss_weight` are options of lotus, not of \
             {}; leave them out",
        )?;
        Ok(self)
    }

    /// Of a method whose thoughts do not stand for a fixed number of tokens.
    pub(crate) fn no_compression(self) -> Result<Self, TrainError> {
        self.refuse(
            self.options.compression.is_some(),
            "`compression` is an option of latent-sft and rot, not of {}; leave it out, or give \
             `min_speed` and `max_speed` to colar",
        )?;
        Ok(self)
    }

    /// Of a method whose thoughts do not stand for several tokens.
    pub(crate) fn no_order(self) -> Result<Self, TrainError> {
        self.refuse(
            self.options.ordered,
            "`ordered` is for thoughts that stand for several tokens, those of colar, latent-sft \
             and rot, not of {}; leave it out",
        )?;
        Ok(self)
    }
}

/// Special tokens of latent reasoners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentMarkers {
    /// Before the first thought.
    pub begin_latent: u32,
    /// After the last thought.
    pub end_latent: u32,
    /// Ends an answer.
    pub eos: u32,
}

/// Where an example stands in training.
#[derive(Clone, Copy, Debug)]
pub struct ExamplePlace {
    /// Index in the stream of examples.
    pub id: u64,
    /// The share of training that is done, 0 to 1.
    pub progress: f64,
    /// Two uniform numbers from [0, 1), a function of the seed and the index.
    pub uniforms: [f64; 2],
}

/// The example with texts that cannot become control tokens.
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

    /// What a batch gets of an example: one, or student and teacher.
    fn encode(
        &self,
        example: &TrainExample,
        place: ExamplePlace,
    ) -> Result<Vec<Self::Encoded>, ModelError>;

    /// The rows that a tokenized example takes.
    fn rows(&self, encoded: &Self::Encoded) -> ExampleRows;
}

/// Rows of the decoder's passes that an example takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExampleRows {
    /// Positions that are fed.
    pub fed: usize,
    /// Those whose last hidden state is used.
    pub output: usize,
    /// Those with logits.
    pub logits: usize,
}

/// A model with its gradients.
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

    /// The parameters that are saved beside the decoder's.
    fn head_parameters(&self) -> Vec<&Parameter>;

    /// All trained parameters, in a fixed order.
    fn parameters(&self) -> Vec<&Parameter>;

    /// All trained parameters, mutably. [`Self::sync_weights`] has to follow a change.
    fn parameters_mut(&mut self) -> Vec<&mut Parameter>;

    /// Copies changed parameters to the weights that the forward pass uses.
    fn sync_weights(&mut self) -> Result<(), DeviceError>;
}
