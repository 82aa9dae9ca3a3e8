//! Runs one batch of sequences through the stages and measures the time of each.

use std::time::Instant;

use model::{Cache, Decoder};
use tensor::DeviceError;

use crate::batch::{BatchContext, BatchItem};
use crate::batch_plan::{BatchPlan, CacheSlots, SequenceRange};
use crate::beam_search::{BeamSearch, SearchOutput};
use crate::error::EngineError;
use crate::executor::{Executor, Gather, HiddenRef, SequenceSpec, SequenceState};
use crate::first_expansion::{FinishedBatch, FirstExpansion, SearchedQuestion};
use crate::prompt::Prompt;
use crate::question::FinishedSequence;
use crate::reasoner::RewardModel;
use crate::reference_trace::{ReferenceTrace, ReferenceTracer};
use crate::reply::StageSeconds;
use crate::sampler::{Sampler, SequenceId};
use crate::score::{AnswerBatch, ScoreBatch, ScoreOutput, ScoredSequence, score};
use crate::stage_timer::{Stage, StageTimer};
use crate::streams::{StageClock, StreamJobs, StreamState};

/// The sequences of a batch's ranges, in order. A range whose request was cancelled lacks
/// sequences.
pub(crate) type FinishedRanges = Vec<Vec<FinishedSequence>>;

