//! The gateway, with our own server as upstream and with a scripted one that fails.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use latent_tts_serve::{ServeOptions, UpstreamOptions};
use serde_json::{Value, json};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// How the scripted upstream responds to a call, by number and body.
type ReactionScript = dyn Fn(usize, &Value) -> Reaction + Send + Sync;

enum Reaction {
    /// Status 200 with this text as content.
    Text(String),
    /// Another status with these headers.
    Status(u16, &'static str),
    /// The text, one byte at a time with pauses of this length.
    Trickle(String, Duration),
    /// No reply.
    Hang(Duration),
    /// The connection is closed.
    Close,
    /// Something that is not a chat completion.
    Garbage,
}

/// A scripted upstream.
struct ScriptedUpstream {
    url: String,
    calls: Arc<AtomicUsize>,
    /// The maximum number of concurrent calls observed.
    peak: Arc<AtomicUsize>,
    bodies: Arc<Mutex<Vec<Value>>>,
    stop: Arc<AtomicBool>,
}

impl ScriptedUpstream {
    fn start(script: impl Fn(usize, &Value) -> Reaction + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let upstream = Self {
            url: format!("http://{}/v1", listener.local_addr().unwrap()),
            calls: Arc::default(),
            peak: Arc::default(),
            bodies: Arc::default(),
            stop: Arc::default(),
        };
        let (script, running): (Arc<ReactionScript>, Arc<AtomicUsize>) =
            (Arc::new(script), Arc::default());
        let (calls, peak) = (Arc::clone(&upstream.calls), Arc::clone(&upstream.peak));
        let (bodies, stop) = (Arc::clone(&upstream.bodies), Arc::clone(&upstream.stop));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { return };
                let script = Arc::clone(&script);
                let (calls, running) = (Arc::clone(&calls), Arc::clone(&running));
                let (peak, bodies) = (Arc::clone(&peak), Arc::clone(&bodies));
                std::thread::spawn(move || {
                    let body = read_request(&stream);
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    peak.fetch_max(now, Ordering::SeqCst);
                    let call = calls.fetch_add(1, Ordering::SeqCst);
                    let reaction = script(call, &body);
                    bodies.lock().unwrap().push(body);
                    react(stream, reaction);
                    running.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        upstream
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn options(&self) -> ServeOptions {
        gateway_options(&self.url)
    }
}

impl Drop for ScriptedUpstream {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let address = self.url.trim_start_matches("http://").trim_end_matches("/v1");
        drop(TcpStream::connect(address));
    }
}

fn read_request(stream: &TcpStream) -> Value {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap_or_default()
}

fn react(mut stream: TcpStream, reaction: Reaction) {
    let completion = |text: &str| {
        json!({
            "choices": [{ "index": 0, "finish_reason": "stop",
                "message": { "role": "assistant", "content": text },
                "logprobs": { "content": [{ "logprob": -0.5 }, { "logprob": -0.25 }] } }],
            "usage": { "prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13 },
        })
        .to_string()
    };
    let head = |status: u16, headers: &str, length: usize| {
        format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n\
             {headers}content-length: {length}\r\n\r\n"
        )
    };
    // A disconnected gateway is not a failure of the upstream.
    let _ = match reaction {
        Reaction::Text(text) => {
            let body = completion(&text);
            write!(stream, "{}{body}", head(200, "", body.len()))
        }
        Reaction::Status(status, headers) => {
            let body = json!({ "error": { "message": "as told" } }).to_string();
            write!(stream, "{}{body}", head(status, headers, body.len()))
        }
        Reaction::Trickle(text, pause) => {
            let body = completion(&text);
            let all = format!("{}{body}", head(200, "", body.len()));
            all.bytes().try_for_each(|byte| {
                std::thread::sleep(pause);
                stream.write_all(&[byte])
            })
        }
        Reaction::Hang(time) => {
            std::thread::sleep(time);
            Ok(())
        }
        Reaction::Close => Ok(()),
        Reaction::Garbage => write!(stream, "{}[1]", head(200, "", 3)),
    };
}

fn gateway_options(url: &str) -> ServeOptions {
    let upstream = UpstreamOptions {
        url: url.to_owned(),
        api_key: Some("upstream-key".into()),
        model: Some("m".into()),
        concurrency: 8,
        timeout: Duration::from_secs(60),
    };
    ServeOptions { upstream: Some(upstream), ..Default::default() }
}

fn gateway(upstream: &ScriptedUpstream) -> TestServer {
    TestServer::of_models(Vec::new(), upstream.options())
}

fn ask(gateway: &TestServer, latent: Value) -> Response {
    gateway.post(CHAT, &chat("What is 3 + 4?", json!({ "latent": latent })))
}

fn text(text: &str) -> Reaction {
    Reaction::Text(text.to_owned())
}

fn seed(body: &Value) -> u64 {
    body["seed"].as_u64().unwrap()
}

#[test]
fn answers_of_completions_are_voted_on() {
    let upstream = ScriptedUpstream::start(|_, body| match seed(body) % 4 {
        0 => text("I think it is 8."),
        1 => text("Let me see: \\boxed{7}"),
        2 => text("3 + 4\n#### 7"),
        _ => text("no idea"),
    });
    let gateway = gateway(&upstream);
    let body = chat(
        "What is 3 + 4?",
        json!({ "top_k": 5,
        "latent": { "samples": 8, "seed": 100, "return": ["votes", "trajectories"] } }),
    );
    let reply = gateway.post(CHAT, &body).ok();
    let choice = &reply["choices"][0];
    assert_eq!(choice["message"]["content"], "Let me see: \\boxed{7}");
    let latent = &choice["latent"];
    assert_eq!((&latent["answer"], &latent["chosen"]), (&json!("7"), &json!(1)));
    assert_eq!((&latent["samples"], &latent["failed"]), (&json!(8), &json!(0)));
    let votes = latent["votes"].as_array().unwrap();
    let counts: Vec<_> =
        votes.iter().map(|vote| (vote["answer"].clone(), vote["votes"].clone())).collect();
    assert_eq!(counts, [(json!("8"), json!(2)), (json!("7"), json!(4))]);
    let share = &votes[1]["share"];
    assert_eq!(share["value"], 0.5);
    assert!(share["low"].as_f64().unwrap() < 0.5 && share["high"].as_f64().unwrap() > 0.5);
    assert_eq!(latent["trajectories"].as_array().unwrap().len(), 8);
    assert_eq!(reply["usage"]["prompt_tokens"], 80);
    assert_eq!(reply["usage"]["completion_tokens"], 24);
    let bodies = upstream.bodies.lock().unwrap();
    let seeds: BTreeSet<u64> = bodies.iter().map(seed).collect();
    assert_eq!(seeds, (100..108).collect());
    for body in bodies.iter() {
        assert_eq!((&body["model"], &body["top_k"]), (&json!("m"), &json!(5)), "passed on");
        assert_eq!(body["temperature"], 1.0);
        assert!(body["latent"].is_null() && body["stream"].is_null());
    }
    assert!(upstream.peak.load(Ordering::SeqCst) <= 8);
}

#[test]
fn our_own_server_can_be_the_upstream() {
    let upstream = TestServer::start();
    let url = format!("http://{}/v1", upstream.address);
    let mut options = gateway_options(&url);
    if let Some(upstream) = &mut options.upstream {
        upstream.model = Some("embedded".into());
    }
    let gateway = TestServer::of_models(Vec::new(), options);
    let body = chat(
        QUESTION,
        json!({ "latent": { "samples": 6, "seed": 1,
        "return": ["trajectories"] } }),
    );
    let reply = gateway.post(CHAT, &body).ok();
    let latent = &reply["choices"][0]["latent"];
    for trajectory in latent["trajectories"].as_array().unwrap() {
        let seed = 1 + trajectory["index"].as_u64().unwrap();
        let alone = chat(QUESTION, json!({ "seed": seed, "temperature": 1.0 }));
        let alone = upstream.post(CHAT, &alone).ok();
        assert_eq!(trajectory["text"], alone["choices"][0]["message"]["content"]);
    }
    let models = gateway.get("/v1/models").ok();
    assert_eq!(models["data"][0]["id"], "embedded");
    // Under load: more requests than the upstream accepts at a time, each with its own answer.
    let expected = reply["choices"][0]["latent"].clone();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let reply = gateway.post(CHAT, &body).ok();
                assert_eq!(reply["choices"][0]["latent"], expected);
            });
        }
    });
    assert!(gateway.metric("upstream_requests_total{status=\"200\"}") >= 42.0);
    let named = json!({ "model": "embedded@majority-3" });
    let reply = gateway.post(CHAT, &chat(SHORT, named)).ok();
    assert_eq!(reply["choices"][0]["latent"]["samples"], 3);
    upstream.wait_until_empty();
}

