//! Embedded models and generated problems: commands that need no other files.
//!
//! No assertion depends on the accuracy of the models, so that they can be replaced.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use serde_json::{Value, json};
use support::{CliSandbox, CommandOutput};

/// A small eval of the embedded models on embedded problems.
fn eval(sandbox: &CliSandbox, more: &[&str]) -> CommandOutput {
    let limit: &[&str] = if more.contains(&"--limit") { &[] } else { &["--limit", "4"] };
    sandbox.run(&[&["eval", "--samples", "4"], limit, more].concat())
}

fn ids(sandbox: &CliSandbox, run: &str) -> Vec<u64> {
    sandbox.samples(run).iter().map(|sample| sample["id"].as_u64().unwrap()).collect()
}

#[test]
fn eval_without_arguments_prints_a_table_and_writes_a_page() {
    let sandbox = CliSandbox::new();
    let done = eval(&sandbox, &[]).ok();
    for word in [
        "4 questions",
        "greedy",
        "majority",
        "weighted",
        "best of k",
        "beam",
        "coverage",
        "HTML report: runs/embedded-test-",
    ] {
        assert!(done.out.contains(word), "{word} in {}", done.out);
    }
    assert!(!done.out.contains("pessimistic  "), "{}", done.out);
    assert!(done.err.contains("1/4 greedy") && done.err.contains("majority"), "{}", done.err);
    let runs: Vec<_> = std::fs::read_dir(sandbox.path("runs"))
        .unwrap()
        .map(|run| run.unwrap().file_name())
        .collect();
    let run = format!("runs/{}", runs[0].to_str().unwrap());
    assert_eq!(runs.len(), 1);
    let page = String::from_utf8(sandbox.read(&format!("{run}/report.html"))).unwrap();
    assert!(page.contains("embedded on test"));

    let manifest = sandbox.json(&format!("{run}/manifest.json"));
    let inputs = ["model", "reward_model", "data"].map(|input| manifest["host"][input].clone());
    assert_eq!(inputs, [json!("embedded"), json!("embedded:reward"), json!("embedded:test")]);
    let results = sandbox.json(&format!("{run}/results.json"));
    let recorded = |name: &str| {
        results["metrics"].as_array().unwrap().iter().any(|metric| metric["name"] == name)
    };
    assert!(
        ["greedy", "coverage", "majority", "weighted", "lcb", "best_of", "beam"]
            .iter()
            .all(|name| recorded(name))
    );
}

#[test]
fn thoughts_are_replaced_on_request() {
    let sandbox = CliSandbox::new();
    let flags = ["--aggregate", "majority", "--out", "run"];
    let ablate = ["--ablate", "swap,zero,mean,freeze,shuffle,zero"];
    let done = eval(&sandbox, &[&flags[..], &ablate].concat()).ok();
    for word in ["difference", "every thought is zero", "the thoughts of the next question"] {
        assert!(done.out.contains(word), "{word} in {}", done.out);
    }
    let page = String::from_utf8(sandbox.read("run/report.html")).unwrap();
    assert!(page.contains("<section id=\"ablation\">"));
    let file = sandbox.json("run/ablation.json");
    let kinds = file["ablations"].as_array().unwrap().iter().map(|result| &result["kind"]);
    assert!(kinds.eq(["zero", "mean", "swap", "freeze", "shuffle"].iter()), "{file}");
    let samples = sandbox.samples("run");
    let questions = file["questions"].as_array().unwrap();
    assert_eq!(questions.len(), 4);
    for (question, sample) in questions.iter().zip(&samples) {
        // The clean run is the greedy one, and each replacement has an answer.
        assert_eq!(question["clean"]["answer"], sample["greedy"]["answer"]);
        assert_eq!(question["latent_steps"], sample["greedy"]["latent_steps"]);
        assert_eq!(question["ablated"].as_array().unwrap().len(), 5);
    }
    // Samples do not depend on the ablation, so a finished run can be ablated later.
    let again = eval(&sandbox, &[&flags[..], &["--resume", "--ablate", "zero", "--json"]].concat());
    let again = again.ok().json();
    assert_eq!(again["ablation"]["clean"], file["clean"]);
    assert_eq!(again["ablation"]["ablations"], json!([file["ablations"][0]]));
    let refused = eval(&sandbox, &["--thoughts", "0", "--ablate", "zero", "--out", "silent"]);
    refused.refused(&["no thoughts to replace", "--ablate"]);
    assert!(!sandbox.path("silent").exists());
}

