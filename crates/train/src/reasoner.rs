//! `train reasoner`: a latent reasoner, or a baseline that thinks in words or not at all.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::{Engine, Perturbation, Reasoner, Request};
use model::Parameter;
use model::save::SaveDtype;
use serde_json::{Map, Value, json};
use tensor::Device;

use crate::data_loader::DataLoader;
use crate::dataset::TrainExample;
use crate::error::TrainError;
use crate::latent_step::{DropoutConfig, LatentTrainStep};
use crate::model_dir::{copy_description, save_weights};
use crate::trainer::{Evaluation, TrainTask};

/// A reasoner's training.
pub struct ReasonerTask {
    /// Where it computes.
    pub device: Device,
    /// Who learns.
    pub train_step: LatentTrainStep,
    /// What from.
    pub loader: DataLoader,
    /// Dropout while learning.
    pub dropout: f32,
    /// Names the masks.
    pub seed: u64,
    /// Parts of a step.
    pub accumulation_steps: u32,
    /// Where the model goes.
    pub out: PathBuf,
    /// The format of its weights.
    pub dtype: SaveDtype,
    /// Problems to look at.
    pub held_out: Vec<TrainExample>,
}

impl TrainTask for ReasonerTask {
    fn accumulate_gradients(
        &mut self,
        step: u32,
        part: u32,
    ) -> Result<Map<String, Value>, TrainError> {
        let lessons = self
            .loader
            .batch(u64::from(step) * u64::from(self.accumulation_steps) + u64::from(part))?;
        let dropped = DropoutConfig { p: self.dropout, seed: self.seed, step };
        let (study, dropped) = (&mut self.train_step, (self.dropout > 0.0).then_some(dropped));
        let losses = self.device.run(|| study.accumulate_gradients(&lessons, dropped))?;
        let mut said = Map::from_iter([("loss".to_owned(), json!(losses.tokens))]);
        if self.train_step.digit_head.is_some() {
            said.insert("digits".to_owned(), json!(losses.digits));
        }
        Ok(said)
    }

    fn parameters(&self) -> Vec<&Parameter> {
        self.train_step.parameters()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.train_step.parameters_mut()
    }

    fn sync_weights(&mut self) -> Result<(), TrainError> {
        let study = &mut self.train_step;
        Ok(self.device.run(|| study.sync_weights())?)
    }

    fn evaluate(&mut self, steps: u32) -> Result<Option<Evaluation>, TrainError> {
        if self.held_out.is_empty() {
            return Ok(None);
        }
        // What is looked at lies aside: the directory holds what was best so far.
        let aside = self.out.join("training/look");
        copy_description(&self.out, &aside)?;
        self.write_weights(&aside)?;
        let reasoner = Reasoner::load(&self.device, &aside, None)?;
        let accuracy = greedy_accuracy(reasoner, &self.held_out)?;
        std::fs::remove_dir_all(&aside).map_err(|source| TrainError::Io { path: aside, source })?;
        let figures = [
            ("step", json!(steps)),
            ("greedy", json!(accuracy)),
            ("problems", json!(self.held_out.len())),
        ];
        let figures = figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(Some(Evaluation { metrics: figures, score: accuracy }))
    }

    fn save(&mut self) -> Result<(), TrainError> {
        self.write_weights(&self.out)
    }
}

impl ReasonerTask {
    fn write_weights(&self, to: &Path) -> Result<(), TrainError> {
        let LatentTrainStep { model: learner, head, .. } = &self.train_step;
        save_weights(
            to,
            learner.decoder.config(),
            learner.parameters(),
            head.parameters(),
            self.dtype,
        )
    }
}

/// The share of examples that a reasoner answers right without any chance.
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
