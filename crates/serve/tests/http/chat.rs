//! `/v1/chat/completions`, with and without streaming.

use serde_json::{Value, json};

use crate::support::*;

const CHAT: &str = "/v1/chat/completions";

fn content(reply: &Value) -> &str {
    reply["choices"][0]["message"]["content"].as_str().unwrap()
}

#[test]
fn a_plain_chat_is_the_clean_run() {
    let server = TestServer::start();
    let greedy = solve(QUESTION, 1, 0).greedy.unwrap();
    for more in [json!({}), json!({ "temperature": 0, "seed": 1234, "reasoning_effort": "none" })] {
        let reply = server.post(CHAT, &chat(QUESTION, more)).ok();
        assert_eq!(content(&reply), "605", "without the marker ###");
        assert_eq!(reply["choices"][0]["latent"]["raw_text"], greedy.text);
        assert_eq!(content(&reply), without_marker(&greedy.text));
        assert_eq!(reply["object"], "chat.completion");
        assert_eq!(reply["model"], "embedded");
        let choice = &reply["choices"][0];
        assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("stop")));
        let usage = &reply["usage"];
        assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], greedy.thoughts);
        assert_eq!(usage["completion_tokens"], greedy.thoughts + greedy.tokens.len());
        let total =
            usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
        assert_eq!(usage["total_tokens"], total);
    }
}

#[test]
fn a_vote_equals_that_of_solve_for_the_seed() {
    let server = TestServer::start();
    for (samples, seed) in [(1, 7), (16, 0), (16, 12345)] {
        let latent = json!({ "samples": samples, "seed": seed,
            "return": ["votes", "rewards", "trajectories", "thoughts"] });
        let reply = server.post(CHAT, &chat(QUESTION, json!({ "latent": latent }))).ok();
        let expected = solve(QUESTION, samples, seed);
        assert_eq!(content(&reply), without_marker(chosen_text(&expected)));
        let latent = &reply["choices"][0]["latent"];
        assert_eq!(latent["seed"], seed);
        assert_eq!(latent["answer"].as_str(), expected.answer());
        assert_eq!(latent["chosen"], expected.trajectories[expected.chosen.unwrap()].number);
        assert_eq!(latent["rule"], expected.rule.name());
        let votes: Vec<(String, usize)> =
            expected.votes().iter().map(|vote| (vote.answer.to_owned(), vote.votes)).collect();
        let told: Vec<(String, usize)> = latent["votes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| (v["answer"].as_str().unwrap().into(), v["votes"].as_u64().unwrap() as usize))
            .collect();
        assert_eq!(told, votes);
        for (t, expected) in expected.trajectories.iter().enumerate() {
            let told = &latent["trajectories"][t];
            assert_eq!(told["text"], expected.text);
            assert_eq!(told["process_rewards"], json!(expected.process_rewards));
            assert_eq!(told["outcome_reward"], json!(expected.outcome_reward));
            assert_eq!(told["latents"][0], json!(expected.latents.row(0)));
        }
    }
}

#[test]
fn a_client_seed_is_mixed_with_the_prompt_and_the_reply_names_the_result() {
    let server = TestServer::start();
    let ask = |question: &str, seed: u64| {
        let body = chat(question, json!({ "seed": seed, "reasoning_effort": "minimal" }));
        let reply = server.post(CHAT, &body).ok();
        let engine_seed = reply["choices"][0]["latent"]["seed"].as_u64().unwrap();
        let expected = solve(question, 4, engine_seed);
        assert_eq!(content(&reply), without_marker(chosen_text(&expected)));
        engine_seed
    };
    let seeds = [ask(QUESTION, 1234), ask(SHORT, 1234), ask(QUESTION, 1235)];
    assert_eq!(ask(QUESTION, 1234), seeds[0]);
    assert!(seeds[0] != seeds[1] && seeds[0] != seeds[2]);
}

#[test]
fn the_last_user_message_is_the_question() {
    let server = TestServer::start();
    let message = |role: &str, text: &str| json!({ "role": role, "content": text });
    let ask = |messages: Value, more: Value| {
        let mut body = chat("", more);
        body["messages"] = messages;
        server.post(CHAT, &body).ok()
    };
    let effort = json!({ "reasoning_effort": "minimal" });
    let alone = ask(json!([message("user", SHORT)]), effort.clone());
    assert!(alone["choices"][0]["latent"].get("notes").is_none());
    let system = message("system", "You are a helpful assistant.");
    let turns = json!([
        system,
        message("user", QUESTION),
        message("assistant", "605"),
        message("user", SHORT)
    ]);
    for (messages, count) in [(json!([system, message("user", SHORT)]), 1), (turns, 2)] {
        let reply = ask(messages, effort.clone());
        assert_eq!(reply["choices"][0]["message"], alone["choices"][0]["message"]);
        assert_eq!(reply["usage"], alone["usage"]);
        let notes = reply["choices"][0]["latent"]["notes"].as_array().unwrap();
        assert_eq!(notes.len(), count);
        assert!(notes[0].as_str().unwrap().starts_with("1 system message was ignored"));
    }
    let each = ask(json!([system, message("user", SHORT)]), json!({ "n": 2 }));
    assert!(each["choices"][1]["latent"]["notes"][0].is_string());
    let none = json!({ "messages": [system] });
    assert_eq!(server.post(CHAT, &none).refused_field(), "messages");
}

#[test]
fn several_choices_are_the_trajectories() {
    let server = TestServer::start();
    let body = chat(QUESTION, json!({ "n": 3, "latent": { "seed": 5 } }));
    let reply = server.post(CHAT, &body).ok();
    let expected = solve(QUESTION, 3, 5);
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for (i, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], i);
        let text = &expected.trajectories[i].text;
        assert_eq!(choice["message"]["content"], without_marker(text));
        assert_eq!(choice["latent"]["raw_text"], *text);
    }
}

