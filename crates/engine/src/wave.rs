//! One wave of rows through the stages, with the time of each.

use std::ops::{ControlFlow, Range};
use std::time::Instant;

use model::{Cache, Decoder};
use record::Seconds;
use tensor::{DeviceError, Tensor};

use crate::decode::{AnswerTokens, decode};
use crate::error::Error;
use crate::lanes::{Clock, Lane, Work};
use crate::perturb::{Chance, Randomness, RowId};
use crate::plan::{Plan, Share};
use crate::prefill::{Start, prefill};
use crate::prompt::Prompt;
use crate::reasoner::{Mind, RewardModel};
use crate::reflect::{Reflection, Reflections};
use crate::score::{Reading, Said, score};
use crate::search::{Found, Searcher};
use crate::settings::Settings;
use crate::think::{Row, Thinking, think};

/// Who takes part, and how.
#[derive(Clone, Copy)]
pub(crate) struct Party<'a> {
    pub(crate) mind: &'a Mind,
    pub(crate) judge: Option<&'a RewardModel>,
    pub(crate) settings: Settings,
    /// Whether thoughts are wanted back from the device.
    pub(crate) keep_thoughts: bool,
}

/// A row that has answered.
pub(crate) struct Finished {
    pub(crate) id: RowId,
    pub(crate) perturbed: bool,
    pub(crate) thoughts: usize,
    pub(crate) vectors: Option<Tensor>, // (thoughts, width), if they are kept
    pub(crate) tokens: AnswerTokens,
    pub(crate) logprob: f32,
    pub(crate) reading: Option<Reading>,
}

impl Finished {
    /// A row that has thought and says nothing yet.
    fn new(row: &Row) -> Self {
        let (Start { id, perturbed, .. }, thoughts) = (row.start, row.thoughts.len());
        Self { id, perturbed, thoughts, vectors: None, tokens: AnswerTokens::new(), logprob: 0.0, reading: None }
    }
}

