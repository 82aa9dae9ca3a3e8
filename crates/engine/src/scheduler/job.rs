//! A request in the scheduler: waiting, or a source of sequences in the batch.

use std::collections::VecDeque;
use std::time::Instant;

use smallvec::SmallVec;
use tensor::{DeviceError, Tensor};

use super::source::SequenceSource;
use super::{Event, EventOptions};
use crate::batch::BatchItem;
use crate::batch_plan::Footprint;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::executor::{HiddenRef, SequenceSpec, SequenceState, ThoughtRef};
use crate::prompt::Prompt;
use crate::question::{FinishedSequence, QuestionContext, QuestionState};
use crate::reply::StageSeconds;
use crate::request::Request;
use crate::sampler::SequenceId;
use crate::score::Rewards;
use crate::stage_timer::Stage;

/// Receives a request's events, on the engine's thread; must not block.
pub(crate) type EventSink = Box<dyn FnMut(Event) + Send>;

/// A request with its prompt.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) prompt: Prompt,
    pub(crate) options: EventOptions,
    events: EventSink,
}

impl Job {
    pub(crate) fn new(request: Request, prompt: Prompt, events: EventSink) -> Self {
        Self { request, prompt, options: EventOptions::default(), events }
    }

    pub(crate) fn rows(&self) -> usize {
        self.request.params.rows()
    }

    pub(crate) fn item(&self) -> BatchItem<'_> {
        self.request.item(&self.prompt)
    }

    /// Whether it runs alone, as a closed batch.
    pub(crate) fn runs_alone(&self) -> bool {
        self.request.params.search.is_some()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.request.cancel.is_cancelled()
    }

    fn send(&mut self, event: Event) {
        (self.events)(event);
    }

    pub(crate) fn fail(mut self, error: EngineError) {
        self.send(Event::Done(Err(error)));
    }

    /// Runs the request alone, as a closed batch.
    pub(crate) fn solve_alone(mut self, engine: &Engine) {
        self.send(Event::Started);
        let reply = engine.solve_prompt(self.prompt.clone(), &self.request);
        self.send(Event::Done(reply.map(Box::new)));
    }

    pub(crate) fn cancelled(self) {
        let id = self.request.id;
        self.fail(EngineError::Cancelled { id });
    }

    fn sends_progress(&self) -> bool {
        self.options.progress && self.request.params.samples.get() > 1
    }
}

/// A finished sequence whose thoughts may still have to be scored.
pub(crate) struct ScoredLater {
    pub(crate) row: FinishedSequence,
    pub(crate) thoughts: SmallVec<[ThoughtRef; 8]>,
    /// Its hidden states, which a probe may still have to score.
    pub(crate) states: Vec<HiddenRef>,
}

/// The result of a round of sequences.
pub(crate) enum AfterRound {
    /// The vote is undecided: the next sequences wait to be admitted.
    NextRound,
    Done,
}

/// A request whose sequences are in the batch, or waiting for memory.
pub(crate) struct RunningJob<'a> {
    engine: &'a Engine,
    pub(crate) job: Job,
    pub(crate) footprint: Footprint,
    state: QuestionState,
    /// Indices of the round's sequences that are not in the batch.
    waiting: VecDeque<usize>,
    /// Finished sequences of the round; sorted once it is complete.
    finished: Vec<ScoredLater>,
    /// Number of answer tokens already sent, per sequence of the round.
    tokens_sent: Vec<usize>,
    seconds: StageSeconds,
    since: Instant,
}

impl<'a> RunningJob<'a> {
    pub(crate) fn new(engine: &'a Engine, mut job: Job) -> Self {
        job.send(Event::Started);
        let of = QuestionContext { engine, item: job.item() };
        let footprint = Footprint::of(&engine.context(), &of.item);
        let state = QuestionState::new(of, job.request.answer_kind);
        let mut running = Self {
            engine,
            job,
            footprint,
            state,
            waiting: VecDeque::new(),
            finished: Vec::new(),
            tokens_sent: Vec::new(),
            seconds: StageSeconds::default(),
            since: Instant::now(),
        };
        running.open_round();
        running
    }

    fn open_round(&mut self) {
        self.state.round = self.state.next_rows(&self.job.request.params);
        self.waiting = self.state.round.clone().collect();
        self.tokens_sent = vec![0; self.state.round.len()];
    }

    /// A sequence's index within the request: the greedy one comes first.
    fn number(&self, id: SequenceId, perturbed: bool) -> usize {
        let greedy = usize::from(self.job.request.params.greedy);
        if perturbed { id.trajectory as usize + greedy } else { 0 }
    }

    pub(crate) fn round_is_complete(&self) -> bool {
        self.finished.len() == self.state.round.len()
    }

    /// The sequences of a complete round, in order.
    pub(crate) fn round(&self) -> &[ScoredLater] {
        &self.finished
    }

    /// Sets the rewards of a sequence of the round, and adds the seconds that scoring took.
    pub(crate) fn set_rewards(&mut self, row: usize, rewards: Rewards, seconds: f64) {
        self.finished[row].row.rewards = Some(rewards);
        self.seconds.scores += seconds;
    }

