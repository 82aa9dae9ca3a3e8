//! `latent-tts augment`: its output is deterministic and can be trained on; invalid requests are
//! rejected.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use serde_json::Value;
use support::CliSandbox;

const PROBLEMS: &str = r#"
{"question": "A farmer has 51 cows, buys 5 cows and sells a quarter of the herd. How many are left?", "answer": "<<51+5=56>>56 <<56/4=14>>14 <<56-14=42>>42\n#### 42"}
{"question": "He counts a bit more than 12 birds. How many are there?", "answer": "<<12+5=17>>17\n#### 17"}
"#;

#[test]
fn variants_are_written_and_counted() {
    let sandbox = CliSandbox::new();
    sandbox.write("in.jsonl", PROBLEMS.as_bytes());
    let args = ["augment", "in.jsonl", "--count", "9", "--seed", "3", "--keep-original"];
    let printed = sandbox.run(&args).ok().out;
    let written = [&args[..], &["--out", "out.jsonl", "--json"]].concat();
    let report: Value = sandbox.run(&written).ok().json();
    assert_eq!(sandbox.read("out.jsonl"), printed.as_bytes());
    assert_eq!((&report["problems"], &report["with_graph"]), (&2.into(), &1.into()));
    assert_eq!(report["refused"]["unexplained_number"], 1);
    assert_eq!((&report["variants"], &report["originals"]), (&9.into(), &2.into()));
    let examples = data::examples::read(&sandbox.path("out.jsonl"), None).unwrap();
    assert_eq!(examples.len(), 11);
    for (line, example) in printed.lines().zip(&examples) {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["question"], example.question.as_str());
        assert_eq!(line["steps"].as_array().unwrap().len(), example.steps.len());
    }
}

#[test]
fn the_table_names_reasons_and_files_are_left_out() {
    let sandbox = CliSandbox::new();
    sandbox.write("in.jsonl", PROBLEMS.as_bytes());
    let table = sandbox.run(&["augment", "in.jsonl", "--total", "4", "--out", "a.jsonl"]).ok().out;
    assert!(
        table.contains("a number of unknown origin") && table.contains("4  variants"),
        "{table}"
    );
    let nothing =
        sandbox.run(&["augment", "in.jsonl", "--decontaminate", "in.jsonl", "--out", "b.jsonl"]);
    nothing.refused(&["b.jsonl", "no variants", "2 of 2 problems were rejected"]);
    assert!(!sandbox.path("b.jsonl").exists());
}

#[test]
fn invalid_augment_requests_are_rejected() {
    let sandbox = CliSandbox::new();
    sandbox.write("in.jsonl", PROBLEMS.as_bytes());
    sandbox.run(&["augment"]).refused(&["FILE"]);
    sandbox.run(&["augment", "none.jsonl"]).refused(&["none.jsonl"]);
    sandbox.run(&["augment", "in.jsonl", "--count", "0"]).refused(&["--count"]);
    sandbox.run(&["augment", "in.jsonl", "--count", "1", "--total", "2"]).refused(&["--total"]);
    sandbox.run(&["augment", "in.jsonl", "--out", "no/dir.jsonl"]).refused(&["no/dir.jsonl"]);
}
