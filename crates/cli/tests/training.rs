//! The whole pipeline from the outside, at a size that takes seconds: corpus, reasoners, annotations, a reward model, and an
//! evaluation with both; and requests for a training that cannot be.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use model::testkit::{Family, Spec};
use serde_json::Value;
use support::{Bench, Done};

/// A small training, with more arguments, which may replace its own.
fn train(bench: &Bench, what: &str, more: &[&str]) -> Done {
    let base = [["--warmup", "2"], ["--batch", "10"], ["--lr", "1e-2"], ["--dropout", "0"], ["--threads", "2"], ["--steps", "3"]];
    let base = base.into_iter().filter(|[flag, _]| !more.contains(flag)).flatten();
    bench.run(&["train", what].into_iter().chain(base).chain(more.iter().copied()).collect::<Vec<_>>())
}

/// A new reasoner that learns from `train.json`.
fn reasoner(bench: &Bench, more: &[&str]) -> Done {
    let base = [["--data", "train.json"], ["--width", "32"], ["--layers", "2"], ["--heads", "2"]];
    let base = base.into_iter().filter(|[flag, _]| !more.contains(flag)).flatten();
    train(bench, "reasoner", &base.chain(more.iter().copied()).collect::<Vec<_>>())
}

fn with_corpus() -> Bench {
    let bench = Bench::new();
    bench.run(&["corpus", "--split", "train", "--count", "10", "--out", "train.json"]).ok();
    bench
}

