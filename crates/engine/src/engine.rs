//! The engine: requests in, replies out, over waves of rows that fit the memory.
//!
//! ```text
//! question -> prompt -> prefix -> N trajectories -> answers -> rewards -> vote
//! ```
//!
//! Rows of unlike requests share waves and passes. The vote is a pure function of the trajectories
//! ([`aggregate`]), so that one reply at N holds those of every smaller N and of every rule.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use aggregate::{Aggregator, EarlyStop, StepDiversity, stop_reason};
use answer::AnswerKind;
use rayon::prelude::*;
use tensor::ops::TokenLogprob;

use crate::batch::{BatchContext, BatchItem};
use crate::batch_plan::{BatchPlan, RowRange};
use crate::beam_search::BeamOutput;
use crate::cost::CostModel;
use crate::decode::AnswerTokens;
use crate::error::EngineError;
use crate::prompt::Prompt;
use crate::reasoner::{Reasoner, RewardModel};
use crate::reply::{BeamReply, LensToken, Reply, StageSeconds, Trajectory};
use crate::request::{CancelToken, Request};
use crate::sampling_params::{AdaptiveSampling, SamplingParams};
use crate::score::Rewards;
use crate::streams::{self, StreamState};
use crate::wave::{FinishedRanges, FinishedRow, WaveCaches};

#[cfg(test)]
mod tests;

/// A reasoner, perhaps a reward model, and the memory they may use. Cheap to clone; clones share
/// the models.
#[derive(Clone)]
pub struct Engine {
    reasoner: Arc<Reasoner>,
    reward_model: Option<Arc<RewardModel>>,
    memory: usize,
}

impl Engine {
    /// Bytes of keys and values unless told otherwise: with a model of GPT-2's size the process
    /// stays well under 3 GiB.
    pub const DEFAULT_MEMORY: usize = 1 << 30;

    /// An engine without a reward model.
    pub fn new(reasoner: impl Into<Arc<Reasoner>>) -> Self {
        Self { reasoner: reasoner.into(), reward_model: None, memory: Self::DEFAULT_MEMORY }
    }

    /// Scores every trajectory with this model, which must have been loaded for the reasoner.
    #[must_use]
    pub fn with_reward_model(self, model: impl Into<Arc<RewardModel>>) -> Self {
        Self { reward_model: Some(model.into()), ..self }
    }

    /// The same reasoner without its reward model: trajectories are not scored.
    #[must_use]
    pub fn without_reward_model(self) -> Self {
        Self { reward_model: None, ..self }
    }

    /// Bounds the bytes of keys and values on the device. It changes speed, never results.
    #[must_use]
    pub fn with_memory(self, bytes: usize) -> Self {
        Self { memory: bytes, ..self }
    }

    /// The model that thinks.
    pub fn reasoner(&self) -> &Reasoner {
        &self.reasoner
    }

    /// The model that scores, if there is one.
    pub fn reward_model(&self) -> Option<&RewardModel> {
        self.reward_model.as_deref()
    }

    /// The bytes of keys and values that may be used.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// The reasoner's default parameters, to be changed as needed.
    pub fn default_params(&self) -> SamplingParams {
        SamplingParams::defaults_for(&self.reasoner.method)
    }

    /// Refuses the first request that cannot be run: by its parameters, its length, or its memory.
    pub fn check(&self, requests: &[Request]) -> Result<(), EngineError> {
        requests.iter().try_for_each(|request| self.admit(request).map(drop))
    }

    /// Runs one request.
    ///
    /// # Errors
    ///
    /// When the request cannot be run, is cancelled, or the device fails.
    pub fn solve(&self, request: &Request) -> Result<Reply, EngineError> {
        let mut reply = None;
        self.run(std::slice::from_ref(request), |_, result| -> Result<(), EngineError> {
            reply = Some(result?);
            Ok(())
        })?;
        reply.ok_or(EngineError::Cancelled { id: request.id })
    }

