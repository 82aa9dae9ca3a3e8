//! The stages in their order, over waves of rows that fit the memory.
//!
//! ```text
//! question -> prompt -> prefix -> N trajectories -> answers -> rewards -> choice
//! ```
//!
//! The choice is a function of the recorded trajectories ([`aggregate`]), so that one run
//! holds those of every smaller N and every rule.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

use aggregate::{EarlyStop, StepDiversity, stop_reason};
use rayon::prelude::*;
use record::{BeamResult, Sample, Seconds, TrajectoryRecord};
use tensor::Tensor;

use crate::batch_plan::{BatchPlan, RowRange};
use crate::beam_search::BeamOutput;
use crate::cost::ComputeCost;
use crate::error::EngineError;
use crate::prompt::{Prompt, prompt};
use crate::question::Question;
use crate::reasoner::{Reasoner, RewardModel};
use crate::sampling_params::{AdaptiveSampling, SamplingParams};
use crate::streams::{self, StreamState};
use crate::wave::{BatchContext, FinishedRow, WaveCaches};

/// A reasoner, perhaps a judge, and how to use them.
#[derive(Clone, Copy)]
pub struct Engine<'a> {
    /// Who thinks.
    pub reasoner: &'a Reasoner,
    /// Who scores thoughts.
    pub reward_model: Option<&'a RewardModel>,
    /// How.
    pub params: SamplingParams,
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
    /// Thinks about all questions and hands each outcome over as soon as it is complete, in the
    /// order of the questions.
    ///
    /// Stops early when `take` breaks.
    pub fn run(
        &self,
        questions: &[Question],
        take: &mut dyn FnMut(Outcome) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let prompts =
            questions.iter().map(|q| prompt(self.reasoner, q)).collect::<Result<Vec<_>, _>>()?;
        let party = self.context();
        let plan = BatchPlan::new(&party, &prompts)?;
        let rounds = party.rounds();
        // Without rounds a question is complete when its rows are: no need to wait for a group.
        let all = 0..questions.len();
        let groups = if rounds.len() > 1 { plan.groups(rounds[0].len()) } else { Vec::from([all]) };
        let lanes = streams::open(plan.streams());
        let mut desk = Collector::new(self.reasoner, &party, (&plan, questions), &lanes[0]);
        for group in groups {
            desk.open_questions(group);
            for round in &rounds {
                let waves = plan.waves(&RowRange::for_each_question(desk.undecided(), round));
                let mut stopped = ControlFlow::Continue(());
                party.run_waves(&plan, &waves, &lanes, |wave, done, seconds| {
                    desk.collect(wave, round, done, seconds)?;
                    stopped = desk.take_finished()?.into_iter().try_for_each(&mut *take);
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
    pub fn check(&self, questions: &[Question]) -> Result<(), EngineError> {
        let prompts =
            questions.iter().map(|q| prompt(self.reasoner, q)).collect::<Result<Vec<_>, _>>()?;
        BatchPlan::new(&self.context(), &prompts).map(|_| ())
    }

    fn context(&self) -> BatchContext<'_> {
        BatchContext {
            model: &self.reasoner.model,
            reward_model: self.reward_model,
            params: self.params,
            return_latents: true,
        }
    }
}

impl BatchContext<'_> {
    /// The rows of a question that are passed before its vote is looked at again; all at once
    /// unless the run is adaptive.
    fn rounds(&self) -> Vec<Range<usize>> {
        let (rows, greedy) = (self.rows(), self.rows() - self.params.samples.get());
        let (mut rounds, mut end) = (Vec::new(), 0);
        while end < rows {
            let samples = AdaptiveSampling::FIRST_ROUND << rounds.len();
            let next =
                if self.params.adaptive.is_some() { rows.min(greedy + samples) } else { rows };
            rounds.push(end..next);
            end = next;
        }
        rounds
    }
}

/// The questions that are being thought about, in their order.
struct Collector<'a> {
    reasoner: &'a Reasoner,
    context: &'a BatchContext<'a>,
    plan: &'a BatchPlan<'a>,
    questions: &'a [Question],
    stream: &'a StreamState<WaveCaches>, // in which searches are made
    seconds: Seconds,
    states: VecDeque<QuestionState>,
    first: usize, // the question of the first open one
}

impl<'a> Collector<'a> {
    fn new(
        reasoner: &'a Reasoner,
        party: &'a BatchContext<'a>,
        (plan, questions): (&'a BatchPlan<'a>, &'a [Question]),
        lane: &'a StreamState<WaveCaches>,
    ) -> Self {
        let (seconds, open) = (Seconds::default(), VecDeque::new());
        Self {
            reasoner,
            context: party,
            plan,
            questions,
            stream: lane,
            seconds,
            states: open,
            first: 0,
        }
    }

    fn open_questions(&mut self, questions: Range<usize>) {
        self.first = questions.start;
        self.states = questions
            .map(|_| QuestionState::new(self.context.model.decoder.config().width))
            .collect();
    }

    /// The questions whose vote is still open.
    fn undecided(&self) -> Vec<usize> {
        self.states
            .iter()
            .enumerate()
            .filter(|(_, g)| !g.done)
            .map(|(i, _)| self.first + i)
            .collect()
    }

    /// Takes the rows of a wave and looks at the questions that completed their round: side by
    /// side, since reading answers and comparing thoughts takes one core longer than it takes a
    /// GPU to make them.
    fn collect(
        &mut self,
        wave: &[RowRange],
        round: &Range<usize>,
        done: Vec<Vec<FinishedRow>>,
        seconds: Seconds,
    ) -> Result<(), EngineError> {
        self.seconds += seconds;
        let Self { reasoner, context: party, plan, questions, first, .. } = *self;
        // A wave has a question once, and questions in their order.
        let mut shares = wave.iter().zip(done).peekable();
        let open = self.states.iter_mut().enumerate();
        let work: Vec<_> = open
            .filter_map(|(i, gathering)| {
                Some((gathering, shares.next_if(|(share, _)| share.question == first + i)?))
            })
            .collect();
        let receive =
            |(gathering, (share, rows)): (&mut QuestionState, (&RowRange, Vec<FinishedRow>))| {
                let asked = (&questions[share.question], &plan.prompts()[share.question]);
                if share.rows.start == round.start {
                    gathering.cost.add(ComputeCost::of_prompt(party, asked.1.tokens.len()));
                }
                rows.into_iter()
                    .try_for_each(|row| gathering.add_row(reasoner, party, asked, row))?;
                if share.rows.end == round.end {
                    gathering.decide(&party.params);
                }
                Ok(())
            };
        party.model.decoder.device().run(|| work.into_par_iter().try_for_each(receive))
    }

    /// The questions that are complete and have no open one before them.
    fn take_finished(&mut self) -> Result<Vec<Outcome>, EngineError> {
        let ready = self.states.iter().take_while(|g| g.done).count();
        let complete: Vec<QuestionState> = self.states.drain(..ready).collect();
        let questions = self.first..self.first + complete.len();
        self.first = questions.end;
        let mut found = Vec::new();
        for group in self.plan.searches(questions.clone()) {
            found.extend(self.context.search(
                self.plan,
                group,
                &mut streams::lock(self.stream),
                &mut self.seconds,
            )?);
        }
        let mut found = found.into_iter();
        let mut outcome = |(question, gathering): (usize, QuestionState)| {
            let beam = found.next().map(|found| self.beam_record(question, found)).transpose()?;
            let seconds = std::mem::take(&mut self.seconds);
            let outcome =
                gathering.finish(&self.questions[question], &self.context.params, seconds);
            Ok(Outcome { sample: Sample { beam, ..outcome.sample }, ..outcome })
        };
        questions.zip(complete).map(&mut outcome).collect()
    }

    /// What is recorded of a search.
    fn beam_record(&self, question: usize, found: BeamOutput) -> Result<BeamResult, EngineError> {
        let size = self.context.params.beam;
        let asked = (&self.questions[question], &self.plan.prompts()[question]);
        let answer = answer(self.reasoner, asked, &found.tokens)?;
        Ok(BeamResult {
            width: size.map_or(0, |size| size.width.get() as u32),
            candidates: size.map_or(0, |size| size.candidates.get() as u32),
            thoughts: found.thoughts as u32,
            text: answer.text,
            answer: answer.canonical,
            reward: found.process_rewards.iter().sum(),
            outcome_reward: found.outcome_reward,
            process_rewards: found.process_rewards,
            correct: answer.correct,
            steps: found.cost.steps,
            flops: found.cost.flops,
        })
    }
}

/// What some tokens say.
struct DecodedAnswer {
    text: String,
    canonical: Option<String>,
    correct: bool,
}

fn answer(
    reasoner: &Reasoner,
    (question, prompt): (&Question, &Prompt),
    tokens: &[u32],
) -> Result<DecodedAnswer, EngineError> {
    let text = reasoner.tokenizer.decode(tokens)?;
    let answer = reasoner.method.answer_rule.extract(question.kind, &prompt.text, &text);
    let correct = answer.as_ref().is_some_and(|a| a.matches(&question.gold));
    Ok(DecodedAnswer { text, correct, canonical: answer.map(|a| a.canonical()) })
}

/// A question whose rows are coming in.
struct QuestionState {
    trajectories: Vec<TrajectoryRecord>,
    greedy: Option<TrajectoryRecord>,
    thoughts: Vec<Tensor>,
    greedy_thoughts: Option<Tensor>,
    diversity: StepDiversity,
    cost: ComputeCost,
    done: bool,
    stopped: Option<EarlyStop>,
}

impl QuestionState {
    fn new(width: usize) -> Self {
        Self {
            trajectories: Vec::new(),
            greedy: None,
            thoughts: Vec::new(),
            greedy_thoughts: None,
            diversity: StepDiversity::new(width),
            cost: ComputeCost::default(),
            done: false,
            stopped: None,
        }
    }

    fn add_row(
        &mut self,
        reasoner: &Reasoner,
        party: &BatchContext<'_>,
        asked: (&Question, &Prompt),
        row: FinishedRow,
    ) -> Result<(), EngineError> {
        let answer = answer(reasoner, asked, &row.tokens)?;
        self.cost.add_row(party, asked.1.tokens.len(), row.thoughts, row.tokens.len());
        let trajectory = TrajectoryRecord {
            k: row.id.trajectory,
            thoughts: row.thoughts as u32,
            correct: answer.correct,
            answer: answer.canonical,
            text: answer.text,
            outcome_reward: row.rewards.as_ref().and_then(|reading| reading.outcome),
            process_rewards: row.rewards.map(|reading| reading.process),
            logprob: row.logprob.is_finite().then_some(row.logprob),
        };
        if row.perturbed {
            let vectors = row.latents.unwrap_or_default();
            (0..vectors.rows()).for_each(|t| self.diversity.add(t, vectors.row(t)));
            self.trajectories.push(trajectory);
            self.thoughts.push(vectors);
        } else {
            self.greedy = Some(trajectory);
            self.greedy_thoughts = Some(row.latents.unwrap_or_default());
        }
        Ok(())
    }

    /// Whether this is enough: all samples are there, or the vote is settled.
    fn decide(&mut self, settings: &SamplingParams) {
        let asked = settings.samples.get();
        let left = asked - self.trajectories.len();
        if let (Some(AdaptiveSampling { confidence }), 1..) = (settings.adaptive, left) {
            let settled = stop_reason(&self.trajectories, left, confidence);
            self.stopped = settled.map(|why| EarlyStop { requested: asked as u32, reason: why });
        }
        self.done = left == 0 || self.stopped.is_some();
    }

    fn finish(self, question: &Question, settings: &SamplingParams, seconds: Seconds) -> Outcome {
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
