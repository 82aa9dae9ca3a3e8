//! Writes the valid inputs of the corpora that are binary or long: run again when a format changes.
//!
//! `cargo run -p fuzz-bodies --example seeds`

#![expect(clippy::unwrap_used, reason = "a broken example should fail loudly")]

use std::fs;

use dataset::{AnswerKind, Question};
use engine::rollout::{AnnotatedQuestion, LabelledTrajectory};
use fuzz_bodies::{FuzzTarget, tiny_spec};
use model::testkit::{CheckpointFamily, CheckpointSpec, GgmlType, GgufContent, write_checkpoint};
use serde_json::json;
use tensor::Tensor;
use train::annotate::{AnnotationIndex, AnnotationShard, ThoughtsDtype};

fn main() {
    for (family, name) in [
        (CheckpointFamily::Coconut, "gpt2"),
        (CheckpointFamily::Llama, "llama"),
        (CheckpointFamily::Qwen3, "qwen3"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write_checkpoint(dir.path(), &tiny_spec(family)).unwrap();
        let copy = |file: &str, target: &str| {
            write(target, name, &fs::read(dir.path().join(file)).unwrap());
        };
        copy("config.json", "config");
        copy("model.safetensors", "safetensors");
        copy("tokenizer.json", "tokenizer");
        let wide = tempfile::tempdir().unwrap();
        let spec = CheckpointSpec { width: 32, head_dim: 16, ffn: 32, ..tiny_spec(family) };
        write_checkpoint(wide.path(), &spec).unwrap();
        if family != CheckpointFamily::Coconut {
            let gguf = GgufContent::from_directory(wide.path(), GgmlType::Q8_0).unwrap();
            write("gguf", name, &gguf.to_bytes());
        }
    }
    write("annotations", "shard", &shard().to_bytes().unwrap());
}

fn write(target: &str, name: &str, bytes: &[u8]) {
    let dir = FuzzTarget::find(target).unwrap().corpus_dir();
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(name), bytes).unwrap();
}

/// Two questions, one of them kept.
fn shard() -> AnnotationShard {
    let index = AnnotationIndex {
        version: AnnotationIndex::VERSION,
        program: "fuzz".into(),
        commit: None,
        settings: json!({}),
        fingerprint: "f".into(),
        questions: 2,
        per_shard: 2,
        trajectories: 2,
        width: 3,
        dtype: ThoughtsDtype::F32,
    };
    let mut shard = AnnotationShard::new(&index);
    for (id, kept) in [(0, true), (1, false)] {
        let trajectory = |k: u32| {
            let rows = if kept { 2 } else { 0 };
            LabelledTrajectory {
                thoughts: Tensor::from_vec(rows, 3, vec![0.5; rows * 3]),
                labels: (0..rows).map(|t| t as f32 / 2.0).collect(),
                tokens: [id, k].as_slice().into(),
                answer: None,
                correct: k == 0,
            }
        };
        let annotated = AnnotatedQuestion {
            id,
            prompt: vec![1, 2],
            kept,
            trajectories: vec![trajectory(0), trajectory(1)],
            rollouts: 5,
        };
        let steps = vec!["<<1+1=2>>".to_owned()];
        let question =
            Question { id, text: "?".into(), gold: "7".into(), kind: AnswerKind::Number, steps };
        shard.add(&question, &annotated).unwrap();
    }
    shard
}
