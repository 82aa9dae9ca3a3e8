//! The stages in their order, over waves of rows that fit the memory.
//!
//! ```text
//! question -> prompt -> prefix -> N trajectories -> scores -> candidates -> verdict
//! ```
//!
//! The verdict is a function of the recorded trajectories ([`record::aggregate`]), so that one run holds those of every
//! smaller N and every rule.

use std::ops::ControlFlow;
use std::time::Instant;

use model::Cache;
use record::diversity::StepDiversity;
use record::{Sample, Seconds, Trajectory};
use tensor::Tensor;

use crate::cost::Cost;
use crate::decode::{Spoken, decode};
use crate::error::Error;
use crate::perturb::{Chance, Randomness, RowId};
use crate::plan::{Plan, Share};
use crate::prefill::{Start, prefill};
use crate::prompt::{Prompt, prompt};
use crate::question::Question;
use crate::reasoner::{Reasoner, RewardModel};
use crate::score::score;
use crate::settings::Settings;
use crate::think::{Row, think};

/// A reasoner, perhaps a judge, and how to use them.
#[derive(Clone, Copy)]
pub struct Engine<'a> {
    /// Who thinks.
    pub reasoner: &'a Reasoner,
    /// Who scores thoughts.
    pub judge: Option<&'a RewardModel>,
    /// How.
    pub settings: Settings,
}

/// A finished question.
#[derive(Debug)]
pub struct Outcome {
    /// What is recorded.
    pub sample: Sample,
    /// The thoughts of each trajectory: (thoughts, width), in the order of k.
    pub thoughts: Vec<Tensor>,
    /// What was spent since the outcome before.
    pub seconds: Seconds,
}

