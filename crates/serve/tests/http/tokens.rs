//! The tokenizer, the model list, health and metrics.

use serde_json::json;

use crate::support::*;

#[test]
fn texts_become_tokens_and_texts_again() {
    let server = TestServer::start();
    let body = json!({ "prompt": SHORT, "add_special_tokens": false });
    let tokens = server.post("/tokenize", &body).ok()["tokens"].clone();
    assert_eq!(tokens, json!(model().reasoner().tokenizer.encode(SHORT).unwrap()));
    let text = server.post("/detokenize", &json!({ "tokens": tokens })).ok()["prompt"].clone();
    let again = server.post("/tokenize", &json!({ "prompt": text })).ok()["tokens"].clone();
    assert_eq!(again, tokens);
    let info = server.get("/tokenizer_info").ok();
    assert_eq!(info["eos_token"], "<|endoftext|>");
    assert_eq!(server.post("/tokenize", &json!({})).refused_field(), "prompt");
    assert_eq!(server.post("/detokenize", &json!({ "tokens": ["a"] })).refused_field(), "tokens");
}

#[test]
fn the_model_is_listed() {
    let server = TestServer::start();
    let models = server.get("/v1/models").ok();
    assert_eq!(models["data"][0]["id"], "embedded");
    assert_eq!(server.get("/v1/models/embedded").ok()["object"], "model");
    assert_eq!(server.get("/v1/models/other").status, 404);
    assert_eq!(server.get("/nowhere").status, 404);
    assert_eq!(server.get("/v1/completions").status, 405);
    assert_eq!(server.get("/health").ok()["status"], "ok");
    assert_eq!(server.get("/ready").ok()["status"], "ready");
}

#[test]
fn made_up_methods_share_one_metric() {
    let server = TestServer::start();
    for method in ["BREW", "PROPFIND", &"X".repeat(1000)] {
        assert_eq!(server.send(method, "/health", &[], "").status, 405);
    }
    let labels = "{method=\"other\",path=\"/health\",status=\"405\"}";
    assert_eq!(server.metric(&format!("http_requests_total{labels}")), 3.0);
    assert!(!server.get("/metrics").text.contains("BREW"));
}

#[test]
fn metrics_count_requests_and_tokens() {
    let server = TestServer::start();
    let body = chat(SHORT, json!({ "latent": { "samples": 4 } }));
    let usage = server.post("/v1/chat/completions", &body).ok()["usage"].clone();
    server.post("/v1/chat/completions", &json!({}));
    let requests = |status: u16| {
        let path = "/v1/chat/completions";
        let labels = format!("{{method=\"POST\",path=\"{path}\",status=\"{status}\"}}");
        server.metric(&format!("http_requests_total{labels}"))
    };
    assert_eq!((requests(200), requests(400)), (1.0, 1.0));
    assert_eq!(server.metric("prompt_tokens_total"), usage["prompt_tokens"].as_f64().unwrap());
    let generated = usage["completion_tokens"].as_f64().unwrap();
    assert_eq!(server.metric("generation_tokens_total"), generated);
    assert_eq!(server.metric("request_success_total{finished_reason=\"stop\"}"), 1.0);
    for name in ["time_to_first_token", "e2e_request_latency", "request_queue_time"] {
        assert_eq!(server.metric(&format!("{name}_seconds_count")), 1.0, "{name}");
    }
    assert_eq!(server.metric("http_requests_in_flight"), 1.0, "the scrape itself");
    server.wait_until_empty();
}
