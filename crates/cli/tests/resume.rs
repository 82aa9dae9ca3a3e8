//! Whatever ends a run, `--resume` brings it to the same bytes.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use model::testkit::Spec;
use support::{Bench, Done, finished};

/// A bench whose eval takes about a second, so that there is something to interrupt.
fn slow() -> Bench {
    let bench = Bench::new();
    bench.model("model", &Spec { layers: 4, width: 96, ffn: 256, ..Spec::default() });
    bench.questions("data.jsonl", 30);
    bench
}

/// An eval of 60 records. The memory is so small that a question's rows go in two parts.
fn args<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let base = ["eval", "--model", "model", "--data", "data.jsonl", "--samples", "4", "--seeds", "2", "--max-new-tokens", "24"];
    let rest = ["--threads", "1", "--memory", "500KiB", "--quiet", "--out", out];
    [&base[..], &rest, more].concat()
}

fn spawn(bench: &Bench, args: &[&str]) -> Child {
    bench.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn lines(bench: &Bench, out: &str) -> usize {
    let bytes = std::fs::read(bench.path(&format!("{out}/samples.jsonl"))).unwrap_or_default();
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// Waits until the run has so many records.
fn wait_for(bench: &Bench, out: &str, records: usize, child: &mut Child) {
    let start = Instant::now();
    while lines(bench, out) < records && child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "no record after a minute");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn signal(child: &Child, name: &str) {
    let status = std::process::Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

fn end(child: Child) -> Done {
    finished(child.wait_with_output().unwrap())
}

#[test]
fn a_killed_run_ends_with_the_bytes_of_one_that_was_not() {
    let bench = slow();
    bench.run(&args("whole", &[])).ok();
    // Waits of unlike length put the kill at unlike moments; every attempt must get further than the one before.
    for attempt in 0..8u64 {
        let mut child = spawn(&bench, &args("killed", &["--resume"]));
        wait_for(&bench, "killed", lines(&bench, "killed") + 1, &mut child);
        std::thread::sleep(Duration::from_micros(attempt * 7919 % 6_000));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let on_file = lines(&bench, "killed");
    assert!((8..60).contains(&on_file), "{on_file} records were made before the last kill");
    bench.run(&args("killed", &["--resume"])).ok();
    assert_eq!(bench.read("whole/samples.jsonl"), bench.read("killed/samples.jsonl"));
    assert_eq!(bench.json("whole/results.json")["metrics"], bench.json("killed/results.json")["metrics"]);
}

#[test]
fn a_line_cut_in_two_is_done_again() {
    let bench = Bench::new();
    bench.model("judge", &Spec { family: model::testkit::Family::RewardGpt2, ..Spec::default() });
    let searching = ["--reward-model", "judge", "--adaptive", "--samples", "9"];
    for (run, more) in [("plain", &[][..]), ("searching", &searching)] {
        let args = [&["--out", run][..], more].concat();
        bench.eval(&args).ok();
        let samples = format!("{run}/samples.jsonl");
        let bytes = bench.read(&samples);
        for length in [bytes.len() - 1, bytes.len() * 2 / 3, 1, 0] {
            bench.write(&samples, &bytes[..length]);
            bench.eval(&[&args[..], &["--resume"]].concat()).ok();
            assert_eq!(bench.read(&samples), bytes);
        }
    }
}

#[test]
fn ctrl_c_and_sigterm_exit_with_3_and_say_how_to_go_on() {
    let bench = slow();
    bench.run(&args("whole", &[])).ok();
    for (name, first) in [("-INT", true), ("-TERM", false)] {
        let more: &[&str] = if first { &[] } else { &["--resume"] };
        let mut child = spawn(&bench, &args("stopped", more));
        wait_for(&bench, "stopped", lines(&bench, "stopped") + 3, &mut child);
        signal(&child, name);
        let done = end(child);
        assert_eq!(done.code, Some(3), "{}", done.err);
        assert!(
            done.err.contains("latent-tts eval --model model") && done.err.trim_end().ends_with("--out stopped --resume"),
            "{}",
            done.err
        );
        assert_eq!(done.out, "");
        assert!(!bench.path("stopped/results.json").exists());
    }
    bench.run(&args("stopped", &["--resume"])).ok();
    assert_eq!(bench.read("whole/samples.jsonl"), bench.read("stopped/samples.jsonl"));
}

#[test]
fn a_finished_run_is_not_done_again() {
    let bench = Bench::new();
    let first = bench.eval(&["--json"]).ok().json();
    let before = bench.snapshot("runs");
    bench.eval(&[]).refused(&["already holds a run", "--resume"]);
    assert_eq!(bench.snapshot("runs"), before);
    let again = bench.eval(&["--resume", "--json"]).ok().json();
    assert_eq!((&first["run"], &first["metrics"], &first["cost"]), (&again["run"], &again["metrics"], &again["cost"]));
    bench.eval(&["--overwrite"]).ok();
}

#[test]
fn another_run_is_not_continued() {
    let bench = Bench::new();
    bench.model("judge", &Spec { family: model::testkit::Family::RewardGpt2, ..Spec::default() });
    bench.eval(&["--out", "run"]).ok();
    let before = bench.snapshot("run");
    let refused = |more: &[&str], words: &[&str]| {
        bench.eval(&[&["--out", "run", "--resume"], more].concat()).refused(words);
        assert_eq!(bench.snapshot("run"), before);
    };
    refused(&["--p", "0.3"], &["manifest.json", "settings.sampler.p", "0.3"]);
    refused(&["--seed", "5"], &["manifest.json", "seeds"]);
    refused(&["--limit", "3"], &["manifest.json", "questions"]);
    refused(&["--reward-model", "judge"], &["manifest.json", "rewards"]);
    bench.model("model", &Spec { seed: 2, ..Spec::default() });
    refused(&[], &["manifest.json", "fingerprint", "model"]);
}
