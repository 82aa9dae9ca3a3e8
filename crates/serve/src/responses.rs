//! `POST /v1/responses`: the parts of OpenAI's Responses API that a latent reasoner supports.
//!
//! A body is converted to that of a chat, so fields, limits and errors are those of
//! `/v1/chat/completions`; the reply has the format of a response. Responses are not stored, so
//! each request contains the entire conversation. Streams have the typed events of the API,
//! interleaved with `response.in_progress` events whose `latent` reports trajectories.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use engine::scheduler::Event;
use futures_util::stream;
use serde_json::{Map, Value, json};

use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::progress::VoteProgress;
use crate::reply::{Choice, Usage};
use crate::routes::{JsonBody, read_deadline, select_model, start_chat};
use crate::state::{AppState, unix_seconds};
use crate::text_stream::TextStream;
use crate::work::RunningRequest;

/// Fields with the same meaning in a chat.
const SAME_FIELDS: [&str; 6] = ["model", "temperature", "top_p", "stream", "seed", "latent"];
/// Fields that are only accepted with values that have no effect.
const UNSUPPORTED: [&str; 8] = [
    "previous_response_id",
    "conversation",
    "tools",
    "background",
    "prompt",
    "include",
    "max_tool_calls",
    "top_logprobs",
];

/// The handler.
pub(crate) async fn create(
    State(state): State<Arc<AppState>>,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    let mut chat = chat_body(&body)?;
    let deadline = read_deadline(&state, &chat)?;
    let selected = select_model(&state, &mut chat, deadline).await?;
    let fields = Fields::of_body(&chat)?;
    let work = start_chat(&state, &selected.model, fields, deadline).map_err(renamed)?;
    let shape = ResponseShape::new(&state, &body, selected.name);
    if work.generation.stream.is_some() {
        return Ok(respond_streaming(work, shape));
    }
    let (mut choices, usage) = work.collect().await?;
    let choice = choices.swap_remove(0);
    Ok(json_response(StatusCode::OK, &shape.finished(&choice, usage)))
}

