//! Every training method through the command line, at a size that takes seconds: it trains, its log
//! contains the parts of its loss, the saved model answers, and a LoRA adapter can be used as
//! `--init` of another training and for a reward model.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use model::testkit::{CheckpointFamily, CheckpointSpec};
use serde_json::Value;
use support::{CliSandbox, CommandOutput};

/// A sandbox with ten problems and a tiny Llama.
fn sandbox() -> CliSandbox {
    let sandbox = CliSandbox::new();
    sandbox.run(&["corpus", "--split", "train", "--count", "10", "--out", "train.json"]).ok();
    let spec = CheckpointSpec {
        family: CheckpointFamily::Llama,
        context: 512,
        ..CheckpointSpec::default()
    };
    sandbox.model("llama", &spec);
    sandbox
}

fn train(sandbox: &CliSandbox, out: &str, more: &[&str]) -> CommandOutput {
    let base = [
        ["--data", "train.json"],
        ["--warmup", "10%"],
        ["--batch", "3"],
        ["--lr", "3e-3"],
        ["--threads", "2"],
        ["--steps", "3"],
    ];
    let base = base.into_iter().filter(|[flag, _]| !more.contains(flag)).flatten();
    let command = ["train", "reasoner", "--out", out].into_iter().chain(base);
    sandbox.run(&command.chain(more.iter().copied()).collect::<Vec<_>>())
}

/// The names of the losses in the first line of a training's log.
fn losses(sandbox: &CliSandbox, out: &str) -> Vec<String> {
    let text = String::from_utf8(sandbox.read(&format!("{out}/training/log.jsonl"))).unwrap();
    let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let parts = ["loss", "teacher", "distill", "steps", "digits", "latent"];
    parts.into_iter().filter(|part| line.get(part).is_some()).map(str::to_owned).collect()
}

/// Answers two questions with a model; returns its family.
#[track_caller]
fn answers(sandbox: &CliSandbox, model: &str) -> String {
    let eval = ["eval", "--model", model, "--data", "train.json", "--limit", "2", "--samples", "2"];
    let out = format!("runs-{}", model.replace('/', "-"));
    let results = sandbox.run(&[&eval[..], &["--out", &out, "--json"]].concat()).ok().json();
    assert_eq!(results["questions"], 2, "{results}");
    let inspected = sandbox.run(&["inspect", model, "--json"]).ok().json();
    inspected["family"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn every_method_trains_and_answers() {
    let sandbox = sandbox();
    let methods: [(&str, &[&str], &[&str], &str); 7] = [
        ("coconut", &["--digit-loss-weight", "0.1"], &["loss", "digits"], "coconut"),
        ("codi", &["--method", "codi"], &["loss", "teacher", "distill"], "codi"),
        (
            "simcot",
            &["--method", "codi", "--step-decoder", "1"],
            &["loss", "teacher", "distill", "steps"],
            "codi",
        ),
        (
            "simcot-coconut",
            &["--step-decoder", "1", "--digit-loss-weight", "0", "--curriculum-end", "0"],
            &["loss", "steps"],
            "coconut",
        ),
        ("colar", &["--method", "colar", "--latent-head", "24"], &["loss", "latent"], "colar"),
        ("latent-sft", &["--method", "latent-sft", "--ordered"], &["loss", "latent"], "latent-sft"),
        (
            "rot",
            &["--method", "rot", "--latent-head", "24", "--thoughts", "5"],
            &["loss", "latent"],
            "rot",
        ),
    ];
    for (name, flags, parts, family) in methods {
        let out = format!("models/{name}");
        train(&sandbox, &out, &[&["--init", "llama"], flags].concat()).ok();
        assert_eq!(losses(&sandbox, &out), parts, "{name}");
        assert_eq!(answers(&sandbox, &out), family, "{name}");
    }
}

#[test]
fn adapters_train_answer_and_can_be_continued() {
    let sandbox = sandbox();
    let lora = ["--method", "codi", "--lora", "4", "--lora-alpha", "8"];
    let dropout = ["--lora-dropout", "0.1", "--lora-targets", "q_proj,v_proj"];
    let told =
        train(&sandbox, "models/first", &[&["--init", "llama"], &lora[..]].concat()).ok().err;
    assert!(told.contains("(trained"), "{told}");
    for file in ["adapter_model.safetensors", "adapter_config.json", "heads.safetensors"] {
        assert!(sandbox.path("models/first").join(file).is_file(), "no {file}");
    }
    assert!(!sandbox.path("models/first/model.safetensors").exists());
    assert_eq!(answers(&sandbox, "models/first"), "codi");
    // An adapter can be trained further, and keeps its base.
    train(&sandbox, "models/second", &[&["--init", "models/first"], &lora[..]].concat()).ok();
    let base = |dir: &str| {
        let text = sandbox.read(&format!("{dir}/adapter_config.json"));
        serde_json::from_slice::<Value>(&text).unwrap()["base_model_name_or_path"].clone()
    };
    assert_eq!(base("models/first"), base("models/second"));
    assert_eq!(answers(&sandbox, "models/second"), "codi");
    let flags = [&["--init", "llama"], &lora[..], &dropout].concat();
    train(&sandbox, "models/dropout", &flags).ok();
    assert_eq!(answers(&sandbox, "models/dropout"), "codi");
    // An adapter without its base is an error that names it.
    std::fs::rename(sandbox.path("llama"), sandbox.path("moved")).unwrap();
    sandbox.run(&["inspect", "models/first"]).refused(&["base model", "llama"]);
}

#[test]
fn flags_that_do_not_fit_together_are_refused() {
    let sandbox = sandbox();
    for (flags, expected) in [
        (&["--lora", "4"][..], "--init"),
        (&["--method", "codi", "--mode", "cot"], "--mode"),
        (&["--method", "colar", "--step-decoder", "1", "--init", "llama"], "--step-decoder"),
        (&["--method", "colar"], "pretrained"),
        (&["--method", "latent-sft", "--mode", "cot"], "--method latent-sft only supports"),
        (&["--method", "rot", "--step-decoder", "1"], "--step-decoder"),
        (&["--method", "rot", "--thoughts", "300"], "positions"),
        (&["--method", "codi", "--compression", "2"], "latent-sft and rot"),
        (&["--method", "colar", "--compression", "2"], "--max-speed"),
        (&["--ordered"], "several tokens"),
        (&["--warmup", "300%"], "percentage"),
    ] {
        train(&sandbox, "models/none", flags).refused(&[expected]);
    }
}
