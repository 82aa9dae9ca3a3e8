//! Several models in one process: loaded on demand, unloaded for others, reloaded; and rule and
//! budget in a model name.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use latent_tts_serve::{LoadedModel, ModelSource, ServeError, ServeOptions};
use serde_json::{Value, json};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

/// Model sources that count their loads; all are the embedded model.
fn sources(names: &[&str], loads: &Arc<AtomicUsize>) -> Vec<ModelSource> {
    let source = |name: &&str| {
        let (loads, broken) = (Arc::clone(loads), name.starts_with("broken"));
        let load = move || {
            if broken {
                return Err("no such file".into());
            }
            loads.fetch_add(1, Ordering::Relaxed);
            let files = latent_tts::model_files("embedded").unwrap();
            Ok(LoadedModel { engine: engine(), files })
        };
        ModelSource { name: (*name).to_owned(), bytes: 100, load: Box::new(load) }
    };
    names.iter().map(source).collect()
}

fn ask(server: &TestServer, model: &str) -> Response {
    let more = json!({ "model": model, "latent": { "samples": 4, "seed": 1 } });
    server.post(CHAT, &chat(SHORT, more))
}

fn loaded(server: &TestServer) -> Vec<String> {
    let models = server.get("/v1/models").ok();
    let models = models["data"].as_array().unwrap().iter();
    let loaded = models.filter(|model| model["loaded"] == true);
    loaded.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn models_are_loaded_on_demand_and_the_least_recently_used_is_unloaded() {
    let loads = Arc::new(AtomicUsize::new(0));
    let options = ServeOptions { model_memory: Some(250), ..Default::default() };
    let server = TestServer::of_models(sources(&["a", "b", "c", "broken"], &loads), options);
    assert_eq!(loaded(&server), ["a"], "the first one is loaded at the start");
    let expected = ask(&server, "a").ok()["choices"].clone();
    let reply = ask(&server, "b").ok();
    assert_eq!((&reply["model"], &reply["choices"]), (&json!("b"), &expected));
    assert_eq!(loaded(&server), ["a", "b"]);
    ask(&server, "a").ok();
    assert_eq!(ask(&server, "c").ok()["choices"], expected);
    assert_eq!(loaded(&server), ["a", "c"], "b was used least recently");
    assert_eq!(loads.load(Ordering::Relaxed), 3);
    let unknown = ask(&server, "d");
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    let broken = ask(&server, "broken");
    assert_eq!(broken.status, 503, "{broken:?}");
    assert_eq!(broken.json()["error"]["code"], "model_not_loaded");
    assert_eq!(ask(&server, "a").status, 200, "the server keeps running");
    assert!(server.metric("models_loaded") >= 1.0);
}

#[test]
fn a_model_in_use_is_not_unloaded_for_another() {
    let loads = Arc::new(AtomicUsize::new(0));
    let options = ServeOptions {
        model_memory: Some(150),
        request_timeout: std::time::Duration::from_secs(60),
        ..Default::default()
    };
    let server = TestServer::of_models(sources(&["a", "b"], &loads), options);
    let expected: Vec<Value> =
        ["a", "b"].map(|name| ask(&server, name).ok()["choices"].clone()).into();
    // Concurrent requests to both models, with memory for one: each gets the right model's answer.
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                for i in 0..3 {
                    let which = (client + i) % 2;
                    let reply = ask(server, ["a", "b"][which]).ok();
                    assert_eq!(reply["choices"], expected[which]);
                }
            });
        }
    });
    assert!(loads.load(Ordering::Relaxed) >= 2);
    assert_eq!(loaded(&server).len(), 1);
}

#[test]
fn models_that_cannot_be_served_are_refused_at_the_start() {
    let loads = Arc::new(AtomicUsize::new(0));
    let start = |names: &[&str], limit: u64| {
        let options = ServeOptions {
            model_memory: Some(limit),
            address: "127.0.0.1:0".parse().unwrap(),
            ..Default::default()
        };
        try_start(sources(names, &loads), options).unwrap_err()
    };
    assert!(matches!(start(&["a", "a"], 1000), ServeError::DuplicateModel { .. }));
    assert!(matches!(start(&["a"], 99), ServeError::ModelMemory { .. }));
    assert!(matches!(start(&["broken"], 1000), ServeError::Load { .. }));
}

