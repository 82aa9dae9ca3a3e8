//! Rejected requests, closed connections and draining.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use latent_tts_serve::ServeOptions;
use serde_json::{Value, json};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// A head, and the start of the body that it announces.
const SLOW_HEAD: &str = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n\
                         content-type: application/json\r\ncontent-length: 10\r\n\r\n{";

/// A long-running request with many trajectories.
fn long(samples: usize, seed: u64) -> Value {
    chat(QUESTION, json!({ "latent": { "samples": samples, "seed": seed } }))
}

#[test]
fn a_deadline_ends_a_request() {
    let server = TestServer::start();
    let mut body = long(512, 0);
    body["latent"]["timeout"] = json!(0.001);
    let response = server.post(CHAT, &body);
    assert_eq!(response.status, 504, "{response:?}");
    assert_eq!(response.header("x-should-retry"), Some("false"));
    body["stream"] = json!(true);
    let events = server.post(CHAT, &body).events();
    let last: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    assert_eq!(last["error"]["code"], "deadline");
    server.wait_until_empty();
}

#[test]
fn a_drain_finishes_accepted_requests_and_rejects_new_ones() {
    // Long enough for a busy machine.
    let shutdown_timeout = Duration::from_secs(300);
    let mut server = TestServer::with(ServeOptions { shutdown_timeout, ..Default::default() });
    let streams: Vec<(u64, TcpStream)> = (0..6)
        .map(|seed| (seed, server.open("POST", CHAT, &[], &long(96, seed).to_string())))
        .collect();
    server.wait_until("all are taken", |server| {
        server.metric("num_requests_running") + server.metric("num_requests_waiting") == 6.0
    });
    server.shut_down();
    server.wait_until("it drains", |server| server.get("/ready").status == 503);
    let refused = server.post(CHAT, &long(1, 0));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    for (seed, stream) in streams {
        let reply = Response::read(stream).ok();
        let text = reply["choices"][0]["latent"]["raw_text"].clone();
        assert_eq!(text, *chosen_text(&solve(QUESTION, 96, seed)));
    }
    server.join();
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn a_drain_ends_at_its_timeout() {
    let timeout = Duration::from_millis(50);
    let options = ServeOptions { shutdown_timeout: timeout, ..Default::default() };
    let mut server = TestServer::with(options);
    let streams: Vec<TcpStream> =
        (0..8).map(|i| server.open("POST", CHAT, &[], &long(512, i).to_string())).collect();
    server.wait_until("they run", |server| server.metric("num_requests_running") > 0.0);
    server.shut_down();
    server.join();
    let statuses: Vec<u16> = streams.into_iter().map(|s| Response::read(s).status).collect();
    assert!(statuses.contains(&503), "{statuses:?}");
}

#[test]
fn a_key_is_asked_for() {
    let options = ServeOptions { api_key: Some("secret".into()), ..Default::default() };
    let server = TestServer::with(options);
    let body = chat(SHORT, json!({})).to_string();
    for headers in [&[][..], &["authorization: Bearer "], &["authorization: Bearer secre"]] {
        let response = server.send("POST", CHAT, headers, &body);
        assert_eq!(response.status, 401);
        assert_eq!(response.json()["error"]["code"], "invalid_api_key");
    }
    assert_eq!(server.get("/v1/models").status, 401);
    assert_eq!(server.get("/metrics").status, 401);
    assert_eq!(server.get("/health").status, 200);
    for scheme in ["Bearer", "bearer", "BEARER", "Bearer "] {
        let header = format!("authorization: {scheme} secret");
        assert_eq!(server.send("POST", CHAT, &[&header], &body).status, 200, "{scheme}");
    }
    assert_eq!(server.send("POST", CHAT, &["authorization: Basic secret"], &body).status, 401);
}

#[test]
fn a_local_server_without_a_key_answers_for_its_own_hosts_only() {
    let host = |server: &TestServer, path: &str, host: &str| {
        server.send("GET", path, &[&format!("host: {host}")], "")
    };
    let allowed_hosts = vec!["models.example.com".to_owned()];
    let server = TestServer::with(ServeOptions { allowed_hosts, ..Default::default() });
    let port = server.address.port();
    for own in ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:9", "Models.example.com:8443"] {
        assert_eq!(host(&server, "/v1/models", own).status, 200, "{own}");
    }
    assert_eq!(host(&server, "/v1/models", &format!("127.0.0.1:{port}")).status, 200);
    for other in ["evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", ""] {
        for path in ["/", "/v1/models", "/health", "/nowhere"] {
            let refused = host(&server, path, other);
            assert_eq!(refused.status, 403, "{other} {path}");
            assert_eq!(refused.json()["error"]["code"], "host_not_allowed");
        }
    }
    assert_eq!(server.get("http://evil.example/v1/models").status, 403);
    assert_eq!(server.get("http://localhost/v1/models").status, 200);

    let options = ServeOptions { api_key: Some("secret".into()), ..Default::default() };
    assert_eq!(host(&TestServer::with(options), "/health", "any.example").status, 200);
}

#[test]
fn bodies_have_a_json_content_type() {
    let server = TestServer::start();
    let body = chat(SHORT, json!({})).to_string();
    let send = |kind: &str| server.send("POST", CHAT, &[kind], &body);
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""] {
        let refused = send(&format!("content-type: {kind}"));
        assert_eq!(refused.status, 415, "{kind}");
        assert!(refused.json()["error"]["message"].is_string());
    }
    assert_eq!(server.send("POST", "/tokenize", &[], "").status, 415);
    for kind in ["application/json", "Application/JSON; charset=utf-8", "application/x+json"] {
        assert_eq!(send(&format!("content-type: {kind}")).status, 200, "{kind}");
    }
}

