//! Scores of given answers, structured answers, budgets as targets, and the API description.

use serde_json::{Value, json};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

#[test]
fn given_answers_have_the_rewards_of_the_trajectories_that_lead_to_them() {
    let server = TestServer::start();
    let latent = json!({ "samples": 16, "seed": 0 });
    let solved = solve(QUESTION, 16, 0);
    let answer = solved.answer().unwrap();
    let body = json!({ "question": QUESTION, "answers": [answer, 123456], "latent": latent });
    let reply = server.post("/v1/score", &body).ok();
    let agreeing: Vec<_> = solved
        .trajectories
        .iter()
        .filter(|t| t.answer.as_ref().is_some_and(|own| own.as_str() == answer))
        .collect();
    let rewards: Vec<f64> = agreeing
        .iter()
        .map(|t| latent_tts::aggregate::reward(*t, latent_tts::RewardReduction::OutcomeOrMean))
        .collect();
    let first = &reply["data"][0];
    assert_eq!((&first["answer"], &first["canonical"]), (&json!(answer), &json!(answer)));
    assert_eq!(first["votes"], agreeing.len());
    let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
    assert!((first["score"].as_f64().unwrap() - mean).abs() < 1e-9);
    assert_eq!(first["best"].as_f64(), rewards.iter().copied().reduce(f64::max));
    let share = &first["share"];
    let bound = |name: &str| share[name].as_f64().unwrap();
    assert!((bound("value") - agreeing.len() as f64 / 16.0).abs() < 1e-9);
    assert!(bound("low") < bound("value") && bound("value") <= bound("high"));
    let none = &reply["data"][1];
    assert_eq!(
        (&none["votes"], &none["score"], &none["canonical"]),
        (&json!(0), &Value::Null, &Value::Null)
    );
    assert_eq!(reply["latent"]["seed"], 0);
    let default = json!({ "question": SHORT, "answers": ["7"] });
    assert_eq!(server.post("/v1/score", &default).ok()["latent"]["samples"], 16);
    for (body, field) in [
        (json!({ "question": SHORT }), "answers"),
        (json!({ "question": SHORT, "answers": [] }), "answers"),
        (json!({ "question": SHORT, "answers": [""] }), "answers"),
        (json!({ "question": SHORT, "answers": [[]] }), "answers"),
        (json!({ "answers": ["7"] }), "messages"),
        (json!({ "question": SHORT, "answers": ["7"], "n": 2 }), "n"),
        (json!({ "question": SHORT, "answers": ["7"], "stream": true }), "stream"),
        (
            json!({ "question": SHORT, "answers": ["7"], "latent": { "sampels": 1 } }),
            "latent.sampels",
        ),
    ] {
        assert_eq!(server.post("/v1/score", &body).refused_field(), field, "{body}");
    }
}

