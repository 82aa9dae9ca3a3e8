//! Every command on valid input.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::io::Write;
use std::process::Stdio;

use model::testkit::{CheckpointFamily, CheckpointSpec, GgmlType, GgufContent};
use serde_json::Value;
use support::{CliSandbox, REASONERS, command_output};

#[test]
fn eval_runs_every_family() {
    let sandbox = CliSandbox::new();
    for (i, (name, family)) in REASONERS.into_iter().enumerate() {
        let model = format!("model-{i}");
        sandbox.model(&model, &CheckpointSpec { family, ..CheckpointSpec::default() });
        let mut args = vec![
            "eval",
            "--model",
            &model,
            "--data",
            "data.jsonl",
            "--limit",
            "2",
            "-n",
            "3",
            "--max-new-tokens",
            "4",
        ];
        if name == "latent-sft" {
            // The testkit has one tokenizer for all Llama families, with marker tokens that a
            // published Latent-SFT checkpoint lacks, so the family must be given.
            args.extend(["--method", name]);
        }
        let result = sandbox.run(&[&args[..], &["--json"]].concat()).ok().json();
        assert_eq!(result["settings"]["method"], name);
        assert_eq!(
            (&result["questions"], &result["trajectories"]),
            (&Value::from(2), &Value::from(3))
        );
    }
}

#[test]
fn eval_json_has_every_metric() {
    let sandbox = CliSandbox::new();
    sandbox.reward_model("latent-rm");
    let done = sandbox
        .eval(&[
            "--reward-model",
            "latent-rm",
            "--json",
            "--k",
            "1,4",
            "--seeds",
            "2",
            "--out",
            "run",
        ])
        .ok();
    let result = done.json();
    for (name, ks) in [
        ("greedy", &[1][..]),
        ("coverage", &[1, 4]),
        ("majority", &[1, 4]),
        ("weighted", &[1, 4]),
        ("best_of", &[1, 4]),
        ("normalized", &[1, 4]),
        ("lcb", &[1, 4]),
        ("beam", &[4]),
        ("diversity", &[4]),
    ] {
        let metrics: Vec<&Value> =
            result["metrics"].as_array().unwrap().iter().filter(|m| m["name"] == name).collect();
        assert_eq!(
            metrics.iter().map(|m| m["k"].as_u64().unwrap()).collect::<Vec<_>>(),
            ks,
            "{name}"
        );
        for metric in metrics {
            let [low, value, high] =
                ["low", "value", "high"].map(|field| metric[field].as_f64().unwrap());
            assert!(low <= value && value <= high, "{metric}");
            assert_eq!(metric["seeds"], 2);
        }
    }
    assert!(result["cost"]["flops"].as_f64().unwrap() > 0.0);
    assert!(result["cost"]["seconds"]["thoughts"].as_f64().unwrap() > 0.0);
    assert!(result["cost"]["beam"]["steps"].as_f64().unwrap() > 0.0);
    assert!(result["cost"]["seconds"]["beam"].as_f64().unwrap() > 0.0);
    assert_eq!(result["run"], "run");
    assert_eq!(result["settings"]["sampling"]["dropout_p"], 0.2);
    assert_eq!(result["settings"]["sampling"]["beam_width"], 2);
    assert_eq!(result["settings"]["sampling"]["beam_candidates"], 2);

    let manifest = sandbox.json("run/manifest.json");
    assert_eq!(manifest["seeds"], serde_json::json!([0, 1]));
    assert_eq!(manifest["questions"], 8);
    assert_eq!(manifest["host"]["threads"], 1);
    assert!(manifest["settings"].get("threads").is_none());
    assert_eq!(sandbox.json("run/results.json")["metrics"], result["metrics"]);
    assert_eq!(String::from_utf8(sandbox.read("run/samples.jsonl")).unwrap().lines().count(), 16);
}

