//! OpenTelemetry traces: spans of requests, sent as OTLP over HTTP in JSON.
//!
//! ```text
//! request                       from its head to the end of its response
//!   queue                       until its trajectories join the batch
//!   sample                      until its last trajectory has an answer
//!     passes                    steps of the batch until some of its trajectories are complete
//!   score                       until the reply is complete: rewards and the vote
//!   upstream                    one completion of a gateway, including retries
//! ```
//!
//! Handlers pass spans to a thread that sends them in batches. If it cannot keep up or the
//! collector does not respond, spans are dropped and counted; requests never wait for them. A
//! `traceparent` header (W3C Trace Context) makes the request a child of the client's span. The
//! protocol is implemented here, because the OpenTelemetry crates would add forty dependencies.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use axum::http::HeaderMap;
use engine::scheduler::Event;
use serde_json::{Value, json};
use ureq::Agent;

use crate::ServeError;
use crate::metrics::Metrics;

/// Maximum number of spans waiting to be sent.
const MAX_WAITING: usize = 4096;
/// Maximum number of spans per batch, and the maximum delay of its first span.
const MAX_BATCH: usize = 512;
const BATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of the collector for a batch.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of groups of steps with a span, per request.
const MAX_PASS_GROUPS: usize = 64;
/// Span kinds and status codes of OTLP.
const KIND_INTERNAL: u8 = 1;
const KIND_SERVER: u8 = 2;
const STATUS_UNSET: u8 = 0;
const STATUS_ERROR: u8 = 2;

tokio::task_local! {
    /// The trace of the request handled by a task.
    static CURRENT: Option<Arc<RequestTrace>>;
}

/// The trace of the request handled by this task, if it is traced.
pub(crate) fn current() -> Option<Arc<RequestTrace>> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}

/// Runs a handler under a trace.
pub(crate) async fn with_trace<T>(
    trace: Option<Arc<RequestTrace>>,
    handler: impl Future<Output = T>,
) -> T {
    CURRENT.scope(trace, handler).await
}

/// Sends spans to a collector.
pub(crate) struct Tracer {
    /// `None` after the tracer is closed.
    sender: Mutex<Option<SyncSender<Value>>>,
    worker: Mutex<Option<JoinHandle<()>>>,
    metrics: Arc<Metrics>,
}

impl Tracer {
    /// Starts a tracer. `endpoint` is the collector's base URL, such as `http://127.0.0.1:4318`.
    pub(crate) fn new(endpoint: &str, metrics: Arc<Metrics>) -> Result<Self, ServeError> {
        if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
            return Err(ServeError::Collector { url: endpoint.to_owned() });
        }
        let base = endpoint.trim_end_matches('/').trim_end_matches("/v1/traces");
        let exporter = Exporter {
            url: format!("{base}/v1/traces"),
            agent: Agent::config_builder().timeout_global(Some(SEND_TIMEOUT)).build().into(),
            metrics: Arc::clone(&metrics),
        };
        let (sender, receiver) = sync_channel(MAX_WAITING);
        let worker = std::thread::Builder::new()
            .name("traces".to_owned())
            .spawn(move || exporter.run(&receiver))
            .map_err(ServeError::Runtime)?;
        let (sender, worker) = (Mutex::new(Some(sender)), Mutex::new(Some(worker)));
        Ok(Self { sender, worker, metrics })
    }

    fn send(&self, span: Value) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = sender.as_ref().is_some_and(|sender| sender.try_send(span).is_ok());
        if !sent {
            self.metrics.dropped_spans.inc();
        }
    }
}

impl Tracer {
    /// Waits until all spans so far are sent; later ones are dropped. Blocks.
    pub(crate) fn close(&self) {
        // The thread sends the waiting spans and ends.
        drop(self.sender.lock().unwrap_or_else(PoisonError::into_inner).take());
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            // A panic was printed by the thread itself.
            let _ = worker.join();
        }
    }
}

/// The thread's side of a tracer.
struct Exporter {
    url: String,
    agent: Agent,
    metrics: Arc<Metrics>,
}

impl Exporter {
    fn run(&self, spans: &Receiver<Value>) {
        while let Ok(first) = spans.recv() {
            let until = Instant::now() + BATCH_INTERVAL;
            let mut batch = vec![first];
            let mut is_closed = false;
            while batch.len() < MAX_BATCH && !is_closed {
                let left = until.saturating_duration_since(Instant::now());
                match spans.recv_timeout(left) {
                    Ok(span) => batch.push(span),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => is_closed = true,
                }
            }
            let count = batch.len() as u64;
            if let Err(error) = self.send(batch) {
                self.metrics.dropped_spans.inc_by(count);
                tracing::warn!(%error, count, "spans lost: the collector did not accept them");
            }
        }
    }

