//! A gateway: requests N completions from another OpenAI-compatible server, and votes over their
//! answers.
//!
//! ```text
//! body -> GatewayRequest -> GatewayRun: rounds of completions -> answers -> votes -> reply | stream
//! ```
//!
//! Every completion is a separate request with its own seed, which every server supports. Failed
//! completions do not vote, and the reply reports their number and the last reason; the request
//! only fails if all of them fail. Unknown fields are passed on.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use axum::http::StatusCode;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use engine::{AdaptiveSampling, Trajectory};
use futures_util::stream;
use latent_tts::aggregate::{
    self, AnswerVotes, Confidence, EarlyStop, StopReason, lead_probability,
};
use latent_tts::report::interval::Interval;
use latent_tts::{Answer, AnswerKind, AnswerRule, Rule};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use crate::error::{ApiError, json_response};
use crate::fields::Fields;
use crate::model_name::NamedBudget;
use crate::state::{ActiveRequest, AppState, unix_seconds};
use crate::traces::{self, RequestTrace};
use crate::upstream::{Completion, Upstream, UpstreamError, usage_json};

/// Fields of `latent` that the gateway reads.
const LATENT_FIELDS: [&str; 9] = [
    "samples",
    "rule",
    "adaptive",
    "target_confidence",
    "deadline_ms",
    "timeout",
    "seed",
    "answer",
    "return",
];
/// Default number of completions.
const DEFAULT_SAMPLES: usize = 8;
/// The target confidence of `adaptive: true`.
const DEFAULT_CONFIDENCE: f64 = 0.95;

/// `POST /v1/chat/completions` of a gateway.
pub(crate) async fn chat(
    state: &Arc<AppState>,
    upstream: &Arc<Upstream>,
    body: Value,
) -> Result<Response, ApiError> {
    let active = ActiveRequest::new(state);
    if state.is_draining() {
        return Err(ApiError::draining());
    }
    let request = GatewayRequest::read(state, upstream, body)?;
    let streams = request.streams;
    let queued = QueuedCompletions::new(state, request.samples)?;
    let run = GatewayRun::new(state, upstream, request, (queued, active));
    if streams {
        return Ok(respond_streaming(run));
    }
    let reply = run.finish().await?;
    Ok(json_response(StatusCode::OK, &reply))
}

/// Number of completions of all queued or running requests, bounded like the queue of a model.
struct QueuedCompletions {
    state: Arc<AppState>,
    count: usize,
}

impl QueuedCompletions {
    fn new(state: &Arc<AppState>, count: usize) -> Result<Self, ApiError> {
        let limit = state.options.max_waiting_sequences;
        let queued: &AtomicUsize = &state.upstream_queued;
        let add = |waiting: usize| Some(waiting + count).filter(|&sum| sum <= limit);
        let added = queued.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        match added {
            Ok(_) => Ok(Self { state: Arc::clone(state), count }),
            Err(waiting) => {
                let message = format!("queue full ({waiting} of {limit} completions); retry later");
                Err(ApiError::queue_full(message, None))
            }
        }
    }
}

impl Drop for QueuedCompletions {
    fn drop(&mut self) {
        self.state.upstream_queued.fetch_sub(self.count, Ordering::AcqRel);
    }
}

/// How to extract the answer of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerSearch {
    /// A number in a box, after `####` or `Answer:`, otherwise the last number.
    Number,
    /// A formula in a box.
    Math,
    /// The letter of an option.
    Choice,
}

impl AnswerSearch {
    fn read(latent: Option<Fields<'_>>) -> Result<Self, ApiError> {
        let Some(latent) = latent else { return Ok(Self::Number) };
        match latent.text("answer")? {
            None | Some("number") => Ok(Self::Number),
            Some("math") => Ok(Self::Math),
            Some("choice") => Ok(Self::Choice),
            Some(_) => Err(latent.error("answer", "answer must be one of number, math, choice")),
        }
    }

