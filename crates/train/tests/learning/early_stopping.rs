//! Early stopping: what was best is what is kept, and a training that gave up has given up.

use std::ops::ControlFlow;
use std::path::Path;

use model::Parameter;
use serde_json::{Map, Value};
use train::TrainError;
use train::trainer::{self, Evaluation, TrainConfig, TrainEvent, TrainOutcome, TrainTask};

use crate::support::{ReasonerFixture, device, optimizer, problems};

/// A course whose looks find what was written for them.
#[derive(Default)]
struct ScriptedTask {
    scores: Vec<f64>,
    steps_done: u32,
    saved: Vec<u32>,
}

impl TrainTask for ScriptedTask {
    fn accumulate_gradients(
        &mut self,
        step: u32,
        _: u32,
    ) -> Result<Map<String, Value>, TrainError> {
        self.steps_done = step + 1;
        Ok(Map::new())
    }

    fn parameters(&self) -> Vec<&Parameter> {
        Vec::new()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        Vec::new()
    }

    fn sync_weights(&mut self) -> Result<(), TrainError> {
        Ok(())
    }

    fn evaluate(&mut self, steps: u32) -> Result<Option<Evaluation>, TrainError> {
        Ok(self
            .scores
            .get(steps as usize - 1)
            .map(|&score| Evaluation { metrics: Map::new(), score }))
    }

    fn save(&mut self) -> Result<(), TrainError> {
        self.saved.push(self.steps_done);
        Ok(())
    }
}

fn config(dir: &Path, patience: u32) -> TrainConfig {
    let (optimizer, dir, fingerprint) = (optimizer(8, 1e-3), dir.to_owned(), String::new());
    TrainConfig {
        optimizer,
        accumulation_steps: 1,
        dir,
        save_every: 0,
        eval_every: 1,
        patience,
        fingerprint,
    }
}

const SCORES: [f64; 8] = [0.1, 0.5, 0.4, 0.6, 0.6, 0.2, 0.9, 1.0];

fn scripted() -> ScriptedTask {
    ScriptedTask { scores: SCORES.to_vec(), ..ScriptedTask::default() }
}

#[test]
fn the_best_is_kept_and_patience_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut course = scripted();
    let plan = config(dir.path(), 2);
    let run = |course: &mut ScriptedTask| {
        trainer::run(course, device(), &plan, &mut |_| ControlFlow::Continue(())).unwrap()
    };
    assert_eq!(run(&mut course), TrainOutcome::Finished);
    assert_eq!(
        (course.steps_done, &course.saved[..]),
        (6, &[1, 2, 4][..]),
        "an equal score is no improvement"
    );
    let mut again = scripted();
    assert_eq!(run(&mut again), TrainOutcome::Finished);
    assert_eq!(
        (again.steps_done, again.saved.len()),
        (0, 0),
        "what gave up does not go on when it is resumed"
    );
}

#[test]
fn without_patience_the_last_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut course = scripted();
    trainer::run(&mut course, device(), &config(dir.path(), 0), &mut |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!((course.steps_done, course.saved.last()), (8, Some(&8)));
}

#[test]
fn patience_lasts_over_interruptions() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, mut steps) = (config(dir.path(), 2), Vec::new());
    loop {
        let mut course = scripted();
        // Interrupted while it is looked at.
        let ended = trainer::run(&mut course, device(), &plan, &mut |event| match event {
            TrainEvent::Evaluated { .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        steps.push(course.steps_done);
        if ended.unwrap() == TrainOutcome::Finished {
            break;
        }
    }
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn what_is_interrupted_at_its_last_step_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut course = ScriptedTask::default(); // nothing to look at
    let ended =
        trainer::run(&mut course, device(), &config(dir.path(), 0), &mut |event| match event {
            TrainEvent::Stepped { steps: 8, .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
    assert_eq!((ended.unwrap(), &course.saved[..]), (TrainOutcome::Finished, &[8][..]));
}

#[test]
fn a_look_leaves_the_directory_alone() {
    let dir = tempfile::tempdir().unwrap();
    let reasoning = ReasonerFixture {
        width: 16,
        layers: 1,
        batch: 2,
        accumulation_steps: 1,
        steps: 2,
        dropout: 0.0,
    };
    let mut course = reasoning.task(dir.path(), problems(2));
    course.save().unwrap();
    let weights = || std::fs::read(dir.path().join("model.safetensors")).unwrap();
    let before = weights();
    course.parameters_mut()[0].value.data_mut().fill(0.5);
    course.sync_weights().unwrap();
    course.evaluate(1).unwrap().unwrap();
    assert!(weights() == before, "what was best so far is gone");
    assert!(!dir.path().join("training/look").exists(), "nothing stays behind");
}
