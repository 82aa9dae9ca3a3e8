//! `latent-tts corpus`: what it writes reads back, is the same again, and broken requests are refused.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use serde_json::Value;
use support::Bench;
use train::dataset;

#[test]
fn a_file_reads_back_and_equals_what_is_printed() {
    let bench = Bench::new();
    for split in ["train", "valid", "test", "hard", "ood"] {
        let args = ["corpus", "--split", split, "--count", "7", "--offset", "5", "--seed", "3"];
        let printed = bench.run(&args).ok().out;
        bench.run(&[&args[..], &["--out", "out.json"]].concat()).ok();
        assert_eq!(bench.read("out.json"), printed.as_bytes());
        let records: Vec<Value> = serde_json::from_str(&printed).unwrap();
        assert_eq!(records.iter().map(|r| r["idx"].as_u64().unwrap()).collect::<Vec<_>>(), [5, 6, 7, 8, 9, 10, 11]);
        let examples = dataset::read(&bench.path("out.json"), None).unwrap();
        for (record, example) in records.iter().zip(&examples) {
            assert_eq!(record["question"], example.question.as_str());
            assert!(example.steps.last().unwrap().ends_with(&format!("={}>>", example.answer)));
        }
        let questions = engine::question::read(&bench.path("out.json"), None).unwrap();
        assert_eq!(questions.len(), 7);
    }
}

#[test]
fn an_evaluation_reads_the_corpus() {
    let bench = Bench::new();
    bench.run(&["corpus", "--count", "2", "--out", "test.json"]).ok();
    let result = bench.eval(&["--data", "test.json", "--json"]).ok().json();
    assert_eq!(result["questions"], 2);
}

#[test]
fn what_cannot_be_written_is_refused() {
    let bench = Bench::new();
    bench.run(&["corpus", "--split", "all"]).refused(&["train, valid, test, hard and ood"]);
    bench.run(&["corpus", "--count", "0"]).refused(&["--count"]);
    bench.run(&["corpus", "--offset", "18446744073709551615"]).refused(&["--offset"]);
    bench.run(&["corpus", "--count", "1", "--out", "no/such/dir.json"]).refused(&["no/such/dir.json"]);
}
