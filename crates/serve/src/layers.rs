//! Around every request: its id, its log line, its metrics, and the API key.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use crate::error::ApiError;
use crate::state::AppState;

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
    let mut response = next.run(request).await;
    drop(in_flight);
    let status = response.status().as_u16();
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

/// Refuses requests without the API key, where there is one.
pub(crate) async fn authorize(
    State(state): State<Arc<AppState>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(key) = &state.options.api_key else { return next.run(request).await };
    let given = request.headers().get(header::AUTHORIZATION);
    let given = given.and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    // In constant time: how long a wrong key takes to be refused says nothing about the right one.
    let is_right = given.is_some_and(|given| given.ct_eq(key.as_bytes()).into());
    if is_right { next.run(request).await } else { ApiError::unauthorized().into_response() }
}
