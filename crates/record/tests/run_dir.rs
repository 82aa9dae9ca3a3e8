//! The run directory through its public interface: interrupted runs, invalid input, arbitrary
//! bytes.

use std::fs;
use std::path::Path;

use aggregate::{EarlyStop, StopReason};
use latent_tts_record::{
    BeamResult, FORMAT, Manifest, RecordError, Results, RunDir, Sample, StageSeconds,
    TrajectoryRecord,
};
use proptest::prelude::*;
use serde_json::json;

fn manifest() -> Manifest {
    let settings = json!({"samples": 2, "perturbation": {"kind": "dropout", "p": 0.2}});
    Manifest { settings, seeds: vec![1, 2], questions: 3, ..Manifest::default() }
}

fn sample(seed: u64, id: u32) -> Sample {
    let trajectory = |k: u32| TrajectoryRecord {
        index: k,
        latent_steps: 2,
        text: format!("### {k}\n\u{1f600} \"quoted\""),
        answer: (k > 0).then(|| k.to_string()),
        process_rewards: Some(vec![0.1 + k as f32, -3.5e-7]),
        outcome_reward: Some(0.25 - k as f32),
        correct: Some(k == 1),
        truncated: k == 0,
        logprob: (k == 1).then_some(-2.25),
        lens: vec![vec![("\"".into(), 0.1)]; k as usize],
        signals: [("arithmetic".to_owned(), 0.5)].into(),
        latents: None,
    };
    let beam = BeamResult {
        width: 2,
        candidates: 1,
        answer: Some("1".into()),
        reward: 0.3,
        ..BeamResult::default()
    };
    Sample {
        id,
        seed,
        question: "what is 0 + 1?".into(),
        gold: "1".into(),
        trajectories: vec![trajectory(0), trajectory(1)],
        beam: Some(beam),
        greedy: Some(trajectory(0)),
        diversity: Some(vec![0.25, 1.0 / 3.0]),
        fed_diversity: Some(vec![0.5, 2.0 / 3.0]),
        stopped: Some(EarlyStop { requested: 8, reason: StopReason::Confident }),
        steps: 14,
        flops: 1.5e9,
    }
}

/// All samples of `manifest()`, in order.
fn all_samples() -> Vec<Sample> {
    [1, 2].into_iter().flat_map(|seed| (0..3).map(move |id| sample(seed, id))).collect()
}

/// Appends the samples that are not recorded and returns the bytes of `samples.jsonl`.
fn resume_and_finish(path: &Path) -> Vec<u8> {
    let mut run = RunDir::resume(path, &manifest()).expect("it resumes");
    for sample in all_samples() {
        if !run.is_done(sample.seed, sample.id) {
            run.append(&sample).expect("it appends");
        }
    }
    // Dropped without `finish`, as if killed.
    drop(run);
    fs::read(path.join("samples.jsonl")).expect("samples are there")
}

/// Creates a new file instead of truncating the old one: some file systems flush the latter, which
/// is slow for thousands of files.
fn replace_file(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).expect("it was there");
    fs::write(path, bytes).expect("it is written");
}

#[test]
fn what_is_written_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("runs/deep");
    let mut run = RunDir::create(&path, &manifest()).unwrap();
    for sample in all_samples() {
        run.append(&sample).unwrap();
        run.append_timing(&StageSeconds { prefill: 0.5, total: 1.0, ..StageSeconds::default() })
            .unwrap();
    }
    let run = run.finish().unwrap();
    assert_eq!(run, RunDir::open(&path).unwrap());
    assert_eq!((run.path(), run.manifest()), (path.as_path(), &manifest()));
    assert_eq!(run.samples().unwrap().collect::<Result<Vec<_>, _>>().unwrap(), all_samples());
    assert_eq!(
        run.seconds().unwrap(),
        StageSeconds { prefill: 3.0, total: 6.0, ..StageSeconds::default() }
    );

    let results = Results { questions: 3, ..Results::default() };
    run.write_results(&results).unwrap();
    assert_eq!(run.results().unwrap(), results);
}

