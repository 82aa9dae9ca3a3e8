//! Fault injection: every file operation of the resumable commands is made to fail or to be the
//! last one. `--resume` must then produce the bytes of an undisturbed run without leftover files.
//!
//! `fault_points/shim.c`, loaded into the process, counts the operations and disturbs one of them.
//! Each operation is tested with one fault, in turn; with `FAULT_WALK=all` with all faults.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use model::testkit::{CheckpointFamily, CheckpointSpec};
use serde_json::Value;
use support::{CliSandbox, CommandOutput, command_output};

/// Compiles the shim; `None` if there is no C compiler.
fn shim(sandbox: &CliSandbox) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fault_points/shim.c");
    let library = sandbox.path("shim.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
    match compiler.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(library)
        }
        Err(error) => {
            eprintln!("skipped: no C compiler for the shim ({error})");
            None
        }
    }
}

/// The faults of the shim.
const KINDS: [&str; 4] = ["crash", "enospc", "eio", "short"];

/// A command under test: its arguments except `--out` and `--resume`.
struct FaultWalk<'a> {
    sandbox: &'a CliSandbox,
    shim: PathBuf,
    args: Vec<&'a str>,
}

impl FaultWalk<'_> {
    fn run(&self, out: &str, more: &[&str], fault: Option<(usize, &str)>) -> CommandOutput {
        let mut command = self.sandbox.command(&[&self.args[..], &["--out", out], more].concat());
        if let Some((at, kind)) = fault {
            command.env("LD_PRELOAD", &self.shim).env("FAULT_DIR", out);
            command.env("FAULT_LOG", self.sandbox.path("fault.log"));
            command.env("FAULT_AT", at.to_string()).env("FAULT_KIND", kind);
        }
        command_output(command.output().unwrap())
    }

    /// The files that must be equal in every run: records, models, states, labels and metrics, but
    /// not times.
    fn content(&self, out: &str) -> Vec<(String, Vec<u8>)> {
        let root = self.sandbox.path(out);
        let name = |path: &Path| path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
        let files = self.sandbox.snapshot(out).into_iter();
        let files = files.map(|(path, bytes)| (name(&path), bytes));
        let mut content = Vec::new();
        for (name, bytes) in files {
            assert!(!name.ends_with(".tmp") && !name.ends_with(".part"), "{name} is left");
            if name.ends_with("results.json") {
                let results: Value = serde_json::from_slice(&bytes).unwrap();
                content.push((name, results["metrics"].to_string().into_bytes()));
            } else if !["manifest.json", "timings.jsonl", "report.html"]
                .iter()
                .any(|varies| name.ends_with(varies))
            {
                content.push((name, bytes));
            }
        }
        content
    }

    /// Disturbs every operation in turn; returns the number of operations and of faults.
    fn walk(&self) -> (usize, usize) {
        self.run("whole", &[], None).ok();
        let expected = self.content("whole");
        assert!(expected.len() > 1, "{expected:?}");
        let all = std::env::var_os("FAULT_WALK").is_some_and(|walk| walk == "all");
        let mut faults = 0;
        for at in 1.. {
            let kinds = if all { &KINDS[..] } else { &KINDS[at % KINDS.len()..][..1] };
            for kind in kinds {
                if self.disturb(at, kind, &expected).is_none() {
                    return (at - 1, faults);
                }
                faults += 1;
            }
        }
        unreachable!("a run ends")
    }

    /// Disturbs operation `at`, resumes, and compares. Returns the name of the operation; `None` if
    /// there are fewer operations.
    fn disturb(&self, at: usize, kind: &str, expected: &[(String, Vec<u8>)]) -> Option<String> {
        let _ = std::fs::remove_dir_all(self.sandbox.path("walked"));
        let _ = std::fs::remove_file(self.sandbox.path("fault.log"));
        let ended = self.run("walked", &[], Some((at, kind)));
        let operation = std::fs::read_to_string(self.sandbox.path("fault.log")).ok();
        let what = format!("{kind} at operation {at} ({operation:?}): {}", ended.err);
        match (kind, &operation) {
            (_, None) => assert_eq!(ended.code, Some(0), "{what}"),
            ("crash", _) => assert_eq!(ended.code, Some(137), "{what}"),
            // Syncing a directory, or removing an unneeded file, may fail.
            _ => assert!(matches!(ended.code, Some(0 | 2)), "{what}"),
        }
        assert!(!ended.err.contains("panicked"), "{what}");
        let resumed = self.run("walked", &["--resume"], None);
        assert_eq!(resumed.code, Some(0), "{what}\nresumed: {}", resumed.err);
        let found = self.content("walked");
        let names = |content: &[(String, Vec<u8>)]| -> Vec<String> {
            content.iter().map(|(name, _)| name.clone()).collect()
        };
        assert_eq!(names(&found), names(expected), "{what}");
        for ((name, bytes), (_, whole)) in found.iter().zip(expected) {
            assert!(bytes == whole, "{name} differs after {what}");
        }
        operation.map(|operation| operation.trim().to_owned())
    }
}