    /// Scores the hidden states of the round with the probe, and releases them.
    pub(crate) fn read_states(&mut self) -> Result<(), DeviceError> {
        let states: Vec<Vec<HiddenRef>> =
            self.finished.iter_mut().map(|done| std::mem::take(&mut done.states)).collect();
        let states: Vec<&[HiddenRef]> = states.iter().map(Vec::as_slice).collect();
        let thoughts: Vec<usize> = self.finished.iter().map(|done| done.row.thoughts).collect();
        let probed = self.engine.context().read_states(&states, &thoughts)?;
        for (done, probed) in self.finished.iter_mut().zip(probed) {
            done.row.probed = probed;
        }
        Ok(())
    }

    /// Whether no further round can follow.
    pub(crate) fn is_last_round(&self) -> bool {
        self.state.round.end == self.job.rows()
    }

    /// Sends the rewards of the finished sequences.
    pub(crate) fn send_rewards(&mut self) {
        if !self.job.sends_progress() {
            return;
        }
        for done in self.finished.iter().filter(|done| done.row.perturbed) {
            if let Some(rewards) = done.row.rewards.clone() {
                let number = done.row.id.trajectory;
                self.job.send(Event::Rewards { number, rewards });
            }
        }
    }

    /// Adds a complete round to the output.
    pub(crate) fn end_round(&mut self) -> Result<AfterRound, EngineError> {
        let rows = std::mem::take(&mut self.finished).into_iter().map(|done| done.row).collect();
        let round = self.state.round.clone();
        let of = QuestionContext { engine: self.engine, item: self.job.item() };
        self.state.add_rows(of, &round, rows)?;
        if self.state.done {
            return Ok(AfterRound::Done);
        }
        self.open_round();
        Ok(AfterRound::NextRound)
    }

    /// Completes a request after its last round. Its thoughts on the device are released here,
    /// because only this thread uses the device.
    pub(crate) fn complete(self) -> CompletedRequest {
        let Self { job, state, finished, seconds, since, .. } = self;
        let rows = finished.into_iter().map(|done| done.row).collect();
        CompletedRequest { job, state, rows, seconds, since }
    }
}

impl SequenceSource for RunningJob<'_> {
    fn item(&self) -> BatchItem<'_> {
        self.job.item()
    }

    fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn next(&mut self, item: usize) -> Option<SequenceSpec> {
        let number = self.waiting.pop_front()?;
        let greedy = usize::from(self.job.request.params.greedy);
        let trajectory = number.saturating_sub(greedy) as u32;
        let id = SequenceId { question: self.job.prompt.id, trajectory };
        Some(SequenceSpec { item, id, perturbed: number >= greedy })
    }

    fn requeue(&mut self, spec: SequenceSpec) {
        self.waiting.push_back(self.number(spec.id, spec.perturbed));
    }

    fn observe(&mut self, sequence: &SequenceState) {
        if !self.job.options.tokens || !sequence.spec.perturbed {
            return;
        }
        let SequenceSpec { id, perturbed, .. } = sequence.spec;
        let row = self.number(id, perturbed) - self.state.round.start;
        let sent = std::mem::replace(&mut self.tokens_sent[row], sequence.tokens.len());
        // A restarted sequence generates the same tokens again.
        self.tokens_sent[row] = self.tokens_sent[row].max(sent);
        for (position, &token) in sequence.tokens.iter().enumerate().skip(sent) {
            self.job.send(Event::Token { number: id.trajectory, position, token });
        }
    }

    fn add_seconds(&mut self, stage: Stage, seconds: f64) {
        *stage.of(&mut self.seconds) += seconds;
    }

    fn returns_latents(&self) -> bool {
        self.job.options.latents
    }

    /// Stores a finished sequence and sends the trajectory event.
    fn finish(
        &mut self,
        sequence: SequenceState,
        latents: Option<Tensor>,
    ) -> Result<(), EngineError> {
        let mut row = FinishedSequence::new(&sequence);
        row.latents = latents;
        row.lens = sequence.lens;
        if row.perturbed && self.job.sends_progress() {
            let of = QuestionContext { engine: self.engine, item: self.job.item() };
            let kind = self.job.request.answer_kind;
            of.parse(kind, &mut row)?;
            let trajectory = of.trajectory(kind, row.clone())?;
            self.job.send(Event::Trajectory(Box::new(trajectory)));
        }
        let SequenceState { thoughts, states, .. } = sequence;
        self.finished.push(ScoredLater { row, thoughts, states });
        if self.round_is_complete() {
            self.finished.sort_by_key(|ScoredLater { row, .. }| (row.perturbed, row.id.trajectory));
        }
        Ok(())
    }
}

/// A request that has left the batch, with its output still to be assembled.
pub(crate) struct CompletedRequest {
    job: Job,
    state: QuestionState,
    /// Sequences of the last round that have not been added to the state yet.
    rows: Vec<FinishedSequence>,
    seconds: StageSeconds,
    since: Instant,
}

impl CompletedRequest {
    /// Decodes the answers, votes and sends the output.
    pub(crate) fn reply(self, engine: &Engine) {
        let Self { mut job, mut state, rows, seconds, since } = self;
        let of = QuestionContext { engine, item: job.item() };
        let added = match rows.is_empty() {
            true => Ok(()),
            false => state.add_rows(of, &state.round.clone(), rows),
        };
        let seconds = StageSeconds { total: since.elapsed().as_secs_f64(), ..seconds };
        let reply = added.and_then(|()| state.finish(of, None, seconds));
        job.send(Event::Done(reply.map(Box::new)));
    }
}
