//! Round trips of annotations, and errors about corrupt, missing and mismatched files.

use std::fs;
use std::path::Path;

use data::{AnswerKind, Question};
use engine::rollout::{AnnotatedQuestion, LabelledTrajectory};
use proptest::prelude::*;
use serde_json::json;
use tensor::Tensor;

use super::shard::step_results;
use super::*;

const WIDTH: usize = 3;

fn index(dtype: ThoughtsDtype, questions: usize) -> AnnotationIndex {
    AnnotationIndex {
        version: AnnotationIndex::VERSION,
        program: "test 1".into(),
        commit: None,
        settings: json!({ "p": 0.2 }),
        fingerprint: "f".into(),
        questions,
        per_shard: 2,
        trajectories: 2,
        width: WIDTH,
        dtype,
    }
}

fn question(id: u32) -> Question {
    let steps = (0..id % 3).map(|i| format!("<<{i}+{id}={}>>", i + id)).collect();
    Question { id, text: "?".into(), gold: "7".into(), kind: AnswerKind::Number, steps }
}

/// A question with two trajectories of the given numbers of thoughts.
fn annotated(id: u32, lengths: [usize; 2], kept: bool) -> AnnotatedQuestion {
    let trajectory = |k: usize| {
        let rows = if kept { lengths[k] } else { 0 };
        let numbers = (0..rows * WIDTH)
            .map(|i| (id as f32 + 1.0) * 0.37 + i as f32 * 1.01 - k as f32)
            .collect();
        LabelledTrajectory {
            thoughts: Tensor::from_vec(rows, WIDTH, numbers),
            labels: (0..rows).map(|t| t as f32 / 4.0 % 1.0).collect(),
            tokens: [id, k as u32].as_slice().into(),
            answer: None,
            correct: k == 0,
        }
    };
    AnnotatedQuestion {
        id,
        prompt: (0..id + 1).collect(),
        kept,
        trajectories: vec![trajectory(0), trajectory(1)],
        rollouts: 5,
    }
}

fn shard_of(index: &AnnotationIndex, questions: &[AnnotatedQuestion]) -> AnnotationShard {
    let mut shard = AnnotationShard::new(index);
    questions.iter().for_each(|a| shard.add(&question(a.id), a).unwrap());
    shard
}

/// Writes all questions, shard by shard.
fn write_all(dir: &Path, index: &AnnotationIndex, all: &[AnnotatedQuestion]) {
    let store = AnnotationStore::resume(dir, index).unwrap();
    for number in store.missing(0, 1) {
        store.write(number, &shard_of(index, &all[index.questions_of(number)])).unwrap();
    }
}