/// Lines of another run, changed ones and rewritten ones are detected.
#[test]
fn lines_of_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("own");
    let other = dir.path().join("other");
    let others = Manifest { fingerprint: "another data set".into(), ..manifest() };
    for (path, manifest) in [(&own, manifest()), (&other, others)] {
        let mut run = RunDir::create(path, &manifest).unwrap();
        all_samples().iter().for_each(|sample| run.append(sample).unwrap());
    }
    let samples = own.join("samples.jsonl");
    let text = fs::read_to_string(&samples).unwrap();
    let foreign = fs::read_to_string(other.join("samples.jsonl")).unwrap();
    assert_ne!(text, foreign);
    let rewritten: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let rewritten = format!("{rewritten:#}").replace('\n', "") + "\n";
    let line = |line: &str| format!("{}}}\n", line.split(",\"digest\"").next().unwrap());
    let without_digests = text.lines().map(line).collect::<String>();
    for damaged in [
        foreign,
        text.replacen("\"gold\":\"1\"", "\"gold\":\"2\"", 1),
        text.replacen("\"answer\":\"1\"", "\"answer\":\"0\"", 1),
        rewritten,
        without_digests,
    ] {
        replace_file(&samples, damaged.as_bytes());
        let error = RunDir::resume(&own, &manifest()).unwrap_err();
        assert!(matches!(error, RecordError::ForeignLine { line: 1, .. }), "{error}");
        let read = RunDir::open(&own).unwrap().samples().unwrap().next().unwrap();
        assert!(matches!(read, Err(RecordError::ForeignLine { .. })), "{read:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_as_manifest_does_not_hang() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(dir.path().join("manifest.json")).status();
    assert!(pipe.unwrap().success());
    let error = RunDir::open(dir.path()).unwrap_err();
    assert!(matches!(error, RecordError::Read { .. }), "{error}");
}

#[test]
fn cut_at_any_byte_a_run_resumes_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let whole = resume_and_finish(dir.path());
    let samples = dir.path().join("samples.jsonl");
    for length in 0..whole.len() {
        replace_file(&samples, &whole[..length]);
        let done = RunDir::resume(dir.path(), &manifest()).unwrap().done_count();
        assert_eq!(done, whole[..length].iter().filter(|&&byte| byte == b'\n').count());
        let read = RunDir::open(dir.path()).unwrap().samples().unwrap().map(Result::unwrap).count();
        assert_eq!(read, done, "after resuming at {length}");
    }
    for length in (0..whole.len()).step_by(97) {
        replace_file(&samples, &whole[..length]);
        assert!(resume_and_finish(dir.path()) == whole, "cut at {length}");
    }
}

#[test]
fn a_killed_run_can_be_read_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let whole = resume_and_finish(dir.path());
    let cut = &whole[..whole.len() - 9];
    fs::write(dir.path().join("samples.jsonl"), cut).unwrap();
    fs::write(dir.path().join("timings.jsonl"), "{\"prefill\": 1").unwrap();
    let run = RunDir::open(dir.path()).unwrap();
    assert_eq!(run.samples().unwrap().map(Result::unwrap).count(), all_samples().len() - 1);
    assert_eq!(run.seconds().unwrap(), StageSeconds::default());
}

#[test]
fn a_damaged_last_line_is_dropped_and_redone() {
    let dir = tempfile::tempdir().unwrap();
    let whole = resume_and_finish(dir.path());
    // After a power failure the length may be correct but not the content.
    let mut damaged = whole.clone();
    let last = whole.len() - 200;
    damaged[last..whole.len() - 1].fill(0);
    fs::write(dir.path().join("samples.jsonl"), damaged).unwrap();
    assert!(resume_and_finish(dir.path()) == whole);
}

