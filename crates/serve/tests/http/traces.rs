//! OpenTelemetry traces, as a collector receives them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use latent_tts_serve::ServeOptions;
use serde_json::{Value, json};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// A collector of spans.
struct SpanCollector {
    url: String,
    spans: Arc<Mutex<Vec<Value>>>,
}

impl SpanCollector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let spans: Arc<Mutex<Vec<Value>>> = Arc::default();
        let taken = Arc::clone(&spans);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                take(stream.unwrap(), &taken);
            }
        });
        Self { url, spans }
    }

    fn options(&self) -> ServeOptions {
        ServeOptions { otlp_endpoint: Some(self.url.clone()), ..Default::default() }
    }

    /// The spans of all requests after the server has ended.
    fn spans(&self, server: TestServer) -> Vec<Value> {
        drop(server);
        self.spans.lock().unwrap().clone()
    }
}

/// Answers the requests of one connection.
fn take(stream: TcpStream, spans: &Mutex<Vec<Value>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let (mut first, mut length) = (String::new(), 0);
        if reader.read_line(&mut first).unwrap_or(0) == 0 {
            return;
        }
        assert!(first.starts_with("POST /v1/traces "), "{first}");
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
        let body: Value = serde_json::from_slice(&body).unwrap();
        let resource = &body["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "latent-tts");
        let batch = resource["scopeSpans"][0]["spans"].as_array().unwrap();
        spans.lock().unwrap().extend(batch.iter().cloned());
        writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
    }
}

fn named<'s>(spans: &'s [Value], name: &str) -> Vec<&'s Value> {
    spans.iter().filter(|span| span["name"] == name).collect()
}

fn attribute<'s>(span: &'s Value, key: &str) -> &'s Value {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|attribute| attribute["key"] == key).unwrap();
    found["value"].as_object().unwrap().values().next().unwrap()
}

fn nanoseconds(span: &Value, end: &str) -> u64 {
    span[format!("{end}TimeUnixNano")].as_str().unwrap().parse().unwrap()
}

#[test]
fn a_request_has_spans_of_its_stages_and_passes() {
    let collector = SpanCollector::start();
    let server = TestServer::with(collector.options());
    let header = format!("traceparent: 00-{TRACE}-{PARENT}-01");
    for streams in [false, true] {
        let latent = json!({ "samples": 16, "seed": 1 });
        let body = chat(QUESTION, json!({ "latent": latent, "stream": streams })).to_string();
        assert_eq!(server.send("POST", CHAT, &[&header], &body).status, 200);
    }
    assert_eq!(server.get("/health").status, 200);
    let spans = collector.spans(server);
    let requests = named(&spans, "POST /v1/chat/completions");
    assert_eq!(requests.len(), 2);
    for request in requests {
        assert_eq!(
            (&request["traceId"], &request["parentSpanId"]),
            (&json!(TRACE), &json!(PARENT))
        );
        assert_eq!(attribute(request, "http.response.status_code"), "200");
        let children: Vec<Value> = spans
            .iter()
            .filter(|span| span["parentSpanId"] == request["spanId"])
            .cloned()
            .collect();
        for name in ["queue", "sample", "score"] {
            assert_eq!(named(&children, name).len(), 1, "{name}");
        }
        for child in &children {
            assert_eq!(child["traceId"], TRACE);
            assert!(nanoseconds(child, "start") >= nanoseconds(request, "start"));
            assert!(nanoseconds(child, "end") <= nanoseconds(request, "end"));
        }
        let sample = named(&children, "sample")[0];
        assert_eq!(attribute(sample, "latent.trajectories"), "16");
        let groups = spans.iter().filter(|span| span["parentSpanId"] == sample["spanId"]);
        let count = |group: &Value| -> u64 {
            attribute(group, "latent.trajectories").as_str().unwrap().parse().unwrap()
        };
        assert_eq!(groups.map(count).sum::<u64>(), 16, "each trajectory is in one group");
    }
    let health = named(&spans, "GET /health")[0];
    assert_ne!(health["traceId"], TRACE);
    assert!(health["parentSpanId"].is_null());
    let mut ids: Vec<&str> = spans.iter().map(|span| span["spanId"].as_str().unwrap()).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "no two spans have one id");
}

#[test]
fn a_collector_that_is_gone_costs_spans_and_nothing_else() {
    let options =
        ServeOptions { otlp_endpoint: Some("http://127.0.0.1:1".into()), ..Default::default() };
    let server = TestServer::with(options);
    let reply = server.post(CHAT, &chat(SHORT, json!({ "latent": { "samples": 4 } })));
    assert_eq!(reply.status, 200);
    server.wait_until("the loss is counted", |server| {
        server.metric("trace_spans_dropped_total") >= 1.0
    });
}