fn assert_read_back(dir: &Path, all: &[AnnotatedQuestion], round: impl Fn(f32) -> f32) {
    let read = Annotations::open(dir).unwrap();
    let kept: Vec<&AnnotatedQuestion> = all.iter().filter(|a| a.kept).collect();
    assert_eq!((read.len(), read.problems().len()), (kept.len(), kept.len()));
    assert!(read.get(kept.len()).is_none());
    for (problem, source) in read.problems().zip(kept) {
        assert_eq!((problem.id(), problem.prompt()), (source.id, &source.prompt[..]));
        assert_eq!(problem.steps(), step_results(&question(source.id).steps));
        assert_eq!(problem.trajectories().len(), source.trajectories.len());
        for (trajectory, expected) in problem.trajectories().zip(&source.trajectories) {
            assert_eq!(
                (trajectory.labels(), trajectory.correct()),
                (&expected.labels[..], expected.correct)
            );
            assert_eq!(trajectory.answer(), &expected.tokens[..]);
            let thoughts: Vec<f32> = expected.thoughts.data().iter().map(|&x| round(x)).collect();
            assert_eq!(trajectory.thoughts(), thoughts);
        }
    }
    assert_eq!(
        (read.counts().questions, read.counts().rollouts),
        (all.len() as u64, 5 * all.len() as u64)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn annotations_round_trip(
        questions in prop::collection::vec(((0usize..4, 0usize..4), any::<bool>()), 0..7),
    ) {
        let question = |(i, ((a, b), kept)): (usize, &((usize, usize), bool))| {
            annotated(i as u32, [*a, *b], *kept)
        };
        let all: Vec<AnnotatedQuestion> = questions.iter().enumerate().map(question).collect();
        let exact: fn(f32) -> f32 = |x| x;
        let rounded: fn(f32) -> f32 = |x| half::bf16::from_f32(x).to_f32();
        for (dtype, round) in [(ThoughtsDtype::F32, exact), (ThoughtsDtype::Bf16, rounded)] {
            let dir = tempfile::tempdir().unwrap();
            write_all(dir.path(), &index(dtype, all.len()), &all);
            assert_read_back(dir.path(), &all, round);
        }
    }
}

fn three() -> Vec<AnnotatedQuestion> {
    vec![annotated(0, [2, 1], true), annotated(1, [0, 3], true), annotated(2, [1, 1], false)]
}

#[test]
fn shards_of_several_runs_have_the_bytes_of_one_run() {
    let index = index(ThoughtsDtype::F32, 3);
    let all = three();
    let [whole, parts] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    write_all(whole.path(), &index, &all);
    for part in [1, 0] {
        let store = AnnotationStore::resume(
            parts.path(),
            &AnnotationIndex { program: "test 2".into(), ..index.clone() },
        )
        .unwrap();
        assert_eq!(store.missing(part, 2), [part]);
        store.write(part, &shard_of(&index, &all[index.questions_of(part)])).unwrap();
        assert!(store.missing(part, 2).is_empty());
    }
    for name in ["00000-of-00002.safetensors", "00001-of-00002.safetensors"] {
        assert_eq!(
            fs::read(whole.path().join(name)).unwrap(),
            fs::read(parts.path().join(name)).unwrap()
        );
    }
    assert_eq!(fs::read_dir(parts.path()).unwrap().count(), 3, "no temporary files");
    assert_read_back(parts.path(), &all, |x| x);
}

#[test]
fn existing_annotations_are_not_replaced_by_accident() {
    let index = index(ThoughtsDtype::F32, 3);
    let dir = tempfile::tempdir().unwrap();
    write_all(dir.path(), &index, &three());
    assert!(matches!(
        AnnotationStore::create(dir.path(), &index),
        Err(AnnotationError::Exists { .. })
    ));
    let other = AnnotationIndex { settings: json!({ "p": 0.3 }), ..index.clone() };
    let error = AnnotationStore::resume(dir.path(), &other).unwrap_err().to_string();
    assert!(
        error.contains("index.settings.p = 0.2, now it is 0.3") && error.contains("index.json"),
        "{error}"
    );
    fs::write(dir.path().join("mine.safetensors"), "kept").unwrap();
    let store = AnnotationStore::overwrite(dir.path(), &other).unwrap();
    assert_eq!(store.missing(0, 1), [0, 1]);
    assert!(dir.path().join("mine.safetensors").exists());
}

#[test]
fn an_incomplete_directory_names_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let message = |dir: &Path| Annotations::open(dir).unwrap_err().to_string();
    assert!(message(dir.path()).contains("index.json is missing"));
    let index = index(ThoughtsDtype::F32, 3);
    let store = AnnotationStore::create(dir.path(), &index).unwrap();
    store.write(0, &shard_of(&index, &three()[..2])).unwrap();
    let missing = message(dir.path());
    assert!(
        missing.contains("1 of 2 shards")
            && missing.contains("00001-of-00002")
            && missing.contains("resume `annotate`"),
        "{missing}"
    );
    for (text, words) in [
        ("{", "not an annotation index"),
        ("{}", "version"),
        (r#"{"version": 9}"#, "format version 9"),
        (r#"{"version": 1}"#, "missing field"),
    ] {
        fs::write(dir.path().join("index.json"), text).unwrap();
        assert!(message(dir.path()).contains(words), "{}", message(dir.path()));
    }
    let endless = AnnotationIndex { questions: usize::MAX, per_shard: 1, ..index };
    fs::write(dir.path().join("index.json"), serde_json::to_vec(&endless).unwrap()).unwrap();
    assert!(message(dir.path()).contains("are missing"));
}

#[test]
fn a_damaged_shard_is_named() {
    let index = index(ThoughtsDtype::F32, 2);
    let dir = tempfile::tempdir().unwrap();
    write_all(dir.path(), &index, &three()[..2]);
    let path = dir.path().join("00000-of-00001.safetensors");
    let whole = fs::read(&path).unwrap();
    for length in (0..whole.len()).step_by(5) {
        fs::write(&path, &whole[..length]).unwrap();
        let error = Annotations::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("00000-of-00001.safetensors"), "{error}");
    }
    fs::write(&path, &whole).unwrap();
    let content = |read: &Annotations| -> Vec<(Vec<f32>, Vec<f32>, Vec<u32>)> {
        let all = read.problems().flat_map(|problem| problem.trajectories());
        all.map(|t| (t.thoughts(), t.labels().to_vec(), t.answer().to_vec())).collect()
    };
    let expected = content(&Annotations::open(dir.path()).unwrap());
    // A flipped byte is detected, unless it only hides the digest.
    for at in (0..whole.len()).step_by(3) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        fs::write(&path, &damaged).unwrap();
        if let Ok(read) = Annotations::open(dir.path()) {
            assert_eq!(content(&read), expected, "byte {at}");
        }
    }
    fs::write(&path, &whole).unwrap();
    let other = AnnotationIndex { trajectories: 3, ..index };
    fs::write(dir.path().join("index.json"), serde_json::to_vec(&other).unwrap()).unwrap();
    let error = Annotations::open(dir.path()).unwrap_err().to_string();
    assert!(
        error.contains("of another annotation") && error.contains("resume `annotate`"),
        "{error}"
    );
}

#[test]
fn questions_of_another_shape_are_rejected() {
    let index = index(ThoughtsDtype::F32, 1);
    let mut shard = AnnotationShard::new(&index);
    let mut other = annotated(4, [2, 2], true);
    other.trajectories.pop();
    assert!(shard.add(&question(4), &other).unwrap_err().to_string().contains("1 trajectories"));
    let mut wide = annotated(4, [2, 2], true);
    wide.trajectories[0].thoughts = Tensor::zeros(2, WIDTH + 1);
    assert!(
        shard.add(&question(4), &wide).unwrap_err().to_string().contains("4 numbers per thought")
    );
    assert_eq!((shard.problems(), shard.thoughts()), (0, 0));
}
