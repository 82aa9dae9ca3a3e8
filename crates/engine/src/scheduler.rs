//! Continuous batching: requests arrive at any time, and their sequences join the next forward
//! step.
//!
//! ```text
//! submit -> queue (bounded in sequences) -> SequenceBatch: admit, step, leave -> events
//! ```
//!
//! One thread owns the models' caches and runs steps while there are sequences: `batch` admits and
//! advances them, `source` defines its interface to a request, `requests` scores and votes, and
//! `token_scores` computes log-likelihoods between the steps. Admission is first come, first
//! served, and waits for KV memory; a cancelled or timed-out request leaves at the next step. A
//! request's output does not depend on the other requests: it equals that of [`Engine::solve`], to
//! the bit on a CPU.
//!
//! A request with a beam search runs alone, as a closed batch, once the batch has drained, because
//! a search uses the caches in a different order.

mod batch;
mod job;
mod prefix_cache;
mod rate;
mod requests;
mod source;
#[cfg(test)]
mod tests;
mod token_scores;

use std::collections::VecDeque;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::executor::Lookahead;
use crate::logprobs::{self, TokenScore};
use crate::prompt::Prompt;
use crate::reply::{Output, Trajectory};
use crate::request::{CancelToken, Request};
use crate::score::Rewards;
use job::{CompletedRequest, Job};
use rate::RowRate;
use requests::RunningRequests;
use token_scores::{SCORED_POSITIONS, TokenJob};

/// The events of a request, in this order.
#[derive(Debug)]
pub enum Event {
    /// Its sequences join the batch.
    Started,
    /// An answer token of a sampled trajectory, if requested. The tokens of a trajectory arrive in
    /// order.
    Token {
        /// Index of the trajectory within the request.
        number: u32,
        /// The token's index in the answer, from 0.
        position: usize,
        /// The token id; the last one may be an EOS token.
        token: u32,
    },
    /// A sampled trajectory is complete; its rewards follow in a separate event. Only sent for
    /// requests of more than one sample.
    Trajectory(Box<Trajectory>),
    /// A trajectory was scored.
    Rewards {
        /// Index of the trajectory within the request.
        number: u32,
        /// Its rewards.
        rewards: Rewards,
    },
    /// The last event.
    Done(Result<Box<Output>, EngineError>),
}

/// The events that a request receives, and the contents of its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventOptions {
    /// Send [`Event::Trajectory`] and [`Event::Rewards`]; otherwise only the start and the end are
    /// sent.
    pub progress: bool,
    /// Copy thoughts from the device; otherwise `latents` of trajectories and the diversity of the
    /// output are empty.
    pub latents: bool,
    /// Send answer tokens one by one; see [`Event::Token`].
    pub tokens: bool,
}

impl Default for EventOptions {
    fn default() -> Self {
        Self { progress: true, latents: true, tokens: false }
    }
}

/// The reason that a request was rejected.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The request cannot be run.
    #[error(transparent)]
    Refused(#[from] EngineError),
    /// It has more sequences than the queue holds.
    #[error("{rows} trajectories exceed the queue limit of {limit}; request fewer")]
    TooManySequences {
        /// The request's sequences.
        rows: usize,
        /// The queue limit, in sequences.
        limit: usize,
    },
    /// The queue is full.
    #[error("queue full ({waiting} of {limit} trajectories); retry later")]
    QueueFull {
        /// Sequences in the queue.
        waiting: usize,
        /// The queue limit, in sequences.
        limit: usize,
        /// Estimated time until there is room; `None` before any request has finished.
        retry_after: Option<Duration>,
    },
    /// The scheduler accepts no further requests.
    #[error("the engine is shutting down")]
    Closed,
}

