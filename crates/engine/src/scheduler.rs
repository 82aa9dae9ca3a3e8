//! Continuous batching: requests arrive at any time, and their rows join the next pass.
//!
//! ```text
//! submit -> queue (bounded in rows) -> ContinuousBatch: join, advance, leave -> events
//! ```
//!
//! One thread owns the models' caches and runs passes while there are rows (`batch`). Admission is
//! first come, first served, and waits for KV memory; a cancelled or timed-out request leaves at
//! the next pass. What a request gets does not depend on the others: its reply is that of
//! [`Engine::solve`], to the bit on a CPU.
//!
//! A request with a beam search runs by itself, as a wave, when the batch has drained: a search
//! uses the caches in an order of its own.

mod batch;
mod job;
mod rate;

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
use crate::reply::{Reply, Trajectory};
use crate::request::{CancelToken, Request};
use crate::score::Rewards;
use batch::ContinuousBatch;
use job::{CompletedRequest, Job};
use rate::RowRate;

/// What a request is told, in this order.
#[derive(Debug)]
pub enum Event {
    /// Its rows join the batch.
    Started,
    /// A sampled trajectory has its answer; rewards are told later. Only requests of more than one
    /// sample get these.
    Trajectory(Box<Trajectory>),
    /// A trajectory was scored.
    Rewards {
        /// The trajectory's number.
        number: u32,
        /// Its rewards.
        rewards: Rewards,
    },
    /// The last event.
    Done(Result<Box<Reply>, EngineError>),
}

/// What a request is told beside its reply, and what its reply holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventDetail {
    /// Trajectories and rewards are told as they come; without, only the start and the end are.
    pub progress: bool,
    /// Thoughts are copied from the device; without, `latents` of trajectories and the diversity of
    /// the reply are empty.
    pub latents: bool,
}

impl Default for EventDetail {
    fn default() -> Self {
        Self { progress: true, latents: true }
    }
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// It cannot be run at all.
    #[error(transparent)]
    Refused(#[from] EngineError),
    /// It has more rows than may ever wait.
    #[error("{rows} trajectories are more than the {limit} that may wait; ask for fewer")]
    TooManyRows {
        /// The request's rows.
        rows: usize,
        /// The most that may wait.
        limit: usize,
    },
    /// Too many rows wait already.
    #[error("{waiting} trajectories wait, and {limit} may; send the request again later")]
    QueueFull {
        /// Rows that wait.
        waiting: usize,
        /// The most that may wait.
        limit: usize,
        /// When there should be room; `None` before any request was finished.
        retry_after: Option<Duration>,
    },
    /// No further requests are taken.
    #[error("the engine is shutting down")]
    Closed,
}

/// What runs and what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Requests with rows in the batch.
    pub running_requests: usize,
    /// Requests in the queue.
    pub waiting_requests: usize,
    /// Rows in the batch.
    pub running_rows: usize,
    /// Rows of the requests in the queue.
    pub waiting_rows: usize,
    /// Slots of keys and values that are reserved.
    pub used_slots: usize,
    /// All slots of keys and values.
    pub slots: usize,
    /// Passes so far.
    pub passes: u64,
}

/// Runs requests on a thread of its own. Dropping it cancels what is left.
pub struct Scheduler {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

struct Shared {
    engine: Engine,
    /// The most rows that may wait.
    max_waiting_rows: usize,
    state: Mutex<QueueState>,
    arrived: Condvar,
    stop: CancelToken,
}

#[derive(Default)]
struct QueueState {
    queue: VecDeque<Work>,
    stats: SchedulerStats,
    rate: RowRate,
    closed: bool,
}

/// Something to be run, not taken yet.
pub struct Submission(Work);

impl Submission {
    /// A request with a prompt of its own, whose events are given to `events` on the engine's
    /// thread: it must not block. The request's question is not read.
    pub fn generate(
        prompt: Prompt,
        request: Request,
        events: impl FnMut(Event) + Send + 'static,
    ) -> Self {
        Self(Work::Generate(Box::new(Job::new(request, prompt, Box::new(events)))))
    }

    /// The same with less told; what is not asked for is not computed.
    #[must_use]
    pub fn with_detail(mut self, detail: EventDetail) -> Self {
        if let Work::Generate(job) = &mut self.0 {
            job.detail = detail;
        }
        self
    }

