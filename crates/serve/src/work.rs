//! Runs a request's prompts on the engine: submitted together, cancelled when the client
//! disconnects.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::scheduler::{Event, Submission};
use engine::{CancelToken, EngineError, Output, Prompt, Request, TokenScore};
use latent_tts::apply_scorer;
use model::Tokenizer;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use crate::answer_format::AnswerFormat;
use crate::budget::PartialReplies;
use crate::error::ApiError;
use crate::generation::Generation;
use crate::models::ServedModel;
use crate::reply::{Choice, ReplyReader, Usage};
use crate::state::{ActiveRequest, AppState};
use crate::traces::StageSpans;

/// Cancels a request when its handler or stream is dropped because the client disconnected.
struct CancelOnDrop(CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The deadline of a request.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    start: Instant,
    pub(crate) timeout: Duration,
}

impl Deadline {
    pub(crate) fn start(timeout: Duration) -> Self {
        Self { start: Instant::now(), timeout }
    }

    /// The time at which the deadline passes.
    pub(crate) fn instant(&self) -> Instant {
        self.start + self.timeout
    }

    /// The error for a request that was cancelled on the engine.
    fn cancelled(&self) -> ApiError {
        if self.start.elapsed() >= self.timeout {
            ApiError::deadline(self.timeout.as_secs_f64())
        } else {
            ApiError::draining()
        }
    }

    /// Waits at most until the deadline; the engine only checks it between steps.
    async fn wait<T>(&self, event: impl Future<Output = T>) -> Result<T, ApiError> {
        let left = self.timeout.saturating_sub(self.start.elapsed());
        let late = |_| ApiError::deadline(self.timeout.as_secs_f64());
        tokio::time::timeout(left, event).await.map_err(late)
    }

    fn error(&self, error: EngineError) -> ApiError {
        match error {
            EngineError::Cancelled { .. } => self.cancelled(),
            error => error.into(),
        }
    }
}

/// What is kept of a prompt while it runs.
struct SubmittedPrompt {
    /// The question, for a scorer.
    text: String,
    /// Number of tokens.
    tokens: usize,
    seed: u64,
}

/// Running prompts.
pub(crate) struct RunningRequest {
    state: Arc<AppState>,
    model: Arc<ServedModel>,
    pub(crate) generation: Generation,
    prompts: Vec<SubmittedPrompt>,
    events: UnboundedReceiver<(usize, Event)>,
    deadline: Deadline,
    is_queued: bool,
    has_first: bool,
    /// Per prompt, if the request is traced.
    stages: Vec<Option<StageSpans>>,
    /// Set if the completed trajectories vote at a deadline.
    partial: Option<PartialReplies>,
    /// Events of that vote.
    voted: VecDeque<(usize, Event)>,
    cancel: CancelOnDrop,
    _active: ActiveRequest,
}

impl RunningRequest {
    /// Submits all prompts, or none.
    pub(crate) fn start(
        state: &Arc<AppState>,
        model: &Arc<ServedModel>,
        generation: Generation,
        prompts: Vec<Prompt>,
        deadline: Deadline,
    ) -> Result<Self, ApiError> {
        let active = ActiveRequest::new(state);
        if state.is_draining() {
            return Err(ApiError::draining());
        }
        let has_rewards = model.engine().reward_model().is_some() || state.options.scorer.is_some();
        if let Some(rule) =
            generation.params.rule.filter(|rule| rule.needs().rewards && !has_rewards)
        {
            let message = format!("rule {rule} needs a reward model; this server has none");
            return Err(ApiError::field("latent.rule", message));
        }
        let cancel = CancelToken::with_timeout(deadline.timeout);
        let (sender, events) = unbounded_channel();
        let mut options = generation.event_options();
        let stages: Vec<Option<StageSpans>> = prompts.iter().map(|_| StageSpans::new()).collect();
        // Spans record when trajectories were complete.
        options.progress |= state.tracer.is_some();
        let mut of_prompts = Vec::with_capacity(prompts.len());
        let submit = |(i, prompt): (usize, Prompt)| {
            let params = generation.params(&prompt);
            let (text, tokens) = (prompt.text.clone(), prompt.tokens.len());
            of_prompts.push(SubmittedPrompt { text, tokens, seed: params.seed });
            let (cancel, lens) = (cancel.clone(), generation.inspection.lens);
            let answer_kind = generation.format.as_ref().map(AnswerFormat::answer_kind);
            let answer_kind = answer_kind.unwrap_or_default();
            let request = Request { cancel, lens, answer_kind, ..Request::new("", params) };
            let sender = sender.clone();
            // A dropped receiver has cancelled the request.
            let tell = move |event| drop(sender.send((i, event)));
            Submission::generate(prompt, request, tell).with_options(options)
        };
        let submissions: Vec<Submission> = prompts.into_iter().enumerate().map(submit).collect();
        let submitted = model.scheduler.submit_all(submissions);
        submitted.map_err(ApiError::submit)?;
        let soft = generation.deadline;
        let partial = soft.map(|soft| PartialReplies::new(deadline.start + soft, of_prompts.len()));
        Ok(Self {
            state: Arc::clone(state),
            model: Arc::clone(model),
            generation,
            prompts: of_prompts,
            events,
            deadline,
            is_queued: true,
            has_first: false,
            stages,
            partial,
            voted: VecDeque::new(),
            cancel: CancelOnDrop(cancel),
            _active: active,
        })
    }

