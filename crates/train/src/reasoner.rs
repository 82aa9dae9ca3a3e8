//! `train reasoner`: a latent reasoner, or a baseline with explicit or no chain of thought.

mod training;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Engine, Perturbation, Reasoner, Request};
use model::{Cache, FrozenElements, Parameter};
use serde_json::{Map, Value, json};
use tensor::Device;

use crate::activations::BatchRows;
use crate::data_loader::DataLoader;
use crate::dropout::DropoutConfig;
use crate::error::TrainError;
use crate::methods::{ExampleEncoder, ExampleRows, TrainStep};
use crate::model_dir::{WeightWriter, copy_description};
use crate::trainer::{EXAMPLE_COUNT, EvalResult, TOKEN_COUNT, TrainTask};
use data::TrainExample;

pub use training::{MethodSpec, ReasonerTraining, StepDecoderSpec};

/// Trains a reasoner on tokenized examples.
pub struct ReasonerTask<S, E: ExampleEncoder> {
    /// Device of the model.
    pub device: Device,
    /// The model.
    pub train_step: S,
    /// Its batches.
    pub loader: DataLoader<E>,
    /// Dropout probability; 0 for none.
    pub dropout: f32,
    /// Seed of the dropout masks.
    pub seed: u64,
    /// Micro-batches per step.
    pub accumulation_steps: u32,
    /// Directory of the model; configuration and tokenizer are in it.
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
    ) -> Result<Map<String, Value>, TrainError> {
        let batch = u64::from(step) * u64::from(self.accumulation_steps) + u64::from(micro_batch);
        let examples = self.loader.batch(batch)?;
        let dropout = DropoutConfig { p: self.dropout, seed: self.seed, step };
        let drops = self.dropout > 0.0 || self.train_step.model().has_adapter_dropout();
        let dropout = drops.then_some(dropout);
        let train_step = &mut self.train_step;
        let losses = self.device.run(|| train_step.accumulate_gradients(&examples, dropout))?;
        let rows = |example| self.loader.encoder().rows(example);
        let fed: usize = examples.iter().map(|example| rows(example).fed).sum();
        let mut log: Map<String, Value> =
            losses.into_iter().map(|(name, loss)| (name.to_owned(), json!(loss))).collect();
        log.insert(EXAMPLE_COUNT.to_owned(), json!(examples.len()));
        log.insert(TOKEN_COUNT.to_owned(), json!(fed));
        Ok(log)
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
        // Evaluated from a directory of its own: `out` holds the best model so far.
        let dir = self.out.join("training/eval");
        copy_description(&self.out, &dir)?;
        self.write_weights(&dir)?;
        let reasoner = Reasoner::load(&self.device, &dir, None)?;
        let accuracy = greedy_accuracy(reasoner, &self.held_out)?;
        std::fs::remove_dir_all(&dir).map_err(|source| TrainError::Io { path: dir, source })?;
        let metrics = [("greedy", json!(accuracy)), ("problems", json!(self.held_out.len()))];
        let metrics = metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(Some(EvalResult { metrics, score: accuracy }))
    }

    fn save(&mut self) -> Result<(), TrainError> {
        self.write_weights(&self.out)
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

impl<S: TrainStep, E: ExampleEncoder> ReasonerTask<S, E> {
    fn write_weights(&self, dir: &Path) -> Result<(), TrainError> {
        let (model, heads) = (self.train_step.model(), self.train_step.head_parameters());
        self.writer.write(dir, model, heads)
    }
}

/// The fraction of examples that a reasoner answers correctly by greedy decoding.
pub fn greedy_accuracy(
    reasoner: impl Into<Arc<Reasoner>>,
    examples: &[TrainExample],
) -> Result<f64, TrainError> {
    let engine = Engine::new(reasoner);
    let mut params = engine.default_params();
    (params.samples, params.perturbation) = (NonZeroUsize::MIN, Perturbation::None);
    let request = |(i, example): (usize, &TrainExample)| Request {
        id: i as u32,
        ..Request::new(example.question.clone(), params)
    };
    let requests: Vec<Request> = examples.iter().enumerate().map(request).collect();
    let mut correct = 0usize;
    engine.run(&requests, |index, reply| -> Result<(), TrainError> {
        let trajectories = reply?.trajectories;
        let mut answers = trajectories.iter().filter_map(|t| t.answer.as_ref());
        correct += usize::from(answers.any(|answer| answer.matches(&examples[index].answer)));
        Ok(())
    })?;
    Ok(correct as f64 / examples.len().max(1) as f64)
}