/// Load statistics of the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Requests with sequences in the batch.
    pub running_requests: usize,
    /// Requests in the queue.
    pub waiting_requests: usize,
    /// Sequences in the batch.
    pub running_sequences: usize,
    /// Sequences of the requests in the queue.
    pub waiting_sequences: usize,
    /// Reserved KV slots.
    pub used_slots: usize,
    /// Total KV slots.
    pub slots: usize,
    /// Slots of cached prompt prefixes, retained for requests that begin with the same tokens.
    pub prefix_slots: usize,
    /// Total prompt tokens that the sequences of a request share.
    pub prompt_tokens: u64,
    /// The part of `prompt_tokens` that was found in the prefix cache.
    pub cached_prompt_tokens: u64,
    /// Number of forward steps so far.
    pub passes: u64,
}

/// Runs requests on its own thread. Dropping it cancels the remaining requests.
pub struct Scheduler {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

struct Shared {
    engine: Engine,
    /// Queue limit, in sequences.
    max_waiting_sequences: usize,
    state: Mutex<QueueState>,
    arrived: Condvar,
    stop: CancelToken,
}

#[derive(Default)]
struct QueueState {
    requests: VecDeque<Box<Job>>,
    /// Queued scoring jobs by submission; submissions take turns.
    tokens: VecDeque<VecDeque<TokenJob>>,
    stats: SchedulerStats,
    rate: RowRate,
    closed: bool,
}

/// A request or scoring job that has not been submitted yet.
pub struct Submission(Work);

impl Submission {
    /// A request with an explicit prompt; its `question` is ignored. `events` is called on the
    /// engine's thread and must not block.
    pub fn generate(
        prompt: Prompt,
        request: Request,
        events: impl FnMut(Event) + Send + 'static,
    ) -> Self {
        Self(Work::Generate(Box::new(Job::new(request, prompt, Box::new(events)))))
    }

    /// Sets the event options; data that is not requested is not computed.
    #[must_use]
    pub fn with_options(mut self, options: EventOptions) -> Self {
        if let Work::Generate(job) = &mut self.0 {
            job.options = options;
        }
        self
    }

    /// Scores tokens as [`Engine::score_tokens`] does, in bounded parts between the steps of the
    /// batch. Submissions take turns.
    pub fn score(
        tokens: Vec<u32>,
        cancel: CancelToken,
        done: impl FnOnce(Result<Vec<TokenScore>, EngineError>) + Send + 'static,
    ) -> Self {
        Self(Work::Score(TokenJob { tokens, cancel, done: Box::new(done) }))
    }
}

/// An entry of the queue.
enum Work {
    Generate(Box<Job>),
    Score(TokenJob),
}

impl Work {
    fn rows(&self) -> usize {
        match self {
            Self::Generate(job) => job.rows(),
            Self::Score(_) => 1,
        }
    }

    fn cancelled(self) {
        let id = match &self {
            Self::Generate(job) => job.request.id,
            Self::Score(_) => 0,
        };
        self.fail(EngineError::Cancelled { id });
    }

    fn fail(self, error: EngineError) {
        match self {
            Self::Generate(job) => job.fail(error),
            Self::Score(job) => (job.done)(Err(error)),
        }
    }
}

impl Scheduler {
    /// Starts the engine's thread. At most `max_waiting_sequences` sequences wait in addition to
    /// those that run.
    pub fn start(engine: Engine, max_waiting_sequences: usize) -> Self {
        Self::start_with(engine, max_waiting_sequences, Lookahead::WhileComputed)
    }

    /// The same, but also schedules one step ahead on a CPU, where this brings no speedup. Results
    /// are identical; for tests.
    pub fn start_looking_ahead(engine: Engine, max_waiting_sequences: usize) -> Self {
        Self::start_with(engine, max_waiting_sequences, Lookahead::Always)
    }

