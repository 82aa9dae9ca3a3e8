//! Error responses in OpenAI's format.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::EngineError;
use engine::scheduler::SubmitError;
use serde_json::{Value, json};

use crate::upstream::UpstreamError;

const SECOND: Duration = Duration::from_secs(1);
/// Upper bound of `Retry-After`. The queue may be long and the estimate inaccurate.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// An error response.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The invalid field.
    pub(crate) param: Option<String>,
    code: Option<&'static str>,
    /// When the client should retry.
    retry_after: Option<Duration>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// 400: the field `param` has an invalid or unsupported value.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = Some(param.into());
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// The same error for another field.
    pub(crate) fn at(self, param: &str) -> Self {
        Self { param: Some(param.to_owned()), ..self }
    }

    /// 400: the body as a whole is invalid.
    pub(crate) fn body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn unknown_model(message: String) -> Self {
        let (param, code) = (Some("model".to_owned()), Some("model_not_found"));
        Self { param, code, ..Self::not_found(message) }
    }

    /// 503: the requested model cannot be loaded.
    pub(crate) fn model_not_loaded(error: impl std::fmt::Display) -> Self {
        let message = format!("cannot load the model: {error}");
        let (param, code) = (Some("model".to_owned()), Some("model_not_loaded"));
        Self { param, code, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    /// 503: the requested model does not fit beside the models in use.
    pub(crate) fn models_busy() -> Self {
        let message = "all loaded models are in use and this one does not fit in memory; retry \
                       later";
        let (code, retry_after) = (Some("models_busy"), Some(SECOND));
        Self { code, retry_after, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    pub(crate) fn unauthorized() -> Self {
        let message = "missing or invalid API key; send the header `Authorization: Bearer KEY`";
        let code = Some("invalid_api_key");
        Self { code, ..Self::new(StatusCode::UNAUTHORIZED, message) }
    }

    /// 403: the request is addressed to a host name that the server does not accept.
    pub(crate) fn host_not_allowed() -> Self {
        let message = "this host name is not allowed; use localhost, set an API key, or start the \
                       server with --allowed-hosts";
        let code = Some("host_not_allowed");
        Self { code, ..Self::new(StatusCode::FORBIDDEN, message) }
    }

    pub(crate) fn forbidden(message: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, message)
    }

    /// 500: a reload failed without changes.
    pub(crate) fn not_reloaded(reason: String) -> Self {
        Self::internal(format!("cannot reload; the server keeps its models and keys: {reason}"))
    }

    pub(crate) fn not_json() -> Self {
        let message = "the body must be JSON; send the header `Content-Type: application/json`";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "this path does not support that method")
    }

    pub(crate) fn body_too_large(limit: usize) -> Self {
        let message = format!("the body exceeds {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    pub(crate) fn head_too_large(limit: usize) -> Self {
        let message = format!("the request line and the headers exceed {limit} bytes");
        Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message)
    }

    /// 503: the memory limit of the server is reached.
    pub(crate) fn memory_limit() -> Self {
        let message = "the server has reached its memory limit; retry later";
        let (code, retry_after) = (Some("memory_limit"), Some(SECOND));
        Self { code, retry_after, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    pub(crate) fn slow_body() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")
    }

    /// 429: the queue is full. Clients retry when there is likely to be room.
    pub(crate) fn queue_full(message: String, room_in: Option<Duration>) -> Self {
        let room_in = room_in.unwrap_or(SECOND).clamp(SECOND, MAX_RETRY_AFTER);
        let (code, retry_after) = (Some("queue_full"), Some(room_in));
        Self { code, retry_after, ..Self::new(StatusCode::TOO_MANY_REQUESTS, message) }
    }

    /// An upstream error for the gateway's client. Client errors and rate limits keep their status;
    /// everything else becomes 502.
    pub(crate) fn upstream(error: &UpstreamError) -> Self {
        let message = error.to_string();
        let code = Some("upstream_error");
        let (status, retry_after) = match error {
            UpstreamError::Status { status: 429, retry_after, .. } => {
                let pause = retry_after.unwrap_or(SECOND).clamp(SECOND, MAX_RETRY_AFTER);
                (StatusCode::TOO_MANY_REQUESTS, Some(pause))
            }
            UpstreamError::Status { status: status @ (400 | 404 | 413 | 422), .. } => {
                (StatusCode::from_u16(*status).unwrap_or(StatusCode::BAD_REQUEST), None)
            }
            UpstreamError::Timeout => (StatusCode::GATEWAY_TIMEOUT, None),
            _ => (StatusCode::BAD_GATEWAY, Some(SECOND)),
        };
        Self { code, retry_after, ..Self::new(status, message) }
    }

    /// 503: the server is shutting down.
    pub(crate) fn draining() -> Self {
        let message = "the server is shutting down; retry later";
        Self { retry_after: Some(SECOND), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    /// 504: the deadline of the request passed. A retry would have the same result.
    pub(crate) fn deadline(seconds: f64) -> Self {
        let message = format!("the request did not finish within {seconds} s");
        Self { code: Some("deadline"), ..Self::new(StatusCode::GATEWAY_TIMEOUT, message) }
    }

    /// 502: the external scorer failed.
    pub(crate) fn scorer(message: impl Into<String>) -> Self {
        Self { retry_after: Some(SECOND), ..Self::new(StatusCode::BAD_GATEWAY, message) }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Converts an error of the scheduler's queue.
    pub(crate) fn submit(error: SubmitError) -> Self {
        match error {
            SubmitError::QueueFull { retry_after, .. } => {
                Self::queue_full(error.to_string(), retry_after)
            }
            SubmitError::TooManySequences { .. } => {
                Self::field("latent.samples", error.to_string())
            }
            SubmitError::Closed => Self::draining(),
            SubmitError::Refused(error) => error.into(),
        }
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The body of the response, or the last event of a stream.
    pub(crate) fn to_json(&self) -> Value {
        let Self { message, param, code, .. } = self;
        json!({ "error": {
            "message": message,
            "type": self.kind(),
            "param": param,
            "code": code,
        }})
    }
}

/// Engine errors that remain after the request was parsed: its length, its memory, or the device.
impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::TooLong { .. }
            | EngineError::LongText { .. }
            | EngineError::Empty { .. } => {
                let code = Some("context_length_exceeded");
                Self { code, ..Self::field("prompt", message) }
            }
            EngineError::UnknownToken { .. } => Self::field("prompt", message),
            EngineError::Memory { .. } => Self::field("max_tokens", message),
            EngineError::BeamMemory { .. }
            | EngineError::NothingToSearch
            | EngineError::ParallelThoughts { .. } => Self::field("latent.beam", message),
            EngineError::EndlessThoughts { .. } => Self::field("latent.latent_length", message),
            EngineError::NothingToPerturb { .. } | EngineError::NothingToMix { .. } => {
                Self::field("latent.sampler", message)
            }
            EngineError::PassFailed { .. } => {
                let unavailable = Self::new(StatusCode::SERVICE_UNAVAILABLE, message);
                Self { retry_after: Some(SECOND), ..unavailable }
            }
            _ => Self::internal(message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.to_json());
        let headers = response.headers_mut();
        if let Some(time) = self.retry_after {
            // The header has whole seconds, rounded up.
            headers
                .insert(header::RETRY_AFTER, HeaderValue::from(time.as_secs_f64().ceil() as u64));
        }
        let retry = self.retry_after.is_some();
        if self.status.is_server_error() {
            // The client library retries every 5xx response unless this header is false.
            let retry = HeaderValue::from_static(if retry { "true" } else { "false" });
            headers.insert("x-should-retry", retry);
        }
        response
    }
}

/// A JSON response.
pub(crate) fn json_response(status: StatusCode, body: &Value) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (status, kind, body.to_string()).into_response()
}