    /// Runs requests together and hands over each one's reply as soon as it is complete, in the
    /// order of the requests and with its index.
    ///
    /// A request that cannot be run, or that is cancelled before its reply is handed over, is
    /// handed over as an error and does not keep the others.
    ///
    /// # Errors
    ///
    /// The first error of `take`, which ends the run, or a failure of the device.
    pub fn run<E: From<EngineError>>(
        &self,
        requests: &[Request],
        mut take: impl FnMut(usize, Result<Reply, EngineError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut prompts, mut rejected) = (Vec::new(), VecDeque::new());
        for (index, request) in requests.iter().enumerate() {
            match self.admit(request) {
                Ok(prompt) => prompts.push((index, prompt)),
                Err(error) => rejected.push_back((index, error)),
            }
        }
        let items: Vec<BatchItem<'_>> =
            prompts.iter().map(|(index, prompt)| requests[*index].item(prompt)).collect();
        let context = self.context();
        let plan = BatchPlan::new(&context, &items, self.memory);
        let streams = streams::open(plan.streams());
        let mut collector = Collector::new(self, context, &plan, &streams[0]);
        let mut deliver = |question: usize, reply| {
            let index = prompts[question].0;
            while rejected.front().is_some_and(|(earlier, _)| *earlier < index) {
                rejected.pop_front().map_or(Ok(()), |(i, error)| take(i, Err(error)))?;
            }
            // A row that was cancelled has ended with what it had: its reply is not complete.
            let Request { id, cancel, .. } = &requests[index];
            let cancelled = cancel.is_cancelled();
            take(index, if cancelled { Err(EngineError::Cancelled { id: *id }) } else { reply })
        };
        for group in plan.question_groups() {
            collector.open(group, |question| requests[prompts[question].0].answer_kind);
            loop {
                let waves = plan.waves(&collector.next_round());
                if waves.is_empty() {
                    break;
                }
                context.run_waves(&plan, &waves, &streams, |wave, done, seconds| {
                    collector.collect(wave, done, seconds)?;
                    let mut finished = collector.take_finished()?.into_iter();
                    finished.try_for_each(|(question, reply)| deliver(question, reply))
                })?;
            }
        }
        rejected.into_iter().try_for_each(|(index, error)| take(index, Err(error)))
    }

    /// Runs requests on a thread of their own and iterates over their replies, in the order of the
    /// requests. Dropping the iterator cancels what is left.
    pub fn stream(&self, mut requests: Vec<Request>) -> Replies {
        // The caller's tokens may be shared with other requests: only children are cancelled.
        let stop = CancelToken::default();
        let token = |own: &CancelToken| own.joined(&stop);
        requests.iter_mut().for_each(|request| request.cancel = token(&request.cancel));
        let (engine, (sender, receiver)) = (self.clone(), sync_channel(1));
        let worker = std::thread::spawn(move || {
            let run = engine
                .run(&requests, |_, reply| sender.send(reply).map_err(|_| StreamEnd::Dropped));
            if let Err(StreamEnd::Failed(error)) = run {
                // Nobody is left to tell where the receiver is gone.
                let _ = sender.send(Err(error));
            }
        });
        Replies { receiver: Some(receiver), worker: Some(worker), stop }
    }

    fn context(&self) -> BatchContext<'_> {
        BatchContext {
            model: &self.reasoner.model,
            reward_model: self.reward_model(),
            return_latents: true,
        }
    }

    /// The prompt of a request that can be run.
    fn admit(&self, request: &Request) -> Result<Prompt, EngineError> {
        let prompt = Prompt::new(&self.reasoner, request.id, &request.question)?;
        BatchPlan::check(&self.context(), &request.item(&prompt), self.memory)?;
        Ok(prompt)
    }

    /// The rule that chooses a reply's answer unless the request names one: outcome rewards have a
    /// scale that means something and weigh votes as they are; process rewards have none and are
    /// normalised; without rewards, the plain majority.
    pub fn default_rule(&self) -> Aggregator {
        match self.reward_model() {
            Some(model) if model.outcome_head.is_some() => Aggregator::Weighted,
            Some(_) => Aggregator::Normalized,
            None => Aggregator::Majority,
        }
    }
}

/// Why a stream's run ended early.
enum StreamEnd {
    Dropped,
    Failed(EngineError),
}

impl From<EngineError> for StreamEnd {
    fn from(error: EngineError) -> Self {
        Self::Failed(error)
    }
}

/// Replies as they are finished; see [`Engine::stream`].
pub struct Replies {
    receiver: Option<Receiver<Result<Reply, EngineError>>>,
    worker: Option<JoinHandle<()>>,
    stop: CancelToken,
}

impl Iterator for Replies {
    type Item = Result<Reply, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.receiver.as_ref()?.recv().ok()
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.stop.cancel();
        self.receiver = None;
        if let Some(worker) = self.worker.take() {
            // A panic was printed by the thread itself; there is no one to hand it to here.
            let _ = worker.join();
        }
    }
}

/// Gathers the rows of the open questions and makes replies of them, in the order of the questions.
struct Collector<'a> {
    engine: &'a Engine,
    context: BatchContext<'a>,
    plan: &'a BatchPlan<'a>,
    /// The stream on which beam searches run.
    stream: &'a StreamState<WaveCaches>,
    seconds: StageSeconds,
    states: VecDeque<QuestionState<'a>>,
    /// The question of the first state.
    first: usize,
}

