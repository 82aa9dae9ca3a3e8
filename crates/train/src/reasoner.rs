//! `train reasoner`: a latent reasoner, or a baseline that thinks in words or not at all.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use engine::question::GoldKind;
use engine::{Engine, Perturbation, Question, Reasoner, Settings};
use model::Parameter;
use model::save::Saved;
use serde_json::{Map, Value, json};
use tensor::Device;

use crate::course::{Course, Examined};
use crate::dataset::Example;
use crate::directory::{copy_description, save_weights};
use crate::error::Error;
use crate::feed::Feed;
use crate::study::{Droppings, Study};

/// A reasoner's training.
pub struct ReasonerCourse {
    /// Where it computes.
    pub device: Device,
    /// Who learns.
    pub study: Study,
    /// What from.
    pub feed: Feed,
    /// Dropout while learning.
    pub dropout: f32,
    /// Names the masks.
    pub seed: u64,
    /// Parts of a step.
    pub accumulate: u32,
    /// Where the model goes.
    pub out: PathBuf,
    /// The format of its weights.
    pub saved: Saved,
    /// Problems to look at.
    pub held_out: Vec<Example>,
}

impl Course for ReasonerCourse {
    fn learn(&mut self, step: u32, part: u32) -> Result<Map<String, Value>, Error> {
        let lessons = self.feed.take(u64::from(step) * u64::from(self.accumulate) + u64::from(part))?;
        let dropped = Droppings { p: self.dropout, seed: self.seed, step };
        let (study, dropped) = (&mut self.study, (self.dropout > 0.0).then_some(dropped));
        let losses = self.device.run(|| study.learn(&lessons, dropped))?;
        let mut said = Map::from_iter([("loss".to_owned(), json!(losses.tokens))]);
        if self.study.digits.is_some() {
            said.insert("digits".to_owned(), json!(losses.digits));
        }
        Ok(said)
    }

    fn parameters(&self) -> Vec<&Parameter> {
        self.study.parameters()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.study.parameters_mut()
    }

    fn refresh(&mut self) -> Result<(), Error> {
        let study = &mut self.study;
        Ok(self.device.run(|| study.refresh())?)
    }

    fn examine(&mut self, steps: u32) -> Result<Option<Examined>, Error> {
        if self.held_out.is_empty() {
            return Ok(None);
        }
        // What is looked at lies aside: the directory holds what was best so far.
        let aside = self.out.join("training/look");
        copy_description(&self.out, &aside)?;
        self.write(&aside)?;
        let reasoner = Reasoner::load(&self.device, &aside, None)?;
        let accuracy = accuracy(&reasoner, &self.held_out)?;
        std::fs::remove_dir_all(&aside).map_err(|source| Error::Io { path: aside, source })?;
        let figures = [("step", json!(steps)), ("greedy", json!(accuracy)), ("problems", json!(self.held_out.len()))];
        let figures = figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(Some(Examined { figures, score: accuracy }))
    }

    fn save(&mut self) -> Result<(), Error> {
        self.write(&self.out)
    }
}

impl ReasonerCourse {
    fn write(&self, to: &Path) -> Result<(), Error> {
        let Study { learner, head, .. } = &self.study;
        save_weights(to, learner.decoder.config(), learner.parameters(), head.parameters(), self.saved)
    }
}

/// The share of examples that a reasoner answers right without any chance.
pub fn accuracy(reasoner: &Reasoner, examples: &[Example]) -> Result<f64, Error> {
    let questions: Vec<Question> = examples.iter().enumerate().map(|(i, e)| question(i as u32, e)).collect();
    let mut settings = Settings::of(&reasoner.method);
    (settings.samples, settings.perturbation) = (NonZeroUsize::MIN, Perturbation::None);
    let mut right = 0usize;
    let engine = Engine { reasoner, judge: None, settings };
    engine.run(&questions, &mut |outcome| {
        right += usize::from(outcome.sample.trajectories.iter().any(|t| t.correct));
        ControlFlow::Continue(())
    })?;
    Ok(right as f64 / questions.len().max(1) as f64)
}

/// An example as the engine asks it.
pub fn question(id: u32, example: &Example) -> Question {
    Question {
        id,
        text: example.question.clone(),
        gold: example.answer.clone(),
        kind: GoldKind::Number,
        steps: example.steps.clone(),
    }
}