/// The body of the equivalent chat request.
fn chat_body(body: &Value) -> Result<Value, ApiError> {
    let fields = Fields::of_body(body)?;
    for name in UNSUPPORTED {
        let is_empty = |value: &Value| match value {
            Value::Array(list) => list.is_empty(),
            Value::Bool(value) => !value,
            value => value.as_u64() == Some(0),
        };
        fields.unsupported(name, is_empty)?;
    }
    let mut chat = Map::new();
    for name in SAME_FIELDS {
        chat.extend(fields.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    let limit = fields.get("max_output_tokens");
    chat.extend(limit.map(|limit| ("max_completion_tokens".to_owned(), limit.clone())));
    if let Some(reasoning) = fields.object("reasoning")? {
        let effort = reasoning.get("effort");
        chat.extend(effort.map(|effort| ("reasoning_effort".to_owned(), effort.clone())));
    }
    if let Some(text) = fields.object("text")? {
        let format = text.get("format");
        chat.extend(format.map(|format| ("response_format".to_owned(), format.clone())));
    }
    chat.insert("messages".to_owned(), Value::Array(messages(fields)?));
    Ok(Value::Object(chat))
}

/// Converts `instructions` and `input` to messages.
fn messages(body: Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let mut messages = Vec::new();
    if let Some(instructions) = body.text("instructions")? {
        messages.push(json!({ "role": "system", "content": instructions }));
    }
    let wrong = || body.error("input", "input must be a string or a list of messages");
    match body.get("input").ok_or_else(wrong)? {
        Value::String(text) => messages.push(json!({ "role": "user", "content": text })),
        Value::Array(items) => {
            for item in items {
                match item["type"].as_str() {
                    // The reasoning of an earlier response is not part of a prompt.
                    Some("reasoning") => {}
                    None | Some("message") => messages.push(message(item)),
                    Some(_) => return Err(wrong()),
                }
            }
        }
        _ => return Err(wrong()),
    }
    Ok(messages)
}

/// Converts a message of `input`, whose parts have other names in a chat.
fn message(item: &Value) -> Value {
    let part = |part: &Value| match part["type"].as_str() {
        Some("input_text" | "output_text") => json!({ "type": "text", "text": part["text"] }),
        _ => part.clone(),
    };
    let content = match &item["content"] {
        Value::Array(parts) => parts.iter().map(part).collect(),
        content => content.clone(),
    };
    json!({ "role": item["role"], "content": content })
}

/// Converts an error to the field names of this API.
fn renamed(error: ApiError) -> ApiError {
    let name = match error.param.as_deref() {
        Some("reasoning_effort") => "reasoning.effort",
        Some("max_completion_tokens") => "max_output_tokens",
        Some("response_format") => "text.format",
        Some(name) if name.starts_with("messages") => "input",
        _ => return error,
    };
    error.at(name)
}

/// The common fields of all JSON of one response.
struct ResponseShape {
    /// The response without the fields that are only known at its end.
    base: Value,
    /// The id of the response's message.
    message_id: String,
    reasoning_id: String,
}

impl ResponseShape {
    fn new(state: &AppState, body: &Value, model: String) -> Self {
        let id = state.new_id();
        let given = |name: &str, default: Value| match &body[name] {
            Value::Null => default,
            value => value.clone(),
        };
        let base = json!({
            "id": format!("resp_{id}"),
            "object": "response",
            "created_at": unix_seconds(),
            "status": "in_progress",
            "error": null,
            "incomplete_details": null,
            "instructions": body["instructions"],
            "max_output_tokens": body["max_output_tokens"],
            "metadata": given("metadata", json!({})),
            "model": model,
            "output": [],
            "parallel_tool_calls": false,
            "previous_response_id": null,
            "reasoning": { "effort": body["reasoning"]["effort"], "summary": null },
            "store": false,
            "temperature": body["temperature"],
            "text": given("text", json!({ "format": { "type": "text" } })),
            "tool_choice": "none",
            "tools": [],
            "top_p": body["top_p"],
            "truncation": "disabled",
            "usage": null,
            "user": body["user"],
        });
        let (message_id, reasoning_id) = (format!("msg_{id}"), format!("rs_{id}"));
        Self { base, message_id, reasoning_id }
    }

    fn message(&self, status: &str, content: Value) -> Value {
        json!({
            "id": self.message_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        })
    }

    /// The item that summarizes the vote.
    fn reasoning(&self, text: &str) -> Value {
        let summary = json!([{ "type": "summary_text", "text": text }]);
        json!({ "id": self.reasoning_id, "type": "reasoning", "summary": summary })
    }

    /// The complete response.
    fn finished(&self, choice: &Choice, usage: Usage) -> Value {
        let status = status(choice);
        let mut response = self.base.clone();
        response["status"] = json!(status);
        if status == "incomplete" {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        let reasoning = choice.reasoning.as_ref().map(|text| self.reasoning(text));
        let message = self.message(status, json!([part(choice)]));
        response["output"] = reasoning.into_iter().chain([message]).collect();
        response["usage"] = usage_json(usage);
        response["latent"] = choice.latent.clone();
        response
    }
}

fn status(choice: &Choice) -> &'static str {
    if choice.finish_reason == "length" { "incomplete" } else { "completed" }
}

/// The content of a message.
fn part(choice: &Choice) -> Value {
    match &choice.refusal {
        Some(refusal) => json!({ "type": "refusal", "refusal": refusal }),
        None => text_part(&choice.text),
    }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": { "cached_tokens": 0 },
        "output_tokens": usage.completion(),
        "output_tokens_details": { "reasoning_tokens": usage.thoughts },
        "total_tokens": usage.prompt + usage.completion(),
    })
}