    fn extract(self, text: &str) -> Option<Answer> {
        let number = |rule: AnswerRule| rule.extract(AnswerKind::Number, text);
        match self {
            Self::Choice => AnswerRule::LastNumber.extract(AnswerKind::Choice, text),
            Self::Math => AnswerRule::Boxed.extract(AnswerKind::Math, text),
            Self::Number => number(AnswerRule::Boxed)
                .or_else(|| text.contains("####").then(|| number(AnswerRule::Hash)).flatten())
                .or_else(|| number(AnswerRule::AnswerColon))
                .or_else(|| number(AnswerRule::LastNumber)),
        }
    }
}

/// A parsed request.
struct GatewayRequest {
    /// The body of every upstream request, without its seed.
    body: Map<String, Value>,
    model: String,
    samples: usize,
    seed: u64,
    rule: Rule,
    confidence: Option<Confidence>,
    search: AnswerSearch,
    streams: bool,
    include_usage: bool,
    returns_trajectories: bool,
    /// When the completed trajectories vote.
    vote_at: Option<Instant>,
    /// When the request fails.
    deadline: Instant,
    notes: Vec<String>,
}

impl GatewayRequest {
    fn read(state: &AppState, upstream: &Upstream, mut body: Value) -> Result<Self, ApiError> {
        let start = Instant::now();
        let model = read_model(&mut body, upstream.options.model.as_deref())?;
        let fields = Fields::of_body(&body)?;
        fields.unsupported("n", |value| value.as_u64() == Some(1))?;
        if fields.list("messages")?.is_none_or(Vec::is_empty) {
            return Err(fields.error(
                "messages",
                "messages is required: a list of objects with role and content",
            ));
        }
        let latent = fields.object("latent")?;
        latent.map_or(Ok(()), |latent| latent.refuse_unknown(&LATENT_FIELDS))?;
        let limits = GatewayLimits::read(state, latent, start)?;
        let seed = latent.map(|latent| latent.count("seed", 0..=u64::MAX)).transpose()?.flatten();
        let seed =
            seed.map_or_else(|| fields.count("seed", 0..=u64::MAX), |seed| Ok(Some(seed)))?;
        let returned = latent.map(|latent| latent.list("return")).transpose()?.flatten();
        let usage = fields.object("stream_options")?;
        let usage = usage.map(|options| options.boolean("include_usage")).transpose()?.flatten();
        let mut request = Self {
            model,
            samples: limits.samples,
            // Below 2^53, so that the seeds of all completions are as well.
            seed: seed.unwrap_or(0) & ((1 << 52) - 1),
            rule: limits.rule,
            confidence: limits.confidence,
            search: AnswerSearch::read(latent)?,
            streams: fields.boolean("stream")?.unwrap_or(false),
            include_usage: usage.unwrap_or(false),
            returns_trajectories: returned
                .is_some_and(|list| list.contains(&json!("trajectories"))),
            vote_at: limits.vote_at,
            deadline: limits.deadline,
            notes: Vec::new(),
            body: Map::new(),
        };
        request.prepare(body);
        Ok(request)
    }

    /// Removes the gateway's own fields to get the upstream body.
    fn prepare(&mut self, body: Value) {
        let Value::Object(mut body) = body else { return };
        for own in ["latent", "stream", "stream_options", "n", "seed"] {
            body.remove(own);
        }
        body.insert("model".into(), json!(self.model));
        if self.rule == Rule::LIKELIHOOD {
            body.insert("logprobs".into(), json!(true));
        }
        if self.samples > 1 {
            match body.get("temperature").and_then(Value::as_f64) {
                // Some servers use greedy decoding by default.
                None => drop(body.insert("temperature".into(), json!(1.0))),
                Some(0.0) => self.notes.push(
                    "temperature 0 makes all completions identical; omit it or set it above 0"
                        .to_owned(),
                ),
                Some(_) => {}
            }
        }
        self.body = body;
    }

    /// The body of one upstream request.
    fn completion_body(&self, number: usize) -> Value {
        let mut body = self.body.clone();
        body.insert("seed".into(), json!(self.seed + number as u64));
        Value::Object(body)
    }
}

