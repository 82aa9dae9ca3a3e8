//! What the tests share: tiny checkpoints, small data files, and the program itself.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use model::testkit::{CheckpointFamily, CheckpointSpec, write_checkpoint};
use serde_json::Value;
use tempfile::TempDir;

/// Every reasoner family by its name on the command line.
pub const REASONERS: [(&str, CheckpointFamily); 6] = [
    ("coconut", CheckpointFamily::Coconut),
    ("codi", CheckpointFamily::CodiGpt2),
    ("codi", CheckpointFamily::CodiLlama),
    ("colar", CheckpointFamily::Colar),
    ("latent-sft", CheckpointFamily::LatentSft),
    ("rot", CheckpointFamily::Rot),
];

/// A folder with models and questions, and the program run in it.
pub struct CliSandbox {
    dir: TempDir,
}

/// What the program did.
pub struct CommandOutput {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl CliSandbox {
    /// A folder with a COCONUT in `model` and eight questions in `data.jsonl`.
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

    /// The program with arguments, free of whatever the caller's environment sets.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_latent-tts"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LATENT_TTS_") {
                command.env_remove(name);
            }
        }
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("HF_HUB_CACHE").env("HF_HOME", self.path("hf"));
        command
    }

    pub fn run(&self, args: &[&str]) -> CommandOutput {
        command_output(self.command(args).output().unwrap())
    }

    /// A small eval of `model` on `data.jsonl`, with more arguments, which may replace those.
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

    /// Every file below a folder with its bytes.
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
    /// It worked.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// It was refused, with one error that says all of `words`, and nothing on standard output.
    #[track_caller]
    pub fn refused(self, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(2), "stdout: {}\nstderr: {}", self.out, self.err);
        assert_eq!(self.out, "", "nothing but data belongs on standard output");
        assert_eq!(self.err.matches("error: ").count(), 1, "{}", self.err);
        assert!(!self.err.contains("panicked") && !self.err.contains("backtrace"), "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in: {}", self.err);
        }
        self
    }

    /// Standard output as the one JSON object it is.
    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.out.trim_end().lines().count(), 1, "{}", self.out);
        serde_json::from_str(&self.out).unwrap()
    }
}
