//! The client of an upstream server: one chat completion per call, with retries.
//!
//! Calls block (`ureq`), so each runs on a thread of the runtime's blocking pool, and a semaphore
//! bounds their number. If the caller is dropped, its calls run until their timeout and still count
//! toward the bound.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use ureq::Agent;

use crate::ServeError;
use crate::metrics::Metrics;

/// Maximum size of a response.
const MAX_REPLY_BYTES: u64 = 16 << 20;
/// Maximum number of calls per completion, including the first.
const ATTEMPTS: u32 = 4;
/// The pause before the first retry, doubled for each further one, unless the upstream sets one.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Maximum pause that an upstream can request.
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Maximum length of an upstream's message in an error.
const MAX_SHOWN: usize = 300;

/// The upstream server of a gateway.
#[derive(Clone, Debug)]
pub struct UpstreamOptions {
    /// The base URL of its API, such as `https://api.example.com/v1`.
    pub url: String,
    /// The API key sent in requests.
    pub api_key: Option<String>,
    /// The model for requests that name none.
    pub model: Option<String>,
    /// Maximum number of concurrent calls.
    pub concurrency: usize,
    /// The time limit of one call.
    pub timeout: Duration,
}

/// The client.
pub(crate) struct Upstream {
    agent: Agent,
    base: String,
    pub(crate) options: UpstreamOptions,
    slots: Arc<Semaphore>,
    metrics: Arc<Metrics>,
}

/// A completion of the upstream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Completion {
    pub(crate) text: String,
    pub(crate) finish_reason: String,
    /// The sum of its tokens' log-probabilities, if requested.
    pub(crate) logprob: Option<f32>,
    pub(crate) prompt_tokens: usize,
    pub(crate) completion_tokens: usize,
    pub(crate) reasoning_tokens: usize,
}

/// The error of a call.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("the upstream replied {status}: {message}")]
    Status { status: u16, message: String, retry_after: Option<Duration> },
    #[error("the upstream did not reply in time")]
    Timeout,
    #[error("the upstream cannot be reached: {0}")]
    Unreachable(String),
    #[error("the upstream's reply is not a chat completion: {0}")]
    Malformed(String),
}

impl UpstreamError {
    /// Whether a retry may succeed.
    fn is_transient(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status, 408 | 409 | 429) || *status >= 500,
            Self::Timeout | Self::Unreachable(_) | Self::Malformed(_) => true,
        }
    }

    fn label(&self) -> String {
        match self {
            Self::Status { status, .. } => status.to_string(),
            Self::Timeout => "timeout".to_owned(),
            Self::Unreachable(_) => "unreachable".to_owned(),
            Self::Malformed(_) => "malformed".to_owned(),
        }
    }
}

impl Upstream {
    pub(crate) fn new(options: UpstreamOptions, metrics: Arc<Metrics>) -> Result<Self, ServeError> {
        let base = options.url.trim_end_matches('/').trim_end_matches("/chat/completions");
        if !["http://", "https://"].iter().any(|scheme| base.starts_with(scheme)) {
            return Err(ServeError::Upstream { url: options.url });
        }
        // Redirects are disabled, because they could send the key to another host.
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections_per_host(options.concurrency)
            .user_agent(concat!("latent-tts/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.into(),
            base: base.to_owned(),
            slots: Arc::new(Semaphore::new(options.concurrency)),
            options,
            metrics,
        })
    }

    /// Requests one completion, retrying after transient errors until the deadline.
    pub(crate) async fn complete(
        self: Arc<Self>,
        body: Value,
        deadline: Instant,
    ) -> Result<Completion, UpstreamError> {
        let body: Arc<str> = body.to_string().into();
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            let called = self.call(Arc::clone(&body), deadline).await;
            let label = called.as_ref().map_or_else(UpstreamError::label, |_| "200".to_owned());
            self.metrics.count_upstream(&label);
            let error = match called {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let asked = match &error {
                UpstreamError::Status { retry_after, .. } => *retry_after,
                _ => None,
            };
            let wait = asked.unwrap_or(pause).min(MAX_PAUSE);
            let is_late = Instant::now() + wait >= deadline;
            if attempt == ATTEMPTS || is_late || !error.is_transient() {
                return Err(error);
            }
            tracing::debug!(%error, attempt, "retrying the upstream call");
            tokio::time::sleep(wait).await;
            attempt += 1;
            pause *= 2;
        }
    }

    /// The models listed by the upstream.
    pub(crate) async fn models(self: Arc<Self>) -> Result<Value, UpstreamError> {
        let upstream = Arc::clone(&self);
        let read = move || {
            let request = upstream.agent.get(format!("{}/models", upstream.base));
            let request = request.header("authorization", upstream.authorization());
            let timeout = Some(upstream.options.timeout);
            read_reply(request.config().timeout_global(timeout).build().call())
        };
        blocking(read).await
    }

