//! Faults of disks, files and processes: nothing is lost and nothing passes silently.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use support::CliSandbox;

/// The bytes of a safetensors file after its header.
fn values_of(file: &[u8]) -> &[u8] {
    let header = u64::from_le_bytes(file[..8].try_into().unwrap());
    &file[8 + header as usize..]
}

#[test]
fn latents_are_finished_from_what_is_there_or_refused() {
    let sandbox = CliSandbox::new();
    let (base, p) =
        (["--model", "model", "--data", "data.jsonl", "--threads", "1"], ["--p", "0.2"]);
    let sizes = ["--samples", "2", "--max-new-tokens", "4", "--quiet"];
    let eval = [&["eval"][..], &base, &sizes, &["--out", "run"]].concat();
    let sweep = [&["sweep"][..], &base, &sizes, &p, &["--out", "swept"]].concat();
    for (command, run) in [(eval, "run"), (sweep, "swept/dropout-0.2")] {
        let with = |more: &[&'static str]| sandbox.run(&[&command[..], more].concat());
        with(&["--latents"]).ok();
        let (done, part) = (format!("{run}/latents.safetensors"), format!("{run}/latents.part"));
        let whole = sandbox.read(&done);
        // The process ended after the last sample and before the file had its name.
        sandbox.write(&part, values_of(&whole));
        std::fs::remove_file(sandbox.path(&done)).unwrap();
        with(&["--resume"]).refused(&["latents.part", "keeps its thoughts", "--latents"]);
        with(&["--latents", "--resume"]).ok();
        assert_eq!(sandbox.read(&done), whole);
        assert!(!sandbox.path(&part).exists());
        // Cut, or nowhere.
        sandbox.write(&done, &whole[..whole.len() - 1]);
        with(&["--latents", "--resume"]).refused(&["latents.safetensors", "cut", "--overwrite"]);
        std::fs::remove_file(sandbox.path(&done)).unwrap();
        with(&["--latents", "--resume"]).refused(&["latents.safetensors", "missing", "--out"]);
    }
}
