//! `/v1/responses`, with and without streaming: the same as a chat in another format.

use serde_json::{Value, json};

use crate::support::*;

const RESPONSES: &str = "/v1/responses";

fn message(reply: &Value) -> &Value {
    let output = reply["output"].as_array().unwrap();
    output.iter().find(|item| item["type"] == "message").unwrap()
}

#[test]
fn a_response_is_the_chat_of_the_same_question() {
    let server = TestServer::start();
    let latent = json!({ "samples": 8, "seed": 3 });
    let body = json!({ "model": "embedded", "input": QUESTION, "latent": latent,
        "metadata": { "run": "1" } });
    let reply = server.post(RESPONSES, &body).ok();
    let same = chat(QUESTION, json!({ "latent": latent }));
    let same = server.post("/v1/chat/completions", &same).ok();
    assert_eq!((&reply["object"], &reply["status"]), (&json!("response"), &json!("completed")));
    let content = &message(&reply)["content"][0];
    assert_eq!(content["type"], "output_text");
    assert_eq!(content["text"], same["choices"][0]["message"]["content"]);
    assert_eq!(reply["latent"], same["choices"][0]["latent"]);
    let summary = &reply["output"][0]["summary"][0]["text"];
    assert_eq!(*summary, same["choices"][0]["message"]["reasoning"]);
    assert_eq!(reply["usage"]["output_tokens"], same["usage"]["completion_tokens"]);
    assert_eq!(reply["usage"]["input_tokens"], same["usage"]["prompt_tokens"]);
    assert_eq!(reply["metadata"], json!({ "run": "1" }));
}

#[test]
fn input_is_a_text_or_messages_of_parts() {
    let server = TestServer::start();
    let parts = json!([
        { "type": "reasoning", "id": "rs_1", "summary": [] },
        { "role": "user", "content": [{ "type": "input_text", "text": SHORT }] },
    ]);
    let text = server.post(RESPONSES, &json!({ "input": SHORT })).ok();
    let list = server.post(RESPONSES, &json!({ "input": parts })).ok();
    assert_eq!(message(&text)["content"], message(&list)["content"]);
    assert_eq!(text["latent"], list["latent"]);
    let told = server.post(RESPONSES, &json!({ "input": SHORT, "instructions": "Be brief." })).ok();
    let note = told["latent"]["notes"][0].as_str().unwrap();
    assert!(note.starts_with("1 system message was ignored"), "{note}");
    let cut = server.post(RESPONSES, &json!({ "input": SHORT, "max_output_tokens": 1 })).ok();
    assert_eq!(cut["status"], "incomplete");
    assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens");
    let effort = json!({ "input": SHORT, "reasoning": { "effort": "low" } });
    assert_eq!(server.post(RESPONSES, &effort).ok()["latent"]["samples"], 8);
}

#[test]
fn unsupported_fields_are_rejected_by_name() {
    let server = TestServer::start();
    for (more, field) in [
        (json!({}), "input"),
        (json!({ "input": 3 }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [{ "type": "input_image" }] }), "input"),
        (json!({ "input": SHORT, "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "input": SHORT, "tools": [{ "type": "web_search" }] }), "tools"),
        (json!({ "input": SHORT, "reasoning": { "effort": "huge" } }), "reasoning.effort"),
        (json!({ "input": SHORT, "max_output_tokens": "x" }), "max_output_tokens"),
        (json!({ "input": SHORT, "text": { "format": { "type": "xml" } } }), "text.format"),
    ] {
        assert_eq!(server.post(RESPONSES, &more).refused_field(), field, "{more}");
    }
}

#[test]
fn a_stream_has_the_typed_events_in_their_order() {
    let server = TestServer::start();
    let latent = json!({ "samples": 8, "seed": 3 });
    let body = json!({ "input": QUESTION, "latent": latent, "stream": true });
    let response = server.post(RESPONSES, &body);
    assert_eq!(response.status, 200);
    let mut events: Vec<Value> = Vec::new();
    for block in response.text.split("\n\n").filter(|block| block.starts_with("event: ")) {
        let (kind, data) = block.split_once("\ndata: ").unwrap();
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!(kind.strip_prefix("event: "), event["type"].as_str());
        assert_eq!(event["sequence_number"], events.len());
        events.push(event);
    }
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds, expected);
    let told = events.iter().filter(|event| event["latent"]["trajectory"].is_object());
    assert_eq!(told.count(), 8, "one event per finished trajectory");
    let whole = json!({ "input": QUESTION, "latent": latent });
    let whole = server.post(RESPONSES, &whole).ok();
    let last = &events.last().unwrap()["response"];
    assert_eq!(message(last)["content"], message(&whole)["content"]);
    assert_eq!((&last["latent"], &last["usage"]), (&whole["latent"], &whole["usage"]));
    server.wait_until("the stream is counted", |server| {
        server.metric("stream_ends_total{end=\"completed\"}") == 1.0
    });
}