impl Party<'_> {
    /// Rows a question: the samples, and the deterministic one if it was asked for.
    pub(crate) fn rows(&self) -> usize {
        self.settings.samples.get() + usize::from(self.settings.greedy)
    }

    /// Passes waves through the stages, in the plan's lanes, and hands over the rows of each one's shares, in their order.
    pub(crate) fn pass_all(
        &self,
        plan: &Plan<'_>,
        waves: &[Vec<Share>],
        lanes: &[Lane<Caches>],
        mut take: impl FnMut(&[Share], Vec<Vec<Finished>>, Seconds) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        let each = |wave: &Vec<Share>, caches: &mut Caches| {
            let mut seconds = Seconds::default();
            let done = self.pass(plan, wave, caches, &mut seconds)?;
            Ok((done, seconds))
        };
        let mut clock = Clock::start(lanes.len().min(waves.len()));
        let work = Work { device: self.mind.decoder.device(), lanes, jobs: waves, each };
        work.run(|wave, (done, seconds)| take(wave, done, clock.lap(seconds)))
    }

    /// Passes a wave through the stages, in halves if the device has not the memory for it at once. Returns the rows of
    /// each share.
    fn pass(
        &self,
        plan: &Plan<'_>,
        wave: &[Share],
        caches: &mut Caches,
        seconds: &mut Seconds,
    ) -> Result<Vec<Vec<Finished>>, DeviceError> {
        let device = self.mind.decoder.device();
        let ready = caches.ready(self, plan, plan.slots(wave));
        let passed = ready.and_then(|caches| device.run(|| self.pass_at_once(plan.prompts(), wave, caches, seconds)));
        match passed {
            Err(e) if e.is_out_of_memory() && wave.iter().map(|s| s.rows.len()).sum::<usize>() > 1 => {
                *caches = Caches::default();
                let (first, second) = halves(wave);
                let mut done = self.pass(plan, &first, caches, seconds)?;
                let mut rest = self.pass(plan, &second, caches, seconds)?.into_iter();
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

    fn pass_at_once(
        &self,
        prompts: &[Prompt],
        wave: &[Share],
        caches: &mut Caches,
        seconds: &mut Seconds,
    ) -> Result<Vec<Vec<Finished>>, DeviceError> {
        let (settings, chance) = (&self.settings, self.chance());
        let prompts: Vec<&Prompt> = wave.iter().map(|share| &prompts[share.question]).collect();
        let mut starts = Vec::with_capacity(wave.iter().map(|share| share.rows.len()).sum());
        wave.iter().enumerate().for_each(|(i, share)| starts.extend(self.starts(i, prompts[i], share)));
        let Caches { mind: Some(cache), judge: judge_cache, reflections } = caches else { return Ok(Vec::new()) };
        let device = self.mind.decoder.device();
        // Nobody waits between stages: the host prepares the next while the device is busy with the last.
        let began = device.moment()?;
        let started = prefill(self.mind, cache, &prompts, &starts, chance)?;
        let prefilled = device.moment()?;
        let mut thoughts =
            think(self.mind, cache, started, Thinking { length: settings.length, chance, steer: None, keep_clean: false })?;
        let thought = device.moment()?;
        // While the device thinks: all but what it says.
        let mut rows = thoughts.rows.iter().map(Finished::new);
        let mut finished: Vec<Vec<Finished>> = wave.iter().map(|share| rows.by_ref().take(share.rows.len()).collect()).collect();
        let spoken = decode(self.mind, cache, &mut thoughts, settings.max_new_tokens.get(), chance)?;
        let answered = device.moment()?;
        let said = Said { end: &self.mind.method.end, answers: &spoken.tokens };
        let judging = self.judge.zip(judge_cache.as_mut());
        let read = judging.map(|(judge, cache)| {
            let own = reflect(judge, reflections, &prompts)?;
            score(judge, cache, (&prompts, own.as_ref()), &thoughts, Some(said))
        });
        let read = read.transpose()?;
        let scored = device.moment()?;
        let laps = Seconds {
            prefill: began.until(&prefilled)?,
            thoughts: prefilled.until(&thought)?,
            answers: thought.until(&answered)?,
            scores: if read.is_some() { answered.until(&scored)? } else { 0.0 },
            ..Seconds::default()
        };
        *seconds += Seconds { total: laps.prefill + laps.thoughts + laps.scores + laps.answers, ..laps };

        let all = if self.keep_thoughts { Some(thoughts.to_host(self.mind.decoder.config().width)?) } else { None };
        let mut read = read.map(Vec::into_iter);
        let said = spoken.tokens.into_iter().zip(spoken.logprobs);
        for ((row, (tokens, logprob)), of) in finished.iter_mut().flatten().zip(said).zip(&thoughts.rows) {
            (row.tokens, row.logprob) = (tokens, logprob);
            row.vectors = all.as_ref().map(|all| all.select(of.thoughts.iter().copied()));
            row.reading = read.as_mut().and_then(Iterator::next);
        }
        Ok(finished)
    }

    /// The deterministic row, if there is one, comes first, so that later rounds of samples follow on.
    fn starts(&self, prompt: usize, of: &Prompt, share: &Share) -> impl Iterator<Item = Start> {
        let (question, greedy) = (of.id, usize::from(self.settings.greedy));
        let start = move |row: usize| {
            let trajectory = row.saturating_sub(greedy) as u32;
            Start { prompt, id: RowId { question, trajectory }, perturbed: row >= greedy }
        };
        share.rows.clone().map(start)
    }

    /// Searches for the best paths of some questions, in halves if the device has not the memory for them at once.
    pub(crate) fn search(
        &self,
        plan: &Plan<'_>,
        questions: Range<usize>,
        caches: &mut Caches,
        seconds: &mut Seconds,
    ) -> Result<Vec<Found>, DeviceError> {
        let prompts = &plan.prompts()[questions.clone()];
        let (device, start) = (self.mind.decoder.device(), Instant::now());
        let ready = caches.ready(self, plan, plan.search_slots(prompts));
        let found = ready.and_then(|caches| device.run(|| self.search_at_once(prompts, caches)));
        let spent = start.elapsed().as_secs_f64();
        (seconds.beam, seconds.total) = (seconds.beam + spent, seconds.total + spent);
        match found {
            Err(e) if e.is_out_of_memory() && questions.len() > 1 => {
                *caches = Caches::default();
                let middle = questions.start + questions.len() / 2;
                let mut found = self.search(plan, questions.start..middle, caches, seconds)?;
                found.extend(self.search(plan, middle..questions.end, caches, seconds)?);
                Ok(found)
            }
            other => other,
        }
    }

    fn search_at_once(&self, prompts: &[Prompt], caches: &mut Caches) -> Result<Vec<Found>, DeviceError> {
        let (Some(judge), Some(size)) = (self.judge, self.settings.beam) else { return Ok(Vec::new()) };
        let Caches { mind: Some(cache), judge: Some(judge_cache), reflections } = caches else { return Ok(Vec::new()) };
        let prompts: Vec<&Prompt> = prompts.iter().collect();
        let own = reflect(judge, reflections, &prompts)?;
        Searcher { party: self, judge, size, chance: self.chance() }.search(&prompts, own.as_ref(), (cache, judge_cache))
    }

    fn chance(&self) -> Chance<'static> {
        Chance { perturbation: self.settings.perturbation, randomness: Randomness::Seeded(self.settings.seed) }
    }
}

/// What a judge with a mind of its own thinks about the prompts.
fn reflect(judge: &RewardModel, by: &mut Reflections, prompts: &[&Prompt]) -> Result<Option<Reflection>, DeviceError> {
    judge.mind.as_ref().map(|mind| by.of(mind, prompts)).transpose()
}

/// A wave as two of about as many rows, in order.
fn halves(wave: &[Share]) -> (Vec<Share>, Vec<Share>) {
    let mut left = wave.iter().map(|s| s.rows.len()).sum::<usize>() / 2;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for share in wave {
        let cut = share.rows.start + left.min(share.rows.len());
        left -= cut - share.rows.start;
        for (half, rows) in [(&mut first, share.rows.start..cut), (&mut second, cut..share.rows.end)] {
            if !rows.is_empty() {
                half.push(Share { question: share.question, rows });
            }
        }
    }
    (first, second)
}

/// Caches that are kept from wave to wave.
#[derive(Default)]
pub(crate) struct Caches {
    mind: Option<Cache>,
    judge: Option<Cache>,
    reflections: Reflections,
}

impl Caches {
    /// Empty caches of so many slots for the mind and for the judge.
    fn ready(&mut self, party: &Party<'_>, plan: &Plan<'_>, (mind, judge): (usize, usize)) -> Result<&mut Self, DeviceError> {
        // Each keeps the most it ever needed; where that is more than both may have, both begin anew.
        let kept = |cache: &Option<Cache>, need: usize, decoder: &Decoder| {
            let slots = cache.as_ref().map_or(need, |c| c.slots().max(need));
            slots * Cache::bytes_per_position(decoder.device(), decoder.config())
        };
        let for_judge = party.judge.map_or(0, |model| kept(&self.judge, judge, &model.decoder));
        if kept(&self.mind, mind, &party.mind.decoder) + for_judge > plan.budget() {
            *self = Self::default();
        }
        ready(&mut self.mind, mind, |n| Cache::new(party.mind.decoder.device(), party.mind.decoder.config(), n))?;
        if let Some(model) = party.judge {
            ready(&mut self.judge, judge, |n| Cache::new(model.decoder.device(), model.decoder.config(), n))?;
        }
        Ok(self)
    }
}

/// An empty cache of at least so many slots: the one that is there, or a new one in its place.
pub(crate) fn ready(
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
        let share = |question, rows| Share { question, rows };
        let wave = [share(3, 0..5), share(4, 0..5), share(5, 2..4)];
        let (first, second) = halves(&wave);
        assert_eq!(first, [share(3, 0..5), share(4, 0..1)]);
        assert_eq!(second, [share(4, 1..5), share(5, 2..4)]);
        assert_eq!(halves(&wave[..1]), (vec![share(3, 0..2)], vec![share(3, 2..5)]));
    }
}
