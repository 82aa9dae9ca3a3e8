//! `annotate`: labels on disk, interrupted and sharded runs with the same bytes, rejected requests.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use model::testkit::{CheckpointFamily, CheckpointSpec};
use serde_json::{Value, json};
use support::{CliSandbox, CommandOutput, command_output};
use train::annotate::Annotations;

const QUESTIONS: usize = 12;

/// A sandbox whose gold answers are produced by some of a random model's trajectories, but not all.
fn sandbox_with_mixed_outcomes(spec: &CheckpointSpec) -> CliSandbox {
    let sandbox = CliSandbox::new();
    sandbox.model("model", spec);
    sandbox.questions("data.jsonl", QUESTIONS);
    sandbox
        .eval(&["--samples", "8", "--dropout-p", "0.5", "--max-new-tokens", "16", "--out", "run"])
        .ok();
    let line = |(i, sample): (usize, Value)| {
        let answers: Vec<&Value> =
            sample["trajectories"].as_array().unwrap().iter().map(|t| &t["answer"]).collect();
        let mixed = answers.iter().find(|a| !a.is_null() && answers.iter().any(|b| b != *a));
        // One question in three has an answer that no trajectory produces.
        let gold = mixed.filter(|_| i % 3 != 0).map_or(json!("12345"), |a| (*a).clone());
        let steps = [format!("<<{i}+1={}>>", i + 1)];
        format!("{}\n", json!({ "question": sample["question"], "answer": gold, "steps": steps }))
    };
    let samples = sandbox.samples("run").into_iter();
    sandbox.write("data.jsonl", samples.enumerate().map(line).collect::<String>());
    sandbox
}

fn codi() -> CheckpointSpec {
    CheckpointSpec { family: CheckpointFamily::CodiGpt2, ..CheckpointSpec::default() }
}

/// Arguments of a small annotation; flags in `more` override the defaults.
fn args<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let base = [
        ["--model", "model"],
        ["--data", "data.jsonl"],
        ["--dropout-p", "0.5"],
        ["--max-new-tokens", "16"],
        ["--threads", "1"],
    ];
    let base = base
        .into_iter()
        .chain([["--per-shard", "4"], ["--out", out]])
        .filter(|[flag, _]| !more.contains(flag))
        .flatten();
    ["annotate"].into_iter().chain(base).chain(more.iter().copied()).collect()
}

fn shards(sandbox: &CliSandbox, out: &str) -> Vec<(String, Vec<u8>)> {
    let named = sandbox
        .snapshot(out)
        .into_iter()
        .map(|(path, bytes)| (path.file_name().unwrap().to_string_lossy().into(), bytes));
    named.collect()
}

#[test]
fn labels_are_written() {
    let sandbox = sandbox_with_mixed_outcomes(&codi());
    let done = sandbox.run(&args("labels", &["--json"])).ok();
    let summary = done.json();
    let read = Annotations::open(&sandbox.path("labels")).unwrap();
    let kept = summary["kept"].as_u64().unwrap();
    assert!(kept > 0 && kept < QUESTIONS as u64, "{summary}");
    assert_eq!((read.len() as u64, read.counts().questions), (kept, QUESTIONS as u64));
    assert_eq!(summary["rollouts"], read.counts().rollouts);
    assert_eq!(
        summary["kept"].as_u64().unwrap()
            + summary["all_right"].as_u64().unwrap()
            + summary["all_wrong"].as_u64().unwrap(),
        12
    );
    assert!(summary["rollouts_per_s"].as_f64().unwrap() > 0.0);
    let mut shares = 0;
    for problem in read.problems() {
        let right = problem.trajectories().filter(|t| t.correct()).count();
        assert!(
            right > 0 && right < 8,
            "a question whose trajectories are all correct or all wrong was kept"
        );
        assert_eq!(problem.steps(), [i64::from(problem.id()) + 1]);
        assert!(!problem.prompt().is_empty());
        for trajectory in problem.trajectories() {
            assert_eq!(trajectory.labels().len(), 6);
            assert_eq!(
                trajectory.labels()[5],
                f32::from(u8::from(trajectory.correct())),
                "nothing random follows the last thought"
            );
            assert!(
                trajectory.labels().iter().all(|l| (l * 4.0).fract() == 0.0),
                "four rollouts each"
            );
            shares += trajectory.labels().iter().filter(|l| (0.1..0.9).contains(*l)).count();
        }
    }
    assert!(shares > 0, "no label is between 0 and 1");
    // Final labels are the outcomes of the same trajectories.
    let finals = sandbox
        .run(&args("finals", &["--labels", "final", "--thoughts-dtype", "bf16", "--json"]))
        .ok()
        .json();
    assert_eq!((&finals["kept"], &finals["rollouts"]), (&summary["kept"], &json!(0)));
    let read_finals = Annotations::open(&sandbox.path("finals")).unwrap();
    for (a, b) in read
        .problems()
        .zip(read_finals.problems())
        .flat_map(|(a, b)| a.trajectories().zip(b.trajectories()))
    {
        assert_eq!((a.correct(), a.answer()), (b.correct(), b.answer()));
        assert_eq!(b.labels(), [f32::from(u8::from(b.correct())); 6]);
        assert!(
            a.thoughts().iter().zip(b.thoughts()).all(|(x, y)| (x - y).abs() <= x.abs() / 128.0)
        );
    }
}