#[test]
fn settings_reach_the_engine() {
    let server = TestServer::start();
    let method = &model().reasoner().method;
    let base = latent_tts::SamplingOptions::new(8.try_into().unwrap()).resolve(method).unwrap();
    let noise = latent_tts::SamplingParams {
        perturbation: latent_tts::Perturbation::Gaussian { std: 0.5 },
        length: "4".parse().unwrap(),
        rule: Some(latent_tts::Rule::MAJORITY),
        ..base
    };
    let latent = json!({ "samples": 8, "seed": 0, "sampler": "noise", "noise_std": 0.5, "latent_length": 4,
        "rule": "majority", "return": ["trajectories"] });
    let reply = server.post(CHAT, &chat(QUESTION, json!({ "latent": latent }))).ok();
    let texts = |reply: &latent_tts::Output| -> Vec<String> {
        reply.trajectories.iter().map(|t| t.text.clone()).collect()
    };
    let told = |reply: &Value| -> Vec<String> {
        let told = reply["choices"][0]["latent"]["trajectories"].as_array().unwrap();
        told.iter().map(|t| t["text"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(told(&reply), texts(&solve_with(QUESTION, noise)));

    let tokens = latent_tts::SamplingParams {
        perturbation: latent_tts::Perturbation::Tokens {
            temperature: latent_tts::Temperature::new(1.5).unwrap(),
            top_p: latent_tts::TopP::new(0.9).unwrap(),
        },
        max_new_tokens: 3.try_into().unwrap(),
        ..base
    };
    let latent = json!({ "samples": 8, "seed": 0, "return": ["trajectories"] });
    let more = json!({ "temperature": 1.5, "top_p": 0.9, "max_tokens": 3, "latent": latent });
    let reply = server.post(CHAT, &chat(QUESTION, more)).ok();
    assert_eq!(told(&reply), texts(&solve_with(QUESTION, tokens)));

    let latent = json!({ "samples": 4, "seed": 3, "beam_width": 2, "beam_candidates": 2 });
    let reply = server.post(CHAT, &chat(QUESTION, json!({ "latent": latent }))).ok();
    let search = latent_tts::Search::beam(2.try_into().unwrap(), 2.try_into().unwrap());
    let searched = latent_tts::SamplingParams {
        samples: 4.try_into().unwrap(),
        seed: 3,
        search: Some(search),
        ..base
    };
    let best = solve_with(QUESTION, searched).beam.unwrap().best;
    assert_eq!(content(&reply), without_marker(&best.text));

    let latent = json!({ "samples": 64, "seed": 0, "adaptive": true });
    let reply = server.post(CHAT, &chat(SHORT, json!({ "latent": latent }))).ok();
    assert!(reply["choices"][0]["latent"]["samples"].as_u64().unwrap() < 64);
    assert!(reply["choices"][0]["latent"]["stopped"]["reason"].is_string());
}

#[test]
fn stop_sequences_cut_the_text() {
    let server = TestServer::start();
    let whole = server.post(CHAT, &chat(QUESTION, json!({}))).ok();
    let whole = content(&whole).to_owned();
    let middle: String = whole.chars().skip(whole.chars().count() / 2).take(2).collect();
    let reply = server.post(CHAT, &chat(QUESTION, json!({ "stop": ["zzz", middle] }))).ok();
    assert_eq!(content(&reply), &whole[..whole.find(&middle).unwrap()]);
    let reply = server.post(CHAT, &chat(QUESTION, json!({ "max_completion_tokens": 1 }))).ok();
    assert_eq!(reply["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_stream_sends_trajectories_then_the_answer() {
    let server = TestServer::start();
    let latent = json!({ "samples": 16, "seed": 9 });
    let more = json!({ "stream": true, "stream_options": { "include_usage": true },
        "latent": latent });
    let events = server.post(CHAT, &chat(QUESTION, more)).events();
    assert_eq!(events.last().unwrap(), "[DONE]");
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|e| serde_json::from_str(e).unwrap()).collect();
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"));
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let expected = solve(QUESTION, 16, 9);
    let mut numbers: Vec<u64> = Vec::new();
    for chunk in &chunks {
        let latent = &chunk["choices"][0]["latent"];
        if let Some(number) = latent["trajectory"]["index"].as_u64() {
            let of = &expected.trajectories[number as usize];
            assert_eq!(latent["trajectory"]["text"], of.text);
            numbers.push(number);
            let votes = latent["votes"].as_array().unwrap();
            let count: u64 = votes.iter().map(|vote| vote["votes"].as_u64().unwrap()).sum();
            assert!(count as usize <= numbers.len());
        }
        if let Some(number) = latent["rewards"]["index"].as_u64() {
            let of = &expected.trajectories[number as usize];
            assert_eq!(latent["rewards"]["process_rewards"], json!(of.process_rewards));
        }
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..16).collect::<Vec<u64>>(), "one event per trajectory");
    let text: String = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, without_marker(chosen_text(&expected)));
    let usage = chunks.last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["completion_tokens"].as_u64().unwrap() > 16);
    let finish: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["finish_reason"])
        .filter(|reason| !reason.is_null())
        .collect();
    assert_eq!(finish, [&json!("stop")]);
    server.wait_until("the stream is counted", |server| {
        server.metric("stream_ends_total{end=\"completed\"}") == 1.0
    });
}

