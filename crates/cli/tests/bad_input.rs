//! Invalid input: one message that names the file and the problem, exit code 2, no file changed.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::path::Path;

use model::testkit::{CheckpointFamily, CheckpointSpec};
use serde_json::Value;
use support::{CliSandbox, CommandOutput};

/// A finished run that must not be changed by an eval with `--overwrite` and bad input.
struct GuardedRun {
    sandbox: CliSandbox,
    before: Vec<(std::path::PathBuf, Vec<u8>)>,
}

impl GuardedRun {
    fn new() -> Self {
        let sandbox = CliSandbox::new();
        sandbox.eval(&["--out", "run", "--limit", "1"]).ok();
        let before = sandbox.snapshot("run");
        Self { sandbox, before }
    }

    #[track_caller]
    fn refuses(&self, more: &[&str], words: &[&str]) -> CommandOutput {
        let done =
            self.sandbox.eval(&[&["--out", "run", "--overwrite"], more].concat()).refused(words);
        assert_eq!(self.sandbox.snapshot("run"), self.before, "the existing run changed");
        done
    }

    /// The header of the model's safetensors file, and the data after it.
    fn weights(&self) -> (Value, Vec<u8>) {
        let bytes = self.sandbox.read("model/model.safetensors");
        let size = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        (serde_json::from_slice(&bytes[8..8 + size]).unwrap(), bytes[8 + size..].to_vec())
    }

    fn write_weights(&self, header: &Value, data: &[u8]) {
        let header = header.to_string();
        let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
        self.sandbox.write("model/model.safetensors", bytes);
    }

    /// Edits a JSON file of the sandbox.
    fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut value = self.sandbox.json(name);
        change(&mut value);
        self.sandbox.write(name, value.to_string());
    }
}

#[test]
fn truncated_weights_are_rejected() {
    let guarded = GuardedRun::new();
    let bytes = guarded.sandbox.read("model/model.safetensors");
    for length in [bytes.len() - 1, bytes.len() / 2, 100, 8, 3, 0] {
        guarded.sandbox.write("model/model.safetensors", &bytes[..length]);
        let done = guarded.refuses(&[], &["model.safetensors"]);
        assert!(
            ["truncated", "Invalid", "empty", "header"].iter().any(|word| done.err.contains(word)),
            "{}",
            done.err
        );
        guarded.sandbox.run(&["inspect", "model"]).refused(&["model.safetensors"]);
    }
}

#[test]
fn flipped_header_bits_do_not_crash() {
    let guarded = GuardedRun::new();
    let bytes = guarded.sandbox.read("model/model.safetensors");
    let size = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for i in 0..24 {
        let mut damaged = bytes.clone();
        // The eight bytes of the header length, then positions spread over the header.
        let at = if i < 8 { i } else { 8 + (i - 8) * size / 16 };
        damaged[at] ^= 1 << (i % 8);
        guarded.sandbox.write("model/model.safetensors", &damaged);
        let done = guarded.sandbox.eval(&["--out", "other", "--overwrite", "--limit", "1"]);
        // A flipped bit in a space or in the metadata may be harmless; a crash is not allowed.
        assert!(matches!(done.code, Some(0 | 2)), "flip {i}: {:?} {}", done.code, done.err);
        if done.code == Some(2) {
            done.refused(&["model"]);
        }
    }
}

#[test]
fn an_oversized_header_is_rejected() {
    let guarded = GuardedRun::new();
    let mut bytes = guarded.sandbox.read("model/model.safetensors");
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    guarded.sandbox.write("model/model.safetensors", bytes);
    guarded.refuses(&[], &["model.safetensors", "header"]);
}

#[test]
fn shape_mismatches_are_rejected() {
    let guarded = GuardedRun::new();
    let (mut header, data) = guarded.weights();
    let name = header
        .as_object()
        .unwrap()
        .keys()
        .find(|name| name.ends_with("attn.c_attn.weight"))
        .unwrap()
        .clone();
    let shape = header[&name]["shape"].clone();
    header[&name]["shape"] = serde_json::json!([shape[1], shape[0]]);
    guarded.write_weights(&header, &data);
    guarded.refuses(&[], &["model.safetensors", &name, "shape"]);
    let done = guarded.sandbox.run(&["inspect", "model"]);
    assert_eq!(done.code, Some(2), "{}", done.out);
    assert!(
        done.err.contains(&name) && done.out.contains("1 mismatched"),
        "{}{}",
        done.err,
        done.out
    );
}

