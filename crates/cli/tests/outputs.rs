//! Every command that writes files, with every kind of existing output: a model, an input, a link,
//! a device, a pipe, a read-only directory, a full disk.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use model::testkit::{CheckpointFamily, CheckpointSpec};
use support::{CliSandbox, CommandOutput, command_output};

const PROBLEM: &str = r#"{"question": "A farmer has 51 cows, buys 5 cows and sells a quarter of the herd. How many are left?", "answer": "<<51+5=56>>56 <<56/4=14>>14 <<56-14=42>>42\n#### 42"}"#;

/// Commands that write one file.
const FILES: [&[&str]; 2] =
    [&["corpus", "--count", "3"], &["augment", "problems.jsonl", "--count", "2"]];

/// Commands that write a directory.
const DIRECTORIES: [&[&str]; 6] = [
    &["eval", "--model", "model", "--data", "data.jsonl", "--samples", "2", "--threads", "1"],
    &["sweep", "--model", "model", "--data", "data.jsonl", "-n", "2", "--p", "0.1", "--no-report"],
    &["annotate", "--model", "model", "--data", "data.jsonl", "-n", "2", "--labels", "final"],
    &["train", "reasoner", "--steps", "1", "--width", "16", "--layers", "1", "--heads", "2"],
    &["train", "reward", "--model", "model", "--objective", "untrained", "--threads", "1"],
    &["report", "finished"],
];

/// The files that a command writes in its directory.
const WRITTEN: [&str; 6] = [
    "samples.jsonl",
    "sweep.json",
    "index.json",
    "model.safetensors",
    "model.safetensors",
    "report.html",
];

/// Models, data, and a finished run.
fn sandbox() -> CliSandbox {
    let sandbox = CliSandbox::new();
    sandbox.write("problems.jsonl", format!("{PROBLEM}\n"));
    sandbox.model("other", &CheckpointSpec::default());
    sandbox.eval(&["--out", "finished", "--samples", "2", "--no-report"]).ok();
    sandbox
}

/// A command with an output path; trainings are short and without held-out problems.
fn with_out<'a>(command: &[&'a str], out: &'a str) -> Vec<&'a str> {
    let more: &[&str] = match command[1] {
        "reasoner" => &["--batch", "2", "--held-out-count", "0", "--threads", "1"],
        _ => &[],
    };
    [command, more, &["--out", out]].concat()
}

/// Asserts that a directory contains no temporary file. Its files, which may be pipes, are not
/// read.
fn assert_no_strays(dir: &Path) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            assert_no_strays(&path);
        }
        assert!(
            path.extension().is_none_or(|ending| ending != "tmp"),
            "{} is left",
            path.display()
        );
    }
}

#[test]
fn a_model_is_not_replaced() {
    let sandbox = sandbox();
    let before = sandbox.snapshot("other");
    for command in FILES {
        sandbox.run(&with_out(command, "other/model.safetensors")).refused(&["weights"]);
        sandbox.run(&with_out(command, "other")).refused(&["other", "directory"]);
    }
    // A report is written beside other files, and only replaces an older report.
    for command in &DIRECTORIES[..5] {
        sandbox.run(&with_out(command, "other")).refused(&["other", "holds a model", "--out"]);
        assert_eq!(sandbox.snapshot("other"), before, "{command:?}");
    }
    for (command, model) in DIRECTORIES[3..5].iter().zip(["first", "second"]) {
        sandbox.model(model, &CheckpointSpec::default());
        let before = sandbox.snapshot(model);
        let resumed = [&with_out(command, model)[..], &["--resume"]].concat();
        let why = if command[1] == "reasoner" { "holds a model" } else { "no training to resume" };
        sandbox.run(&resumed).refused(&[why]);
        assert_eq!(sandbox.snapshot(model), before, "{command:?}");
        sandbox.run(&[&with_out(command, model)[..], &["--overwrite"]].concat()).ok();
        assert_ne!(sandbox.snapshot(model), before, "{command:?}");
        // After a training, the directory is in turn a training or a model that is not replaced.
        sandbox.run(&with_out(command, model)).refused(&[model, "holds a", "--overwrite"]);
    }
}

#[test]
fn another_training_is_not_resumed() {
    let sandbox = sandbox();
    sandbox.run(&with_out(DIRECTORIES[3], "trained")).ok();
    let before = sandbox.snapshot("trained");
    let wider = [&with_out(DIRECTORIES[3], "trained")[..], &["--resume", "--seed", "9"]].concat();
    sandbox.run(&wider).refused(&["state.safetensors", "different settings"]);
    assert_eq!(sandbox.snapshot("trained"), before);
}

