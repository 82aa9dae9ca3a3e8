//! Early stopping: what was best is what is kept, and a training that gave up has given up.

use std::ops::ControlFlow;
use std::path::Path;

use model::Parameter;
use serde_json::{Map, Value};
use train::Error;
use train::course::{self, Course, Ended, Event, Examined, Plan};

use crate::support::{Reasoning, device, optimizer, problems};

/// A course whose looks find what was written for them.
#[derive(Default)]
struct Scripted {
    scores: Vec<f64>,
    learned: u32,
    saved: Vec<u32>,
}

impl Course for Scripted {
    fn learn(&mut self, step: u32, _: u32) -> Result<Map<String, Value>, Error> {
        self.learned = step + 1;
        Ok(Map::new())
    }

    fn parameters(&self) -> Vec<&Parameter> {
        Vec::new()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        Vec::new()
    }

    fn refresh(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn examine(&mut self, steps: u32) -> Result<Option<Examined>, Error> {
        Ok(self.scores.get(steps as usize - 1).map(|&score| Examined { figures: Map::new(), score }))
    }

    fn save(&mut self) -> Result<(), Error> {
        self.saved.push(self.learned);
        Ok(())
    }
}

fn plan(dir: &Path, patience: u32) -> Plan {
    let (optimizer, dir, fingerprint) = (optimizer(8, 1e-3), dir.to_owned(), String::new());
    Plan { optimizer, accumulate: 1, dir, save_every: 0, examine_every: 1, patience, fingerprint }
}

const SCORES: [f64; 8] = [0.1, 0.5, 0.4, 0.6, 0.6, 0.2, 0.9, 1.0];

fn scripted() -> Scripted {
    Scripted { scores: SCORES.to_vec(), ..Scripted::default() }
}

#[test]
fn the_best_is_kept_and_patience_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut course = scripted();
    let plan = plan(dir.path(), 2);
    let run = |course: &mut Scripted| course::run(course, device(), &plan, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(run(&mut course), Ended::Done);
    assert_eq!((course.learned, &course.saved[..]), (6, &[1, 2, 4][..]), "an equal score is no improvement");
    let mut again = scripted();
    assert_eq!(run(&mut again), Ended::Done);
    assert_eq!((again.learned, again.saved.len()), (0, 0), "what gave up does not go on when it is resumed");
}

#[test]
fn without_patience_the_last_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut course = scripted();
    course::run(&mut course, device(), &plan(dir.path(), 0), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((course.learned, course.saved.last()), (8, Some(&8)));
}

#[test]
fn patience_lasts_over_interruptions() {
    let dir = tempfile::tempdir().unwrap();
    let (plan, mut steps) = (plan(dir.path(), 2), Vec::new());
    loop {
        let mut course = scripted();
        // Interrupted while it is looked at.
        let ended = course::run(&mut course, device(), &plan, &mut |event| match event {
            Event::Examined { .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        steps.push(course.learned);
        if ended.unwrap() == Ended::Done {
            break;
        }
    }
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn what_is_interrupted_at_its_last_step_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut course = Scripted::default(); // nothing to look at
    let ended = course::run(&mut course, device(), &plan(dir.path(), 0), &mut |event| match event {
        Event::Stepped { steps: 8, .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert_eq!((ended.unwrap(), &course.saved[..]), (Ended::Done, &[8][..]));
}

#[test]
fn a_look_leaves_the_directory_alone() {
    let dir = tempfile::tempdir().unwrap();
    let reasoning = Reasoning { width: 16, layers: 1, batch: 2, accumulate: 1, steps: 2, dropout: 0.0 };
    let mut course = reasoning.course(dir.path(), problems(2));
    course.save().unwrap();
    let weights = || std::fs::read(dir.path().join("model.safetensors")).unwrap();
    let before = weights();
    course.parameters_mut()[0].value.data_mut().fill(0.5);
    course.refresh().unwrap();
    course.examine(1).unwrap().unwrap();
    assert!(weights() == before, "what was best so far is gone");
    assert!(!dir.path().join("training/look").exists(), "nothing stays behind");
}
