//! Overload: every request gets status 200 or 429, no answer is wrong, and disconnected clients
//! leave nothing behind.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use latent_tts_serve::ServeOptions;
use serde_json::{Value, json};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
const SAMPLES: usize = 8;
const QUESTIONS: [&str; 2] = [QUESTION, SHORT];
const SEEDS: u64 = 3;

fn body(question: &str, samples: usize, seed: u64) -> Value {
    chat(question, json!({ "latent": { "samples": samples, "seed": seed } }))
}

/// Ten times as many clients as fit, each with several requests.
#[test]
fn at_ten_times_its_capacity_every_request_is_answered_correctly() {
    let (room, each) = (6, 4);
    let limit = room * SAMPLES;
    let options =
        ServeOptions { max_waiting_sequences: limit, max_samples: limit, ..Default::default() };
    let server = TestServer::with(options);
    let mut expected = BTreeMap::new();
    for (q, question) in QUESTIONS.iter().enumerate() {
        for seed in 0..SEEDS {
            let text = chosen_text(&solve(question, SAMPLES, seed)).to_owned();
            expected.insert((q, seed), text);
        }
    }
    let done = AtomicBool::new(false);
    let answered: Vec<(usize, u64, Response)> = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(server.metric("num_rows_waiting") <= limit as f64, "the queue has a bound");
                assert!(server.metric("kv_cache_usage_perc") <= 1.0, "memory has a bound");
            }
        });
        let client = |c: usize| {
            let server = &server;
            move || -> Vec<(usize, u64, Response)> {
                let ask = |i: usize| {
                    let (q, seed) = ((c + i) % QUESTIONS.len(), (c / 2 + i) as u64 % SEEDS);
                    (q, seed, server.post(CHAT, &body(QUESTIONS[q], SAMPLES, seed)))
                };
                (0..each).map(ask).collect()
            }
        };
        let clients: Vec<_> = (0..10 * room).map(|c| scope.spawn(client(c))).collect();
        let answered = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
        answered
    });
    assert_eq!(answered.len(), 10 * room * each, "none is lost");
    let (mut taken, mut refused) = (0, 0);
    for (q, seed, response) in answered {
        match response.status {
            200 => {
                let text = response.json()["choices"][0]["latent"]["raw_text"].clone();
                assert_eq!(text, *expected[&(q, seed)]);
                taken += 1;
            }
            429 => {
                let seconds: u64 = response.header("retry-after").unwrap().parse().unwrap();
                assert!((1..=60).contains(&seconds), "{seconds}");
                assert_eq!(response.json()["error"]["code"], "queue_full");
                refused += 1;
            }
            _ => panic!("{response:?}"),
        }
    }
    assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
    server.wait_until_empty();
    assert_eq!(server.post(CHAT, &body(QUESTION, SAMPLES, 0)).status, 200);
}

#[test]
fn a_hundred_clients_that_go_leave_no_row_behind() {
    const CLIENTS: usize = 100;
    const ROWS: usize = 64;
    // Room for all: sequences of disconnected clients leave the batch after the next step, and with
    // slow steps the queue would reject the last clients.
    let options = ServeOptions { max_waiting_sequences: CLIENTS * ROWS, ..ServeOptions::default() };
    let server = TestServer::with(options);
    for i in 0..CLIENTS {
        let mut body = body(QUESTION, ROWS, i as u64);
        body["stream"] = json!(i % 2 == 0);
        let mut stream = server.open("POST", CHAT, &[], &body.to_string());
        if i % 2 == 0 {
            let mut head = [0; 64];
            stream.read_exact(&mut head).unwrap();
            assert!(head.starts_with(b"HTTP/1.1 200"), "{}", head.escape_ascii());
        }
        drop(stream);
    }
    server.wait_until_empty();
    server.wait_until("streams are counted", |server| {
        server.metric("stream_ends_total{end=\"client_disconnected\"}")
            + server.metric("stream_ends_total{end=\"completed\"}")
            == (CLIENTS / 2) as f64
    });
    server.wait_until("only the scrape itself is in flight", |server| {
        server.metric("http_requests_in_flight") == 1.0
    });
}