    async fn call(
        self: &Arc<Self>,
        body: Arc<str>,
        deadline: Instant,
    ) -> Result<Completion, UpstreamError> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let slot = Arc::clone(&self.slots).acquire_owned();
        let slot = tokio::time::timeout(left(), slot).await.map_err(|_| UpstreamError::Timeout)?;
        let timeout = left().min(self.options.timeout);
        if timeout.is_zero() {
            return Err(UpstreamError::Timeout);
        }
        let upstream = Arc::clone(self);
        let send = move || {
            let _slot = slot;
            let request = upstream.agent.post(format!("{}/chat/completions", upstream.base));
            let request = request
                .header("content-type", "application/json")
                .header("authorization", upstream.authorization());
            let request = request.config().timeout_global(Some(timeout)).build();
            read_completion(&read_reply(request.send(body.as_bytes()))?)
        };
        blocking(send).await
    }

    /// The header value; servers without keys accept an empty one.
    fn authorization(&self) -> String {
        format!("Bearer {}", self.options.api_key.as_deref().unwrap_or_default())
    }
}

/// Runs a call on a thread that may block.
async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, UpstreamError> + Send + 'static,
) -> Result<T, UpstreamError> {
    let called = tokio::task::spawn_blocking(call).await;
    called.unwrap_or_else(|panic| Err(UpstreamError::Unreachable(panic.to_string())))
}

/// The JSON of a successful response.
fn read_reply(
    response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Result<Value, UpstreamError> {
    let mut response = response.map_err(transport)?;
    let status = response.status().as_u16();
    let retry_after = retry_after(response.headers());
    let text = response.body_mut().with_config().limit(MAX_REPLY_BYTES).read_to_string();
    let text = text.map_err(transport)?;
    if status != 200 {
        let parsed = serde_json::from_str::<Value>(&text).unwrap_or_default();
        let message = parsed["error"]["message"].as_str().unwrap_or(&text);
        let message = message.chars().take(MAX_SHOWN).collect();
        return Err(UpstreamError::Status { status, message, retry_after });
    }
    serde_json::from_str(&text).map_err(|error| UpstreamError::Malformed(error.to_string()))
}

fn transport(error: ureq::Error) -> UpstreamError {
    match error {
        ureq::Error::Timeout(_) => UpstreamError::Timeout,
        error => UpstreamError::Unreachable(error.to_string()),
    }
}

/// The pause requested by a response, from a header in seconds or milliseconds.
fn retry_after(headers: &ureq::http::HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|ms| ms / 1e3).or_else(|| number("retry-after"))?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn read_completion(reply: &Value) -> Result<Completion, UpstreamError> {
    let choice = &reply["choices"][0];
    let message = &choice["message"];
    let Some(text) = message["content"].as_str() else {
        let refusal = message["refusal"].as_str();
        let reason =
            refusal.map_or("the message has no content", |_| "the model refused to answer");
        return Err(UpstreamError::Malformed(reason.to_owned()));
    };
    let logprobs = choice["logprobs"]["content"].as_array();
    let logprob = logprobs.map(|tokens| {
        tokens.iter().filter_map(|token| token["logprob"].as_f64()).sum::<f64>() as f32
    });
    let usage = |value: &Value| value.as_u64().unwrap_or(0) as usize;
    Ok(Completion {
        text: text.to_owned(),
        finish_reason: choice["finish_reason"].as_str().unwrap_or("stop").to_owned(),
        logprob,
        prompt_tokens: usage(&reply["usage"]["prompt_tokens"]),
        completion_tokens: usage(&reply["usage"]["completion_tokens"]),
        reasoning_tokens: usage(&reply["usage"]["completion_tokens_details"]["reasoning_tokens"]),
    })
}

/// The summed usage of completions. The prompt is counted for each one, because the upstream bills
/// each.
pub(crate) fn usage_json<'a>(completions: impl Iterator<Item = &'a Completion>) -> Value {
    let mut sum = Completion::default();
    for completion in completions {
        sum.prompt_tokens += completion.prompt_tokens;
        sum.completion_tokens += completion.completion_tokens;
        sum.reasoning_tokens += completion.reasoning_tokens;
    }
    json!({
        "prompt_tokens": sum.prompt_tokens,
        "completion_tokens": sum.completion_tokens,
        "total_tokens": sum.prompt_tokens + sum.completion_tokens,
        "completion_tokens_details": { "reasoning_tokens": sum.reasoning_tokens },
    })
}
