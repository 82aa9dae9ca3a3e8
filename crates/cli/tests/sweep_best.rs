//! A sweep reports the same best value in the terminal, in sweep.json and in the report; results of
//! another sweep are never replaced.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use support::{CliSandbox, CommandOutput};

fn sweep(sandbox: &CliSandbox, more: &[&str]) -> CommandOutput {
    let base = ["--model", "model", "--data", "data.jsonl", "--max-new-tokens", "6"];
    let samples: &[&str] = if more.contains(&"--samples") { &[] } else { &["--samples", "4"] };
    sandbox.run(&[&["sweep"], &base[..], samples, more].concat())
}

#[test]
fn ties_are_reported_and_decided_consistently() {
    let sandbox = CliSandbox::new();
    // No trajectory of a random model is correct, so all values tie.
    let done = sweep(&sandbox, &["--dropout-p", "0.1,0.4", "--out", "s"]).ok();
    let summary = sandbox.json("s/sweep.json");
    assert_eq!(
        (&summary["best"], &summary["ties"][0]),
        (&"dropout-0.1".into(), &"dropout-0.4".into())
    );
    assert!(done.out.contains("best: dropout p=0.1"), "{}", done.out);
    assert!(done.out.contains("tie in coverage: dropout p=0.4"), "{}", done.out);
    let sentence = "The run with the largest coverage of 4 trajectories is dropout p = 0.1 \
                    (tied with dropout p = 0.4; ties are broken by majority)";
    let page = || String::from_utf8(sandbox.read("s/report.html")).unwrap();
    assert!(page().contains(sentence));
    // A later report of the sweep's directory agrees.
    sandbox.run(&["report", "s", "--page-only"]).ok();
    assert!(page().contains(sentence));
}

#[test]
fn a_sweep_maximizes_the_metric_that_was_asked_for() {
    let sandbox = CliSandbox::new();
    sandbox.reward_model("reward");
    let flags = ["--dropout-p", "0.1,0.4", "--no-report"];
    for (metric, head) in [("majority", "majority@4"), ("best_of", "best of k@4")] {
        let more = ["--reward-model", "reward", "--metric", metric, "--out", metric];
        let done = sweep(&sandbox, &[&flags[..], &more].concat()).ok();
        assert!(done.out.contains(head), "{}", done.out);
        assert!(done.out.contains("weighted"), "{}", done.out);
        let summary = sandbox.json(&format!("{metric}/sweep.json"));
        assert_eq!(summary["metric"], metric);
        assert!(summary["points"][0]["weighted"]["4"]["value"].is_f64(), "{summary}");
    }
    sweep(&sandbox, &[&flags[..], &["--metric", "weighted", "--out", "s"]].concat())
        .refused(&["--metric weighted needs rewards", "--reward-model"]);
}

#[test]
fn a_sweep_is_resumed_with_its_own_settings_only() {
    let sandbox = CliSandbox::new();
    let flags = ["--dropout-p", "0.1,0.4", "--out", "s", "--no-report"];
    sweep(&sandbox, &flags).ok();
    let before = sandbox.snapshot("s");
    let other: [(&[&str], &str); 3] = [
        (
            &["--dropout-p", "0.3", "--out", "s", "--resume"],
            "settings.dropout_p = \"0.1,0.4\", now it is \"0.3\"",
        ),
        (
            &["--dropout-p", "0.1,0.4", "--samples", "8", "--out", "s", "--resume"],
            "settings.sampling.samples = 4, now it is 8",
        ),
        (&["--dropout-p", "0.3", "--out", "s"], "already holds a sweep"),
    ];
    for (flags, words) in other {
        sweep(&sandbox, flags).refused(&[words, "--out"]);
    }
    assert_eq!(sandbox.snapshot("s"), before);
    // With listed values, the metric does not affect what is sampled.
    sweep(&sandbox, &[&flags[..], &["--resume", "--metric", "majority"]].concat()).ok();
    assert_eq!(sandbox.json("s/sweep.json")["metric"], "majority");
}