/// A finished question's index and its reply.
type Finished = (usize, Result<Reply, EngineError>);

impl<'a> Collector<'a> {
    fn new(
        engine: &'a Engine,
        context: BatchContext<'a>,
        plan: &'a BatchPlan<'a>,
        stream: &'a StreamState<WaveCaches>,
    ) -> Self {
        let (seconds, states) = (StageSeconds::default(), VecDeque::new());
        Self { engine, context, plan, stream, seconds, states, first: 0 }
    }

    fn open(&mut self, questions: Range<usize>, kind: impl Fn(usize) -> AnswerKind) {
        self.first = questions.start;
        let state = |q: usize| {
            QuestionState::new(self.engine, self.context, &self.plan.items()[q], kind(q))
        };
        self.states = questions.map(state).collect();
    }

    /// The next rows of every question whose vote is still open.
    fn next_round(&mut self) -> Vec<RowRange> {
        let states = self.states.iter_mut().enumerate().filter(|(_, state)| !state.done);
        let range = |(i, state): (usize, &mut QuestionState<'_>)| {
            state.round = state.next_rows();
            RowRange { question: self.first + i, rows: state.round.clone() }
        };
        states.map(range).collect()
    }

    /// Adds the rows of a wave to their questions: side by side, since decoding answers and
    /// comparing thoughts takes one core longer than it takes a GPU to compute them.
    fn collect(
        &mut self,
        wave: &[RowRange],
        done: FinishedRanges,
        seconds: StageSeconds,
    ) -> Result<(), EngineError> {
        self.seconds += seconds;
        let first = self.first;
        // A wave has a question once, and questions in their order. A cancelled question may have
        // been handed over before the waves of its last rows.
        let open = |(range, _): &(&RowRange, Vec<_>)| range.question >= first;
        let mut ranges = wave.iter().zip(done).filter(open).peekable();
        let states = self.states.iter_mut().enumerate();
        let work: Vec<_> = states
            .filter_map(|(i, state)| {
                Some((state, ranges.next_if(|(range, _)| range.question == first + i)?))
            })
            .collect();
        let collect = |(state, (range, rows)): (&mut QuestionState<'_>, (&RowRange, Vec<_>))| {
            state.add_rows(&range.rows, rows)
        };
        let device = self.context.model.decoder.device();
        device.run(|| work.into_par_iter().try_for_each(collect))
    }

    /// The questions that are complete and have no open one before them.
    fn take_finished(&mut self) -> Result<Vec<Finished>, EngineError> {
        let ready = self.states.iter().take_while(|state| state.done).count();
        let complete: Vec<QuestionState<'_>> = self.states.drain(..ready).collect();
        let questions = self.first..self.first + complete.len();
        self.first = questions.end;
        let mut found: Vec<Option<BeamOutput>> = complete.iter().map(|_| None).collect();
        let wanted = questions.clone().zip(&complete).filter(|(_, state)| !state.cancelled);
        for group in self.plan.searches(wanted.map(|(question, _)| question)) {
            let caches = &mut streams::lock(self.stream);
            let outputs = self.context.search(self.plan, &group, caches, &mut self.seconds)?;
            for (question, output) in group.into_iter().zip(outputs) {
                found[question - questions.start] = output;
            }
        }
        let finish = |((question, state), found): ((usize, QuestionState<'_>), _)| {
            let seconds = std::mem::take(&mut self.seconds);
            match state.finish(found, seconds) {
                Err(error @ EngineError::Cancelled { .. }) => Ok((question, Err(error))),
                reply => Ok((question, Ok(reply?))),
            }
        };
        questions.zip(complete).zip(found).map(finish).collect()
    }
}

/// A question whose rows are coming in.
struct QuestionState<'a> {
    engine: &'a Engine,
    item: BatchItem<'a>,
    costs: CostModel<'a>,
    answer_kind: AnswerKind,
    reply: Reply,
    diversity: StepDiversity,
    /// The rows of the round in progress.
    round: Range<usize>,
    cancelled: bool,
    done: bool,
}

impl<'a> QuestionState<'a> {
    fn new(
        engine: &'a Engine,
        context: BatchContext<'a>,
        item: &BatchItem<'a>,
        answer_kind: AnswerKind,
    ) -> Self {
        Self {
            engine,
            item: *item,
            costs: CostModel { context, item: *item },
            answer_kind,
            reply: Reply { id: item.prompt.id, ..Reply::default() },
            diversity: StepDiversity::new(context.model.decoder.config().width),
            round: 0..0,
            cancelled: false,
            done: false,
        }
    }

