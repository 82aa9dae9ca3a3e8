//! The engine: runs requests in batches of sequences that fit the memory.
//!
//! ```text
//! question -> prompt -> prefix -> N trajectories -> answers -> rewards -> vote
//! ```
//!
//! Sequences of requests with different parameters share batches and forward passes. The vote is a
//! pure function of the trajectories ([`aggregate`]), so one reply with N samples contains the
//! results of every smaller N and of every rule.

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use aggregate::Rule;
use data::answer::AnswerKind;
use model::Probe;
use rayon::prelude::*;

use crate::aligned_batch::{BatchCaches, FinishedRanges};
use crate::batch::{BatchContext, BatchItem};
use crate::batch_plan::{BatchPlan, SequenceRange};
use crate::beam_search::SearchOutput;
use crate::error::EngineError;
use crate::prompt::Prompt;
use crate::question::{QuestionContext, QuestionState};
use crate::reasoner::{Reasoner, RewardModel};
use crate::reply::{Output, StageSeconds};
use crate::request::{CancelToken, Request};
use crate::sampling_params::SamplingParams;
use crate::streams::{self, StreamState};

#[cfg(test)]
pub(crate) mod tests;

/// A reasoner, an optional reward model, and a KV memory budget. Cheap to clone; clones share the
/// models.
///
/// ```no_run
/// use std::path::Path;
///
/// use latent_tts_engine::{Engine, Reasoner, Request};
/// use tensor::Device;
///
/// let reasoner = Reasoner::load(&Device::cpu(None)?, Path::new("./coconut-gpt2"), None)?;
/// let engine = Engine::new(reasoner).with_memory(2 << 30);
/// let params = engine.default_params();
/// let requests: Vec<Request> = ["1 + 1?", "2 + 3?"].map(|text| Request::new(text, params)).into();
/// for reply in engine.stream(requests) {
///     println!("{:?}", reply?.answer());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Engine {
    reasoner: Arc<Reasoner>,
    reward_model: Option<Arc<RewardModel>>,
    probe: Option<Arc<Probe>>,
    return_states: bool,
    memory: usize,
    /// On a CPU, the caches of the last run, reused by the next one because the operating system
    /// zeroes fresh memory page by page. A GPU's memory is released instead.
    spare: Arc<StreamState<BatchCaches>>,
}

impl Engine {
    /// Default KV memory in bytes: with a model of GPT-2's size the process stays well under 3 GiB.
    pub const DEFAULT_MEMORY: usize = 1 << 30;

    /// An engine without a reward model.
    pub fn new(reasoner: impl Into<Arc<Reasoner>>) -> Self {
        let memory = Self::DEFAULT_MEMORY;
        let spare = Arc::default();
        let reasoner = reasoner.into();
        Self { reasoner, reward_model: None, probe: None, return_states: false, memory, spare }
    }

    /// Scores every trajectory from its hidden states, as the signal `probe`. The probe must be for
    /// states of the reasoner's width.
    #[must_use]
    pub fn with_probe(self, probe: impl Into<Arc<Probe>>) -> Self {
        Self { probe: Some(probe.into()), ..self }
    }

    /// Also returns the hidden states that a probe reads
    /// ([`Trajectory::states`](crate::Trajectory::states)).
    #[must_use]
    pub fn with_states(self) -> Self {
        Self { return_states: true, ..self }
    }

    /// Scores every trajectory with this model, which must have been loaded for the reasoner.
    #[must_use]
    pub fn with_reward_model(self, model: impl Into<Arc<RewardModel>>) -> Self {
        Self { reward_model: Some(model.into()), spare: Arc::default(), ..self }
    }

    /// Removes the reward model: trajectories are not scored.
    #[must_use]
    pub fn without_reward_model(self) -> Self {
        Self { reward_model: None, spare: Arc::default(), ..self }
    }

    /// Sets the KV memory budget in bytes. It affects speed, never results.
    #[must_use]
    pub fn with_memory(self, bytes: usize) -> Self {
        Self { memory: bytes, ..self }
    }

    /// The reasoner.
    pub fn reasoner(&self) -> &Reasoner {
        &self.reasoner
    }

    /// The reward model, if any.
    pub fn reward_model(&self) -> Option<&RewardModel> {
        self.reward_model.as_deref()
    }

