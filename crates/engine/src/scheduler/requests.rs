//! The requests of the scheduler: their sequences run in the [`SequenceBatch`]; rounds of sequences
//! are scored and voted on here.

use std::sync::mpsc::{SendError, Sender};
use std::time::Instant;

use model::Cache;
use tensor::DeviceError;

use super::SchedulerStats;
use super::batch::SequenceBatch;
use super::job::{AfterRound, CompletedRequest, Job, RunningJob};
use super::token_scores::{TokenJob, TokenScores};
use crate::aligned_batch::{ensure_slots, reference_trace};
use crate::batch_plan::Footprint;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::executor::{Lookahead, ThoughtRef};
use crate::prompt::Prompt;
use crate::reasoner::RewardModel;
use crate::reference_trace::ReferenceTracer;
use crate::score::{AnswerBatch, Rewards, ScoreBatch, ScoredSequence, score};

/// The running requests.
pub(crate) struct RunningRequests<'a> {
    engine: &'a Engine,
    pub(crate) batch: SequenceBatch<'a, RunningJob<'a>>,
    token_scores: TokenScores,
    reward_cache: Option<Cache>,
    tracer: ReferenceTracer,
    /// KV memory of the reward model in bytes.
    reward_memory: usize,
    /// Number of sequences that the last step finished.
    pub(crate) num_finished: usize,
    /// Receives completed requests.
    completed: Sender<CompletedRequest>,
}

impl<'a> RunningRequests<'a> {
    /// Completed requests are sent to `completed`, which assembles their outputs.
    pub(crate) fn new(
        engine: &'a Engine,
        completed: Sender<CompletedRequest>,
        lookahead: Lookahead,
    ) -> Self {
        let memory = Self::memory(engine);
        Self {
            engine,
            batch: SequenceBatch::new(&engine.context(), memory, lookahead),
            token_scores: TokenScores::default(),
            reward_cache: None,
            tracer: ReferenceTracer::default(),
            reward_memory: memory,
            num_finished: 0,
            completed,
        }
    }

    /// KV memory in bytes of each of the two models: a request must fit both.
    pub(crate) fn memory(engine: &Engine) -> usize {
        engine.memory() / if engine.reward_model().is_some() { 2 } else { 1 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batch.sources.is_empty() && self.token_scores.is_empty()
    }

    pub(crate) fn has_room(&self, job: &Job) -> bool {
        let footprint = Footprint::of(&self.engine.context(), &job.item());
        !self.batch.is_closed && self.batch.has_room(&footprint)
    }

    pub(crate) fn join(&mut self, job: Job) {
        self.batch.join(RunningJob::new(self.engine, job));
    }

    /// Statistics of running requests; those of waiting ones are taken from `stats`.
    pub(crate) fn stats(&self, stats: SchedulerStats) -> SchedulerStats {
        let (used_slots, slots) = self.batch.slot_usage();
        let prefixes = self.batch.prefixes();
        SchedulerStats {
            running_requests: self.batch.sources.len(),
            running_sequences: self.batch.num_sequences(),
            used_slots,
            slots,
            prefix_slots: prefixes.slots(),
            prompt_tokens: prefixes.prompt_tokens,
            cached_prompt_tokens: prefixes.cached_tokens,
            ..stats
        }
    }

    /// Whether all scoring jobs are done, so that it accepts more.
    pub(crate) fn accepts_tokens(&self) -> bool {
        self.token_scores.is_empty()
    }

    pub(crate) fn score_tokens(&mut self, job: TokenJob) {
        self.token_scores.add(job);
    }

    /// Releases the memory of the caches while no request runs.
    pub(crate) fn release_caches(&mut self) {
        self.batch.release_cache();
        self.release_reward_cache();
    }

    fn release_reward_cache(&mut self) {
        self.reward_cache = None;
        self.tracer = ReferenceTracer::default();
    }

    /// Runs one step: cancelled requests leave, all sequences advance, complete rounds are scored.
    pub(crate) fn step(&mut self) -> Result<(), EngineError> {
        let cancelled = self.indices(|running| running.job.is_cancelled());
        self.batch.remove(&cancelled).into_iter().for_each(|running| running.job.cancelled());
        let model = &self.engine.reasoner().model;
        model.decoder.device().run(|| {
            // Requests that did not get memory the last time come first.
            let tokens_first = self.batch.is_closed;
            if !tokens_first {
                self.batch.admit();
            }
            self.token_scores.step(model, &mut self.batch)?;
            if tokens_first {
                self.batch.admit();
            }
            self.num_finished = self.batch.step()?;
            self.end_rounds()
        })
    }

    /// Recovers from a failed step: after an out-of-memory error, all requests restart with half
    /// the memory; requests that do not fit, or after any other error all of them, fail.
    pub(crate) fn recover(&mut self, error: &EngineError) {
        let why = error.to_string();
        let failed = match error {
            EngineError::Device(device) if device.is_out_of_memory() => self.restart_all(),
            _ => {
                self.token_scores.fail(&why);
                self.batch.clear()
            }
        };
        self.release_reward_cache();
        for running in failed {
            running.job.fail(EngineError::PassFailed { why: why.clone() });
        }
    }

    /// Restarts all sequences with half the memory. Returns the requests that do not fit.
    pub(crate) fn restart_all(&mut self) -> Vec<RunningJob<'a>> {
        self.reward_memory /= 2;
        let requests = self.batch.sources.len();
        tracing::warn!(
            requests,
            "out of device memory; restarting the requests with half the memory"
        );
        self.token_scores.restart();
        self.batch.requeue()
    }

