//! Cross-origin requests: which web pages of other origins may call the server.
//!
//! Without `--allowed-origins` no header is sent and browsers block such pages. With it, requests
//! and preflight requests of the listed origins receive the headers that allow them. Credentials
//! (cookies) are never allowed; the page must send the API key in a header.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN,
    VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::state::AppState;

/// The value of `--allowed-origins` that matches every origin.
const ANY: &str = "*";

/// Answers preflight requests of allowed origins, and adds headers to their responses.
pub(crate) async fn allow_origins(
    State(state): State<Arc<AppState>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(allowed) = allowed_origin(&state.options.allowed_origins, request.headers()) else {
        return next.run(request).await;
    };
    let is_preflight = request.method() == Method::OPTIONS
        && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if is_preflight { preflight() } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
    headers.append(VARY, HeaderValue::from_static("origin"));
    let exposed = HeaderValue::from_static("x-request-id, retry-after");
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    response
}

/// The value of the header that allows the request's origin, if it is allowed.
fn allowed_origin(allowed: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(ORIGIN)?;
    if allowed.iter().any(|allowed| allowed == ANY) {
        return Some(HeaderValue::from_static(ANY));
    }
    let text = origin.to_str().ok()?;
    let is_same = |allowed: &String| allowed.trim_end_matches('/').eq_ignore_ascii_case(text);
    allowed.iter().any(is_same).then(|| origin.clone())
}

fn preflight() -> Response {
    let headers = [
        (ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, OPTIONS"),
        // openai-js sends headers that start with x-stainless-.
        (
            ACCESS_CONTROL_ALLOW_HEADERS,
            "authorization, content-type, x-request-id, traceparent, x-stainless-arch, \
             x-stainless-lang, x-stainless-os, x-stainless-package-version, \
             x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, \
             x-stainless-timeout, x-stainless-helper-method",
        ),
        (ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}
