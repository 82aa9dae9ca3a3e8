//! `train reward`: training of a reward model over thoughts (LatentRM) on annotations.

mod metrics;

use std::path::PathBuf;

use engine::{LatentModel, Prompt, ReferenceTracer};
use model::{Cache, FrozenElements, Parameter};
use record::Losses;
use serde_json::Value;
use tensor::{Device, Tensor};

use crate::activations::BatchRows;
use crate::annotate::{AnnotatedProblem, Annotations};
use crate::data_loader::shuffled_index;
use crate::dropout::DropoutConfig;
use crate::error::TrainError;
use crate::loss::Objective;
use crate::model_dir::WeightWriter;
use crate::order_preference::add_permuted;
use crate::reward_step::{RewardExample, RewardLossConfig, RewardTrainStep};
use crate::trainer::{EvalResult, MicroBatch, TrainTask};
use metrics::RewardMetrics;

/// Trains a reward model on annotations.
pub struct RewardTask {
    /// Device of the model.
    pub device: Device,
    /// The reward model and its losses.
    pub train_step: RewardTrainStep,
    /// Frozen reasoner that generates the reference trace preceding every trajectory.
    pub reference_reasoner: Option<LatentModel>,
    /// Generates reference traces; keeps its KV cache between calls.
    pub reference_tracer: ReferenceTracer,
    /// Training data: the directories form one list, reshuffled every epoch.
    pub annotations: Vec<Annotations>,
    /// Evaluation data.
    pub held_out: Option<Annotations>,
    /// Training objective.
    pub objective: Objective,
    /// Weight of the last thought step relative to the first; weights in between are interpolated.
    pub last_step_weight: f32,
    /// Weight of the loss that prefers a correct trajectory over a copy with permuted thoughts; 0
    /// disables it.
    pub order_preference: f32,
    /// Dropout probability; 0 disables it.
    pub dropout: f32,
    /// Seed of the data order and of the dropout masks.
    pub seed: u64,
    /// Problems per micro-batch.
    pub batch_size: usize,
    /// Micro-batches per step.
    pub accumulation_steps: u32,
    /// Output directory; configuration and tokenizer are already in it.
    pub out: PathBuf,
    /// Writes the weights.
    pub writer: WeightWriter,
}

/// Problems per forward pass in an evaluation.
const EVAL_BATCH: usize = 256;

impl RewardTask {
    /// Micro-batch `index`, counted from 0.
    fn batch(&self, index: u64) -> Result<Vec<RewardExample>, TrainError> {
        let count: u64 = self.annotations.iter().map(|part| part.len() as u64).sum();
        if count == 0 {
            return Err(TrainError::EmptyAnnotations { what: "the annotations".to_owned() });
        }
        let first = index * self.batch_size as u64;
        let shuffled = |i: u64| shuffled_index(i % count, count, self.seed.wrapping_add(i / count));
        let indices = first..first + self.batch_size as u64;
        let mut batch: Vec<RewardExample> =
            indices.clone().filter_map(|i| self.example(shuffled(i) as usize)).collect();
        if self.order_preference > 0.0 {
            for (example, i) in batch.iter_mut().zip(indices) {
                add_permuted(example, self.seed.wrapping_add(i));
            }
        }
        Ok(batch)
    }

    /// Checks that every problem fits the reward model and the reference reasoner.
    pub fn check(&self) -> Result<(), TrainError> {
        let parts = self.annotations.iter().chain(&self.held_out);
        let mut problems = parts.flat_map(Annotations::problems);
        problems.try_for_each(|problem| self.check_problem(&problem))
    }

    fn check_problem(&self, problem: &AnnotatedProblem<'_>) -> Result<(), TrainError> {
        let id = problem.id();
        let prompt = problem.prompt();
        let config = self.train_step.model.decoder.config();
        let (trace, reference) = match &self.reference_reasoner {
            Some(model) => (model.method.length.limit(), model.decoder.config()),
            None => (0, config),
        };
        let prefix = prompt.len() + trace;
        let outcome = self.train_step.outcome.as_ref();
        let mut longest = prefix;
        for trajectory in problem.trajectories() {
            let answer = outcome.map_or(&[][..], |_| trajectory.answer());
            check_vocab(id, answer, "the reward model", config.vocab)?;
            let end_latent = outcome.map_or(0, |outcome| outcome.end_latent.len());
            longest = longest.max(prefix + trajectory.labels().len() + end_latent + answer.len());
        }
        check_vocab(id, prompt, "the reward model", config.vocab)?;
        check_vocab(id, prompt, "the reference reasoner", reference.vocab)?;
        for (length, context) in [(longest, config.context), (prefix, reference.context)] {
            if length > context {
                return Err(TrainError::TooLong { id: u64::from(id), length, context });
            }
        }
        Ok(())
    }

    /// Generates each example's reference trace, if there is a reference reasoner.
    fn add_reference_traces(&mut self, examples: &mut [RewardExample]) -> Result<(), TrainError> {
        let Some(reference) = &self.reference_reasoner else { return Ok(()) };
        let prompt = |example: &RewardExample| Prompt {
            id: example.id,
            text: String::new(),
            tokens: example.prompt.clone(),
        };
        let prompts: Vec<Prompt> = examples.iter().map(prompt).collect();
        let tracer = &mut self.reference_tracer;
        let (thoughts, lengths) = self.device.run(|| {
            let trace = tracer.trace(reference, &prompts.iter().collect::<Vec<_>>())?;
            Ok::<_, tensor::DeviceError>((trace.thoughts.to_host()?, trace.lengths))
        })?;
        let mut start = 0;
        for (example, length) in examples.iter_mut().zip(lengths) {
            example.reference_trace = thoughts.select(start..start + length);
            start += length;
        }
        Ok(())
    }

