//! Early stopping: the best model is kept, and a stopped training does not continue.

use std::ops::ControlFlow;
use std::path::Path;

use latent_tts_train::TrainError;
use latent_tts_train::trainer::{
    EvalResult, KeepPolicy, MicroBatch, TrainConfig, TrainEvent, TrainOutcome, TrainTask,
};
use model::Parameter;
use record::TrainingDir;
use serde_json::Map;

use crate::support::{ReasonerFixture, problems, train, train_config};

/// A task whose evaluations return predefined scores.
#[derive(Default)]
struct ScriptedTask {
    scores: Vec<f64>,
    steps_done: u32,
    saved: Vec<u32>,
    /// Whether the saved files were removed.
    removed: bool,
}

impl TrainTask for ScriptedTask {
    fn accumulate_gradients(&mut self, step: u32, _: u32) -> Result<MicroBatch, TrainError> {
        self.steps_done = step + 1;
        Ok(MicroBatch::default())
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

    fn evaluate(&mut self, steps: u32) -> Result<Option<EvalResult>, TrainError> {
        let score = self.scores.get(steps as usize - 1);
        Ok(score.map(|&score| EvalResult { metrics: Map::new(), score }))
    }

    fn is_saved(&self) -> bool {
        !self.removed
    }

    fn save(&mut self) -> Result<(), TrainError> {
        self.saved.push(self.steps_done);
        self.removed = false;
        Ok(())
    }
}

fn config(dir: &Path, patience: u32) -> TrainConfig {
    TrainConfig { eval_every: 1, patience, ..train_config(dir, 8, 1e-3) }
}

const SCORES: [f64; 8] = [0.1, 0.5, 0.4, 0.6, 0.6, 0.2, 0.9, 1.0];

fn scripted() -> ScriptedTask {
    ScriptedTask { scores: SCORES.to_vec(), ..ScriptedTask::default() }
}

#[test]
fn patience_ends_training_and_the_best_model_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut task = scripted();
    let config = config(dir.path(), 2);
    let run =
        |task: &mut ScriptedTask| train(task, &config, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(run(&mut task), TrainOutcome::Finished);
    assert_eq!(
        (task.steps_done, &task.saved[..]),
        (6, &[1, 2, 4, 5][..]),
        "an equal score is not an improvement, but the later of equal models is kept"
    );
    let mut again = scripted();
    assert_eq!(run(&mut again), TrainOutcome::Finished);
    assert_eq!(
        (again.steps_done, again.saved.len()),
        (0, 0),
        "a stopped training does not continue when it is resumed"
    );
}

/// A finished training writes a removed model again, if the state contains that model.
#[test]
fn a_finished_training_has_its_model() {
    for (patience, lost) in [(2, true), (0, false)] {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path(), patience);
        train(&mut scripted(), &config, &mut |_| ControlFlow::Continue(())).unwrap();
        let mut again = ScriptedTask { removed: true, ..scripted() };
        let outcome = train(&mut again, &config, &mut |_| ControlFlow::Continue(()));
        match lost {
            true => assert!(matches!(outcome, Err(TrainError::MissingModel { .. })), "{outcome:?}"),
            false => assert_eq!((outcome.unwrap(), again.saved.len()), (TrainOutcome::Finished, 1)),
        }
    }
}

#[test]
fn the_best_model_is_kept_unless_the_last_is_wanted() {
    for (keep, saved, kept) in [
        (KeepPolicy::Best, vec![1, 2, 4, 5, 7, 8], vec![1, 2, 4, 5, 7, 8]),
        (KeepPolicy::Last, (1..=8).collect(), (1..=8).collect()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut task = scripted();
        let config = TrainConfig { keep, ..config(dir.path(), 0) };
        train(&mut task, &config, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((task.steps_done, task.saved), (8, saved), "{keep:?}");
        let evals = TrainingDir::find(dir.path()).unwrap().evals().unwrap();
        let scores: Vec<f64> = evals.iter().map(|eval| eval.score).collect();
        assert_eq!(scores, SCORES);
        let marked = evals.iter().filter(|eval| eval.kept).map(|eval| eval.step);
        assert_eq!(marked.collect::<Vec<u32>>(), kept, "{keep:?}");
    }
}

#[test]
fn a_best_model_in_the_middle_is_the_final_one() {
    let dir = tempfile::tempdir().unwrap();
    let scores = [0.1, 0.7, 0.4, 0.6, 0.6, 0.2, 0.3, 0.5].to_vec();
    let mut task = ScriptedTask { scores, ..ScriptedTask::default() };
    train(&mut task, &config(dir.path(), 0), &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((task.steps_done, task.saved.last()), (8, Some(&2)));
}

#[test]
fn patience_counts_across_interruptions() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), 2);
    let mut steps = Vec::new();
    loop {
        let mut task = scripted();
        let outcome = train(&mut task, &config, &mut |event| match event {
            TrainEvent::Evaluated { .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        });
        steps.push(task.steps_done);
        if outcome.unwrap() == TrainOutcome::Finished {
            break;
        }
    }
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn an_interruption_at_the_last_step_still_saves_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let mut task = ScriptedTask::default(); // no evaluations
    let outcome = train(&mut task, &config(dir.path(), 0), &mut |event| match event {
        TrainEvent::Stepped { steps: 8, .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert_eq!((outcome.unwrap(), &task.saved[..]), (TrainOutcome::Finished, &[8][..]));
}

#[test]
fn evaluation_leaves_the_saved_model_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = ReasonerFixture {
        width: 16,
        layers: 1,
        batch: 2,
        accumulation_steps: 1,
        steps: 2,
        dropout: 0.0,
    };
    let mut task = fixture.task(dir.path(), problems(2));
    task.save().unwrap();
    let weights = || std::fs::read(dir.path().join("model.safetensors")).unwrap();
    let before = weights();
    task.parameters_mut()[0].value.data_mut().fill(0.5);
    task.sync_weights().unwrap();
    task.evaluate(1).unwrap().unwrap();
    assert!(weights() == before, "the saved model was overwritten");
    assert!(!dir.path().join("training/eval").exists(), "temporary files remain");
}