    fn start_with(engine: Engine, max_waiting_sequences: usize, lookahead: Lookahead) -> Self {
        let shared = Arc::new(Shared {
            engine,
            max_waiting_sequences,
            state: Mutex::default(),
            arrived: Condvar::new(),
            stop: CancelToken::default(),
        });
        let worker = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.run(lookahead)
        });
        Self { shared, worker: Some(worker) }
    }

    /// The engine that runs the requests.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// Submits a request. `events` is called on the engine's thread and must not block. The last
    /// event is [`Event::Done`].
    pub fn submit(
        &self,
        request: Request,
        events: impl FnMut(Event) + Send + 'static,
    ) -> Result<(), SubmitError> {
        let prompt = Prompt::new(self.engine().reasoner(), request.id, &request.question)?;
        self.submit_all(vec![Submission::generate(prompt, request, events)])
    }

    /// Accepts all submissions, or none of them.
    pub fn submit_all(&self, submissions: Vec<Submission>) -> Result<(), SubmitError> {
        let admitted = submissions.into_iter().map(|submission| self.admit(submission.0));
        let work: Vec<Work> = admitted.collect::<Result<_, _>>()?;
        let rows = work.iter().map(Work::rows).sum();
        let limit = self.shared.max_waiting_sequences;
        if rows > limit {
            return Err(SubmitError::TooManySequences { rows, limit });
        }
        let mut state = self.shared.lock();
        if state.closed || !self.is_alive() {
            return Err(SubmitError::Closed);
        }
        let waiting = state.stats.waiting_sequences;
        if waiting + rows > limit {
            let retry_after = state.rate.time_for(waiting + rows - limit);
            return Err(SubmitError::QueueFull { waiting, limit, retry_after });
        }
        state.extend(work);
        state.count_waiting();
        self.shared.arrived.notify_one();
        Ok(())
    }

    /// Rejects work that cannot be run. Accepted work is cancelled with the scheduler.
    fn admit(&self, mut work: Work) -> Result<Work, EngineError> {
        let engine = self.engine();
        let stop = &self.shared.stop;
        match &mut work {
            Work::Generate(job) => {
                engine.check_item(&job.item(), RunningRequests::memory(engine))?;
                job.request.cancel = job.request.cancel.joined(stop);
            }
            Work::Score(job) => {
                logprobs::check_tokens(&engine.reasoner().model, &job.tokens)?;
                job.cancel = job.cancel.joined(stop);
            }
        }
        Ok(work)
    }

    /// Current load statistics.
    pub fn stats(&self) -> SchedulerStats {
        self.shared.lock().stats
    }

    /// Whether the engine's thread is running: it ends only after [`close`](Self::close), or by a
    /// panic.
    pub fn is_alive(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| !worker.is_finished())
    }

    /// Accepts no further requests. Accepted ones are completed.
    pub fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.arrived.notify_one();
    }

    /// Cancels every request.
    pub fn cancel_all(&self) {
        self.shared.stop.cancel();
        self.shared.arrived.notify_one();
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.close();
        self.cancel_all();
        if let Some(worker) = self.worker.take() {
            // The thread has already printed its panic; it cannot be propagated from here.
            let _ = worker.join();
        }
    }
}

impl QueueState {
    /// Adds the work of one submission.
    fn extend(&mut self, work: Vec<Work>) {
        let mut tokens = VecDeque::new();
        for work in work {
            match work {
                Work::Generate(job) => self.requests.push_back(job),
                Work::Score(job) => tokens.push_back(job),
            }
        }
        self.tokens.extend((!tokens.is_empty()).then_some(tokens));
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.tokens.is_empty()
    }

    fn count_waiting(&mut self) {
        let tokens: usize = self.tokens.iter().map(VecDeque::len).sum();
        self.stats.waiting_requests = self.requests.len() + tokens;
        self.stats.waiting_sequences =
            self.requests.iter().map(|job| job.rows()).sum::<usize>() + tokens;
    }