#[test]
fn thoughts_are_read_as_tokens_on_request() {
    let sandbox = CliSandbox::new();
    let question = "Tom has 3 boxes with 4 pens in each. How many pens does Tom have?";
    let solve = |more: &[&str]| {
        let flags = ["solve", "--samples", "2", "--aggregate", "majority", question];
        sandbox.run(&[&flags[..], more].concat())
    };
    let text = solve(&["--lens", "2"]).ok().out;
    assert!(text.contains("thoughts of the greedy run, decoded: "), "{text}");
    let document = solve(&["--lens", "3", "--json"]).ok().json();
    let sizes = |lens: &Value| {
        let thoughts = lens.as_array().unwrap().iter();
        thoughts.map(|tokens| tokens.as_array().unwrap().len()).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&document["greedy_lens"]), [3; 6]);
    for trajectory in document["trajectories"].as_array().unwrap() {
        assert_eq!(
            sizes(&trajectory["lens"]).len() as u64,
            trajectory["latent_steps"].as_u64().unwrap()
        );
    }
    assert_eq!(solve(&["--json"]).ok().json()["greedy_lens"], Value::Null);

    eval(&sandbox, &["--lens", "2", "--aggregate", "majority", "--out", "run"]).ok();
    for sample in sandbox.samples("run") {
        let greedy = &sample["greedy"];
        assert_eq!(sizes(&greedy["lens"]).len() as u64, greedy["latent_steps"].as_u64().unwrap());
        assert_eq!(sample["trajectories"][0]["lens"], Value::Null);
        let shares = greedy["lens"].as_array().unwrap().iter().map(|tokens| &tokens[0][1]);
        assert!(shares.into_iter().all(|share| (0.0..=1.0).contains(&share.as_f64().unwrap())));
    }
    assert_eq!(sandbox.json("run/manifest.json")["settings"]["lens"], 2);
    let again = ["--lens", "3", "--aggregate", "majority", "--out", "run", "--resume"];
    eval(&sandbox, &again).refused(&["settings.lens = 2"]);
    eval(&sandbox, &["--lens", "21"]).refused(&["--lens", "1 to 20"]);
}

#[test]
fn the_page_is_optional() {
    let sandbox = CliSandbox::new();
    let with = eval(&sandbox, &["--out", "with", "--json"]).ok().json();
    assert_eq!(with["page"], "with/report.html");
    assert!(sandbox.path("with/report.html").is_file());
    let without = eval(&sandbox, &["--out", "without", "--json", "--no-report"]).ok().json();
    assert_eq!(without["page"], Value::Null);
    assert!(!sandbox.path("without/report.html").exists());
    assert_eq!(with["metrics"], without["metrics"]);
}

#[test]
fn embedded_problems_equal_the_written_corpus() {
    let sandbox = CliSandbox::new();
    sandbox.run(&["corpus", "--split", "hard", "--count", "6", "--out", "hard.json"]).ok();
    let common = ["--aggregate", "majority", "--no-report"];
    eval(&sandbox, &[&common[..], &["--data", "embedded:hard", "--out", "made"]].concat()).ok();
    eval(&sandbox, &[&common[..], &["--data", "hard.json", "--out", "read"]].concat()).ok();
    assert_eq!(sandbox.samples("made"), sandbox.samples("read"));

    // A problem's samples do not depend on the range that it is read from.
    eval(
        &sandbox,
        &[&common[..], &["--data", "embedded:hard:2..40", "--limit", "2", "--out", "part"]]
            .concat(),
    )
    .ok();
    assert_eq!(ids(&sandbox, "part"), [2, 3]);
    assert_eq!(sandbox.samples("part"), sandbox.samples("made")[2..]);
    eval(&sandbox, &[&common[..], &["--data", "embedded:hard:1..3", "--out", "short"]].concat())
        .ok();
    assert_eq!(ids(&sandbox, "short"), [1, 2]);
    assert_eq!(sandbox.json("short/manifest.json")["host"]["data"], "embedded:hard:1..3");
    eval(
        &sandbox,
        &[&common[..], &["--data", "embedded:hard:1..3", "--out", "short", "--resume"]].concat(),
    )
    .ok();
    eval(
        &sandbox,
        &[&common[..], &["--data", "embedded:hard:2..4", "--out", "short", "--resume"]].concat(),
    )
    .refused(&["fingerprint", "data"]);
}

