//! `/openapi.json`, and the page at `/docs` that renders it.
//!
//! The document is built from one table of operations, [`OPERATIONS`], which a test compares with
//! the router. The schema of `latent` comes from [`latent_schema`]. The page is static HTML without
//! scripts or requests.

use std::fmt::Write;
use std::sync::LazyLock;

use axum::http::StatusCode;
use axum::response::Response;
use latent_tts::report::assets::STYLE;
use latent_tts::{Rule, SamplingOptions, TrajectoryRecord, Vote};
use serde_json::{Map, Value, json};

use crate::error::json_response;
use crate::fields::schema_of;
use crate::generation::EFFORTS;
use crate::web_ui;

/// The page makes no requests.
const POLICY: &str = web_ui::RUN_POLICY;

/// An operation of the API.
pub(crate) struct Operation {
    method: &'static str,
    pub(crate) path: &'static str,
    summary: &'static str,
    /// The schema name of its request body.
    request: Option<&'static str>,
    /// The schema name of its response.
    reply: &'static str,
}

const fn get(path: &'static str, summary: &'static str, reply: &'static str) -> Operation {
    Operation { method: "get", path, summary, request: None, reply }
}

const fn post(
    path: &'static str,
    summary: &'static str,
    request: &'static str,
    reply: &'static str,
) -> Operation {
    Operation { method: "post", path, summary, request: Some(request), reply }
}

/// Every operation of the API; the pages `/`, `/docs` and `/runs/NAME` are not included.
pub(crate) const OPERATIONS: [Operation; 16] = [
    post("/v1/chat/completions", "Answer a question", "ChatRequest", "ChatReply"),
    post("/v1/responses", "Answer a question (Responses API)", "ResponsesRequest", "Object"),
    post(
        "/v1/completions",
        "Complete prompts, or score their tokens",
        "CompletionRequest",
        "Object",
    ),
    post("/v1/score", "Score given answers by votes and rewards", "ScoreRequest", "ScoreReply"),
    get("/v1/models", "List the models", "Object"),
    get("/v1/models/{id}", "Describe a model", "Object"),
    post("/tokenize", "Convert text to token ids", "TokenizeRequest", "Object"),
    post("/detokenize", "Convert token ids to text", "DetokenizeRequest", "Object"),
    get("/tokenizer_info", "Get the tokenizer configuration", "Object"),
    get("/version", "Get the server version", "Object"),
    Operation {
        method: "post",
        path: "/admin/reload",
        summary: "Reload keys and models",
        request: None,
        reply: "Object",
    },
    get("/runs", "List recorded runs", "Object"),
    get("/metrics", "Prometheus metrics", "Text"),
    get("/health", "Check whether the engine is running", "Object"),
    get("/ready", "Check whether new requests are accepted", "Object"),
    get("/openapi.json", "This document", "Object"),
];

static DOCUMENT: LazyLock<Value> = LazyLock::new(document);
static PAGE: LazyLock<String> = LazyLock::new(|| render(&DOCUMENT));

/// The document that a server sends at `/openapi.json`.
pub fn openapi() -> &'static Value {
    &DOCUMENT
}

/// `GET /openapi.json`.
pub(crate) async fn json() -> Response {
    json_response(StatusCode::OK, &DOCUMENT)
}

/// `GET /docs`.
pub(crate) async fn page() -> Response {
    web_ui::html(PAGE.as_str(), POLICY)
}

/// The JSON Schema of the request field `latent`: the sampling options, and fields that only the
/// server reads.
pub(crate) fn latent_schema() -> Value {
    let integer = |text: &str| json!({ "type": "integer", "minimum": 0, "description": text });
    let parts = ["votes", "rewards", "trajectories", "thoughts"];
    let own = json!({
        "deadline_ms": integer("milliseconds after which the completed trajectories vote"),
        "timeout": { "type": "number", "description": "time limit of the request in seconds" },
        "lens": integer("number of most probable tokens to return per thought"),
        "gold": { "type": ["string", "number"], "description": "the correct answer, for grading" },
        "map": { "enum": ["pca", "tsne"] },
        "return": { "type": "array", "items": { "enum": parts } },
    });
    let mut schema = schema_of::<SamplingOptions>();
    if let (Some(properties), Value::Object(own)) = (schema["properties"].as_object_mut(), own) {
        properties.extend(own);
    }
    let rules: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    schema["properties"]["rule"]["enum"] = json!(rules);
    schema
}