/// The concatenated texts of a stream, by choice.
fn streamed_texts(server: &TestServer, body: &Value, choices: usize) -> Vec<Vec<String>> {
    let events = server.post(CHAT, body).events();
    let mut texts = vec![Vec::new(); choices];
    for event in &events[..events.len() - 1] {
        let choice = &serde_json::from_str::<Value>(event).unwrap()["choices"][0];
        let piece = choice["delta"]["content"].as_str().unwrap_or_default();
        if !piece.is_empty() {
            texts[choice["index"].as_u64().unwrap() as usize].push(piece.to_owned());
        }
    }
    texts
}

#[test]
fn answers_that_no_vote_chooses_stream_token_by_token() {
    let server = TestServer::start();
    let latent = json!({ "samples": 1, "sampler": "none" });
    for (more, choices) in [
        (json!({ "latent": latent }), 1),
        (json!({ "n": 3, "seed": 4 }), 3),
        (json!({ "latent": latent, "stop": ["484"] }), 1),
        (json!({ "latent": latent, "max_tokens": 9 }), 1),
    ] {
        let whole = server.post(CHAT, &chat(QUESTION, more.clone())).ok();
        let mut streamed = more.clone();
        streamed["stream"] = json!(true);
        let texts = streamed_texts(&server, &chat(QUESTION, streamed), choices);
        for (index, pieces) in texts.iter().enumerate() {
            let expected = &whole["choices"][index]["message"]["content"];
            assert_eq!(&json!(pieces.concat()), expected, "{more}: {pieces:?}");
        }
        let is_cut = !more["stop"].is_null();
        assert!(is_cut || texts.iter().all(|pieces| pieces.len() > 1), "{more}: {texts:?}");
    }
}