fn respond_streaming(work: RunningRequest, shape: ResponseShape) -> Response {
    let events = stream::unfold(ResponseStream::new(work, shape), |mut stream| async {
        let event = stream.next().await?;
        Some((Ok::<_, Infallible>(event), stream))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

/// A stream in progress.
struct ResponseStream {
    work: RunningRequest,
    shape: ResponseShape,
    progress: VoteProgress,
    texts: TextStream,
    /// Whether the message was opened, because part of its text was sent.
    is_open: bool,
    ready: VecDeque<SseEvent>,
    /// The number of the next event.
    sequence: u64,
    /// How it ended; `None` while more events follow.
    end: Option<&'static str>,
}

impl ResponseStream {
    fn new(work: RunningRequest, shape: ResponseShape) -> Self {
        let mut stream = Self {
            work,
            shape,
            progress: VoteProgress::new(1),
            texts: TextStream::new(1),
            is_open: false,
            ready: VecDeque::new(),
            sequence: 0,
            end: None,
        };
        for kind in ["response.created", "response.in_progress"] {
            let response = stream.shape.base.clone();
            stream.push(kind, json!({ "response": response }));
        }
        stream
    }

    async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.end.is_some() {
                return None;
            }
            let taken = match self.work.next().await {
                Ok((prompt, event)) => self.take(prompt, event),
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                self.fail(&error);
            }
        }
    }

    fn take(&mut self, prompt: usize, event: Event) -> Result<(), ApiError> {
        if let Some(latent) = self.progress.add(&self.work, prompt, &event) {
            let response = self.shape.base.clone();
            self.push("response.in_progress", json!({ "response": response, "latent": latent }));
        }
        if let Some((_, delta)) = self.texts.add(&self.work, prompt, &event)? {
            if !self.is_open {
                self.open_message(0, text_part(""));
            }
            let event = self.content_event(0, json!({ "delta": delta, "logprobs": [] }));
            self.push("response.output_text.delta", event);
        }
        if let Event::Done(done) = event {
            let (mut choices, usage) = self.work.finish(prompt, done)?;
            self.answer(&choices.swap_remove(0), usage);
            self.work.complete();
            self.end = Some("completed");
        }
        Ok(())
    }

    /// Sends the events of the output items and of the end.
    fn answer(&mut self, choice: &Choice, usage: Usage) {
        let mut index = 0;
        if let Some(text) = &choice.reasoning {
            let item = self.shape.reasoning(text);
            self.push("response.output_item.added", json!({ "output_index": index, "item": item }));
            self.push("response.output_item.done", json!({ "output_index": index, "item": item }));
            index += 1;
        }
        if !self.is_open {
            let empty = match &choice.refusal {
                Some(_) => json!({ "type": "refusal", "refusal": "" }),
                None => text_part(""),
            };
            self.open_message(index, empty);
        }
        self.content(index, choice);
        let item = self.shape.message(status(choice), json!([part(choice)]));
        self.push("response.output_item.done", json!({ "output_index": index, "item": item }));
        let response = self.shape.finished(choice, usage);
        let kind = format!("response.{}", status(choice));
        self.push(&kind, json!({ "response": response }));
    }

    /// Opens the message with an empty part.
    fn open_message(&mut self, index: usize, part: Value) {
        self.is_open = true;
        let item = self.shape.message("in_progress", json!([]));
        self.push("response.output_item.added", json!({ "output_index": index, "item": item }));
        let event = self.content_event(index, json!({ "part": part }));
        self.push("response.content_part.added", event);
    }

    /// An event about the message's only part.
    fn content_event(&self, index: usize, more: Value) -> Value {
        let mut event = json!({ "item_id": "", "output_index": index, "content_index": 0 });
        event["item_id"] = json!(self.shape.message_id);
        if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
            event.extend(more);
        }
        event
    }

    /// Sends the events for the unsent text of the message, or for its refusal.
    fn content(&mut self, index: usize, choice: &Choice) {
        let rest = self.texts.rest(0, &choice.text);
        let events = match &choice.refusal {
            Some(refusal) => [
                ("refusal.delta", json!({ "delta": refusal })),
                ("refusal.done", json!({ "refusal": refusal })),
                ("content_part.done", json!({ "part": part(choice) })),
            ],
            None => [
                ("output_text.delta", json!({ "delta": rest, "logprobs": [] })),
                ("output_text.done", json!({ "text": choice.text, "logprobs": [] })),
                ("content_part.done", json!({ "part": part(choice) })),
            ],
        };
        for (kind, more) in events {
            let event = self.content_event(index, more);
            self.push(&format!("response.{kind}"), event);
        }
    }

    fn fail(&mut self, error: &ApiError) {
        let error = error.to_json();
        let mut response = self.shape.base.clone();
        response["status"] = json!("failed");
        let code = error["error"]["code"].as_str().unwrap_or("server_error");
        response["error"] = json!({ "code": code, "message": error["error"]["message"] });
        self.push("response.failed", json!({ "response": response }));
        self.end = Some("error");
    }

    fn push(&mut self, kind: &str, mut event: Value) {
        event["type"] = json!(kind);
        event["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        self.ready.push_back(SseEvent::default().event(kind).data(event.to_string()));
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        let end = self.end.filter(|_| self.ready.is_empty()).unwrap_or("client_disconnected");
        self.work.state().metrics.count_stream(end);
    }
}