    /// Tokens to be scored as [`Engine::score_tokens`] does, between the passes of the batch.
    pub fn score(
        tokens: Vec<u32>,
        cancel: CancelToken,
        done: impl FnOnce(Result<Vec<TokenScore>, EngineError>) + Send + 'static,
    ) -> Self {
        Self(Work::Score(TokenJob { tokens, cancel, done: Box::new(done) }))
    }
}

/// What waits in the queue.
enum Work {
    Generate(Box<Job>),
    Score(TokenJob),
}

/// Tokens to be scored.
struct TokenJob {
    tokens: Vec<u32>,
    cancel: CancelToken,
    done: Box<dyn FnOnce(Result<Vec<TokenScore>, EngineError>) + Send>,
}

impl Work {
    fn rows(&self) -> usize {
        match self {
            Self::Generate(job) => job.rows(),
            Self::Score(_) => 1,
        }
    }

    fn is_cancelled(&self) -> bool {
        match self {
            Self::Generate(job) => job.is_cancelled(),
            Self::Score(job) => job.cancel.is_cancelled(),
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

    /// Whether it can be started beside what is in the batch.
    fn fits(&self, batch: &ContinuousBatch<'_>) -> bool {
        match self {
            Self::Generate(job) if job.request.params.beam.is_some() => batch.is_empty(),
            Self::Generate(job) => batch.has_room(job),
            Self::Score(job) => batch.has_slots(job.tokens.len()),
        }
    }
}

impl Scheduler {
    /// Starts the engine's thread. At most `max_waiting_rows` rows wait beside those that run.
    pub fn start(engine: Engine, max_waiting_rows: usize) -> Self {
        Self::start_with(engine, max_waiting_rows, Lookahead::WhileComputed)
    }

    /// The same, but on a processor, too, passes are queued before the tokens of the last one are
    /// read, which otherwise only a GPU gains by. What requests get is the same.
    pub fn start_looking_ahead(engine: Engine, max_waiting_rows: usize) -> Self {
        Self::start_with(engine, max_waiting_rows, Lookahead::Always)
    }

    fn start_with(engine: Engine, max_waiting_rows: usize, lookahead: Lookahead) -> Self {
        let shared = Arc::new(Shared {
            engine,
            max_waiting_rows,
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

    /// Takes a request, whose events are given to `events` on the engine's thread: it must not
    /// block. The last event is [`Event::Done`].
    pub fn submit(
        &self,
        request: Request,
        events: impl FnMut(Event) + Send + 'static,
    ) -> Result<(), SubmitError> {
        let prompt = Prompt::new(self.engine().reasoner(), request.id, &request.question)?;
        self.submit_all(vec![Submission::generate(prompt, request, events)])
    }

    /// Takes all submissions, or none of them.
    pub fn submit_all(&self, submissions: Vec<Submission>) -> Result<(), SubmitError> {
        let admitted = submissions.into_iter().map(|submission| self.admit(submission.0));
        let work: Vec<Work> = admitted.collect::<Result<_, _>>()?;
        let (rows, limit) = (work.iter().map(Work::rows).sum(), self.shared.max_waiting_rows);
        if rows > limit {
            return Err(SubmitError::TooManyRows { rows, limit });
        }
        let mut state = self.shared.lock();
        if state.closed || !self.is_alive() {
            return Err(SubmitError::Closed);
        }
        let waiting = state.stats.waiting_rows;
        if waiting + rows > limit {
            let retry_after = state.rate.time_for(waiting + rows - limit);
            return Err(SubmitError::QueueFull { waiting, limit, retry_after });
        }
        state.queue.extend(work);
        state.count_waiting();
        self.shared.arrived.notify_one();
        Ok(())
    }

    /// Refuses work that cannot be run. What is taken ends with the scheduler.
    fn admit(&self, mut work: Work) -> Result<Work, EngineError> {
        let (engine, stop) = (self.engine(), &self.shared.stop);
        match &mut work {
            Work::Generate(job) => {
                engine.check_item(&job.item(), ContinuousBatch::memory(engine))?;
                job.request.cancel = job.request.cancel.joined(stop);
            }
            Work::Score(job) => {
                logprobs::check_tokens(&engine.reasoner().model, &job.tokens)?;
                job.cancel = job.cancel.joined(stop);
            }
        }
        Ok(work)
    }

    /// What runs and waits now.
    pub fn stats(&self) -> SchedulerStats {
        self.shared.lock().stats
    }

    /// Whether the engine's thread runs: it ends only after [`close`](Self::close), or by a defect.
    pub fn is_alive(&self) -> bool {
        self.worker.as_ref().is_some_and(|worker| !worker.is_finished())
    }

    /// Takes no further requests. Those that were taken are run to their ends.
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
            // A panic was printed by the thread itself; there is no one to hand it to here.
            let _ = worker.join();
        }
    }
}

impl QueueState {
    fn count_waiting(&mut self) {
        self.stats.waiting_requests = self.queue.len();
        self.stats.waiting_rows = self.queue.iter().map(Work::rows).sum();
    }
}

/// Closes the queue when the engine's thread ends, by a panic, too: what waits is dropped, and
/// with it the closures that take its events.
struct CloseOnExit<'a>(&'a Shared);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        let left = std::mem::take(&mut state.queue);
        state.count_waiting();
        drop(state);
        drop(left);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine's thread: passes while there are rows, else it waits for requests. Replies are
    /// made beside it: decoding answers takes a core as long as it takes a GPU to compute them.
    fn run(&self, lookahead: Lookahead) {
        let _close = CloseOnExit(self);
        let (sender, receiver) = channel::<CompletedRequest>();
        std::thread::scope(|scope| {
            scope.spawn(|| receiver.into_iter().for_each(|done| done.reply(&self.engine)));
            let mut batch = ContinuousBatch::new(&self.engine, sender, lookahead);
            let mut passes = 0;
            while self.take_work(&mut batch, passes) {
                let start = Instant::now();
                if let Err(error) = batch.step() {
                    batch.fail(&error);
                }
                self.lock().rate.add(batch.finished_rows(), start.elapsed());
                passes += 1;
            }
        });
    }

    /// Lets requests join the batch as far as there is room. Waits while there is nothing to do;
    /// false when nothing will come.
    fn take_work(&self, batch: &mut ContinuousBatch<'_>, passes: u64) -> bool {
        loop {
            let mut state = self.lock();
            let (gone, kept): (VecDeque<Work>, VecDeque<Work>) =
                std::mem::take(&mut state.queue).into_iter().partition(Work::is_cancelled);
            state.queue = kept;
            let next = self.next_work(&mut state, batch);
            state.count_waiting();
            (state.stats.used_slots, state.stats.slots) = batch.slot_usage();
            state.stats.running_requests = batch.running_requests();
            state.stats.running_rows = batch.running_rows();
            state.stats.passes = passes;
            let (idle, closed) = (gone.is_empty() && next.is_none(), state.closed);
            if idle && batch.is_empty() {
                if closed && state.queue.is_empty() {
                    return false;
                }
                drop(self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            drop(state);
            gone.into_iter().for_each(Work::cancelled);
            match next {
                Some(work) => self.start_work(work, batch),
                None if idle => return true,
                None => {}
            }
        }
    }

    /// The first of the queue, if there is room for it, or if there never will be more.
    fn next_work(&self, state: &mut QueueState, batch: &ContinuousBatch<'_>) -> Option<Work> {
        let fits = state.queue.front()?.fits(batch) || batch.is_empty();
        if fits { state.queue.pop_front() } else { None }
    }

    fn start_work(&self, work: Work, batch: &mut ContinuousBatch<'_>) {
        if !work.fits(batch) {
            // Only after the device had less memory than was promised.
            let why = "the device has not the memory for this request".to_owned();
            return work.fail(EngineError::PassFailed { why });
        }
        match work {
            Work::Generate(job) if job.request.params.beam.is_some() => {
                batch.release_caches();
                job.solve_alone(&self.engine);
            }
            Work::Generate(job) => batch.join(*job),
            Work::Score(job) => {
                let scores = batch.score_tokens(&job.tokens);
                (job.done)(scores.map_err(EngineError::from));
            }
        }
    }
}