#[test]
fn unsupported_values_are_rejected_by_name() {
    let server = TestServer::of(
        engine_without_rewards(),
        latent_tts_serve::ServeOptions { max_samples: 100, ..Default::default() },
    );
    let latent = |latent: Value| json!({ "latent": latent });
    for (more, field) in [
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 101 }), "n"),
        (json!({ "n": 2, "reasoning_effort": "low" }), "n"),
        (json!({ "reasoning_effort": "huge" }), "reasoning_effort"),
        (json!({ "reasoning_effort": "max" }), "reasoning_effort"),
        (json!({ "reasoning_effort": "low", "latent": { "samples": 9 } }), "reasoning_effort"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "temperature": 1, "latent": { "sampler": "noise" } }), "temperature"),
        (json!({ "top_p": 0.5 }), "top_p"),
        (json!({ "seed": -1 }), "seed"),
        (json!({ "seed": "x" }), "seed"),
        (json!({ "stop": [""] }), "stop"),
        (json!({ "stop": vec!["x"; 17] }), "stop"),
        (json!({ "max_tokens": "many" }), "max_tokens"),
        (json!({ "logprobs": true }), "logprobs"),
        (json!({ "tools": [{ "type": "function" }] }), "tools"),
        (json!({ "presence_penalty": 0.5 }), "presence_penalty"),
        (json!({ "response_format": { "type": "xml" } }), "response_format"),
        (json!({ "stream": 1 }), "stream"),
        (json!({ "latent": 1 }), "latent"),
        (latent(json!({ "samples": 101 })), "latent.samples"),
        (latent(json!({ "samples": 2, "latent_length": "few" })), "latent.latent_length"),
        (latent(json!({ "samples": 2, "thoughts": 100_000 })), "messages"),
        (latent(json!({ "sampler": "luck" })), "latent.sampler"),
        (latent(json!({ "gumbel_tau": 1 })), "latent.sampler"),
        (latent(json!({ "dropout_p": 1.0 })), "latent.dropout_p"),
        (latent(json!({ "dropout_p": 0.1, "sampler": "noise" })), "latent.dropout_p"),
        (latent(json!({ "noise_std": -1 })), "latent.noise_std"),
        (latent(json!({ "rule": "best_of" })), "latent.rule"),
        (latent(json!({ "rule": "coin" })), "latent.rule"),
        (latent(json!({ "target_confidence": 0.2 })), "latent.target_confidence"),
        (latent(json!({ "adaptive": 0.9 })), "latent.adaptive"),
        (latent(json!({ "beam": true, "samples": 4 })), "latent.beam"),
        (latent(json!({ "beam": 3 })), "latent.beam"),
        (latent(json!({ "return": ["all"] })), "latent.return"),
        (latent(json!({ "timeout": 1e9 })), "latent.timeout"),
    ] {
        let response = server.post(CHAT, &chat(QUESTION, more.clone()));
        assert_eq!(response.refused_field(), field, "{more}");
    }
    for (body, field) in [
        (json!({}), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "robot", "content": "" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user", "content": 3 }] }), "messages[0].content"),
        (chat(&"pens ".repeat(5000), json!({})), "messages"),
        (json!([]), ""),
    ] {
        assert_eq!(server.post(CHAT, &body).refused_field(), field, "{body}");
    }
    assert_eq!(server.send("POST", CHAT, &[], "{").refused_field(), "");
    let other = server.post(CHAT, &chat(QUESTION, json!({ "model": "gpt-5" })));
    assert_eq!((other.status, &other.json()["error"]["param"]), (404, &json!("model")));
    // Unknown fields are accepted, and null means absent.
    let more = json!({ "user": "me", "store": true, "n": null, "latent": null, "tools": [] });
    server.post(CHAT, &chat(QUESTION, more)).ok();
}