/// The number of completions, the voting rule and the deadlines.
struct GatewayLimits {
    samples: usize,
    rule: Rule,
    confidence: Option<Confidence>,
    vote_at: Option<Instant>,
    deadline: Instant,
}

impl GatewayLimits {
    fn read(
        state: &AppState,
        latent: Option<Fields<'_>>,
        start: Instant,
    ) -> Result<Self, ApiError> {
        let most = state.options.request_timeout;
        let max_samples = state.options.max_samples;
        let mut limits = Self {
            samples: DEFAULT_SAMPLES.min(max_samples),
            rule: Rule::MAJORITY,
            confidence: None,
            vote_at: None,
            deadline: start + most,
        };
        let Some(latent) = latent else { return Ok(limits) };
        if let Some(samples) = latent.count("samples", 1..=max_samples as u64)? {
            limits.samples = samples as usize;
        }
        if let Some(name) = latent.text("rule")? {
            let known = [Rule::MAJORITY, Rule::LIKELIHOOD];
            let rule = known.into_iter().find(|rule| rule.name() == name);
            let names = known.map(Rule::name).join(", ");
            let message = format!("without a reward model, rule must be one of {names}");
            limits.rule = rule.ok_or_else(|| latent.error("rule", message))?;
        }
        if let Some(seconds) = latent.number("timeout", 0.0..=most.as_secs_f64())? {
            limits.deadline = start + Duration::from_secs_f64(seconds);
        }
        let after = latent.count("deadline_ms", 1..=86_400_000)?;
        limits.vote_at = after.map(|after| start + Duration::from_millis(after));
        limits.confidence = read_confidence(latent)?;
        Ok(limits)
    }
}

/// The target confidence: `target_confidence`, or the default of `adaptive: true`.
fn read_confidence(latent: Fields<'_>) -> Result<Option<Confidence>, ApiError> {
    let adaptive = latent.boolean("adaptive")?;
    let wrong =
        || latent.error("target_confidence", "target_confidence must be above 0.5 and at most 1");
    match (adaptive, latent.number("target_confidence", 0.5..=1.0)?) {
        (Some(false), Some(_)) => {
            Err(latent.error("adaptive", "adaptive contradicts target_confidence; omit one"))
        }
        (_, Some(value)) => Confidence::new(value).ok_or_else(wrong).map(Some),
        (Some(true), None) => Ok(Confidence::new(DEFAULT_CONFIDENCE)),
        (None | Some(false), None) => Ok(None),
    }
}

/// The model of a body, without rule and budget in its name.
fn read_model(body: &mut Value, default: Option<&str>) -> Result<String, ApiError> {
    let given = Fields::of_body(body)?.text("model")?.map(str::to_owned);
    let Some(name) = given.or_else(|| default.map(str::to_owned)) else {
        return Err(ApiError::field("model", "model is required: the name of an upstream model"));
    };
    // Upstream model names may contain an @.
    let suffixed = name.rsplit_once('@');
    let budget =
        suffixed.and_then(|(model, suffix)| Some((model, NamedBudget::parse(suffix).ok()?)));
    match budget {
        Some((model, budget)) => {
            budget.write(body)?;
            Ok(model.to_owned())
        }
        None => Ok(name),
    }
}

/// A request in progress.
struct GatewayRun {
    state: Arc<AppState>,
    upstream: Arc<Upstream>,
    request: GatewayRequest,
    trace: Option<Arc<RequestTrace>>,
    id: String,
    start: Instant,
    tasks: JoinSet<(usize, Result<Completion, UpstreamError>)>,
    /// Number of started completions.
    started: usize,
    /// In order of their numbers.
    trajectories: Vec<Trajectory>,
    /// Parallel to `trajectories`.
    completions: Vec<Completion>,
    errors: Vec<UpstreamError>,
    stopped: Option<StopReason>,
    _guards: (QueuedCompletions, ActiveRequest),
}

