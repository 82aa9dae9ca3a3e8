//! One wave of rows through the stages, with the time of each.

use std::ops::{ControlFlow, Range};
use std::time::Instant;

use model::{Cache, Decoder};
use record::Seconds;
use tensor::{DeviceError, Tensor};

use crate::batch_plan::{BatchPlan, RowRange};
use crate::beam_search::{BeamOutput, BeamSearch};
use crate::decode::{AnswerTokens, decode};
use crate::error::EngineError;
use crate::perturb::{RandomSource, RowId, Sampler};
use crate::prefill::{RowSpec, prefill};
use crate::prompt::Prompt;
use crate::reasoner::{LatentModel, RewardModel};
use crate::reference_trace::{ReferenceTrace, ReferenceTracer};
use crate::sampling_params::SamplingParams;
use crate::score::{AnswerBatch, Rewards, score};
use crate::streams::{StageClock, StreamJobs, StreamState};
use crate::think::{Row, ThinkParams, think};

/// Who takes part, and how.
#[derive(Clone, Copy)]
pub(crate) struct BatchContext<'a> {
    pub(crate) model: &'a LatentModel,
    pub(crate) reward_model: Option<&'a RewardModel>,
    pub(crate) params: SamplingParams,
    /// Whether thoughts are wanted back from the device.
    pub(crate) return_latents: bool,
}

/// A row that has answered.
pub(crate) struct FinishedRow {
    pub(crate) id: RowId,
    pub(crate) perturbed: bool,
    pub(crate) thoughts: usize,
    pub(crate) latents: Option<Tensor>, // (thoughts, width), if they are kept
    pub(crate) tokens: AnswerTokens,
    pub(crate) logprob: f32,
    pub(crate) rewards: Option<Rewards>,
}

impl FinishedRow {
    /// A row that has thought and says nothing yet.
    fn new(row: &Row) -> Self {
        let (RowSpec { id, perturbed, .. }, thoughts) = (row.spec, row.thoughts.len());
        Self {
            id,
            perturbed,
            thoughts,
            latents: None,
            tokens: AnswerTokens::new(),
            logprob: 0.0,
            rewards: None,
        }
    }
}