#[test]
fn aggregators_can_be_selected() {
    let sandbox = CliSandbox::new();
    sandbox.reward_model("latent-rm");
    let names = |more: &[&str]| {
        let result = sandbox
            .eval(&[&["--json", "--limit", "2", "--overwrite", "--out", "run"], more].concat())
            .ok()
            .json();
        let mut names: Vec<String> = result["metrics"]
            .as_array()
            .unwrap()
            .iter()
            .map(|m| m["name"].as_str().unwrap().to_owned())
            .collect();
        names.dedup();
        (names, sandbox.json("run/manifest.json")["settings"]["sampling"].clone())
    };
    let with_rewards = ["--reward-model", "latent-rm"];
    let (some, sampling) =
        names(&[&with_rewards[..], &["--aggregate", "maj,best_of_last"]].concat());
    assert_eq!(some, ["greedy", "coverage", "majority", "best_of_last", "diversity"]);
    assert_eq!(sampling["beam"], false, "a beam search ran without being requested");
    let (some, sampling) = names(
        &[
            &with_rewards[..],
            &["--aggregate", "beam", "--beam-width", "3", "--beam-candidates", "2"],
        ]
        .concat(),
    );
    assert_eq!(some, ["greedy", "coverage", "beam", "diversity"]);
    let size = (&sampling["beam_width"], &sampling["beam_candidates"]);
    assert_eq!(size, (&Value::from(3), &Value::from(2)));
    let table =
        sandbox.eval(&[&with_rewards[..], &["--limit", "2", "--out", "table"]].concat()).ok().out;
    for word in ["lcb", "beam cost", "scoring", "% of the sampling time"] {
        assert!(table.contains(word), "{word} in {table}");
    }

    let tuned = [
        "--limit",
        "2",
        "--out",
        "table",
        "--resume",
        "--vote-temperature",
        "0.5",
        "--lcb-coefficient",
        "2",
        "--json",
    ];
    let tuned = sandbox.eval(&[&with_rewards[..], &tuned].concat()).ok().json();
    assert_eq!(
        tuned["vote_params"],
        serde_json::json!({
            "temperature": 0.5, "likelihood_weight": 1.0, "lcb_coefficient": 2.0
        }),
        "vote parameters apply to a recorded run"
    );
    sandbox.eval(&["--vote-temperature", "0"]).refused(&["--vote-temperature", "above 0"]);

    sandbox.eval(&["--aggregate", "weighted"]).refused(&["--aggregate weighted", "--reward-model"]);
    sandbox.eval(&["--beam-width", "2"]).refused(&["--beam-width", "--reward-model"]);
    sandbox.eval(&["--scorer", "ftp://a"]).refused(&["--scorer", "ftp://a", "http://"]);
    let chat = "http://127.0.0.1:9/v1/chat/completions";
    sandbox.eval(&["--scorer", chat]).refused(&["--scorer-model", chat]);
    sandbox.eval(&["--scorer-model", "judge"]).refused(&["--scorer"]);
    let search = ["--scorer", "http://127.0.0.1:9/", "--aggregate", "beam"];
    sandbox.eval(&search).refused(&["--aggregate beam", "--reward-model"]);
    sandbox.eval(&["--aggregate", "best"]).refused(&["--aggregate", "best_of"]);
    sandbox.eval(&["--target-confidence", "0.9"]).ok();
    sandbox.eval(&["--adaptive", "--target-confidence", "0.3"]).refused(&["above 0.5"]);
}

#[test]
fn best_of_mean_is_reported_with_a_reward_model() {
    let sandbox = CliSandbox::new();
    sandbox.reward_model("latent-rm");
    let flags = ["--aggregate", "best_of_mean", "--limit", "2", "--k", "1,4", "--out", "run"];
    sandbox.eval(&[&["--reward-model", "latent-rm"], &flags[..]].concat()).ok();
    let results = sandbox.json("run/results.json");
    let metrics = results["metrics"].as_array().unwrap();
    let ks: Vec<u64> = metrics
        .iter()
        .filter(|metric| metric["name"] == "best_of_mean")
        .map(|metric| metric["k"].as_u64().unwrap())
        .collect();
    assert_eq!(ks, [1, 4], "{results}");
    assert!(metrics.iter().all(|metric| metric["name"] != "best_of"), "{results}");
    sandbox
        .eval(&["--aggregate", "best_of_mean"])
        .refused(&["--aggregate best_of_mean", "--reward-model"]);
}