fn document() -> Value {
    let mut paths = Map::new();
    for operation in &OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = operation_json(operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "latent-tts",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "An OpenAI-compatible server for latent reasoners. A request sets the \
                            number of trajectories of latent thoughts to sample; the server scores \
                            them, votes and returns one answer.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "bearer": [] }, {}],
        "paths": paths,
        "components": {
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas(),
        },
    })
}

fn operation_json(operation: &Operation) -> Value {
    let content = |schema: &str| match schema {
        "Text" => json!({ "text/plain": { "schema": { "type": "string" } } }),
        "Object" => json!({ "application/json": { "schema": { "type": "object" } } }),
        name => json!({ "application/json": { "schema": reference(name) } }),
    };
    let mut json = json!({
        "operationId": operation_id(operation),
        "summary": operation.summary,
        "responses": {
            "200": { "description": "success", "content": content(operation.reply) },
            "4XX": { "description": "invalid or rejected request", "content": content("Error") },
            "5XX": { "description": "server error", "content": content("Error") },
        },
    });
    if let Some(request) = operation.request {
        json["requestBody"] = json!({ "required": true, "content": content(request) });
    }
    if operation.path.contains("{id}") {
        json["parameters"] = json!([{ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }]);
    }
    json
}

fn operation_id(operation: &Operation) -> String {
    let words = operation.path.split(['/', '.', '{', '}', '_']).filter(|word| !word.is_empty());
    let words: Vec<&str> = std::iter::once(operation.method).chain(words).collect();
    words.join("_")
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// An object schema with these properties, some of them required.
fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required })
}

fn schemas() -> Value {
    let text = || json!({ "type": "string" });
    let integer = || json!({ "type": "integer", "minimum": 0 });
    let number = || json!({ "type": "number" });
    let boolean = || json!({ "type": "boolean" });
    let any = || json!({ "type": "object" });
    let texts = || json!({ "type": ["string", "array"] });
    let sampling = || {
        json!({
            "model": text(),
            "reasoning_effort": { "enum": EFFORTS.map(|(name, _)| name) },
            "n": integer(),
            "seed": integer(),
            "temperature": number(),
            "top_p": number(),
            "max_tokens": integer(),
            "stop": texts(),
            "stream": boolean(),
            "stream_options": object(json!({ "include_usage": boolean() }), &[]),
            "latent": reference("Latent"),
        })
    };
    let with = |more: Value| {
        let mut properties = sampling();
        if let (Some(properties), Value::Object(more)) = (properties.as_object_mut(), more) {
            properties.extend(more);
        }
        properties
    };
    let message = object(json!({ "role": text(), "content": texts() }), &["role", "content"]);
    let messages = json!({ "type": "array", "items": message });
    let share = object(json!({ "value": number(), "low": number(), "high": number() }), &[]);
    let score = object(
        json!({
            "index": integer(),
            "answer": text(),
            "votes": integer(),
            "share": share,
            "score": { "type": ["number", "null"] },
            "best": { "type": ["number", "null"] },
        }),
        &["index", "answer", "votes"],
    );
    let list = |name: &str| json!({ "type": "array", "items": reference(name) });
    let choice = object(
        json!({
            "index": integer(),
            "message": message,
            "finish_reason": text(),
            "latent": reference("LatentReply"),
        }),
        &["index", "message", "finish_reason"],
    );
    json!({
        "Latent": latent_schema(),
        "ChatRequest": object(
            with(json!({ "messages": messages, "response_format": any() })),
            &["messages"],
        ),
        "Trajectory": schema_of::<TrajectoryRecord>(),
        "Vote": schema_of::<Vote>(),
        "LatentReply": object(
            json!({
                "seed": integer(),
                "samples": integer(),
                "rule": text(),
                "chosen": { "type": ["integer", "null"] },
                "answer": { "type": ["string", "null"] },
                "stopped": { "type": ["object", "null"] },
                "votes": list("Vote"),
                "rewards": { "type": "array", "items": { "type": ["number", "null"] } },
                "trajectories": list("Trajectory"),
                "notes": { "type": "array", "items": text() },
            }),
            &["seed", "samples", "rule"],
        ),
        "ChatReply": object(
            json!({
                "id": text(),
                "object": text(),
                "created": integer(),
                "model": text(),
                "choices": { "type": "array", "items": choice },
                "usage": any(),
            }),
            &["id", "choices"],
        ),
        "CompletionRequest": object(
            with(json!({ "prompt": texts(), "echo": boolean(), "logprobs": integer() })),
            &["prompt"],
        ),
        "ResponsesRequest": object(
            json!({
                "model": text(),
                "input": texts(),
                "instructions": text(),
                "reasoning": object(json!({ "effort": text() }), &[]),
                "text": object(json!({ "format": any() }), &[]),
                "max_output_tokens": integer(),
                "stream": boolean(),
                "latent": reference("Latent"),
            }),
            &["input"],
        ),
        "ScoreRequest": object(
            json!({
                "model": text(),
                "question": text(),
                "messages": messages,
                "answers": { "type": "array", "items": { "type": ["string", "number"] } },
                "latent": reference("Latent"),
            }),
            &["answers"],
        ),
        "ScoreReply": object(
            json!({ "data": { "type": "array", "items": score }, "latent": any(), "usage": any() }),
            &["data"],
        ),
        "TokenizeRequest": object(json!({ "model": text(), "prompt": text() }), &["prompt"]),
        "DetokenizeRequest": object(
            json!({ "model": text(), "tokens": { "type": "array", "items": integer() } }),
            &["tokens"],
        ),
        "Error": object(
            json!({ "error": object(
                json!({
                    "message": text(),
                    "type": text(),
                    "param": { "type": ["string", "null"] },
                    "code": { "type": ["string", "null"] },
                }),
                &["message", "type"],
            )}),
            &["error"],
        ),
    })
}

