//! Faults of disks, files and processes: no data is lost and no error is silent.

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

/// The partial file for a finished one: the values, with a CRC-32 after those of each sample.
fn part_of(file: &[u8]) -> Vec<u8> {
    let values = values_of(file);
    let header: Value = serde_json::from_slice(&file[8..file.len() - values.len()]).unwrap();
    let tensors = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    let mut ends: Vec<(&str, usize)> = Vec::new();
    for (name, tensor) in tensors {
        let end = tensor["data_offsets"][1].as_u64().unwrap() as usize;
        let sample = name.trim_end_matches(".greedy");
        match ends.last_mut() {
            Some((last, last_end)) if *last == sample => *last_end = end,
            _ => ends.push((sample, end)),
        }
    }
    let mut start = 0;
    let mut part = Vec::new();
    for (_, end) in ends {
        let mut checksum = record::files::Checksum::new();
        checksum.update(&values[start..end]);
        part.extend(&values[start..end]);
        part.extend(checksum.finalize().to_le_bytes());
        start = end;
    }
    part
}

#[test]
fn partial_latents_are_completed_or_rejected() {
    let sandbox = CliSandbox::new();
    let (base, p) =
        (["--model", "model", "--data", "data.jsonl", "--threads", "1"], ["--dropout-p", "0.2"]);
    let sizes = ["--samples", "2", "--max-new-tokens", "4", "--quiet"];
    let eval = [&["eval"][..], &base, &sizes, &["--out", "run"]].concat();
    let sweep = [&["sweep"][..], &base, &sizes, &p, &["--out", "swept"]].concat();
    for (command, run) in [(eval, "run"), (sweep, "swept/dropout-0.2")] {
        let with = |more: &[&'static str]| sandbox.run(&[&command[..], more].concat());
        with(&["--latents"]).ok();
        let (done, part) = (format!("{run}/latents.safetensors"), format!("{run}/latents.part"));
        let whole = sandbox.read(&done);
        // The process ended after the last sample, before the file was renamed.
        sandbox.write(&part, part_of(&whole));
        fs::remove_file(sandbox.path(&done)).unwrap();
        with(&["--resume"]).refused(&["latents.part", "records its thoughts", "--latents"]);
        with(&["--latents", "--resume"]).ok();
        assert_eq!(sandbox.read(&done), whole);
        assert!(!sandbox.path(&part).exists());
        // Truncated, or missing.
        sandbox.write(&done, &whole[..whole.len() - 1]);
        with(&["--latents", "--resume"]).refused(&["latents.safetensors", "truncated", "--out"]);
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
            // A size in the configuration does not match the tensors.
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
    // Each value is allowed, but not all of them together.
    let large = ["--width", "262144", "--heads", "1", "--layers", "1024"];
    sandbox.run(&[&shape[..], &large].concat()).refused(&["free", "--width", "--layers"]);
}

#[cfg(target_os = "linux")]
#[test]
fn out_of_memory_is_reported() {
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
            // The loader cannot map the program itself.
            Some(127) => continue,
            code => assert_eq!(code, Some(2), "{kilobytes} kB: {error}"),
        }
        refused += 1;
    }
    assert!(refused > 0, "no limit lets the program start and then runs out");
}