/// The answer with the most votes, and whether there was a tie; ties go to the answer of the lowest
/// trajectory number.
fn majority_answer(sample: &Value) -> (Option<String>, bool) {
    let trajectories = sample["trajectories"].as_array().unwrap();
    let answers: Vec<&str> = trajectories.iter().filter_map(|t| t["answer"].as_str()).collect();
    let votes = |answer: &str| answers.iter().filter(|other| **other == answer).count();
    let most = answers.iter().map(|answer| votes(answer)).max().unwrap_or(0);
    let leaders: Vec<&str> =
        answers.iter().copied().filter(|answer| votes(answer) == most).collect();
    let tie = leaders.iter().any(|answer| *answer != leaders[0]);
    (leaders.first().map(|answer| (*answer).to_owned()), tie)
}

#[test]
fn majority_ties_go_to_the_lowest_trajectory() {
    let sandbox = CliSandbox::new();
    sandbox.model(
        "codi",
        &CheckpointSpec { family: CheckpointFamily::CodiGpt2, ..CheckpointSpec::default() },
    );
    let flags = [
        "--model",
        "codi",
        "--dropout-p",
        "0.5",
        "--max-new-tokens",
        "16",
        "--aggregate",
        "majority",
    ];
    sandbox.eval(&[&flags[..], &["--out", "first"]].concat()).ok();
    // With the expected winners as gold answers, majority voting is always correct if there is a
    // winner.
    let (mut data, mut winners, mut ties) = (String::new(), 0, 0);
    for sample in sandbox.samples("first") {
        let (winner, tie) = majority_answer(&sample);
        winners += usize::from(winner.is_some());
        ties += usize::from(tie);
        let answer = winner.unwrap_or("12345".to_owned());
        let line = serde_json::json!({ "question": sample["question"], "answer": answer });
        data.push_str(&format!("{line}\n"));
    }
    assert!(ties > 0, "no question has a tie");
    sandbox.write("data.jsonl", data);
    let result = sandbox.eval(&[&flags[..], &["--out", "second", "--json"]].concat()).ok().json();
    let metrics = result["metrics"].as_array().unwrap();
    let majority = metrics.iter().find(|m| m["name"] == "majority" && m["k"] == 4).unwrap();
    assert_eq!(majority["value"].as_f64(), Some(winners as f64 / 8.0), "{result}");
}

