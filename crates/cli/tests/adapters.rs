//! Adapters on the command line: how their base is found, stacked adapters, and a reward model that
//! is an adapter on the reasoner whose thoughts it scores.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::fs;

use model::testkit::{CheckpointFamily, CheckpointSpec, GgmlType, GgufContent};
use serde_json::{Value, json};
use support::{CliSandbox, CommandOutput};

/// A sandbox with ten problems and a tiny Llama in `base.gguf`.
fn sandbox() -> CliSandbox {
    let sandbox = CliSandbox::new();
    sandbox.run(&["corpus", "--split", "train", "--count", "10", "--out", "train.json"]).ok();
    let family = CheckpointFamily::Llama;
    let spec = CheckpointSpec { family, context: 512, ..CheckpointSpec::default() };
    let dir = sandbox.model("llama", &spec);
    let content = GgufContent::from_directory(&dir, GgmlType::F16).unwrap();
    content.write(&sandbox.path("base.gguf")).unwrap();
    sandbox
}

const LORA: [&str; 6] = ["--method", "codi", "--lora", "4", "--lora-alpha", "8"];

fn train(sandbox: &CliSandbox, out: &str, more: &[&str]) -> CommandOutput {
    let few = ["--data", "train.json", "--batch", "3", "--steps", "3", "--warmup", "1"];
    let command = ["train", "reasoner", "--out", out, "--lr", "3e-3", "--threads", "2"];
    sandbox.run(&[&command[..], &few, more].concat())
}

/// The samples of a small eval, without paths and times.
#[track_caller]
fn samples(sandbox: &CliSandbox, out: &str, models: &[&str]) -> Vec<Value> {
    let eval = ["eval", "--data", "train.json", "--limit", "2", "--samples", "4", "--out", out];
    sandbox.run(&[&eval[..], &["--max-new-tokens", "6", "--no-report"], models].concat()).ok();
    sandbox.samples(out)
}

#[test]
fn a_missing_base_is_reported_with_a_way_to_get_it() {
    let sandbox = sandbox();
    let published =
        ["--base-id", "someone/tiny/base.gguf", "--base-source", "unzip the wheel of the tests"];
    train(&sandbox, "one", &[&["--init", "base.gguf"], &LORA[..], &published].concat()).ok();
    let record = sandbox.json("one/base.json");
    assert_eq!(record["path"], "../base.gguf");
    assert_eq!(record["id"], "someone/tiny/base.gguf");
    assert_eq!(record["digest"].as_str().unwrap().len(), 16);
    assert_eq!(record["shapes"]["layers.*.self_attn.q_proj.weight"], json!([32, 32]));
    let config = sandbox.json("one/adapter_config.json");
    assert_eq!(config["base_model_name_or_path"], "someone/tiny/base.gguf");
    let expected = samples(&sandbox, "runs/beside", &["--model", "one"]);

    // Missing: a one-line error that says how to get the base.
    fs::rename(sandbox.path("base.gguf"), sandbox.path("hidden.gguf")).unwrap();
    let way = ["someone/tiny/base.gguf", "unzip the wheel of the tests", "--base"];
    sandbox.run(&["inspect", "one"]).refused(&way);
    sandbox.run(&["solve", "--model", "one", "1 + 1?"]).refused(&way);
    // Passed as `--base`.
    let flags = ["--model", "one", "--base", "hidden.gguf"];
    assert_eq!(samples(&sandbox, "runs/given", &flags), expected);
    let inspected = sandbox.run(&["inspect", "one", "--base", "hidden.gguf", "--json"]).ok().json();
    assert_eq!(inspected["base"], "hidden.gguf");
    let refused = sandbox.run(&["solve", "--model", "llama", "--base", "hidden.gguf", "1?"]);
    refused.refused(&["no model is an adapter", "--base"]);
    // In the Hugging Face cache.
    let repo = sandbox.path("hf/hub/models--someone--tiny");
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::create_dir_all(repo.join("snapshots/123")).unwrap();
    fs::write(repo.join("refs/main"), "123").unwrap();
    fs::rename(sandbox.path("hidden.gguf"), repo.join("snapshots/123/base.gguf")).unwrap();
    assert_eq!(samples(&sandbox, "runs/cached", &["--model", "one"]), expected);
    // Another base of the same shape causes a warning.
    let spec = CheckpointSpec {
        family: CheckpointFamily::Llama,
        context: 512,
        seed: 5,
        ..CheckpointSpec::default()
    };
    sandbox.model("other", &spec);
    let told = sandbox.run(&["inspect", "one", "--base", "other"]).ok();
    assert_eq!(told.err.matches("warning: one: the adapter was trained on other").count(), 1);
    let quiet = sandbox.run(&["inspect", "one", "--base", "other", "--quiet"]).ok();
    assert_eq!(quiet.err, "");
}

