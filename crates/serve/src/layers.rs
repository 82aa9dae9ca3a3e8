//! Around every request: its id, its log line, its metrics, its host name, and the API key.

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

/// Bytes of a request's head.
pub(crate) const MAX_HEAD_BYTES: usize = 64 << 10;
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A client's id is kept if it is no longer than this.
const MAX_REQUEST_ID: usize = 128;

/// Gives the request an id, or keeps the client's; counts it and logs it.
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
    // Only known paths are labels: others would make as many metrics as clients make up.
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

/// The method as a metric label and a log field. A method is any token that the client chooses, of
/// any length, so that unknown ones share one label.
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

/// Refuses a head above [`MAX_HEAD_BYTES`]: the connection's buffer ends reading somewhere above.
pub(crate) async fn check_head(request: Request, next: Next) -> Response {
    let uri = request.uri().to_string().len();
    // Two blanks, the version and the line's end.
    let first_line = request.method().as_str().len() + uri + " HTTP/1.1\r\n".len() + 1;
    let fields = request.headers().iter();
    let fields: usize = fields.map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    match first_line + fields + 2 > MAX_HEAD_BYTES {
        true => ApiError::head_too_large(MAX_HEAD_BYTES).into_response(),
        false => next.run(request).await,
    }
}

/// A request that is being handled; it may be dropped half-way when its client goes.
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

/// Refuses requests to host names that are not this server's. Without that check a web page could
/// point its own host name at 127.0.0.1 (DNS rebinding) and read a server that has no API key.
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
    // Browsers always send the header; a client of HTTP/1.0 may send none.
    let mut headers = request.headers().get_all(header::HOST).iter();
    let headers = headers.all(|host| host.to_str().is_ok_and(is_allowed));
    let target = request.uri().authority().is_none_or(|target| is_allowed(target.host()));
    if headers && target {
        next.run(request).await
    } else {
        ApiError::host_not_allowed().into_response()
    }
}

/// A host without its port and without the brackets of an IPv6 address.
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

/// Refuses requests without an API key, where one is required.
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
