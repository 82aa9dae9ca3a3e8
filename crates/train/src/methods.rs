//! The training methods: how each lays an example out as tokens, and the losses that it adds.
//!
//! | method | layout | losses |
//! |---|---|---|
//! | [`coconut`] (with CoT and no-CoT) | steps removed one by one, thoughts in their place | tokens, digits |
//! | [`codi`] | a student with thoughts, a teacher with steps | tokens of both, distillation |
//! | [`simcot`] | CODI's or COCONUT's | theirs, and the steps decoded from the thoughts |
//! | [`colar`] | steps compressed into sums of embeddings | tokens, the next compressed embedding |
//! | [`latent_sft`] | steps compressed into mixtures of embeddings | tokens, the next mixture |
//! | [`rot`] | steps compressed into a fixed number of slots | tokens, the next slot |
//!
//! A method is an [`ExampleEncoder`] and a [`TrainStep`]; data, optimizer, log, checkpoints and
//! evaluation are the same for all.

pub mod coconut;
pub mod codi;
pub mod colar;
pub mod compressed;
pub mod latent_sft;
pub mod layout;
pub mod rot;
pub mod simcot;

use model::{ModelError, Parameter, Tokenizer, TrainableDecoder};
use tensor::DeviceError;

use crate::dropout::DropoutConfig;
use data::TrainExample;

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

    /// Adds the gradients of a batch's loss to all parameters; returns the unweighted losses by
    /// name.
    fn accumulate_gradients(
        &mut self,
        examples: &[Self::Example],
        dropout: Option<DropoutConfig>,
    ) -> Result<Vec<(&'static str, f64)>, DeviceError>;

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
