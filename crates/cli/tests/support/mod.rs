//! Shared by the tests: a temporary directory with tiny checkpoints and data files, in which the
//! binary runs.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use serde_json::Value;
use tempfile::TempDir;

/// Every family of reasoner checkpoints, with its name on the command line.
pub const REASONERS: [(&str, CheckpointFamily); 6] = [
    ("coconut", CheckpointFamily::Coconut),
    ("codi", CheckpointFamily::CodiGpt2),
    ("codi", CheckpointFamily::CodiLlama),
    ("colar", CheckpointFamily::Colar),
    ("latent-sft", CheckpointFamily::LatentSft),
    ("rot", CheckpointFamily::Rot),
];

/// A temporary directory with models and questions, in which the binary runs.
pub struct CliSandbox {
    dir: TempDir,
}

/// Exit code, standard output and standard error of the binary.
pub struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl CliSandbox {
    /// A directory with a COCONUT checkpoint in `model` and eight questions in `data.jsonl`.
    pub fn new() -> Self {
        let sandbox = Self { dir: tempfile::tempdir().unwrap() };
        sandbox.model("model", &CheckpointSpec::default());
        sandbox.questions("data.jsonl", 8);
        sandbox
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn model(&self, name: &str, spec: &CheckpointSpec) -> PathBuf {
        let dir = self.path(name);
        write_checkpoint(&dir, spec).unwrap();
        dir
    }

    /// A reward model for the default reasoner.
    pub fn reward_model(&self, name: &str) -> PathBuf {
        self.model(
            name,
            &CheckpointSpec { family: CheckpointFamily::RewardGpt2, ..CheckpointSpec::default() },
        )
    }

    pub fn questions(&self, name: &str, count: usize) -> PathBuf {
        let line = |i: usize| {
            format!(
                "{{\"question\": \"What is {i} plus {}?\", \"answer\": \"{}\"}}\n",
                i + 1,
                2 * i + 1
            )
        };
        self.write(name, (0..count).map(line).collect::<String>())
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(name)).unwrap()
    }

    /// The binary with arguments, without the `LATENT_TTS_*` variables of the environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_latent-tts"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LATENT_TTS_") {
                command.env_remove(name);
            }
        }
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("HF_HUB_CACHE").env("HF_HOME", self.path("hf"));
        command.env("HF_HUB_OFFLINE", "1");
        command
    }

    pub fn run(&self, args: &[&str]) -> CommandOutput {
        command_output(self.command(args).output().unwrap())
    }

    /// A small eval of `model` on `data.jsonl`; flags in `more` override the defaults.
    pub fn eval_args<'a>(&self, more: &[&'a str]) -> Vec<&'a str> {
        let base = [
            ["--model", "model"],
            ["--data", "data.jsonl"],
            ["--samples", "4"],
            ["--max-new-tokens", "6"],
            ["--threads", "1"],
        ];
        let kept = base.into_iter().filter(|[flag, _]| !more.contains(flag)).flatten();
        ["eval"].into_iter().chain(kept).chain(more.iter().copied()).collect()
    }

    pub fn eval(&self, more: &[&str]) -> CommandOutput {
        self.run(&self.eval_args(more))
    }

    /// The records of a run's samples.jsonl, without the digests that bind them to their run.
    pub fn samples(&self, run: &str) -> Vec<Value> {
        let text = String::from_utf8(self.read(&format!("{run}/samples.jsonl"))).unwrap();
        let record = |line| {
            let mut record: Value = serde_json::from_str(line).unwrap();
            assert!(record.as_object_mut().unwrap().remove("digest").is_some(), "no digest");
            record
        };
        text.lines().map(record).collect()
    }

    /// The paths and bytes of all files below a directory.
    pub fn snapshot(&self, name: &str) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files = Vec::new();
        collect(&self.path(name), &mut files);
        files.sort();
        files
    }
}

fn collect(dir: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => collect(&path, files),
            false => files.push((path.clone(), std::fs::read(&path).unwrap())),
        }
    }
}

pub fn command_output(output: Output) -> CommandOutput {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

impl CommandOutput {
    /// Asserts exit code 0.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// Asserts exit code 2, one error that contains all of `words`, and empty standard output.
    #[track_caller]
    pub fn refused(self, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(2), "stdout: {}\nstderr: {}", self.out, self.err);
        assert_eq!(self.out, "", "standard output is for data only");
        assert_eq!(self.err.matches("error: ").count(), 1, "{}", self.err);
        assert!(!self.err.contains("panicked") && !self.err.contains("backtrace"), "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in: {}", self.err);
        }
        self
    }

    /// Standard output, parsed as one line of JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.out.trim_end().lines().count(), 1, "{}", self.out);
        serde_json::from_str(&self.out).unwrap()
    }
}
