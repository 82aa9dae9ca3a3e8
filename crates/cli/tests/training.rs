//! The training pipeline at a size that takes seconds: corpus, reasoners, annotations, reward
//! models and an evaluation; and invalid training requests.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use model::testkit::CheckpointSpec;
use serde_json::Value;
use support::{CliSandbox, CommandOutput};

/// A small training; flags in `more` override the defaults.
fn train(sandbox: &CliSandbox, what: &str, more: &[&str]) -> CommandOutput {
    let base = [
        ["--warmup", "2"],
        ["--batch", "10"],
        ["--lr", "1e-2"],
        ["--dropout", "0"],
        ["--threads", "2"],
        ["--steps", "3"],
    ];
    let base = base.into_iter().filter(|[flag, _]| !more.contains(flag)).flatten();
    sandbox.run(
        &["train", what].into_iter().chain(base).chain(more.iter().copied()).collect::<Vec<_>>(),
    )
}

/// Trains a small reasoner on `train.json`.
fn reasoner(sandbox: &CliSandbox, more: &[&str]) -> CommandOutput {
    let base = [["--data", "train.json"], ["--width", "32"], ["--layers", "2"], ["--heads", "2"]];
    let base = base.into_iter().filter(|[flag, _]| !more.contains(flag)).flatten();
    train(sandbox, "reasoner", &base.chain(more.iter().copied()).collect::<Vec<_>>())
}

fn with_corpus() -> CliSandbox {
    let sandbox = CliSandbox::new();
    sandbox.run(&["corpus", "--split", "train", "--count", "10", "--out", "train.json"]).ok();
    sandbox
}

