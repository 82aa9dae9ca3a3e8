//! One wave of rows through the stages, with the time of each.

use std::time::Instant;

use model::{Cache, Decoder};
use tensor::ops::TokenLogprob;
use tensor::{DeviceError, Tensor};

use crate::batch::{BatchContext, BatchItem};
use crate::batch_plan::{BatchPlan, CacheSlots, RowRange};
use crate::beam_search::{BeamOutput, BeamSearch};
use crate::decode::{AnswerTokens, decode};
use crate::error::EngineError;
use crate::first_expansion::{FinishedWave, FirstExpansion, SearchedQuestion};
use crate::prefill::{RowSpec, prefill};
use crate::prompt::Prompt;
use crate::reasoner::RewardModel;
use crate::reference_trace::{ReferenceTrace, ReferenceTracer};
use crate::reply::StageSeconds;
use crate::sampler::{RowId, Sampler};
use crate::score::{AnswerBatch, Rewards, ScoreBatch, score};
use crate::streams::{StageClock, StreamJobs, StreamState};
use crate::think::{Row, ThinkParams, ThoughtBatch, think};

/// A row with its answer.
pub(crate) struct FinishedRow {
    pub(crate) id: RowId,
    pub(crate) perturbed: bool,
    /// Number of thoughts.
    pub(crate) thoughts: usize,
    /// (thoughts, width), if latents are returned.
    pub(crate) latents: Option<Tensor>,
    /// See [`Row::lens`].
    pub(crate) lens: Vec<Vec<TokenLogprob>>,
    pub(crate) tokens: AnswerTokens,
    pub(crate) logprob: f32,
    pub(crate) rewards: Option<Rewards>,
}

impl FinishedRow {
    /// A row that has its thoughts and no answer yet.
    fn new(row: &mut Row) -> Self {
        let RowSpec { id, perturbed, .. } = row.spec;
        Self {
            id,
            perturbed,
            thoughts: row.thoughts.len(),
            latents: None,
            lens: std::mem::take(&mut row.lens),
            tokens: AnswerTokens::new(),
            logprob: 0.0,
            rewards: None,
        }
    }
}

/// The rows of a wave's ranges, in their order. A range whose request was cancelled lacks rows.
pub(crate) type FinishedRanges = Vec<Vec<FinishedRow>>;