#[test]
fn batch_memory_and_shard_parts_do_not_change_a_byte() {
    let sandbox = sandbox_with_mixed_outcomes(&codi());
    sandbox.run(&args("whole", &[])).ok();
    sandbox.run(&args("small", &["--memory", "400KiB"])).ok();
    for part in ["2/2", "1/2"] {
        sandbox.run(&args("parts", &["--resume", "--shard", part])).ok();
    }
    assert_eq!(shards(&sandbox, "whole").len(), 4);
    assert!(
        shards(&sandbox, "whole") == shards(&sandbox, "small"),
        "a small key-value cache changes the results"
    );
    assert!(shards(&sandbox, "whole") == shards(&sandbox, "parts"), "parts differ from the whole");
    let again = sandbox.run(&args("whole", &["--resume", "--json"])).ok().json();
    assert_eq!((&again["questions"], &again["shards"]), (&json!(0), &json!(0)));
}

/// Waits until the directory contains `count` shards or the process has exited.
fn wait_for(sandbox: &CliSandbox, out: &str, count: usize, child: &mut Child) {
    let start = Instant::now();
    let shards = || {
        std::fs::read_dir(sandbox.path(out)).map_or(0, |dir| {
            dir.filter(|e| {
                e.as_ref().unwrap().path().extension().is_some_and(|e| e == "safetensors")
            })
            .count()
        })
    };
    while shards() < count && child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "no shard after a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn spawn(sandbox: &CliSandbox, args: &[&str]) -> Child {
    sandbox.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn end(child: Child) -> CommandOutput {
    command_output(child.wait_with_output().unwrap())
}

#[test]
fn an_interrupted_run_resumes_to_the_same_bytes() {
    let sandbox =
        sandbox_with_mixed_outcomes(&CheckpointSpec { layers: 4, width: 96, ffn: 256, ..codi() });
    let args = |out, more: &[&'static str]| {
        args(out, &[&["--per-shard", "1", "--rollouts", "16"], more].concat())
    };
    sandbox.run(&args("whole", &[])).ok();
    let mut child = spawn(&sandbox, &args("stopped", &["--quiet"]));
    wait_for(&sandbox, "stopped", 2, &mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut child = spawn(&sandbox, &args("stopped", &["--resume", "--quiet"]));
    wait_for(&sandbox, "stopped", 4, &mut child);
    let status = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
    let done = end(child);
    assert_eq!(done.code, Some(3), "{}", done.err);
    assert!(
        done.err.contains("latent-tts annotate --model model")
            && done.err.trim_end().ends_with("--resume"),
        "{}",
        done.err
    );
    sandbox.run(&args("stopped", &["--resume"])).ok();
    let of = |out| {
        shards(&sandbox, out)
            .into_iter()
            .filter(|(name, _)| !name.ends_with(".tmp"))
            .collect::<Vec<_>>()
    };
    assert!(of("whole") == of("stopped"));
}

#[test]
fn invalid_requests_are_rejected() {
    let sandbox = CliSandbox::new();
    let refused = |more: &[&'static str], words: &[&str]| {
        drop(sandbox.run(&args("labels", more)).refused(words))
    };
    refused(&["--labels", "final", "--rollouts", "3"], &["--rollouts", "--labels final"]);
    refused(&["--resume", "--overwrite"], &["--resume", "--overwrite"]);
    refused(&["--trajectories", "2000"], &["2000 trajectories", "1024"]);
    refused(&["--rollouts", "5000"], &["5000 rollouts", "4096"]);
    refused(&["--memory", "1KiB"], &["8 trajectories", "--memory"]);
    assert!(!sandbox.path("labels").exists(), "something was written before all checks");
    assert_eq!(sandbox.run(&args("labels", &["--shard", "3/2"])).code, Some(2));
    // A random model solves nothing; the annotations are complete nevertheless.
    sandbox.run(&args("labels", &[])).refused(&["no labels in"]);
    refused(&[], &["already holds annotations", "--resume"]);
    refused(&["--resume", "--sites", "mlp"], &["index.settings.sampling.sites", "mlp"]);
    refused(&["--resume", "--thoughts-dtype", "bf16"], &["index.dtype"]);
    sandbox.model("model", &CheckpointSpec { seed: 2, ..CheckpointSpec::default() });
    refused(&["--resume"], &["model", "index.fingerprint"]);
    sandbox.run(&args("labels", &["--overwrite"])).refused(&["no labels in"]);
}

#[test]
fn the_paper_preset_reaches_the_index() {
    let sandbox = CliSandbox::new();
    let index = |out: &'static str, more: &[&'static str]| {
        let base = ["--preset", "paper", "--limit", "1", "--max-new-tokens", "4"];
        sandbox.run(&args(out, &[&base[..], more].concat())).refused(&["no labels in"]);
        sandbox.json(&format!("{out}/index.json"))
    };
    let paper = index("paper", &[]);
    assert_eq!(paper["settings"]["labels"], json!({ "kind": "rollouts", "rollouts": 128 }));
    assert_eq!((&paper["trajectories"], &paper["questions"]), (&json!(8), &json!(1)));

    let fewer = index("fewer", &["--rollouts", "2"]);
    assert_eq!(fewer["settings"]["labels"]["rollouts"], 2, "a flag overrides the preset");
    let outcomes = index("outcomes", &["--labels", "final"]);
    assert_eq!(outcomes["settings"]["labels"], json!({ "kind": "final" }));
    sandbox.write("paper.toml", "preset = \"paper\"\nrollouts = 3\n");
    sandbox
        .run(&args("file", &["--config", "paper.toml", "--limit", "1"]))
        .refused(&["no labels in"]);
    let file = sandbox.json("file/index.json");
    assert_eq!(
        (&file["settings"]["labels"]["rollouts"], &file["trajectories"]),
        (&json!(3), &json!(8)),
        "a configuration file overrides the preset that it names"
    );
    sandbox.run(&args("none", &["--preset", "none"])).refused(&["--preset", "paper"]);
}

#[test]
fn shards_that_are_damaged_or_of_others_are_not_on_file() {
    let sandbox = sandbox_with_mixed_outcomes(&codi());
    sandbox.run(&args("labels", &[])).ok();
    sandbox.run(&args("other", &["--seed", "5"])).ok();
    let shard = |i: usize| format!("labels/{i:05}-of-00003.safetensors");
    let whole = sandbox.read(&shard(0));
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [
        whole[..whole.len() / 2].to_vec(),
        Vec::new(),
        flipped,
        sandbox.read(&shard(1)),
        sandbox.read("other/00000-of-00003.safetensors"),
    ] {
        sandbox.write(&shard(0), damaged);
        let refused = sandbox.run(&args("labels", &["--resume"]));
        refused.refused(&["00000-of-00003.safetensors", "delete the file", "--resume"]);
        assert!(Annotations::open(&sandbox.path("labels")).is_err());
    }
    std::fs::remove_file(sandbox.path(&shard(0))).unwrap();
    sandbox.run(&args("labels", &["--resume"])).ok();
    assert_eq!(sandbox.read(&shard(0)), whole);
}

#[test]
fn shards_have_one_writer() {
    let sandbox = sandbox_with_mixed_outcomes(&codi());
    let held = record::files::DirLock::part(&sandbox.path("labels"), "00001-of-00002").unwrap();
    let busy = ["labels", "another process"];
    sandbox.run(&args("labels", &["--shard", "1/2"])).refused(&busy);
    sandbox.run(&args("labels", &["--resume"])).refused(&busy);
    sandbox.run(&args("labels", &["--overwrite"])).refused(&busy);
    sandbox.run(&args("labels", &["--resume", "--shard", "2/2"])).ok();
    drop(held);
    sandbox.run(&args("labels", &["--resume", "--shard", "1/2"])).ok();
    assert_eq!(shards(&sandbox, "labels").len(), 4, "three shards and the index");
}
