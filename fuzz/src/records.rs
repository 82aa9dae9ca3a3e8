//! Bodies that parse files of runs and annotations.

use std::path::PathBuf;
use std::sync::LazyLock;

use record::{Manifest, RunDir, Sample};
use tempfile::TempDir;
use train::annotate::Annotations;

use crate::fixtures::{scratch_dir, write};

pub(crate) const SAMPLE_WORDS: &[&str] = &[
    "\"digest\":\"",
    "\"trajectories\":[",
    "\"scores\":[0.5]",
    "\"stopped\":{",
    "1e999",
    "null",
    "NaN",
    "\n",
    "}\n{",
    "[[[[[[[[",
];

/// A directory of records; each input replaces one of its files.
struct RecordDir {
    /// Deletes the directory on drop.
    _dir: TempDir,
    path: PathBuf,
    file: PathBuf,
}

/// A run of one question.
static RUN: LazyLock<(RecordDir, Manifest)> = LazyLock::new(|| {
    let dir = scratch_dir();
    let path = dir.path().join("run");
    let manifest = Manifest { seeds: vec![7], questions: 1, ..Manifest::default() };
    let run = RunDir::create(&path, &manifest).and_then(|run| run.finish());
    let file = run.expect("an empty run can be written").samples_file();
    (RecordDir { path, file, _dir: dir }, manifest)
});

/// samples.jsonl: read as for reports, then recovered as with `--resume`. Every valid sample must
/// survive a round trip.
pub(crate) fn samples(input: &[u8]) {
    let (dir, manifest) = &*RUN;
    write(&dir.file, input);
    // A mutated line has no valid digest, so the samples are also read without digests.
    for line in input.split(|&byte| byte == b'\n') {
        let Ok(sample) = serde_json::from_slice::<Sample>(line) else { continue };
        let line = serde_json::to_vec(&sample).expect("a sample serializes to JSON");
        let again: Sample = serde_json::from_slice(&line).expect("a written sample can be read");
        assert_eq!(again, sample, "a sample survives a round trip");
    }
    let run = RunDir::open(&dir.path).expect("the manifest is valid");
    let lines = run.samples().expect("the file exists");
    let mut whole = 0;
    for sample in lines.map_while(Result::ok) {
        let line = serde_json::to_vec(&sample).expect("a sample serializes to JSON");
        let again: Sample = serde_json::from_slice(&line).expect("a written sample can be read");
        assert_eq!(again, sample, "a sample survives a round trip");
        whole += 1;
    }
    if let Ok(run) = RunDir::resume(&dir.path, manifest) {
        drop(run);
        let kept = std::fs::read(&dir.file).expect("the file exists");
        assert!(input.starts_with(&kept), "recovery only truncates");
        let lines = RunDir::open(&dir.path).and_then(|run| run.samples());
        let read = lines.expect("the file exists").filter(Result::is_ok).count();
        assert!(read <= whole, "recovery adds nothing");
    }
}

/// Annotations of two questions in one shard; the inputs replace the shard.
static ANNOTATION: LazyLock<RecordDir> = LazyLock::new(|| {
    let dir = scratch_dir();
    let path = dir.path().to_owned();
    RecordDir { file: path.join("00000-of-00001.safetensors"), path, _dir: dir }
});
const INDEX: &[u8] = include_bytes!("../corpus/annotations/index");
const SHARD: &[u8] = include_bytes!("../corpus/annotations/shard");

/// A shard of annotations, or the index if the input is JSON; every problem is read.
pub(crate) fn annotations(input: &[u8]) {
    let dir = &*ANNOTATION;
    let (index, shard) = if input.starts_with(b"{") { (input, SHARD) } else { (INDEX, input) };
    write(&dir.path.join("index.json"), index);
    write(&dir.file, shard);
    let Ok(annotations) = Annotations::open(&dir.path) else { return };
    let _ = annotations.counts();
    let width = annotations.index().width;
    for problem in annotations.problems() {
        let _ = (problem.id(), problem.prompt(), problem.steps());
        for trajectory in problem.trajectories() {
            let thoughts = trajectory.thoughts();
            let labels = trajectory.labels();
            assert_eq!(thoughts.chunks(width).len(), labels.len(), "a label for each thought");
            assert!(
                labels.iter().all(|label| (0.0..=1.0).contains(label)),
                "labels are between 0 and 1"
            );
            let _ = (trajectory.correct(), trajectory.answer());
        }
    }
}
