//! The paths of the server. A handler parses the body, runs the request, and writes the response.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use engine::Family;
use futures_util::StreamExt;
use latent_tts::{Rule, SamplingOptions};
use serde_json::{Value, json};

use crate::admin;
use crate::cors;
use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::gateway;
use crate::generation::Generation;
use crate::layers;
use crate::model_name;
use crate::models::ServedModel;
use crate::openapi;
use crate::prompts::{ChatPrompt, PromptText, last_user_text, token_ids};
use crate::response::{ApiKind, Envelope};
use crate::responses;
use crate::score;
use crate::state::{AppState, unix_seconds};
use crate::stream;
use crate::web_ui;
use crate::work::{Deadline, RunningRequest, score_all};

type App = State<Arc<AppState>>;
type PathText = Result<Path<String>, PathRejection>;

/// All paths, with the layers around them.
pub(crate) fn router(state: Arc<AppState>) -> Router {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{id}", get(model))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(completions))
        .route("/v1/responses", post(responses::create))
        .route("/v1/score", post(score::score))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/metrics", get(metrics))
        .route("/version", get(admin::version))
        .route("/admin/reload", post(admin::reload))
        .route("/runs", get(runs))
        .route("/runs/{*name}", get(run))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&state), layers::authorize))
        .route("/", get(web_ui::page))
        .route("/docs", get(openapi::page))
        .route("/openapi.json", get(openapi::json))
        .route("/health", get(health))
        .route("/ready", get(ready))
        .fallback(|| async { ApiError::not_found("path not found; see /docs") })
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        .layer(middleware::from_fn_with_state(Arc::clone(&state), cors::allow_origins))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), layers::check_host))
        .layer(middleware::from_fn_with_state(Arc::clone(&state), layers::observe))
        .layer(middleware::from_fn(layers::check_head))
        .with_state(state)
}

/// Upper bound of the memory in bytes that one byte of JSON takes, including parsing.
const JSON_GROWTH: usize = 32;

/// A JSON body, read within the time and size limits.
pub(crate) struct JsonBody(pub(crate) Value);

impl FromRequest<Arc<AppState>> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Arc<AppState>) -> Result<Self, ApiError> {
        // Browsers let web pages of other origins send other content types without a preflight
        // request.
        let kind = request.headers().get(header::CONTENT_TYPE);
        if !kind.and_then(|kind| kind.to_str().ok()).is_some_and(is_json) {
            return Err(ApiError::not_json());
        }
        let limit = state.options.max_body_bytes;
        // A body with too large an announced length is rejected before it is read.
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if announced.is_some_and(|length| length > limit) {
            return Err(ApiError::body_too_large(limit));
        }
        let _reserved = state.reserve(announced.unwrap_or(limit).saturating_mul(JSON_GROWTH))?;
        let bytes = read_bytes(request.into_body(), limit);
        let bytes = tokio::time::timeout(state.options.io_timeout, bytes).await;
        let bytes = bytes.map_err(|_| ApiError::slow_body())??;
        let wrong = |error| ApiError::body(format!("the body is not valid JSON: {error}"));
        serde_json::from_slice(&bytes).map(Self).map_err(wrong)
    }
}