impl GatewayRun {
    fn new(
        state: &Arc<AppState>,
        upstream: &Arc<Upstream>,
        request: GatewayRequest,
        guards: (QueuedCompletions, ActiveRequest),
    ) -> Self {
        Self {
            state: Arc::clone(state),
            upstream: Arc::clone(upstream),
            request,
            trace: traces::current(),
            id: format!("chatcmpl-{}", state.new_id()),
            start: Instant::now(),
            tasks: JoinSet::new(),
            started: 0,
            trajectories: Vec::new(),
            completions: Vec::new(),
            errors: Vec::new(),
            stopped: None,
            _guards: guards,
        }
    }

    /// The index of the next completion in `trajectories`; `None` if there are no more.
    async fn next(&mut self) -> Result<Option<usize>, ApiError> {
        loop {
            if self.tasks.is_empty() && !self.start_round() {
                return Ok(None);
            }
            let limit = match self.request.vote_at {
                Some(vote_at) if !self.trajectories.is_empty() => vote_at,
                _ => self.request.deadline,
            };
            let joined = tokio::time::timeout_at(limit.into(), self.tasks.join_next()).await;
            let Ok(joined) = joined else {
                // Dropping the set drops waiting tasks; running calls end on their own.
                self.tasks = JoinSet::new();
                if self.trajectories.is_empty() {
                    return Err(ApiError::deadline((limit - self.start).as_secs_f64()));
                }
                self.stopped = Some(StopReason::Deadline);
                return Ok(None);
            };
            match joined {
                Some(Ok((number, Ok(completion)))) => {
                    return Ok(Some(self.add(number, completion)));
                }
                Some(Ok((_, Err(error)))) => self.fail(error)?,
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Starts the next completions; returns false if there are none left or the vote is decided.
    fn start_round(&mut self) -> bool {
        let left = self.request.samples - self.started;
        self.stopped = self.stopped.or_else(|| self.decided(left));
        if left == 0 || self.stopped.is_some() {
            return false;
        }
        let round = match self.request.confidence {
            Some(_) => self.started.max(AdaptiveSampling::FIRST_ROUND).min(left),
            None => left,
        };
        for number in self.started..self.started + round {
            let body = self.request.completion_body(number);
            let (upstream, deadline) = (Arc::clone(&self.upstream), self.request.deadline);
            let trace = self.trace.clone();
            self.tasks.spawn(async move {
                let start = SystemTime::now();
                let completed = upstream.complete(body, deadline).await;
                if let Some(trace) = trace {
                    let error = completed.as_ref().err().map(ToString::to_string);
                    trace.upstream(start, number, error.as_deref());
                }
                (number, completed)
            });
        }
        self.started += round;
        true
    }

    /// The reason why no further completion is needed, if any.
    fn decided(&self, left: usize) -> Option<StopReason> {
        let confidence = self.request.confidence.filter(|_| left > 0)?;
        let mut votes: Vec<usize> =
            aggregate::votes(&self.trajectories).iter().map(|answer| answer.votes).collect();
        votes.sort_unstable_by(|a, b| b.cmp(a));
        let leader = *votes.first()?;
        let runner_up = votes.get(1).copied().unwrap_or(0);
        if leader > runner_up + left {
            return Some(StopReason::Certain);
        }
        let is_sure = lead_probability(leader, runner_up) >= confidence.get();
        (confidence.get() < 1.0 && is_sure).then_some(StopReason::Confident)
    }

    fn add(&mut self, number: usize, completion: Completion) -> usize {
        let metrics = &self.state.metrics;
        if self.trajectories.is_empty() {
            metrics.first_token.observe(self.start.elapsed().as_secs_f64());
        }
        metrics.prompt_tokens.inc_by(completion.prompt_tokens as u64);
        metrics.generation_tokens.inc_by(completion.completion_tokens as u64);
        let trajectory = Trajectory {
            number: number as u32,
            answer: self.request.search.extract(&completion.text),
            text: completion.text.clone(),
            logprob: completion.logprob,
            ..Trajectory::default()
        };
        let index = self.trajectories.partition_point(|t| t.number < trajectory.number);
        self.trajectories.insert(index, trajectory);
        self.completions.insert(index, completion);
        index
    }

    /// Records an error. An error that all completions would have ends the request.
    fn fail(&mut self, error: UpstreamError) -> Result<(), ApiError> {
        if let UpstreamError::Status { status: status @ 400..=499, .. } = error
            && !matches!(status, 408 | 409 | 429)
            && self.trajectories.is_empty()
        {
            return Err(ApiError::upstream(&error));
        }
        self.errors.push(error);
        Ok(())
    }

    /// Waits for all completions and returns the complete reply.
    async fn finish(mut self) -> Result<Value, ApiError> {
        while self.next().await?.is_some() {}
        let (text, finish_reason, latent) = self.vote()?;
        let message = json!({ "role": "assistant", "content": text, "refusal": null });
        Ok(json!({
            "id": self.id,
            "object": "chat.completion",
            "created": unix_seconds(),
            "model": self.request.model,
            "choices": [{
                "index": 0,
                "message": message,
                "logprobs": null,
                "finish_reason": finish_reason,
                "latent": latent,
            }],
            "usage": usage_json(self.completions.iter()),
        }))
    }

    /// The selected text, its finish reason, and the vote.
    fn vote(&self) -> Result<(String, String, Value), ApiError> {
        let Some(last) = self.errors.last().filter(|_| self.trajectories.is_empty()) else {
            return self.vote_over_all();
        };
        Err(ApiError::upstream(last))
    }

    fn vote_over_all(&self) -> Result<(String, String, Value), ApiError> {
        let all = &self.trajectories;
        let mut notes = self.request.notes.clone();
        if let Some(last) = self.errors.last() {
            let (failed, asked) = (self.errors.len(), self.started);
            notes.push(format!(
                "{failed} of {asked} completions failed and did not vote; last error: {last}"
            ));
        }
        let applies = self.request.rule.applies(all, &Default::default());
        let rule = if applies { self.request.rule } else { Rule::MAJORITY };
        if !applies {
            notes
                .push("the upstream returns no log-probabilities; used majority voting".to_owned());
        }
        let chosen = rule.choose(all, &Default::default());
        // If no completion has an answer, there is nothing to vote on; the first text is returned.
        let index = chosen.unwrap_or(0);
        let completion = self.completions.get(index).cloned().unwrap_or_default();
        let votes = aggregate::votes(all);
        let mut latent = json!({
            "seed": self.request.seed,
            "samples": all.len(),
            "requested": self.request.samples,
            "failed": self.errors.len(),
            "rule": rule.name(),
            "chosen": chosen.map(|index| all[index].number),
            "answer": chosen.and_then(|index| all[index].answer.as_ref().map(Answer::as_str)),
            "confidence": lead_confidence(&votes),
            "votes": self.votes_json(&votes),
            "stopped": self.stopped.map(|reason| EarlyStop {
                requested: u32::try_from(self.request.samples).unwrap_or(u32::MAX),
                reason,
            }),
        });
        if !notes.is_empty() {
            latent["notes"] = json!(notes);
        }
        if self.request.returns_trajectories {
            latent["trajectories"] = all.iter().map(trajectory_json).collect();
        }
        self.state.metrics.latency.observe(self.start.elapsed().as_secs_f64());
        self.state.metrics.count_choice(&completion.finish_reason);
        Ok((completion.text, completion.finish_reason, latent))
    }

    /// All answers with their votes and the 95% confidence interval of their share.
    fn votes_json(&self, votes: &[AnswerVotes<'_>]) -> Value {
        let all = &self.trajectories;
        let vote = |answer: &AnswerVotes<'_>| {
            let is_same =
                |t: &Trajectory| t.answer.as_ref().is_some_and(|own| own.as_str() == answer.answer);
            let shares: Vec<f64> = all.iter().map(|t| f64::from(u8::from(is_same(t)))).collect();
            let share = Interval::of_share(&shares);
            json!({
                "answer": answer.answer,
                "votes": answer.votes,
                "share": share.map(|share| json!({
                    "value": share.value, "low": share.low, "high": share.high,
                })),
            })
        };
        votes.iter().map(vote).collect()
    }
}

/// The probability that the leading answer is more likely than the runner-up.
fn lead_confidence(votes: &[AnswerVotes<'_>]) -> Value {
    let mut counts: Vec<usize> = votes.iter().map(|answer| answer.votes).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let Some(leader) = counts.first() else { return Value::Null };
    json!(lead_probability(*leader, counts.get(1).copied().unwrap_or(0)))
}

fn trajectory_json(of: &Trajectory) -> Value {
    json!({
        "index": of.number,
        "text": of.text,
        "answer": of.answer.as_ref().map(Answer::as_str),
        "logprob": of.logprob,
    })
}

fn respond_streaming(run: GatewayRun) -> Response {
    let events = stream::unfold(GatewayStream::new(run), |mut stream| async {
        let data = stream.next().await?;
        Some((Ok::<_, Infallible>(SseEvent::default().data(data)), stream))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

/// A stream in progress: one chunk per completion, then the selected text.
struct GatewayStream {
    run: GatewayRun,
    created: u64,
    ready: VecDeque<String>,
    end: Option<&'static str>,
}

impl GatewayStream {
    fn new(run: GatewayRun) -> Self {
        let (created, ready) = (unix_seconds(), VecDeque::new());
        let mut stream = Self { run, created, ready, end: None };
        stream.push(json!({ "role": "assistant", "content": "" }), Value::Null, Value::Null);
        stream
    }

    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Some(data);
            }
            if self.end.is_some() {
                return None;
            }
            let taken = match self.run.next().await {
                Ok(Some(index)) => {
                    self.progress(index);
                    Ok(())
                }
                Ok(None) => self.complete(),
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                self.ready.push_back(error.to_json().to_string());
                self.end = Some("error");
            }
        }
    }

    fn progress(&mut self, index: usize) {
        let votes = aggregate::votes(&self.run.trajectories);
        let leader = aggregate::leader(&votes).map(|leader| leader.answer);
        let latent = json!({
            "trajectory": trajectory_json(&self.run.trajectories[index]),
            "votes": self.run.votes_json(&votes),
            "leader": leader,
        });
        self.push(json!({}), Value::Null, latent);
    }

    fn complete(&mut self) -> Result<(), ApiError> {
        let (text, finish_reason, latent) = self.run.vote()?;
        self.push(json!({ "content": text }), Value::Null, Value::Null);
        self.push(json!({}), json!(finish_reason), latent);
        if self.run.request.include_usage {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage_json(self.run.completions.iter());
            self.ready.push_back(chunk.to_string());
        }
        self.ready.push_back("[DONE]".to_owned());
        self.end = Some("completed");
        Ok(())
    }

    fn push(&mut self, delta: Value, finish_reason: Value, latent: Value) {
        let mut choice = json!({ "index": 0, "delta": delta, "finish_reason": finish_reason });
        if !latent.is_null() {
            choice["latent"] = latent;
        }
        let chunk = self.chunk(json!([choice]));
        self.ready.push_back(chunk.to_string());
    }

    fn chunk(&self, choices: Value) -> Value {
        json!({
            "id": self.run.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.run.request.model,
            "choices": choices,
        })
    }
}

impl Drop for GatewayStream {
    fn drop(&mut self) {
        let end = self.end.filter(|_| self.ready.is_empty()).unwrap_or("client_disconnected");
        self.run.state.metrics.count_stream(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_where_models_write_it() {
        for (text, expected) in [
            ("So \\boxed{42}, not 7.", Some("42")),
            ("Thus\n#### 7", Some("7")),
            ("Answer: 7", Some("7")),
            ("It is 6 or rather 7.", Some("7")),
            ("no idea", None),
        ] {
            let found = AnswerSearch::Number.extract(text);
            let found = found.as_ref().map(Answer::as_str);
            assert_eq!(found, expected, "{text}");
        }
        let letter = AnswerSearch::Choice.extract("The answer is (B).");
        assert_eq!(letter.as_ref().map(Answer::as_str), Some("B"));
    }
}