#[test]
fn an_adapter_is_continued_or_stacked_on_another() {
    let sandbox = sandbox();
    train(&sandbox, "one", &[&["--init", "base.gguf"], &LORA[..]].concat()).ok();
    let next = |out: &str, more: &[&str]| {
        train(&sandbox, out, &[&["--init", "one"], &LORA[..], more].concat()).ok();
        let record = sandbox.json(&format!("{out}/base.json"));
        (record["path"].as_str().unwrap().to_owned(), record["adapter"] == true)
    };
    assert_eq!(next("continued", &[]), ("../base.gguf".to_owned(), false));
    assert_eq!(next("over", &["--adapter", "over"]), ("../one".to_owned(), true));
    // With any rank.
    let other = ["--init", "one", "--method", "codi", "--lora", "2", "--adapter", "over"];
    train(&sandbox, "narrow", &other).ok();
    assert_eq!(sandbox.json("narrow/adapter_config.json")["r"], 2);
    for model in ["continued", "over", "narrow"] {
        samples(&sandbox, &format!("runs/{model}"), &["--model", model]);
        let inspected = sandbox.run(&["inspect", model, "--json"]).ok().json();
        assert_eq!(inspected["family"], "codi");
    }
}

/// The reasoner is an adapter on a GGUF file, the reward model is an adapter on the reasoner, and
/// its reference reasoner is the reasoner itself.
#[test]
fn a_reward_model_is_an_adapter_over_its_reasoner() {
    let sandbox = sandbox();
    fs::create_dir(sandbox.path("kit")).unwrap();
    fs::rename(sandbox.path("base.gguf"), sandbox.path("kit/base.gguf")).unwrap();
    train(&sandbox, "kit/reasoner", &[&["--init", "kit/base.gguf"], &LORA[..]].concat()).ok();
    let reward = |out: &str, more: &[&str]| {
        let command = ["train", "reward", "--model", "kit/reasoner", "--out", out, "--lora", "2"];
        let flags = ["--reads-answers", "--objective", "untrained", "--threads", "2"];
        sandbox.run(&[&command[..], &flags, more].concat()).ok()
    };
    reward("kit/judge", &["--reference", "reasoner"]);
    reward("kit/copied", &["--reference", "kit/reasoner"]);
    reward("kit/plain", &["--reference", "none"]);
    assert_eq!(sandbox.json("kit/judge/base.json")["path"], "../reasoner");
    let recorded = sandbox.json("kit/judge/config.json")["latent_tts"]["reference"].clone();
    assert_eq!(recorded["path"], "../reasoner");
    assert!(!sandbox.path("kit/judge/reference").exists());
    assert!(sandbox.path("kit/copied/reference").is_dir());
    assert!(!sandbox.path("kit/judge/model.safetensors").exists());

    let models = |kit: &str, judge: &str| {
        let run = format!("runs/{kit}-{judge}");
        let (model, judge) = (format!("{kit}/reasoner"), format!("{kit}/{judge}"));
        let named = ["--model", &model, "--reward-model", &judge];
        samples(&sandbox, &run, &named)
    };
    let expected = models("kit", "judge");
    assert!(expected[0].to_string().contains("reward"), "{}", expected[0]);
    assert_eq!(models("kit", "copied"), expected, "a copy of the reference gives the same rewards");
    assert_ne!(models("kit", "plain"), expected, "the reference reasoner affects the rewards");
    let inspected = sandbox.run(&["inspect", "kit/judge"]).ok().out;
    assert!(inspected.contains("reference") && inspected.contains("reasoner"), "{inspected}");
    // Moving the whole directory gives bit-identical results.
    fs::rename(sandbox.path("kit"), sandbox.path("shipped")).unwrap();
    assert_eq!(models("shipped", "judge"), expected);
    assert_eq!(models("shipped", "copied"), expected);
    // With another reasoner, the reference is loaded from its recorded path, and missing if moved.
    let codi = ["--init", "shipped/base.gguf", "--seed", "3"];
    train(&sandbox, "other", &[&codi, &LORA[..]].concat()).ok();
    samples(&sandbox, "runs/other", &["--model", "other", "--reward-model", "shipped/judge"]);
    let path = sandbox.path("shipped/judge/config.json");
    let mut config = sandbox.json("shipped/judge/config.json");
    config["latent_tts"]["reference"]["path"] = json!("../nowhere");
    fs::write(path, config.to_string()).unwrap();
    let missed = ["solve", "--model", "other", "--reward-model", "shipped/judge", "1 + 1?"];
    sandbox.run(&missed).refused(&["nowhere", "reference reasoner"]);
}