/// The bytes of a body, at most `limit`.
async fn read_bytes(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let (mut chunks, mut bytes) = (body.into_data_stream(), Vec::new());
    while let Some(chunk) = chunks.next().await {
        // The client disconnected, or its chunks are malformed.
        let wrong = |error| ApiError::body(format!("cannot read the body: {error}"));
        let chunk = chunk.map_err(wrong)?;
        if chunk.len() > limit - bytes.len() {
            return Err(ApiError::body_too_large(limit));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// A path parameter as text; 400 if it is not UTF-8.
fn path_text(text: PathText) -> Result<String, ApiError> {
    let Path(text) = text.map_err(|error| ApiError::body(error.body_text()))?;
    Ok(text)
}

/// Whether a content type is `application/json` or a subtype with suffix `+json`.
fn is_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

fn ok(body: &Value) -> Response {
    json_response(StatusCode::OK, body)
}

/// The model of a request, and its name as the client sent it.
pub(crate) struct SelectedModel {
    pub(crate) model: Arc<ServedModel>,
    pub(crate) name: String,
}

/// The model named in a body, loaded if necessary. Rule and budget in the name are moved to fields.
pub(crate) async fn select_model(
    state: &AppState,
    body: &mut Value,
    deadline: Deadline,
) -> Result<SelectedModel, ApiError> {
    let name = model_name::read(&state.models, body)?;
    let model = state.models.get(name.as_deref(), deadline.instant()).await?;
    let requested = body["model"].as_str().map(str::to_owned);
    let name = requested.unwrap_or_else(|| model.name.clone());
    Ok(SelectedModel { model, name })
}

/// The model of a request that does not use the engine.
async fn plain_model(state: &AppState, body: Fields<'_>) -> Result<Arc<ServedModel>, ApiError> {
    let deadline = Deadline::start(state.options.request_timeout);
    state.models.get(body.text("model")?, deadline.instant()).await
}

/// The deadline of the server, or an earlier one of the request.
pub(crate) fn read_deadline(state: &AppState, body: &Value) -> Result<Deadline, ApiError> {
    let most = state.options.request_timeout;
    let latent = Fields::of_body(body)?.object("latent")?;
    let timeout = latent.map(|latent| latent.number("timeout", 0.0..=most.as_secs_f64()));
    let timeout = timeout.transpose()?.flatten();
    Ok(Deadline::start(timeout.map_or(most, Duration::from_secs_f64)))
}

fn envelope(state: &AppState, kind: ApiKind, model: String) -> Envelope {
    let prefix = if kind == ApiKind::Chat { "chatcmpl" } else { "cmpl" };
    Envelope {
        kind,
        id: format!("{prefix}-{}", state.new_id()),
        created: unix_seconds(),
        model,
        echoed: Vec::new(),
    }
}

async fn chat_completions(
    State(state): App,
    JsonBody(mut body): JsonBody,
) -> Result<Response, ApiError> {
    if let Some(upstream) = &state.upstream {
        return gateway::chat(&state, upstream, body).await;
    }
    let deadline = read_deadline(&state, &body)?;
    let selected = select_model(&state, &mut body, deadline).await?;
    let body = Fields::of_body(&body)?;
    body.unsupported("logprobs", |value| value.as_bool() == Some(false))?;
    let work = start_chat(&state, &selected.model, body, deadline)?;
    respond(work, envelope(&state, ApiKind::Chat, selected.name)).await
}

/// Starts a chat request, whose answer is a message.
pub(crate) fn start_chat(
    state: &Arc<AppState>,
    model: &Arc<ServedModel>,
    body: Fields<'_>,
    deadline: Deadline,
) -> Result<RunningRequest, ApiError> {
    let mut generation = Generation::read(model.engine(), body, state.options.max_samples)?;
    let ChatPrompt { prompt, mut notes } = model.chat.prompt(model.reasoner(), body)?;
    if let Some(question) = last_user_text(body) {
        notes.extend(model.notes(question));
    }
    generation.notes = notes;
    let method = &model.reasoner().method;
    // A plain language model writes free text, in which `#` may be a heading.
    generation.marker = (method.family != Family::COT).then_some(method.answer_rule);
    if state.options.log_prompts {
        tracing::info!(prompt = prompt.text, "chat");
    }
    let work = RunningRequest::start(state, model, generation, vec![prompt], deadline);
    work.map_err(|error| match error.param.as_deref() {
        Some("prompt") => error.at("messages"),
        _ => error,
    })
}

async fn completions(
    State(state): App,
    JsonBody(mut body): JsonBody,
) -> Result<Response, ApiError> {
    let deadline = read_deadline(&state, &body)?;
    let SelectedModel { model, name } = select_model(&state, &mut body, deadline).await?;
    let body = Fields::of_body(&body)?;
    let texts = PromptText::read_all(body)?;
    let echo = body.boolean("echo")?.unwrap_or(false);
    let mut envelope = envelope(&state, ApiKind::Text, name);
    if body.count("logprobs", 0..=1)?.is_some() {
        let scoring = Scoring { state: &state, model: &model, envelope };
        return scoring.log_likelihoods(body, &texts, deadline).await;
    }
    if body.get("max_tokens").is_some_and(|value| value.as_u64() == Some(0)) {
        return Err(body.error("max_tokens", "max_tokens 0 requires echo and logprobs"));
    }
    let mut generation = Generation::read(model.engine(), body, state.options.max_samples)?;
    let prompts = texts.iter().map(|text| text.prompt(model.reasoner()));
    let prompts = prompts.collect::<Result<Vec<_>, _>>()?;
    let notes = texts.iter().map(|text| match text {
        PromptText::Text(text) => model.notes(text.trim()),
        // Token ids are specific to a vocabulary.
        PromptText::Tokens(_) => Vec::new(),
    });
    generation.prompt_notes = notes.collect();
    if state.options.log_prompts {
        prompts.iter().for_each(|prompt| tracing::info!(prompt = prompt.text, "completion"));
    }
    if echo {
        for text in &texts {
            let text = match text {
                PromptText::Text(text) => text.clone(),
                PromptText::Tokens(tokens) => decode(&model, tokens)?,
            };
            envelope.echoed.extend(std::iter::repeat_n(text, generation.num_choices()));
        }
    }
    respond(RunningRequest::start(&state, &model, generation, prompts, deadline)?, envelope).await
}

async fn respond(work: RunningRequest, envelope: Envelope) -> Result<Response, ApiError> {
    if let Some(options) = work.generation.stream {
        return Ok(stream::respond(work, envelope, options));
    }
    let (choices, usage) = work.collect().await?;
    Ok(ok(&envelope.response(choices, usage)))
}

/// A log-likelihood request.
struct Scoring<'a> {
    state: &'a Arc<AppState>,
    model: &'a ServedModel,
    envelope: Envelope,
}

impl Scoring<'_> {
    /// The log-probabilities of given tokens under the plain language model.
    async fn log_likelihoods(
        &self,
        body: Fields<'_>,
        texts: &[PromptText],
        deadline: Deadline,
    ) -> Result<Response, ApiError> {
        if body.boolean("echo")? != Some(true) {
            let message = "logprobs are only supported for given tokens; set echo, and max_tokens \
                           to 0 or 1";
            return Err(body.error("logprobs", message));
        }
        let wrong =
            |_| body.error("max_tokens", "with echo and logprobs, max_tokens must be 0 or 1");
        let next = body.count("max_tokens", 0..=1).map_err(wrong)?;
        let next = next.ok_or_else(|| wrong(ApiError::body("")))? == 1;
        body.unsupported("n", |value| value.as_u64() == Some(1))?;
        body.unsupported("stream", |value| value.as_bool() == Some(false))?;
        body.unsupported("latent", |_| false)?;
        let tokens = texts.iter().map(|text| text.tokens(self.model.reasoner()));
        let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
        let scores = score_all(self.state, self.model, &tokens, deadline).await?;
        let scored: Vec<_> = tokens.into_iter().zip(scores).collect();
        Ok(ok(&self.envelope.scored(self.model.reasoner(), &scored, next)))
    }
}

async fn tokenize(State(state): App, JsonBody(body): JsonBody) -> Result<Response, ApiError> {
    let body = Fields::of_body(&body)?;
    let model = plain_model(&state, body).await?;
    let wrong = || body.error("prompt", "prompt is required: the text to tokenize");
    let text = body.text("prompt")?.ok_or_else(wrong)?;
    let tokens = PromptText::Text(text.to_owned()).tokens(model.reasoner())?;
    let (count, context) = (tokens.len(), model.reasoner().decoder.config().context);
    Ok(ok(&json!({ "tokens": tokens, "count": count, "max_model_len": context })))
}

async fn detokenize(State(state): App, JsonBody(body): JsonBody) -> Result<Response, ApiError> {
    let body = Fields::of_body(&body)?;
    let model = plain_model(&state, body).await?;
    let wrong = || body.error("tokens", "tokens must be a list of token ids");
    let tokens = body.list("tokens")?.and_then(|list| token_ids(list)).ok_or_else(wrong)?;
    Ok(ok(&json!({ "prompt": decode(&model, &tokens)? })))
}

fn decode(model: &ServedModel, tokens: &[u32]) -> Result<String, ApiError> {
    let text = model.reasoner().tokenizer.decode_with_special(tokens);
    text.map_err(|error| ApiError::field("tokens", error.to_string()))
}

async fn tokenizer_info(State(state): App) -> Result<Response, ApiError> {
    let deadline = Deadline::start(state.options.request_timeout);
    let model = state.models.get(None, deadline.instant()).await?;
    Ok(ok(&model.tokenizer_info))
}

/// A model in the list; loaded models include details.
fn model_json(state: &AppState, name: &str) -> Value {
    let mut json = json!({ "id": name, "object": "model", "owned_by": "latent-tts" });
    let Some(model) = state.models.loaded(name) else {
        json["created"] = json!(state.created);
        json["loaded"] = json!(false);
        return json;
    };
    json["created"] = json!(model.created);
    json["loaded"] = json!(true);
    json["max_model_len"] = json!(model.reasoner().decoder.config().context);
    json["family"] = json!(model.reasoner().method.family.to_string());
    json["reward_model"] = json!(model.engine().reward_model().is_some());
    json["latent"] = latent_json(state, &model);
    json
}

/// The accepted fields of `latent` and their defaults.
fn latent_json(state: &AppState, model: &ServedModel) -> Value {
    let engine = model.engine();
    let (method, params) = (&engine.reasoner().method, engine.default_params());
    let sampling = SamplingOptions::from(params);
    // Formatted as a client would write it: 0.1 instead of the nearest f32 with 17 digits.
    let written = |x: f32| json!(x.to_string().parse::<f64>().unwrap_or(x.into()));
    let has_scorer = state.options.scorer.is_some();
    let scored = has_scorer || engine.reward_model().is_some();
    let rule = if has_scorer { Rule::WEIGHTED } else { engine.default_rule() };
    let rules = Rule::ALL.iter().filter(|rule| scored || !rule.needs().rewards);
    json!({
        "latent_length": sampling.latent_length,
        "sampler": sampling.sampler,
        "dropout_p": written(method.p),
        "noise_std": written(method.sigma),
        "rule": rule.name(),
        "rules": rules.map(|rule| rule.name()).collect::<Vec<_>>(),
        "max_samples": state.options.max_samples,
    })
}

async fn runs(State(state): App) -> Response {
    let list = state.runs.as_ref().map(|runs| runs.list());
    ok(&list.unwrap_or_else(|| json!([])))
}

async fn run(State(state): App, name: PathText) -> Result<Response, ApiError> {
    let name = path_text(name)?;
    let none = || ApiError::not_found(format!("unknown run `{name}`; see /runs for a list"));
    let folder = state.runs.as_ref().ok_or_else(none)?;
    let _reserved = state.reserve(folder.rendering_bytes(&name).ok_or_else(none)?)?;
    let page = folder.page(&name).await.ok_or_else(none)?;
    let page = page.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(web_ui::html(&*page, web_ui::RUN_POLICY))
}

async fn models(State(state): App) -> Result<Response, ApiError> {
    if let Some(upstream) = &state.upstream {
        let models = Arc::clone(upstream).models().await;
        return Ok(ok(&models.map_err(|error| ApiError::upstream(&error))?));
    }
    let models = state.models.names().map(|name| model_json(&state, name));
    Ok(ok(&json!({ "object": "list", "data": models.collect::<Vec<_>>() })))
}

async fn model(State(state): App, id: PathText) -> Result<Response, ApiError> {
    let id = path_text(id)?;
    if !state.models.has(&id) {
        return Err(ApiError::unknown_model(format!(
            "unknown model `{id}`; see /v1/models for a list"
        )));
    }
    Ok(ok(&model_json(&state, &id)))
}

/// Whether the engine is running.
async fn health(State(state): App) -> Result<Response, ApiError> {
    if !state.models.is_alive() && !state.is_draining() {
        return Err(ApiError::internal("the engine has stopped; see the log"));
    }
    Ok(ok(&json!({ "status": "ok" })))
}

/// Whether new requests are accepted.
async fn ready(State(state): App) -> Result<Response, ApiError> {
    if state.is_draining() || !state.models.is_alive() {
        return Err(ApiError::draining());
    }
    Ok(ok(&json!({ "status": "ready" })))
}

async fn metrics(State(state): App) -> Result<Response, ApiError> {
    let text = state.metrics.render(state.models.stats(), state.models.num_loaded());
    let text = text.map_err(|error| ApiError::internal(error.to_string()))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}