#[test]
fn a_damaged_line_before_the_last_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let text = String::from_utf8(resume_and_finish(dir.path())).unwrap();
    let samples = dir.path().join("samples.jsonl");
    fs::write(&samples, text.replacen("\"seed\":1,\"question\"", "\"seed\":1,,\"question\"", 2))
        .unwrap();
    let error = RunDir::resume(dir.path(), &manifest()).unwrap_err();
    assert!(matches!(error, RecordError::Json { line: 1, .. }), "{error}");
    assert!(error.to_string().contains("samples.jsonl:1: "), "{error}");

    let second = text.lines().nth(1).unwrap();
    fs::write(&samples, text.replace(second, &second.replace("[0.1,", "["))).unwrap();
    let error = RunDir::resume(dir.path(), &manifest()).unwrap_err();
    assert!(matches!(error, RecordError::InvalidLine { line: 2, .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("samples.jsonl:2: trajectories[0].process_rewards does not have"),
        "{error}"
    );

    let mut lines = RunDir::open(dir.path()).unwrap().samples().unwrap();
    assert!(lines.next().unwrap().is_ok());
    assert!(lines.next().unwrap().is_err());
    assert!(lines.next().is_none());
}

#[test]
fn a_question_is_recorded_once_under_a_seed() {
    let dir = tempfile::tempdir().unwrap();
    let whole = resume_and_finish(dir.path());
    let mut run = RunDir::resume(dir.path(), &manifest()).unwrap();
    assert!(matches!(
        run.append(&sample(1, 0)).unwrap_err(),
        RecordError::Duplicate { id: 0, seed: 1, .. }
    ));
    drop(run);
    fs::write(dir.path().join("samples.jsonl"), [&whole[..], &whole[..]].concat()).unwrap();
    let error = RunDir::resume(dir.path(), &manifest()).unwrap_err();
    assert!(matches!(error, RecordError::Duplicate { line: 7, id: 0, seed: 1, .. }), "{error}");
}

#[test]
fn a_run_is_not_overwritten_by_default() {
    let dir = tempfile::tempdir().unwrap();
    resume_and_finish(dir.path());
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    let error = RunDir::create(dir.path(), &manifest()).unwrap_err();
    assert!(
        error.to_string().ends_with("already holds a run; resume it or write to another directory"),
        "{error}"
    );

    let run = RunDir::overwrite(dir.path(), &manifest()).unwrap();
    assert_eq!(run.done_count(), 0);
    assert_eq!(run.finish().unwrap().samples().unwrap().count(), 0);
    assert!(dir.path().join("notes.txt").exists());
}

#[test]
fn a_changed_setting_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let whole = resume_and_finish(dir.path());
    let settings = json!({"samples": 2, "perturbation": {"kind": "dropout", "p": 0.5}});
    let error = RunDir::resume(dir.path(), &Manifest { settings, ..manifest() }).unwrap_err();
    assert!(error.to_string().contains("settings.perturbation.p = 0.2, now it is 0.5"), "{error}");
    // Another host is the same run, and the stored manifest is not rewritten.
    RunDir::resume(dir.path(), &Manifest { host: json!("elsewhere"), ..manifest() }).unwrap();
    assert_eq!(RunDir::open(dir.path()).unwrap().manifest(), &manifest());
    assert!(fs::read(dir.path().join("samples.jsonl")).unwrap() == whole);
}

#[test]
fn settings_survive_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let numbers =
        json!([0.2f32, 0.1 + 0.2, -0.0, 1.0, 1, u64::MAX, i64::MIN, f64::MIN_POSITIVE, "é"]);
    let manifest = Manifest { settings: numbers, ..manifest() };
    RunDir::create(dir.path(), &manifest).unwrap();
    RunDir::resume(dir.path(), &manifest).unwrap();
}

#[test]
fn one_writer_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = RunDir::create(dir.path(), &manifest()).unwrap();
    assert!(matches!(
        RunDir::resume(dir.path(), &manifest()).unwrap_err(),
        RecordError::Locked { .. }
    ));
    drop(first);
    RunDir::resume(dir.path(), &manifest()).unwrap();
}

#[test]
fn a_directory_without_a_manifest_is_not_a_run() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(RunDir::open(dir.path()).unwrap_err(), RecordError::NotARun { .. }));
    fs::write(dir.path().join("samples.jsonl"), "").unwrap();
    assert!(matches!(
        RunDir::resume(dir.path(), &manifest()).unwrap_err(),
        RecordError::NotARun { .. }
    ));
    assert!(matches!(
        RunDir::create(dir.path(), &manifest()).unwrap_err(),
        RecordError::Exists { .. }
    ));
    let file = dir.path().join("samples.jsonl");
    for below in [file.clone(), file.join("run")] {
        let error = RunDir::create(&below, &manifest()).unwrap_err();
        assert!(matches!(error, RecordError::NotADirectory { path } if path == file));
    }
}

