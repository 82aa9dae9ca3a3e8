//! Notices to the user: questions outside a model's range, missing answers, assumed families, data
//! without steps or with unknown words, mistyped variables.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use model::testkit::{CheckpointFamily, CheckpointSpec};
use support::{CliSandbox, command_output};

const GSM8K: &str = r#"{"question": "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes muffins for her friends. How much does she make?", "answer": "She eats <<16-3=13>>13 eggs.\n#### 13"}
"#;

#[test]
fn solve_reports_questions_outside_the_training_distribution() {
    let sandbox = CliSandbox::new();
    let done = sandbox.run(&["solve", "What is 7 times 8?", "--samples", "2"]).ok();
    assert!(
        done.err.contains("outside the training distribution of the embedded model"),
        "{}",
        done.err
    );
    assert!(done.err.contains("1 sentence (expected 2 to 9)"), "{}", done.err);
    assert!(done.out.contains("outside the model's range"), "{}", done.out);
    assert!(!done.out.contains("100% of"), "{}", done.out);
    assert!(done.out.contains("not the probability of being correct"), "{}", done.out);
    let json = sandbox.run(&["solve", "What is 7 times 8?", "--samples", "2", "--json"]).ok();
    assert_eq!(json.json()["out_of_range"][0], "1 sentence (expected 2 to 9)");
}

#[test]
fn eval_reports_unknown_words() {
    let sandbox = CliSandbox::new();
    sandbox.write("gsm8k.jsonl", GSM8K);
    let eval = |data: &str| {
        let flags = ["eval", "--data", data, "--limit", "2", "--samples", "2", "--no-report"];
        sandbox.run(&flags).ok()
    };
    let told = eval("gsm8k.jsonl").err;
    assert!(told.contains("1 of 1 question is outside the model's range"), "{told}");
    assert!(told.contains("\"Janet\"") && told.contains("unknown words"), "{told}");
    let silent = eval("embedded:test").err;
    assert!(!silent.contains("outside"), "{silent}");
}

#[test]
fn missing_answers_are_counted_with_their_reasons() {
    let sandbox = CliSandbox::new();
    let done = sandbox.eval(&["--out", "run", "--max-new-tokens", "3"]).ok();
    assert!(done.out.contains("of trajectories have no answer"), "{}", done.out);
    assert!(done.out.contains("e.g."), "{}", done.out);
    let results = sandbox.json("run/results.json");
    let unanswered = &results["unanswered"];
    let count = |reason: &str| unanswered[reason].as_u64().unwrap();
    let records = sandbox.samples("run");
    let trajectories: Vec<_> =
        records.iter().flat_map(|sample| sample["trajectories"].as_array().unwrap()).collect();
    let without: Vec<_> = trajectories.iter().filter(|t| t["answer"].is_null()).collect();
    let truncated = without.iter().filter(|t| t["truncated"] == true).count() as u64;
    assert!(truncated > 0, "a random model rarely ends a text within three tokens");
    assert_eq!(count("truncated"), truncated);
    assert_eq!(count("truncated") + count("empty") + count("not_found"), without.len() as u64);
    assert!(!unanswered["examples"].as_array().unwrap().is_empty());
}

#[test]
fn an_assumed_family_is_called_so() {
    let sandbox = CliSandbox::new();
    let spec = CheckpointSpec { family: CheckpointFamily::LatentSft, ..CheckpointSpec::default() };
    sandbox.model("llama", &spec);
    // A plain Llama model has none of COCONUT's marker tokens.
    for file in ["llama/config.json", "llama/tokenizer.json", "llama/tokenizer_config.json"] {
        let text = String::from_utf8(sandbox.read(file)).unwrap();
        let plain =
            text.replace("<|start-latent|>", "<|reserved|>").replace("latent_start_id", "x");
        sandbox.write(file, plain);
    }
    let flags = ["--model", "llama", "--samples", "1", "--thoughts", "2", "--out", "a"];
    let told = sandbox.eval(&flags).ok().err;
    assert!(told.contains("assuming latent-sft") && told.contains("--method cot"), "{told}");
    let named = [&flags[..7], &["b", "--method", "latent-sft"]].concat();
    assert!(!sandbox.eval(&named).ok().err.contains("assuming"));
    let described = sandbox.run(&["inspect", "llama"]).ok().out;
    assert!(described.contains("latent-sft (assumed"), "{described}");
}