#[test]
fn an_answer_has_the_requested_format() {
    let server = TestServer::start();
    let latent = json!({ "samples": 16, "seed": 0 });
    let ask = |format: Value| {
        server
            .post(CHAT, &chat(QUESTION, json!({ "response_format": format, "latent": latent })))
            .ok()
    };
    let content = |reply: &Value| {
        let content = reply["choices"][0]["message"]["content"].as_str().unwrap();
        serde_json::from_str::<Value>(content).unwrap()
    };
    let solved = solve(QUESTION, 16, 0);
    let answer: f64 = solved.answer().unwrap().parse().unwrap();
    let schema = json!({ "type": "object", "properties": { "answer": { "type": "number" } },
        "required": ["answer"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    let object = content(&ask(format));
    assert_eq!(object["answer"].as_f64(), Some(answer));
    assert_eq!(content(&ask(json!({ "type": "number" }))).as_f64(), Some(answer));
    // A choice that only a minority gives: the vote only counts accepted answers.
    let votes = solved.votes();
    let minority = votes.iter().min_by_key(|vote| vote.votes).unwrap();
    assert!(votes.len() > 1, "the question is not answered in unison");
    let format = json!({ "type": "choice", "choices": [minority.answer] });
    let reply = ask(format);
    assert_eq!(reply["choices"][0]["message"]["content"], minority.answer);
    assert_eq!(reply["choices"][0]["latent"]["votes"].as_array().unwrap().len(), 1);
    let refused = ask(json!({ "type": "choice", "choices": ["123456"] }));
    let message = &refused["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null);
    assert!(message["refusal"].as_str().unwrap().contains("requested format"));
    let streamed = json!({ "response_format": { "type": "json_object" }, "stream": true,
        "latent": latent });
    let events = server.post(CHAT, &chat(QUESTION, streamed)).events();
    let text: String = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap())
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["answer"].as_f64(), Some(answer));
}

#[test]
fn a_target_chooses_the_number_of_trajectories() {
    let server = TestServer::start();
    let ask = |latent: Value| {
        let reply = server.post(CHAT, &chat(SHORT, json!({ "latent": latent }))).ok();
        reply["choices"][0]["latent"].clone()
    };
    let target = ask(json!({ "target_confidence": 0.9, "seed": 0 }));
    let adaptive = ask(json!({ "samples": 64, "target_confidence": 0.9, "seed": 0 }));
    assert_eq!(target, adaptive, "64 is the bound of a target");
    assert!(target["samples"].as_u64().unwrap() < 64);
    let bounded = ask(json!({ "target_confidence": 1.0, "samples": 4, "seed": 0 }));
    assert!(bounded["samples"].as_u64().unwrap() <= 4);
    let response =
        server.post(CHAT, &chat(SHORT, json!({ "n": 2, "latent": { "deadline_ms": 9 } })));
    assert_eq!(response.refused_field(), "n");
}

#[test]
fn at_the_deadline_the_complete_trajectories_vote() {
    let server = TestServer::start();
    // Not certain before the end, and much more work than fits in a millisecond.
    let latent = json!({ "samples": 512, "deadline_ms": 1, "seed": 0, "p": 0.6,
        "return": ["votes", "trajectories"] });
    let reply = server.post(CHAT, &chat(QUESTION, json!({ "latent": latent }))).ok();
    let latent = &reply["choices"][0]["latent"];
    let samples = latent["samples"].as_u64().unwrap();
    assert!((1..512).contains(&samples), "{samples}");
    assert_eq!(latent["stopped"], json!({ "requested": 512, "reason": "deadline" }));
    let votes = latent["votes"].as_array().unwrap().iter();
    let votes: u64 = votes.map(|vote| vote["votes"].as_u64().unwrap()).sum();
    assert!(votes <= samples);
    server.wait_until_empty();
    // A deadline that is not reached changes nothing.
    let ask = |latent: Value| {
        server.post(CHAT, &chat(SHORT, json!({ "latent": latent }))).ok()["choices"].clone()
    };
    let late = ask(json!({ "samples": 4, "deadline_ms": 600_000, "seed": 1 }));
    assert_eq!(late, ask(json!({ "samples": 4, "target_confidence": 1.0, "seed": 1 })));
}

#[test]
fn the_api_is_described_as_it_is() {
    let server = TestServer::start();
    let document = server.get("/openapi.json").ok();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    for (path, operations) in paths {
        for method in operations.as_object().unwrap().keys() {
            let path = path.replace("{id}", "embedded");
            let body = if method == "post" { "{}" } else { "" };
            let response = server.send(&method.to_uppercase(), &path, &[], body);
            assert!(![404, 405].contains(&response.status), "{method} {path}: {response:?}");
        }
    }
    let page = server.get("/docs");
    assert_eq!(page.status, 200);
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    for path in paths.keys() {
        assert!(page.text.contains(path.as_str()), "{path}");
    }
    for reference in ["src=", "href=\"http", "url(", "@import", "<script"] {
        assert!(!page.text.contains(reference), "{reference}");
    }
}
