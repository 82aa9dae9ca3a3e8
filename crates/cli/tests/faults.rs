//! Faults of disks, files and processes: nothing is lost and nothing passes silently.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::fs;

use model::testkit::{CheckpointFamily, CheckpointSpec};
use serde_json::{Value, json};
use support::CliSandbox;

/// The bytes of a safetensors file after its header.
fn values_of(file: &[u8]) -> &[u8] {
    let header = u64::from_le_bytes(file[..8].try_into().unwrap());
    &file[8 + header as usize..]
}

#[test]
fn latents_are_finished_from_what_is_there_or_refused() {
    let sandbox = CliSandbox::new();
    let (base, p) =
        (["--model", "model", "--data", "data.jsonl", "--threads", "1"], ["--p", "0.2"]);
    let sizes = ["--samples", "2", "--max-new-tokens", "4", "--quiet"];
    let eval = [&["eval"][..], &base, &sizes, &["--out", "run"]].concat();
    let sweep = [&["sweep"][..], &base, &sizes, &p, &["--out", "swept"]].concat();
    for (command, run) in [(eval, "run"), (sweep, "swept/dropout-0.2")] {
        let with = |more: &[&'static str]| sandbox.run(&[&command[..], more].concat());
        with(&["--latents"]).ok();
        let (done, part) = (format!("{run}/latents.safetensors"), format!("{run}/latents.part"));
        let whole = sandbox.read(&done);
        // The process ended after the last sample and before the file had its name.
        sandbox.write(&part, values_of(&whole));
        fs::remove_file(sandbox.path(&done)).unwrap();
        with(&["--resume"]).refused(&["latents.part", "keeps its thoughts", "--latents"]);
        with(&["--latents", "--resume"]).ok();
        assert_eq!(sandbox.read(&done), whole);
        assert!(!sandbox.path(&part).exists());
        // Cut, or nowhere.
        sandbox.write(&done, &whole[..whole.len() - 1]);
        with(&["--latents", "--resume"]).refused(&["latents.safetensors", "cut", "--overwrite"]);
        fs::remove_file(sandbox.path(&done)).unwrap();
        with(&["--latents", "--resume"]).refused(&["latents.safetensors", "missing", "--out"]);
    }
}

/// Changes a field of a model's config.json.
fn set_field(sandbox: &CliSandbox, model: &str, field: &str, value: Value) {
    let file = format!("{model}/config.json");
    let mut config = sandbox.json(&file);
    config[field] = value;
    sandbox.write(&file, config.to_string());
}

#[test]
fn sizes_beyond_any_memory_are_refused_by_name() {
    let sandbox = CliSandbox::new();
    let llama = CheckpointSpec { family: CheckpointFamily::LatentSft, ..CheckpointSpec::default() };
    let fields = [
        ("hidden_size", &llama),
        ("intermediate_size", &llama),
        ("num_attention_heads", &llama),
        ("head_dim", &llama),
        ("n_embd", &CheckpointSpec::default()),
    ];
    for (field, spec) in fields {
        for power in [18, 24, 30, 31] {
            sandbox.model("model", spec);
            set_field(&sandbox, "model", field, json!(1_u64 << power));
            let eval = sandbox.eval(&["--out", "run"]);
            // A size that is read is not that of the tensors.
            let words = if power <= 24 { &["model"][..] } else { &["config.json", field] };
            eval.refused(words);
        }
    }
    sandbox.model("model", &CheckpointSpec::default());
    sandbox.eval(&["--seeds", "4294967295"]).refused(&["--seeds", "100000"]);
    let shape = ["train", "reasoner", "--out", "new", "--steps", "1", "--threads", "1"];
    for (flag, value) in [
        ("--batch", "100000000000"),
        ("--width", "100000000"),
        ("--held-out-count", "20000000000"),
        ("--layers", "2000"),
        ("--lora", "1000000000000000000"),
    ] {
        sandbox.run(&[&shape[..], &[flag, value]].concat()).refused(&[flag, value]);
    }
    // Each is allowed, all of them are too much.
    let large = ["--width", "262144", "--heads", "1", "--layers", "1024"];
    sandbox.run(&[&shape[..], &large].concat()).refused(&["free", "--width", "--layers"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_machine_without_memory_is_told() {
    let sandbox = CliSandbox::new();
    let binary = env!("CARGO_BIN_EXE_latent-tts");
    let mut refused = 0;
    for kilobytes in (60_000..400_000).step_by(20_000) {
        let command = format!(
            "ulimit -v {kilobytes}; exec {binary} eval --model model --data data.jsonl --quiet \
             --threads 2 --samples 4 --out run-{kilobytes}"
        );
        let mut shell = std::process::Command::new("sh");
        let output = shell.arg("-c").arg(command).current_dir(sandbox.path("")).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(0) => break,
            code => assert_eq!(code, Some(2), "{kilobytes} kB: {error}"),
        }
        refused += 1;
    }
    assert!(refused > 0, "sixty megabytes are not enough");
}

#[test]
fn numbers_that_are_not_finite_are_refused_before_a_training() {
    let sandbox = CliSandbox::new();
    let reasoner = ["train", "reasoner", "--out", "new"];
    let reward = ["train", "reward", "--model", "model", "--annotations", "a", "--out", "new"];
    let both = [
        ("--lr", &["nan", "inf", "0", "-1", "1e39"][..]),
        ("--clip", &["nan", "inf", "-1"]),
        ("--floor", &["nan", "2", "1e30", "-0.1"]),
        ("--weight-decay", &["nan", "inf", "-1"]),
        ("--beta2", &["nan", "1", "5", "-0.1"]),
        ("--digits", &["nan", "inf", "-1"]),
        ("--max-loss-ratio", &["nan", "inf", "-1"]),
    ];
    let late = ("--late", &["nan", "inf", "-1"][..]);
    for (flag, values) in both.into_iter().chain([late]) {
        for value in values {
            let flag_value = format!("{flag}={value}");
            sandbox.run(&[&reward[..], &[&flag_value]].concat()).refused(&[flag, value]);
            if flag != "--late" {
                sandbox.run(&[&reasoner[..], &[&flag_value]].concat()).refused(&[flag, value]);
            }
        }
    }
    assert!(!sandbox.path("new").exists());
}

#[test]
fn threads_and_texts_have_limits() {
    let sandbox = CliSandbox::new();
    sandbox.eval(&["--threads", "2000"]).refused(&["2000", "threads", "--threads"]);
    let long = format!("{{\"question\": \"{}\", \"answer\": \"1\"}}\n", "a ".repeat(600_000));
    let short = "{\"question\": \"What is 1 plus 1?\", \"answer\": \"2\"}\n";
    sandbox.write("data.jsonl", format!("{short}{long}"));
    sandbox.eval(&["--out", "run"]).refused(&["question 1", "bytes of text", "--too-long skip"]);
    let skipped = sandbox.eval(&["--out", "run", "--too-long", "skip"]).ok();
    assert!(skipped.err.contains("skipped 1 question of 2"), "{}", skipped.err);
}

/// Sets the first element of a tensor of a safetensors file.
fn set_first_element(sandbox: &CliSandbox, file: &str, tensor: &str, value: f32) {
    let mut bytes = sandbox.read(file);
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let start = 8 + header + tensors[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    match tensors[tensor]["dtype"].as_str().unwrap() {
        "F32" => bytes[start..start + 4].copy_from_slice(&value.to_le_bytes()),
        other => panic!("{tensor} is {other}"),
    }
    sandbox.write(file, bytes);
}

#[test]
fn inspect_refuses_what_eval_refuses() {
    let sandbox = CliSandbox::new();
    let file = "model/model.safetensors";
    let bytes = sandbox.read(file);
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let tensors: serde_json::Map<String, Value> =
        serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let names = tensors.iter().filter(|(_, entry)| entry["dtype"] == "F32");
    let names: Vec<&String> = names.map(|(name, _)| name).collect();
    assert!(names.len() > 5, "{names:?}");
    for (name, value) in names.iter().step_by(3).zip([f32::NAN, f32::INFINITY].iter().cycle()) {
        sandbox.write(file, &bytes);
        set_first_element(&sandbox, file, name, *value);
        let [eval, inspect] = [sandbox.eval(&["--out", "run"]), sandbox.run(&["inspect", "model"])];
        assert_eq!((eval.code, inspect.code), (Some(2), Some(2)), "{name}: {}", inspect.err);
        assert!(
            inspect.err.contains(*name) && inspect.err.contains("element 0"),
            "{}",
            inspect.err
        );
        sandbox.run(&["inspect", "model", "--headers"]).ok();
    }
}