    fn send(&self, spans: Vec<Value>) -> Result<(), ureq::Error> {
        let attributes = [
            ("service.name", json!("latent-tts")),
            ("service.version", json!(env!("CARGO_PKG_VERSION"))),
        ];
        let body = json!({ "resourceSpans": [{
            "resource": { "attributes": attributes_json(&attributes) },
            "scopeSpans": [{ "scope": { "name": "latent-tts" }, "spans": spans }],
        }]});
        let request = self.agent.post(&self.url).header("content-type", "application/json");
        request.send(body.to_string().as_bytes()).map(drop)
    }
}

/// A span that is complete.
struct FinishedSpan<'a> {
    name: &'a str,
    id: u64,
    parent: Option<u64>,
    kind: u8,
    times: [SystemTime; 2],
    attributes: &'a [(&'a str, Value)],
    /// The error message.
    error: Option<&'a str>,
}

/// A request's trace. Its span ends when the last part of the server drops it, which for a stream
/// is the end of the stream.
pub(crate) struct RequestTrace {
    tracer: Arc<Tracer>,
    trace_id: u128,
    span_id: u64,
    parent: Option<u64>,
    start: SystemTime,
    attributes: Mutex<Vec<(&'static str, Value)>>,
}

impl RequestTrace {
    /// Starts a trace, continuing that of the headers if they contain one.
    pub(crate) fn start(tracer: &Arc<Tracer>, headers: &HeaderMap) -> Arc<Self> {
        let header = headers.get("traceparent").and_then(|value| value.to_str().ok());
        let (trace_id, parent) = match header.and_then(parse_traceparent) {
            Some((trace_id, parent)) => (trace_id, Some(parent)),
            None => (u128::from(random_id()) << 64 | u128::from(random_id()), None),
        };
        Arc::new(Self {
            tracer: Arc::clone(tracer),
            trace_id,
            span_id: random_id(),
            parent,
            start: SystemTime::now(),
            attributes: Mutex::default(),
        })
    }

    /// Adds an attribute to the request's span.
    pub(crate) fn set(&self, name: &'static str, value: Value) {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner).push((name, value));
    }

    /// Sends the span of one upstream completion.
    pub(crate) fn upstream(&self, start: SystemTime, number: usize, error: Option<&str>) {
        self.send(&FinishedSpan {
            name: "upstream",
            id: random_id(),
            parent: Some(self.span_id),
            kind: KIND_INTERNAL,
            times: [start, SystemTime::now()],
            attributes: &[("latent.trajectory", json!(number))],
            error,
        });
    }

    /// Sends a child span of another span of this request; returns its id.
    fn stage(
        &self,
        name: &str,
        parent: u64,
        times: [SystemTime; 2],
        attributes: &[(&str, Value)],
    ) -> u64 {
        let (id, parent) = (random_id(), Some(parent));
        let kind = KIND_INTERNAL;
        self.send(&FinishedSpan { name, id, parent, kind, times, attributes, error: None });
        id
    }

    fn send(&self, span: &FinishedSpan<'_>) {
        let nanoseconds = |time: SystemTime| {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            since.as_nanos().to_string()
        };
        let code = if span.error.is_some() { STATUS_ERROR } else { STATUS_UNSET };
        let mut json = json!({
            "traceId": format!("{:032x}", self.trace_id),
            "spanId": format!("{:016x}", span.id),
            "name": span.name,
            "kind": span.kind,
            "startTimeUnixNano": nanoseconds(span.times[0]),
            "endTimeUnixNano": nanoseconds(span.times[1]),
            "attributes": attributes_json(span.attributes),
            "status": { "code": code, "message": span.error.unwrap_or_default() },
        });
        if let Some(parent) = span.parent {
            json["parentSpanId"] = json!(format!("{parent:016x}"));
        }
        self.tracer.send(json);
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let attributes = self.attributes.get_mut().unwrap_or_else(PoisonError::into_inner);
        let attributes = std::mem::take(attributes);
        let find = |name: &str| attributes.iter().find(|(known, _)| *known == name);
        let route = find("http.route").and_then(|(_, route)| route.as_str());
        let method = find("http.request.method").and_then(|(_, method)| method.as_str());
        let name = format!("{} {}", method.unwrap_or("request"), route.unwrap_or_default());
        let status = find("http.response.status_code").and_then(|(_, status)| status.as_u64());
        let error = match status {
            Some(status) if status < 500 => None,
            Some(_) => Some("server error"),
            None => Some("client disconnected"),
        };
        self.send(&FinishedSpan {
            name: name.trim_end(),
            id: self.span_id,
            parent: self.parent,
            kind: KIND_SERVER,
            times: [self.start, SystemTime::now()],
            attributes: &attributes,
            error,
        });
    }
}

/// The stages of one prompt of a request, derived from its events.
pub(crate) struct StageSpans {
    trace: Arc<RequestTrace>,
    submitted: SystemTime,
    started: Option<SystemTime>,
    groups: Vec<PassGroup>,
}

/// Steps of the batch up to one in which trajectories were completed.
struct PassGroup {
    passes: [u64; 2],
    times: [SystemTime; 2],
    trajectories: usize,
}

impl StageSpans {
    /// For a prompt that is submitted now; `None` if its request is not traced.
    pub(crate) fn new() -> Option<Self> {
        let (submitted, started) = (SystemTime::now(), None);
        current().map(|trace| Self { trace, submitted, started, groups: Vec::new() })
    }

