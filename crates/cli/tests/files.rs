//! docs/reference/files.md against the files that the commands write: every field is documented and
//! of the documented type, and every field that is not optional is there.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use support::CliSandbox;

const DOCUMENT: &str = include_str!("../../../docs/reference/files.md");

/// The documented fields of each file, with path and type.
fn documented() -> BTreeMap<&'static str, BTreeMap<&'static str, &'static str>> {
    let sections = DOCUMENT.split("\n## ").skip(1);
    let fields = |section: &'static str| {
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        rows.map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            (cells[1].trim_matches('`'), cells[2])
        })
        .collect()
    };
    sections.map(|section| (section.lines().next().unwrap(), fields(section))).collect()
}

fn is_of_type(value: &Value, name: &str) -> bool {
    let (name, optional) = name.strip_suffix('?').map_or((name, false), |name| (name, true));
    match name {
        _ if value.is_null() => optional,
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" | "map" => value.is_object(),
        "any" => true,
        other => panic!("docs/reference/files.md has the type {other}"),
    }
}

/// Checks the value at a path and its children; adds the paths to `seen`.
fn check(
    path: &str,
    value: &Value,
    fields: &BTreeMap<&'static str, &'static str>,
    seen: &mut BTreeSet<String>,
) {
    let inside = |key: &str| if path.is_empty() { key.into() } else { format!("{path}.{key}") };
    // For elements that are objects, the fields are documented instead of the element.
    let element = path.ends_with("[]") && value.is_object();
    if !path.is_empty() && !element {
        let name = fields.get(path).unwrap_or_else(|| panic!("{path} is not documented: {value}"));
        assert!(is_of_type(value, name), "{path} is documented as {name} and is {value}");
        seen.insert(path.to_owned());
        if name.starts_with("map") {
            return;
        }
    }
    match value {
        Value::Object(entries) => {
            entries.iter().for_each(|(key, value)| check(&inside(key), value, fields, seen));
        }
        Value::Array(items) => {
            items.iter().for_each(|item| check(&format!("{path}[]"), item, fields, seen));
        }
        _ => {}
    }
}

/// A sandbox with every documented file, and their paths.
fn written() -> (CliSandbox, Vec<(&'static str, &'static str)>) {
    let sandbox = CliSandbox::new();
    sandbox.reward_model("reward");
    let more = ["--reward-model", "reward", "--ablate", "swap", "--lens", "2", "--out", "run"];
    sandbox.eval(&more).ok();
    let adaptive = ["--adaptive", "--samples", "16", "--max-new-tokens", "12", "--out", "stopped"];
    sandbox.eval(&adaptive).ok();
    // The embedded reward model reads answers.
    sandbox.run(&["eval", "--limit", "2", "--samples", "2", "--no-report", "--out", "read"]).ok();
    let flags = ["sweep", "--model", "model", "--reward-model", "reward", "--data", "data.jsonl"];
    let more = ["--dropout-p", "0.1,0.2", "--samples", "2", "--no-report", "--out", "sweep"];
    sandbox.run(&[&flags[..], &more].concat()).ok();
    let flags = ["train", "reasoner", "--out", "model-2", "--steps", "2", "--batch", "2"];
    let more = ["--width", "16", "--layers", "1", "--heads", "2", "--held-out-count", "2"];
    sandbox.run(&[&flags[..], &more].concat()).ok();
    // A random model produces no labels, but the index is written.
    let flags = ["annotate", "--model", "model", "--data", "data.jsonl", "--out", "labels"];
    sandbox.run(&[&flags[..], &["-n", "2", "--rollouts", "1"]].concat());
    let files = vec![
        ("manifest.json", "run/manifest.json"),
        ("samples.jsonl", "run/samples.jsonl"),
        ("samples.jsonl", "stopped/samples.jsonl"),
        ("samples.jsonl", "read/samples.jsonl"),
        ("timings.jsonl", "run/timings.jsonl"),
        ("results.json", "run/results.json"),
        ("results.json", "read/results.json"),
        ("ablation.json", "run/ablation.json"),
        ("sweep.json", "sweep/sweep.json"),
        ("training/log.jsonl", "model-2/training/log.jsonl"),
        ("training/evals.jsonl", "model-2/training/evals.jsonl"),
        ("training/timings.jsonl", "model-2/training/timings.jsonl"),
        ("index.json", "labels/index.json"),
    ];
    (sandbox, files)
}

#[test]
fn every_field_is_documented() {
    let (documented, (sandbox, files)) = (documented(), written());
    let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (name, path) in files {
        let fields = documented.get(name).unwrap_or_else(|| panic!("{name} is not documented"));
        let text = String::from_utf8(sandbox.read(path)).unwrap();
        let values: Vec<Value> = match name.ends_with(".jsonl") {
            true => text.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
            false => vec![serde_json::from_str(&text).unwrap()],
        };
        assert!(!values.is_empty(), "{path} is empty");
        let seen = seen.entry(name).or_default();
        values.iter().for_each(|value| check("", value, fields, seen));
    }
    for (name, fields) in &documented {
        let Some(seen) = seen.get(name) else {
            assert!(fields.is_empty(), "no test writes {name}");
            continue;
        };
        for (path, kind) in fields {
            // Children of an optional field are optional as well.
            let optional = fields.iter().any(|(above, kind)| {
                kind.ends_with('?')
                    && (path == above
                        || path
                            .strip_prefix(above)
                            .is_some_and(|rest| rest.starts_with(['.', '['])))
            });
            let may_be_empty = path.ends_with("[]") && !kind.ends_with('?');
            assert!(
                optional || may_be_empty || seen.contains(*path),
                "{name} has no {path}, which docs/reference/files.md says it has"
            );
        }
    }
}
