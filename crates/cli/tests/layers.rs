//! Precedence of flag values (command line, environment, file, model) and conflicting flags.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use serde_json::Value;
use support::{CliSandbox, CommandOutput, command_output};

/// The settings recorded by an eval with these arguments and environment variables.
fn settings(sandbox: &CliSandbox, args: &[&str], env: &[(&str, &str)]) -> Value {
    let done = run(sandbox, args, env).ok();
    done.json()["settings"]["sampling"].clone()
}

fn run(sandbox: &CliSandbox, args: &[&str], env: &[(&str, &str)]) -> CommandOutput {
    let base = [
        "eval",
        "--model",
        "model",
        "--data",
        "data.jsonl",
        "--limit",
        "1",
        "--max-new-tokens",
        "4",
        "--json",
    ];
    let mut command = sandbox.command(&[&base[..], args].concat());
    command_output(command.envs(env.iter().copied()).output().unwrap())
}

#[test]
fn command_line_overrides_environment_overrides_config_overrides_model() {
    let sandbox = CliSandbox::new();
    sandbox.write(
        "all.toml",
        "samples = 2\np = 0.5\nthoughts = \"<=3\"\nsites = \"attn\"\nmax-new-tokens = 9\n\
         k = [1, 2]\nquiet = true\n",
    );
    let env = [("LATENT_TTS_DROPOUT_P", "0.4"), ("LATENT_TTS_SITES", "mlp")];
    let file = ["--config", "all.toml"];
    let layered =
        settings(&sandbox, &[&file[..], &["--dropout-p", "0.3", "--out", "a"]].concat(), &env);
    assert_eq!(layered["samples"], 2, "from the file");
    assert_eq!(layered["latent_length"], "<=3", "from the file");
    assert_eq!(layered["sites"], "mlp", "from the environment");
    assert_eq!(layered["dropout_p"], 0.3, "from the command line");
    assert_eq!(layered["max_new_tokens"], 4, "from the command line, over the file");
    assert_eq!(layered["scope"], "thoughts", "default");

    let file_by_env = settings(&sandbox, &["--out", "b"], &[("LATENT_TTS_CONFIG", "all.toml")]);
    assert_eq!(
        (&file_by_env["sampler"], &file_by_env["dropout_p"], &file_by_env["sites"]),
        (&Value::from("dropout"), &Value::from(0.5), &Value::from("attn"))
    );
    let default = settings(&sandbox, &["--out", "c", "-n", "2"], &[]);
    assert_eq!(default["dropout_p"], 0.2);
}

#[test]
fn boolean_flags_are_layered_too() {
    let sandbox = CliSandbox::new();
    sandbox.write("quiet.toml", "quiet = true\njson = false\n");
    assert_eq!(
        run(&sandbox, &["-n", "1", "--out", "a", "--config", "quiet.toml"], &[]).ok().err,
        ""
    );
    assert_eq!(
        run(&sandbox, &["-n", "1", "--out", "b"], &[("LATENT_TTS_QUIET", "1")]).ok().err,
        ""
    );
    assert_ne!(
        run(&sandbox, &["-n", "1", "--out", "c"], &[("LATENT_TTS_QUIET", "0")]).ok().err,
        ""
    );
    run(&sandbox, &["-n", "1", "--out", "a"], &[("LATENT_TTS_OVERWRITE", "yes")]).ok();
    run(&sandbox, &[], &[("LATENT_TTS_QUIET", "perhaps")]).refused(&["perhaps", "--quiet"]);
    run(&sandbox, &[], &[("LATENT_TTS_SAMPLES", "many")]).refused(&["many", "--samples"]);
}

#[test]
fn one_file_may_serve_several_commands() {
    let sandbox = CliSandbox::new();
    sandbox.write(
        "both.toml",
        "model = \"model\"\nsamples = 2\nmax-new-tokens = 4\nout = \"run\"\n\
         data = \"data.jsonl\"\n",
    );
    sandbox.run(&["solve", "--config", "both.toml", "What is 1 plus 1?"]).ok();
    sandbox.run(&["eval", "--config", "both.toml"]).ok();
    assert!(sandbox.path("run/results.json").is_file());
}