#[test]
fn adaptive_runs_report_sample_counts() {
    let sandbox = CliSandbox::new();
    sandbox.model(
        "codi",
        &CheckpointSpec { family: CheckpointFamily::CodiGpt2, ..CheckpointSpec::default() },
    );
    let base = ["--model", "codi", "--samples", "16", "--sampler", "none", "--json"];
    let full = sandbox.eval(&[&base[..], &["--out", "full"]].concat()).ok().json();
    let short = sandbox.eval(&[&base[..], &["--adaptive", "--out", "short"]].concat()).ok().json();
    assert_eq!((&full["sampled"], &short["trajectories"]), (&Value::from(16.0), &Value::from(16)));
    assert!(short["sampled"].as_f64().unwrap() < 16.0, "{short}");
    let votes = |result: &Value| {
        let metrics = result["metrics"].as_array().unwrap().clone();
        metrics.into_iter().find(|m| m["name"] == "majority" && m["k"] == 16).unwrap()
    };
    assert_eq!(
        votes(&full),
        votes(&short),
        "equal answers have the same majority for any number of trajectories"
    );
    assert_eq!(short["settings"]["sampling"]["target_confidence"], 0.95);
    let samples = String::from_utf8(sandbox.read("short/samples.jsonl")).unwrap();
    assert!(samples.contains(r#""stopped":{"requested":16,"reason":"confident"}"#), "{samples}");

    let solved = sandbox
        .run(&[
            "solve",
            "--model",
            "codi",
            "--sampler",
            "none",
            "--adaptive",
            "-n",
            "16",
            "What is 2 plus 2?",
        ])
        .ok();
    assert!(
        solved.out.contains("stopped      after 4 of 16 trajectories: the lead is large enough"),
        "{}",
        solved.out
    );
}

#[test]
fn eval_prints_a_table_and_keeps_progress_off_standard_output() {
    let sandbox = CliSandbox::new();
    let done = sandbox.eval(&[]).ok();
    assert!(
        done.out.contains("coverage") && done.out.contains("samples and results: runs/model-data-"),
        "{}",
        done.out
    );
    assert!(
        done.err.contains("run directory runs/model-data-") && done.err.contains("trajectories/s"),
        "{}",
        done.err
    );
    assert_eq!(sandbox.eval(&["--quiet", "--out", "other"]).ok().err, "");
}

#[test]
fn batch_size_and_threads_do_not_change_samples() {
    let sandbox = CliSandbox::new();
    sandbox.eval(&["--out", "a"]).ok();
    sandbox.eval(&["--out", "b", "--memory", "300KiB"]).ok();
    sandbox.eval(&["--out", "c", "--threads", "3"]).ok();
    assert_eq!(sandbox.read("a/samples.jsonl"), sandbox.read("b/samples.jsonl"));
    assert_eq!(sandbox.read("a/samples.jsonl"), sandbox.read("c/samples.jsonl"));
}

#[test]
fn samplers_and_lengths_reach_the_manifest() {
    let sandbox = CliSandbox::new();
    let sampler = |more: &[&str], out: &str| {
        sandbox.eval(&[more, &["--limit", "1", "--out", out]].concat()).ok();
        sandbox.json(&format!("{out}/manifest.json"))["settings"]["sampling"].clone()
    };
    let is = |settings: &Value, expected: Value| {
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(&settings[field], value, "{field} in {settings}");
        }
    };
    let noise = sampler(&["--noise-std", "0.3", "--thoughts", "2-4"], "a");
    is(&noise, serde_json::json!({ "sampler": "noise", "noise_std": 0.3, "latent_length": "2-4" }));
    assert_eq!(noise.get("dropout_p"), None);
    let dropout = sampler(
        &["--dropout-p", "0.1", "--sites", "mlp", "--scope", "all", "--thoughts", "<=3"],
        "b",
    );
    let expected = serde_json::json!({
        "sampler": "dropout", "dropout_p": 0.1, "sites": "mlp", "scope": "all", "mask": "step",
        "latent_length": "<=3",
    });
    is(&dropout, expected);
    let latent_sft =
        CheckpointSpec { family: CheckpointFamily::LatentSft, ..CheckpointSpec::default() };
    sandbox.model("mixing", &latent_sft);
    let mixing = ["--model", "mixing", "--method", "latent-sft", "--gumbel-tau", "0.5"];
    let gumbel = sampler(&mixing, "gumbel");
    is(&gumbel, serde_json::json!({ "sampler": "gumbel", "gumbel_tau": 0.5 }));
    let unmixed = sandbox.eval(&["--sampler", "gumbel", "--out", "unmixed"]);
    unmixed.refused(&["mixtures", "--sampler dropout"]);
    let kept = sampler(&["--mask", "trajectory"], "kept");
    assert_eq!(kept["mask"], "trajectory");
    let fresh = sampler(&["--mask", "step"], "fresh");
    assert_eq!(fresh["mask"], "step");
    assert_ne!(sandbox.samples("kept"), sandbox.samples("fresh"));
    assert_eq!(sampler(&["--sampler", "none"], "c")["sampler"], "none");
    let tokens = sampler(&["--temperature", "0.7", "--top-p", "0.9"], "d");
    let expected = serde_json::json!({
        "sampler": "tokens", "temperature": 0.7, "top_p": 0.9, "latent_length": 6,
    });
    is(&tokens, expected);
}

#[test]
fn cot_models_sample_tokens() {
    let sandbox = CliSandbox::new();
    let done = sandbox.eval(&["--family", "cot", "--json", "--out", "run"]).ok().json();
    let sampling = &done["settings"]["sampling"];
    assert_eq!(done["settings"]["method"], "cot");
    assert_eq!(
        (&sampling["sampler"], &sampling["temperature"], &sampling["top_p"]),
        (&Value::from("tokens"), &Value::from(1.0), &Value::from(1.0))
    );
    for sample in sandbox.samples("run") {
        for trajectory in
            sample["trajectories"].as_array().unwrap().iter().chain([&sample["greedy"]])
        {
            assert_eq!(trajectory["latent_steps"], 0);
            assert!(trajectory["logprob"].as_f64().unwrap() < 0.0, "{trajectory}");
        }
    }
    let inspected = sandbox.run(&["inspect", "model", "--method", "cot"]).ok().out;
    assert!(inspected.contains("--temperature 1"), "{inspected}");
    sandbox
        .run(&["solve", "--model", "model", "--method", "cot", "--max-new-tokens", "5", "What?"])
        .ok();
    sandbox
        .eval(&["--method", "cot", "--dropout-p", "0.2", "--scope", "thoughts"])
        .refused(&["no thoughts to perturb", "--sampler tokens"]);
    let dropped =
        sandbox.eval(&["--method", "cot", "--dropout-p", "0.2", "--json", "--out", "dropped"]);
    assert_eq!(dropped.ok().json()["settings"]["sampling"]["scope"], "generated");
    sandbox.eval(&["--top-p", "0.9", "--noise-std", "0.3"]).refused(&[
        "--noise-std",
        "sampler noise",
        "--top-p",
        "sampler tokens",
    ]);
    sandbox.eval(&["--temperature", "0"]).refused(&["--temperature", "above 0"]);
}

#[test]
fn solve_answers_from_an_argument_and_from_standard_input() {
    let sandbox = CliSandbox::new();
    sandbox.reward_model("latent-rm");
    let base = ["solve", "--model", "model", "--max-new-tokens", "8", "--samples", "5"];
    let plain = sandbox.run(&[&base[..], &["What is 2 plus 2?"]].concat()).ok();
    for word in ["answer", "majority", "greedy", "votes", "prefill", "trajectories/s"] {
        assert!(plain.out.contains(word), "{word} in {}", plain.out);
    }
    assert!(!plain.out.contains("correct"));

    let mut command =
        sandbox.command(&[&base[..], &["--reward-model", "latent-rm", "--json", "-"]].concat());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"What is 2 plus 2?\n").unwrap();
    let result = command_output(child.wait_with_output().unwrap()).ok().json();
    assert_eq!(result["question"], "What is 2 plus 2?");
    assert_eq!(result["trajectories"].as_array().unwrap().len(), 5);
    for field in [
        "answer",
        "majority",
        "weighted",
        "best_of",
        "beam",
        "greedy",
        "votes",
        "search",
        "seconds",
        "trajectories_per_s",
    ] {
        assert!(result.get(field).is_some(), "{field} in {result}");
    }
    assert!(!result.to_string().contains("correct"));
}