/// The lines of a training log.
fn log(sandbox: &CliSandbox, out: &str) -> Vec<Value> {
    let text = String::from_utf8(sandbox.read(&format!("{out}/training/log.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn metric(results: &Value, name: &str, k: u64) -> f64 {
    let of = |m: &&Value| m["name"] == name && m["k"].as_u64().is_none_or(|own| own == k);
    let found = results["metrics"].as_array().unwrap().iter().find(of);
    found.unwrap_or_else(|| panic!("no {name}@{k} in {results}"))["value"].as_f64().unwrap()
}

#[test]
fn the_whole_pipeline_from_corpus_to_eval() {
    let sandbox = with_corpus();
    reasoner(&sandbox, &["--mode", "cot", "--out", "models/cot", "--steps", "40"]).ok();
    let losses: Vec<f64> =
        log(&sandbox, "models/cot").iter().map(|line| line["loss"].as_f64().unwrap()).collect();
    assert_eq!(losses.len(), 40);
    assert!(losses[39] < 0.5 * losses[0], "{losses:?}");
    for file in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
        "training/state.safetensors",
    ] {
        assert!(sandbox.path("models/cot").join(file).is_file(), "no {file}");
    }

    // A short curriculum on ten problems, which the model memorizes.
    let latent = [
        "--init",
        "models/cot",
        "--out",
        "models/latent",
        "--steps",
        "150",
        "--curriculum-end",
        "0.2",
        "--held-out",
        "train.json",
    ];
    let trained = reasoner(&sandbox, &[&latent[..], &["--json"]].concat()).ok().json();
    assert_eq!(trained["held_out"]["greedy"], 1.0, "{trained}");
    assert_eq!(trained["finished"], true);

    // Memorized answers only become wrong under strong dropout that includes the answer.
    let sampling = [
        "--model",
        "models/latent",
        "--data",
        "train.json",
        "--dropout-p",
        "0.5",
        "--scope",
        "all",
        "--threads",
        "2",
    ];
    let labels = ["annotate", "--samples", "6", "--rollouts", "2", "--out", "labels", "--json"];
    let annotated = sandbox.run(&[&labels[..], &sampling].concat()).ok().json();
    assert!(annotated["kept"].as_u64().unwrap() > 0, "{annotated}");

    let reward_args = [
        "--model",
        "models/latent",
        "--annotations",
        "labels",
        "--held-out",
        "labels",
        "--batch",
        "4",
    ];
    let trained = train(
        &sandbox,
        "reward",
        &[&reward_args[..], &["--out", "models/rm", "--lr", "3e-3", "--steps", "30", "--json"]]
            .concat(),
    );
    let held_out = trained.ok().json()["held_out"].clone();
    assert!(
        held_out["best_of"].as_f64().unwrap() >= held_out["one"].as_f64().unwrap(),
        "{held_out}"
    );
    assert_eq!(held_out["auc"].as_array().unwrap().len(), 6, "{held_out}");

    // A reward model with a reference reasoner and an outcome head.
    let outcome_flags = [
        "--out",
        "models/outcome-rm",
        "--reference",
        "models/latent",
        "--reads-answers",
        "--objective",
        "pairwise",
        "--json",
    ];
    let trained =
        train(&sandbox, "reward", &[&reward_args[..], &outcome_flags].concat()).ok().json();
    let outcome_auc = trained["held_out"]["auc_verdict"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&outcome_auc), "{trained}");
    sandbox
        .run(
            &[
                &["eval", "--samples", "4", "--reward-model", "models/outcome-rm"][..],
                &["--out", "outcome"],
                &sampling,
            ]
            .concat(),
        )
        .ok();
    let sample = &sandbox.samples("outcome")[0];
    assert!(
        sample["trajectories"][0]["outcome_reward"].is_f64()
            && sample["beam"]["outcome_reward"].is_f64(),
        "{sample}"
    );

    sandbox
        .run(
            &[
                &["eval", "--samples", "4", "--reward-model", "models/rm", "--out", "run"][..],
                &sampling,
            ]
            .concat(),
        )
        .ok();
    let results = sandbox.json("run/results.json");
    assert_eq!(metric(&results, "greedy", 1), 1.0);
    for name in ["coverage", "majority", "weighted", "best_of", "diversity"] {
        let value = metric(&results, name, 4);
        assert!((0.0..=1.0).contains(&value), "{name}: {value}");
    }
    assert!(metric(&results, "coverage", 4) >= metric(&results, "best_of", 4));
    let first = &sandbox.samples("run")[0];
    let process_rewards = first["trajectories"][0]["process_rewards"].as_array().unwrap();
    assert_eq!(process_rewards.len(), 6, "one process reward per thought");
}

#[test]
fn reward_models_train_under_every_objective() {
    let sandbox = with_corpus();
    reasoner(&sandbox, &["--out", "latent"]).ok();
    // After three steps every answer is wrong, so all final labels are equal and no question is
    // kept.
    let sampling = ["--model", "latent", "--data", "train.json", "--limit", "2", "--threads", "1"];
    let labels = [
        "annotate",
        "--samples",
        "2",
        "--labels",
        "final",
        "--max-new-tokens",
        "4",
        "--out",
        "labels",
    ];
    sandbox.run(&[&labels[..], &sampling].concat()).refused(&["no labels in"]);
    let reward_args = ["--model", "latent", "--annotations", "labels", "--out", "rm"];
    train(&sandbox, "reward", &reward_args).refused(&["labels", "nothing to learn from"]);

    train(
        &sandbox,
        "reward",
        &["--model", "latent", "--out", "rm-none", "--objective", "untrained", "--head", "linear"],
    )
    .ok();
    let eval = [
        "eval",
        "--samples",
        "2",
        "--reward-model",
        "rm-none",
        "--max-new-tokens",
        "4",
        "--out",
        "run",
    ];
    sandbox.run(&[&eval[..], &sampling].concat()).ok();
    train(&sandbox, "reward", &["--model", "latent", "--out", "rm-more"])
        .refused(&["--annotations"]);
}

#[test]
fn training_resumes_only_on_request() {
    let sandbox = with_corpus();
    reasoner(&sandbox, &["--out", "model-a"]).ok();
    let before = sandbox.snapshot("model-a");
    reasoner(&sandbox, &["--out", "model-a"]).refused(&["model-a", "--resume"]);
    reasoner(&sandbox, &["--out", "model-a", "--resume", "--lr", "5e-3"])
        .refused(&["state.safetensors", "written with different"]);
    assert_eq!(sandbox.snapshot("model-a"), before, "the existing model changed");
    reasoner(&sandbox, &["--out", "model-a", "--resume"]).ok();
    assert_eq!(log(&sandbox, "model-a").len(), 3, "a finished training was continued");
    sandbox.write("model-a/training/state.safetensors", b"what?");
    reasoner(&sandbox, &["--out", "model-a", "--resume"])
        .refused(&["state.safetensors", "corrupt"]);
}

#[test]
fn recomputed_activations_change_memory_alone() {
    let sandbox = with_corpus();
    let small = ["--dropout", "0.1", "--layers", "4", "--steps", "2"];
    let told = |more: &[&str]| reasoner(&sandbox, &[&small[..], more].concat()).ok().err;
    let bytes = |told: String| -> f64 {
        let (_, after) = told.split_once("activations about ").unwrap();
        after.split_once(" GB").unwrap().0.parse().unwrap()
    };
    let kept = bytes(told(&["--out", "kept"]));
    let recomputed = bytes(told(&["--out", "recomputed", "--recompute"]));
    assert!(recomputed < kept, "{recomputed} and {kept} GB");
    let weights = |out: &str| sandbox.read(&format!("{out}/model.safetensors"));
    assert_eq!(weights("kept"), weights("recomputed"));
    told(&["--out", "recomputed", "--resume"]);

    let bench = |more: &[&str]| {
        let tiny = ["--shape", "embedded", "--batch", "4", "--samples", "2", "--repeat", "1"];
        sandbox.run(&[&["bench", "--json", "--train"], more, &tiny].concat()).ok().json()
    };
    for target in ["reasoner", "reward"] {
        let (kept, recomputed) = (bench(&[target]), bench(&[target, "--recompute"]));
        assert_eq!(kept["loss"], recomputed["loss"], "{target}");
        assert!(kept["peak_memory"].as_u64().unwrap() > 0, "{kept}");
    }
    sandbox.run(&["bench", "--recompute"]).refused(&["--train"]);
}

#[test]
fn a_changed_optimizer_resumes_on_request() {
    let sandbox = with_corpus();
    reasoner(&sandbox, &["--out", "m", "--eval-every", "2", "--held-out", "train.json"]).ok();
    let again = ["--out", "m", "--resume", "--lr", "5e-3", "--held-out", "train.json"];
    reasoner(&sandbox, &again).refused(&["optimizer", "--change-optimizer"]);
    reasoner(&sandbox, &[&again[..], &["--change-optimizer"]].concat()).ok();
    reasoner(&sandbox, &["--out", "n", "--change-optimizer"]).refused(&["--resume"]);
    assert_eq!(sandbox.json("m/training/settings.json")["lr"], 5e-3);
}

#[test]
fn a_training_prints_progress_and_writes_a_report() {
    let sandbox = with_corpus();
    let evals = ["--eval-every", "2", "--held-out", "train.json", "--steps", "5"];
    for (out, keep) in [("models/a", "best"), ("models/b", "last")] {
        let more = [&evals[..], &["--out", out, "--keep", keep]].concat();
        let told = reasoner(&sandbox, &more).ok().err;
        for part in ["parameters", "activations about", "loss", "digits", "grad_norm", "tokens/s"] {
            assert!(told.contains(part), "no {part} in {told}");
        }
        let text = String::from_utf8(sandbox.read(&format!("{out}/training/evals.jsonl"))).unwrap();
        assert_eq!(text.lines().count(), 3, "after steps 2, 4 and 5: {text}");
        let last = text.lines().last().unwrap();
        assert!(last.contains("\"kept\":true"), "of equal models the last is kept: {text}");
        assert!(log(&sandbox, out).iter().all(|line| line.get("seconds").is_none()));
    }
    let written = sandbox.run(&["report", "models/a", "--json"]).ok().json();
    assert_eq!(written["page"], "models/a/training/report.html");
    assert_eq!(written["figures"].as_array().unwrap().len(), 6);
    let both = sandbox.run(&["report", "models/a", "models/b/training", "--page-only"]).ok();
    assert_eq!(both.out.trim(), "models/report/report.html");
    sandbox.run(&["report", "models/a", "models"]).refused(&["models/a/training", "models is not"]);
}

#[test]
fn several_data_sources_are_mixed() {
    let sandbox = with_corpus();
    let no_steps = r#"[{"question": "Two and two?", "answer": "4", "steps": [""]}]"#;
    sandbox.write("plain.json", no_steps.as_bytes());
    let mix = ["--data", "train.json:2", "--data", "plain.json:0.5", "--data", "corpus:1"];
    let run = |more: &[&str]| reasoner(&sandbox, &[&mix[..], more].concat());
    run(&["--out", "whole", "--steps", "4"]).ok();
    run(&["--out", "again", "--steps", "4"]).ok();
    assert_eq!(log(&sandbox, "whole").len(), 4);
    let weights = |out: &str| sandbox.read(&format!("{out}/model.safetensors"));
    assert_eq!(weights("whole"), weights("again"), "a mixture is not deterministic");
    reasoner(&sandbox, &["--data", "train.json", "--data", "corpus", "--out", "m"])
        .refused(&["corpus", "weight"]);
    reasoner(&sandbox, &["--data", "train.json:0", "--out", "m"]).refused(&["--data"]);
}

#[test]
fn invalid_training_requests_are_rejected() {
    let sandbox = with_corpus();
    reasoner(&sandbox, &[]).refused(&["--out"]);
    reasoner(&sandbox, &["--out", "m", "--steps", "0"]).refused(&["--steps"]);
    reasoner(&sandbox, &["--out", "m", "--batch", "0"]).refused(&["--batch"]);
    reasoner(&sandbox, &["--out", "m", "--dropout", "1.5"]).refused(&["--dropout"]);
    reasoner(&sandbox, &["--out", "m", "--heads", "5"]).refused(&["--width 32", "--heads 5"]);
    reasoner(&sandbox, &["--out", "m", "--data", "absent.json"]).refused(&["absent.json"]);
    reasoner(&sandbox, &["--out", "m", "--init", "absent"]).refused(&["absent"]);
    reasoner(&sandbox, &["--out", "m", "--context", "16"]).refused(&["positions", "16"]);
    reasoner(&sandbox, &["--out", "train.json/m"]).refused(&["train.json is a file", "--out"]);
    sandbox.model("narrow", &CheckpointSpec { width: 16, heads: 2, ..CheckpointSpec::default() });
    train(&sandbox, "reward", &["--model", "narrow", "--annotations", "nowhere", "--out", "rm"])
        .refused(&["nowhere holds no annotations", "`annotate` wrote"]);
    train(&sandbox, "reward", &["--model", "narrow", "--out", "rm"])
        .refused(&["--annotations DIR"]);
    assert!(!sandbox.path("rm").exists(), "a refused training leaves a directory");
    train(&sandbox, "reward", &["--model", "absent", "--out", "rm", "--objective", "untrained"])
        .refused(&["absent"]);
}

#[test]
fn reward_models_reject_thoughts_of_another_width() {
    let sandbox = with_corpus();
    reasoner(&sandbox, &["--out", "wide"]).ok();
    let labels = [
        "annotate",
        "--model",
        "wide",
        "--data",
        "train.json",
        "--limit",
        "1",
        "--samples",
        "2",
        "--labels",
        "final",
    ];
    let more = ["--max-new-tokens", "4", "--out", "labels"];
    // No question is kept, but the index is written.
    sandbox.run(&[&labels[..], &more].concat()).refused(&["no labels in"]);
    sandbox.model("narrow", &CheckpointSpec { width: 16, heads: 2, ..CheckpointSpec::default() });
    for flag in ["--annotations", "--held-out"] {
        let reward_args = ["--model", "narrow", "--out", "rm", flag, "labels"];
        train(&sandbox, "reward", &reward_args).refused(&["width 32", "16"]);
    }
    reasoner(&sandbox, &["--mode", "cot", "--out", "cot"]).ok();
    for (reference, why) in
        [("narrow", "width is 16"), ("cot", "no thoughts"), ("absent", "absent")]
    {
        let reward_args =
            ["--model", "wide", "--out", "rm", "--annotations", "labels", "--reference", reference];
        train(&sandbox, "reward", &reward_args).refused(&[reference, why]);
    }
    assert!(!sandbox.path("rm").exists(), "a rejected request wrote files");
}

#[test]
fn a_training_explains_itself() {
    let sandbox = with_corpus();
    sandbox.run(&["corpus", "--split", "valid", "--count", "4", "--out", "valid.json"]).ok();
    let flags = ["--mode", "cot", "--held-out", "valid.json", "--eval-every", "2", "--steps", "4"];
    let out = ["--preset", "tiny", "--out", "models/cot"];
    let done = reasoner(&sandbox, &[&flags[..], &out].concat()).ok();
    for words in [
        "of disk space in models/cot/training",
        "the first step may take longer",
        "estimated time for 4 steps: ",
        "% of 4 held-out problems correct (95% CI ",
    ] {
        assert!(done.err.contains(words), "no {words:?} in {}", done.err);
    }
    assert!(!done.err.contains("cannot plot"), "{}", done.err);
    assert!(done.out.contains("learning curves: models/cot/training/report.html"));
    let next =
        "next: latent-tts train reasoner --preset tiny --mode latent --init models/cot --data";
    assert!(done.out.contains(next), "{}", done.out);
    let page = String::from_utf8(sandbox.read("models/cot/training/report.html")).unwrap();
    assert!(page.contains("Training of cot"));
}

#[test]
fn a_reward_model_of_the_embedded_reasoner_is_trained() {
    let sandbox = CliSandbox::new();
    let labels = ["annotate", "--data", "embedded:train:5..37", "--labels", "final", "-n", "4"];
    let done = sandbox.run(&[&labels[..], &["--out", "labels"]].concat()).ok();
    let next = "next: latent-tts train reward --model embedded --annotations labels";
    assert!(done.out.contains(next), "{}", done.out);
    let flags = ["--model", "embedded", "--annotations", "labels", "--out", "rm", "--steps", "1"];
    let done = train(&sandbox, "reward", &[&flags[..], &["--batch", "2"]].concat()).ok();
    assert!(done.out.contains("next: latent-tts eval --model embedded --reward-model rm"));
    assert!(done.err.contains("pass --held-out"), "{}", done.err);
    let eval = ["eval", "--reward-model", "rm", "--limit", "1", "--samples", "2", "--no-report"];
    sandbox.run(&eval).ok();
    let reference = ["--reference", "reasoner", "--out", "rm-2"];
    train(&sandbox, "reward", &[&flags[..4], &reference[..], &["--steps", "1"]].concat()).ok();
}

#[test]
fn a_damaged_state_and_changed_inputs_are_refused() {
    let sandbox = with_corpus();
    let args = ["--out", "m", "--held-out", "train.json"];
    reasoner(&sandbox, &args).ok();
    let resumed = || reasoner(&sandbox, &[&args[..], &["--resume"]].concat());
    let (state, model) = ("m/training/state.safetensors", "m/model.safetensors");
    let [whole, weights] = [state, model].map(|file| sandbox.read(file));
    // A missing model is restored from its training state.
    std::fs::remove_file(sandbox.path(model)).unwrap();
    resumed().ok();
    assert_eq!(sandbox.read(model), weights);
    let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let steps = String::from_utf8_lossy(&whole[..header]).find("steps").unwrap() + 8;
    for at in [whole.len() - 1, whole.len() / 2, 8 + header, steps] {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        sandbox.write(state, flipped);
        let refused = resumed();
        assert_eq!(refused.code, Some(2), "byte {at}: {}", refused.err);
        assert!(refused.err.contains("state.safetensors"), "{}", refused.err);
    }
    sandbox.write(state, whole);
    resumed().ok();
    let data = sandbox.read("train.json");
    sandbox.run(&["corpus", "--count", "11", "--out", "train.json"]).ok();
    resumed().refused(&["changed since training started", "--out"]);
    sandbox.write("train.json", data);
    resumed().ok();
}

#[test]
fn a_training_has_one_writer() {
    let sandbox = with_corpus();
    let held = record::files::DirLock::exclusive(&sandbox.path("m")).unwrap();
    reasoner(&sandbox, &["--out", "m"]).refused(&["m is being written", "another process"]);
    drop(held);
    std::fs::create_dir_all(sandbox.path("m/training")).unwrap();
    for stray in ["m/model.safetensors.1.tmp", "m/training/state.safetensors.77.tmp"] {
        sandbox.write(stray, "half");
    }
    reasoner(&sandbox, &["--out", "m"]).ok();
    let left = sandbox.snapshot("m");
    assert!(left.iter().all(|(path, _)| path.extension().is_none_or(|end| end != "tmp")));
    sandbox.write("file", "");
    let refused = reasoner(&sandbox, &["--out", "file"]).refused(&["file is a file", "--out"]);
    assert!(!refused.err.contains("os error"), "{}", refused.err);
}

/// The flags of earlier versions are hidden aliases of the new ones.
#[test]
fn earlier_flags_are_accepted() {
    let sandbox = with_corpus();
    let names = [
        ("--removal", "--curriculum", "stages"),
        ("--rise", "--curriculum-end", "0.5"),
        ("--ahead", "--no-cot-fraction", "0.2"),
        ("--mixed", "--uniform-stage-prob", "0.3"),
        ("--digits", "--digit-loss-weight", "0.1"),
        ("--floor", "--min-lr-ratio", "0.2"),
    ];
    let flags = |earlier: bool| -> Vec<&str> {
        let flag = |(old, new, value)| [if earlier { old } else { new }, value];
        names.into_iter().flat_map(flag).collect()
    };
    reasoner(&sandbox, &[&["--out", "old"], &flags(true)[..]].concat()).ok();
    reasoner(&sandbox, &[&["--out", "new"], &flags(false)[..]].concat()).ok();
    let settings = |out: &str| sandbox.json(&format!("{out}/training/settings.json"));
    assert_eq!(settings("old"), settings("new"));
    assert_eq!(settings("new")["min_lr_ratio"], 0.2);
    let help = sandbox.run(&["train", "reasoner", "--help"]).ok().out;
    assert!(help.contains("--curriculum-end") && !help.contains("--rise"), "{help}");
}

/// The default batch of 512 problems would repeat a few annotated problems many times.
#[test]
fn a_batch_has_no_more_problems_than_there_are() {
    let sandbox = CliSandbox::new();
    let labels = ["annotate", "--data", "embedded:train:5..37", "--labels", "final", "-n", "4"];
    let annotated = sandbox.run(&[&labels[..], &["--out", "labels", "--json"]].concat()).ok();
    let problems = annotated.json()["kept"].as_u64().unwrap();
    let flags = ["--model", "embedded", "--annotations", "labels", "--out", "rm", "--steps", "1"];
    let done = train(&sandbox, "reward", &[&flags[..], &["--batch", "512"]].concat()).ok();
    let told = format!("only {problems} annotated problems: using --batch {problems}");
    assert!(done.err.contains(&told), "{}", done.err);
    assert_eq!(log(&sandbox, "rm")[0]["n_examples"], problems);
}