#[test]
fn unknown_embedded_splits_are_rejected() {
    let sandbox = CliSandbox::new();
    for (data, words) in [
        ("embedded:nope", ["embedded:nope", "train, valid, test, hard and ood"]),
        ("embedded:test:5", ["embedded:test:5", "embedded:test:0..1000"]),
        ("embedded:test:9..2", ["embedded:test:9..2", "is empty"]),
        ("embedded", ["embedded", "no such file"]),
    ] {
        for command in ["eval", "sweep", "annotate"] {
            sandbox.run(&[command, "--data", data]).refused(&words);
        }
    }
    sandbox
        .run(&["eval", "--data", "embedded:test:0..4000000000"])
        .refused(&["4000000000", "range"]);
    assert!(!sandbox.path("runs").exists() && !sandbox.path("annotations").exists());
}

#[test]
fn only_the_embedded_reasoner_has_a_default_reward_model() {
    let sandbox = CliSandbox::new();
    let scored = |run: &str| {
        sandbox.samples(run)[0]["trajectories"][0]
            .get("process_rewards")
            .is_some_and(|scores| !scores.is_null())
    };
    eval(&sandbox, &["--reward-model", "none", "--out", "a"]).ok();
    eval(&sandbox, &["--model", "embedded", "--out", "b"]).ok();
    sandbox.eval(&["--data", "embedded:test", "--limit", "2", "--out", "c"]).ok();
    assert_eq!(["a", "b", "c"].map(scored), [false, true, false]);
    sandbox
        .eval(&["--reward-model", "embedded"])
        .refused(&["embedded:reward", "and the reasoner width 32"]);
    eval(&sandbox, &["--reward-model", "none", "--aggregate", "weighted"])
        .refused(&["--reward-model"]);
}

#[test]
fn solve_reports_unknown_words() {
    let sandbox = CliSandbox::new();
    let known: Value =
        serde_json::from_str(&sandbox.run(&["corpus", "--count", "1"]).ok().out).unwrap();
    let done = sandbox.run(&["solve", known[0]["question"].as_str().unwrap(), "--json"]).ok();
    assert_eq!(done.json()["unknown_words"], json!([]));
    assert!(!done.err.contains("vocabulary"), "{}", done.err);
    assert_eq!(done.json()["trajectories"].as_array().unwrap().len(), 16);
    let unusual = "There are 3 Quokkas and 4 zeppelins. How many zeppelins are there?";
    let done = sandbox.run(&["solve", unusual, "--json", "--samples", "2"]).ok();
    assert_eq!(done.json()["unknown_words"], json!(["Quokkas", "zeppelins"]));
    assert!(done.err.contains("vocabulary: \"Quokkas\", \"zeppelins\""), "{}", done.err);
}

#[test]
fn embedded_models_can_be_inspected_and_benchmarked() {
    let sandbox = CliSandbox::new();
    let inspect = |name: &str| sandbox.run(&["inspect", name, "--json"]).ok().json();
    assert_eq!(
        (inspect("embedded")["kind"].clone(), inspect("embedded")["dir"].clone()),
        (json!("reasoner"), json!("embedded"))
    );
    assert_eq!(inspect("embedded:reward")["kind"], "reward model");
    let tiny = [
        "--questions",
        "1",
        "--samples",
        "2",
        "--prompt",
        "8",
        "--thoughts",
        "2",
        "--answer",
        "2",
        "--repeat",
        "1",
    ];
    let measured =
        sandbox.run(&[&["bench", "--shape", "embedded", "--json"], &tiny[..]].concat()).ok().json();
    assert!(measured["trajectories_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn sweep_and_annotate_run_on_the_embedded_models() {
    let sandbox = CliSandbox::new();
    sandbox
        .run(&["sweep", "--dropout-p", "0.1,0.2", "--limit", "2", "--samples", "2", "--no-report"])
        .ok();
    let sweeps = || -> Vec<String> {
        let entries = std::fs::read_dir(sandbox.path("runs")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    };
    let [sweep] = &sweeps()[..] else { panic!("{:?}", sweeps()) };
    assert!(sweep.starts_with("sweep-embedded-test-"), "{sweep}");
    assert!(sandbox.path(&format!("runs/{sweep}/sweep.json")).is_file());
    let point = sandbox.json(&format!("runs/{sweep}/dropout-0.1/manifest.json"));
    assert_eq!(
        (&point["host"]["reward_model"], &point["settings"]["rewards"]),
        (&Value::Null, &json!(false))
    );
    let done = sandbox.run(&[
        "annotate",
        "--data",
        "embedded:train:5..37",
        "--trajectories",
        "4",
        "--rollouts",
        "1",
        "--json",
    ]);
    let labels = done.ok().json();
    assert_eq!(labels["questions"], 32);
    assert!(
        labels["out"].as_str().unwrap().starts_with("annotations/embedded-train-5..37-"),
        "{labels}"
    );
}
