//! `serve` as a process: SIGTERM under load loses no accepted request, SIGHUP reloads, and invalid
//! flags are rejected.

#![cfg(all(unix, feature = "serve", feature = "embedded"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const QUESTION: &str = "Grace has 484 muffins. Fiona has a quarter as many muffins as Grace. How many \
                        muffins do they have together?";
const SAMPLES: &str = "48";
const REQUESTS: u64 = 6;

fn latent_tts() -> Command {
    Command::new(env!("CARGO_BIN_EXE_latent-tts"))
}

fn open(address: &str, method: &str, path: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\n"
    );
    let text = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

fn read(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// The sum of two metrics.
fn metric(address: &str, names: [&str; 2]) -> f64 {
    let text = read(open(address, "GET", "/metrics", ""));
    let value = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        names.contains(&name).then(|| value.parse::<f64>().unwrap())
    };
    text.lines().filter_map(value).sum()
}

#[test]
fn sigterm_under_load_loses_no_accepted_request() {
    let mut server = latent_tts()
        .args(["serve", "--port", "0", "--json", "--quiet", "--shutdown-timeout", "300"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let url: Value = serde_json::from_str(&line).unwrap();
    let address = url["url"].as_str().unwrap().trim_start_matches("http://").to_owned();
    let samples: u64 = SAMPLES.parse().unwrap();
    let streams: Vec<(u64, TcpStream)> = (0..REQUESTS)
        .map(|seed| {
            let latent = json!({ "samples": samples, "seed": seed });
            let body = json!({ "prompt": QUESTION, "latent": latent }).to_string();
            (seed, open(&address, "POST", "/v1/completions", &body))
        })
        .collect();
    let start = Instant::now();
    let accepted = |done: f64| {
        metric(&address, ["num_requests_running", "num_requests_waiting"]) + done >= REQUESTS as f64
    };
    while !accepted(metric(&address, ["e2e_request_latency_seconds_count", ""])) {
        assert!(start.elapsed() < Duration::from_secs(120), "requests were not accepted");
    }
    let killed = Command::new("kill").args(["-TERM", &server.id().to_string()]).status().unwrap();
    assert!(killed.success());
    for (seed, stream) in streams {
        let response = read(stream);
        assert!(response.starts_with("HTTP/1.1 200"), "{seed}: {response}");
        let body = response.split_once("\r\n\r\n").unwrap().1;
        let reply: Value = serde_json::from_str(body).unwrap();
        let seed = seed.to_string();
        let args = ["solve", "--samples", SAMPLES, "--seed", &seed, "--json", "--quiet", QUESTION];
        let solved = latent_tts().args(args).output().unwrap();
        let solved: Value = serde_json::from_slice(&solved.stdout).unwrap();
        let latent = &reply["choices"][0]["latent"];
        assert_eq!(latent["answer"], solved["answer"], "seed {seed}");
        let chosen = latent["chosen"].as_u64().unwrap() as usize;
        assert_eq!(reply["choices"][0]["text"], solved["trajectories"][chosen]["text"]);
    }
    assert!(server.wait().unwrap().success());
    assert!(TcpStream::connect(&address).is_err());
}

/// A running server whose log lines can be read.
struct LoggedServer {
    process: Child,
    address: String,
    log: Receiver<String>,
}

impl LoggedServer {
    fn start(args: &[&str]) -> Self {
        let mut process = latent_tts()
            .args(["serve", "--port", "0", "--json"])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let (sender, log) = channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
        });
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url: Value = serde_json::from_str(&line).unwrap();
        let port = url["url"].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
        Self { process, address: format!("127.0.0.1:{port}"), log }
    }

    fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Waits for a log line that contains these words.
    fn wait_for(&self, words: &str) -> String {
        loop {
            let line = self.log.recv_timeout(Duration::from_secs(120)).unwrap();
            if line.contains(words) {
                return line;
            }
        }
    }

    fn status(&self, key: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             authorization: Bearer {key}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        read(stream)[9..12].to_owned()
    }
}

impl Drop for LoggedServer {
    fn drop(&mut self) {
        self.signal("-TERM");
        let ended = self.process.wait();
        assert!(std::thread::panicking() || ended.unwrap().success());
    }
}

#[test]
fn sighup_reads_keys_and_models_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    std::fs::write(&path, "alpha\n").unwrap();
    let server = LoggedServer::start(&["--api-keys-file", path.to_str().unwrap()]);
    assert_eq!((server.status("alpha"), server.status("beta")), ("200".into(), "401".into()));
    std::fs::write(&path, "beta\n").unwrap();
    server.signal("-HUP");
    server.wait_for("reloaded");
    assert_eq!((server.status("alpha"), server.status("beta")), ("401".into(), "200".into()));
    std::fs::write(&path, "").unwrap();
    server.signal("-HUP");
    let line = server.wait_for("cannot reload");
    assert!(line.contains("no keys found"), "{line}");
    assert_eq!(server.status("beta"), "200");
}

#[test]
fn a_server_that_everyone_can_use_warns() {
    LoggedServer::start(&["--host", "0.0.0.0"]).wait_for("no API key is set");
    let server = LoggedServer::start(&["--host", "0.0.0.0", "--api-key", "k"]);
    assert_eq!(server.status("k"), "200");
    assert!(server.log.try_iter().all(|line| !line.contains("no API key is set")));
}

#[test]
fn values_that_cannot_be_served_are_refused_by_their_flag() {
    for (args, words) in [
        (vec!["--add-model", "codi"], "NAME=DIR"),
        (vec!["--add-model", "=dir"], "the name and the directory must not be empty"),
        (vec!["--add-model", "embedded=embedded"], "duplicate model name `embedded`"),
        (vec!["--model-memory", "1MiB"], "more than the limit"),
        (vec!["--upstream", "example.com"], "is not a server URL"),
        (vec!["--upstream", "http://127.0.0.1:1", "--model", "embedded"], "gateway loads no model"),
        (vec!["--upstream-model", "m"], "--upstream"),
        (vec!["--otlp-endpoint", "collector:4318"], "is not a collector URL"),
        (vec!["--api-keys-file", "/nowhere/keys"], "cannot use the API keys file"),
    ] {
        let done = latent_tts().args(["serve", "--port", "0"]).args(&args).output().unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
    }
}
