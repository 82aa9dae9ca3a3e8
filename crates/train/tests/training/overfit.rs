//! Overfits ten problems with six thoughts: after saving and loading, the engine answers all of
//! them correctly.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use engine::{LatentLength, Reasoner};
use latent_tts_train::reasoner::greedy_accuracy;
use latent_tts_train::trainer::{TrainEvent, TrainOutcome};

use crate::support::{ReasonerFixture, device, problems, train, train_config};

#[test]
fn ten_problems_are_overfitted_through_six_thoughts() {
    let dir = tempfile::tempdir().unwrap();
    let steps = 150;
    let fixture = ReasonerFixture {
        width: 32,
        layers: 2,
        batch: 10,
        accumulation_steps: 1,
        steps,
        dropout: 0.0,
    };
    let mut task = fixture.task(dir.path(), problems(10));
    let config = train_config(dir.path(), steps, 1e-2);
    let mut losses = Vec::new();
    let outcome = train(&mut task, &config, &mut |event| {
        if let TrainEvent::Stepped { record, .. } = event {
            losses.push(record.losses.get("loss").unwrap());
        }
        ControlFlow::Continue(())
    });
    assert_eq!(outcome.unwrap(), TrainOutcome::Finished);
    let last = losses[losses.len() - 1];
    assert!(last < 0.05, "the loss is still {last} after {steps} steps");
    let reasoner = Reasoner::load(device(), dir.path(), None).unwrap();
    assert_eq!(reasoner.method.length, LatentLength::Exactly(NonZeroUsize::new(6).unwrap()));
    assert_eq!(greedy_accuracy(reasoner, &problems(10)).unwrap(), 1.0);
}