#[test]
fn an_input_is_not_written_over() {
    let sandbox = sandbox();
    sandbox.model(
        "llama",
        &CheckpointSpec { family: CheckpointFamily::CodiLlama, ..CheckpointSpec::default() },
    );
    symlink("problems.jsonl", sandbox.path("link.jsonl")).unwrap();
    fs::hard_link(sandbox.path("problems.jsonl"), sandbox.path("hard.jsonl")).unwrap();
    let augment = ["augment", "problems.jsonl", "--decontaminate", "data.jsonl"];
    let trained = ["train", "reasoner", "--steps", "1", "--threads", "1", "--data"];
    let trained = [&trained[..], &["problems.jsonl", "--overwrite"]].concat();
    let reward = ["train", "reward", "--objective", "untrained", "--threads", "1", "--overwrite"];
    let with_model = [&reward[..], &["--model", "model"]].concat();
    let labels = ["--annotations", "labels", "--held-out", "held"];
    fs::create_dir(sandbox.path("labels")).unwrap();
    fs::create_dir(sandbox.path("held")).unwrap();
    let before = sandbox.snapshot("");
    let mut cases: Vec<(Vec<&str>, &str)> = Vec::new();
    for out in ["problems.jsonl", "./model/../problems.jsonl", "link.jsonl", "hard.jsonl"] {
        cases.push((augment.to_vec(), out));
    }
    cases.push((augment.to_vec(), "data.jsonl"));
    cases.push(([&trained[..], &["--init", "llama"]].concat(), "llama"));
    cases.push(([&trained[..], &["--init", "llama"]].concat(), "model/../llama/."));
    cases.push((with_model.clone(), "model"));
    cases.push(([&with_model[..], &["--init", "other"]].concat(), "other"));
    cases.push(([&with_model[..], &["--reference", "other"]].concat(), "other"));
    for (command, out) in &cases {
        sandbox.run(&[&command[..], &["--out", out]].concat()).refused(&["is an input", "--out"]);
        assert_eq!(sandbox.snapshot(""), before, "{command:?} --out {out}");
    }
    // These are rejected earlier, because they are not annotations.
    for out in ["labels", "held"] {
        sandbox.run(&[&with_model[..], &labels, &["--out", out]].concat()).refused(&[]);
        assert_eq!(sandbox.snapshot(""), before, "--out {out}");
    }
    for command in &DIRECTORIES[..3] {
        sandbox.run(&with_out(command, "model")).refused(&["holds a model", "--out"]);
        sandbox.run(&with_out(command, "data.jsonl")).refused(&["data.jsonl", "--out"]);
        assert_eq!(sandbox.snapshot(""), before, "{command:?}");
    }
}

#[test]
fn the_base_of_an_adapter_is_an_input() {
    let sandbox = sandbox();
    let train = ["train", "reasoner", "--steps", "1", "--threads", "1", "--data", "problems.jsonl"];
    let adapter = [&train[..], &["--init", "model", "--lora", "2", "--out", "adapter"]].concat();
    sandbox.run(&adapter).ok();
    let before = sandbox.snapshot("");
    let over = [&train[..], &["--init", "adapter", "--lora", "2", "--overwrite"]].concat();
    for out in ["model", "adapter"] {
        sandbox.run(&[&over[..], &["--out", out]].concat()).refused(&["is an input", out]);
        assert_eq!(sandbox.snapshot(""), before);
    }
}

#[test]
fn an_empty_result_replaces_nothing() {
    let sandbox = sandbox();
    sandbox.write("old.jsonl", "old");
    let augment = ["augment", "problems.jsonl", "--without", "problems.jsonl", "--keep-original"];
    for out in [&["--out", "old.jsonl"][..], &["--out", "new.jsonl"], &[]] {
        sandbox.run(&[&augment[..], out].concat()).refused(&["no variants", "1 problems"]);
    }
    assert_eq!(sandbox.read("old.jsonl"), b"old");
    assert!(!sandbox.path("new.jsonl").exists());
}

#[test]
fn links_are_followed_and_modes_kept() {
    let sandbox = sandbox();
    for command in FILES {
        sandbox.write("target", "old");
        fs::set_permissions(sandbox.path("target"), fs::Permissions::from_mode(0o640)).unwrap();
        let _ = fs::remove_file(sandbox.path("link"));
        symlink("target", sandbox.path("link")).unwrap();
        sandbox.run(&with_out(command, "link")).ok();
        assert!(fs::symlink_metadata(sandbox.path("link")).unwrap().is_symlink());
        let mode = fs::metadata(sandbox.path("target")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640, "{command:?}");
        assert!(sandbox.read("target").len() > 10, "{command:?}");
    }
    for (i, (command, written)) in DIRECTORIES.iter().zip(WRITTEN).enumerate() {
        let (target, link) = (format!("target-{i}"), format!("link-{i}"));
        fs::create_dir(sandbox.path(&target)).unwrap();
        symlink(&target, sandbox.path(&link)).unwrap();
        sandbox.run(&with_out(command, &link));
        assert!(fs::symlink_metadata(sandbox.path(&link)).unwrap().is_symlink());
        assert!(sandbox.path(&target).join(written).is_file(), "{command:?}");
        assert_no_strays(&sandbox.path(&target));
    }
}