    /// Processes an event. `passes` is the number of steps of the batch so far.
    pub(crate) fn add(&mut self, event: &Event, passes: u64) {
        let now = SystemTime::now();
        match event {
            Event::Started => {
                self.trace.stage("queue", self.trace.span_id, [self.submitted, now], &[]);
                self.started = Some(now);
                self.groups.push(PassGroup {
                    passes: [passes, passes],
                    times: [now, now],
                    trajectories: 0,
                });
            }
            Event::Trajectory(_) => self.trajectory(now, passes),
            Event::Done(_) => self.finish(now, passes),
            _ => {}
        }
    }

    fn trajectory(&mut self, now: SystemTime, passes: u64) {
        let is_full = self.groups.len() >= MAX_PASS_GROUPS;
        let Some(last) = self.groups.last_mut() else { return };
        if is_full || last.trajectories == 0 || last.passes[1] == passes {
            last.passes[1] = passes;
            last.times[1] = now;
            last.trajectories += 1;
            return;
        }
        let passes = [last.passes[1], passes];
        let times = [last.times[1], now];
        self.groups.push(PassGroup { passes, times, trajectories: 1 });
    }

    /// Sends the spans of sampling and of the following stages.
    fn finish(&mut self, now: SystemTime, passes: u64) {
        let Some(started) = self.started else { return };
        if let Some(only) = self.groups.first_mut().filter(|group| group.trajectories == 0) {
            // A single trajectory has no event of its own.
            only.passes[1] = passes;
            only.times[1] = now;
            only.trajectories = 1;
        }
        let sampled = self.groups.last().map_or(now, |last| last.times[1]);
        let trajectories: usize = self.groups.iter().map(|group| group.trajectories).sum();
        let attributes = [("latent.trajectories", json!(trajectories))];
        let sample =
            self.trace.stage("sample", self.trace.span_id, [started, sampled], &attributes);
        for group in self.groups.drain(..) {
            let attributes = [
                ("latent.passes.first", json!(group.passes[0])),
                ("latent.passes.last", json!(group.passes[1])),
                ("latent.trajectories", json!(group.trajectories)),
            ];
            self.trace.stage("passes", sample, group.times, &attributes);
        }
        if sampled < now {
            self.trace.stage("score", self.trace.span_id, [sampled, now], &[]);
        }
    }
}

fn attributes_json(attributes: &[(&str, Value)]) -> Value {
    let one = |(name, value): &(&str, Value)| {
        let value = match value {
            Value::String(text) => json!({ "stringValue": text }),
            Value::Bool(value) => json!({ "boolValue": value }),
            // OTLP encodes 64-bit integers as strings.
            Value::Number(number) if !number.is_f64() => json!({ "intValue": number.to_string() }),
            Value::Number(number) => json!({ "doubleValue": number }),
            other => json!({ "stringValue": other.to_string() }),
        };
        json!({ "key": name, "value": value })
    };
    attributes.iter().map(one).collect()
}

/// Parses trace and parent ids from `00-<32 hex>-<16 hex>-<2 hex>`; zero ids are invalid.
fn parse_traceparent(header: &str) -> Option<(u128, u64)> {
    let mut parts = header.trim().split('-');
    let version = parts.next()?;
    let (trace, parent) = (parts.next()?, parts.next()?);
    let is_hex = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    if !is_hex(version, 2) || version == "ff" || !is_hex(trace, 32) || !is_hex(parent, 16) {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|&id| id != 0)?;
    let parent = u64::from_str_radix(parent, 16).ok().filter(|&id| id != 0)?;
    Some((trace, parent))
}

/// A random nonzero id. The keys of the standard library's hash maps are random.
fn random_id() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_has_two_ids() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let header = format!("00-{id}-00f067aa0ba902b7-01");
        let trace = u128::from_str_radix(id, 16).unwrap();
        assert_eq!(parse_traceparent(&header), Some((trace, 0x00f0_67aa_0ba9_02b7)));
        for wrong in [
            "",
            "00-1-2-01",
            &format!("ff-{id}-00f067aa0ba902b7-01"),
            &format!("00-{id}-0000000000000000-01"),
            &format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            &format!("00-{}-00f067aa0ba902b7-01", "+".repeat(32)),
        ] {
            assert_eq!(parse_traceparent(wrong), None, "{wrong}");
        }
    }
}