    fn indices(&self, is_such: impl Fn(&RunningJob<'_>) -> bool) -> Vec<usize> {
        let such = self.batch.sources.iter().enumerate().filter(|(_, running)| is_such(running));
        such.map(|(index, _)| index).collect()
    }

    /// Scores complete rounds; their requests complete, or continue with the next round.
    fn end_rounds(&mut self) -> Result<(), EngineError> {
        let complete = self.indices(|running| running.round_is_complete());
        self.score(&complete)?;
        for &item in &complete {
            self.batch.sources[item].read_states()?;
        }
        let mut done = Vec::new();
        for item in complete {
            let running = &mut self.batch.sources[item];
            running.send_rewards();
            if running.is_last_round() || matches!(running.end_round()?, AfterRound::Done) {
                done.push(item);
            }
        }
        for running in self.batch.remove(&done) {
            // The receiving thread is gone only if it has panicked.
            if let Err(SendError(completed)) = self.completed.send(running.complete()) {
                completed.reply(self.engine);
            }
        }
        Ok(())
    }

    /// Scores the rounds of some requests, in as few forward passes as the memory allows.
    fn score(&mut self, items: &[usize]) -> Result<(), DeviceError> {
        let Some(reward_model) = self.engine.reward_model() else { return Ok(()) };
        let max_rows = reward_model.decoder.device().max_batch_rows();
        let mut used = 0;
        let mut group: Vec<(usize, usize)> = Vec::new();
        for &item in items {
            let (shared, own) = {
                let footprint = &self.batch.sources[item].footprint;
                (footprint.shared_bytes, footprint.row_bytes)
            };
            for row in 0..self.batch.sources[item].round().len() {
                let is_first = group.last().is_none_or(|(last, _)| *last != item);
                let need = own + if is_first { shared } else { 0 };
                if !group.is_empty()
                    && (used + need > self.reward_memory || group.len() == max_rows)
                {
                    self.score_group(reward_model, &std::mem::take(&mut group))?;
                    used = 0;
                }
                used += own + if group.is_empty() || is_first { shared } else { 0 };
                group.push((item, row));
            }
        }
        if group.is_empty() { Ok(()) } else { self.score_group(reward_model, &group) }
    }

    /// Scores sequences, each given by its request and its index in the request's round.
    fn score_group(
        &mut self,
        reward_model: &RewardModel,
        group: &[(usize, usize)],
    ) -> Result<(), DeviceError> {
        let start = Instant::now();
        let rewards = self.rewards(reward_model, group)?;
        let seconds = start.elapsed().as_secs_f64() / group.len() as f64;
        for (&(item, row), rewards) in group.iter().zip(rewards) {
            self.batch.sources[item].set_rewards(row, rewards, seconds);
        }
        Ok(())
    }

    fn rewards(
        &mut self,
        reward_model: &RewardModel,
        group: &[(usize, usize)],
    ) -> Result<Vec<Rewards>, DeviceError> {
        let sources = &self.batch.sources;
        let (mut prompts, mut sequences): (Vec<&Prompt>, Vec<ScoredSequence<'_>>) =
            Default::default();
        let mut answers = Vec::with_capacity(group.len());
        let mut slots = 0;
        for of_item in group.chunk_by(|a, b| a.0 == b.0) {
            let running = &sources[of_item[0].0];
            slots += running.footprint.reward_slots(of_item.len());
            for &(_, row) in of_item {
                let done = &running.round()[row];
                let thoughts: &[ThoughtRef] = &done.thoughts;
                sequences.push(ScoredSequence { item: prompts.len(), thoughts });
                answers.push(done.row.tokens.clone());
            }
            prompts.push(&running.job.prompt);
        }
        ensure_slots(&mut self.reward_cache, slots, &reward_model.decoder)?;
        let trace = reference_trace(reward_model, &mut self.tracer, &prompts)?;
        let end_latent = &self.engine.reasoner().method.end_latent;
        let Some(cache) = &mut self.reward_cache else { return Ok(Vec::new()) };
        let batch = ScoreBatch {
            prompts: &prompts,
            trace: trace.as_ref(),
            sequences: &sequences,
            answers: Some(AnswerBatch { end_latent, answers: &answers }),
        };
        Ok(score(reward_model, cache, batch)?.rewards)
    }
}