#[test]
fn numbers_that_are_not_finite_are_refused_before_a_training() {
    let sandbox = CliSandbox::new();
    let reasoner = ["train", "reasoner", "--out", "new"];
    let reward = ["train", "reward", "--model", "model", "--annotations", "a", "--out", "new"];
    let both = [
        ("--lr", &["nan", "inf", "0", "-1", "1e39"][..]),
        ("--clip", &["nan", "inf", "-1"]),
        ("--min-lr-ratio", &["nan", "2", "1e30", "-0.1"]),
        ("--weight-decay", &["nan", "inf", "-1"]),
        ("--beta2", &["nan", "1", "5", "-0.1"]),
        ("--digit-loss-weight", &["nan", "inf", "-1"]),
        ("--max-loss-ratio", &["nan", "inf", "-1"]),
    ];
    let late = ("--last-step-weight", &["nan", "inf", "-1"][..]);
    for (flag, values) in both.into_iter().chain([late]) {
        for value in values {
            let flag_value = format!("{flag}={value}");
            sandbox.run(&[&reward[..], &[&flag_value]].concat()).refused(&[flag, "must be"]);
            if flag != "--last-step-weight" {
                sandbox.run(&[&reasoner[..], &[&flag_value]].concat()).refused(&[flag, "must be"]);
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
    sandbox.eval(&["--out", "run"]).refused(&["question 1", "bytes exceeds", "--too-long skip"]);
    let skipped = sandbox.eval(&["--out", "run", "--too-long", "skip"]).ok();
    assert!(skipped.err.contains("skipped 1 question of 2"), "{}", skipped.err);
    // Words of a rejected text are not looked up in the embedded model's vocabulary either.
    sandbox.write("data.jsonl", long.replace("a ", "xyzzy "));
    let refused = sandbox.run(&["eval", "--data", "data.jsonl", "--threads", "1", "--out", "run2"]);
    let refused = refused.refused(&["question 0", "bytes exceeds"]);
    assert!(!refused.err.contains("xyzzy"), "{}", refused.err);
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
fn inspect_rejects_the_checkpoints_that_eval_rejects() {
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

#[test]
fn records_of_another_run_are_not_this_runs() {
    let sandbox = CliSandbox::new();
    let questions = sandbox.read("data.jsonl");
    let run = ["--latents", "--quiet", "--out", "run"];
    sandbox.eval(&run).ok();
    sandbox.eval(&["--latents", "--dropout-p", "0.4", "--out", "stronger"]).ok();
    let other = String::from_utf8(questions).unwrap().replace("plus", "and");
    sandbox.write("other.jsonl", other);
    sandbox.eval(&["--latents", "--data", "other.jsonl", "--out", "other"]).ok();
    let [samples, latents] = ["samples.jsonl", "latents.safetensors"];
    let [own, own_latents] = [samples, latents].map(|name| sandbox.read(&format!("run/{name}")));
    let text = String::from_utf8(own.clone()).unwrap();
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    lines.swap(2, 3);
    let resumed = || sandbox.eval(&[&run[..], &["--resume"]].concat());
    for (damaged, line) in [
        (sandbox.read("other/samples.jsonl"), 1),
        (sandbox.read("stronger/samples.jsonl"), 1),
        (lines.concat().into_bytes(), 3),
        (text.replacen("\"gold\":\"3\"", "\"gold\":\"4\"", 1).into_bytes(), 2),
        (text.replacen("\"correct\":false", "\"correct\":true", 1).into_bytes(), 1),
    ] {
        assert_ne!(damaged, own);
        sandbox.write("run/samples.jsonl", damaged);
        resumed().refused(&[&format!("samples.jsonl:{line}:"), "--out"]);
    }
    sandbox.write("run/samples.jsonl", &own);
    sandbox.run(&["report", "run", "--quiet"]).ok();
    for foreign in ["stronger", "other"] {
        sandbox.write("run/latents.safetensors", sandbox.read(&format!("{foreign}/{latents}")));
        resumed().refused(&["latents.safetensors", "--overwrite"]);
        sandbox.run(&["report", "run"]).refused(&["latents.safetensors", "another run"]);
    }
    let header = own_latents.len() - values_of(&own_latents).len();
    let mut flipped = own_latents.clone();
    flipped[header + 7] ^= 1;
    let mut infinite = own_latents.clone();
    infinite[header..header + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let mut huge = own_latents.clone();
    huge[header..header + 4].copy_from_slice(&3.4e38_f32.to_le_bytes());
    for damaged in [flipped, infinite, huge] {
        sandbox.write("run/latents.safetensors", damaged);
        resumed().refused(&["latents.safetensors", "tensor 0.0", "--overwrite"]);
        sandbox.run(&["report", "run"]).refused(&["latents.safetensors", "tensor 0.0"]);
    }
    sandbox.write("run/latents.safetensors", &own_latents);
    resumed().ok();
    assert_eq!(sandbox.read("run/samples.jsonl"), own);
}

#[test]
fn errors_of_the_environment_name_the_variable() {
    let sandbox = CliSandbox::new();
    let with = |name: &str, value: &str, more: &[&str]| {
        let mut command = sandbox.command(&sandbox.eval_args(more));
        support::command_output(command.env(name, value).output().unwrap())
    };
    with("LATENT_TTS_SEED", "x", &[]).refused(&["--seed", "LATENT_TTS_SEED"]);
    let typed = with("LATENT_TTS_SEED", "1", &["--seed", "x"]).refused(&["--seed"]);
    assert!(!typed.err.contains("LATENT_TTS_SEED"), "{}", typed.err);
    // The largest seed is valid, a seed after it is not.
    let largest = u64::MAX.to_string();
    sandbox.eval(&["--seed", &largest, "--limit", "1", "--out", "run"]).ok();
    sandbox.eval(&["--seed", &largest, "--seeds", "2"]).refused(&["largest seed"]);
}

#[test]
fn output_that_is_a_file_is_refused_once() {
    let sandbox = CliSandbox::new();
    sandbox.write("file", "text");
    let data = ["--model", "model", "--data", "data.jsonl", "--threads", "1", "--out"];
    for (command, out) in [
        ("eval", "file"),
        ("eval", "file/below"),
        ("sweep", "file"),
        ("annotate", "file"),
        ("annotate", "file/below"),
    ] {
        let refused = sandbox.run(&[&[command][..], &data, &[out]].concat());
        let refused = refused.refused(&["file is a file", "pass a directory"]);
        assert!(!refused.err.contains("os error"), "{command}: {}", refused.err);
    }
    assert_eq!(sandbox.read("file"), b"text");
}

#[test]
fn eval_says_which_device_it_uses() {
    let sandbox = CliSandbox::new();
    let done = sandbox.eval(&["--limit", "1", "--out", "run"]).ok();
    assert!(done.err.contains("on 1 threads of"), "{}", done.err);
}

/// Waits until a process handles this signal.
#[cfg(target_os = "linux")]
fn wait_for_handler(id: u32, signal: u32) {
    let start = std::time::Instant::now();
    let handled = || {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        mask.is_some_and(|mask| {
            u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal - 1) & 1 == 1
        })
    };
    while !handled() {
        assert!(start.elapsed().as_secs() < 60, "signal {signal} is not handled");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A run that has not yet read its questions ends like one that has, for every signal.
#[cfg(target_os = "linux")]
#[test]
fn signals_before_the_first_record_end_as_an_interruption_does() {
    let sandbox = CliSandbox::new();
    let made = std::process::Command::new("mkfifo").arg(sandbox.path("pipe.jsonl")).status();
    assert!(made.unwrap().success());
    for (name, number) in [("-HUP", 1), ("-INT", 2), ("-TERM", 15)] {
        let args = sandbox.eval_args(&["--data", "pipe.jsonl", "--out", "run"]);
        let mut command = sandbox.command(&args);
        let piped = std::process::Stdio::piped;
        let child = command.stdout(piped()).stderr(piped()).spawn().unwrap();
        wait_for_handler(child.id(), number);
        let mut kill = std::process::Command::new("kill");
        assert!(kill.args([name, &child.id().to_string()]).status().unwrap().success());
        let ended = support::command_output(child.wait_with_output().unwrap());
        assert_eq!(ended.code, Some(3), "{name}: {}", ended.err);
        assert!(ended.err.contains("--out run --resume"), "{name}: {}", ended.err);
    }
}

/// `timeout` signals its child and then the group. Two simultaneous signals count as one, so that
/// the state is saved.
#[cfg(target_os = "linux")]
#[test]
fn two_signals_at_once_are_one_interruption() {
    let sandbox = CliSandbox::new();
    let args = ["train", "reasoner", "--mode", "cot", "--width", "32", "--layers", "1", "--heads"];
    let more = ["2", "--batch", "8", "--steps", "100000", "--device", "cpu", "--out", "m"];
    let mut command = sandbox.command(&[&args[..], &more].concat());
    let piped = std::process::Stdio::piped;
    let child = command.stdout(piped()).stderr(piped()).spawn().unwrap();
    let start = std::time::Instant::now();
    let log = sandbox.path("m/training/log.jsonl");
    while std::fs::metadata(&log).map_or(0, |log| log.len()) == 0 {
        assert!(start.elapsed().as_secs() < 60, "no step within a minute");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    // While the process is stopped, both signals become pending and are then delivered together.
    for name in ["-STOP", "-TERM", "-INT", "-CONT"] {
        let mut kill = std::process::Command::new("kill");
        assert!(kill.args([name, &child.id().to_string()]).status().unwrap().success());
    }
    let ended = support::command_output(child.wait_with_output().unwrap());
    assert_eq!(ended.code, Some(3), "{}", ended.err);
    assert!(ended.err.contains("the state was saved; continue with"), "{}", ended.err);
    assert!(sandbox.path("m/training/state.safetensors").exists());
    sandbox.run(&["solve", "--model", "m", "2 + 2?"]).refused(&["no weights", "with --resume"]);
}

#[test]
fn a_limit_of_file_sizes_ends_as_an_interruption_does() {
    let sandbox = CliSandbox::new();
    let whole = sandbox.eval(&["--quiet", "--out", "whole"]).ok();
    assert_eq!(whole.code, Some(0));
    let binary = env!("CARGO_BIN_EXE_latent-tts");
    let args = sandbox.eval_args(&["--quiet", "--out", "run"]).join(" ");
    let limited = format!("ulimit -f 4; exec {binary} {args}");
    let mut shell = std::process::Command::new("sh");
    let output = shell.arg("-c").arg(limited).current_dir(sandbox.path("")).output().unwrap();
    let ended = support::command_output(output);
    assert_eq!(ended.code, Some(3), "{}", ended.err);
    for word in ["samples.jsonl", "file size limit", "--resume"] {
        assert!(ended.err.contains(word), "no {word} in {}", ended.err);
    }
    sandbox.eval(&["--quiet", "--out", "run", "--resume"]).ok();
    assert_eq!(sandbox.read("run/samples.jsonl"), sandbox.read("whole/samples.jsonl"));
}

/// A tokenizer may have more tokens than the embedding has rows; the additional ones get new rows.
#[test]
fn a_tokenizer_larger_than_the_table_is_trained() {
    let sandbox = CliSandbox::new();
    sandbox.run(&["corpus", "--split", "train", "--count", "4", "--out", "train.json"]).ok();
    let llama = CheckpointSpec { family: CheckpointFamily::Llama, ..CheckpointSpec::default() };
    let llama = CheckpointSpec { context: 512, ..llama };
    sandbox.model("base", &llama);
    let mut tokenizer = sandbox.json("base/tokenizer.json");
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    let mut token = added.last().unwrap().clone();
    let first = token["id"].as_u64().unwrap() + 1;
    for (i, content) in (0..).zip(["<<", ">>", "<<<"]) {
        token["id"] = json!(first + i);
        token["content"] = json!(content);
        token["special"] = json!(false);
        added.push(token.clone());
    }
    sandbox.write("base/tokenizer.json", tokenizer.to_string());
    let train = ["train", "reasoner", "--init", "base", "--data", "train.json", "--out", "new"];
    let few = ["--steps", "1", "--batch", "2", "--threads", "1", "--quiet"];
    sandbox.run(&[&train[..], &few].concat()).ok();
}
