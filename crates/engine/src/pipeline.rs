//! The stages in their order, over waves of rows that fit the memory.
//!
//! ```text
//! question -> prompt -> prefix -> N trajectories -> scores -> candidates -> verdict
//! ```
//!
//! The verdict is a function of the recorded trajectories ([`record::aggregate`]), so that one run holds those of every
//! smaller N and every rule.

use std::ops::ControlFlow;

use record::diversity::StepDiversity;
use record::{Sample, Seconds, Trajectory};
use tensor::Tensor;

use crate::cost::Cost;
use crate::error::Error;
use crate::plan::Plan;
use crate::prompt::{Prompt, prompt};
use crate::question::Question;
use crate::reasoner::{Reasoner, RewardModel};
use crate::settings::Settings;
use crate::wave::{Caches, Finished, Party};

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
    /// Those of the trajectory without perturbation, where it ran.
    pub greedy_thoughts: Option<Tensor>,
    /// What was spent since the outcome before.
    pub seconds: Seconds,
}

impl Engine<'_> {
    /// Thinks about all questions and hands each outcome over as soon as it is complete, in the order of the questions.
    ///
    /// Stops early when `take` breaks.
    pub fn run(&self, questions: &[Question], take: &mut dyn FnMut(Outcome) -> ControlFlow<()>) -> Result<(), Error> {
        let prompts = questions.iter().map(|q| prompt(self.reasoner, q)).collect::<Result<Vec<_>, _>>()?;
        let party = self.party();
        let mut plan = Plan::new(&party, &prompts)?;
        let mut caches = Caches::default();
        let mut open: Option<Gathering> = None;
        let mut seconds = Seconds::default();
        while let Some(wave) = plan.next() {
            let done = party.pass(&plan, &wave, &mut caches, &mut seconds)?;
            for (share, rows) in wave.iter().zip(done) {
                let (question, prompt) = (&questions[share.question], &prompts[share.question]);
                let mut gathering = open.take().unwrap_or_else(|| Gathering::new(&party, prompt));
                for row in rows {
                    gathering.add(self.reasoner, &party, (question, prompt), row)?;
                }
                if share.rows.end < party.rows() {
                    open = Some(gathering);
                } else if take(gathering.finish(question, self.settings.seed, std::mem::take(&mut seconds))).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether all questions can be thought about: every prompt fits the models and the memory.
    pub fn check(&self, questions: &[Question]) -> Result<(), Error> {
        let prompts = questions.iter().map(|q| prompt(self.reasoner, q)).collect::<Result<Vec<_>, _>>()?;
        Plan::new(&self.party(), &prompts).map(|_| ())
    }

    fn party(&self) -> Party<'_> {
        Party { mind: &self.reasoner.mind, judge: self.judge, settings: self.settings, keep_thoughts: true }
    }
}

/// A question whose rows are coming in.
struct Gathering {
    trajectories: Vec<Trajectory>,
    greedy: Option<Trajectory>,
    thoughts: Vec<Tensor>,
    greedy_thoughts: Option<Tensor>,
    diversity: StepDiversity,
    cost: Cost,
}

impl Gathering {
    fn new(party: &Party<'_>, prompt: &Prompt) -> Self {
        Self {
            trajectories: Vec::new(),
            greedy: None,
            thoughts: Vec::new(),
            greedy_thoughts: None,
            diversity: StepDiversity::new(party.mind.decoder.config().width),
            cost: Cost::of_prompt(party, prompt.tokens.len()),
        }
    }

    fn add(&mut self, reasoner: &Reasoner, party: &Party<'_>, asked: (&Question, &Prompt), row: Finished) -> Result<(), Error> {
        let (question, prompt) = asked;
        let text = reasoner.tokenizer.decode(&row.tokens)?;
        let answer = reasoner.method.rule.extract(question.kind, &prompt.text, &text);
        self.cost.add_row(party, prompt.tokens.len(), row.thoughts, row.tokens.len());
        let trajectory = Trajectory {
            k: row.id.trajectory,
            thoughts: row.thoughts as u32,
            correct: answer.as_ref().is_some_and(|a| a.matches(&question.gold)),
            answer: answer.map(|a| a.canonical()),
            text,
            scores: row.scores,
            logprob: row.logprob.is_finite().then_some(row.logprob),
        };
        if row.perturbed {
            let vectors = row.vectors.unwrap_or_default();
            (0..vectors.rows()).for_each(|t| self.diversity.add(t, vectors.row(t)));
            self.trajectories.push(trajectory);
            self.thoughts.push(vectors);
        } else {
            self.greedy = Some(Trajectory { k: 0, ..trajectory });
            self.greedy_thoughts = Some(row.vectors.unwrap_or_default());
        }
        Ok(())
    }

    fn finish(self, question: &Question, seed: u64, seconds: Seconds) -> Outcome {
        let diversity = self.diversity.values();
        let sample = Sample {
            id: question.id,
            seed,
            question: question.text.clone(),
            gold: question.gold.clone(),
            greedy: self.greedy,
            trajectories: self.trajectories,
            diversity: (!diversity.is_empty()).then_some(diversity),
            beam: None,
            steps: self.cost.steps,
            flops: self.cost.flops,
        };
        Outcome { sample, thoughts: self.thoughts, greedy_thoughts: self.greedy_thoughts, seconds }
    }
}