/// Tests all operations of a command, and prints their number.
fn walk(sandbox: &CliSandbox, args: &[&str]) {
    let Some(shim) = shim(sandbox) else { return };
    let started = std::time::Instant::now();
    let (operations, faults) = FaultWalk { sandbox, shim, args: args.to_vec() }.walk();
    let seconds = started.elapsed().as_secs();
    eprintln!("{}: {operations} operations, {faults} faults, {seconds} s", args[..2].join(" "));
    assert!(operations > 5, "{operations} operations");
}

const SMALL: [&str; 8] =
    ["--model", "model", "--data", "data.jsonl", "--threads", "1", "--max-new-tokens", "3"];

fn sandbox(questions: usize) -> CliSandbox {
    let sandbox = CliSandbox::new();
    sandbox.questions("data.jsonl", questions);
    sandbox
}

#[test]
fn eval() {
    let sandbox = sandbox(2);
    let more = ["--samples", "2", "--latents", "--no-report"];
    walk(&sandbox, &[&["eval"][..], &SMALL, &more].concat());
}

#[test]
fn sweep() {
    let sandbox = sandbox(1);
    let more = ["--samples", "2", "--dropout-p", "0.1,0.3", "--no-report"];
    walk(&sandbox, &[&["sweep"][..], &SMALL, &more].concat());
}

/// Labels require questions that some trajectories answer, so gold answers are taken from a run.
fn with_mixed_answers() -> CliSandbox {
    let sandbox = CliSandbox::new();
    let family = CheckpointFamily::CodiGpt2;
    sandbox.model("model", &CheckpointSpec { family, ..CheckpointSpec::default() });
    sandbox.questions("data.jsonl", 12);
    sandbox
        .eval(&["--samples", "8", "--dropout-p", "0.5", "--max-new-tokens", "16", "--out", "run"])
        .ok();
    let mut lines = String::new();
    for sample in sandbox.samples("run") {
        let answers: Vec<&Value> =
            sample["trajectories"].as_array().unwrap().iter().map(|t| &t["answer"]).collect();
        let mixed = answers.iter().find(|a| !a.is_null() && answers.iter().any(|b| b != *a));
        if let Some(gold) = mixed {
            let line = serde_json::json!({ "question": sample["question"], "answer": gold });
            lines.push_str(&format!("{line}\n"));
        }
    }
    sandbox.write("data.jsonl", lines);
    sandbox
}

const LABELS: [&str; 14] = [
    "annotate",
    "--model",
    "model",
    "--data",
    "data.jsonl",
    "--threads",
    "1",
    "--dropout-p",
    "0.5",
    "--max-new-tokens",
    "16",
    "--limit",
    "4",
    "--per-shard",
];

#[test]
fn annotate() {
    let sandbox = with_mixed_answers();
    walk(&sandbox, &[&LABELS[..], &["2", "--labels", "final"]].concat());
}

const TRAINING: [&str; 12] = [
    "--steps",
    "2",
    "--batch",
    "2",
    "--warmup",
    "1",
    "--threads",
    "1",
    "--eval-every",
    "1",
    "--dropout",
    "0",
];

#[test]
fn train_reasoner() {
    let sandbox = CliSandbox::new();
    sandbox.run(&["corpus", "--split", "train", "--count", "2", "--out", "train.json"]).ok();
    let shape = ["--width", "16", "--layers", "1", "--heads", "2", "--held-out", "train.json"];
    let data = ["train", "reasoner", "--data", "train.json"];
    walk(&sandbox, &[&data[..], &shape, &TRAINING].concat());
}

#[test]
fn train_reward() {
    let sandbox = with_mixed_answers();
    let labels = [&LABELS[..], &["4", "--labels", "final", "--out", "labels"]].concat();
    sandbox.run(&labels).ok();
    let data = ["train", "reward", "--model", "model", "--annotations", "labels"];
    walk(&sandbox, &[&data[..], &["--held-out", "labels"], &TRAINING].concat());
}