fn is_device(path: &Path) -> bool {
    fs::symlink_metadata(path).unwrap().file_type().is_char_device()
}

#[test]
fn devices_are_written_into() {
    let sandbox = sandbox();
    for command in FILES {
        let printed = sandbox.run(command).ok().out;
        assert_eq!(sandbox.run(&with_out(command, "/dev/stdout")).ok().out, printed);
        sandbox.run(&with_out(command, "/dev/null")).ok();
        sandbox.run(&with_out(command, "/dev/full")).refused(&["/dev/full", "free some space"]);
    }
    for command in DIRECTORIES {
        for device in ["/dev/null", "/dev/full", "/dev/stdout"] {
            sandbox.run(&with_out(command, device)).refused(&["/dev/"]);
        }
    }
    for device in ["/dev/null", "/dev/full"] {
        assert!(is_device(Path::new(device)), "{device}");
    }
    assert!(fs::symlink_metadata("/dev/stdout").unwrap().is_symlink());
}

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn pipes_are_written_into_or_refused() {
    let sandbox = sandbox();
    make_pipe(&sandbox.path("pipe"));
    for command in FILES {
        let printed = sandbox.run(command).ok().out;
        let pipe = sandbox.path("pipe");
        let reader = std::thread::spawn(move || fs::read(pipe).unwrap());
        sandbox.run(&with_out(command, "pipe")).ok();
        assert_eq!(reader.join().unwrap(), printed.as_bytes(), "{command:?}");
    }
    for command in DIRECTORIES {
        sandbox.run(&with_out(command, "pipe")).refused(&["pipe"]);
    }
    assert!(fs::symlink_metadata(sandbox.path("pipe")).unwrap().file_type().is_fifo());
    // At the path of a file that a command writes.
    for (i, (command, written)) in DIRECTORIES.iter().zip(WRITTEN).enumerate() {
        let dir = format!("with-pipe-{i}");
        fs::create_dir(sandbox.path(&dir)).unwrap();
        make_pipe(&sandbox.path(&dir).join(written));
        sandbox.run(&with_out(command, &dir)).refused(&[&dir]);
        assert_no_strays(&sandbox.path(&dir));
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let sandbox = sandbox();
    // Root can write to every directory of a disk, but to none of this file system.
    for command in FILES.iter().chain(&DIRECTORIES) {
        sandbox.run(&with_out(command, "/proc/latent-tts")).refused(&["/proc/latent-tts"]);
    }
    let closed = sandbox.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(closed.join("probe"), "").is_err() {
        for command in FILES.iter().chain(&DIRECTORIES) {
            sandbox.run(&with_out(command, "closed/out")).refused(&["closed"]);
        }
    }
}

/// A command with a file size limit of 512 bytes: the next byte fails as on a full disk.
fn limited(sandbox: &CliSandbox, args: &[&str]) -> CommandOutput {
    let whole = sandbox.command(args);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 1; exec \"$0\" \"$@\""]).arg(whole.get_program());
    limited.args(whole.get_args()).current_dir(sandbox.path("")).env("HF_HUB_OFFLINE", "1");
    command_output(limited.output().unwrap())
}

#[test]
fn a_full_disk_leaves_the_old_file_and_no_temporary_one() {
    let sandbox = sandbox();
    fs::create_dir(sandbox.path("disk")).unwrap();
    let files: [&[&str]; 2] =
        [&["corpus", "--count", "2000"], &["augment", "problems.jsonl", "--count", "200"]];
    for command in files {
        sandbox.write("disk/file", "old");
        let output = limited(&sandbox, &with_out(command, "disk/file"));
        assert!(matches!(output.code, Some(2 | 3)), "{command:?}: {}", output.err);
        assert!(output.err.contains("disk/file"), "{command:?}: {}", output.err);
        assert_eq!(sandbox.read("disk/file"), b"old");
    }
    for (i, command) in DIRECTORIES.iter().enumerate() {
        let output = limited(&sandbox, &with_out(command, &format!("disk/{i}")));
        assert!(matches!(output.code, Some(2 | 3)), "{command:?}: {}", output.err);
        assert!(output.err.contains("disk/"), "{command:?}: {}", output.err);
    }
    assert_no_strays(&sandbox.path("disk"));
}