#[test]
fn transient_errors_are_retried_as_the_upstream_asks() {
    let upstream = ScriptedUpstream::start(|call, _| match call {
        0 => Reaction::Status(429, "retry-after-ms: 300\r\n"),
        1 => Reaction::Status(500, ""),
        2 => Reaction::Garbage,
        _ => text("7"),
    });
    let gateway = gateway(&upstream);
    let start = Instant::now();
    let reply = ask(&gateway, json!({ "samples": 1 })).ok();
    assert_eq!(reply["choices"][0]["latent"]["answer"], "7");
    assert_eq!(upstream.calls(), 4);
    assert!(start.elapsed() >= Duration::from_millis(300), "the pause was asked for");
    let count =
        |status: &str| gateway.metric(&format!("upstream_requests_total{{status=\"{status}\"}}"));
    assert_eq!(["429", "500", "malformed", "200"].map(count), [1.0; 4]);
}

#[test]
fn failed_completions_do_not_vote_and_are_reported() {
    let upstream = ScriptedUpstream::start(|_, body| match seed(body) {
        0 => Reaction::Status(500, ""),
        1 => Reaction::Close,
        _ => text("7"),
    });
    let gateway = gateway(&upstream);
    let reply = ask(&gateway, json!({ "samples": 5 })).ok();
    let latent = &reply["choices"][0]["latent"];
    assert_eq!((&latent["samples"], &latent["failed"]), (&json!(3), &json!(2)));
    assert_eq!(latent["answer"], "7");
    let note = latent["notes"][0].as_str().unwrap();
    assert!(note.starts_with("2 of 5 completions failed and did not vote; last error: "), "{note}");
}

