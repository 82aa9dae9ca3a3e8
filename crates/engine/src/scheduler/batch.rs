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
use tensor::{DeviceError, Tensor};

use super::job::{AfterRound, CompletedRequest, Job, RunningJob, ScoredLater};
use crate::batch::BatchItem;
use crate::batch_plan::Footprint;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::executor::{
    Alignment, Executor, Gather, Lookahead, NextInput, SequenceSpec, SequenceState,
};
use crate::logprobs::{self, TokenScore};
use crate::prompt::Prompt;
use crate::question::FinishedSequence;
use crate::reference_trace::ReferenceTracer;
use crate::sampler::{RowId, Sampler};
use crate::score::{AnswerBatch, ScoreBatch, ScoredSequence, score};
use crate::wave::{ensure_slots, reference_trace};

/// Requests with rows in the KV cache.
pub(crate) struct ContinuousBatch<'a> {
    engine: &'a Engine,
    /// In the order of admission. Rows refer to them, and to `prefixes`, by index.
    jobs: Vec<RunningJob>,
    executor: Executor<'a>,
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
        let mut executor = Executor::new(&engine.reasoner().model, Alignment::Mixed);
        executor.lookahead = lookahead;
        Self {
            engine,
            jobs: Vec::new(),
            executor,
            cache: None,
            reward_cache: None,
            tracer: ReferenceTracer::default(),
            reserved: 0,
            // Whole chunks, as sequences take them.
            slots: Self::memory(engine) / bytes / Cache::slots_for(1) * Cache::slots_for(1),
            max_rows: decoder.device().max_batch_rows(),
            finished_rows: 0,
            completed,
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
        self.executor.sequences.len()
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
        let (mut rows, mut slots) = (self.executor.sequences.len(), self.reserved);
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
        self.reserved = 0;
        self.executor.clear();
        for job in self.jobs.drain(..) {
            job.job.fail(EngineError::PassFailed { why: error.to_string() });
        }
    }

    /// One pass: cancelled requests leave, rows join, all rows advance, finished ones leave.
    pub(crate) fn step(&mut self) -> Result<(), EngineError> {
        self.remove_cancelled();
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
                if self.executor.sequences.len() >= self.max_rows
                    || self.reserved + slots > self.slots
                {
                    return;
                }
                self.reserved += slots;
                let number = running.next_row;
                running.next_row += 1;
                let id = RowId { question, trajectory: number.saturating_sub(greedy) as u32 };
                let spec = SequenceSpec { item, id, perturbed: number >= greedy };
                self.executor.sequences.push(SequenceState::new(spec));
            }
        }
    }

    /// Advances every row by one pass.
    fn advance(&mut self) -> Result<(), DeviceError> {
        if self.executor.sequences.is_empty() {
            return Ok(());
        }
        self.cache()?;
        let Some(cache) = &mut self.cache else { return Ok(()) };
        let items: Vec<BatchItem<'_>> =
            self.jobs.iter().map(|running| running.job.item()).collect();
        self.executor.step(cache, Sampler::new(&items))
    }

    /// Takes the rows whose answers are complete out of the batch.
    fn collect_finished(&mut self) -> Result<(), EngineError> {
        let done = self.executor.remove(|sequence| sequence.next == NextInput::Done);
        self.finished_rows = done.len();
        if done.is_empty() {
            return Ok(());
        }
        let returns = |sequence: &SequenceState| self.jobs[sequence.spec.item].job.detail.latents;
        let returned = done.iter().filter(|sequence| returns(sequence));
        let gather = Gather::of_thoughts(returned.flat_map(|sequence| &sequence.thoughts));
        let decoder = &self.engine.reasoner().decoder;
        let latents = match gather.is_empty() {
            true => Tensor::zeros(0, decoder.config().width),
            false => gather.select(decoder.device())?.to_host()?,
        };
        let mut first = 0;
        for mut sequence in done {
            let item = sequence.spec.item;
            let mut row = FinishedSequence::new(&sequence);
            if self.jobs[item].job.detail.latents {
                let own = first..first + row.thoughts;
                first = own.end;
                row.latents = Some(latents.select(own));
            }
            row.lens = std::mem::take(&mut sequence.lens);
            let thoughts = std::mem::take(&mut sequence.thoughts);
            self.release(sequence);
            self.jobs[item].finish_row(self.engine, ScoredLater { row, thoughts })?;
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
        let mut slots = 0;
        let (mut sequences, mut answers) = (Vec::new(), Vec::new());
        for (i, &item) in items.iter().enumerate() {
            let own = rows.iter().filter(|(of, _)| *of == i);
            slots += self.jobs[item].footprint.reward_slots(own.clone().count());
            let finished: Vec<&ScoredLater> = self.jobs[item].finished_rows().collect();
            for &(_, place) in own {
                let done = finished[place];
                sequences.push(ScoredSequence { item: i, thoughts: &done.thoughts });
                answers.push(done.row.tokens.clone());
            }
        }
        ensure_slots(&mut self.reward_cache, slots, &reward_model.decoder)?;
        let prompts: Vec<&Prompt> = items.iter().map(|&item| &self.jobs[item].job.prompt).collect();
        let trace = reference_trace(reward_model, &mut self.tracer, &prompts)?;
        let end_latent = &model.method.end_latent;
        let Some(cache) = &mut self.reward_cache else { return Ok(()) };
        let to_score = ScoreBatch {
            prompts: &prompts,
            trace: trace.as_ref(),
            sequences: &sequences,
            answers: Some(AnswerBatch { end_latent, answers: &answers }),
        };
        let rewards = score(reward_model, cache, to_score)?.rewards;
        for (&(of, place), rewards) in rows.iter().zip(rewards) {
            if let Some(done) = self.jobs[items[of]].finished_rows_mut().nth(place) {
                done.row.rewards = Some(rewards);
            }
        }
        Ok(())
    }

    /// Takes the rows of cancelled requests out of the batch, and the requests.
    fn remove_cancelled(&mut self) {
        let cancelled: Vec<usize> =
            (0..self.jobs.len()).filter(|&i| self.jobs[i].job.is_cancelled()).collect();
        self.remove(&cancelled).into_iter().for_each(|running| running.job.cancelled());
    }

    /// Takes requests, by ascending index, out of the batch, with their rows and prefixes.
    fn remove(&mut self, items: &[usize]) -> Vec<RunningJob> {
        if items.is_empty() {
            return Vec::new();
        }
        // A request that is complete has no rows any more; one that is cancelled has.
        let leaves = |sequence: &SequenceState| items.binary_search(&sequence.spec.item).is_ok();
        for sequence in self.executor.remove(leaves) {
            self.release(sequence);
        }
        let prefixes = self.executor.remove_items(items);
        if let Some(cache) = &mut self.cache {
            prefixes.into_iter().for_each(|prefix| cache.release(prefix.kv, 0));
        }
        let mut removed = Vec::with_capacity(items.len());
        for &item in items.iter().rev() {
            let running = self.jobs.remove(item);
            self.reserved -= running.footprint.shared_slots();
            removed.push(running);
        }
        removed.reverse();
        removed
    }

    /// Frees the slots of a row that leaves.
    fn release(&mut self, sequence: SequenceState) {
        let running = &self.jobs[sequence.spec.item];
        let shared = running.job.item().shared_tokens();
        self.reserved -= running.footprint.own_slots();
        if let Some(cache) = self.cache.as_mut().filter(|_| !sequence.kv.is_empty()) {
            cache.release(sequence.kv, shared);
        }
    }
}
