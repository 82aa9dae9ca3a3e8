//! A request's prompts on the engine: submitted together, cancelled when the client goes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::scheduler::{Event, Submission};
use engine::{CancelToken, EngineError, Prompt, Reply, Request, TokenScore};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

use crate::error::ApiError;
use crate::generation::Generation;
use crate::reply::{Choice, ReplyReader, Usage};
use crate::state::{ActiveRequest, AppState};

/// Cancels a request when its handler or its stream is dropped: the client is gone.
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

    /// What a request that was cancelled on the engine is told.
    fn cancelled(&self) -> ApiError {
        if self.start.elapsed() >= self.timeout {
            ApiError::deadline(self.timeout.as_secs_f64())
        } else {
            ApiError::draining()
        }
    }

    /// Waits no longer than to the deadline; the engine looks at it only between passes.
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

/// Prompts that run.
pub(crate) struct RunningRequest {
    state: Arc<AppState>,
    pub(crate) generation: Generation,
    /// Tokens and seed of each prompt.
    prompts: Vec<(usize, u64)>,
    events: UnboundedReceiver<(usize, Event)>,
    deadline: Deadline,
    is_queued: bool,
    has_first: bool,
    _cancel: CancelOnDrop,
    _active: ActiveRequest,
}

impl RunningRequest {
    /// Submits the prompts, all or none.
    pub(crate) fn start(
        state: &Arc<AppState>,
        generation: Generation,
        prompts: Vec<Prompt>,
        deadline: Deadline,
    ) -> Result<Self, ApiError> {
        let active = ActiveRequest::new(state);
        if state.is_draining() {
            return Err(ApiError::draining());
        }
        let cancel = CancelToken::with_timeout(deadline.timeout);
        let (sender, events) = unbounded_channel();
        let options = generation.event_options();
        let mut of_prompts = Vec::with_capacity(prompts.len());
        let submit = |(i, prompt): (usize, Prompt)| {
            let params = generation.params(&prompt);
            of_prompts.push((prompt.tokens.len(), params.seed));
            let (cancel, lens) = (cancel.clone(), generation.inspection.lens);
            let request = Request { cancel, lens, ..Request::new("", params) };
            let sender = sender.clone();
            // A receiver that is gone has cancelled the request.
            let tell = move |event| drop(sender.send((i, event)));
            Submission::generate(prompt, request, tell).with_options(options)
        };
        let submissions: Vec<Submission> = prompts.into_iter().enumerate().map(submit).collect();
        let submitted = state.scheduler.submit_all(submissions);
        submitted.map_err(ApiError::submit)?;
        Ok(Self {
            state: Arc::clone(state),
            generation,
            prompts: of_prompts,
            events,
            deadline,
            is_queued: true,
            has_first: false,
            _cancel: CancelOnDrop(cancel),
            _active: active,
        })
    }

    pub(crate) fn num_prompts(&self) -> usize {
        self.prompts.len()
    }

    pub(crate) fn state(&self) -> &Arc<AppState> {
        &self.state
    }

    /// The next event and the prompt it is about. Every prompt ends with [`Event::Done`].
    pub(crate) async fn next(&mut self) -> Result<(usize, Event), ApiError> {
        let Some((prompt, event)) = self.deadline.wait(self.events.recv()).await? else {
            return Err(ApiError::internal("the engine has stopped; its log says why"));
        };
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

    /// The choices and the tokens of a prompt that is done.
    pub(crate) fn finish(
        &self,
        prompt: usize,
        done: Result<Box<Reply>, EngineError>,
    ) -> Result<(Vec<Choice>, Usage), ApiError> {
        let reply = done.map_err(|error| self.deadline.error(error))?;
        let usage = Usage::of(self.prompts[prompt].0, &reply);
        let choices = match self.generation.inspection.map {
            None => self.reader(prompt).choices(&reply),
            // A map takes a while: other requests must not wait for it.
            Some(_) => tokio::task::block_in_place(|| self.reader(prompt).choices(&reply)),
        };
        let metrics = &self.state.metrics;
        choices.iter().for_each(|choice| metrics.count_choice(choice.finish_reason));
        metrics.prompt_tokens.inc_by(usage.prompt as u64);
        metrics.generation_tokens.inc_by(usage.completion() as u64);
        Ok((choices, usage))
    }

    pub(crate) fn reader(&self, prompt: usize) -> ReplyReader<'_> {
        let eos = &self.state.reasoner().method.eos;
        ReplyReader { generation: &self.generation, eos, seed: self.prompts[prompt].1 }
    }

    /// Called when the last prompt is done.
    pub(crate) fn complete(&self) {
        self.state.metrics.latency.observe(self.deadline.start.elapsed().as_secs_f64());
    }

    /// Waits for all prompts: their choices in order, and the tokens of all.
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

/// Scores the tokens of some prompts, in their order.
pub(crate) async fn score_all(
    state: &Arc<AppState>,
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
    let submitted = state.scheduler.submit_all(submissions);
    submitted.map_err(ApiError::submit)?;
    let mut scores = Vec::new();
    for receiver in receivers {
        let stopped = |_| ApiError::internal("the engine has stopped; its log says why");
        let scored = deadline.wait(receiver).await?.map_err(stopped)?;
        scores.push(scored.map_err(|error| deadline.error(error))?);
    }
    state.metrics.latency.observe(deadline.start.elapsed().as_secs_f64());
    Ok(scores)
}