#[test]
fn request_ids_go_in_and_out() {
    let server = TestServer::start();
    let given = server.send("GET", "/health", &["x-request-id: mine-1"], "");
    assert_eq!(given.header("x-request-id"), Some("mine-1"));
    let made: Vec<String> =
        (0..2).map(|_| server.get("/nowhere").header("x-request-id").unwrap().to_owned()).collect();
    assert!(made[0] != made[1] && made[0].len() > 8);
    let long = format!("x-request-id: {}", "x".repeat(200));
    let replaced = server.send("GET", "/health", &[&long], "");
    assert!(replaced.header("x-request-id").unwrap().len() < 100);
}

#[test]
fn bodies_heads_and_slow_clients_are_bounded() {
    let options = ServeOptions {
        max_body_bytes: 1000,
        io_timeout: Duration::from_millis(500),
        ..Default::default()
    };
    let server = TestServer::with(options);
    assert_eq!(server.post(CHAT, &chat(&"pens ".repeat(300), json!({}))).status, 413);
    let headers: Vec<String> = (0..100).map(|i| format!("x-header-{i}: x")).collect();
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    assert_eq!(server.send("GET", "/health", &headers, "").status, 431);

    let mut slow = TcpStream::connect(server.address).unwrap();
    slow.write_all(SLOW_HEAD.as_bytes()).unwrap();
    assert_eq!(Response::read(slow).status, 408);
    let mut silent = TcpStream::connect(server.address).unwrap();
    silent.write_all(b"GET /health HT").unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (start, mut rest) = (Instant::now(), Vec::new());
    let _ = silent.read_to_end(&mut rest);
    assert!(start.elapsed() < Duration::from_secs(30), "the connection was kept");
}

#[test]
fn malformed_chunks_and_paths_are_bad_requests() {
    let server = TestServer::start();
    for chunk in ["zz\r\n{}\r\n0\r\n\r\n", "2\r\n{}xx0\r\n\r\n"] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             connection: close\r\ntransfer-encoding: chunked\r\n\r\n{chunk}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(Response::read(stream).refused_field(), "");
    }
    for path in ["/v1/models/%FF", "/runs/%ff%fe"] {
        assert_eq!(server.get(path).refused_field(), "");
    }
}

#[test]
fn connections_are_bounded_and_wait() {
    let options = ServeOptions { max_connections: 2, ..Default::default() };
    let server = TestServer::with(options);
    let body = long(64, 0).to_string();
    let streams: Vec<TcpStream> = (0..8).map(|_| server.open("POST", CHAT, &[], &body)).collect();
    let texts: Vec<String> =
        streams.into_iter().map(|s| Response::read(s).ok()["choices"].to_string()).collect();
    assert!(texts.iter().all(|text| *text == texts[0]));
}

/// The response to the head of a request whose body is never sent.
fn announce(server: &TestServer, bytes: usize) -> String {
    let mut connection = TcpStream::connect(server.address).unwrap();
    let head = "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    write!(connection, "{head}content-length: {bytes}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn an_announced_oversized_body_is_rejected_before_it_is_sent() {
    let server = TestServer::with(ServeOptions {
        max_body_bytes: 1000,
        io_timeout: Duration::from_secs(60),
        ..ServeOptions::default()
    });
    let start = Instant::now();
    assert!(announce(&server, 1001).starts_with("HTTP/1.1 413"));
    assert!(start.elapsed() < Duration::from_secs(30), "the body was waited for");
}

#[test]
fn a_head_has_64_kib_at_most() {
    let server = TestServer::start();
    let status = |bytes: usize| {
        let start = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\na: ";
        let head = format!("{start}{}\r\n\r\n", "b".repeat(bytes - start.len() - 4));
        assert_eq!(head.len(), bytes);
        let mut connection = TcpStream::connect(server.address).unwrap();
        connection.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 12];
        connection.read_exact(&mut answer).unwrap();
        String::from_utf8(answer[9..].to_vec()).unwrap()
    };
    assert_eq!(status(64 << 10), "200");
    assert_eq!(status((64 << 10) + 1), "431");
    assert_eq!(status(70_000), "431");
}

#[test]
fn requests_beyond_the_memory_limit_are_refused() {
    let engine = engine().memory();
    // Allocations are not counted in a test process, only the key-value cache and the reservations
    // of requests.
    let options = ServeOptions {
        max_memory: Some(engine + (64 << 20)),
        max_body_bytes: 16 << 20,
        ..ServeOptions::default()
    };
    let server = TestServer::with(options);
    assert_eq!(server.post("/tokenize", &json!({ "prompt": "a" })).status, 200);
    let refused = announce(&server, 3 << 20);
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(refused.contains("memory_limit") && refused.contains("retry-after: 1"), "{refused}");
    assert_eq!(server.post("/tokenize", &json!({ "prompt": "a" })).status, 200);
}
