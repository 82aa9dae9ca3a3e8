//! Training of a reasoner as a [`TrainTask`]: a method's train step on
//! batches of its encoder. Evaluation decodes greedily from the weights in memory.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use data::TrainExample;
use engine::{Engine, Perturbation, Reasoner, Request};
use model::{Cache, FrozenElements, Parameter, Tokenizer, TrainableDecoder};
use serde_json::{Map, json};
use tensor::Device;

use crate::activations::BatchRows;
use crate::data_loader::{BatchSpec, DataLoader, ExampleSource};
use crate::dropout::DropoutConfig;
use crate::error::TrainError;
use crate::methods::{ExampleEncoder, ExampleRows, TrainStep};
use crate::model_dir::{HeadSource, TrainableModel, WeightWriter};
use crate::trainer::{EvalResult, MicroBatch, TrainTask};

/// Settings shared by all methods, except the optimizer's.
#[derive(Clone)]
pub struct ReasonerTraining {
    /// Training data.
    pub source: ExampleSource,
    /// Examples per batch.
    pub batch_size: usize,
    /// Optimizer steps.
    pub steps: u32,
    /// Micro-batches per step.
    pub accumulation_steps: u32,
    /// Dropout probability; 0 disables it.
    pub dropout: f32,
    /// Seed of new weights, curriculum, labels, noise and masks.
    pub seed: u64,
    /// Output directory; configuration and tokenizer are already in it.
    pub out: PathBuf,
    /// Problems for evaluation; may be empty.
    pub held_out: Vec<TrainExample>,
}

/// The inputs from which a method builds its task.
pub struct TaskSetup {
    /// Device of the model.
    pub device: Device,
    /// The initial model.
    pub model: TrainableModel,
    /// Settings shared by all methods.
    pub training: ReasonerTraining,
}

impl TaskSetup {
    /// The tokenizer, for an encoder.
    pub fn tokenizer(&self) -> Arc<Tokenizer> {
        Arc::clone(&self.model.tokenizer)
    }

    /// The weights of a head: from the initial model if it has the head, else random.
    pub fn head_source(&self) -> Result<HeadSource, TrainError> {
        let layers = self.model.decoder.decoder.config().layers;
        self.model.initial.head_source(self.training.seed, layers)
    }

    /// Builds the task from a method's encoder and its train step; `step` builds the latter from
    /// the decoder.
    pub fn task<S, E>(
        self,
        encoder: E,
        step: impl FnOnce(TrainableDecoder) -> S,
    ) -> Result<Box<dyn TrainTask>, TrainError>
    where
        S: TrainStep + 'static,
        E: ExampleEncoder<Encoded = S::Example> + 'static,
    {
        let Self { device, model, training } = self;
        let batches = BatchSpec {
            source: training.source,
            encoder,
            batch_size: training.batch_size,
            batches: u64::from(training.steps) * u64::from(training.accumulation_steps),
            seed: training.seed,
            context: model.decoder.decoder.config().context,
        };
        Ok(Box::new(ReasonerTask {
            device,
            train_step: step(model.decoder),
            loader: DataLoader::new(batches),
            dropout: training.dropout,
            seed: training.seed,
            accumulation_steps: training.accumulation_steps,
            out: training.out,
            writer: model.writer,
            held_out: training.held_out,
        }))
    }
}

/// Trains a reasoner on tokenized examples.
pub struct ReasonerTask<S, E: ExampleEncoder> {
    /// Device of the model.
    pub device: Device,
    /// The model and the method's losses.
    pub train_step: S,
    /// Training batches.
    pub loader: DataLoader<E>,
    /// Dropout probability; 0 disables it.
    pub dropout: f32,
    /// Seed of the dropout masks.
    pub seed: u64,
    /// Micro-batches per step.
    pub accumulation_steps: u32,
    /// Output directory; configuration and tokenizer are already in it.
    pub out: PathBuf,
    /// Writes the weights.
    pub writer: WeightWriter,
    /// Problems for evaluation; may be empty.
    pub held_out: Vec<TrainExample>,
}

