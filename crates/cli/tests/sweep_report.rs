//! `sweep` and `report` on a tiny model, and on invalid run directories.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use model::testkit::{CheckpointFamily, CheckpointSpec};
use serde_json::Value;
use support::{CliSandbox, CommandOutput};

fn sweep(sandbox: &CliSandbox, more: &[&str]) -> CommandOutput {
    let base = [
        "sweep",
        "--model",
        "model",
        "--data",
        "data.jsonl",
        "--samples",
        "4",
        "--max-new-tokens",
        "6",
        "--threads",
        "1",
    ];
    sandbox.run(&[&base[..], more].concat())
}

fn points(summary: &Value) -> Vec<String> {
    summary["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| point["run"].as_str().unwrap().into())
        .collect()
}

#[test]
fn a_single_run_reports_into_its_directory() {
    let sandbox = CliSandbox::new();
    sandbox.eval(&["--latents", "--out", "run"]).ok();
    let written = sandbox.run(&["report", "run", "--json"]).ok().json();
    assert_eq!(written["page"], "run/report.html");
    let page = String::from_utf8(sandbox.read("run/report.html")).unwrap();
    for word in [
        "<!doctype html>",
        "model on data",
        "Question by question",
        "What is 3 plus 4?",
        "data-tip=",
        "Content-Security-Policy",
    ] {
        assert!(page.contains(word), "{word}");
    }
    for figure in written["figures"].as_array().unwrap() {
        let bytes = sandbox.read(figure.as_str().unwrap());
        let starts: [&[u8]; 3] = [b"<svg", b"\x89PNG", b"panel,series,"];
        assert!(starts.iter().any(|start| bytes.starts_with(start)), "{figure}");
    }
    let names: Vec<&str> =
        written["figures"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for name in ["coverage", "diversity-steps", "thoughts", "accuracy"] {
        assert!(names.contains(&format!("run/figures/{name}.png").as_str()), "{name} in {names:?}");
    }
    // A report can be repeated with the same result.
    assert_eq!(sandbox.run(&["report", "run", "--json"]).ok().json(), written);
    assert_eq!(page.as_bytes(), sandbox.read("run/report.html"));
}

#[test]
fn several_runs_are_compared() {
    let sandbox = CliSandbox::new();
    sandbox.eval(&["--dropout-p", "0.1", "--out", "runs/a"]).ok();
    sandbox.eval(&["--noise-std", "0.5", "--out", "runs/b"]).ok();
    let done = sandbox.run(&["report", "runs/a", "runs/b", "--page-only"]).ok();
    assert!(done.out.trim_end().ends_with("\nruns/report/report.html"), "{}", done.out);
    let page = String::from_utf8(sandbox.read("runs/report/report.html")).unwrap();
    assert!(
        page.contains("2 runs compared")
            && page.contains("dropout p = 0.1")
            && page.contains("noise σ = 0.5")
    );
    assert!(!sandbox.path("runs/report/figures").exists());
}

#[test]
fn unreadable_runs_are_rejected() {
    let sandbox = CliSandbox::new();
    sandbox
        .run(&["report", "nowhere"])
        .refused(&["nowhere is not a run directory: it does not exist", "eval"]);
    sandbox.run(&["report"]).refused(&["RUN"]);
    sandbox.eval(&["--out", "run"]).ok();
    sandbox.run(&["report", "."]).refused(&["no manifest.json", "it contains runs"]);

    let samples = sandbox.read("run/samples.jsonl");
    let half = &samples[..samples.len() / 2];
    sandbox.write("run/samples.jsonl", half);
    sandbox.run(&["report", "run"]).refused(&["run has", "of 8 records", "--resume", "--partial"]);
    sandbox.run(&["report", "run", "--partial"]).ok();
    sandbox.write("run/samples.jsonl", "");
    sandbox.run(&["report", "run", "--partial"]).refused(&["run", "no samples yet"]);

    sandbox.write("run/samples.jsonl", [&samples[..], b"{}\n"].concat());
    sandbox.run(&["report", "run"]).refused(&["samples.jsonl:9", "invalid record"]);
    let text = String::from_utf8(samples.clone()).unwrap();
    sandbox.write("run/samples.jsonl", text.replacen("\"seed\":0", "\"seed\":5", 1));
    sandbox.run(&["report", "run"]).refused(&["samples.jsonl:1", "changed since this run"]);
    sandbox.write("run/samples.jsonl", &samples);

    let manifest = String::from_utf8(sandbox.read("run/manifest.json")).unwrap();
    sandbox.write("run/manifest.json", manifest.replace("\"version\": 2", "\"version\": 3"));
    sandbox
        .run(&["report", "run"])
        .refused(&["manifest.json has format version 3", "reads version 2"]);
    sandbox.write("run/manifest.json", manifest);
    let results = String::from_utf8(sandbox.read("run/results.json")).unwrap();
    sandbox.write("run/results.json", results.replace("\"version\": 2", "\"version\": 7"));
    sandbox.run(&["report", "run"]).refused(&["results.json has format version 7"]);
}

#[test]
fn a_damaged_latents_file_is_rejected() {
    let sandbox = CliSandbox::new();
    sandbox.eval(&["--latents", "--out", "run"]).ok();
    let bytes = sandbox.read("run/latents.safetensors");
    sandbox.write("run/latents.safetensors", &bytes[..bytes.len() - 8]);
    sandbox.run(&["report", "run"]).refused(&[
        "latents.safetensors",
        "the file is truncated",
        "--latents",
    ]);
}

#[test]
fn a_sweep_goes_over_the_temperature_of_mixtures() {
    let sandbox = CliSandbox::new();
    let mixing =
        CheckpointSpec { family: CheckpointFamily::LatentSft, ..CheckpointSpec::default() };
    sandbox.model("model", &mixing);
    let flags =
        ["--method", "latent-sft", "--gumbel-tau", "0.5,2", "--thoughts", "3", "--out", "s"];
    let done = sweep(&sandbox, &flags).ok();
    assert!(done.out.contains("gumbel tau=0.5"), "{}", done.out);
    assert!(done.out.contains("the paper gives no band"), "{}", done.out);
    let summary = sandbox.json("s/sweep.json");
    assert_eq!(points(&summary), ["gumbel-0.5", "gumbel-2"]);
    assert_eq!(summary["samplers"][0]["kind"], "gumbel");
    let page = String::from_utf8(sandbox.read("s/report.html")).unwrap();
    assert!(page.contains("τ = 0.5"));
}

#[test]
fn a_sweep_goes_over_the_named_sampler() {
    let sandbox = CliSandbox::new();
    let flags = ["--sampler", "noise", "--evaluations", "2", "--no-report"];
    let done = sweep(&sandbox, &flags).ok();
    assert!(done.err.contains("searching sigma from 0.01 to 1.5"), "{}", done.err);
    // Other settings use another directory; the same settings use the same one, which is rejected.
    let named = ["--sampler", "dropout", "--dropout-p", "0.1,0.4"];
    sweep(&sandbox, &named).ok();
    sweep(&sandbox, &["--dropout-p", "0.1,0.4"]).refused(&["already holds a sweep", "--resume"]);
    let mut dirs: Vec<_> = std::fs::read_dir(sandbox.path("runs")).unwrap().flatten().collect();
    dirs.sort_by_key(|dir| dir.path().join("report.html").exists());
    assert_eq!(dirs.len(), 2);
    let page = std::fs::read_to_string(dirs[1].path().join("report.html")).unwrap();
    assert!(page.contains("dropout probability p"), "a figure has the strength on its x axis");
    let csv = std::fs::read_to_string(dirs[1].path().join("figures/strength.csv")).unwrap();
    assert!(csv.starts_with("panel,series,x,y,low,high\n") && csv.contains(",0.4,"), "{csv}");
    for (flags, word) in [
        (["noise", "--dropout-p", "0.1"], "--dropout-p"),
        (["dropout", "--gumbel-tau", "1"], "--gumbel-tau"),
    ] {
        let words = [word, "has no effect with --sampler", flags[0]];
        sweep(&sandbox, &[&["--sampler"], &flags[..]].concat()).refused(&words);
    }
    sweep(&sandbox, &["--sampler", "tokens"]).refused(&["tokens", "dropout, noise, gumbel"]);
}

#[test]
fn a_sweep_compares_fresh_and_kept_masks() {
    let sandbox = CliSandbox::new();
    let flags = ["--dropout-p", "0.3", "--mask", "step,trajectory", "--out", "s", "--no-report"];
    let done = sweep(&sandbox, &flags).ok();
    let table_line = "dropout p=0.3 both thoughts trajectory";
    assert!(done.out.contains(table_line), "{}", done.out);
    let summary = sandbox.json("s/sweep.json");
    assert_eq!(points(&summary), ["dropout-0.3-step", "dropout-0.3-trajectory"]);
    let masks = summary["points"].as_array().unwrap().iter().map(|p| &p["sampling"]["mask"]);
    assert!(masks.eq([&Value::from("step"), &Value::from("trajectory")]));
}

#[test]
fn a_sweep_writes_a_run_per_value_and_a_summary() {
    let sandbox = CliSandbox::new();
    let done = sweep(
        &sandbox,
        &[
            "--dropout-p",
            "0.1,0.4",
            "--noise-std",
            "0.2",
            "--sites",
            "both,mlp",
            "--out",
            "s",
            "--json",
        ],
    )
    .ok();
    let summary = done.json();
    assert_eq!(
        points(&summary),
        ["dropout-0.1-both", "dropout-0.4-both", "dropout-0.1-mlp", "dropout-0.4-mlp", "noise-0.2"]
    );
    assert_eq!(sandbox.json("s/sweep.json"), summary);
    for point in summary["points"].as_array().unwrap() {
        let run = point["run"].as_str().unwrap();
        let results = sandbox.json(&format!("s/{run}/results.json"));
        let coverage = results["metrics"]
            .as_array()
            .unwrap()
            .iter()
            .find(|m| m["name"] == "coverage" && m["k"] == 4)
            .unwrap();
        assert_eq!(point["coverage"]["4"]["value"], coverage["value"], "{run}");
        let manifest = sandbox.json(&format!("s/{run}/manifest.json"));
        for (field, value) in point["sampling"].as_object().unwrap() {
            assert_eq!(&manifest["settings"]["sampling"][field], value, "{field}");
        }
        // No point has a higher coverage than the best one.
        let value = |name: &str| {
            let best_point =
                summary["points"].as_array().unwrap().iter().find(|p| p["run"] == name).unwrap();
            best_point["coverage"]["4"]["value"].as_f64().unwrap()
        };
        assert!(value(run) <= value(summary["best"].as_str().unwrap()));
    }
    let [dropout, noise] = &summary["samplers"].as_array().unwrap()[..] else {
        panic!("{summary}")
    };
    assert_eq!(
        (&dropout["band"]["low"], &dropout["band"]["high"]),
        (&Value::from(0.1), &Value::from(0.3))
    );
    assert_eq!(
        (&noise["best"], &noise["band"]["contains_best"]),
        (&Value::from("noise-0.2"), &Value::from(false))
    );
    assert!(sandbox.path("s/report.html").exists());
    // `report` accepts the directory of a sweep instead of its runs.
    assert_eq!(
        sandbox.run(&["report", "s", "--page-only", "--json"]).ok().json()["page"],
        "s/report.html"
    );
}

#[test]
fn a_sweep_point_equals_the_eval_at_its_setting() {
    let sandbox = CliSandbox::new();
    sweep(&sandbox, &["--dropout-p", "0.3", "--out", "s", "--no-report"]).ok();
    sandbox.eval(&["--dropout-p", "0.3", "--out", "e"]).ok();
    assert_eq!(sandbox.read("s/dropout-0.3/samples.jsonl"), sandbox.read("e/samples.jsonl"));
    assert!(!sandbox.path("s/report.html").exists());
}

#[test]
fn a_search_takes_the_stated_number_of_evaluations_and_resumes() {
    let sandbox = CliSandbox::new();
    let flags = ["--dropout-p", "0:0.8", "--evaluations", "4", "--out", "s"];
    let done = sweep(&sandbox, &flags).ok();
    assert!(done.err.contains("4 evaluations, tolerance "), "{}", done.err);
    assert!(
        done.out.contains("best: dropout p=")
            && done.out.contains("band for this backbone, 0.1 to 0.3"),
        "{}",
        done.out
    );
    let summary = sandbox.json("s/sweep.json");
    assert!((1..=4).contains(&points(&summary).len()), "{summary}");

    sweep(&sandbox, &flags).refused(&["already holds a sweep", "--resume"]);
    let first = points(&summary).remove(0);
    std::fs::remove_dir_all(sandbox.path(&format!("s/{first}"))).unwrap();
    std::fs::remove_file(sandbox.path("s/sweep.json")).unwrap();
    sweep(&sandbox, &[&flags[..], &["--resume"]].concat()).ok();
    assert_eq!(sandbox.json("s/sweep.json"), summary);
}

#[test]
fn invalid_sweeps_are_rejected_before_anything_is_written() {
    let sandbox = CliSandbox::new();
    for (flags, words) in [
        (&["--dropout-p", "1.5"][..], &["--dropout-p", "below 1"][..]),
        (&["--dropout-p", "0.4:0.1"], &["empty"]),
        (&["--noise-std", "a"], &["--noise-std", "not a number"]),
        (&["--dropout-p", "0.1", "--k", "9"], &["--k 9", "--samples 4"]),
        (&["--dropout-p", "0.1", "--tolerance", "0"], &["--tolerance"]),
    ] {
        sweep(&sandbox, &[flags, &["--out", "s"]].concat()).refused(words);
    }
    sandbox
        .run(&["sweep", "--model", "model", "--dropout-p", "0.1", "--data", "embedded:nope"])
        .refused(&["embedded:nope", "(--data)"]);
    sandbox
        .run(&["sweep", "--model", "model", "--dropout-p", "0.1", "--data", "nope.json"])
        .refused(&["nope.json: no such file", "(--data takes a file", "embedded:test"]);
    assert!(!sandbox.path("s").exists());
    sandbox.write("sweep.json", "{\"version\": 3}");
    sandbox.run(&["report", "."]).refused(&["sweep.json", "format version 3", "reads version 2"]);
}

#[test]
fn a_comparison_prints_a_table_and_paired_differences() {
    let sandbox = CliSandbox::new();
    for dir in ["one", "two"] {
        std::fs::create_dir(sandbox.path(dir)).unwrap();
        let seed = if dir == "one" { 0 } else { 1 };
        let spec = CheckpointSpec { seed, ..CheckpointSpec::default() };
        sandbox.model(&format!("{dir}/checkpoint"), &spec);
        let model = format!("{dir}/checkpoint");
        sandbox.eval(&["--model", &model, "--out", &format!("runs/{dir}")]).ok();
    }
    sandbox.questions("other.jsonl", 3);
    let text = String::from_utf8(sandbox.read("other.jsonl")).unwrap();
    sandbox.write("other.jsonl", text.replace("plus", "and"));
    sandbox.eval(&["--data", "other.jsonl", "--out", "runs/three"]).ok();
    let flags = ["report", "runs/one", "runs/two", "runs/three", "--out", "report"];
    let text = sandbox.run(&flags).ok().out;
    assert!(
        text.contains("one/checkpoint, data") && text.contains("two/checkpoint, data"),
        "{text}"
    );
    assert!(text.contains("differences from one/checkpoint, data in points"), "{text}");
    assert!(text.contains("majority       +0.0 (-"), "{text}");
    assert!(text.contains("not comparable: different questions"), "{text}");
    assert!(sandbox.path("report/figures/comparison.svg").is_file());
    let json = sandbox.run(&[&flags[..], &["--json"]].concat()).ok().json();
    let first = &json["differences"][0];
    assert_eq!(
        (&first["metric"], &first["over"]),
        (&"greedy".into(), &"one/checkpoint, data".into())
    );
    let page = String::from_utf8(sandbox.read("report/report.html")).unwrap();
    assert!(page.contains("All runs against the number of trajectories"));
}