    /// The rows after those of the last round: all, or twice as many samples as there are if the
    /// vote is looked at between rounds.
    fn next_rows(&self) -> Range<usize> {
        let params = self.item.params;
        let (start, greedy) = (self.round.end, usize::from(params.greedy));
        let samples = (2 * start.saturating_sub(greedy)).max(AdaptiveSampling::FIRST_ROUND);
        let end = if params.adaptive.is_some() { greedy + samples } else { params.rows() };
        start..end.min(params.rows())
    }

    /// Adds the rows of a range of the round; fewer than the range has if the request is cancelled.
    fn add_rows(
        &mut self,
        range: &Range<usize>,
        rows: Vec<FinishedRow>,
    ) -> Result<(), EngineError> {
        if self.cancelled || rows.len() < range.len() {
            (self.cancelled, self.done) = (true, true);
            return Ok(());
        }
        if range.start == self.round.start {
            self.reply.cost += self.costs.prompt();
        }
        rows.into_iter().try_for_each(|row| self.add_row(row))?;
        if range.end == self.round.end {
            self.decide();
        }
        Ok(())
    }

    fn add_row(&mut self, row: FinishedRow) -> Result<(), EngineError> {
        self.reply.cost += self.costs.row(row.thoughts, row.tokens.len());
        let latents = row.latents.unwrap_or_default();
        if row.perturbed {
            (0..latents.rows()).for_each(|t| self.diversity.add(t, latents.row(t)));
        }
        let trajectory = Trajectory {
            number: row.id.trajectory,
            thoughts: row.thoughts,
            latents,
            lens: self.lens(row.lens)?,
            logprob: row.logprob.is_finite().then_some(row.logprob),
            ..self.trajectory(row.tokens, row.rewards)?
        };
        if row.perturbed {
            self.reply.trajectories.push(trajectory);
        } else {
            self.reply.greedy = Some(trajectory);
        }
        Ok(())
    }

    /// The text, the answer and the rewards of a row.
    fn trajectory(
        &self,
        tokens: AnswerTokens,
        rewards: Option<Rewards>,
    ) -> Result<Trajectory, EngineError> {
        let reasoner = &self.engine.reasoner;
        let text = reasoner.tokenizer.decode(&tokens)?;
        Ok(Trajectory {
            answer: reasoner.method.answer_rule.extract(self.answer_kind, &text),
            text,
            tokens,
            outcome_reward: rewards.as_ref().and_then(|rewards| rewards.outcome),
            process_rewards: rewards.map(|rewards| rewards.process),
            ..Trajectory::default()
        })
    }

    /// Tokens that a lens found, with their texts. Where a logit was NaN there is no probability
    /// and no token.
    fn lens(&self, found: Vec<Vec<TokenLogprob>>) -> Result<Vec<Vec<LensToken>>, EngineError> {
        let tokenizer = &self.engine.reasoner.tokenizer;
        let lens_token = |&TokenLogprob { token, logprob }: &TokenLogprob| {
            let text = tokenizer.decode(&[token])?;
            Ok::<_, EngineError>(LensToken { token, text, probability: logprob.exp() })
        };
        let thought = |tokens: Vec<TokenLogprob>| {
            tokens.iter().filter(|token| !token.logprob.is_nan()).map(lens_token).collect()
        };
        found.into_iter().map(thought).collect()
    }

    /// Ends the question when all samples are there or the vote is decided.
    fn decide(&mut self) {
        let params = self.item.params;
        let requested = params.samples.get();
        let left = requested - self.reply.trajectories.len();
        if let (Some(AdaptiveSampling { confidence }), 1..) = (params.adaptive, left) {
            let reason = stop_reason(&self.reply.trajectories, left, confidence);
            self.reply.stopped =
                reason.map(|reason| EarlyStop { requested: requested as u32, reason });
        }
        self.done = left == 0 || self.reply.stopped.is_some();
    }

    fn finish(self, beam: Option<BeamOutput>, seconds: StageSeconds) -> Result<Reply, EngineError> {
        let params = self.item.params;
        if self.cancelled || (params.beam.is_some() && beam.is_none()) {
            return Err(EngineError::Cancelled { id: self.reply.id });
        }
        let beam = beam.map(|beam| self.beam_reply(beam)).transpose()?;
        let rule = params.rule.unwrap_or_else(|| self.engine.default_rule());
        let chosen = rule.choose(&self.reply.trajectories, &params.vote);
        let diversity = self.diversity.values();
        Ok(Reply { beam, diversity, rule, chosen, seconds, ..self.reply })
    }

    fn beam_reply(&self, beam: BeamOutput) -> Result<BeamReply, EngineError> {
        let BeamOutput { thoughts, tokens, rewards, cost } = beam;
        let best = Trajectory { thoughts, ..self.trajectory(tokens, Some(rewards))? };
        Ok(BeamReply { best, cost })
    }
}
