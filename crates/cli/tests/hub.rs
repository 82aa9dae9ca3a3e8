//! Commands that use the Hugging Face Hub, simulated by a server in this process.

#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

#[path = "../../model/tests/server/mod.rs"]
#[expect(dead_code, reason = "the client's own tests use more of it")]
mod server;
mod support;

use std::collections::BTreeMap;
use std::fs;

use model::testkit::{CheckpointFamily, CheckpointSpec, GgmlType, GgufContent};
use server::{Behaviour, TestHub};
use support::{CliSandbox, CommandOutput, command_output};

/// A command that uses the simulated Hub, without the environment's settings for the real one.
fn run_with(sandbox: &CliSandbox, hub: &TestHub, args: &[&str]) -> CommandOutput {
    let mut command = sandbox.command(args);
    command.env_remove("HF_HUB_OFFLINE").env_remove("HF_TOKEN");
    command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HUB_CACHE", hub.cache.path());
    command_output(command.output().unwrap())
}

#[test]
fn an_adapter_s_recorded_base_is_downloaded() {
    let sandbox = CliSandbox::new();
    sandbox.run(&["corpus", "--split", "train", "--count", "10", "--out", "train.json"]).ok();
    let family = CheckpointFamily::Llama;
    let spec = CheckpointSpec { family, context: 512, ..CheckpointSpec::default() };
    let content = GgufContent::from_directory(&sandbox.model("llama", &spec), GgmlType::F16);
    content.unwrap().write(&sandbox.path("base.gguf")).unwrap();
    let train = |id, out| {
        let start = ["train", "reasoner", "--init", "base.gguf", "--base-id", id, "--out", out];
        let few = ["--data", "train.json", "--batch", "2", "--steps", "1", "--warmup", "0"];
        let lora = ["--method", "codi", "--lora", "2", "--lora-alpha", "4"];
        sandbox.run(&[&start[..], &few, &lora].concat()).ok();
    };
    train("a/b/base.gguf", "one");
    train("a/other/base.gguf", "two");
    let base = fs::read(sandbox.path("base.gguf")).unwrap();
    fs::remove_file(sandbox.path("base.gguf")).unwrap();

    let files = BTreeMap::from([("base.gguf", base)]);
    let hub = TestHub::start(Behaviour { files, ..Behaviour::default() });
    let solve = |model| ["solve", "--model", model, "-n", "2", "--max-new-tokens", "4", "1 + 1?"];
    let way = ["a/b/base.gguf", "hf download a/b base.gguf", "--base"];
    sandbox.run(&solve("one")).refused(&way);
    let told = run_with(&sandbox, &hub, &solve("one")).ok();
    assert!(told.err.contains("downloading base.gguf"), "{}", told.err);
    hub.requests();
    run_with(&sandbox, &hub, &solve("one")).ok();
    assert_eq!(hub.requests(), [""; 0], "it is in the cache now");
    // A missing file is reported, with an alternative way to get it.
    let way = ["two/adapter_config.json", "no such repository", "hf download a/other", "--base"];
    run_with(&sandbox, &hub, &solve("two")).refused(&way);
}