impl BatchContext<'_> {
    /// Rows a question: the samples, and the deterministic one if it was asked for.
    pub(crate) fn rows(&self) -> usize {
        self.params.samples.get() + usize::from(self.params.greedy)
    }

    /// Passes waves through the stages, in the plan's lanes, and hands over the rows of each one's
    /// shares, in their order.
    pub(crate) fn run_waves(
        &self,
        plan: &BatchPlan<'_>,
        waves: &[Vec<RowRange>],
        lanes: &[StreamState<WaveCaches>],
        mut take: impl FnMut(
            &[RowRange],
            Vec<Vec<FinishedRow>>,
            Seconds,
        ) -> Result<ControlFlow<()>, EngineError>,
    ) -> Result<(), EngineError> {
        let each = |wave: &Vec<RowRange>, caches: &mut WaveCaches| {
            let mut seconds = Seconds::default();
            let done = self.run_wave(plan, wave, caches, &mut seconds)?;
            Ok((done, seconds))
        };
        let mut clock = StageClock::start(lanes.len().min(waves.len()));
        let work = StreamJobs { device: self.model.decoder.device(), lanes, jobs: waves, each };
        work.run(|wave, (done, seconds)| take(wave, done, clock.lap(seconds)))
    }

    /// Passes a wave through the stages, in halves if the device has not the memory for it at once.
    /// Returns the rows of each share.
    fn run_wave(
        &self,
        plan: &BatchPlan<'_>,
        wave: &[RowRange],
        caches: &mut WaveCaches,
        seconds: &mut Seconds,
    ) -> Result<Vec<Vec<FinishedRow>>, DeviceError> {
        let device = self.model.decoder.device();
        let ready = caches.ensure(self, plan, plan.slots(wave));
        let passed = ready
            .and_then(|caches| device.run(|| self.try_wave(plan.prompts(), wave, caches, seconds)));
        match passed {
            Err(e)
                if e.is_out_of_memory() && wave.iter().map(|s| s.rows.len()).sum::<usize>() > 1 =>
            {
                *caches = WaveCaches::default();
                let (first, second) = split_wave(wave);
                let mut done = self.run_wave(plan, &first, caches, seconds)?;
                let mut rest = self.run_wave(plan, &second, caches, seconds)?.into_iter();
                // A share that was cut is in both halves: its rows belong together again.
                if first.last().map(|s| s.question) == second.first().map(|s| s.question) {
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
        prompts: &[Prompt],
        wave: &[RowRange],
        caches: &mut WaveCaches,
        seconds: &mut Seconds,
    ) -> Result<Vec<Vec<FinishedRow>>, DeviceError> {
        let (settings, chance) = (&self.params, self.sampler());
        let prompts: Vec<&Prompt> = wave.iter().map(|share| &prompts[share.question]).collect();
        let mut starts = Vec::with_capacity(wave.iter().map(|share| share.rows.len()).sum());
        wave.iter()
            .enumerate()
            .for_each(|(i, share)| starts.extend(self.row_specs(i, prompts[i], share)));
        let WaveCaches { model: Some(cache), reward_model: judge_cache, tracer: reflections } =
            caches
        else {
            return Ok(Vec::new());
        };
        let device = self.model.decoder.device();
        // Nobody waits between stages: the host prepares the next while the device is busy with the
        // last.
        let began = device.record_event()?;
        let started = prefill(self.model, cache, &prompts, &starts, chance)?;
        let prefilled = device.record_event()?;
        let mut thoughts = think(
            self.model,
            cache,
            started,
            ThinkParams {
                length: settings.length,
                sampler: chance,
                hook: None,
                keep_noiseless: false,
            },
        )?;
        let thought = device.record_event()?;
        // While the device thinks: all but what it says.
        let mut rows = thoughts.rows.iter().map(FinishedRow::new);
        let mut finished: Vec<Vec<FinishedRow>> =
            wave.iter().map(|share| rows.by_ref().take(share.rows.len()).collect()).collect();
        let spoken =
            decode(self.model, cache, &mut thoughts, settings.max_new_tokens.get(), chance)?;
        let answered = device.record_event()?;
        let said =
            AnswerBatch { end_latent: &self.model.method.end_latent, answers: &spoken.tokens };
        let judging = self.reward_model.zip(judge_cache.as_mut());
        let read = judging.map(|(judge, cache)| {
            let own = reference_trace(judge, reflections, &prompts)?;
            score(judge, cache, (&prompts, own.as_ref()), &thoughts, Some(said))
        });
        let read = read.transpose()?;
        let scored = device.record_event()?;
        let laps = Seconds {
            prefill: began.elapsed(&prefilled)?,
            thoughts: prefilled.elapsed(&thought)?,
            answers: thought.elapsed(&answered)?,
            scores: if read.is_some() { answered.elapsed(&scored)? } else { 0.0 },
            ..Seconds::default()
        };
        *seconds +=
            Seconds { total: laps.prefill + laps.thoughts + laps.scores + laps.answers, ..laps };

        let all = if self.return_latents {
            Some(thoughts.to_host(self.model.decoder.config().width)?)
        } else {
            None
        };
        let mut read = read.map(Vec::into_iter);
        let said = spoken.tokens.into_iter().zip(spoken.logprobs);
        for ((row, (tokens, logprob)), of) in
            finished.iter_mut().flatten().zip(said).zip(&thoughts.rows)
        {
            (row.tokens, row.logprob) = (tokens, logprob);
            row.latents = all.as_ref().map(|all| all.select(of.thoughts.iter().copied()));
            row.rewards = read.as_mut().and_then(Iterator::next);
        }
        Ok(finished)
    }

    /// The deterministic row, if there is one, comes first, so that later rounds of samples follow
    /// on.
    fn row_specs(
        &self,
        prompt: usize,
        of: &Prompt,
        share: &RowRange,
    ) -> impl Iterator<Item = RowSpec> {
        let (question, greedy) = (of.id, usize::from(self.params.greedy));
        let start = move |row: usize| {
            let trajectory = row.saturating_sub(greedy) as u32;
            RowSpec { prompt, id: RowId { question, trajectory }, perturbed: row >= greedy }
        };
        share.rows.clone().map(start)
    }

    /// Searches for the best paths of some questions, in halves if the device has not the memory
    /// for them at once.
    pub(crate) fn search(
        &self,
        plan: &BatchPlan<'_>,
        questions: Range<usize>,
        caches: &mut WaveCaches,
        seconds: &mut Seconds,
    ) -> Result<Vec<BeamOutput>, DeviceError> {
        let prompts = &plan.prompts()[questions.clone()];
        let (device, start) = (self.model.decoder.device(), Instant::now());
        let ready = caches.ensure(self, plan, plan.search_slots(prompts));
        let found = ready.and_then(|caches| device.run(|| self.try_search(prompts, caches)));
        let spent = start.elapsed().as_secs_f64();
        (seconds.beam, seconds.total) = (seconds.beam + spent, seconds.total + spent);
        match found {
            Err(e) if e.is_out_of_memory() && questions.len() > 1 => {
                *caches = WaveCaches::default();
                let middle = questions.start + questions.len() / 2;
                let mut found = self.search(plan, questions.start..middle, caches, seconds)?;
                found.extend(self.search(plan, middle..questions.end, caches, seconds)?);
                Ok(found)
            }
            other => other,
        }
    }

    fn try_search(
        &self,
        prompts: &[Prompt],
        caches: &mut WaveCaches,
    ) -> Result<Vec<BeamOutput>, DeviceError> {
        let (Some(judge), Some(size)) = (self.reward_model, self.params.beam) else {
            return Ok(Vec::new());
        };
        let WaveCaches { model: Some(cache), reward_model: Some(judge_cache), tracer: reflections } =
            caches
        else {
            return Ok(Vec::new());
        };
        let prompts: Vec<&Prompt> = prompts.iter().collect();
        let own = reference_trace(judge, reflections, &prompts)?;
        BeamSearch { party: self, reward_model: judge, size, chance: self.sampler() }.search(
            &prompts,
            own.as_ref(),
            (cache, judge_cache),
        )
    }

    fn sampler(&self) -> Sampler<'static> {
        Sampler {
            perturbation: self.params.perturbation,
            source: RandomSource::Seeded(self.params.seed),
        }
    }
}

/// What a judge with a mind of its own thinks about the prompts.
fn reference_trace(
    judge: &RewardModel,
    by: &mut ReferenceTracer,
    prompts: &[&Prompt],
) -> Result<Option<ReferenceTrace>, DeviceError> {
    judge.reference.as_ref().map(|mind| by.trace(mind, prompts)).transpose()
}

/// A wave as two of about as many rows, in order.
fn split_wave(wave: &[RowRange]) -> (Vec<RowRange>, Vec<RowRange>) {
    let mut left = wave.iter().map(|s| s.rows.len()).sum::<usize>() / 2;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for share in wave {
        let cut = share.rows.start + left.min(share.rows.len());
        left -= cut - share.rows.start;
        for (half, rows) in
            [(&mut first, share.rows.start..cut), (&mut second, cut..share.rows.end)]
        {
            if !rows.is_empty() {
                half.push(RowRange { question: share.question, rows });
            }
        }
    }
    (first, second)
}

/// Caches that are kept from wave to wave.
#[derive(Default)]
pub(crate) struct WaveCaches {
    model: Option<Cache>,
    reward_model: Option<Cache>,
    tracer: ReferenceTracer,
}

impl WaveCaches {
    /// Empty caches of so many slots for the mind and for the judge.
    fn ensure(
        &mut self,
        party: &BatchContext<'_>,
        plan: &BatchPlan<'_>,
        (mind, judge): (usize, usize),
    ) -> Result<&mut Self, DeviceError> {
        // Each keeps the most it ever needed; where that is more than both may have, both begin
        // anew.
        let kept = |cache: &Option<Cache>, need: usize, decoder: &Decoder| {
            let slots = cache.as_ref().map_or(need, |c| c.slots().max(need));
            slots * Cache::bytes_per_position(decoder.device(), decoder.config())
        };
        let for_judge =
            party.reward_model.map_or(0, |model| kept(&self.reward_model, judge, &model.decoder));
        if kept(&self.model, mind, &party.model.decoder) + for_judge > plan.budget() {
            *self = Self::default();
        }
        ensure_slots(&mut self.model, mind, |n| {
            Cache::new(party.model.decoder.device(), party.model.decoder.config(), n)
        })?;
        if let Some(model) = party.reward_model {
            ensure_slots(&mut self.reward_model, judge, |n| {
                Cache::new(model.decoder.device(), model.decoder.config(), n)
            })?;
        }
        Ok(self)
    }
}

/// An empty cache of at least so many slots: the one that is there, or a new one in its place.
pub(crate) fn ensure_slots(
    cache: &mut Option<Cache>,
    slots: usize,
    make: impl Fn(usize) -> Result<Cache, DeviceError>,
) -> Result<(), DeviceError> {
    match cache {
        Some(cache) if cache.slots() >= slots => cache.clear(),
        _ => {
            *cache = None; // before the new one is made: both at once would break the budget
            *cache = Some(make(slots)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_keep_every_row_in_order() {
        let share = |question, rows| RowRange { question, rows };
        let wave = [share(3, 0..5), share(4, 0..5), share(5, 2..4)];
        let (first, second) = split_wave(&wave);
        assert_eq!(first, [share(3, 0..5), share(4, 0..1)]);
        assert_eq!(second, [share(4, 1..5), share(5, 2..4)]);
        assert_eq!(split_wave(&wave[..1]), (vec![share(3, 0..2)], vec![share(3, 2..5)]));
    }
}