    /// Removes work that was cancelled while it waited.
    fn remove_cancelled(&mut self) -> Vec<Work> {
        let (removed, kept): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.requests).into_iter().partition(|job| job.is_cancelled());
        self.requests = kept;
        let mut removed: Vec<Work> = removed.into_iter().map(Work::Generate).collect();
        for jobs in &mut self.tokens {
            let (cancelled, kept): (VecDeque<TokenJob>, _) =
                std::mem::take(jobs).into_iter().partition(|job| job.cancel.is_cancelled());
            *jobs = kept;
            removed.extend(cancelled.into_iter().map(Work::Score));
        }
        self.tokens.retain(|jobs| !jobs.is_empty());
        removed
    }

    /// The first request, if there is room for it, or if there never will be.
    fn next_request(&mut self, running: &RunningRequests<'_>) -> Option<Box<Job>> {
        let job = self.requests.front()?;
        let fits = !job.runs_alone() && running.has_room(job);
        if fits || running.is_empty() { self.requests.pop_front() } else { None }
    }

    /// The next scoring jobs: up to the size of one part, one from each submission in turn.
    fn next_tokens(&mut self, running: &RunningRequests<'_>) -> Vec<TokenJob> {
        let mut next = Vec::new();
        // A request that runs alone waits only for running requests, not for later ones.
        let drains = self.requests.front().is_some_and(|job| job.runs_alone());
        if drains || !running.accepts_tokens() {
            return next;
        }
        let mut positions = 0;
        while positions < SCORED_POSITIONS {
            let Some(mut jobs) = self.tokens.pop_front() else { break };
            if let Some(job) = jobs.pop_front() {
                positions += job.tokens.len();
                next.push(job);
            }
            self.tokens.extend((!jobs.is_empty()).then_some(jobs));
        }
        next
    }
}

/// Closes the queue when the engine's thread ends, including by a panic: waiting work is dropped,
/// together with its event closures.
struct CloseOnExit<'a>(&'a Shared);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        let requests = std::mem::take(&mut state.requests);
        let tokens = std::mem::take(&mut state.tokens);
        state.count_waiting();
        drop(state);
        drop((requests, tokens));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine's thread: runs steps while there are sequences, else waits for requests. Outputs
    /// are assembled on another thread: on one core, decoding answers takes as long as computing
    /// them on a GPU.
    fn run(&self, lookahead: Lookahead) {
        let _close = CloseOnExit(self);
        let (sender, receiver) = channel::<CompletedRequest>();
        std::thread::scope(|scope| {
            scope.spawn(|| receiver.into_iter().for_each(|done| done.reply(&self.engine)));
            let mut running = RunningRequests::new(&self.engine, sender, lookahead);
            let mut passes = 0;
            while self.take_work(&mut running, passes) {
                let start = Instant::now();
                if let Err(error) = running.step() {
                    running.recover(&error);
                }
                self.lock().rate.add(running.num_finished, start.elapsed());
                passes += 1;
            }
        });
    }

    /// Admits requests as far as there is room. Waits while there is nothing to do; returns false
    /// when no work will follow.
    fn take_work(&self, running: &mut RunningRequests<'_>, passes: u64) -> bool {
        loop {
            let mut state = self.lock();
            let removed = state.remove_cancelled();
            let next = state.next_request(running);
            let tokens = state.next_tokens(running);
            state.count_waiting();
            state.stats = SchedulerStats { passes, ..running.stats(state.stats) };
            let idle = removed.is_empty() && next.is_none() && tokens.is_empty();
            if idle && running.is_empty() {
                if state.closed && state.is_empty() {
                    return false;
                }
                drop(self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            drop(state);
            removed.into_iter().for_each(Work::cancelled);
            tokens.into_iter().for_each(|job| running.score_tokens(job));
            match next {
                Some(job) => self.start(*job, running),
                None if idle => return true,
                None => {}
            }
        }
    }

    fn start(&self, job: Job, running: &mut RunningRequests<'_>) {
        if job.runs_alone() {
            running.release_caches();
            job.solve_alone(&self.engine);
        } else if running.has_room(&job) {
            running.join(job);
        } else {
            // Only after the device turned out to have less memory than budgeted.
            let why = "not enough device memory for this request".to_owned();
            job.fail(EngineError::PassFailed { why });
        }
    }
}