impl BatchContext<'_> {
    /// Runs batches on the plan's streams and passes the sequences of each to `take`, in order.
    pub(crate) fn run_batches<X: From<EngineError>>(
        &self,
        plan: &BatchPlan<'_>,
        batches: &[Vec<SequenceRange>],
        streams: &[StreamState<BatchCaches>],
        mut take: impl FnMut(&[SequenceRange], FinishedRanges, StageSeconds) -> Result<(), X>,
    ) -> Result<(), X> {
        let each = |batch: &Vec<SequenceRange>, caches: &mut BatchCaches| {
            let mut seconds = StageSeconds::default();
            let done = self.run_batch(plan, batch, caches, &mut seconds)?;
            Ok::<_, EngineError>((done, seconds))
        };
        let mut clock = StageClock::start(streams.len().min(batches.len()));
        let jobs = StreamJobs { device: self.model.decoder.device(), streams, jobs: batches, each };
        jobs.run(|batch, (done, seconds)| take(batch, done, clock.lap(seconds)))
    }

    /// Runs a batch through the stages, in two halves if the device lacks the memory for it.
    fn run_batch(
        &self,
        plan: &BatchPlan<'_>,
        batch: &[SequenceRange],
        caches: &mut BatchCaches,
        seconds: &mut StageSeconds,
    ) -> Result<FinishedRanges, DeviceError> {
        let device = self.model.decoder.device();
        let ready = caches.ensure(self, plan, plan.slots(batch));
        let done =
            ready.and_then(|caches| device.run(|| self.try_batch(plan, batch, caches, seconds)));
        let rows: usize = batch.iter().map(|range| range.rows.len()).sum();
        match done {
            Err(e) if e.is_out_of_memory() && rows > 1 => {
                tracing::warn!(
                    sequences = rows,
                    "out of device memory; splitting the batch in two"
                );
                *caches = BatchCaches::default();
                let (first, second) = split_batch(batch);
                let mut done = self.run_batch(plan, &first, caches, seconds)?;
                let mut rest = self.run_batch(plan, &second, caches, seconds)?.into_iter();
                // A range that was split is in both halves: merge its sequences.
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

    fn try_batch(
        &self,
        plan: &BatchPlan<'_>,
        batch: &[SequenceRange],
        caches: &mut BatchCaches,
        seconds: &mut StageSeconds,
    ) -> Result<FinishedRanges, DeviceError> {
        let mut done: FinishedRanges = batch.iter().map(|_| Vec::new()).collect();
        let items: Vec<BatchItem<'_>> =
            batch.iter().map(|range| plan.items()[range.question]).collect();
        let Some(cache) = &mut caches.model else { return Ok(done) };
        let specs = batch.iter().enumerate().flat_map(|(i, range)| specs(i, &items[i], range));
        let specs: Vec<SequenceSpec> = specs.collect();
        let sampler = Sampler::new(&items);
        let device = self.model.decoder.device();
        let mut executor = Executor::aligned(self.model, &specs);
        executor.timer = Some(StageTimer::default());
        executor.keep_states = self.keeps_states();
        executor.run(cache, sampler)?;
        let mut timer = executor.timer.unwrap_or_default();
        let sequences = executor.sequences;
        if sequences.is_empty() {
            return Ok(done);
        }
        timer.enter(device, Stage::Scores)?;
        let states: Vec<&[HiddenRef]> = sequences.iter().map(|s| s.states.as_slice()).collect();
        let thoughts: Vec<usize> = sequences.iter().map(|s| s.thoughts.len()).collect();
        let mut probed = self.read_states(&states, &thoughts)?.into_iter();
        let sequences: Vec<SequenceState> = sequences
            .into_iter()
            .map(|sequence| SequenceState { states: Vec::new(), ..sequence })
            .collect();
        let scores = self.score_batch(plan, batch, &sequences, caches)?;
        *seconds += timer.finish(device)?;

        let latents = match self.return_latents {
            true => {
                let thoughts = sequences.iter().flat_map(|sequence| &sequence.thoughts);
                Some(Gather::of_thoughts(thoughts).to_host(self.model.decoder.config().width)?)
            }
            false => None,
        };
        let mut rewards = scores.map(|scores| scores.rewards.into_iter());
        let mut first = 0;
        for sequence in sequences {
            let own = first..first + sequence.thoughts.len();
            first = own.end;
            let mut row = FinishedSequence::new(&sequence);
            row.latents = latents.as_ref().map(|all| all.select(own));
            row.rewards = rewards.as_mut().and_then(Iterator::next);
            row.lens = sequence.lens;
            row.probed = probed.next().unwrap_or_default();
            done[sequence.spec.item].push(row);
        }
        Ok(done)
    }

    /// Scores the sequences of a batch, and stores the state from which the following searches
    /// start.
    fn score_batch(
        &self,
        plan: &BatchPlan<'_>,
        batch: &[SequenceRange],
        sequences: &[SequenceState],
        caches: &mut BatchCaches,
    ) -> Result<Option<ScoreOutput>, DeviceError> {
        let BatchCaches {
            model: Some(cache),
            reward_model: Some(reward_cache),
            tracer,
            traced,
            first,
        } = caches
        else {
            return Ok(None);
        };
        let Some(reward_model) = self.reward_model else { return Ok(None) };
        // Items of cancelled requests have no sequences and are not scored.
        let mut active: Vec<usize> = sequences.iter().map(|sequence| sequence.spec.item).collect();
        active.dedup();
        let item = |sequence: &SequenceState| active.partition_point(|&i| i < sequence.spec.item);
        let prompts: Vec<&Prompt> =
            active.iter().map(|&i| plan.items()[batch[i].question].prompt).collect();
        let trace = reference_trace(reward_model, tracer, &prompts)?;
        let scored: Vec<ScoredSequence<'_>> = sequences
            .iter()
            .map(|sequence| ScoredSequence { item: item(sequence), thoughts: &sequence.thoughts })
            .collect();
        let answers: Vec<_> = match reward_model.outcome_head {
            Some(_) => sequences.iter().map(|sequence| sequence.tokens.clone()).collect(),
            None => Vec::new(),
        };
        let end_latent = &self.model.method.end_latent;
        let score_batch = ScoreBatch {
            prompts: &prompts,
            trace: trace.as_ref(),
            sequences: &scored,
            answers: Some(AnswerBatch { end_latent, answers: &answers }),
        };
        let scores = score(reward_model, reward_cache, score_batch)?;
        let questions = active.iter().map(|&i| batch[i].question).collect();
        *traced = trace.map(|trace| TracedQuestions { questions, trace });
        if plan.holds_searches(batch) {
            let searched = searched_questions(plan, batch, sequences);
            let device = self.model.decoder.device();
            *first = FinishedBatch { sequences, scores: &scores, cache, reward_cache }
                .first_expansion(device, &searched)?;
        }
        Ok(Some(scores))
    }

    /// Searches for the best paths of some questions of equal parameters, in two halves if the
    /// device lacks the memory for all. `None` for a question whose request was cancelled.
    pub(crate) fn search(
        &self,
        plan: &BatchPlan<'_>,
        questions: &[usize],
        caches: &mut BatchCaches,
        seconds: &mut StageSeconds,
    ) -> Result<Vec<Option<SearchOutput>>, DeviceError> {
        let device = self.model.decoder.device();
        let start = Instant::now();
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
                let searches = questions.len();
                tracing::warn!(searches, "out of device memory; splitting the search in two");
                *caches = BatchCaches::default();
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
        caches: &mut BatchCaches,
    ) -> Result<Vec<Option<SearchOutput>>, DeviceError> {
        let items: Vec<BatchItem<'_>> = questions.iter().map(|&q| plan.items()[q]).collect();
        let nothing = || Ok(items.iter().map(|_| None).collect());
        let search = items.first().and_then(|item| item.params.search);
        let (Some(reward_model), Some(search)) = (self.reward_model, search) else {
            return nothing();
        };
        let device = self.model.decoder.device();
        let BatchCaches { model, reward_model: reward_cache, tracer, traced, first } = caches;
        let (Some(cache), Some(reward_cache)) = (model, reward_cache) else { return nothing() };
        let search =
            BeamSearch { context: *self, reward_model, search, sampler: Sampler::new(&items) };
        if let Some(first) = first.as_ref().filter(|first| first.holds(questions)) {
            let start = first.start(device, questions, cache, reward_cache)?;
            return search.run_from(start, cache, reward_cache);
        }
        let prompts: Vec<&Prompt> = items.iter().map(|item| item.prompt).collect();
        let positions = traced.as_ref().and_then(|traced| traced.positions(questions));
        let trace = match traced.as_ref().zip(positions) {
            Some((traced, positions)) => Some(traced.trace.select(device, &positions)?),
            None => reference_trace(reward_model, tracer, &prompts)?,
        };
        search.run(&prompts, trace.as_ref(), cache, reward_cache)
    }
}

/// The greedy sequence, if any, comes first, so that later rounds of samples continue the
/// numbering.
fn specs(
    index: usize,
    item: &BatchItem<'_>,
    range: &SequenceRange,
) -> impl Iterator<Item = SequenceSpec> + use<> {
    let question = item.prompt.id;
    let greedy = usize::from(item.params.greedy);
    let spec = move |row: usize| {
        let trajectory = row.saturating_sub(greedy) as u32;
        SequenceSpec {
            item: index,
            id: SequenceId { question, trajectory },
            perturbed: row >= greedy,
        }
    };
    range.rows.clone().map(spec)
}

/// The questions of a batch whose searches can start from its sequences.
fn searched_questions(
    plan: &BatchPlan<'_>,
    batch: &[SequenceRange],
    sequences: &[SequenceState],
) -> Vec<SearchedQuestion> {
    let mut searched = Vec::new();
    let mut start = 0;
    for rows in sequences.chunk_by(|a, b| a.spec.item == b.spec.item) {
        let range = &batch[rows[0].spec.item];
        if let Some(first) = plan.first_extensions(range) {
            let prompt_len = plan.items()[range.question].prompt_len();
            let rows = start + first.start..start + first.end;
            searched.push(SearchedQuestion { question: range.question, prompt_len, rows });
        }
        start += rows.len();
    }
    searched
}

/// The reference reasoner's thoughts about the prompts, if the reward model has one.
pub(crate) fn reference_trace(
    reward_model: &RewardModel,
    tracer: &mut ReferenceTracer,
    prompts: &[&Prompt],
) -> Result<Option<ReferenceTrace>, DeviceError> {
    reward_model.reference.as_ref().map(|model| tracer.trace(model, prompts)).transpose()
}

/// Splits a batch into two of about equal size, preserving order.
fn split_batch(batch: &[SequenceRange]) -> (Vec<SequenceRange>, Vec<SequenceRange>) {
    let mut left = batch.iter().map(|range| range.rows.len()).sum::<usize>() / 2;
    let mut first = Vec::new();
    let mut second = Vec::new();
    for SequenceRange { question, rows } in batch {
        let cut = rows.start + left.min(rows.len());
        left -= cut - rows.start;
        for (half, rows) in [(&mut first, rows.start..cut), (&mut second, cut..rows.end)] {
            if !rows.is_empty() {
                half.push(SequenceRange { question: *question, rows });
            }
        }
    }
    (first, second)
}

/// KV caches that are reused from batch to batch.
#[derive(Default)]
pub(crate) struct BatchCaches {
    model: Option<Cache>,
    reward_model: Option<Cache>,
    tracer: ReferenceTracer,
    /// The reference traces that the following searches would otherwise recompute.
    traced: Option<TracedQuestions>,
    /// The first extensions of the following searches, valid while the caches hold the batch.
    first: Option<FirstExpansion>,
}

/// The reference traces of a batch's questions.
struct TracedQuestions {
    /// Indices of the plan's items.
    questions: Vec<usize>,
    trace: ReferenceTrace,
}

impl TracedQuestions {
    /// Positions of some questions; `None` unless all are present.
    fn positions(&self, questions: &[usize]) -> Option<Vec<usize>> {
        questions
            .iter()
            .map(|question| self.questions.iter().position(|traced| traced == question))
            .collect()
    }
}

impl BatchCaches {
    /// Keeps only the memory, for the batches of another run.
    pub(crate) fn without_contents(self) -> Self {
        Self { model: self.model, reward_model: self.reward_model, ..Self::default() }
    }

    /// Whether they hold the first extensions of all of these questions.
    pub(crate) fn hold_searches(&self, questions: &[usize]) -> bool {
        self.first.as_ref().is_some_and(|first| first.holds(questions))
    }

    /// Clears the caches and grows them to at least `slots`.
    fn ensure(
        &mut self,
        context: &BatchContext<'_>,
        plan: &BatchPlan<'_>,
        slots: CacheSlots,
    ) -> Result<&mut Self, DeviceError> {
        self.first = None;
        // Each cache keeps its maximum size so far; if the two exceed the budget, both are
        // recreated.
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

/// Clears a cache, or replaces it by one of at least `slots` slots.
pub(crate) fn ensure_slots(
    cache: &mut Option<Cache>,
    slots: usize,
    decoder: &Decoder,
) -> Result<(), DeviceError> {
    match cache {
        Some(cache) if cache.slots() >= slots => cache.clear(),
        _ => {
            *cache = None; // before allocating the new one: both at once would exceed the budget
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
        let range = |question, rows| SequenceRange { question, rows };
        let batch = [range(3, 0..5), range(4, 0..5), range(5, 2..4)];
        let (first, second) = split_batch(&batch);
        assert_eq!(first, [range(3, 0..5), range(4, 0..1)]);
        assert_eq!(second, [range(4, 1..5), range(5, 2..4)]);
        assert_eq!(split_batch(&batch[..1]), (vec![range(3, 0..2)], vec![range(3, 2..5)]));
    }
}