#[test]
fn an_upstream_that_only_fails_is_an_error() {
    for (reaction, status, calls) in [
        (Reaction::Status(400, ""), 400, 1),
        (Reaction::Status(401, ""), 502, 1),
        (Reaction::Status(503, "retry-after-ms: 1\r\n"), 502, 4),
        (Reaction::Status(429, "retry-after-ms: 1\r\n"), 429, 4),
    ] {
        let (told, headers) = match reaction {
            Reaction::Status(told, headers) => (told, headers),
            _ => unreachable!(),
        };
        let upstream = ScriptedUpstream::start(move |_, _| Reaction::Status(told, headers));
        let gateway = gateway(&upstream);
        let response = ask(&gateway, json!({ "samples": 1 }));
        assert_eq!(response.status, status, "{told}: {response:?}");
        assert_eq!(response.json()["error"]["code"], "upstream_error");
        assert_eq!(upstream.calls(), calls, "{told}");
        assert!(!response.text.contains("upstream-key"));
        if status == 429 {
            assert!(response.header("retry-after").is_some());
        }
    }
    // No server listens on this address.
    let gateway = TestServer::of_models(Vec::new(), gateway_options("http://127.0.0.1:1/v1"));
    assert_eq!(ask(&gateway, json!({ "samples": 2 })).status, 502);
}

#[test]
fn slow_upstreams_are_cut_and_the_rest_votes() {
    let slow = Duration::from_millis(400);
    let upstream = ScriptedUpstream::start(move |_, body| match seed(body) {
        0 => Reaction::Hang(Duration::from_secs(20)),
        1 => Reaction::Trickle("8".into(), slow),
        _ => text("7"),
    });
    let gateway = gateway(&upstream);
    let start = Instant::now();
    let reply = ask(&gateway, json!({ "samples": 4, "deadline_ms": 1500 })).ok();
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    let latent = &reply["choices"][0]["latent"];
    assert_eq!((&latent["samples"], &latent["answer"]), (&json!(2), &json!("7")));
    assert_eq!(latent["stopped"], json!({ "requested": 4, "reason": "deadline" }));
    // If there is nothing to vote on, the deadline is an error.
    let none = ScriptedUpstream::start(|_, _| Reaction::Hang(Duration::from_secs(5)));
    let gateway = TestServer::of_models(Vec::new(), none.options());
    let response = ask(&gateway, json!({ "samples": 2, "timeout": 0.5 }));
    assert_eq!((response.status, &response.json()["error"]["code"]), (504, &json!("deadline")));
}