#[test]
fn a_directory_in_place_of_a_file_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    RunDir::create(dir.path(), &manifest()).unwrap();
    fs::remove_file(dir.path().join("samples.jsonl")).unwrap();
    fs::create_dir(dir.path().join("samples.jsonl")).unwrap();
    assert!(matches!(
        RunDir::open(dir.path()).unwrap().samples().unwrap_err(),
        RecordError::Read { .. }
    ));
    assert!(matches!(
        RunDir::resume(dir.path(), &manifest()).unwrap_err(),
        RecordError::Read { .. }
    ));
}

#[test]
fn a_reward_that_is_not_finite_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = RunDir::create(dir.path(), &manifest()).unwrap();
    let mut bad = sample(1, 0);
    bad.trajectories[1].process_rewards = Some(vec![0.0, f32::NAN]);
    let error = run.append(&bad).unwrap_err();
    assert!(
        error.to_string().ends_with("trajectories[1].process_rewards contains a non-finite number"),
        "{error}"
    );
    assert!(!run.is_done(1, 0));
    run.append(&sample(1, 0)).unwrap();
    let results = Results {
        cost: latent_tts_record::RunCost { flops: f64::NAN, ..Default::default() },
        ..Results::default()
    };
    assert!(matches!(
        run.finish().unwrap().write_results(&results).unwrap_err(),
        RecordError::InvalidRecord { .. }
    ));
}

#[test]
fn a_manifest_cut_anywhere_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    RunDir::create(dir.path(), &manifest()).unwrap();
    let stored = dir.path().join("manifest.json");
    let text = fs::read(&stored).unwrap();
    for length in 0..text.len() - 2 {
        fs::write(&stored, &text[..length]).unwrap();
        let error = RunDir::open(dir.path()).unwrap_err();
        assert!(matches!(error, RecordError::Json { .. }), "cut at {length}: {error}");
    }
}

/// Bytes close to a record: slices of a valid line, random bytes, newlines.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let line = serde_json::to_vec(&sample(1, 0)).expect("it serializes");
    let piece = prop_oneof![
        Just([line.as_slice(), b"\n"].concat()),
        (0..line.len(), 0..line.len()).prop_map(move |(a, b)| line[a.min(b)..a.max(b)].to_vec()),
        prop::collection::vec(any::<u8>(), 0..20),
        Just(b"\n".to_vec()),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_bytes_make_it_panic(
        samples in damaged(),
        timings in damaged(),
        manifest_bytes in damaged(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        // Written directly: `RunDir::create` syncs to disk, which is slow for many cases.
        let valid_manifest = serde_json::to_vec(&manifest()).unwrap();
        fs::write(dir.path().join("manifest.json"), valid_manifest).unwrap();
        fs::write(dir.path().join("samples.jsonl"), &samples).unwrap();
        fs::write(dir.path().join("timings.jsonl"), &timings).unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        run.samples().unwrap().for_each(drop);
        let _ = run.seconds();
        if let Ok(resumed) = RunDir::resume(dir.path(), &manifest()) {
            // Resuming and reading accept the same lines.
            let read = run.samples().unwrap().filter(|line| line.is_ok()).count();
            prop_assert_eq!(read, resumed.done_count());
        }
        fs::write(dir.path().join("manifest.json"), &manifest_bytes).unwrap();
        fs::write(dir.path().join("results.json"), &manifest_bytes).unwrap();
        let _ = RunDir::open(dir.path());
        let _ = RunDir::resume(dir.path(), &manifest());
        let _ = run.results();
    }
}

#[test]
fn a_run_of_format_1_is_read_and_not_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = Manifest { settings: json!({ "samples": 1 }), ..Manifest::default() };
    drop(RunDir::create(dir.path(), &manifest).unwrap());
    let file = dir.path().join("manifest.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let old = text.replace(&format!("\"version\": {FORMAT}"), "\"version\": 1");
    assert_ne!(old, text);
    std::fs::write(&file, old).unwrap();
    assert_eq!(RunDir::open(dir.path()).unwrap().manifest().version, 1);
    let error = RunDir::resume(dir.path(), &manifest).unwrap_err();
    assert!(matches!(error, RecordError::OldFormat { found: 1, .. }), "{error}");
}