#[test]
fn config_errors_name_file_and_key() {
    let sandbox = CliSandbox::new();
    let refused = |content: &[u8], words: &[&str]| {
        sandbox.write("bad.toml", content);
        run(&sandbox, &["--config", "bad.toml"], &[]).refused(&[&["bad.toml"], words].concat());
        assert!(!sandbox.path("runs").exists());
    };
    refused(b"sampels = 4\n", &["`sampels`", "`samples`"]);
    refused(b"max_new_tokns = 4\n", &["`max_new_tokns`", "`max-new-tokens`"]);
    refused(b"zzz = 4\n", &["`zzz`", "flag names"]);
    refused(b"config = \"other.toml\"\n", &["`config`"]);
    refused(b"p = 1.5\n", &["`p`", "below 1"]);
    refused(b"p = nan\n", &["`p`", "below 1"]);
    refused(b"samples = 0\n", &["`samples`"]);
    refused(b"samples = -3\n", &["`samples`"]);
    refused(b"quiet = \"yes\"\n", &["`quiet`", "true or false"]);
    refused(b"[p]\nvalue = 1\n", &["`p`", "value", "below 1"]);
    refused(b"p = 0.1\np = 0.2\n", &["line 2", "p = 0.2"]);
    refused(b"p = \n", &["line 1"]);
    refused(b"p = 0.1 \xff\n", &["UTF-8", "byte 8"]);
    refused(&vec![b'#'; 2 << 20], &["too large"]);
    run(&sandbox, &["--config", "absent.toml"], &[]).refused(&["absent.toml", "o such file"]);
    run(&sandbox, &["--config", "model"], &[]).refused(&["model"]);
}

#[test]
fn conflicting_flags_are_both_named() {
    let sandbox = CliSandbox::new();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--dropout-p", "0.1", "--sampler", "noise"], &["--dropout-p", "--sampler noise"]),
        (&["--noise-std", "0.1", "--sampler", "dropout"], &["--noise-std", "--sampler dropout"]),
        (&["--sites", "mlp", "--sampler", "noise"], &["--sites", "--sampler noise"]),
        (&["--gumbel-tau", "1", "--sampler", "noise"], &["--gumbel-tau", "--sampler noise"]),
        (&["--mask", "step", "--sampler", "noise"], &["--mask", "--sampler noise"]),
        (&["--scope", "all", "--sampler", "none"], &["--scope", "--sampler none"]),
        (&["--noise-std", "0.1", "--dropout-p", "0.1"], &["--noise-std", "--dropout-p"]),
        (&["--resume", "--overwrite"], &["--resume", "--overwrite"]),
        (&["--k", "1,8", "--samples", "4"], &["--k 8", "--samples 4"]),
        (&["--seed", "18446744073709551615", "--seeds", "2"], &["--seed", "--seeds"]),
        (&["--thoughts", "6-4"], &["--latent-length", "6-4"]),
        (&["--dropout-p", "1"], &["--dropout-p", "below 1"]),
        (&["--dropout-p", "-0.1"], &["--dropout-p", "below 1"]),
        (&["--dropout-p", "NaN"], &["--dropout-p", "below 1"]),
        (&["--noise-std", "NaN"], &["--noise-std", "finite"]),
        (&["--noise-std", "-1"], &["--noise-std", "finite"]),
        (&["--samples", "0"], &["--samples", "must be at least 1"]),
        (&["--limit", "0"], &["--limit"]),
        (&["--k", "0"], &["--k"]),
        (&["--threads", "0"], &["--threads"]),
        (&["--memory", "0"], &["--memory"]),
        (&["--memory", "much"], &["--memory", "512MiB"]),
        (&["--device", "cuda"], &["no usable gpu", "--device cpu"]),
        (&["--method", "magic"], &["--method", "coconut"]),
        (&["--smaples", "4"], &["--smaples", "--samples"]),
    ];
    for (args, words) in cases {
        run(&sandbox, args, &[]).refused(words);
    }
    assert!(!sandbox.path("runs").exists());
}

#[test]
fn models_are_found_by_path_and_by_hugging_face_id() {
    let sandbox = CliSandbox::new();
    let snapshots = "hf/hub/models--org--tiny/snapshots";
    for commit in ["aaa", "bbb"] {
        sandbox.model(&format!("{snapshots}/{commit}"), &model::testkit::CheckpointSpec::default());
    }
    std::fs::create_dir_all(sandbox.path("hf/hub/models--org--tiny/refs")).unwrap();
    sandbox.write("hf/hub/models--org--tiny/refs/main", "aaa");
    let inspect = |id: &str| sandbox.run(&["inspect", id, "--json"]);
    assert!(inspect("org/tiny").ok().json()["dir"].as_str().unwrap().ends_with("snapshots/aaa"));
    std::fs::remove_file(sandbox.path("hf/hub/models--org--tiny/refs/main")).unwrap();
    assert!(inspect("org/tiny").ok().json()["dir"].as_str().unwrap().ends_with("snapshots/bbb"));
    inspect("org/absent").refused(&["org/absent", "hf download"]);
    inspect("./nowhere").refused(&["./nowhere", "no such directory"]);
    inspect("nowhere.gguf").refused(&["nowhere.gguf", "no such file; check the path"]);
    sandbox.run(&["solve", "--model", "model", "  "]).refused(&["empty"]);
    sandbox.run(&["solve", "--model", "model", "-"]).refused(&["empty"]);
    sandbox.run(&["solve", "--model", "model"]).refused(&["TEXT"]);
}