    /// Problem `index` of the concatenated annotations.
    fn example(&self, mut index: usize) -> Option<RewardExample> {
        for part in &self.annotations {
            if index < part.len() {
                return part.get(index).map(|problem| reward_example(&problem));
            }
            index -= part.len();
        }
        None
    }
}

/// Checks that a model's vocabulary contains all tokens.
fn check_vocab(
    id: u32,
    tokens: &[u32],
    what: &'static str,
    vocab: usize,
) -> Result<(), TrainError> {
    match tokens.iter().find(|&&token| token as usize >= vocab) {
        Some(&token) => Err(TrainError::UnknownToken { id, token, what, vocab }),
        None => Ok(()),
    }
}

fn reward_example(problem: &AnnotatedProblem<'_>) -> RewardExample {
    let mut example = RewardExample {
        id: problem.id(),
        prompt: problem.prompt().to_vec(),
        step_results: problem.steps().to_vec(),
        ..RewardExample::default()
    };
    let mut thoughts = Vec::new();
    for trajectory in problem.trajectories() {
        let labels = trajectory.labels();
        example.lengths.push(labels.len());
        example.labels.extend(labels);
        example.correct.push(trajectory.correct());
        example.answers.push(trajectory.answer().to_vec());
        thoughts.extend(trajectory.thoughts());
    }
    let rows = example.labels.len();
    example.thoughts = Tensor::from_vec(rows, thoughts.len() / rows.max(1), thoughts);
    example
}

impl TrainTask for RewardTask {
    fn accumulate_gradients(
        &mut self,
        step: u32,
        micro_batch: u32,
    ) -> Result<MicroBatch, TrainError> {
        let batch = u64::from(step) * u64::from(self.accumulation_steps) + u64::from(micro_batch);
        let mut examples = self.batch(batch)?;
        self.add_reference_traces(&mut examples)?;
        let longest = examples.iter().flat_map(|example| &example.lengths).max();
        let last_step = longest.map_or(1, |&n| n.saturating_sub(1).max(1));
        let last_weight = self.last_step_weight;
        let step_weight =
            move |t: usize| 1.0 + (last_weight - 1.0) * (t as f32 / last_step as f32).min(1.0);
        let dropout = DropoutConfig { p: self.dropout, seed: self.seed, step };
        let config = RewardLossConfig {
            objective: self.objective,
            step_weight: &step_weight,
            dropout: (self.dropout > 0.0).then_some(dropout),
            order_preference: self.order_preference,
        };
        let train_step = &mut self.train_step;
        let losses = self.device.run(|| train_step.accumulate_gradients(&examples, config))?;
        let digits = self.train_step.digit_heads.is_some().then_some(losses.digits);
        Ok(MicroBatch {
            losses: Losses::new(losses.objective).with("digits", digits),
            examples: examples.len() as u64,
            tokens: None,
        })
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
        let Some(held_out) = &self.held_out else { return Ok(None) };
        let mut examples: Vec<RewardExample> =
            held_out.problems().map(|problem| reward_example(&problem)).collect();
        let mut metrics = RewardMetrics::default();
        for batch in examples.chunks_mut(EVAL_BATCH) {
            self.add_reference_traces(batch)?;
            let train_step = &mut self.train_step;
            let rewards = self.device.run(|| train_step.predict(batch))?;
            batch.iter().zip(&rewards).for_each(|(example, rewards)| metrics.add(example, rewards));
        }
        let metrics = metrics.to_json();
        let score = metrics.get("best_of").and_then(Value::as_f64).unwrap_or(0.0);
        Ok(Some(EvalResult { metrics, score }))
    }

    fn save(&mut self) -> Result<(), TrainError> {
        let RewardTrainStep { model, .. } = &self.train_step;
        let heads = self.train_step.head_parameters();
        self.writer.write(&self.out, model, heads)
    }

    fn is_saved(&self) -> bool {
        self.writer.is_written(&self.out)
    }

    fn frozen(&self) -> FrozenElements {
        self.train_step.model.frozen()
    }

    fn activation_bytes(&mut self) -> Result<Option<u64>, TrainError> {
        let examples = self.batch(0)?;
        let trace = self.reference_reasoner.as_ref().map_or(0, |model| model.method.length.limit());
        let mut rows = BatchRows::default();
        for example in &examples {
            let prefix = example.prompt.len() + trace;
            rows.fed += prefix;
            rows.slots += Cache::slots_for(prefix);
            for (&thoughts, answer) in example.lengths.iter().zip(&example.answers) {
                let outcome = self.train_step.outcome.as_ref();
                let read = outcome.map_or(0, |outcome| outcome.end_latent.len() + answer.len());
                rows.fed += thoughts + read;
                rows.output += thoughts + read;
                rows.slots += Cache::slots_for(thoughts + read);
            }
        }
        Ok(Some(rows.activation_bytes(&self.train_step.model)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_outside_a_models_vocabulary_is_named() {
        assert!(check_vocab(3, &[1, 8], "the reward model", 9).is_ok());
        let error = check_vocab(3, &[1, 9], "the reward model", 9).unwrap_err().to_string();
        let expected = "token 9, but the vocabulary of the reward model has only 9";
        assert!(error.contains("problem 3") && error.contains(expected), "{error}");
    }
}
