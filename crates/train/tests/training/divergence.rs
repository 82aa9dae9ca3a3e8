//! A diverging training stops with an error that says how to continue, and leaves all saved files
//! unchanged.

use std::ops::ControlFlow;
use std::path::Path;

use latent_tts_train::TrainError;
use latent_tts_train::trainer::{
    Divergence, EvalResult, MicroBatch, TrainConfig, TrainMemory, TrainTask,
};
use model::Parameter;
use record::Losses;
use record::TrainingDir;
use serde_json::Map;

use crate::support::{ReasonerFixture, device, problems, train, train_config};

/// A reasoner whose recorded loss and weights can be modified.
struct FaultyTask {
    task: Box<dyn TrainTask>,
    loss: fn(u32) -> f64,
    /// The step after which a weight is NaN.
    poisoned: Option<u32>,
    saved: usize,
}

impl FaultyTask {
    fn new(out: &Path, loss: fn(u32) -> f64) -> Self {
        let fixture = ReasonerFixture {
            width: 8,
            layers: 1,
            batch: 1,
            accumulation_steps: 1,
            steps: 400,
            dropout: 0.0,
        };
        let task = Box::new(fixture.task(out, problems(1)));
        Self { task, loss, poisoned: None, saved: 0 }
    }
}

impl TrainTask for FaultyTask {
    fn accumulate_gradients(
        &mut self,
        step: u32,
        micro_batch: u32,
    ) -> Result<MicroBatch, TrainError> {
        if self.poisoned == Some(step) {
            self.task.parameters_mut()[0].value.data_mut()[0] = f32::NAN;
        } else if step < 3 {
            self.task.accumulate_gradients(step, micro_batch)?;
        }
        Ok(MicroBatch {
            losses: Losses::new((self.loss)(step)).with("distill", 0.5),
            examples: 0,
            tokens: Some(7),
        })
    }

    fn parameters(&self) -> Vec<&Parameter> {
        self.task.parameters()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        self.task.parameters_mut()
    }

    fn sync_weights(&mut self) -> Result<(), TrainError> {
        self.task.sync_weights()
    }

    fn evaluate(&mut self, steps: u32) -> Result<Option<EvalResult>, TrainError> {
        Ok(Some(EvalResult { metrics: Map::new(), score: f64::from(steps) }))
    }

    fn is_saved(&self) -> bool {
        true
    }

    fn save(&mut self) -> Result<(), TrainError> {
        self.saved += 1;
        self.task.save()
    }
}

fn config(out: &Path) -> TrainConfig {
    TrainConfig { save_every: 100, ..train_config(out, 400, 1e-3) }
}

/// The error of a diverging training, and the number of saved models.
fn diverge(task: &mut FaultyTask, config: &TrainConfig) -> (TrainError, usize) {
    let error = train(task, config, &mut |_| ControlFlow::Continue(())).unwrap_err();
    (error, task.saved)
}

#[test]
fn a_loss_that_is_not_finite_stops_training() {
    let dir = tempfile::tempdir().unwrap();
    let mut task = FaultyTask::new(dir.path(), |step| if step < 120 { 1.0 } else { f64::NAN });
    let (error, models) = diverge(&mut task, &config(dir.path()));
    assert!(
        matches!(
            error,
            TrainError::Diverged { step: 121, what: Divergence::Loss, saved: Some(100) }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("after 100 steps"), "{error}");
    assert_eq!(models, 0);
    let records = TrainingDir::find(dir.path()).unwrap().steps().unwrap();
    assert_eq!(records.len(), 120, "the log is complete");
    assert_eq!((records[0].losses.get("distill"), records[0].tokens), (Some(0.5), Some(7)));
}

#[test]
fn a_loss_that_explodes_stops_training_and_the_state_before_resumes() {
    let dir = tempfile::tempdir().unwrap();
    let explodes = |step: u32| if step < 150 { 1.0 } else { 40.0 };
    let mut task = FaultyTask::new(dir.path(), explodes);
    let (error, _) = diverge(&mut task, &config(dir.path()));
    let TrainError::Diverged { step, what: Divergence::Exploded { loss, best }, saved } = error
    else {
        panic!("{error}")
    };
    assert!((250..300).contains(&step) && loss > 3.0 && best <= 1.0, "{step} {loss} {best}");
    assert_eq!(saved, Some(200));
    // Resumed with the same settings, it stops at the same step: the monitor's state is in the log.
    let mut again = FaultyTask::new(dir.path(), explodes);
    let (error, _) = diverge(&mut again, &config(dir.path()));
    assert!(matches!(error, TrainError::Diverged { step: s, .. } if s == step), "{error}");
    let unwatched = TrainConfig { max_loss_ratio: None, ..config(dir.path()) };
    let mut last = FaultyTask::new(dir.path(), explodes);
    train(&mut last, &unwatched, &mut |_| ControlFlow::Continue(())).unwrap();
}

#[test]
fn weights_that_are_not_finite_are_never_saved() {
    let dir = tempfile::tempdir().unwrap();
    let mut task = FaultyTask::new(dir.path(), |_| 1.0);
    task.poisoned = Some(130);
    let config = TrainConfig { eval_every: 50, ..config(dir.path()) };
    let (error, models) = diverge(&mut task, &config);
    assert!(
        matches!(
            error,
            TrainError::Diverged { step: 150, what: Divergence::Parameter, saved: Some(100) }
        ),
        "{error}"
    );
    assert_eq!(models, 2, "models of steps 50 and 100");
    for file in ["model.safetensors", "training/state.safetensors"] {
        let bytes = std::fs::read(dir.path().join(file)).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (name, view) in tensors.tensors() {
            let mut values = view.data().as_chunks::<4>().0.iter();
            assert!(values.all(|bytes| f32::from_le_bytes(*bytes).is_finite()), "{file}: {name}");
        }
    }
}

#[test]
fn memory_is_known_before_the_first_step() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = ReasonerFixture {
        width: 16,
        layers: 2,
        batch: 4,
        accumulation_steps: 1,
        steps: 1,
        dropout: 0.0,
    };
    let mut task = fixture.task(dir.path(), problems(4));
    let count: usize = task.parameters().iter().map(|p| p.value.rows() * p.value.cols()).sum();
    let memory = TrainMemory::of(&mut task, device()).unwrap();
    assert_eq!((memory.trained, memory.frozen), (count as u64, 0));
    assert_eq!((memory.gradients, memory.optimizer), (4 * count as u64, 8 * count as u64));
    assert!(memory.activations.unwrap() > 10_000, "{memory}");
    memory.check().unwrap();
}