#[test]
fn missing_tensors_are_rejected() {
    let guarded = GuardedRun::new();
    let (mut header, data) = guarded.weights();
    let renamed = header.as_object_mut().unwrap();
    let info = renamed.remove("transformer.h.1.ln_2.weight").unwrap();
    renamed.insert("transformer.h.1.ln_9.weight".to_owned(), info);
    guarded.write_weights(&header, &data);
    guarded.refuses(&[], &["model", "h.1.ln_2.weight"]);
    let done = guarded.sandbox.run(&["inspect", "model", "--json"]);
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert_eq!(done.json()["tensors"]["missing"][0]["name"], "h.1.ln_2.weight");
    assert_eq!(done.json()["tensors"]["unknown"][0]["original"], "transformer.h.1.ln_9.weight");
}

#[test]
fn inspect_lists_every_missing_tensor_of_decoder_and_heads() {
    let sandbox = CliSandbox::new();
    let spec = CheckpointSpec { family: CheckpointFamily::CodiGpt2, ..CheckpointSpec::default() };
    sandbox.model("model", &spec);
    let removed = [
        "transformer.h.0.ln_1.weight",
        "projector.3.weight",
        "projector.4.weight",
        "projector.4.bias",
    ];
    let bytes = sandbox.read("model/model.safetensors");
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    for name in removed {
        let entries = header.as_object_mut().unwrap();
        let full = entries.keys().find(|key| key.ends_with(name)).unwrap().clone();
        let info = entries.remove(&full).unwrap();
        entries.insert(format!("{full}.unused"), info);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let prefix = (header.len() as u64).to_le_bytes();
    let whole = [&prefix, &header[..], &bytes[8 + length..]].concat();
    sandbox.write("model/model.safetensors", whole);
    let done = sandbox.run(&["inspect", "model", "--json"]);
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert!(
        done.err.contains("4 tensors are missing"),
        "{} {}",
        done.err,
        done.json()["tensors"]["missing"]
    );
    let listed = done.json()["tensors"]["missing"].clone();
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().filter_map(|entry| entry["name"].as_str()).collect();
    let expected =
        ["h.0.ln_1.weight", "projector.3.weight", "projector.4.bias", "projector.4.weight"];
    assert_eq!(names, expected);
}

#[test]
fn nan_weights_are_rejected() {
    let guarded = GuardedRun::new();
    let (header, mut data) = guarded.weights();
    let middle = data.len() / 8 * 4;
    data[middle..middle + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    guarded.write_weights(&header, &data);
    guarded.refuses(&[], &["model.safetensors", "NaN", "tensor"]);
    guarded.sandbox.run(&["inspect", "model", "--headers"]).ok();
    assert_eq!(guarded.sandbox.run(&["inspect", "model"]).code, Some(2));
}

#[test]
fn invalid_configs_are_rejected() {
    let guarded = GuardedRun::new();
    let good = guarded.sandbox.read("model/config.json");
    for (field, value) in [
        ("n_head", serde_json::json!(0)),
        ("n_layer", serde_json::json!(-1)),
        ("n_embd", serde_json::json!("x")),
    ] {
        guarded.edit("model/config.json", |config| config[field] = value);
        guarded.refuses(&[], &["config.json", field]);
        guarded.sandbox.write("model/config.json", &good);
    }
    guarded.sandbox.write("model/config.json", b"{\"model_type\": \"gpt2\xff\"}");
    guarded.refuses(&[], &["config.json", "UTF-8"]);
    guarded.sandbox.write("model/config.json", "{\"model_type\": ");
    guarded.refuses(&[], &["config.json", "json"]);
    std::fs::remove_file(guarded.sandbox.path("model/config.json")).unwrap();
    guarded.refuses(&[], &["model", "config.json"]);
}

#[test]
fn pickled_weights_are_rejected() {
    let guarded = GuardedRun::new();
    std::fs::rename(
        guarded.sandbox.path("model/model.safetensors"),
        guarded.sandbox.path("model/pytorch_model.bin"),
    )
    .unwrap();
    guarded.refuses(&[], &["pytorch_model.bin", "pickle", "safetensors"]);
}

#[test]
fn a_tokenizer_without_the_latent_token_is_rejected() {
    let guarded = GuardedRun::new();
    let name = "<|start-latent|>";
    let rename = |text: Vec<u8>| String::from_utf8(text).unwrap().replace(name, "<|other|>");
    for file in ["model/tokenizer.json", "model/tokenizer_config.json"] {
        guarded.sandbox.write(file, rename(guarded.sandbox.read(file)));
    }
    guarded.edit("model/config.json", |config| config["latent_start_id"] = serde_json::json!(-1));
    guarded.refuses(&["--method", "coconut"], &["model", name]);
    guarded.refuses(&[], &["model", "--method"]);
}

#[test]
fn a_damaged_tokenizer_is_rejected() {
    let guarded = GuardedRun::new();
    for content in [&b"{}"[..], b"{\"model\":", b"\xff\xfe", b""] {
        guarded.sandbox.write("model/tokenizer.json", content);
        guarded.refuses(&[], &["tokenizer.json"]);
    }
}

#[test]
fn incompatible_reward_models_are_rejected() {
    let guarded = GuardedRun::new();
    guarded.sandbox.model(
        "wide",
        &CheckpointSpec {
            family: CheckpointFamily::RewardGpt2,
            width: 64,
            ..CheckpointSpec::default()
        },
    );
    guarded.refuses(&["--reward-model", "wide"], &["wide", "64", "32"]);
    guarded.refuses(&["--reward-model", "model"], &["model", "not a reward model"]);
    guarded.sandbox.reward_model("latent-rm");
    guarded.refuses(&["--model", "latent-rm"], &["latent-rm", "--reward-model"]);
    // The same width, but a vocabulary too small for the reasoner's latent markers.
    guarded.sandbox.model(
        "codi",
        &CheckpointSpec { family: CheckpointFamily::CodiLlama, ..CheckpointSpec::default() },
    );
    let llama = ["--model", "codi", "--reward-model", "latent-rm"];
    guarded.refuses(&llama, &["question 0", "embeddings", "reward model"]);
}

#[test]
fn malformed_datasets_are_rejected() {
    let guarded = GuardedRun::new();
    let refuses = |content: &[u8], words: &[&str]| {
        guarded.sandbox.write("bad.jsonl", content);
        guarded.refuses(&["--data", "bad.jsonl"], &[&["bad.jsonl"], words].concat());
    };
    refuses(b"", &["no questions"]);
    refuses(b" \n \n", &["no questions"]);
    refuses(b"[]", &["no questions"]);
    refuses(b"{\"question\": \"1 + 1?\xff\", \"answer\": \"2\"}\n", &["line 1"]);
    refuses(b"\xff\xfe\x00garbage", &["UTF-8"]);
    refuses(
        b"{\"question\": \"a\", \"answer\": \"1\"}\n{\"question\": \"b\"}\n",
        &["line 2", "answer"],
    );
    refuses(b"{\"question\": \"a\", \"answer\": \"1\"}\n{\"question\": ", &["line 2"]);
    refuses(b"hello, world\n", &["hello"]);
    guarded.refuses(&["--data", "absent.jsonl"], &["absent.jsonl"]);
    guarded.refuses(&["--data", "model"], &["model"]);
}

#[test]
fn a_huge_garbage_line_gives_a_short_error() {
    let guarded = GuardedRun::new();
    for first in [&b"{\"question\": \""[..], b"[", b"x"] {
        let mut garbage = first.to_vec();
        garbage.resize(50 << 20, b'7');
        guarded.sandbox.write("huge", &garbage);
        let done = guarded.refuses(&["--data", "huge"], &["huge"]);
        assert!(done.err.len() < 2000, "the message repeats the file");
    }
}

#[test]
fn prompts_beyond_context_or_memory_are_rejected() {
    let guarded = GuardedRun::new();
    let long = format!("{{\"question\": \"{}\", \"answer\": \"1\"}}\n", "why? ".repeat(400));
    guarded
        .sandbox
        .write("long.jsonl", [guarded.sandbox.read("data.jsonl"), long.into_bytes()].concat());
    guarded.refuses(&["--data", "long.jsonl"], &["question 8", "1024"]);
    guarded.refuses(&["--memory", "1KiB"], &["question 0", "--memory"]);
    guarded.refuses(&["--thoughts", "100000"], &["question 0", "thoughts"]);
    assert!(!guarded.sandbox.path("runs").exists());
}

/// Root ignores permissions, so the path uses a file as a directory instead of an unwritable one.
#[test]
fn unwritable_output_directories_are_rejected() {
    let guarded = GuardedRun::new();
    guarded.sandbox.write("file", "not a folder");
    guarded.sandbox.eval(&["--out", "file/run"]).refused(&["file is a file", "--out"]);
    assert_eq!(guarded.sandbox.read("file"), b"not a folder");
    if Path::new("/proc/self").exists() {
        guarded
            .sandbox
            .eval(&["--out", "/proc/latent-tts"])
            .refused(&["/proc/latent-tts", "--out"]);
    }
}

/// A file size limit stops a write in the middle of a line, as a full disk does.
#[cfg(target_os = "linux")]
#[test]
fn a_write_cut_short_keeps_whole_lines() {
    let sandbox = CliSandbox::new();
    sandbox.eval(&["--out", "whole"]).ok();
    let blocks = (sandbox.read("whole/samples.jsonl").len() / 2 / 512).to_string();
    let limited = "trap '' XFSZ; ulimit -f \"$1\"; shift; exec \"$@\"";
    let inner = sandbox.command(&sandbox.eval_args(&["--out", "full"]));
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", limited, "sh", &blocks])
        .arg(inner.get_program())
        .args(inner.get_args())
        .current_dir(sandbox.path(""));
    support::command_output(command.output().unwrap()).refused(&["full/samples.jsonl", "--resume"]);
    let kept = sandbox.read("full/samples.jsonl");
    assert!(
        kept.ends_with(b"\n") && sandbox.read("whole/samples.jsonl").starts_with(&kept),
        "a partial line was kept"
    );
    sandbox.eval(&["--out", "full", "--resume"]).ok();
    assert_eq!(sandbox.read("full/samples.jsonl"), sandbox.read("whole/samples.jsonl"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported() {
    let sandbox = CliSandbox::new();
    if !Path::new("/dev/full").exists() {
        println!("skipped: this system has no /dev/full");
        return;
    }
    std::fs::create_dir(sandbox.path("run")).unwrap();
    std::os::unix::fs::symlink("/dev/full", sandbox.path("run/results.json")).unwrap();
    sandbox.eval(&["--out", "run"]).refused(&["run/results.json", "space"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = sandbox.command(&["inspect", "model"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"));
}

#[test]
fn a_damaged_run_directory_is_rejected() {
    let sandbox = CliSandbox::new();
    sandbox.eval(&["--out", "run"]).ok();
    let good = sandbox.read("run/samples.jsonl");
    sandbox.write("run/samples.jsonl", [b"{\"id\": ", &good[..]].concat());
    let before = sandbox.snapshot("run");
    sandbox.eval(&["--out", "run", "--resume"]).refused(&["samples.jsonl", ":1"]);
    assert_eq!(sandbox.snapshot("run"), before);
    sandbox.write("run/manifest.json", "{}");
    sandbox.eval(&["--out", "run", "--resume"]).refused(&["manifest.json", "version"]);
}

#[test]
fn invalid_train_bench_batches_are_rejected() {
    let sandbox = CliSandbox::new();
    let train = |more: &[&str]| sandbox.run(&[&["bench", "--train"], more].concat());
    train(&["reward", "--batch", "10", "--samples", "4"]).refused(&["--batch 10", "--samples 4"]);
    train(&["reasoner", "--prompt", "2000"]).refused(&["2022 positions", "1024"]);
    train(&["reasoner", "--annotate"]).refused(&["--annotate"]);
    train(&["decoder"]).refused(&["reasoner", "reward"]);
}

#[cfg(feature = "serve")]
#[test]
fn a_server_that_cannot_start_says_why() {
    let sandbox = CliSandbox::new();
    let serve = |more: &[&str]| sandbox.run(&[&["serve"], more].concat());
    serve(&["--host", "localhost"]).refused(&["--host"]);
    serve(&["--request-timeout", "0"]).refused(&["--request-timeout"]);
    serve(&["--shutdown-timeout", "1e9"]).refused(&["--shutdown-timeout", "604800"]);
    serve(&["--max-queue", "0"]).refused(&["--max-queue"]);
    serve(&["--api-key", ""]).refused(&["--api-key"]);
    serve(&["--chat-template", "none.jinja"]).refused(&["none.jinja"]);
    serve(&["--model", "nowhere"]).refused(&["nowhere"]);
}
