//! The continuous batch: at every pass rows join, advance by one stage, and leave.
//!
//! A pass holds the prompts of rows that join, one thought or the end tokens of rows that think,
//! and one token of rows that answer. A row's slots are reserved when it joins, so that a pass
//! never lacks memory; they are free again when it leaves. Rewards are read once a request's
//! round of rows is complete, in one pass of the reward model for all requests that are.
//!
//! A GPU is not kept waiting for the host: the next pass is queued before the tokens of the last
//! one are read, with these as they are on the device, and as if no answer ended with them. A row
//! whose answer did end has then fed one token too many, which nothing reads.

use std::sync::mpsc::{SendError, Sender};

use model::Cache;
use smallvec::SmallVec;
use tensor::{DeviceError, Tensor, ops};

use super::job::{
    AfterRound, CompletedRequest, Job, NextFeed, Prefix, RowProgress, RunningJob, ScoredLater,
};
use super::pass::{PassBuilder, ThoughtParts};
use super::step::{BatchStep, HiddenStates, PendingAnswers, StartedRow};
use crate::batch::BatchItem;
use crate::batch_plan::Footprint;
use crate::decode::AnswerTokens;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::logprobs::{self, TokenScore};
use crate::prefill::RowSpec;
use crate::prompt::Prompt;
use crate::reference_trace::ReferenceTracer;
use crate::sampler::{RowId, Sampler};
use crate::score::{AnswerBatch, ScoreBatch, score};
use crate::think::{Row, ThoughtBatch};
use crate::wave::{FinishedRow, ensure_slots, reference_trace};

/// Requests with rows in the KV cache.
pub(crate) struct ContinuousBatch<'a> {
    engine: &'a Engine,
    /// In the order of admission. Rows refer to them, and to `prefixes`, by index.
    jobs: Vec<RunningJob>,
    prefixes: Vec<Option<Prefix>>,
    rows: Vec<Row>,
    progress: Vec<RowProgress>,
    cache: Option<Cache>,
    reward_cache: Option<Cache>,
    tracer: ReferenceTracer,
    /// Slots that are reserved for the jobs and rows of the batch.
    reserved: usize,
    slots: usize,
    max_rows: usize,
    /// Rows that the last pass finished.
    finished_rows: usize,
    /// Takes the requests that are complete.
    completed: Sender<CompletedRequest>,
    /// The tokens of the last pass, where they are not read yet.
    pending: Option<PendingAnswers>,
    lookahead: Lookahead,
}

/// When the next pass is queued before the tokens of the last one are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookahead {
    /// While a device still computes them.
    WhileComputed,
    /// Always: on a processor what a GPU does, for tests.
    Always,
}

impl<'a> ContinuousBatch<'a> {
    /// Requests that are complete are sent to `completed`, to be replied to.
    pub(crate) fn new(
        engine: &'a Engine,
        completed: Sender<CompletedRequest>,
        lookahead: Lookahead,
    ) -> Self {
        let decoder = &engine.reasoner().decoder;
        let bytes = Cache::bytes_per_position(decoder.device(), decoder.config());
        Self {
            engine,
            jobs: Vec::new(),
            prefixes: Vec::new(),
            rows: Vec::new(),
            progress: Vec::new(),
            cache: None,
            reward_cache: None,
            tracer: ReferenceTracer::default(),
            reserved: 0,
            // Whole chunks, as sequences take them.
            slots: Self::memory(engine) / bytes / Cache::slots_for(1) * Cache::slots_for(1),
            max_rows: decoder.device().max_batch_rows(),
            finished_rows: 0,
            completed,
            pending: None,
            lookahead,
        }
    }