impl BatchContext<'_> {
    /// Runs waves on the plan's streams and hands over the rows of each one, in their order.
    pub(crate) fn run_waves<X: From<EngineError>>(
        &self,
        plan: &BatchPlan<'_>,
        waves: &[Vec<RowRange>],
        streams: &[StreamState<WaveCaches>],
        mut take: impl FnMut(&[RowRange], FinishedRanges, StageSeconds) -> Result<(), X>,
    ) -> Result<(), X> {
        let each = |wave: &Vec<RowRange>, caches: &mut WaveCaches| {
            let mut seconds = StageSeconds::default();
            let done = self.run_wave(plan, wave, caches, &mut seconds)?;
            Ok::<_, EngineError>((done, seconds))
        };
        let mut clock = StageClock::start(streams.len().min(waves.len()));
        let jobs = StreamJobs { device: self.model.decoder.device(), streams, jobs: waves, each };
        jobs.run(|wave, (done, seconds)| take(wave, done, clock.lap(seconds)))
    }

    /// Runs a wave through the stages, in halves if the device has not the memory for it at once.
    fn run_wave(
        &self,
        plan: &BatchPlan<'_>,
        wave: &[RowRange],
        caches: &mut WaveCaches,
        seconds: &mut StageSeconds,
    ) -> Result<FinishedRanges, DeviceError> {
        let device = self.model.decoder.device();
        let ready = caches.ensure(self, plan, plan.slots(wave));
        let done =
            ready.and_then(|caches| device.run(|| self.try_wave(plan, wave, caches, seconds)));
        let rows: usize = wave.iter().map(|range| range.rows.len()).sum();
        match done {
            Err(e) if e.is_out_of_memory() && rows > 1 => {
                *caches = WaveCaches::default();
                let (first, second) = split_wave(wave);
                let mut done = self.run_wave(plan, &first, caches, seconds)?;
                let mut rest = self.run_wave(plan, &second, caches, seconds)?.into_iter();
                // A range that was split is in both halves: its rows belong together again.
                if first.last().map(|r| r.question) == second.first().map(|r| r.question) {
                    let last = done.pop().unwrap_or_default();
                    done.push(last.into_iter().chain(rest.next().unwrap_or_default()).collect());
                }
                done.extend(rest);
                Ok(done)
            }
            other => other,
        }
    }

    fn try_wave(
        &self,
        plan: &BatchPlan<'_>,
        wave: &[RowRange],
        caches: &mut WaveCaches,
        seconds: &mut StageSeconds,
    ) -> Result<FinishedRanges, DeviceError> {
        let mut done: FinishedRanges = wave.iter().map(|_| Vec::new()).collect();
        let item_of = |&i: &usize| plan.items()[wave[i].question];
        let active: Vec<usize> =
            (0..wave.len()).filter(|i| !item_of(i).cancel.is_cancelled()).collect();
        let WaveCaches { model: Some(cache), reward_model: reward_cache, tracer, traced, first } =
            caches
        else {
            return Ok(done);
        };
        if active.is_empty() {
            return Ok(done);
        }
        let items: Vec<BatchItem<'_>> = active.iter().map(item_of).collect();
        let ranges = active.iter().map(|&i| &wave[i]);
        let specs = ranges.enumerate().flat_map(|(i, range)| row_specs(i, &items[i], range));
        let specs: Vec<RowSpec> = specs.collect();
        let sampler = Sampler::new(&items);
        let device = self.model.decoder.device();
        // No host sync between stages: the next stage is queued while the device still runs the
        // last.
        let start = device.record_event()?;
        let prefilled = prefill(self.model, cache, &specs, sampler)?;
        let after_prefill = device.record_event()?;
        let mut thoughts = think(self.model, cache, prefilled, ThinkParams::new(sampler))?;
        thoughts.drop_cancelled(self.model, sampler)?;
        if thoughts.rows.is_empty() {
            return Ok(done);
        }
        let after_thoughts = device.record_event()?;
        // While the device thinks: everything about the rows but their answers.
        for rows in thoughts.rows.chunk_by_mut(|a, b| a.spec.item == b.spec.item) {
            done[active[rows[0].spec.item]] = rows.iter_mut().map(FinishedRow::new).collect();
        }
        let answers = decode(self.model, cache, &mut thoughts, sampler)?;
        let after_answers = device.record_event()?;
        let scores = match self.reward_model.zip(reward_cache.as_mut()) {
            Some((reward_model, reward_cache)) => {
                let prompts: Vec<&Prompt> = items.iter().map(|item| item.prompt).collect();
                let trace = reference_trace(reward_model, tracer, &prompts)?;
                let end_latent = &self.model.method.end_latent;
                let batch = ScoreBatch {
                    prompts: &prompts,
                    trace: trace.as_ref(),
                    thoughts: &thoughts,
                    answers: Some(AnswerBatch { end_latent, answers: &answers.tokens }),
                };
                let scores = score(reward_model, reward_cache, batch)?;
                let questions = active.iter().map(|&i| wave[i].question).collect();
                *traced = trace.map(|trace| TracedQuestions { questions, trace });
                if plan.holds_searches(wave) {
                    let range = |item: usize| &wave[active[item]];
                    let searched = searched_questions(plan, range, &thoughts);
                    let (thoughts, scores) = (&thoughts, &scores);
                    *first = FinishedWave { thoughts, scores, cache, reward_cache }
                        .first_expansion(device, &searched)?;
                }
                Some(scores)
            }
            None => None,
        };
        let after_scores = device.record_event()?;
        let laps = StageSeconds {
            prefill: start.elapsed(&after_prefill)?,
            thoughts: after_prefill.elapsed(&after_thoughts)?,
            answers: after_thoughts.elapsed(&after_answers)?,
            scores: if scores.is_some() { after_answers.elapsed(&after_scores)? } else { 0.0 },
            ..StageSeconds::default()
        };
        let total = laps.prefill + laps.thoughts + laps.scores + laps.answers;
        *seconds += StageSeconds { total, ..laps };

        let width = self.model.decoder.config().width;
        let latents = if self.return_latents { Some(thoughts.to_host(width)?) } else { None };
        let mut rewards = scores.map(|scores| scores.rewards.into_iter());
        let decoded = answers.tokens.into_iter().zip(answers.logprobs);
        let rows = done.iter_mut().flatten();
        for ((row, (tokens, logprob)), from) in rows.zip(decoded).zip(&thoughts.rows) {
            (row.tokens, row.logprob) = (tokens, logprob);
            row.latents = latents.as_ref().map(|all| all.select(from.thoughts.iter().copied()));
            row.rewards = rewards.as_mut().and_then(Iterator::next);
        }
        Ok(done)
    }

    /// Searches for the best paths of some questions of equal parameters, in halves if the device
    /// has not the memory for them at once. `None` for a question whose request was cancelled.
    pub(crate) fn search(
        &self,
        plan: &BatchPlan<'_>,
        questions: &[usize],
        caches: &mut WaveCaches,
        seconds: &mut StageSeconds,
    ) -> Result<Vec<Option<BeamOutput>>, DeviceError> {
        let (device, start) = (self.model.decoder.device(), Instant::now());
        let ready = match caches.hold_searches(questions) {
            true => Ok(&mut *caches),
            false => caches.ensure(self, plan, plan.search_slots(questions)),
        };
        let found =
            ready.and_then(|caches| device.run(|| self.try_search(plan, questions, caches)));
        let elapsed = start.elapsed().as_secs_f64();
        (seconds.beam, seconds.total) = (seconds.beam + elapsed, seconds.total + elapsed);
        match found {
            Err(e) if e.is_out_of_memory() && questions.len() > 1 => {
                *caches = WaveCaches::default();
                let (first, second) = questions.split_at(questions.len() / 2);
                let mut found = self.search(plan, first, caches, seconds)?;
                found.extend(self.search(plan, second, caches, seconds)?);
                Ok(found)
            }
            other => other,
        }
    }

    fn try_search(
        &self,
        plan: &BatchPlan<'_>,
        questions: &[usize],
        caches: &mut WaveCaches,
    ) -> Result<Vec<Option<BeamOutput>>, DeviceError> {
        let items: Vec<BatchItem<'_>> = questions.iter().map(|&q| plan.items()[q]).collect();
        let nothing = || Ok(items.iter().map(|_| None).collect());
        let size = items.first().and_then(|item| item.params.beam);
        let (Some(reward_model), Some(size)) = (self.reward_model, size) else { return nothing() };
        let device = self.model.decoder.device();
        let WaveCaches { model, reward_model: reward_cache, tracer, traced, first } = caches;
        let (Some(cache), Some(reward_cache)) = (model, reward_cache) else { return nothing() };
        let search =
            BeamSearch { context: *self, reward_model, size, sampler: Sampler::new(&items) };
        if let Some(first) = first.as_ref().filter(|first| first.holds(questions)) {
            let start = first.start(device, questions, cache, reward_cache)?;
            return search.run_from(start, cache, reward_cache);
        }
        let prompts: Vec<&Prompt> = items.iter().map(|item| item.prompt).collect();
        let places = traced.as_ref().and_then(|traced| traced.places(questions));
        let trace = match traced.as_ref().zip(places) {
            Some((traced, places)) => Some(traced.trace.select(device, &places)?),
            None => reference_trace(reward_model, tracer, &prompts)?,
        };
        search.run(&prompts, trace.as_ref(), cache, reward_cache)
    }
}