impl Engine<'_> {
    /// Thinks about all questions and hands each outcome over as soon as it is complete, in the order of the questions.
    ///
    /// Stops early when `take` breaks.
    pub fn run(&self, questions: &[Question], take: &mut dyn FnMut(Outcome) -> ControlFlow<()>) -> Result<(), Error> {
        let prompts = questions.iter().map(|q| prompt(self.reasoner, q)).collect::<Result<Vec<_>, _>>()?;
        let mut plan = Plan::new(self.reasoner, self.judge, &self.settings, &prompts)?;
        let mut caches = Caches::default();
        let mut open: Option<Gathering> = None;
        let mut seconds = Seconds::default();
        while let Some(wave) = plan.next() {
            let slots = plan.slots(&wave);
            let done = self.reasoner.decoder.device().run(|| self.wave(&prompts, &wave, caches.ready(self, slots), &mut seconds));
            for (share, rows) in wave.iter().zip(done) {
                let (question, prompt) = (&questions[share.question], &prompts[share.question]);
                let mut gathering = open.take().unwrap_or_else(|| Gathering::new(self, prompt));
                rows.into_iter().try_for_each(|row| gathering.add(self, question, prompt, row))?;
                if share.rows.end < self.rows() {
                    open = Some(gathering);
                } else if take(gathering.finish(self, question, std::mem::take(&mut seconds))).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether all questions can be thought about: every prompt fits the model and the memory.
    pub fn check(&self, questions: &[Question]) -> Result<(), Error> {
        let prompts = questions.iter().map(|q| prompt(self.reasoner, q)).collect::<Result<Vec<_>, _>>()?;
        Plan::new(self.reasoner, self.judge, &self.settings, &prompts).map(|_| ())
    }

    fn rows(&self) -> usize {
        self.settings.samples.get() + usize::from(self.settings.greedy)
    }

    /// One wave through the stages. Returns the rows of each share.
    fn wave(&self, prompts: &[Prompt], wave: &[Share], caches: &mut Caches, seconds: &mut Seconds) -> Vec<Vec<Finished>> {
        let settings = &self.settings;
        let chance = Chance { perturbation: settings.perturbation, randomness: Randomness::Seeded(settings.seed) };
        let prompts: Vec<&Prompt> = wave.iter().map(|share| &prompts[share.question]).collect();
        let starts: Vec<Start> = wave.iter().enumerate().flat_map(|(i, share)| self.starts(i, prompts[i], share)).collect();
        let (cache, judge_cache) = (&mut caches.reasoner, &mut caches.judge);
        let mut clock = Instant::now();
        let mut lap = |stage: &mut f64| *stage += std::mem::replace(&mut clock, Instant::now()).elapsed().as_secs_f64();

        let started = prefill(self.reasoner, cache.as_mut(), &prompts, &starts, chance);
        lap(&mut seconds.prefill);
        let mut rows = think(self.reasoner, cache.as_mut(), started, settings.length, chance);
        lap(&mut seconds.thoughts);
        let rewards = self.judge.map(|judge| score(judge, judge_cache.as_mut(), &prompts, &rows));
        lap(&mut seconds.scores);
        let (spoken, _) = decode(self.reasoner, cache.as_mut(), &mut rows, settings.max_new_tokens.get(), chance);
        lap(&mut seconds.answers);
        seconds.total = seconds.prefill + seconds.thoughts + seconds.scores + seconds.answers;

        let mut rewards = rewards.map(Vec::into_iter);
        let finished = rows.into_iter().zip(spoken).map(|(row, spoken)| {
            let scores = rewards.as_mut().and_then(Iterator::next);
            Finished { row, spoken, scores }
        });
        let mut finished = finished.into_iter();
        wave.iter().map(|share| finished.by_ref().take(share.rows.len()).collect()).collect()
    }

    fn starts(&self, prompt: usize, of: &Prompt, share: &Share) -> impl Iterator<Item = Start> {
        let (question, samples) = (of.id, self.settings.samples.get());
        share.rows.clone().map(move |r| Start { prompt, id: RowId { question, trajectory: r as u32 }, perturbed: r < samples })
    }
}

/// A row that has answered.
struct Finished {
    row: Row,
    spoken: Spoken,
    scores: Option<Vec<f32>>,
}

/// Caches that are kept from wave to wave.
#[derive(Default)]
struct Caches {
    reasoner: Slot,
    judge: Slot,
}

#[derive(Default)]
struct Slot(Option<Cache>);

impl Slot {
    fn ready(&mut self, slots: usize, make: impl Fn(usize) -> Cache) {
        match &mut self.0 {
            Some(cache) if cache.slots() >= slots => cache.clear(),
            _ => {
                self.0 = None; // before the new one is made: both at once would break the budget
                self.0 = Some(make(slots));
            }
        }
    }

    fn as_mut(&mut self) -> &mut Cache {
        self.0.as_mut().unwrap_or_else(|| panic!("a wave's caches are made before it starts"))
    }
}

impl Caches {
    fn ready(&mut self, engine: &Engine<'_>, (reasoner, judge): (usize, usize)) -> &mut Self {
        self.reasoner.ready(reasoner, |n| Cache::new(engine.reasoner.decoder.config(), n));
        if let Some(model) = engine.judge {
            self.judge.ready(judge, |n| Cache::new(model.decoder.config(), n));
        }
        self
    }
}

/// A question whose rows are coming in.
struct Gathering {
    trajectories: Vec<Trajectory>,
    greedy: Option<Trajectory>,
    thoughts: Vec<Tensor>,
    diversity: StepDiversity,
    cost: Cost,
}

impl Gathering {
    fn new(engine: &Engine<'_>, prompt: &Prompt) -> Self {
        Self {
            trajectories: Vec::new(),
            greedy: None,
            thoughts: Vec::new(),
            diversity: StepDiversity::new(engine.reasoner.decoder.config().width),
            cost: Cost::of_prompt(engine, prompt.tokens.len()),
        }
    }

    fn add(&mut self, engine: &Engine<'_>, question: &Question, prompt: &Prompt, finished: Finished) -> Result<(), Error> {
        let Finished { row, spoken, scores } = finished;
        let reasoner = engine.reasoner;
        let text = reasoner.tokenizer.decode(&spoken.tokens)?;
        let answer = reasoner.method.rule.extract(question.kind, &prompt.text, &text);
        self.cost.add_row(engine, prompt.tokens.len(), row.thoughts.rows(), spoken.tokens.len());
        let trajectory = Trajectory {
            k: row.start.id.trajectory,
            thoughts: row.thoughts.rows() as u32,
            correct: answer.as_ref().is_some_and(|a| a.matches(&question.gold)),
            answer: answer.map(|a| a.canonical()),
            text,
            scores,
        };
        if row.start.perturbed {
            (0..row.thoughts.rows()).for_each(|t| self.diversity.add(t, row.thoughts.row(t)));
            self.trajectories.push(trajectory);
            self.thoughts.push(row.thoughts);
        } else {
            self.greedy = Some(Trajectory { k: 0, ..trajectory });
        }
        Ok(())
    }

    fn finish(self, engine: &Engine<'_>, question: &Question, seconds: Seconds) -> Outcome {
        let diversity = self.diversity.values();
        let sample = Sample {
            id: question.id,
            seed: engine.settings.seed,
            question: question.text.clone(),
            gold: question.gold.clone(),
            greedy: self.greedy,
            trajectories: self.trajectories,
            diversity: (!diversity.is_empty()).then_some(diversity),
            beam: None,
            steps: self.cost.steps,
            flops: self.cost.flops,
        };
        Outcome { sample, thoughts: self.thoughts, seconds }
    }
}