#[test]
fn training_data_that_teach_nothing_are_refused() {
    let sandbox = CliSandbox::new();
    sandbox.write("gsm8k.jsonl", GSM8K);
    let train = |data: &str, more: &[&str]| {
        let flags = ["train", "reasoner", "--data", data, "--out", "m", "--steps", "1"];
        let small = ["--width", "16", "--layers", "1", "--heads", "2", "--batch", "2"];
        sandbox.run(&[&flags[..], &small, more].concat())
    };
    train("gsm8k.jsonl", &["--mode", "cot"])
        .refused(&["of its tokens are not in the built-in vocabulary", "--init"]);
    train("data.jsonl", &["--mode", "cot"]).refused(&["no example has steps", "--mode no-cot"]);
    assert!(!sandbox.path("m").exists());
    let known = "{\"question\": \"Tom has 3 pens. Tom buys 4 more pens. How many pens does Tom \
                 have?\", \"steps\": [\"<<3+4=7>>\"], \"answer\": \"7\"}\n";
    sandbox.write("known.jsonl", known);
    let told = train("known.jsonl", &["--mode", "cot"]).ok().err;
    assert!(told.contains("1 example, 100.0% with steps, 0.0% of tokens unknown"), "{told}");
    assert!(told.contains("pass --held-out"), "{told}");
}

#[test]
fn annotations_without_a_label_are_refused() {
    let sandbox = CliSandbox::new();
    // A random model solves nothing.
    let flags = ["annotate", "--model", "model", "--data", "data.jsonl", "--out", "labels"];
    let more = ["--samples", "2", "--rollouts", "1", "--max-new-tokens", "3"];
    sandbox.run(&[&flags[..], &more].concat()).refused(&[
        "no labels in labels",
        "of 8 questions",
        "8 only incorrect ones",
        "--samples",
    ]);
}