#[test]
fn a_reload_replaces_models_and_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    std::fs::write(&path, "alpha\n").unwrap();
    let loads = Arc::new(AtomicUsize::new(0));
    let options = ServeOptions { api_keys_file: Some(path.clone()), ..Default::default() };
    let server = TestServer::of_models(sources(&["a", "b"], &loads), options);
    let send = |key: &str, method: &str, path: &str| {
        server.send(method, path, &[&format!("authorization: Bearer {key}")], "")
    };
    std::fs::write(&path, "beta\n").unwrap();
    assert_eq!(send("wrong", "POST", "/admin/reload").status, 401);
    let reloaded = send("alpha", "POST", "/admin/reload").ok();
    assert_eq!(reloaded, json!({ "models": ["a"], "keys": 1 }), "b was not loaded");
    assert_eq!(loads.load(Ordering::Relaxed), 2);
    assert_eq!(send("alpha", "GET", "/v1/models").status, 401);
    assert_eq!(send("beta", "GET", "/v1/models").status, 200);
    std::fs::write(&path, "").unwrap();
    assert_eq!(send("beta", "POST", "/admin/reload").status, 500);
    assert_eq!(send("beta", "GET", "/v1/models").status, 200, "an invalid file changes nothing");
    assert_eq!(TestServer::start().send("POST", "/admin/reload", &[], "").status, 403);
}

#[test]
fn a_models_name_can_hold_rule_and_budget() {
    let server = TestServer::start();
    let more = json!({ "model": "embedded@majority-8", "latent": { "seed": 5 } });
    let named = server.post(CHAT, &chat(SHORT, more)).ok();
    let latent = json!({ "samples": 8, "seed": 5, "rule": "majority" });
    let fields = server.post(CHAT, &chat(SHORT, json!({ "latent": latent }))).ok();
    assert_eq!(named["choices"], fields["choices"]);
    assert_eq!(named["choices"][0]["latent"]["samples"], 8);
    assert_eq!(named["model"], "embedded@majority-8");
    let more = json!({ "prompt": SHORT, "model": "embedded@4" });
    let reply = server.post("/v1/completions", &more).ok();
    assert_eq!(reply["choices"][0]["latent"]["samples"], 4);
    for (more, field) in [
        (json!({ "model": "embedded@coin-8" }), "model"),
        (json!({ "model": "embedded@weighted-8", "reasoning_effort": "low" }), "model"),
        (json!({ "model": "embedded@weighted-8", "latent": { "samples": 4 } }), "model"),
        (json!({ "model": "embedded@9999" }), "latent.samples"),
    ] {
        let response = server.post(CHAT, &chat(SHORT, more.clone()));
        assert_eq!(response.refused_field(), field, "{more}");
    }
    let other = server.post(CHAT, &chat(SHORT, json!({ "model": "other@majority-8" })));
    assert_eq!(other.status, 404);
}

#[test]
fn the_version_is_returned() {
    let version = TestServer::start().get("/version").ok();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn notes_are_those_of_solve() {
    let server = TestServer::start();
    let question = "What is 12 plus 30?";
    let reply = server.post(CHAT, &chat(question, json!({}))).ok();
    let notes = &reply["choices"][0]["latent"]["notes"];
    let expected = latent_tts::notes::of_question(model().reasoner(), true, question).unwrap();
    let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
    assert!(!expected.is_empty());
    assert_eq!(*notes, json!(expected));
    let completion = server.post("/v1/completions", &json!({ "prompt": question })).ok();
    assert_eq!(completion["choices"][0]["latent"]["notes"], *notes);
    let both = server.post("/v1/completions", &json!({ "prompt": [SHORT, question] })).ok();
    assert_eq!(both["choices"][0]["latent"]["notes"], Value::Null);
    assert_eq!(both["choices"][1]["latent"]["notes"], *notes);
    let within = server.post(CHAT, &chat(SHORT, json!({}))).ok();
    assert_eq!(within["choices"][0]["latent"]["notes"], Value::Null);
}
