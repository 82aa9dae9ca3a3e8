//! `sweep` and `report`: from a tiny model to a page, and from run directories that are not as they should be.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use serde_json::Value;
use support::{Bench, Done};

fn sweep(bench: &Bench, more: &[&str]) -> Done {
    let base = ["sweep", "--model", "model", "--data", "data.jsonl", "--samples", "4", "--max-new-tokens", "6", "--threads", "1"];
    bench.run(&[&base[..], more].concat())
}

fn points(summary: &Value) -> Vec<String> {
    summary["points"].as_array().unwrap().iter().map(|point| point["run"].as_str().unwrap().into()).collect()
}

#[test]
fn a_report_of_one_run_is_in_its_directory() {
    let bench = Bench::new();
    bench.eval(&["--latents", "--out", "run"]).ok();
    let written = bench.run(&["report", "run", "--json"]).ok().json();
    assert_eq!(written["page"], "run/report.html");
    let page = String::from_utf8(bench.read("run/report.html")).unwrap();
    for word in ["<!doctype html>", "model on data", "Summary", "What is 3 plus 4?", "data-tip=", "Content-Security-Policy"] {
        assert!(page.contains(word), "{word}");
    }
    for figure in written["figures"].as_array().unwrap() {
        let bytes = bench.read(figure.as_str().unwrap());
        assert!(bytes.starts_with(b"<svg") || bytes.starts_with(b"\x89PNG"), "{figure}");
    }
    let names: Vec<&str> = written["figures"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for name in ["coverage", "diversity-steps", "thoughts", "accuracy"] {
        assert!(names.contains(&format!("run/figures/{name}.png").as_str()), "{name} in {names:?}");
    }
    // A report changes nothing that eval wrote, and can be made again.
    assert_eq!(bench.run(&["report", "run", "--json"]).ok().json(), written);
    assert_eq!(page.as_bytes(), bench.read("run/report.html"));
}

#[test]
fn several_runs_are_compared() {
    let bench = Bench::new();
    bench.eval(&["--p", "0.1", "--out", "runs/a"]).ok();
    bench.eval(&["--sigma", "0.5", "--out", "runs/b"]).ok();
    let done = bench.run(&["report", "runs/a", "runs/b", "--page-only"]).ok();
    assert_eq!(done.out.trim(), "runs/report/report.html");
    let page = String::from_utf8(bench.read("runs/report/report.html")).unwrap();
    assert!(page.contains("2 runs compared") && page.contains("dropout p = 0.1") && page.contains("noise σ = 0.5"));
    assert!(!bench.path("runs/report/figures").exists());
}

#[test]
fn what_cannot_be_reported_is_said() {
    let bench = Bench::new();
    bench.run(&["report", "nowhere"]).refused(&["nowhere is not a run directory", "eval"]);
    bench.run(&["report"]).refused(&["RUN"]);
    bench.eval(&["--out", "run"]).ok();

    let samples = bench.read("run/samples.jsonl");
    let half = &samples[..samples.len() / 2];
    bench.write("run/samples.jsonl", half);
    bench.run(&["report", "run"]).refused(&["run holds", "of 8 records", "--resume", "--partial"]);
    bench.run(&["report", "run", "--partial"]).ok();
    bench.write("run/samples.jsonl", "");
    bench.run(&["report", "run", "--partial"]).refused(&["run", "no samples yet"]);

    bench.write("run/samples.jsonl", [&samples[..], b"{}\n"].concat());
    bench.run(&["report", "run"]).refused(&["samples.jsonl:9", "not valid here"]);
    let text = String::from_utf8(samples.clone()).unwrap();
    bench.write("run/samples.jsonl", text.replacen("\"seed\":0", "\"seed\":5", 1));
    bench.run(&["report", "run"]).refused(&["seed 5", "of another run"]);
    bench.write("run/samples.jsonl", &samples);

    let manifest = String::from_utf8(bench.read("run/manifest.json")).unwrap();
    bench.write("run/manifest.json", manifest.replace("\"version\": 1", "\"version\": 2"));
    bench.run(&["report", "run"]).refused(&["manifest.json has format version 2", "reads version 1"]);
    bench.write("run/manifest.json", manifest);
    let results = String::from_utf8(bench.read("run/results.json")).unwrap();
    bench.write("run/results.json", results.replace("\"version\": 1", "\"version\": 7"));
    bench.run(&["report", "run"]).refused(&["results.json has format version 7"]);
}

#[test]
fn a_damaged_file_of_thoughts_is_said() {
    let bench = Bench::new();
    bench.eval(&["--latents", "--out", "run"]).ok();
    let bytes = bench.read("run/latents.safetensors");
    bench.write("run/latents.safetensors", &bytes[..bytes.len() - 8]);
    bench.run(&["report", "run"]).refused(&["latents.safetensors", "ends before its numbers", "--latents"]);
}

#[test]
fn a_sweep_over_values_has_a_run_each_and_a_verdict() {
    let bench = Bench::new();
    let done = sweep(&bench, &["--p", "0.1,0.4", "--sigma", "0.2", "--sites", "both,mlp", "--out", "s", "--json"]).ok();
    let summary = done.json();
    assert_eq!(points(&summary), ["dropout-0.1-both", "dropout-0.4-both", "dropout-0.1-mlp", "dropout-0.4-mlp", "noise-0.2"]);
    assert_eq!(bench.json("s/sweep.json"), summary);
    for point in summary["points"].as_array().unwrap() {
        let run = point["run"].as_str().unwrap();
        let results = bench.json(&format!("s/{run}/results.json"));
        let coverage = results["metrics"].as_array().unwrap().iter().find(|m| m["name"] == "coverage" && m["k"] == 4).unwrap();
        assert_eq!(point["coverage"]["4"]["value"], coverage["value"], "{run}");
        assert_eq!(bench.json(&format!("s/{run}/manifest.json"))["settings"]["sampler"], point["sampler"]);
        // No point beats the best one.
        let value = |name: &str| {
            let told = summary["points"].as_array().unwrap().iter().find(|p| p["run"] == name).unwrap();
            told["coverage"]["4"]["value"].as_f64().unwrap()
        };
        assert!(value(run) <= value(summary["best"].as_str().unwrap()));
    }
    let [dropout, noise] = &summary["samplers"].as_array().unwrap()[..] else { panic!("{summary}") };
    assert_eq!((&dropout["band"]["low"], &dropout["band"]["high"]), (&Value::from(0.1), &Value::from(0.3)));
    assert_eq!((&noise["best"], &noise["band"]["contains_best"]), (&Value::from("noise-0.2"), &Value::from(false)));
    assert!(bench.path("s/report.html").exists());
    // The folder of a sweep is a way to name its runs.
    assert_eq!(bench.run(&["report", "s", "--page-only", "--json"]).ok().json()["page"], "s/report.html");
}

#[test]
fn a_sweep_of_another_run_is_the_eval_of_that_setting() {
    let bench = Bench::new();
    sweep(&bench, &["--p", "0.3", "--out", "s", "--no-report"]).ok();
    bench.eval(&["--p", "0.3", "--out", "e"]).ok();
    assert_eq!(bench.read("s/dropout-0.3/samples.jsonl"), bench.read("e/samples.jsonl"));
    assert!(!bench.path("s/report.html").exists());
}

#[test]
fn a_search_takes_the_stated_number_of_evaluations_and_resumes() {
    let bench = Bench::new();
    let flags = ["--p", "0:0.8", "--evaluations", "4", "--out", "s"];
    let done = sweep(&bench, &flags).ok();
    assert!(done.err.contains("4 evaluations to a tolerance of"), "{}", done.err);
    assert!(done.out.contains("best: dropout p=") && done.out.contains("band for this backbone, 0.1 to 0.3"), "{}", done.out);
    let summary = bench.json("s/sweep.json");
    assert!((1..=4).contains(&points(&summary).len()), "{summary}");

    sweep(&bench, &flags).refused(&["already holds a run", "--resume"]);
    let first = points(&summary).remove(0);
    std::fs::remove_dir_all(bench.path(&format!("s/{first}"))).unwrap();
    std::fs::remove_file(bench.path("s/sweep.json")).unwrap();
    sweep(&bench, &[&flags[..], &["--resume"]].concat()).ok();
    assert_eq!(bench.json("s/sweep.json"), summary);
}

#[test]
fn a_sweep_that_makes_no_sense_is_refused_before_anything_is_written() {
    let bench = Bench::new();
    for (flags, words) in [
        (&["--p", "1.5"][..], &["--p", "below 1"][..]),
        (&["--p", "0.4:0.1"], &["empty"]),
        (&["--sigma", "a"], &["--sigma", "not a number"]),
        (&["--p", "0.1", "--k", "9"], &["--k 9", "--samples 4"]),
        (&["--p", "0.1", "--tolerance", "0"], &["--tolerance"]),
    ] {
        sweep(&bench, &[flags, &["--out", "s"]].concat()).refused(words);
    }
    bench.run(&["sweep", "--model", "model", "--p", "0.1", "--data", "embedded:nope"]).refused(&["--data embedded:nope"]);
    assert!(!bench.path("s").exists());
    bench.write("sweep.json", "{\"version\": 3}");
    bench.run(&["report", "."]).refused(&["sweep.json", "format version 1"]);
}
