//! The resume test for training methods: a training interrupted and resumed at any step ends with
//! the same bytes as an uninterrupted one.
//!
//! ```ignore
//! #[test]
//! fn a_resumed_reasoner_ends_with_the_same_bytes() {
//!     assert_resumable(reasoner); // fn(&Path) -> Box<dyn TrainTask>
//! }
//! ```
//!
//! The task should have all sources of randomness of its method: shuffled data, two micro-batches
//! per step ([`ACCUMULATION_STEPS`]) and dropout; and held-out data.

use std::ops::ControlFlow;
use std::path::Path;

use latent_tts_train::trainer::{TrainConfig, TrainEvent, TrainOutcome, TrainSettings, TrainTask};
use record::TrainingDir;
use serde_json::{Map, json};

use crate::support::{train, train_config};

/// Steps of every training in these tests.
pub const STEPS: u32 = 5;
/// Micro-batches per step.
pub const ACCUMULATION_STEPS: u32 = 2;

/// Creates the task of a training with the given model directory; called for every resumed part.
pub type MakeTask = fn(&Path) -> Box<dyn TrainTask>;

/// A configuration with evaluations after steps 2, 4 and 5.
pub fn config(out: &Path) -> TrainConfig {
    let fixed = Map::from_iter([("method".to_owned(), json!("these settings"))]);
    TrainConfig {
        accumulation_steps: ACCUMULATION_STEPS,
        eval_every: 2,
        settings: TrainSettings { fixed, ..TrainSettings::default() },
        ..train_config(out, STEPS, 1e-3)
    }
}

/// Where a training is stopped.
#[derive(Clone, Copy, Debug)]
pub enum Stop {
    /// Not stopped.
    Never,
    /// Interrupted every N steps; an interrupt saves the state.
    Every(u32),
    /// Killed after this step, as by `kill -9`: the records are ahead of the state, and their last
    /// lines are truncated.
    Killed(u32),
}

/// The files that must not depend on interruptions, with their contents.
pub type FinalFiles = Vec<(&'static str, Vec<u8>)>;

/// Trains to the end and returns the files in the directory.
pub fn trained(make: MakeTask, stop: Stop) -> FinalFiles {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path();
    if let Stop::Killed(step) = stop {
        kill_after(make, out, step);
    }
    let interval = if let Stop::Every(interval) = stop { interval } else { 0 };
    let mut runs = 0;
    loop {
        runs += 1;
        let mut steps_now = 0;
        let outcome = train(&mut *make(out), &config(out), &mut |event| {
            steps_now += u32::from(matches!(event, TrainEvent::Stepped { .. }));
            let interrupts = interval > 0 && steps_now == interval;
            if interrupts { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if outcome.unwrap() == TrainOutcome::Finished {
            break;
        }
    }
    assert_eq!(runs, if interval == 0 { 1 } else { STEPS.div_ceil(interval) }, "runs");
    let records = TrainingDir::find(out).unwrap();
    let steps: Vec<u32> = records.steps().unwrap().iter().map(|record| record.step).collect();
    assert_eq!(steps, (0..STEPS).collect::<Vec<_>>(), "one line per step");
    assert_eq!(records.timings().unwrap().len(), STEPS as usize, "one timing per step");
    let weights: &[&str] = match out.join("model.safetensors").exists() {
        true => &["model.safetensors"],
        // Not every method trains heads.
        false if out.join("heads.safetensors").exists() => {
            &["adapter_model.safetensors", "heads.safetensors"]
        }
        false => &["adapter_model.safetensors"],
    };
    let records = [
        "training/state.safetensors",
        "training/log.jsonl",
        "training/evals.jsonl",
        "training/settings.json",
    ];
    let names = weights.iter().copied().chain(records);
    names.map(|name| (name, std::fs::read(out.join(name)).unwrap())).collect()
}

/// Creates the files of a process killed after `step` steps: all files as written so far, but the
/// state of two steps before, or none.
fn kill_after(make: MakeTask, out: &Path, step: u32) {
    let run_to = |last: u32| {
        train(&mut *make(out), &config(out), &mut |event| match event {
            TrainEvent::Stepped { steps, .. } if steps == last => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        })
        .unwrap()
    };
    let state = out.join("training/state.safetensors");
    if step > 2 {
        run_to(step - 2);
    }
    let before = std::fs::read(&state).ok();
    run_to(step);
    match before {
        Some(bytes) => std::fs::write(&state, bytes).unwrap(),
        None => std::fs::remove_file(&state).unwrap(),
    }
    for name in ["log.jsonl", "evals.jsonl", "timings.jsonl"] {
        let path = out.join("training").join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend(br#"{"step": 4, "lo"#);
        std::fs::write(path, bytes).unwrap();
    }
}

/// Checks that the training of these tasks ends with the same bytes (model, state, log and
/// evaluations), independent of interruptions.
#[track_caller]
pub fn assert_resumable(make: MakeTask) {
    let whole = trained(make, Stop::Never);
    let stops = [1, 2, 4].map(Stop::Every).into_iter().chain([1, 3, 4, 5].map(Stop::Killed));
    for stop in stops {
        for ((name, expected), (_, found)) in whole.iter().zip(trained(make, stop)) {
            assert!(found == *expected, "{name} differs after {stop:?}");
        }
    }
}
