//! The stages in their order, over waves of rows that fit the memory.
//!
//! ```text
//! question -> prompt -> prefix -> N trajectories -> answers -> rewards -> choice
//! ```
//!
//! The choice is a function of the recorded trajectories ([`record::aggregate`]), so that one run holds those of every
//! smaller N and every rule.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

use rayon::prelude::*;
use record::diversity::StepDiversity;
use record::stopping::{Stopped, decided};
use record::{Beam, Sample, Seconds, Trajectory};
use tensor::Tensor;

use crate::cost::Cost;
use crate::error::Error;
use crate::lanes::{self, Lane};
use crate::plan::{Plan, Share};
use crate::prompt::{Prompt, prompt};
use crate::question::Question;
use crate::reasoner::{Reasoner, RewardModel};
use crate::search::Found;
use crate::settings::{Adaptive, Settings};
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
        let plan = Plan::new(&party, &prompts)?;
        let rounds = party.rounds();
        // Without rounds a question is complete when its rows are: no need to wait for a group.
        let all = 0..questions.len();
        let groups = if rounds.len() > 1 { plan.groups(rounds[0].len()) } else { Vec::from([all]) };
        let lanes = lanes::open(plan.lanes());
        let mut desk = Desk::new(self.reasoner, &party, (&plan, questions), &lanes[0]);
        for group in groups {
            desk.take_up(group);
            for round in &rounds {
                let waves = plan.waves(&Share::of_each(desk.undecided(), round));
                let mut stopped = ControlFlow::Continue(());
                party.pass_all(&plan, &waves, &lanes, |wave, done, seconds| {
                    desk.receive(wave, round, done, seconds)?;
                    stopped = desk.hand_over()?.into_iter().try_for_each(&mut *take);
                    Ok(stopped)
                })?;
                if stopped.is_break() {
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

impl Party<'_> {
    /// The rows of a question that are passed before its vote is looked at again; all at once unless the run is adaptive.
    fn rounds(&self) -> Vec<Range<usize>> {
        let (rows, greedy) = (self.rows(), self.rows() - self.settings.samples.get());
        let (mut rounds, mut end) = (Vec::new(), 0);
        while end < rows {
            let samples = Adaptive::FIRST_ROUND << rounds.len();
            let next = if self.settings.adaptive.is_some() { rows.min(greedy + samples) } else { rows };
            rounds.push(end..next);
            end = next;
        }
        rounds
    }
}

/// The questions that are being thought about, in their order.
struct Desk<'a> {
    reasoner: &'a Reasoner,
    party: &'a Party<'a>,
    plan: &'a Plan<'a>,
    questions: &'a [Question],
    lane: &'a Lane<Caches>, // in which searches are made
    seconds: Seconds,
    open: VecDeque<Gathering>,
    first: usize, // the question of the first open one
}

impl<'a> Desk<'a> {
    fn new(
        reasoner: &'a Reasoner,
        party: &'a Party<'a>,
        (plan, questions): (&'a Plan<'a>, &'a [Question]),
        lane: &'a Lane<Caches>,
    ) -> Self {
        let (seconds, open) = (Seconds::default(), VecDeque::new());
        Self { reasoner, party, plan, questions, lane, seconds, open, first: 0 }
    }

    fn take_up(&mut self, questions: Range<usize>) {
        self.first = questions.start;
        self.open = questions.map(|_| Gathering::new(self.party.mind.decoder.config().width)).collect();
    }

    /// The questions whose vote is still open.
    fn undecided(&self) -> Vec<usize> {
        self.open.iter().enumerate().filter(|(_, g)| !g.done).map(|(i, _)| self.first + i).collect()
    }

    /// Takes the rows of a wave and looks at the questions that completed their round: side by side, since reading answers and
    /// comparing thoughts takes one core longer than it takes a GPU to make them.
    fn receive(&mut self, wave: &[Share], round: &Range<usize>, done: Vec<Vec<Finished>>, seconds: Seconds) -> Result<(), Error> {
        self.seconds += seconds;
        let Self { reasoner, party, plan, questions, first, .. } = *self;
        // A wave has a question once, and questions in their order.
        let mut shares = wave.iter().zip(done).peekable();
        let open = self.open.iter_mut().enumerate();
        let work: Vec<_> = open
            .filter_map(|(i, gathering)| Some((gathering, shares.next_if(|(share, _)| share.question == first + i)?)))
            .collect();
        let receive = |(gathering, (share, rows)): (&mut Gathering, (&Share, Vec<Finished>))| {
            let asked = (&questions[share.question], &plan.prompts()[share.question]);
            if share.rows.start == round.start {
                gathering.cost.add(Cost::of_prompt(party, asked.1.tokens.len()));
            }
            rows.into_iter().try_for_each(|row| gathering.add(reasoner, party, asked, row))?;
            if share.rows.end == round.end {
                gathering.decide(&party.settings);
            }
            Ok(())
        };
        party.mind.decoder.device().run(|| work.into_par_iter().try_for_each(receive))
    }

    /// The questions that are complete and have no open one before them.
    fn hand_over(&mut self) -> Result<Vec<Outcome>, Error> {
        let ready = self.open.iter().take_while(|g| g.done).count();
        let complete: Vec<Gathering> = self.open.drain(..ready).collect();
        let questions = self.first..self.first + complete.len();
        self.first = questions.end;
        let mut found = Vec::new();
        for group in self.plan.searches(questions.clone()) {
            found.extend(self.party.search(self.plan, group, &mut lanes::state(self.lane), &mut self.seconds)?);
        }
        let mut found = found.into_iter();
        let mut outcome = |(question, gathering): (usize, Gathering)| {
            let beam = found.next().map(|found| self.beam(question, found)).transpose()?;
            let seconds = std::mem::take(&mut self.seconds);
            let outcome = gathering.finish(&self.questions[question], &self.party.settings, seconds);
            Ok(Outcome { sample: Sample { beam, ..outcome.sample }, ..outcome })
        };
        questions.zip(complete).map(&mut outcome).collect()
    }

    /// What is recorded of a search.
    fn beam(&self, question: usize, found: Found) -> Result<Beam, Error> {
        let size = self.party.settings.beam;
        let asked = (&self.questions[question], &self.plan.prompts()[question]);
        let answer = answer(self.reasoner, asked, &found.tokens)?;
        Ok(Beam {
            width: size.map_or(0, |size| size.width.get() as u32),
            candidates: size.map_or(0, |size| size.candidates.get() as u32),
            thoughts: found.thoughts as u32,
            text: answer.text,
            answer: answer.canonical,
            reward: found.scores.iter().sum(),
            verdict: found.verdict,
            scores: found.scores,
            correct: answer.correct,
            steps: found.cost.steps,
            flops: found.cost.flops,
        })
    }
}

/// What some tokens say.
struct Answered {
    text: String,
    canonical: Option<String>,
    correct: bool,
}

fn answer(reasoner: &Reasoner, (question, prompt): (&Question, &Prompt), tokens: &[u32]) -> Result<Answered, Error> {
    let text = reasoner.tokenizer.decode(tokens)?;
    let answer = reasoner.method.rule.extract(question.kind, &prompt.text, &text);
    let correct = answer.as_ref().is_some_and(|a| a.matches(&question.gold));
    Ok(Answered { text, correct, canonical: answer.map(|a| a.canonical()) })
}

/// A question whose rows are coming in.
struct Gathering {
    trajectories: Vec<Trajectory>,
    greedy: Option<Trajectory>,
    thoughts: Vec<Tensor>,
    greedy_thoughts: Option<Tensor>,
    diversity: StepDiversity,
    cost: Cost,
    done: bool,
    stopped: Option<Stopped>,
}

impl Gathering {
    fn new(width: usize) -> Self {
        Self {
            trajectories: Vec::new(),
            greedy: None,
            thoughts: Vec::new(),
            greedy_thoughts: None,
            diversity: StepDiversity::new(width),
            cost: Cost::default(),
            done: false,
            stopped: None,
        }
    }

    fn add(&mut self, reasoner: &Reasoner, party: &Party<'_>, asked: (&Question, &Prompt), row: Finished) -> Result<(), Error> {
        let answer = answer(reasoner, asked, &row.tokens)?;
        self.cost.add_row(party, asked.1.tokens.len(), row.thoughts, row.tokens.len());
        let trajectory = Trajectory {
            k: row.id.trajectory,
            thoughts: row.thoughts as u32,
            correct: answer.correct,
            answer: answer.canonical,
            text: answer.text,
            verdict: row.reading.as_ref().and_then(|reading| reading.verdict),
            scores: row.reading.map(|reading| reading.scores),
            logprob: row.logprob.is_finite().then_some(row.logprob),
        };
        if row.perturbed {
            let vectors = row.vectors.unwrap_or_default();
            (0..vectors.rows()).for_each(|t| self.diversity.add(t, vectors.row(t)));
            self.trajectories.push(trajectory);
            self.thoughts.push(vectors);
        } else {
            self.greedy = Some(trajectory);
            self.greedy_thoughts = Some(row.vectors.unwrap_or_default());
        }
        Ok(())
    }

    /// Whether this is enough: all samples are there, or the vote is settled.
    fn decide(&mut self, settings: &Settings) {
        let asked = settings.samples.get();
        let left = asked - self.trajectories.len();
        if let (Some(Adaptive { confidence }), 1..) = (settings.adaptive, left) {
            let settled = decided(&self.trajectories, left, confidence);
            self.stopped = settled.map(|why| Stopped { asked: asked as u32, why });
        }
        self.done = left == 0 || self.stopped.is_some();
    }

    fn finish(self, question: &Question, settings: &Settings, seconds: Seconds) -> Outcome {
        let diversity = self.diversity.values();
        let sample = Sample {
            id: question.id,
            seed: settings.seed,
            question: question.text.clone(),
            gold: question.gold.clone(),
            greedy: self.greedy,
            trajectories: self.trajectories,
            diversity: (!diversity.is_empty()).then_some(diversity),
            beam: None,
            stopped: self.stopped,
            steps: self.cost.steps,
            flops: self.cost.flops,
        };
        Outcome { sample, thoughts: self.thoughts, greedy_thoughts: self.greedy_thoughts, seconds }
    }
}