/// Renders the document as an HTML page.
fn render(document: &Value) -> String {
    let mut body = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        body,
        "<h1>latent-tts {}</h1><p>{} As JSON: <a href=\"/openapi.json\">openapi.json</a>. \
         To ask questions in the browser: <a href=\"/\">/</a>.</p>",
        escaped(&document["info"]["version"]),
        escaped(&document["info"]["description"]),
    );
    for operation in &OPERATIONS {
        let json = &document["paths"][operation.path][operation.method];
        let _ = write!(
            body,
            "<section><h2><code>{} {}</code></h2><p>{}</p>",
            operation.method.to_uppercase(),
            operation.path,
            escaped(&json["summary"]),
        );
        if let Some(request) = operation.request {
            let _ = write!(body, "<p>Body: <a href=\"#{request}\">{request}</a></p>");
        }
        if !matches!(operation.reply, "Object" | "Text") {
            let _ = write!(body, "<p>Reply: <a href=\"#{0}\">{0}</a></p>", operation.reply);
        }
        body.push_str("</section>");
    }
    let schemas = document["components"]["schemas"].as_object();
    for (name, schema) in schemas.into_iter().flatten() {
        let _ = write!(body, "<section id=\"{name}\"><h2>{name}</h2>{}</section>", rows(schema));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>latent-tts API</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
}

/// The properties of a schema as table rows.
fn rows(schema: &Value) -> String {
    let mut rows = String::from("<table><tr><th>field</th><th>type</th><th></th></tr>");
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let kind = match (&property["enum"], &property["$ref"], &property["type"]) {
            (Value::Array(values), ..) => {
                let values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
                values.join(", ")
            }
            (_, Value::String(reference), _) => {
                reference.rsplit('/').next().unwrap_or_default().to_owned()
            }
            (_, _, Value::Array(kinds)) => {
                let kinds: Vec<&str> = kinds.iter().filter_map(Value::as_str).collect();
                kinds.join(" or ")
            }
            (_, _, kind) => kind.as_str().unwrap_or_default().to_owned(),
        };
        let _ = write!(
            rows,
            "<tr><td><code>{name}</code></td><td>{kind}</td><td>{}</td></tr>",
            escaped(&property["description"]),
        );
    }
    rows.push_str("</table>");
    rows
}

fn escaped(text: &Value) -> String {
    let text = text.as_str().unwrap_or_default();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reference in a value, by its pointer.
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get("$ref").and_then(Value::as_str).map(str::to_owned));
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn references_lead_to_schemas_and_operations_have_unique_ids() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 10);
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
        let mut ids: Vec<String> = OPERATIONS.iter().map(operation_id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), OPERATIONS.len());
    }

    #[test]
    fn the_schema_of_latent_has_the_fields_that_are_read() {
        let schema = latent_schema();
        let properties = schema["properties"].as_object().unwrap();
        let mut described: Vec<&str> = properties.keys().map(String::as_str).collect();
        let mut read = crate::generation::LATENT_FIELDS.to_vec();
        read.extend(crate::fields::sampling_fields().iter().map(String::as_str));
        described.sort_unstable();
        read.sort_unstable();
        assert_eq!(described, read);
    }
}