    pub(crate) fn num_prompts(&self) -> usize {
        self.prompts.len()
    }

    pub(crate) fn state(&self) -> &Arc<AppState> {
        &self.state
    }

    /// The next event and its prompt. Every prompt ends with [`Event::Done`].
    pub(crate) async fn next(&mut self) -> Result<(usize, Event), ApiError> {
        let next = match self.voted.pop_front() {
            Some(voted) => Some(voted),
            None => self.receive().await?,
        };
        let Some((prompt, event)) = next else {
            return Err(ApiError::internal("the engine has stopped; see the log"));
        };
        if let Some(stages) = &mut self.stages[prompt] {
            stages.add(&event, self.model.scheduler.stats().passes);
        }
        let (metrics, seconds) = (&self.state.metrics, self.deadline.start.elapsed().as_secs_f64());
        if self.is_queued {
            self.is_queued = false;
            metrics.queue_time.observe(seconds);
        }
        if !self.has_first && !matches!(event, Event::Started) {
            self.has_first = true;
            metrics.first_token.observe(seconds);
        }
        Ok((prompt, event))
    }

    /// The next event of the engine or, after the deadline of the budget, of the vote over
    /// completed trajectories.
    async fn receive(&mut self) -> Result<Option<(usize, Event)>, ApiError> {
        loop {
            let Some(partial) = &mut self.partial else {
                return self.deadline.wait(self.events.recv()).await;
            };
            let left = partial.deadline.saturating_duration_since(Instant::now());
            let next = if partial.can_vote() || !left.is_zero() {
                tokio::time::timeout(left, self.events.recv()).await
            } else {
                // No trajectory is complete, so wait for the first one.
                Ok(self.deadline.wait(self.events.recv()).await?)
            };
            match next {
                Ok(Some((prompt, event))) => {
                    partial.add(prompt, &event);
                    return Ok(Some((prompt, event)));
                }
                Ok(None) => return Ok(None),
                Err(_) if partial.can_vote() => {
                    let rule = self.generation.params.rule;
                    let rule = rule.unwrap_or_else(|| self.model.engine().default_rule());
                    let replies = partial.take(&self.generation.params, rule);
                    let done = |(prompt, reply)| (prompt, Event::Done(Ok(Box::new(reply))));
                    self.voted.extend(replies.into_iter().map(done));
                    // Events of cancelled sequences are never read.
                    self.partial = None;
                    self.cancel.0.cancel();
                    return Ok(self.voted.pop_front());
                }
                Err(_) => {}
            }
        }
    }

    /// The choices and usage of a finished prompt.
    pub(crate) fn finish(
        &self,
        prompt: usize,
        done: Result<Box<Output>, EngineError>,
    ) -> Result<(Vec<Choice>, Usage), ApiError> {
        let mut reply = done.map_err(|error| self.deadline.error(error))?;
        self.score(prompt, &mut reply)?;
        if let Some(format) = &self.generation.format {
            format.apply(&mut reply, &self.generation.params);
        }
        let usage = Usage::of(self.prompts[prompt].tokens, &reply);
        let choices = match self.generation.inspection.map {
            None => self.reader(prompt).choices(&reply),
            // Computing a map takes time and must not delay other requests.
            Some(_) => tokio::task::block_in_place(|| self.reader(prompt).choices(&reply)),
        };
        let metrics = &self.state.metrics;
        choices.iter().for_each(|choice| metrics.count_choice(choice.finish_reason));
        self.count(usage);
        Ok((choices, usage))
    }

