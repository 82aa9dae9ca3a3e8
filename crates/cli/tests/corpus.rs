//! `latent-tts corpus`: its output is deterministic and can be loaded; invalid requests are
//! rejected.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use serde_json::Value;
use support::CliSandbox;

#[test]
fn written_and_printed_corpora_are_equal_and_load() {
    let sandbox = CliSandbox::new();
    for split in ["train", "valid", "test", "hard", "ood"] {
        let args = ["corpus", "--split", split, "--count", "7", "--offset", "5", "--seed", "3"];
        let printed = sandbox.run(&args).ok().out;
        sandbox.run(&[&args[..], &["--out", "out.json"]].concat()).ok();
        assert_eq!(sandbox.read("out.json"), printed.as_bytes());
        let records: Vec<Value> = serde_json::from_str(&printed).unwrap();
        assert_eq!(
            records.iter().map(|r| r["idx"].as_u64().unwrap()).collect::<Vec<_>>(),
            [5, 6, 7, 8, 9, 10, 11]
        );
        let examples = data::examples::read(&sandbox.path("out.json"), None).unwrap();
        for (record, example) in records.iter().zip(&examples) {
            assert_eq!(record["question"], example.question.as_str());
            assert!(example.steps.last().unwrap().ends_with(&format!("={}>>", example.answer)));
        }
        let questions = latent_tts::data::read(&sandbox.path("out.json"), None).unwrap();
        assert_eq!(questions.len(), 7);
    }
}

#[test]
fn eval_reads_the_corpus() {
    let sandbox = CliSandbox::new();
    sandbox.run(&["corpus", "--count", "2", "--out", "test.json"]).ok();
    let result = sandbox.eval(&["--data", "test.json", "--json"]).ok().json();
    assert_eq!(result["questions"], 2);
}

#[test]
fn invalid_corpus_requests_are_rejected() {
    let sandbox = CliSandbox::new();
    sandbox.run(&["corpus", "--split", "all"]).refused(&["train, valid, test, hard and ood"]);
    sandbox.run(&["corpus", "--count", "0"]).refused(&["--count"]);
    sandbox.run(&["corpus", "--offset", "18446744073709551615"]).refused(&["--offset"]);
    sandbox
        .run(&["corpus", "--count", "1", "--out", "no/such/dir.json"])
        .refused(&["no/such/dir.json"]);
}
