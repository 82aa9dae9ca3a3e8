//! `train rl` on the embedded reasoner at a size that takes seconds: records, the saved model,
//! resuming, and rejected requests.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use serde_json::Value;
use support::{CliSandbox, CommandOutput};

/// A training with two steps; flags in `more` override the defaults.
fn train(sandbox: &CliSandbox, more: &[&str]) -> CommandOutput {
    let base = [
        ["--steps", "2"],
        ["--batch", "2"],
        ["--samples", "4"],
        ["--held-out-count", "3"],
        ["--eval-samples", "2"],
        ["--eval-every", "1"],
        ["--threads", "2"],
    ];
    let base = base.into_iter().filter(|[flag, _]| !more.contains(flag)).flatten();
    let flags = ["train", "rl"].into_iter().chain(base).chain(more.iter().copied());
    sandbox.run(&flags.collect::<Vec<_>>())
}

fn lines(sandbox: &CliSandbox, file: &str) -> Vec<Value> {
    let text = String::from_utf8(sandbox.read(file)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_training_is_recorded_and_leaves_a_model_of_the_same_family() {
    let sandbox = CliSandbox::new();
    let summary = train(&sandbox, &["--out", "rl", "--mask", "trajectory", "--json"]).ok().json();
    let steps = lines(&sandbox, "rl/training/log.jsonl");
    assert_eq!(steps.len(), 2);
    for name in ["reward", "accuracy", "coverage", "entropy", "distinct", "answer_tokens"] {
        assert!(steps[0][name].as_f64().is_some_and(f64::is_finite), "{name}: {}", steps[0]);
    }
    assert_eq!(steps[0]["n_examples"], 8, "two questions with four trajectories each");
    let evals = lines(&sandbox, "rl/training/evals.jsonl");
    assert_eq!(evals.len(), 2);
    for name in ["greedy", "majority", "coverage", "mean"] {
        assert!((0.0..=1.0).contains(&evals[0]["metrics"][name].as_f64().unwrap()), "{name}");
    }
    assert!(sandbox.path("rl/training/report.html").is_file());
    assert_eq!(summary["finished"], true);
    let question = "Tom has 3 pens and buys 4 more pens. How many pens does Tom have?";
    sandbox.run(&["solve", "--model", "rl", "--samples", "2", question]).ok();
}

#[test]
fn an_interrupted_round_resumes_to_the_same_bytes() {
    let sandbox = CliSandbox::new();
    let round = ["--updates", "2", "--estimator", "grpo", "--save-every", "1", "--keep", "last"];
    let with = |more: &[&str]| train(&sandbox, &[&round, more].concat());
    with(&["--out", "whole", "--steps", "2"]).ok();
    // The state after the first step simulates an interrupted training.
    let state = "part/training/state.safetensors";
    with(&["--out", "part", "--steps", "2"]).ok();
    let finished = sandbox.read(state);
    with(&["--out", "part", "--steps", "2", "--resume"]).ok();
    assert_eq!(sandbox.read(state), finished, "nothing is left to do");
    for file in ["model.safetensors", "training/log.jsonl", "training/state.safetensors"] {
        let read = |out: &str| sandbox.read(&format!("{out}/{file}"));
        assert!(read("whole") == read("part"), "{file}");
    }
}

#[test]
fn unsupported_trainings_are_rejected_with_the_flag() {
    let sandbox = CliSandbox::new();
    for (flags, expected) in [
        (&["--samples", "1"][..], "--samples 1"),
        (&["--sampler", "gumbel"], "--sampler"),
        (&["--thought-gradient", "density"], "--thought-gradient density"),
        (&["--answers-per-thoughts", "3"], "--answers-per-thoughts 3"),
        (&["--mask", "step", "--sampler", "noise"], "mask"),
        (&["--lora-dropout", "0.1", "--lora", "4"], "--dropout-p"),
    ] {
        train(&sandbox, &[flags, &["--out", "none"]].concat()).refused(&[expected]);
    }
    assert!(!sandbox.path("none/model.safetensors").exists());
}
