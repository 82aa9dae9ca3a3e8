//! `POST /v1/score`: rewards and votes of given answers to a question.
//!
//! A latent reward model scores thoughts, so an answer is scored by the trajectories that lead to
//! it. The request samples trajectories like a chat, and returns for every given answer the
//! fraction of trajectories that agree with it, with its 95% confidence interval, and their mean
//! and best reward. An answer that no trajectory produces has no reward.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use engine::Trajectory;
use latent_tts::aggregate;
use latent_tts::report::interval::Interval;
use latent_tts::{Answer, RewardReduction};
use serde_json::{Map, Value, json};

use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::reply::{finite, votes_json};
use crate::routes::{JsonBody, read_deadline, select_model, start_chat};
use crate::state::{AppState, unix_seconds};

/// Maximum number of given answers, and maximum bytes of each.
const MAX_ANSWERS: usize = 64;
const MAX_ANSWER_BYTES: usize = 256;
/// Default number of trajectories.
const DEFAULT_SAMPLES: usize = 16;

/// The handler.
pub(crate) async fn score(
    State(state): State<Arc<AppState>>,
    JsonBody(mut body): JsonBody,
) -> Result<Response, ApiError> {
    let deadline = read_deadline(&state, &body)?;
    let selected = select_model(&state, &mut body, deadline).await?;
    let answers = read_answers(Fields::of_body(&body)?)?;
    prepare(&mut body)?;
    let fields = Fields::of_body(&body)?;
    let work = start_chat(&state, &selected.model, fields, deadline)?;
    let notes = work.generation.notes.clone();
    let (reply, usage, seed) = work.reply().await?;
    let all = &reply.trajectories;
    let data = answers.iter().enumerate().map(|(index, answer)| scored(index, answer, all));
    let response = json!({
        "id": format!("score-{}", state.new_id()),
        "object": "list",
        "created": unix_seconds(),
        "model": selected.name,
        "data": data.collect::<Vec<_>>(),
        "latent": {
            "seed": seed,
            "samples": all.len(),
            "votes": votes_json(&reply.votes()),
            "stopped": reply.stopped,
            "notes": notes,
        },
        "usage": usage.to_json(),
    });
    Ok(json_response(StatusCode::OK, &response))
}

/// The answers of a body: strings or numbers.
fn read_answers(body: Fields<'_>) -> Result<Vec<String>, ApiError> {
    let wrong = || {
        let limits =
            format!("1 to {MAX_ANSWERS} strings or numbers of up to {MAX_ANSWER_BYTES} bytes");
        body.error("answers", format!("answers must be a list of {limits}"))
    };
    let text = |answer: &Value| match answer {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let list = body.list("answers")?.ok_or_else(wrong)?;
    let answers: Option<Vec<String>> = list.iter().map(text).collect();
    let fits = |answer: &String| (1..=MAX_ANSWER_BYTES).contains(&answer.len());
    let answers = answers.filter(|answers| answers.iter().all(fits)).ok_or_else(wrong)?;
    if !(1..=MAX_ANSWERS).contains(&answers.len()) {
        return Err(wrong());
    }
    Ok(answers)
}

/// Converts the body to that of a chat: `question` becomes a message, and the default is more than
/// one trajectory.
fn prepare(body: &mut Value) -> Result<(), ApiError> {
    let fields = Fields::of_body(body)?;
    for field in ["n", "stream", "response_format", "stop"] {
        fields.unsupported(field, |value| matches!(value, Value::Bool(false)))?;
    }
    let question = fields.text("question")?.map(str::to_owned);
    if let Some(question) = question {
        if fields.get("messages").is_some() {
            return Err(fields.error("question", "pass either question or messages, not both"));
        }
        body["messages"] = json!([{ "role": "user", "content": question }]);
    }
    let latent = &mut body["latent"];
    if latent.is_null() {
        *latent = Value::Object(Map::new());
    }
    let is_given = |latent: &Map<String, Value>| {
        ["samples", "target_confidence", "deadline_ms"]
            .iter()
            .any(|field| latent.get(*field).is_some_and(|value| !value.is_null()))
    };
    let adds_samples = latent.as_object().is_some_and(|latent| !is_given(latent));
    if adds_samples && body["reasoning_effort"].is_null() {
        body["latent"]["samples"] = json!(DEFAULT_SAMPLES);
    }
    Ok(())
}

/// Votes and rewards of a given answer.
fn scored(index: usize, given: &str, all: &[Trajectory]) -> Value {
    let agrees = |of: &&Trajectory| of.answer.as_ref().is_some_and(|answer| answer.matches(given));
    let agreeing: Vec<&Trajectory> = all.iter().filter(agrees).collect();
    let is_agreeing: Vec<f64> = all.iter().map(|of| f64::from(u8::from(agrees(&of)))).collect();
    let rewards: Vec<f64> = agreeing
        .iter()
        .map(|of| aggregate::reward(of, RewardReduction::OutcomeOrMean))
        .filter(|reward| reward.is_finite())
        .collect();
    let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
    let share = Interval::of_share(&is_agreeing);
    json!({
        "index": index,
        "object": "score",
        "answer": given,
        // The canonical form, in which votes are counted.
        "canonical": agreeing.first().and_then(|of| of.answer.as_ref().map(Answer::as_str)),
        "votes": agreeing.len(),
        "share": share.map(|share| json!({
            "value": share.value, "low": share.low, "high": share.high,
        })),
        "score": finite(mean),
        "best": finite(rewards.iter().copied().fold(f64::NAN, f64::max)),
    })
}