    /// Bytes of keys and values of each of the two models: a request must fit them.
    pub(crate) fn memory(engine: &Engine) -> usize {
        engine.memory() / if engine.reward_model().is_some() { 2 } else { 1 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(crate) fn running_requests(&self) -> usize {
        self.jobs.len()
    }

    pub(crate) fn running_rows(&self) -> usize {
        self.rows.len()
    }

    /// Rows that the last pass finished.
    pub(crate) fn finished_rows(&self) -> usize {
        self.finished_rows
    }

    /// Slots that are reserved, and all of them.
    pub(crate) fn slot_usage(&self) -> (usize, usize) {
        (self.reserved, self.slots)
    }

    /// Whether a request can join: beside all rows before it there is memory for one of its own.
    pub(crate) fn has_room(&self, job: &Job) -> bool {
        let (mut rows, mut slots) = (self.rows.len(), self.reserved);
        for before in &self.jobs {
            rows += before.waiting_rows();
            slots += before.waiting_rows() * before.footprint.own_slots();
        }
        let footprint = Footprint::of(&self.engine.context(), &job.item());
        let need = footprint.shared_slots() + footprint.own_slots();
        rows < self.max_rows && slots + need <= self.slots
    }

    /// Lets a request join that has room. Its rows enter with the next pass.
    pub(crate) fn join(&mut self, job: Job) {
        let job = RunningJob::new(self.engine, job);
        self.reserved += job.footprint.shared_slots();
        self.jobs.push(job);
        self.prefixes.push(None);
    }

    /// Whether there is memory for so many positions.
    pub(crate) fn has_slots(&self, positions: usize) -> bool {
        self.reserved + Cache::slots_for(positions) <= self.slots
    }

    /// Scores tokens, for which there is memory, in a pass of their own.
    pub(crate) fn score_tokens(&mut self, tokens: &[u32]) -> Result<Vec<TokenScore>, DeviceError> {
        let model = &self.engine.reasoner().model;
        let device = model.decoder.device();
        device.run(|| logprobs::score_tokens(model, self.cache()?, tokens))
    }

    /// Gives the memory of the caches back, while the batch is empty.
    pub(crate) fn release_caches(&mut self) {
        (self.cache, self.reward_cache) = (None, None);
        self.tracer = ReferenceTracer::default();
    }

    /// Ends every request with an error: a pass has failed. Where the device had not the memory for
    /// it, the next batch has half of the slots.
    pub(crate) fn fail(&mut self, error: &EngineError) {
        if matches!(error, EngineError::Device(device) if device.is_out_of_memory()) {
            self.slots = Cache::slots_for(self.slots / 2);
        }
        self.release_caches();
        (self.reserved, self.rows, self.progress) = (0, Vec::new(), Vec::new());
        self.pending = None;
        self.prefixes.clear();
        for job in self.jobs.drain(..) {
            job.job.fail(EngineError::PassFailed { why: error.to_string() });
        }
    }

    /// One pass: cancelled requests leave, rows join, all rows advance, finished ones leave.
    pub(crate) fn step(&mut self) -> Result<(), EngineError> {
        self.remove_cancelled()?;
        self.admit_rows();
        let device = self.engine.reasoner().decoder.device();
        device.run(|| {
            self.advance()?;
            self.collect_finished()?;
            self.end_rounds()
        })
    }

    fn cache(&mut self) -> Result<&mut Cache, DeviceError> {
        let decoder = &self.engine.reasoner().decoder;
        match &mut self.cache {
            Some(cache) => Ok(cache),
            none => Ok(none.insert(Cache::new(decoder.device(), decoder.config(), self.slots)?)),
        }
    }

    /// Rows enter in the order of their requests, as far as there is memory.
    fn admit_rows(&mut self) {
        for (item, running) in self.jobs.iter_mut().enumerate() {
            let (params, question) = (&running.job.request.params, running.job.prompt.id);
            let greedy = usize::from(params.greedy);
            while running.waiting_rows() > 0 {
                let slots = running.footprint.own_slots();
                if self.rows.len() >= self.max_rows || self.reserved + slots > self.slots {
                    return;
                }
                self.reserved += slots;
                let number = running.next_row;
                running.next_row += 1;
                let id = RowId { question, trajectory: number.saturating_sub(greedy) as u32 };
                self.rows.push(Row::new(RowSpec { item, id, perturbed: number >= greedy }));
                self.progress.push(RowProgress {
                    number,
                    limit: 0,
                    thoughts: SmallVec::new(),
                    tokens: AnswerTokens::new(),
                    logprob: 0.0,
                    next: NextFeed::Prompt,
                });
            }
        }
    }

    /// Advances every row by one pass.
    fn advance(&mut self) -> Result<(), DeviceError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        self.cache()?;
        let Self { engine, jobs, prefixes, rows, progress, cache, pending, .. } = self;
        let Some(cache) = cache else { return Ok(()) };
        let model = &engine.reasoner().model;
        let items: Vec<BatchItem<'_>> = jobs.iter().map(|running| running.job.item()).collect();
        let step = BatchStep { engine, sampler: Sampler::new(&items) };
        let mut pass = PassBuilder::default();
        let mut outputs = Vec::new();
        let fed: Vec<NextFeed> = progress.iter().map(|progress| progress.next).collect();
        let mut places = Vec::with_capacity(rows.len());
        for (row, progress) in rows.iter_mut().zip(progress.iter_mut()) {
            places.push(match progress.next {
                NextFeed::Prompt => {
                    progress.limit = step.sampler.max_thoughts(row);
                    let prefix = &mut prefixes[row.spec.item];
                    let start = StartedRow { pass: &mut pass, prefix, outputs: &mut outputs };
                    step.start(cache, row, start)
                }
                _ => step.feed(cache, row, progress, &mut pass),
            });
        }
        let embedded = pending.as_ref().and_then(PendingAnswers::embedded);
        let hidden = pass.forward(model, cache, embedded)?;
        let device = model.decoder.device();
        for (item, output) in outputs {
            if let (Some(prefix), Some(hidden)) = (&mut prefixes[item], &hidden) {
                prefix.hidden = Some(ops::select(device, [hidden], &[output])?);
            }
        }
        let hidden = HiddenStates::new(hidden, prefixes, rows, &places);
        step.think(&hidden, rows, progress)?;
        if let Some(before) = pending.take() {
            before.read(&model.method, progress)?;
        }
        let Some(mut tokens) = step.answer(&hidden, &fed, rows, progress)? else { return Ok(()) };
        let looks_ahead = !tokens.is_ready() || self.lookahead == Lookahead::Always;
        if looks_ahead && tokens.embed(model)? {
            *pending = Some(tokens);
            return Ok(());
        }
        tokens.read(&model.method, progress)
    }

    /// Reads the tokens of the last pass, if they are not read yet.
    fn read_pending(&mut self) -> Result<(), DeviceError> {
        let Some(pending) = self.pending.take() else { return Ok(()) };
        pending.read(&self.engine.reasoner().model.method, &mut self.progress)
    }

    /// Takes the rows whose answers are complete out of the batch.
    fn collect_finished(&mut self) -> Result<(), EngineError> {
        let is_done = |progress: &RowProgress| progress.next == NextFeed::Done;
        self.finished_rows = 0;
        if !self.progress.iter().any(is_done) {
            return Ok(());
        }
        if let Some(pending) = &mut self.pending {
            let mut kept = 0..;
            let place = |progress: &RowProgress| match is_done(progress) {
                true => usize::MAX, // no token of it is pending
                false => kept.next().unwrap_or_default(),
            };
            pending.move_rows(&self.progress.iter().map(place).collect::<Vec<usize>>());
        }
        let (mut done, mut parts, mut places) = (Vec::new(), ThoughtParts::default(), Vec::new());
        let rows = std::mem::take(&mut self.rows).into_iter();
        for (mut row, progress) in rows.zip(std::mem::take(&mut self.progress)) {
            if is_done(&progress) {
                if self.jobs[row.spec.item].job.detail.latents {
                    places.extend(progress.thoughts.iter().map(|thought| parts.place(thought)));
                }
                let (spec, lens) = (row.spec, std::mem::take(&mut row.lens));
                self.release_row(row);
                done.push((spec, lens, progress));
            } else {
                self.rows.push(row);
                self.progress.push(progress);
            }
        }
        let config = self.engine.reasoner().decoder.config();
        let device = self.engine.reasoner().decoder.device();
        let latents = match places.is_empty() {
            true => Tensor::zeros(0, config.width),
            false => ops::select(device, parts.parts(), &places)?.to_host()?,
        };
        self.finished_rows = done.len();
        let mut first = 0;
        for (RowSpec { item, id, perturbed }, lens, progress) in done {
            let RowProgress { number, thoughts, tokens, logprob, .. } = progress;
            let returns_latents = self.jobs[item].job.detail.latents;
            let own = first..first + if returns_latents { thoughts.len() } else { 0 };
            first = own.end;
            let row = FinishedRow {
                id,
                perturbed,
                thoughts: thoughts.len(),
                latents: returns_latents.then(|| latents.select(own)),
                lens,
                tokens,
                logprob,
                rewards: None,
            };
            let done = ScoredLater { row, thoughts };
            self.jobs[item].finish_row(self.engine, number, done)?;
        }
        Ok(())
    }

    /// Scores the rounds that are complete; their requests reply, or go on with the next round.
    fn end_rounds(&mut self) -> Result<(), EngineError> {
        let complete: Vec<usize> =
            (0..self.jobs.len()).filter(|&i| self.jobs[i].round_is_complete()).collect();
        self.score(&complete)?;
        let mut done = Vec::new();
        for item in complete {
            let running = &mut self.jobs[item];
            running.send_rewards();
            if running.is_last_round()
                || matches!(running.end_round(self.engine)?, AfterRound::Done)
            {
                done.push(item);
            }
        }
        for running in self.remove(&done) {
            // The thread that replies is gone only if it has panicked.
            if let Err(SendError(completed)) = self.completed.send(running.complete()) {
                completed.reply(self.engine);
            }
        }
        Ok(())
    }

    /// Scores the finished rows of some requests, in as few passes as the memory allows.
    fn score(&mut self, jobs: &[usize]) -> Result<(), DeviceError> {
        if self.engine.reward_model().is_none() {
            return Ok(());
        }
        let (memory, max_rows) = (Self::memory(self.engine), self.max_rows);
        let (mut used, mut group, mut prompts) = (0, Vec::new(), Vec::new());
        let mut groups = Vec::new();
        for &item in jobs {
            let footprint = self.jobs[item].footprint.clone();
            for place in 0..self.jobs[item].finished_rows().count() {
                let shared = if prompts.last() == Some(&item) { 0 } else { footprint.shared_bytes };
                if used + shared + footprint.row_bytes > memory || group.len() == max_rows {
                    groups.push((std::mem::take(&mut prompts), std::mem::take(&mut group)));
                    used = 0;
                }
                if prompts.last() != Some(&item) {
                    prompts.push(item);
                    used += footprint.shared_bytes;
                }
                used += footprint.row_bytes;
                group.push((prompts.len() - 1, place));
            }
        }
        groups.push((prompts, group));
        groups.iter().try_for_each(|(jobs, rows)| self.score_rows(jobs, rows))
    }

    /// Scores rows, each the place of its request in `items` and its own place in the round.
    fn score_rows(&mut self, items: &[usize], rows: &[(usize, usize)]) -> Result<(), DeviceError> {
        let model = &self.engine.reasoner().model;
        let Some(reward_model) = self.engine.reward_model().filter(|_| !rows.is_empty()) else {
            return Ok(());
        };
        let device = reward_model.decoder.device();
        let mut slots = 0;
        let (mut batch, mut parts) = (ThoughtBatch::default(), ThoughtParts::default());
        let (mut answers, mut places) = (Vec::new(), Vec::new());
        for (i, &item) in items.iter().enumerate() {
            let own: Vec<usize> =
                rows.iter().filter(|(of, _)| *of == i).map(|&(_, place)| place).collect();
            slots += self.jobs[item].footprint.reward_slots(own.len());
            let finished: Vec<&mut ScoredLater> = self.jobs[item].finished_rows().collect();
            for &place in &own {
                let done = &finished[place];
                let spec = RowSpec { item: i, id: done.row.id, perturbed: done.row.perturbed };
                let mut row = Row::new(spec);
                row.thoughts = (places.len()..places.len() + done.thoughts.len()).collect();
                places.extend(done.thoughts.iter().map(|thought| parts.place(thought)));
                batch.rows.push(row);
                answers.push(done.row.tokens.clone());
            }
        }
        if !places.is_empty() {
            batch.steps.push(ops::select(device, parts.parts(), &places)?);
        }
        ensure_slots(&mut self.reward_cache, slots, &reward_model.decoder)?;
        let prompts: Vec<&Prompt> = items.iter().map(|&item| &self.jobs[item].job.prompt).collect();
        let trace = reference_trace(reward_model, &mut self.tracer, &prompts)?;
        let end_latent = &model.method.end_latent;
        let Some(cache) = &mut self.reward_cache else { return Ok(()) };
        let to_score = ScoreBatch {
            prompts: &prompts,
            trace: trace.as_ref(),
            thoughts: &batch,
            answers: Some(AnswerBatch { end_latent, answers: &answers }),
        };
        let rewards = score(reward_model, cache, to_score)?.rewards;
        for (&(of, place), rewards) in rows.iter().zip(rewards) {
            if let Some(done) = self.jobs[items[of]].finished_rows().nth(place) {
                done.row.rewards = Some(rewards);
            }
        }
        Ok(())
    }

    /// Takes the rows of cancelled requests out of the batch, and the requests.
    fn remove_cancelled(&mut self) -> Result<(), DeviceError> {
        let cancelled: Vec<usize> =
            (0..self.jobs.len()).filter(|&i| self.jobs[i].job.is_cancelled()).collect();
        if !cancelled.is_empty() {
            self.read_pending()?; // it knows rows by their indices
        }
        self.remove(&cancelled).into_iter().for_each(|running| running.job.cancelled());
        Ok(())
    }

    /// Takes requests, by ascending index, out of the batch, with their rows and prefixes.
    fn remove(&mut self, items: &[usize]) -> Vec<RunningJob> {
        if items.is_empty() {
            return Vec::new();
        }
        let leaves = |row: &Row| items.binary_search(&row.spec.item).is_ok();
        // A request that is complete has no rows any more; one that is cancelled has.
        if self.rows.iter().any(leaves) {
            let rows = std::mem::take(&mut self.rows).into_iter();
            for (row, progress) in rows.zip(std::mem::take(&mut self.progress)) {
                if leaves(&row) {
                    self.release_row(row);
                } else {
                    self.rows.push(row);
                    self.progress.push(progress);
                }
            }
        }
        for row in &mut self.rows {
            row.spec.item -= items.partition_point(|&item| item < row.spec.item);
        }
        let mut removed = Vec::with_capacity(items.len());
        for &item in items.iter().rev() {
            if let (Some(prefix), Some(cache)) = (self.prefixes.remove(item), &mut self.cache) {
                cache.release(prefix.sequence, 0);
            }
            let running = self.jobs.remove(item);
            self.reserved -= running.footprint.shared_slots();
            removed.push(running);
        }
        removed.reverse();
        removed
    }

    /// Frees the slots of a row that leaves.
    fn release_row(&mut self, row: Row) {
        let running = &self.jobs[row.spec.item];
        let shared = running.job.item().shared_tokens();
        self.reserved -= running.footprint.own_slots();
        if let Some(cache) = self.cache.as_mut().filter(|_| !row.sequence.is_empty()) {
            cache.release(row.sequence, shared);
        }
    }
}