impl<S, E> TrainTask for ReasonerTask<S, E>
where
    S: TrainStep,
    E: ExampleEncoder<Encoded = S::Example> + 'static,
{
    fn accumulate_gradients(
        &mut self,
        step: u32,
        micro_batch: u32,
    ) -> Result<MicroBatch, TrainError> {
        let batch = u64::from(step) * u64::from(self.accumulation_steps) + u64::from(micro_batch);
        let examples = self.loader.batch(batch)?;
        let dropout = DropoutConfig { p: self.dropout, seed: self.seed, step };
        let drops = self.dropout > 0.0 || self.train_step.model().has_adapter_dropout();
        let dropout = drops.then_some(dropout);
        let train_step = &mut self.train_step;
        let losses = self.device.run(|| train_step.accumulate_gradients(&examples, dropout))?;
        let encoder = self.loader.encoder();
        let fed: usize = examples.iter().map(|example| encoder.rows(example).fed).sum();
        Ok(MicroBatch { losses, examples: examples.len() as u64, tokens: Some(fed as u64) })
    }

    fn parameters(&self) -> Vec<&Parameter> {
        self.train_step.parameters()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.train_step.parameters_mut()
    }

    fn sync_weights(&mut self) -> Result<(), TrainError> {
        let train_step = &mut self.train_step;
        Ok(self.device.run(|| train_step.sync_weights())?)
    }

    fn evaluate(&mut self, _: u32) -> Result<Option<EvalResult>, TrainError> {
        if self.held_out.is_empty() {
            return Ok(None);
        }
        let heads = self.train_step.head_parameters();
        let files = self.writer.in_memory(&self.out, self.train_step.model(), heads)?;
        let accuracy = greedy_accuracy(Reasoner::load(&self.device, files, None)?, &self.held_out)?;
        let metrics = Map::from_iter([
            ("greedy".to_owned(), json!(accuracy)),
            ("problems".to_owned(), json!(self.held_out.len())),
        ]);
        Ok(Some(EvalResult { metrics, score: accuracy }))
    }

    fn save(&mut self) -> Result<(), TrainError> {
        let heads = self.train_step.head_parameters();
        self.writer.write(&self.out, self.train_step.model(), heads)
    }

    fn is_saved(&self) -> bool {
        self.writer.is_written(&self.out)
    }

    fn frozen(&self) -> FrozenElements {
        self.train_step.model().frozen()
    }

    fn activation_bytes(&mut self) -> Result<Option<u64>, TrainError> {
        let mut rows = BatchRows::default();
        for example in &self.loader.batch(0)? {
            let ExampleRows { fed, output, logits } = self.loader.encoder().rows(example);
            rows.fed += fed;
            rows.output += output;
            rows.logits += logits;
            rows.slots += Cache::slots_for(fed);
        }
        Ok(Some(rows.activation_bytes(self.train_step.model())))
    }
}

/// The fraction of examples answered correctly with greedy decoding.
pub fn greedy_accuracy(
    reasoner: impl Into<Arc<Reasoner>>,
    examples: &[TrainExample],
) -> Result<f64, TrainError> {
    let engine = Engine::new(reasoner);
    let mut params = engine.default_params();
    params.samples = NonZeroUsize::MIN;
    params.perturbation = Perturbation::None;
    let requests: Vec<Request> = (0..)
        .zip(examples)
        .map(|(id, example)| Request { id, ..Request::new(example.question.clone(), params) })
        .collect();
    let mut correct = 0usize;
    engine.run(&requests, |index, reply| -> Result<(), TrainError> {
        let trajectories = reply?.trajectories;
        let mut answers = trajectories.iter().filter_map(|t| t.answer.as_ref());
        correct += usize::from(answers.any(|answer| answer.matches(&examples[index].answer)));
        Ok(())
    })?;
    Ok(correct as f64 / examples.len().max(1) as f64)
}
