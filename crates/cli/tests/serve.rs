//! `serve` as a process: SIGTERM under load loses no accepted request.

#![cfg(all(unix, feature = "serve", feature = "embedded"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
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
