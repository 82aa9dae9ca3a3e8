//! Metrics of the server in Prometheus text format, with the names that common dashboards use.

use std::fmt::Error;
use std::sync::atomic::AtomicU64;

use engine::scheduler::SchedulerStats;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct HttpLabels {
    method: String,
    path: String,
    status: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FinishedLabels {
    finished_reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StreamLabels {
    end: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct UpstreamLabels {
    status: String,
}

/// All metrics of a server.
pub(crate) struct Metrics {
    registry: Registry,
    http_requests: Family<HttpLabels, Counter>,
    pub(crate) http_in_flight: Gauge,
    running: Gauge,
    waiting: Gauge,
    running_sequences: Gauge,
    waiting_sequences: Gauge,
    kv_usage: Gauge<f64, AtomicU64>,
    passes: Gauge,
    models: Gauge,
    prefix_queries: Gauge,
    prefix_hits: Gauge,
    pub(crate) first_token: Histogram,
    pub(crate) latency: Histogram,
    pub(crate) queue_time: Histogram,
    pub(crate) prompt_tokens: Counter,
    pub(crate) generation_tokens: Counter,
    success: Family<FinishedLabels, Counter>,
    streams: Family<StreamLabels, Counter>,
    upstream: Family<UpstreamLabels, Counter>,
    pub(crate) dropped_spans: Counter,
}

/// Buckets from 1 ms to about 2 minutes.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 18))
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            http_requests: Family::default(),
            http_in_flight: Gauge::default(),
            running: Gauge::default(),
            waiting: Gauge::default(),
            running_sequences: Gauge::default(),
            waiting_sequences: Gauge::default(),
            kv_usage: Gauge::default(),
            passes: Gauge::default(),
            models: Gauge::default(),
            prefix_queries: Gauge::default(),
            prefix_hits: Gauge::default(),
            first_token: seconds(),
            latency: seconds(),
            queue_time: seconds(),
            prompt_tokens: Counter::default(),
            generation_tokens: Counter::default(),
            success: Family::default(),
            streams: Family::default(),
            upstream: Family::default(),
            dropped_spans: Counter::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        // The format adds the suffix `_total` to counters.
        let registry = &mut self.registry;
        let requests = self.http_requests.clone();
        registry.register("http_requests", "HTTP requests by status", requests);
        let in_flight = self.http_in_flight.clone();
        registry.register("http_requests_in_flight", "HTTP requests being handled", in_flight);
        let running = self.running.clone();
        registry.register("num_requests_running", "requests in the batch", running);
        let waiting = self.waiting.clone();
        registry.register("num_requests_waiting", "requests in the queue", waiting);
        let rows = self.running_sequences.clone();
        registry.register("num_rows_running", "trajectories in the batch", rows);
        let rows = self.waiting_sequences.clone();
        registry.register("num_rows_waiting", "trajectories in the queue", rows);
        let usage = self.kv_usage.clone();
        registry.register("kv_cache_usage_perc", "used fraction of the KV cache", usage);
        let passes = self.passes.clone();
        registry.register("engine_passes", "forward steps of the continuous batch", passes);
        let models = self.models.clone();
        registry.register("models_loaded", "models in memory", models);
        let queries = self.prefix_queries.clone();
        let help = "prompt tokens looked up in the prefix cache";
        registry.register("prefix_cache_queries", help, queries);
        let hits = self.prefix_hits.clone();
        registry.register("prefix_cache_hits", "prompt tokens found in the prefix cache", hits);
        let first = self.first_token.clone();
        let help = "time until the first event of a response";
        registry.register("time_to_first_token_seconds", help, first);
        let latency = self.latency.clone();
        registry.register("e2e_request_latency_seconds", "duration of a request", latency);
        let queue = self.queue_time.clone();
        registry.register("request_queue_time_seconds", "time in the queue", queue);
        let prompt = self.prompt_tokens.clone();
        registry.register("prompt_tokens", "prompt tokens", prompt);
        let generated = self.generation_tokens.clone();
        let help = "thoughts and answer tokens of all trajectories";
        registry.register("generation_tokens", help, generated);
        let success = self.success.clone();
        registry.register("request_success", "choices by finish reason", success);
        let streams = self.streams.clone();
        registry.register("stream_ends", "streams by outcome", streams);
        let upstream = self.upstream.clone();
        registry.register("upstream_requests", "upstream calls by status", upstream);
        let dropped = self.dropped_spans.clone();
        registry.register("trace_spans_dropped", "spans dropped before sending", dropped);
    }

    pub(crate) fn count_http(&self, method: &str, path: &str, status: u16) {
        let labels = HttpLabels {
            method: method.to_owned(),
            path: path.to_owned(),
            status: status.to_string(),
        };
        self.http_requests.get_or_create(&labels).inc();
    }

    pub(crate) fn count_choice(&self, finished_reason: &str) {
        let labels = FinishedLabels { finished_reason: finished_reason.to_owned() };
        self.success.get_or_create(&labels).inc();
    }

    /// `end` is completed, error or client_disconnected.
    pub(crate) fn count_stream(&self, end: &str) {
        self.streams.get_or_create(&StreamLabels { end: end.to_owned() }).inc();
    }

    /// `status` is an HTTP status, or timeout, unreachable or malformed.
    pub(crate) fn count_upstream(&self, status: &str) {
        self.upstream.get_or_create(&UpstreamLabels { status: status.to_owned() }).inc();
    }

    /// The metrics in text format.
    pub(crate) fn render(&self, stats: SchedulerStats, models: usize) -> Result<String, Error> {
        self.running.set(stats.running_requests as i64);
        self.waiting.set(stats.waiting_requests as i64);
        self.running_sequences.set(stats.running_sequences as i64);
        self.waiting_sequences.set(stats.waiting_sequences as i64);
        self.passes.set(stats.passes as i64);
        self.models.set(models as i64);
        self.prefix_queries.set(stats.prompt_tokens as i64);
        self.prefix_hits.set(stats.cached_prompt_tokens as i64);
        self.kv_usage.set(stats.used_slots as f64 / stats.slots.max(1) as f64);
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}