    /// The probe, if any.
    pub fn probe(&self) -> Option<&Probe> {
        self.probe.as_deref()
    }

    /// The KV memory budget in bytes.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// The reasoner's default parameters.
    pub fn default_params(&self) -> SamplingParams {
        SamplingParams::defaults_for(&self.reasoner.method)
    }

    /// Returns the error of the first request that cannot run because of its parameters, length or
    /// memory.
    pub fn check(&self, requests: &[Request]) -> Result<(), EngineError> {
        requests.iter().try_for_each(|request| self.admit(request).map(drop))
    }

    /// Runs one request.
    ///
    /// # Errors
    ///
    /// When the request cannot be run, is cancelled, or the device fails.
    pub fn solve(&self, request: &Request) -> Result<Output, EngineError> {
        self.solve_prompt(self.admit(request)?, request)
    }

    /// Runs requests together and passes each reply to `take` as soon as it is complete, in request
    /// order and with the request's index.
    ///
    /// A request that cannot be run, or that is cancelled before its reply is complete, yields an
    /// error and does not affect the others.
    ///
    /// # Errors
    ///
    /// The first error of `take`, which ends the run, or a failure of the device.
    pub fn run<E: From<EngineError>>(
        &self,
        requests: &[Request],
        take: impl FnMut(usize, Result<Output, EngineError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut prompts = Vec::new();
        let mut rejected = VecDeque::new();
        for (index, request) in requests.iter().enumerate() {
            match self.admit(request) {
                Ok(prompt) => prompts.push((index, prompt)),
                Err(error) => rejected.push_back((index, error)),
            }
        }
        self.run_admitted(requests, &prompts, rejected, take)
    }

    /// Runs one request whose prompt was already checked.
    pub(crate) fn solve_prompt(
        &self,
        prompt: Prompt,
        request: &Request,
    ) -> Result<Output, EngineError> {
        let mut reply = None;
        let requests = std::slice::from_ref(request);
        let take = |_, result| -> Result<(), EngineError> {
            reply = Some(result?);
            Ok(())
        };
        self.run_admitted(requests, &[(0, prompt)], VecDeque::new(), take)?;
        reply.ok_or(EngineError::Cancelled { id: request.id })
    }

    /// [`run`](Self::run) with the prompts of the requests that can be run, and the errors of the
    /// others, each with its request's index.
    fn run_admitted<E: From<EngineError>>(
        &self,
        requests: &[Request],
        prompts: &[(usize, Prompt)],
        mut rejected: VecDeque<(usize, EngineError)>,
        mut take: impl FnMut(usize, Result<Output, EngineError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let items: Vec<BatchItem<'_>> =
            prompts.iter().map(|(index, prompt)| requests[*index].item(prompt)).collect();
        let context = self.context();
        let plan = BatchPlan::new(&context, &items, self.memory);
        let streams = RunStreams::open(self, plan.streams());
        let mut collector = Collector::new(self, context, &plan, &streams[0]);
        let mut deliver = |question: usize, reply| {
            let index = prompts[question].0;
            while rejected.front().is_some_and(|(earlier, _)| *earlier < index) {
                rejected.pop_front().map_or(Ok(()), |(i, error)| take(i, Err(error)))?;
            }
            // A cancelled sequence ends early: the reply is incomplete.
            let Request { id, cancel, .. } = &requests[index];
            let cancelled = cancel.is_cancelled();
            take(index, if cancelled { Err(EngineError::Cancelled { id: *id }) } else { reply })
        };
        for group in plan.question_groups() {
            collector.open(group, |question| requests[prompts[question].0].answer_kind);
            loop {
                let batches = plan.batches(&collector.next_round());
                if batches.is_empty() {
                    break;
                }
                context.run_batches(&plan, &batches, &streams, |batch, done, seconds| {
                    collector.collect(batch, done, seconds)?;
                    let mut finished = collector.take_finished()?.into_iter();
                    finished.try_for_each(|(question, reply)| deliver(question, reply))
                })?;
            }
        }
        rejected.into_iter().try_for_each(|(index, error)| take(index, Err(error)))
    }

    /// Runs requests on a separate thread and iterates over their replies in request order.
    /// Dropping the iterator cancels the remaining requests.
    pub fn stream(&self, mut requests: Vec<Request>) -> OutputStream {
        // The caller's tokens may be shared with other requests: only children are cancelled.
        let stop = CancelToken::default();
        let token = |own: &CancelToken| own.joined(&stop);
        requests.iter_mut().for_each(|request| request.cancel = token(&request.cancel));
        let engine = self.clone();
        let (sender, receiver) = sync_channel(1);
        let worker = std::thread::spawn(move || {
            let run = engine
                .run(&requests, |_, reply| sender.send(reply).map_err(|_| StreamEnd::Dropped));
            if let Err(StreamEnd::Failed(error)) = run {
                // If the receiver is gone, the error has no recipient.
                let _ = sender.send(Err(error));
            }
        });
        OutputStream { receiver: Some(receiver), worker: Some(worker), stop }
    }

    pub(crate) fn context(&self) -> BatchContext<'_> {
        BatchContext {
            model: &self.reasoner.model,
            reward_model: self.reward_model(),
            probe: self.probe(),
            return_latents: true,
            return_states: self.return_states,
        }
    }

    /// Checks a request and returns its prompt.
    fn admit(&self, request: &Request) -> Result<Prompt, EngineError> {
        let prompt = Prompt::new(&self.reasoner, request.id, &request.question)?;
        self.check_item(&request.item(&prompt), self.memory)?;
        Ok(prompt)
    }

    /// Rejects a question that cannot be run in `memory` bytes.
    pub(crate) fn check_item(
        &self,
        item: &BatchItem<'_>,
        memory: usize,
    ) -> Result<(), EngineError> {
        BatchPlan::check(&self.context(), item, memory)
    }

    /// The voting rule for requests that specify none. Outcome rewards have an absolute scale and
    /// weight votes directly; process rewards have none and are normalized; without rewards, the
    /// probe's scores weight the votes, and without a probe the plain majority decides.
    pub fn default_rule(&self) -> Rule {
        match self.reward_model() {
            Some(model) if model.outcome_head.is_some() => Rule::WEIGHTED,
            Some(_) => Rule::NORMALIZED,
            None if self.probe.is_some() => Rule::PROBE,
            None => Rule::MAJORITY,
        }
    }

    /// The rule of a request: the specified one, else the calibrated one if the request has a
    /// calibration, else the default.
    pub(crate) fn rule_of(&self, params: &SamplingParams) -> Rule {
        let learned = params.vote.calibration.map(|_| Rule::CALIBRATED);
        params.rule.or(learned).unwrap_or_else(|| self.default_rule())
    }
}

/// The reason that a stream's run ended early.
enum StreamEnd {
    Dropped,
    Failed(EngineError),
}

impl From<EngineError> for StreamEnd {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

/// The outputs of a list of requests, each when it is complete; see [`Engine::stream`].
pub struct OutputStream {
    receiver: Option<Receiver<Result<Output, EngineError>>>,
    worker: Option<JoinHandle<()>>,
    stop: CancelToken,
}

impl Iterator for OutputStream {
    type Item = Result<Output, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.receiver.as_ref()?.recv().ok()
    }
}

impl Drop for OutputStream {
    fn drop(&mut self) {
        self.stop.cancel();
        self.receiver = None;
        if let Some(worker) = self.worker.take() {
            // The thread has already printed its panic; it cannot be propagated from here.
            let _ = worker.join();
        }
    }
}

/// The streams of a run. The first one takes over the engine's spare caches and returns its caches
/// at the end.
struct RunStreams<'a> {
    engine: &'a Engine,
    streams: Vec<StreamState<BatchCaches>>,
}

