//! Layers around every request: its id, log line, metrics, host check, and API key.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error::ApiError;
use crate::state::AppState;
use crate::traces::{self, RequestTrace};

/// Maximum bytes of a request's head.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum length of a client's request id; longer ones are replaced.
const MAX_REQUEST_ID: usize = 128;

/// Assigns an id to the request, or keeps the client's; counts and logs the request.
pub(crate) async fn observe(
    State(state): State<Arc<AppState>>,
    mut request: Request,
    next: Next,
) -> Response {
    let start = Instant::now();
    let given = request.headers().get(REQUEST_ID).filter(|id| id.len() <= MAX_REQUEST_ID);
    let made = || HeaderValue::try_from(format!("req-{}", state.new_id()));
    let id = given.cloned().map_or_else(made, Ok).unwrap_or(HeaderValue::from_static("req"));
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let method = method_label(request.method());
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    // Only known paths become labels; others would create as many metrics as clients request.
    let path = path.unwrap_or_else(|| "unknown".to_owned());
    let in_flight = InFlight::new(&state);
    let trace = state.tracer.as_ref().map(|tracer| RequestTrace::start(tracer, request.headers()));
    if let Some(trace) = &trace {
        trace.set("http.request.method", json!(method));
        trace.set("http.route", json!(path));
        trace.set("request.id", json!(id.to_str().unwrap_or_default()));
    }
    let mut response = traces::with_trace(trace.clone(), next.run(request)).await;
    drop(in_flight);
    let status = response.status().as_u16();
    if let Some(trace) = trace {
        trace.set("http.response.status_code", json!(status));
    }
    state.metrics.count_http(method, &path, status);
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    let id_text = id.to_str().unwrap_or_default();
    tracing::info!(request_id = id_text, method, path, status, milliseconds, "request");
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The method as a metric label and log field. A method can be any token of any length, so unknown
/// methods share one label.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "CONNECT" => "CONNECT",
        "OPTIONS" => "OPTIONS",
        "TRACE" => "TRACE",
        "PATCH" => "PATCH",
        _ => "other",
    }
}

/// Rejects a head above [`MAX_HEAD_BYTES`]; the connection buffer itself stops reading at a
/// somewhat higher size.
pub(crate) async fn check_head(request: Request, next: Next) -> Response {
    let uri = request.uri().to_string().len();
    // Two spaces, the version and the line ending.
    let first_line = request.method().as_str().len() + uri + " HTTP/1.1\r\n".len() + 1;
    let fields = request.headers().iter();
    let fields: usize = fields.map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    match first_line + fields + 2 > MAX_HEAD_BYTES {
        true => ApiError::head_too_large(MAX_HEAD_BYTES).into_response(),
        false => next.run(request).await,
    }
}

/// A request being handled, which may be dropped early if its client disconnects.
struct InFlight<'a>(&'a AppState);

impl<'a> InFlight<'a> {
    fn new(state: &'a AppState) -> Self {
        state.metrics.http_in_flight.inc();
        Self(state)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.metrics.http_in_flight.dec();
    }
}

/// Rejects requests to other host names. Otherwise a web page could resolve its own host name to
/// 127.0.0.1 (DNS rebinding) and read from a server without an API key.
pub(crate) async fn check_host(
    State(state): State<Arc<AppState>>,
    request: Request,
    next: Next,
) -> Response {
    let options = &state.options;
    let is_local = options.address.ip().to_canonical().is_loopback() && !state.keys.is_required();
    if !is_local && options.allowed_hosts.is_empty() {
        return next.run(request).await;
    }
    let is_allowed = |host: &str| {
        let name = host_name(host);
        let same = |allowed: &String| host_name(allowed).eq_ignore_ascii_case(name);
        is_loopback_name(name) || options.allowed_hosts.iter().any(same)
    };
    // Browsers always send the header; an HTTP/1.0 client may not.
    let mut headers = request.headers().get_all(header::HOST).iter();
    let headers = headers.all(|host| host.to_str().is_ok_and(is_allowed));
    let target = request.uri().authority().is_none_or(|target| is_allowed(target.host()));
    if headers && target {
        next.run(request).await
    } else {
        ApiError::host_not_allowed().into_response()
    }
}

/// The host without its port and without the brackets of an IPv6 address.
fn host_name(host: &str) -> &str {
    if let Some((address, port)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return if port.is_empty() || port.starts_with(':') { address } else { host };
    }
    match host.rsplit_once(':') {
        Some((name, _)) if !name.contains(':') => name,
        _ => host,
    }
}

fn is_loopback_name(name: &str) -> bool {
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

/// Rejects requests without a valid API key, if one is required.
pub(crate) async fn authorize(
    State(state): State<Arc<AppState>>,
    request: Request,
    next: Next,
) -> Response {
    let is_open = state.options.open_metrics && request.uri().path() == "/metrics";
    if is_open || state.keys.accepts(request.headers()) {
        next.run(request).await
    } else {
        ApiError::unauthorized().into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_have_no_port() {
        for (host, name) in [
            ("localhost:8000", "localhost"),
            ("example.com", "example.com"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("[::1]:80", "::1"),
            ("[::1]", "::1"),
            ("::1", "::1"),
            ("[::1]evil.example", "[::1]evil.example"),
        ] {
            assert_eq!(host_name(host), name);
        }
        for (name, is_loopback) in [
            ("LocalHost", true),
            ("127.1.2.3", true),
            ("::1", true),
            ("127.0.0.1.example.com", false),
            ("localhost.example.com", false),
            ("10.0.0.1", false),
            ("", false),
        ] {
            assert_eq!(is_loopback_name(name), is_loopback, "{name}");
        }
    }
}