#[test]
fn a_target_stops_asking_when_the_vote_is_decided() {
    let upstream = ScriptedUpstream::start(|_, _| text("7"));
    let gateway = gateway(&upstream);
    let reply = ask(&gateway, json!({ "samples": 32, "target_confidence": 0.9 })).ok();
    let latent = &reply["choices"][0]["latent"];
    assert_eq!(latent["samples"], 4, "four equal answers give a confidence of 97%");
    assert_eq!(latent["stopped"]["reason"], "confident");
    assert!(latent["confidence"].as_f64().unwrap() > 0.9);
    assert_eq!(upstream.calls(), 4);
    let whole = ask(&gateway, json!({ "samples": 12, "target_confidence": 1.0 })).ok();
    assert_eq!(whole["choices"][0]["latent"]["stopped"]["reason"], "certain");
    assert_eq!(upstream.calls(), 4 + 8, "after 8 the other 4 cannot change it");
}

#[test]
fn a_stream_reports_each_completion() {
    let upstream = ScriptedUpstream::start(|_, body| text(&format!("{}", 7 + seed(body) / 3)));
    let gateway = gateway(&upstream);
    let body = chat(
        "?",
        json!({ "stream": true, "stream_options": { "include_usage": true },
        "latent": { "samples": 4 } }),
    );
    let events = gateway.post(CHAT, &body).events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let told =
        chunks.iter().filter(|chunk| chunk["choices"][0]["latent"]["trajectory"].is_object());
    assert_eq!(told.count(), 4);
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "7");
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 12);
    let failing = ScriptedUpstream::start(|_, _| Reaction::Status(400, ""));
    let gateway = TestServer::of_models(Vec::new(), failing.options());
    let events = gateway.post(CHAT, &body).events();
    assert!(events.last().unwrap().contains("upstream_error"));
}

#[test]
fn the_queue_of_a_gateway_has_a_bound_and_clients_that_go_leave_it() {
    let upstream = ScriptedUpstream::start(|_, _| Reaction::Hang(Duration::from_millis(700)));
    let options = ServeOptions { max_waiting_sequences: 8, max_samples: 8, ..upstream.options() };
    let gateway = TestServer::of_models(Vec::new(), options);
    let body = chat("?", json!({ "latent": { "samples": 6 } })).to_string();
    let waiting = gateway.open("POST", CHAT, &[], &body);
    gateway.wait_until("the first request is in flight", |_| upstream.calls() >= 6);
    let response = ask(&gateway, json!({ "samples": 6 }));
    assert_eq!((response.status, &response.json()["error"]["code"]), (429, &json!("queue_full")));
    drop(waiting);
    gateway.wait_until("the queue is free again", |gateway| {
        ask(gateway, json!({ "samples": 6, "timeout": 0.01 })).status == 504
    });
}

#[test]
fn unsupported_fields_of_a_gateway_are_rejected_by_name() {
    let upstream = ScriptedUpstream::start(|_, _| text("7"));
    let gateway = gateway(&upstream);
    for (more, field) in [
        (json!({ "n": 2 }), "n"),
        (json!({ "latent": { "sampels": 2 } }), "latent.sampels"),
        (json!({ "latent": { "rule": "weighted" } }), "latent.rule"),
        (json!({ "latent": { "samples": 100_000 } }), "latent.samples"),
        (json!({ "latent": { "answer": "poem" } }), "latent.answer"),
        (json!({ "latent": { "adaptive": false, "target_confidence": 0.9 } }), "latent.adaptive"),
    ] {
        let response = gateway.post(CHAT, &chat("?", more.clone()));
        assert_eq!(response.refused_field(), field, "{more}");
    }
    assert_eq!(gateway.post(CHAT, &json!({ "model": "m" })).refused_field(), "messages");
    assert_eq!(gateway.post("/v1/completions", &json!({ "prompt": "a" })).status, 404);
    assert_eq!(upstream.calls(), 0, "no upstream call was made");
    let rule = latent_tts::Rule::LIKELIHOOD.name();
    let latent = json!({ "samples": 2, "rule": rule, "return": ["trajectories"] });
    let latent = ask(&gateway, latent).ok()["choices"][0]["latent"].clone();
    assert_eq!(
        (&latent["rule"], &latent["trajectories"][0]["logprob"]),
        (&json!(rule), &json!(-0.75))
    );
    assert_eq!(upstream.bodies.lock().unwrap()[0]["logprobs"], true);
}