impl<'a> RunStreams<'a> {
    fn open(engine: &'a Engine, count: usize) -> Self {
        let streams = streams::open(count);
        *streams::lock(&streams[0]) = std::mem::take(&mut *streams::lock(&engine.spare));
        Self { engine, streams }
    }
}

impl Deref for RunStreams<'_> {
    type Target = [StreamState<BatchCaches>];

    fn deref(&self) -> &Self::Target {
        &self.streams
    }
}

impl Drop for RunStreams<'_> {
    fn drop(&mut self) {
        if !self.engine.reasoner.model.decoder.device().is_cuda() {
            let caches = std::mem::take(&mut *streams::lock(&self.streams[0]));
            *streams::lock(&self.engine.spare) = caches.without_contents();
        }
    }
}

/// Collects the sequences of open questions and builds replies from them, in question order.
struct Collector<'a> {
    engine: &'a Engine,
    context: BatchContext<'a>,
    plan: &'a BatchPlan<'a>,
    /// The stream on which beam searches run.
    stream: &'a StreamState<BatchCaches>,
    seconds: StageSeconds,
    states: VecDeque<QuestionState>,
    /// Index of the question of the first state.
    first: usize,
}

/// A finished question's index and its reply.
type Finished = (usize, Result<Output, EngineError>);

