//! A request in the scheduler: waiting, or with rows in the batch.

use std::time::Instant;

use smallvec::SmallVec;

use super::{Event, EventDetail};
use crate::batch::BatchItem;
use crate::batch_plan::Footprint;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::executor::ThoughtRef;
use crate::prompt::Prompt;
use crate::question::{FinishedSequence, QuestionContext, QuestionState};
use crate::reply::{StageSeconds, Trajectory};
use crate::request::Request;

/// Takes a request's events, on the engine's thread: it must not block.
pub(crate) type EventSink = Box<dyn FnMut(Event) + Send>;

/// A request with its prompt.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) prompt: Prompt,
    pub(crate) detail: EventDetail,
    events: EventSink,
}

impl Job {
    pub(crate) fn new(request: Request, prompt: Prompt, events: EventSink) -> Self {
        Self { request, prompt, detail: EventDetail::default(), events }
    }

    pub(crate) fn rows(&self) -> usize {
        self.request.params.rows()
    }

    pub(crate) fn item(&self) -> BatchItem<'_> {
        self.request.item(&self.prompt)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.request.cancel.is_cancelled()
    }

    pub(crate) fn send(&mut self, event: Event) {
        (self.events)(event);
    }

    pub(crate) fn fail(mut self, error: EngineError) {
        self.send(Event::Done(Err(error)));
    }

    /// Runs the request as a wave of its own.
    pub(crate) fn solve_alone(mut self, engine: &Engine) {
        self.send(Event::Started);
        let reply = engine.solve_prompt(self.prompt.clone(), &self.request);
        self.send(Event::Done(reply.map(Box::new)));
    }

    pub(crate) fn cancelled(self) {
        let id = self.request.id;
        self.fail(EngineError::Cancelled { id });
    }
}

/// A request whose rows are in the batch, or wait for memory there.
pub(crate) struct RunningJob {
    pub(crate) job: Job,
    pub(crate) footprint: Footprint,
    state: QuestionState,
    /// The first row of the round that is not in the batch yet.
    pub(crate) next_row: usize,
    /// Rows of the round that are finished, by their places in it.
    finished: Vec<Option<ScoredLater>>,
    since: Instant,
}

/// A finished row, whose thoughts the reward model may still have to read.
pub(crate) struct ScoredLater {
    pub(crate) row: FinishedSequence,
    pub(crate) thoughts: SmallVec<[ThoughtRef; 8]>,
}

/// What comes after a round of rows.
pub(crate) enum AfterRound {
    /// The vote is open: the next rows wait to be admitted.
    NextRound,
    Done,
}

impl RunningJob {
    pub(crate) fn new(engine: &Engine, mut job: Job) -> Self {
        job.send(Event::Started);
        let of = QuestionContext { engine, item: job.item() };
        let footprint = Footprint::of(&engine.context(), &of.item);
        let state = QuestionState::new(of, job.request.answer_kind);
        let (since, finished) = (Instant::now(), Vec::new());
        let mut running = Self { job, footprint, state, next_row: 0, finished, since };
        running.open_round();
        running
    }

    fn open_round(&mut self) {
        self.state.round = self.state.next_rows(&self.job.request.params);
        self.next_row = self.state.round.start;
        self.finished = self.state.round.clone().map(|_| None).collect();
    }

    /// Rows of the round that wait to be admitted.
    pub(crate) fn waiting_rows(&self) -> usize {
        self.state.round.end - self.next_row
    }

    /// Takes a row that has its answer, and tells it.
    pub(crate) fn finish_row(
        &mut self,
        engine: &Engine,
        done: ScoredLater,
    ) -> Result<(), EngineError> {
        let FinishedSequence {
            id,
            perturbed,
            thoughts,
            ref tokens,
            ref latents,
            ref lens,
            logprob,
            ..
        } = done.row;
        if perturbed && self.tells_progress() {
            let of = QuestionContext { engine, item: self.job.item() };
            let trajectory = Trajectory {
                number: id.trajectory,
                thoughts,
                latents: latents.clone().unwrap_or_default(),
                lens: of.lens(lens.clone())?,
                logprob: logprob.is_finite().then_some(logprob),
                ..of.trajectory(self.job.request.answer_kind, tokens.clone(), None)?
            };
            self.job.send(Event::Trajectory(Box::new(trajectory)));
        }
        let greedy = usize::from(self.job.request.params.greedy);
        let number = if perturbed { id.trajectory as usize + greedy } else { 0 };
        let place = number - self.state.round.start;
        self.finished[place] = Some(done);
        Ok(())
    }

    pub(crate) fn round_is_complete(&self) -> bool {
        self.finished.iter().all(Option::is_some)
    }

    /// The finished rows of a complete round, in their order.
    pub(crate) fn finished_rows(&self) -> impl Iterator<Item = &ScoredLater> {
        self.finished.iter().flatten()
    }

    /// The same, to be changed.
    pub(crate) fn finished_rows_mut(&mut self) -> impl Iterator<Item = &mut ScoredLater> {
        self.finished.iter_mut().flatten()
    }

    fn tells_progress(&self) -> bool {
        self.job.detail.progress && self.job.request.params.samples.get() > 1
    }

    /// Whether no round can follow this one.
    pub(crate) fn is_last_round(&self) -> bool {
        self.state.round.end == self.job.rows()
    }

    /// Tells the rewards of the finished rows.
    pub(crate) fn send_rewards(&mut self) {
        if !self.tells_progress() {
            return;
        }
        for done in self.finished.iter().flatten().filter(|done| done.row.perturbed) {
            if let Some(rewards) = done.row.rewards.clone() {
                let number = done.row.id.trajectory;
                self.job.send(Event::Rewards { number, rewards });
            }
        }
    }

    /// Adds the rows of a complete round to the reply.
    pub(crate) fn end_round(&mut self, engine: &Engine) -> Result<AfterRound, EngineError> {
        let rows = std::mem::take(&mut self.finished);
        let rows: Vec<FinishedSequence> = rows.into_iter().flatten().map(|done| done.row).collect();
        let round = self.state.round.clone();
        let of = QuestionContext { engine, item: self.job.item() };
        self.state.add_rows(of, &round, rows)?;
        if self.state.done {
            return Ok(AfterRound::Done);
        }
        self.open_round();
        Ok(AfterRound::NextRound)
    }

    /// A request whose last round is complete. Its thoughts on the device are released here: only
    /// this thread uses the device.
    pub(crate) fn complete(self) -> CompletedRequest {
        let Self { job, state, finished, since, .. } = self;
        let rows: Vec<FinishedSequence> =
            finished.into_iter().flatten().map(|done| done.row).collect();
        CompletedRequest { job, state, rows, since }
    }
}

/// A request that has left the batch and is to be replied to.
pub(crate) struct CompletedRequest {
    job: Job,
    state: QuestionState,
    /// Rows of the last round that are not in the state yet.
    rows: Vec<FinishedSequence>,
    since: Instant,
}

impl CompletedRequest {
    /// Decodes, votes and replies.
    pub(crate) fn reply(self, engine: &Engine) {
        let Self { mut job, mut state, rows, since } = self;
        let of = QuestionContext { engine, item: job.item() };
        let added = match rows.is_empty() {
            true => Ok(()),
            false => state.add_rows(of, &state.round.clone(), rows),
        };
        let total = since.elapsed().as_secs_f64();
        let seconds = StageSeconds { total, ..StageSeconds::default() };
        let reply = added.and_then(|()| state.finish(of, None, seconds));
        job.send(Event::Done(reply.map(Box::new)));
    }
}
