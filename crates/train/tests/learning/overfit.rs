//! Ten problems by heart, through six thoughts: what was learned is saved, loaded by the engine,
//! and all right.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use engine::{LatentLength, Reasoner};
use train::reasoner::greedy_accuracy;
use train::trainer::{self, TrainConfig, TrainEvent, TrainOutcome};

use crate::support::{ReasonerFixture, device, optimizer, problems};

#[test]
fn ten_problems_through_six_thoughts() {
    let dir = tempfile::tempdir().unwrap();
    let steps = 150;
    let reasoning = ReasonerFixture {
        width: 32,
        layers: 2,
        batch: 10,
        accumulation_steps: 1,
        steps,
        dropout: 0.0,
    };
    let mut course = reasoning.task(dir.path(), problems(10));
    let plan = TrainConfig {
        optimizer: optimizer(steps, 1e-2),
        accumulation_steps: 1,
        dir: dir.path().join("training"),
        save_every: 0,
        eval_every: 0,
        patience: 0,
        fingerprint: "ten".to_owned(),
    };
    let mut losses = Vec::new();
    let ended = trainer::run(&mut course, device(), &plan, &mut |event| {
        if let TrainEvent::Stepped { log_line: line, .. } = event {
            losses.push(line["loss"].as_f64().unwrap());
        }
        ControlFlow::Continue(())
    });
    assert_eq!(ended.unwrap(), TrainOutcome::Finished);
    let last = losses[losses.len() - 1];
    assert!(last < 0.05, "the loss is still {last} after {steps} steps");
    let reasoner = Reasoner::load(device(), dir.path(), None).unwrap();
    assert_eq!(reasoner.method.length, LatentLength::Exactly(NonZeroUsize::new(6).unwrap()));
    assert_eq!(greedy_accuracy(reasoner, &problems(10)).unwrap(), 1.0);
}