/// The greedy row, if there is one, comes first, so that later rounds of samples follow on.
fn row_specs(
    index: usize,
    item: &BatchItem<'_>,
    range: &RowRange,
) -> impl Iterator<Item = RowSpec> + use<> {
    let (question, greedy) = (item.prompt.id, usize::from(item.params.greedy));
    let spec = move |row: usize| {
        let trajectory = row.saturating_sub(greedy) as u32;
        RowSpec { item: index, id: RowId { question, trajectory }, perturbed: row >= greedy }
    };
    range.rows.clone().map(spec)
}

/// The questions of a wave's items whose searches can begin with its rows.
fn searched_questions<'w>(
    plan: &BatchPlan<'_>,
    range_of: impl Fn(usize) -> &'w RowRange,
    thoughts: &ThoughtBatch,
) -> Vec<SearchedQuestion> {
    let (mut searched, mut start) = (Vec::new(), 0);
    for rows in thoughts.rows.chunk_by(|a, b| a.spec.item == b.spec.item) {
        let range = range_of(rows[0].spec.item);
        if let Some(first) = plan.first_extensions(range) {
            let prompt_len = plan.items()[range.question].prompt_len();
            let rows = start + first.start..start + first.end;
            searched.push(SearchedQuestion { question: range.question, prompt_len, rows });
        }
        start += rows.len();
    }
    searched
}

