//! `/v1/completions`: texts, token ids and lists of either; log-likelihoods.

use serde_json::{Value, json};

use crate::support::*;

const COMPLETIONS: &str = "/v1/completions";

fn texts(reply: &Value) -> Vec<String> {
    let choices = reply["choices"].as_array().unwrap();
    for (i, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], i);
    }
    choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn texts_ids_and_lists_give_the_same() {
    let server = TestServer::start();
    let greedy = |question| solve(question, 1, 0).greedy.unwrap().text;
    let (first, second) = (greedy(QUESTION), greedy(SHORT));
    let ids = |text: &str| -> Value {
        server.post("/tokenize", &json!({ "prompt": text })).ok()["tokens"].clone()
    };
    for (prompt, expected) in [
        (json!(QUESTION), vec![&first]),
        (json!([QUESTION, SHORT]), vec![&first, &second]),
        (ids(SHORT), vec![&second]),
        (json!([ids(SHORT), ids(QUESTION)]), vec![&second, &first]),
    ] {
        let body = json!({ "model": "embedded", "prompt": prompt, "max_tokens": 256,
            "temperature": 0, "seed": 1234, "stop": ["\n\n"] });
        let reply = server.post(COMPLETIONS, &body).ok();
        assert_eq!(texts(&reply).iter().collect::<Vec<_>>(), expected);
        assert_eq!(reply["object"], "text_completion");
    }
    let body =
        json!({ "prompt": [QUESTION, SHORT], "n": 2, "echo": true, "latent": { "seed": 4 } });
    let reply = server.post(COMPLETIONS, &body).ok();
    let expected: Vec<String> = [QUESTION, SHORT]
        .iter()
        .flat_map(|question| {
            let reply = solve(question, 2, 4);
            reply.trajectories.into_iter().map(move |t| format!("{question}{}", t.text))
        })
        .collect();
    assert_eq!(texts(&reply), expected);
}

#[test]
fn a_stream_of_several_prompts_has_their_texts() {
    let server = TestServer::start();
    let body = json!({ "prompt": [QUESTION, SHORT], "stream": true });
    let events = server.post(COMPLETIONS, &body).events();
    let mut streamed = [String::new(), String::new()];
    for event in &events[..events.len() - 1] {
        let choice = &serde_json::from_str::<Value>(event).unwrap()["choices"][0];
        let index = choice["index"].as_u64().unwrap() as usize;
        streamed[index].push_str(choice["text"].as_str().unwrap());
    }
    assert_eq!(events.last().unwrap(), "[DONE]");
    let whole = server.post(COMPLETIONS, &json!({ "prompt": [QUESTION, SHORT] })).ok();
    assert_eq!(streamed.to_vec(), texts(&whole));
}

#[test]
fn echoed_log_probabilities_are_the_language_models() {
    let server = TestServer::start();
    let tokens: Vec<u32> = model().reasoner().tokenizer.encode(SHORT).unwrap();
    let scores = engine().score_tokens(&tokens).unwrap();
    for (prompt, max_tokens) in [(json!([tokens]), 1), (json!(SHORT), 1), (json!(tokens), 0)] {
        let body = json!({ "prompt": prompt, "max_tokens": max_tokens, "logprobs": 1,
            "echo": true, "temperature": 0, "seed": 1234 });
        let reply = server.post(COMPLETIONS, &body).ok();
        let logprobs = &reply["choices"][0]["logprobs"];
        let told = logprobs["token_logprobs"].as_array().unwrap();
        assert_eq!(told.len(), tokens.len() + max_tokens);
        assert_eq!(logprobs["top_logprobs"].as_array().unwrap().len(), told.len());
        assert_eq!(logprobs["tokens"].as_array().unwrap().len(), told.len());
        assert!(told[0].is_null());
        for (i, told) in told.iter().enumerate().skip(1) {
            let score = &scores[i - 1];
            assert_eq!(*told, json!(score.logprob));
            let top = logprobs["top_logprobs"][i].as_object().unwrap();
            assert_eq!(top.values().collect::<Vec<_>>(), [&json!(score.top_logprob)]);
            assert_eq!(score.token == score.top, *told == json!(score.top_logprob));
        }
    }
    for (more, field) in [
        (json!({ "logprobs": 1 }), "logprobs"),
        (json!({ "logprobs": 5, "echo": true, "max_tokens": 1 }), "logprobs"),
        (json!({ "logprobs": 1, "echo": true, "max_tokens": 2 }), "max_tokens"),
        (json!({ "logprobs": 1, "echo": true, "max_tokens": 1, "n": 2 }), "n"),
        (json!({ "logprobs": 1, "echo": true, "max_tokens": 1, "latent": {} }), "latent"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "prompt": [4_000_000] }), "prompt"),
        (json!({ "prompt": "" , "suffix": "x" }), "suffix"),
    ] {
        let mut body = json!({ "prompt": SHORT });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(server.post(COMPLETIONS, &body).refused_field(), field, "{more}");
    }
}