/// The lines of a training's log.
fn log(bench: &Bench, out: &str) -> Vec<Value> {
    let text = String::from_utf8(bench.read(&format!("{out}/training/log.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn metric(results: &Value, name: &str, k: u64) -> f64 {
    let of = |m: &&Value| m["name"] == name && m["k"].as_u64().is_none_or(|own| own == k);
    let found = results["metrics"].as_array().unwrap().iter().find(of);
    found.unwrap_or_else(|| panic!("no {name}@{k} in {results}"))["value"].as_f64().unwrap()
}

#[test]
fn from_the_corpus_to_an_evaluation() {
    let bench = with_corpus();
    reasoner(&bench, &["--mode", "cot", "--out", "models/cot", "--steps", "40"]).ok();
    let losses: Vec<f64> = log(&bench, "models/cot").iter().map(|line| line["loss"].as_f64().unwrap()).collect();
    assert_eq!(losses.len(), 40);
    assert!(losses[39] < 0.5 * losses[0], "{losses:?}");
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "training/state.safetensors"] {
        assert!(bench.path("models/cot").join(file).is_file(), "no {file}");
    }

    // Six thoughts from the beginning, as if half of training were over: ten problems by heart.
    let latent =
        ["--init", "models/cot", "--out", "models/latent", "--steps", "150", "--rise", "0.2", "--held-out", "train.json"];
    let said = reasoner(&bench, &[&latent[..], &["--json"]].concat()).ok().json();
    assert_eq!(said["held_out"]["greedy"], 1.0, "{said}");
    assert_eq!(said["finished"], true);

    // What is known by heart is lost only under heavy dropout, the answer's included.
    let sampling = ["--model", "models/latent", "--data", "train.json", "--p", "0.5", "--scope", "all", "--threads", "2"];
    let labels = ["annotate", "--samples", "6", "--rollouts", "2", "--out", "labels", "--json"];
    let said = bench.run(&[&labels[..], &sampling].concat()).ok().json();
    assert!(said["kept"].as_u64().unwrap() > 0, "{said}");

    let judge = ["--model", "models/latent", "--annotations", "labels", "--held-out", "labels", "--batch", "4"];
    let said =
        train(&bench, "reward", &[&judge[..], &["--out", "models/rm", "--lr", "3e-3", "--steps", "30", "--json"]].concat());
    let held_out = said.ok().json()["held_out"].clone();
    assert!(held_out["best_of"].as_f64().unwrap() >= held_out["one"].as_f64().unwrap(), "{held_out}");
    assert_eq!(held_out["auc"].as_array().unwrap().len(), 6, "{held_out}");

    // One that thinks for itself and reads answers.
    let thinking = ["--out", "models/thinker", "--mind", "models/latent", "--reads-answers", "--objective", "pairwise", "--json"];
    let said = train(&bench, "reward", &[&judge[..], &thinking].concat()).ok().json();
    assert!((0.0..=1.0).contains(&said["held_out"]["auc_verdict"].as_f64().unwrap()), "{said}");
    bench.run(&[&["eval", "--samples", "4", "--reward-model", "models/thinker", "--out", "judged"][..], &sampling].concat()).ok();
    let line = String::from_utf8(bench.read("judged/samples.jsonl")).unwrap();
    let sample: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    assert!(sample["trajectories"][0]["verdict"].is_f64() && sample["beam"]["verdict"].is_f64(), "{sample}");

    bench.run(&[&["eval", "--samples", "4", "--reward-model", "models/rm", "--out", "run"][..], &sampling].concat()).ok();
    let results = bench.json("run/results.json");
    assert_eq!(metric(&results, "greedy", 1), 1.0);
    for name in ["coverage", "pass", "maj", "weighted", "best_of", "diversity"] {
        let value = metric(&results, name, 4);
        assert!((0.0..=1.0).contains(&value), "{name}: {value}");
    }
    assert!(metric(&results, "coverage", 4) >= metric(&results, "best_of", 4));
    let sample = String::from_utf8(bench.read("run/samples.jsonl")).unwrap();
    let first: Value = serde_json::from_str(sample.lines().next().unwrap()).unwrap();
    assert_eq!(first["trajectories"][0]["scores"].as_array().unwrap().len(), 6, "a score a thought");
}

#[test]
fn every_way_to_train_a_judge() {
    let bench = with_corpus();
    reasoner(&bench, &["--out", "latent"]).ok();
    // Whatever a model says after three steps is wrong: final labels of a question that it cannot answer are all alike.
    let sampling = ["--model", "latent", "--data", "train.json", "--limit", "2", "--threads", "1"];
    let labels = ["annotate", "--samples", "2", "--labels", "final", "--max-new-tokens", "4", "--out", "labels"];
    bench.run(&[&labels[..], &sampling].concat()).ok();
    let judge = ["--model", "latent", "--annotations", "labels", "--out", "rm"];
    train(&bench, "reward", &judge).refused(&["labels", "nothing to learn from"]);

    train(&bench, "reward", &["--model", "latent", "--out", "rm-none", "--objective", "untrained", "--head", "linear"]).ok();
    let eval = ["eval", "--samples", "2", "--reward-model", "rm-none", "--max-new-tokens", "4", "--out", "run"];
    bench.run(&[&eval[..], &sampling].concat()).ok();
    train(&bench, "reward", &["--model", "latent", "--out", "rm-more"]).refused(&["--annotations"]);
}

#[test]
fn a_training_goes_on_only_where_it_is_asked_to() {
    let bench = with_corpus();
    reasoner(&bench, &["--out", "model-a"]).ok();
    let before = bench.snapshot("model-a");
    reasoner(&bench, &["--out", "model-a"]).refused(&["model-a", "--resume"]);
    reasoner(&bench, &["--out", "model-a", "--resume", "--lr", "5e-3"]).refused(&["state.safetensors", "other settings"]);
    assert_eq!(bench.snapshot("model-a"), before, "what was there changed");
    reasoner(&bench, &["--out", "model-a", "--resume"]).ok();
    assert_eq!(log(&bench, "model-a").len(), 3, "there was nothing left to do");
    bench.write("model-a/training/state.safetensors", b"what?");
    reasoner(&bench, &["--out", "model-a", "--resume"]).refused(&["state.safetensors", "damaged"]);
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let bench = with_corpus();
    reasoner(&bench, &[]).refused(&["--out"]);
    reasoner(&bench, &["--out", "m", "--steps", "0"]).refused(&["--steps"]);
    reasoner(&bench, &["--out", "m", "--batch", "0"]).refused(&["--batch"]);
    reasoner(&bench, &["--out", "m", "--dropout", "1.5"]).refused(&["--dropout"]);
    reasoner(&bench, &["--out", "m", "--heads", "5"]).refused(&["--width 32", "--heads 5"]);
    reasoner(&bench, &["--out", "m", "--data", "absent.json"]).refused(&["absent.json"]);
    reasoner(&bench, &["--out", "m", "--init", "absent"]).refused(&["absent"]);
    reasoner(&bench, &["--out", "m", "--context", "16"]).refused(&["positions", "16"]);
    reasoner(&bench, &["--out", "train.json/m"]).refused(&["train.json/m"]);
    bench.model("narrow", &Spec { width: 16, heads: 2, ..Spec::default() });
    bench.model("qwen", &Spec { family: Family::Rot, ..Spec::default() });
    reasoner(&bench, &["--out", "m", "--init", "qwen"]).refused(&["Qwen3"]);
    train(&bench, "reward", &["--model", "narrow", "--annotations", "nowhere", "--out", "rm"]).refused(&["nowhere"]);
    train(&bench, "reward", &["--model", "absent", "--out", "rm", "--objective", "untrained"]).refused(&["absent"]);
}

#[test]
fn a_judge_reads_thoughts_of_its_own_width() {
    let bench = with_corpus();
    reasoner(&bench, &["--out", "wide"]).ok();
    let labels = ["annotate", "--model", "wide", "--data", "train.json", "--limit", "1", "--samples", "2", "--labels", "final"];
    bench.run(&[&labels[..], &["--max-new-tokens", "4", "--out", "labels"]].concat()).ok();
    bench.model("narrow", &Spec { width: 16, heads: 2, ..Spec::default() });
    for flag in ["--annotations", "--held-out"] {
        let judge = ["--model", "narrow", "--out", "rm", flag, "labels"];
        train(&bench, "reward", &judge).refused(&["32 wide", "16"]);
    }
    reasoner(&bench, &["--mode", "cot", "--out", "words"]).ok();
    for (mind, why) in [("narrow", "16 wide"), ("words", "no thoughts"), ("absent", "absent")] {
        let judge = ["--model", "wide", "--out", "rm", "--annotations", "labels", "--mind", mind];
        train(&bench, "reward", &judge).refused(&[mind, why]);
    }
    assert!(!bench.path("rm").exists(), "what was refused has written nothing");
}