/// The reference reasoner's thoughts about the prompts, where the reward model has one.
pub(crate) fn reference_trace(
    reward_model: &RewardModel,
    tracer: &mut ReferenceTracer,
    prompts: &[&Prompt],
) -> Result<Option<ReferenceTrace>, DeviceError> {
    reward_model.reference.as_ref().map(|model| tracer.trace(model, prompts)).transpose()
}

/// A wave as two of about as many rows, in order.
fn split_wave(wave: &[RowRange]) -> (Vec<RowRange>, Vec<RowRange>) {
    let mut left = wave.iter().map(|range| range.rows.len()).sum::<usize>() / 2;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for RowRange { question, rows } in wave {
        let cut = rows.start + left.min(rows.len());
        left -= cut - rows.start;
        for (half, rows) in [(&mut first, rows.start..cut), (&mut second, cut..rows.end)] {
            if !rows.is_empty() {
                half.push(RowRange { question: *question, rows });
            }
        }
    }
    (first, second)
}

/// KV caches that are kept from wave to wave.
#[derive(Default)]
pub(crate) struct WaveCaches {
    model: Option<Cache>,
    reward_model: Option<Cache>,
    tracer: ReferenceTracer,
    /// What the searches that follow a wave would trace again.
    traced: Option<TracedQuestions>,
    /// What they begin with, as long as the caches hold the wave.
    first: Option<FirstExpansion>,
}

/// The reference traces of a wave's questions.
struct TracedQuestions {
    /// Indices of the plan's items.
    questions: Vec<usize>,
    trace: ReferenceTrace,
}

impl TracedQuestions {
    /// The places of some questions; `None` unless all are there.
    fn places(&self, questions: &[usize]) -> Option<Vec<usize>> {
        let place = |question| self.questions.iter().position(|traced| traced == question);
        questions.iter().map(place).collect()
    }
}

impl WaveCaches {
    /// The memory alone, for the waves of another run.
    pub(crate) fn without_contents(self) -> Self {
        Self { model: self.model, reward_model: self.reward_model, ..Self::default() }
    }

    /// Whether they hold the first extensions of all of these questions.
    pub(crate) fn hold_searches(&self, questions: &[usize]) -> bool {
        self.first.as_ref().is_some_and(|first| first.holds(questions))
    }

    /// Empties the caches and makes them at least as large as `slots`.
    fn ensure(
        &mut self,
        context: &BatchContext<'_>,
        plan: &BatchPlan<'_>,
        slots: CacheSlots,
    ) -> Result<&mut Self, DeviceError> {
        self.first = None;
        // Each keeps the most it ever needed; where that is more than both may have, both begin
        // anew.
        let kept = |cache: &Option<Cache>, need: usize, decoder: &Decoder| {
            let slots = cache.as_ref().map_or(need, |cache| cache.slots().max(need));
            slots * Cache::bytes_per_position(decoder.device(), decoder.config())
        };
        let decoder = &context.model.decoder;
        let reward = context.reward_model.map(|model| &model.decoder);
        let reward_bytes = reward.map_or(0, |d| kept(&self.reward_model, slots.reward, d));
        if kept(&self.model, slots.reasoner, decoder) + reward_bytes > plan.budget() {
            *self = Self { traced: self.traced.take(), ..Self::default() };
        }
        ensure_slots(&mut self.model, slots.reasoner, decoder)?;
        if let Some(decoder) = reward {
            ensure_slots(&mut self.reward_model, slots.reward, decoder)?;
        }
        Ok(self)
    }
}

/// Empties a cache, or replaces it by one of at least `slots` slots.
pub(crate) fn ensure_slots(
    cache: &mut Option<Cache>,
    slots: usize,
    decoder: &Decoder,
) -> Result<(), DeviceError> {
    match cache {
        Some(cache) if cache.slots() >= slots => cache.clear(),
        _ => {
            *cache = None; // before the new one is made: both at once would break the budget
            *cache = Some(Cache::new(decoder.device(), decoder.config(), slots)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_keep_every_row_in_order() {
        let range = |question, rows| RowRange { question, rows };
        let wave = [range(3, 0..5), range(4, 0..5), range(5, 2..4)];
        let (first, second) = split_wave(&wave);
        assert_eq!(first, [range(3, 0..5), range(4, 0..1)]);
        assert_eq!(second, [range(4, 1..5), range(5, 2..4)]);
        assert_eq!(split_wave(&wave[..1]), (vec![range(3, 0..2)], vec![range(3, 2..5)]));
    }
}