#[test]
fn mistyped_variables_are_reported() {
    let sandbox = CliSandbox::new();
    let mut command = sandbox.command(&["corpus", "--count", "1"]);
    command.env("LATENT_TTS_SAMPLS", "3").env("LATENT_TTS_SAMPLES", "3");
    let told = command_output(command.output().unwrap()).ok().err;
    let expected = "unknown environment variable LATENT_TTS_SAMPLS; did you mean \
                    LATENT_TTS_SAMPLES?";
    assert!(told.contains(expected), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
}

#[test]
fn questions_that_are_too_long_are_skipped_on_request() {
    let sandbox = CliSandbox::new();
    let short = String::from_utf8(sandbox.read("data.jsonl")).unwrap();
    let long = format!(
        "{{\"question\": \"{}\", \"answer\": \"1\"}}\n",
        "What is one plus one? ".repeat(500)
    );
    sandbox.write("mixed.jsonl", format!("{long}{short}"));
    let flags = ["--data", "mixed.jsonl", "--thoughts", "3", "--out", "run"];
    sandbox.eval(&flags).refused(&["question 0", "and 3 thoughts", "--too-long skip"]);
    assert!(!sandbox.path("run").exists());
    let done = sandbox.eval(&[&flags[..], &["--too-long", "skip", "--json"]].concat()).ok();
    assert!(
        done.err.contains("skipped 1 question of 9, too long for the model: 0"),
        "{}",
        done.err
    );
    assert_eq!((&done.json()["skipped"][0], &done.json()["questions"]), (&0.into(), &8.into()));
    let flags = ["annotate", "--model", "model", "--data", "mixed.jsonl", "--out", "labels"];
    let told = sandbox.run(&[&flags[..], &["--too-long", "skip", "-n", "2"]].concat()).err;
    assert!(told.contains("skipped 1 question of 9"), "{told}");
}

#[test]
fn solve_shows_every_trajectory_on_request() {
    let sandbox = CliSandbox::new();
    let question = "Tom has 3 pens. Tom buys 4 more pens. How many pens does Tom have now?";
    let solve = |more: &[&str]| sandbox.run(&[&["solve", question, "-n", "3"], more].concat()).ok();
    let json = solve(&["--json"]).json();
    let shown = solve(&["--show"]).out;
    for trajectory in json["trajectories"].as_array().unwrap() {
        let reward = trajectory["outcome_reward"].as_f64().unwrap();
        let thought = trajectory["process_rewards"][0].as_f64().unwrap();
        let words = [format!("{reward:.3}"), format!("{thought:.3}")];
        let is_shown = |line: &str| {
            line.ends_with(&trajectory["text"].to_string())
                && words.iter().all(|word| line.contains(word))
        };
        assert!(shown.lines().any(is_shown), "{trajectory} in {shown}");
    }
    assert!(shown.contains("(outcome), per thought"), "{shown}");
    assert!(!solve(&[]).out.contains("rewards per thought, text"));
    let cut = solve(&["--max-new-tokens", "1"]).out;
    assert!(
        cut.contains("none: no answer found, e.g. in \"###\"") && cut.contains("--show"),
        "{cut}"
    );
}

#[test]
fn solve_reads_one_question_a_line() {
    let sandbox = CliSandbox::new();
    let lines = "Tom has 3 pens. Tom buys 4 more pens. How many pens does Tom have now?\n\n\
                 Ben has 5 pens. Ben buys 4 more pens. How many pens does Ben have now?\n";
    sandbox.write("questions.txt", lines);
    let run = |more: &[&str]| {
        let mut command = sandbox.command(&[&["solve", "-", "-n", "2"], more].concat());
        command.stdin(std::fs::File::open(sandbox.path("questions.txt")).unwrap());
        command_output(command.output().unwrap()).ok()
    };
    let json: Vec<serde_json::Value> =
        run(&["--json"]).out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(json.len(), 2);
    assert!(json[1]["question"].as_str().unwrap().starts_with("Ben has 5"));
    let text = run(&[]).out;
    assert!(text.starts_with("Tom has 3 pens") && text.contains("\n\nBen has 5 pens"), "{text}");
}

#[test]
fn a_mistyped_path_is_not_looked_up_on_the_hub() {
    let sandbox = CliSandbox::new();
    std::fs::create_dir(sandbox.path("models")).unwrap();
    let done = sandbox.eval(&["--model", "models/typo"]).refused(&["models/typo"]);
    assert!(!done.err.contains("Hub") && !done.err.contains("hf download"), "{}", done.err);
}

#[test]
fn inspect_lists_every_tensor_on_request_only() {
    let sandbox = CliSandbox::new();
    let inspect = |more: &[&str]| sandbox.run(&[&["inspect", "model"], more].concat()).ok().out;
    let (short, long) = (inspect(&[]), inspect(&["--tensors"]));
    assert!(short.contains(" used, 0 ignored, 0 unknown"), "{short}");
    assert!(short.lines().count() < 16 && long.starts_with(short.trim_end()), "{short}");
    assert!(!short.contains("\nused\n") && long.contains("\nused\n"), "{long}");
}

#[test]
fn a_run_of_other_settings_may_be_replaced() {
    let sandbox = CliSandbox::new();
    sandbox.eval(&["--out", "run"]).ok();
    sandbox
        .eval(&["--out", "run", "--resume", "--seed", "1"])
        .refused(&["seeds = [0]", "--overwrite or --out"]);
}