#[test]
fn inspect_detects_every_family() {
    let sandbox = CliSandbox::new();
    for (i, family) in CheckpointFamily::ALL.into_iter().enumerate() {
        let model = format!("model-{i}");
        sandbox.model(
            &model,
            &CheckpointSpec { family, lora: i % 2 == 1, ..CheckpointSpec::default() },
        );
        let result = sandbox.run(&["inspect", &model, "--json"]).ok().json();
        let reward = matches!(family, CheckpointFamily::RewardGpt2 | CheckpointFamily::RewardLlama);
        assert_eq!(result["kind"], if reward { "reward model" } else { "reasoner" });
        assert_eq!(result["family"].is_null(), reward);
        assert!(!result["tensors"]["used"].as_array().unwrap().is_empty());
        for status in ["missing", "misshapen", "unknown"] {
            assert_eq!(result["tensors"][status], serde_json::json!([]), "{family:?} {status}");
        }
        assert_eq!(result["config"]["width"], 32);
        assert!(result["parameters"].as_u64().unwrap() > 10_000);
    }
    let text = sandbox.run(&["inspect", "model", "--tensors"]).ok().out;
    for word in [
        "coconut (detected)",
        "gpt2, 2 layers, width 32",
        "--thoughts 6",
        "F32",
        "0 missing",
        "wte.weight",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

#[test]
fn gguf_files_are_inspected_and_solve_as_their_directory() {
    let sandbox = CliSandbox::new();
    for (family, name) in [(CheckpointFamily::Llama, "llama"), (CheckpointFamily::Qwen2, "qwen2")] {
        let dir = sandbox.model(name, &CheckpointSpec { family, ..CheckpointSpec::default() });
        let file = format!("{name}.gguf");
        let content = GgufContent::from_directory(&dir, GgmlType::F32).unwrap();
        content.write(&sandbox.path(&file)).unwrap();
        let result = sandbox.run(&["inspect", &file, "--json"]).ok().json();
        assert_eq!(result["backbone"], name);
        assert_eq!(result["types"]["F32"]["tensors"], content.tensors.len());
        assert_eq!(result["chat_template"], "{{ messages[0].content }}");
        assert_eq!(result["tensors"]["unknown"], serde_json::json!([]));
        let text = sandbox.run(&["inspect", &file]).ok().out;
        assert!(text.contains("F32 in") && text.contains("characters"), "{text}");
        let solve = |model: &str| {
            let args = ["solve", "--model", model, "--method", "cot", "--json", "-n", "2"];
            let output = sandbox.run(&[&args[..], &["--max-new-tokens", "8", "2 + 2?"]].concat());
            output.ok().json()["trajectories"].clone()
        };
        assert!(!solve(&file).is_null());
        assert_eq!(solve(&file), solve(name));
    }
}

#[test]
fn doctor_reports_measurements() {
    let sandbox = CliSandbox::new();
    let result = sandbox.run(&["doctor", "--json", "--threads", "1"]).ok().json();
    assert!(result["peak_flops"].as_f64().unwrap() > 1e8);
    assert!(result["memory_bandwidth"].as_f64().unwrap() > 1e7);
    assert_eq!(result["threads"], 1);
    let text = sandbox.run(&["doctor"]).ok().out;
    assert!(text.contains("GFLOP/s") && text.contains("cuda"), "{text}");
}

#[test]
fn latents_are_written_on_request() {
    let sandbox = CliSandbox::new();
    sandbox.eval(&["--latents", "--samples", "3", "--limit", "2", "--out", "run"]).ok();
    let bytes = sandbox.read("run/latents.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names = tensors.names();
    names.sort_unstable();
    assert_eq!(names, ["0.0", "0.0.greedy", "0.1", "0.1.greedy"]);
    assert_eq!(tensors.tensor("0.1").unwrap().shape()[..2], [3, 6]);
    assert_eq!(tensors.tensor("0.1.greedy").unwrap().shape()[0], 6);
}

/// All transformers reference dumps beside the checkout, on the CPU and on a GPU if present.
#[test]
fn verify_passes_on_every_reference_dump() {
    let dumps = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/goldens");
    let Ok(entries) = std::fs::read_dir(&dumps) else {
        println!("skipped: no reference dumps at {}", dumps.display());
        return;
    };
    let sandbox = CliSandbox::new();
    let has_gpu = tensor::Device::cuda_availability().is_ok();
    let devices: &[&[&str]] =
        if has_gpu { &[&["cpu"], &["cuda", "--dtype", "f32"], &["cuda"]] } else { &[&["cpu"]] };
    for dir in entries.map(|e| e.unwrap().path()).filter(|p| p.join("golden.json").is_file()) {
        for device in devices {
            let arguments =
                [&["verify", dir.to_str().unwrap(), "--json", "--device"], *device].concat();
            let result = sandbox.run(&arguments).ok().json();
            assert_eq!(result["passed"], true, "{result}");
            assert_eq!(result["checks"][0]["verdict"], "passed", "{result}");
            assert!(result["checks"].as_array().unwrap().len() >= 19, "{result}");
        }
    }
}

#[test]
fn a_missing_gpu_is_a_clear_error() {
    if tensor::Device::cuda_availability().is_ok() {
        println!("skipped: there is a gpu");
        return;
    }
    let sandbox = CliSandbox::new();
    let failed = sandbox.run(&["doctor", "--device", "cuda"]);
    assert!(
        failed.err.contains("no usable gpu") && failed.err.contains("--device cpu"),
        "{}",
        failed.err
    );
}

#[test]
fn fp8_is_rejected_on_a_cpu() {
    let failed = CliSandbox::new().run(&["bench", "--device", "cpu", "--dtype", "fp8"]);
    for part in ["does not support fp8", "--device cuda", "omit --dtype"] {
        assert!(failed.err.contains(part), "{part}: {}", failed.err);
    }
}

#[test]
fn help_has_examples() {
    let sandbox = CliSandbox::new();
    let commands =
        ["eval", "solve", "serve", "sweep", "report", "inspect", "doctor", "verify", "bench"];
    for command in commands {
        let help = sandbox.run(&[command, "--help"]).ok().out;
        assert!(help.contains("Examples:") && help.contains("LATENT_TTS_"), "{help}");
    }
    let help = sandbox.run(&["--help"]).ok().out;
    assert!(commands.iter().all(|c| help.contains(c)), "{help}");
    assert!(sandbox.run(&["--version"]).ok().out.contains("latent-tts"));
}

/// `latent-tts ... | head` exits with status 0.
#[cfg(unix)]
#[test]
fn a_closed_pipe_is_not_an_error() {
    let sandbox = CliSandbox::new();
    let mut child =
        sandbox.command(&["doctor"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}