impl<'a> Collector<'a> {
    fn new(
        engine: &'a Engine,
        context: BatchContext<'a>,
        plan: &'a BatchPlan<'a>,
        stream: &'a StreamState<BatchCaches>,
    ) -> Self {
        let seconds = StageSeconds::default();
        let states = VecDeque::new();
        Self { engine, context, plan, stream, seconds, states, first: 0 }
    }

    fn question(&self, question: usize) -> QuestionContext<'a> {
        QuestionContext { engine: self.engine, item: self.plan.items()[question] }
    }

    fn open(&mut self, questions: Range<usize>, kind: impl Fn(usize) -> AnswerKind) {
        self.first = questions.start;
        self.states =
            questions.map(|q: usize| QuestionState::new(self.question(q), kind(q))).collect();
    }

    /// The next sequences of every question whose vote is still undecided.
    fn next_round(&mut self) -> Vec<SequenceRange> {
        let states = self.states.iter_mut().enumerate().filter(|(_, state)| !state.done);
        let first = self.first;
        let items = self.plan.items();
        let range = |(i, state): (usize, &mut QuestionState)| {
            state.round = state.next_rows(items[first + i].params);
            SequenceRange { question: first + i, rows: state.round.clone() }
        };
        states.map(range).collect()
    }

    /// Adds the sequences of a batch to their questions, in parallel: on one core, decoding answers
    /// and comparing thoughts takes longer than computing them on a GPU.
    fn collect(
        &mut self,
        batch: &[SequenceRange],
        done: FinishedRanges,
        seconds: StageSeconds,
    ) -> Result<(), EngineError> {
        self.seconds += seconds;
        let first = self.first;
        // A batch contains a question at most once, and questions in order. A cancelled question
        // may have been handed over before the batches of its last sequences.
        let open = |(range, _): &(&SequenceRange, Vec<_>)| range.question >= first;
        let mut ranges = batch.iter().zip(done).filter(open).peekable();
        let states = self.states.iter_mut().enumerate();
        let work: Vec<_> = states
            .filter_map(|(i, state)| {
                Some((state, ranges.next_if(|(range, _)| range.question == first + i)?))
            })
            .collect();
        let engine = self.engine;
        let items = self.plan.items();
        let collect = |(state, (range, rows)): (&mut QuestionState, (&SequenceRange, Vec<_>))| {
            let of = QuestionContext { engine, item: items[range.question] };
            state.add_rows(of, &range.rows, rows)
        };
        let device = self.context.model.decoder.device();
        device.run(|| work.into_par_iter().try_for_each(collect))
    }

    /// Removes the complete questions that have no open question before them.
    fn take_finished(&mut self) -> Result<Vec<Finished>, EngineError> {
        let ready = self.states.iter().take_while(|state| state.done).count();
        let complete: Vec<QuestionState> = self.states.drain(..ready).collect();
        let questions = self.first..self.first + complete.len();
        self.first = questions.end;
        let mut found: Vec<Option<SearchOutput>> = complete.iter().map(|_| None).collect();
        let searched = questions.clone().zip(&complete).filter(|(_, state)| !state.cancelled);
        for group in self.plan.searches(searched.map(|(question, _)| question)) {
            let caches = &mut streams::lock(self.stream);
            let outputs = self.context.search(self.plan, &group, caches, &mut self.seconds)?;
            for (question, output) in group.into_iter().zip(outputs) {
                found[question - questions.start] = output;
            }
        }
        let finish = |((question, state), found): ((usize, QuestionState), _)| {
            let seconds = std::mem::take(&mut self.seconds);
            let of = QuestionContext { engine: self.engine, item: self.plan.items()[question] };
            match state.finish(of, found, seconds) {
                Err(error @ EngineError::Cancelled { .. }) => Ok((question, Err(error))),
                reply => Ok((question, Ok(reply?))),
            }
        };
        questions.zip(complete).zip(found).map(finish).collect()
    }
}