#[test]
fn unknown_latent_fields_are_refused_with_the_closest_known_one() {
    let server = TestServer::start();
    for (latent, field, advice) in [
        (json!({ "sampels": 3 }), "latent.sampels", "did you mean `latent.samples`?"),
        (json!({ "samples": 2, "Rule": "majority" }), "latent.Rule", "`latent.rule`"),
        (json!({ "beam_widht": 2 }), "latent.beam_widht", "`latent.beam_width`"),
        (json!({ "xyzzy": 1 }), "latent.xyzzy", "known fields: samples, sampler, "),
    ] {
        let response = server.post(CHAT, &chat(QUESTION, json!({ "latent": latent })));
        assert_eq!(response.refused_field(), field);
        let message = response.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(advice), "{message}");
    }
    let long = json!({ "latent": { "x".repeat(10_000): 1 } });
    assert!(server.post(CHAT, &chat(QUESTION, long)).text.len() < 1000);
}

fn engine_without_rewards() -> latent_tts::Engine {
    model().clone().without_reward_model().engine().unwrap().with_memory(64 << 20)
}

/// Gives every trajectory this reward, or fails without one.
struct ConstantScorer(Option<f32>);

impl latent_tts::Scorer for ConstantScorer {
    fn name(&self) -> &str {
        "constant"
    }

    fn score(
        &self,
        question: &str,
        trajectories: &[&latent_tts::Trajectory],
    ) -> Result<Vec<f32>, Box<dyn std::error::Error + Send + Sync>> {
        assert!(question.contains(QUESTION), "{question}");
        let reward = self.0.ok_or("the endpoint is down")?;
        Ok(vec![reward; trajectories.len()])
    }
}

#[test]
fn an_external_scorer_replaces_the_reward_model() {
    let serving = |reward| {
        let scorer = latent_tts_serve::SharedScorer(std::sync::Arc::new(ConstantScorer(reward)));
        let options = latent_tts_serve::ServeOptions { scorer: Some(scorer), ..Default::default() };
        TestServer::of(engine_without_rewards(), options)
    };
    let latent = json!({ "latent": { "samples": 4, "return": ["rewards"] } });
    let server = serving(Some(2.5));
    let reply = server.post(CHAT, &chat(QUESTION, latent.clone())).ok();
    assert_eq!(reply["choices"][0]["latent"]["rule"], "weighted");
    assert_eq!(reply["choices"][0]["latent"]["rewards"], json!([2.5, 2.5, 2.5, 2.5]));
    let model = &server.get("/v1/models").ok()["data"][0]["latent"];
    assert_eq!(model["rule"], "weighted");
    assert!(model["rules"].as_array().unwrap().contains(&json!("best_of")), "{model}");
    assert_eq!(serving(None).post(CHAT, &chat(QUESTION, latent)).status, 502);
}