    /// Takes the rewards from the external scorer, if the server has one.
    fn score(&self, prompt: usize, reply: &mut Output) -> Result<(), ApiError> {
        let Some(scorer) = &self.state.options.scorer else { return Ok(()) };
        let text = &self.prompts[prompt].text;
        let params = &self.generation.params;
        // It waits for another server, while other threads continue with their requests.
        tokio::task::block_in_place(|| apply_scorer(scorer.0.as_ref(), text, params, reply))
            .map_err(|error| ApiError::scorer(error.to_string()))
    }

    /// Waits for the only prompt; returns its reply, usage and seed.
    pub(crate) async fn reply(mut self) -> Result<(Box<Output>, Usage, u64), ApiError> {
        loop {
            if let (prompt, Event::Done(done)) = self.next().await? {
                let reply = done.map_err(|error| self.deadline.error(error))?;
                let SubmittedPrompt { tokens, seed, .. } = self.prompts[prompt];
                let usage = Usage::of(tokens, &reply);
                self.count(usage);
                self.complete();
                return Ok((reply, usage, seed));
            }
        }
    }

    fn count(&self, usage: Usage) {
        let metrics = &self.state.metrics;
        metrics.prompt_tokens.inc_by(usage.prompt as u64);
        metrics.generation_tokens.inc_by(usage.completion() as u64);
    }

    /// The model's tokenizer.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.model.reasoner().tokenizer
    }

    pub(crate) fn reader(&self, prompt: usize) -> ReplyReader<'_> {
        let eos = &self.model.reasoner().method.eos;
        ReplyReader { generation: &self.generation, eos, seed: self.prompts[prompt].seed, prompt }
    }

    /// Called when the last prompt is finished.
    pub(crate) fn complete(&self) {
        self.state.metrics.latency.observe(self.deadline.start.elapsed().as_secs_f64());
    }

    /// Waits for all prompts; returns their choices in order, and the total usage.
    pub(crate) async fn collect(mut self) -> Result<(Vec<Choice>, Usage), ApiError> {
        let mut choices: Vec<Vec<Choice>> = vec![Vec::new(); self.num_prompts()];
        let (mut usage, mut left) = (Usage::default(), self.num_prompts());
        while left > 0 {
            if let (prompt, Event::Done(done)) = self.next().await? {
                let (own, of_prompt) = self.finish(prompt, done)?;
                choices[prompt] = own;
                usage.add(of_prompt);
                left -= 1;
            }
        }
        self.complete();
        Ok((choices.into_iter().flatten().collect(), usage))
    }
}

/// Scores the tokens of prompts, in order.
pub(crate) async fn score_all(
    state: &Arc<AppState>,
    model: &ServedModel,
    prompts: &[Vec<u32>],
    deadline: Deadline,
) -> Result<Vec<Vec<TokenScore>>, ApiError> {
    let _active = ActiveRequest::new(state);
    if state.is_draining() {
        return Err(ApiError::draining());
    }
    let cancel = CancelOnDrop(CancelToken::with_timeout(deadline.timeout));
    let (mut submissions, mut receivers) = (Vec::new(), Vec::new());
    for tokens in prompts {
        let (sender, receiver) = oneshot::channel();
        let done = move |scores| drop(sender.send(scores));
        submissions.push(Submission::score(tokens.clone(), cancel.0.clone(), done));
        receivers.push(receiver);
    }
    let submitted = model.scheduler.submit_all(submissions);
    submitted.map_err(ApiError::submit)?;
    let mut scores = Vec::new();
    for receiver in receivers {
        let stopped = |_| ApiError::internal("the engine has stopped; see the log");
        let scored = deadline.wait(receiver).await?.map_err(stopped)?;
        scores.push(scored.map_err(|error| deadline.error(error))?);
    }
    state.metrics.latency.observe(deadline.start.elapsed().as_secs_f64());
    Ok(scores)
}
