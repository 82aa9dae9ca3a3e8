//! `--resume` completes an interrupted run with the same bytes as an uninterrupted one.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use model::testkit::CheckpointSpec;
use support::{CliSandbox, CommandOutput, command_output};

/// A sandbox whose eval takes about a second, long enough to interrupt.
fn slow_sandbox() -> CliSandbox {
    let sandbox = CliSandbox::new();
    sandbox.model(
        "model",
        &CheckpointSpec { layers: 4, width: 96, ffn: 256, ..CheckpointSpec::default() },
    );
    sandbox.questions("data.jsonl", 30);
    sandbox
}

/// Arguments of an eval with 60 records. The key-value cache only fits some of a question's
/// sequences.
fn args<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let base = [
        "eval",
        "--model",
        "model",
        "--data",
        "data.jsonl",
        "--samples",
        "4",
        "--seeds",
        "2",
        "--max-new-tokens",
        "24",
    ];
    let rest = ["--threads", "1", "--memory", "500KiB", "--quiet", "--out", out];
    [&base[..], &rest, more].concat()
}

fn spawn(sandbox: &CliSandbox, args: &[&str]) -> Child {
    sandbox.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn lines(sandbox: &CliSandbox, out: &str) -> usize {
    let bytes = std::fs::read(sandbox.path(&format!("{out}/samples.jsonl"))).unwrap_or_default();
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// Waits until the run contains `records` records or the process has exited.
fn wait_for(sandbox: &CliSandbox, out: &str, records: usize, child: &mut Child) {
    let start = Instant::now();
    while lines(sandbox, out) < records && child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "no record after a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn signal(child: &Child, name: &str) {
    let status =
        std::process::Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

fn end(child: Child) -> CommandOutput {
    command_output(child.wait_with_output().unwrap())
}

#[test]
fn a_killed_run_resumes_to_the_same_bytes() {
    let sandbox = slow_sandbox();
    sandbox.run(&args("whole", &[])).ok();
    // Varied delays kill the process at different times; every attempt must add a record.
    for attempt in 0..8u64 {
        let mut child = spawn(&sandbox, &args("killed", &["--resume"]));
        wait_for(&sandbox, "killed", lines(&sandbox, "killed") + 1, &mut child);
        std::thread::sleep(Duration::from_micros(attempt * 7919 % 6_000));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let on_file = lines(&sandbox, "killed");
    assert!((8..60).contains(&on_file), "{on_file} records were made before the last kill");
    sandbox.run(&args("killed", &["--resume"])).ok();
    assert_eq!(sandbox.read("whole/samples.jsonl"), sandbox.read("killed/samples.jsonl"));
    assert_eq!(
        sandbox.json("whole/results.json")["metrics"],
        sandbox.json("killed/results.json")["metrics"]
    );
}

#[test]
fn a_truncated_line_is_recomputed() {
    let sandbox = CliSandbox::new();
    sandbox.reward_model("latent-rm");
    let beam = ["--reward-model", "latent-rm", "--adaptive", "--samples", "9"];
    for (run, more) in [("plain", &[][..]), ("beam", &beam)] {
        let args = [&["--out", run][..], more].concat();
        sandbox.eval(&args).ok();
        let samples = format!("{run}/samples.jsonl");
        let bytes = sandbox.read(&samples);
        for length in [bytes.len() - 1, bytes.len() * 2 / 3, 1, 0] {
            sandbox.write(&samples, &bytes[..length]);
            sandbox.eval(&[&args[..], &["--resume"]].concat()).ok();
            assert_eq!(sandbox.read(&samples), bytes);
        }
    }
}

/// A run in int8 has other results than one in f32, so neither can continue the other.
#[test]
fn a_run_is_not_resumed_in_another_number_format() {
    let sandbox = CliSandbox::new();
    for (run, own, other) in [("bytes", "int8", "f32"), ("wide", "f32", "int8")] {
        let args = |dtype| ["--out", run, "--dtype", dtype, "--device", "cpu", "--limit", "1"];
        sandbox.eval(&args(own)).ok();
        let resumed = |dtype| [&args(dtype)[..], &["--resume"]].concat();
        sandbox.eval(&resumed(other)).refused(&["dtype", "int8"]);
        sandbox.eval(&resumed(own)).ok();
    }
}

#[test]
fn sigint_and_sigterm_exit_with_3_and_print_the_resume_command() {
    let sandbox = slow_sandbox();
    sandbox.run(&args("whole", &[])).ok();
    for (name, first) in [("-INT", true), ("-TERM", false)] {
        let more: &[&str] = if first { &[] } else { &["--resume"] };
        let mut child = spawn(&sandbox, &args("stopped", more));
        wait_for(&sandbox, "stopped", lines(&sandbox, "stopped") + 3, &mut child);
        signal(&child, name);
        let done = end(child);
        assert_eq!(done.code, Some(3), "{}", done.err);
        assert!(
            done.err.contains("latent-tts eval --model model")
                && done.err.trim_end().ends_with("--out stopped --resume"),
            "{}",
            done.err
        );
        assert_eq!(done.out, "");
        assert!(!sandbox.path("stopped/results.json").exists());
    }
    sandbox.run(&args("stopped", &["--resume"])).ok();
    assert_eq!(sandbox.read("whole/samples.jsonl"), sandbox.read("stopped/samples.jsonl"));
}

#[test]
fn a_finished_run_is_not_recomputed() {
    let sandbox = CliSandbox::new();
    let first = sandbox.eval(&["--json"]).ok().json();
    let before = sandbox.snapshot("runs");
    sandbox.eval(&[]).refused(&["already holds a run", "--resume"]);
    assert_eq!(sandbox.snapshot("runs"), before);
    let again = sandbox.eval(&["--resume", "--json"]).ok().json();
    assert_eq!(
        (&first["run"], &first["metrics"], &first["cost"]),
        (&again["run"], &again["metrics"], &again["cost"])
    );
    sandbox.eval(&["--overwrite"]).ok();
}

#[test]
fn a_run_with_other_settings_is_not_resumed() {
    let sandbox = CliSandbox::new();
    sandbox.reward_model("latent-rm");
    sandbox.eval(&["--out", "run"]).ok();
    let before = sandbox.snapshot("run");
    let refused = |more: &[&str], words: &[&str]| {
        sandbox.eval(&[&["--out", "run", "--resume"], more].concat()).refused(words);
        assert_eq!(sandbox.snapshot("run"), before);
    };
    refused(&["--dropout-p", "0.3"], &["manifest.json", "settings.sampling.dropout_p", "0.3"]);
    refused(&["--seed", "5"], &["manifest.json", "seeds"]);
    refused(&["--limit", "3"], &["manifest.json", "questions"]);
    refused(&["--reward-model", "latent-rm"], &["manifest.json", "rewards"]);
    sandbox.model("model", &CheckpointSpec { seed: 2, ..CheckpointSpec::default() });
    refused(&[], &["manifest.json", "fingerprint", "model"]);
}

/// On a GPU a resumed run has other batches, so without --deterministic its bits would differ. The
/// CPU needs no flag, and accepts it.
#[test]
fn a_deterministic_run_resumes_to_the_same_bytes() {
    let sandbox = CliSandbox::new();
    sandbox.reward_model("latent-rm");
    sandbox.questions("data.jsonl", 20);
    let cpu: &[&[&str]] = &[&["cpu"]];
    let mut devices = cpu.to_vec();
    match tensor::Device::cuda_availability() {
        Ok(()) => devices.extend([&["cuda"][..], &["cuda", "--dtype", "f32"]]),
        Err(why) => println!("skipped on a gpu: {why}"),
    }
    for device in devices {
        let run = device.concat();
        let eval = |more: &[&str]| {
            let base = ["eval", "--model", "model", "--data", "data.jsonl", "--samples", "16"];
            let rest =
                ["--reward-model", "latent-rm", "--quiet", "--out", run.as_str(), "--device"];
            sandbox.run(&[&base[..], &rest, device, more].concat())
        };
        let same = |whole: &[u8], what: &str| {
            let found = sandbox.read(&format!("{run}/samples.jsonl"));
            assert!(found == whole, "{device:?}, {what}: other samples");
        };
        eval(&["--deterministic"]).ok();
        let whole = sandbox.read(&format!("{run}/samples.jsonl"));
        let is_gpu = device[0] == "cuda";
        let settings = &sandbox.json(&format!("{run}/manifest.json"))["settings"];
        assert_eq!(settings["deterministic"].is_string(), is_gpu, "{settings}");
        for memory in ["1GiB", "500KiB"] {
            eval(&["--deterministic", "--overwrite", "--memory", memory]).ok();
            same(&whole, memory);
        }
        for kept in [1, whole.len() / 3, whole.len() - 1] {
            sandbox.write(&format!("{run}/samples.jsonl"), &whole[..kept]);
            eval(&["--deterministic", "--resume"]).ok();
            same(&whole, &format!("resumed at byte {kept}"));
        }
        if is_gpu {
            eval(&["--resume"]).refused(&["manifest.json", "settings.deterministic"]);
        } else {
            eval(&["--resume"]).ok();
        }
    }
}
