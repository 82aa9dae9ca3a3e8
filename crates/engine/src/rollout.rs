//! Trajectories become labelled thoughts: how often does a thought lead to the right answer?
//!
//! ```text
//! question -> N trajectories -> mixed? -> M rollouts from every thought -> share that is right
//!             (prefill, think, decode)    (branch: fork, think on, decode)
//! ```
//!
//! The label of thought t (the paper's Monte Carlo estimate for the LatentRM) is the share of M
//! continuations, with thoughts 1 to t fixed and fresh masks or noise after them, that answer
//! right. A rollout is a fork of its trajectory: nothing before thought t is computed again.
//! Questions whose N trajectories are all right or all wrong teach a judge nothing and are left out
//! before any rollout.
//!
//! Where nothing random is left to happen after a thought, all rollouts would be the trajectory
//! itself, and the label is the trajectory's own outcome: after the last thought, unless dropout
//! reaches the answer or, with an open length, the next pass may decide to think on.
//!
//! # Whose random numbers
//!
//! A rollout is a row of its own in the random function: its trajectory number has the highest bit
//! set, then 10 bits of the trajectory it left, 9 of the thought (less one), 12 of its own number;
//! see [`row`]. So no rollout shares numbers with another or with a trajectory, and the first four
//! of 128 rollouts are the four of a run with four.
//!
//! `plan` sizes waves to the memory, `branch` runs them; `train::annotate` writes what comes back.

mod plan;
mod run;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use model::Cache;
use record::Seconds;
use tensor::Tensor;

use crate::cost::ComputeCost;
use crate::decode::AnswerTokens;
use crate::error::EngineError;
use crate::perturb::RowId;
use crate::prompt::{Prompt, prompt};
use crate::question::Question;
use crate::reasoner::{LatentModel, Reasoner};
use crate::sampling_params::SamplingParams;
use crate::streams::{self, StreamJobs, StreamState};
use crate::wave::{BatchContext, ensure_slots};
use plan::RolloutPlan;

const THOUGHT_BITS: u32 = 9;
const ROLLOUT_BITS: u32 = 12;
/// Trajectories of a question, of which rollouts can be named, at most.
pub const MOST_TRAJECTORIES: usize = 1 << (31 - THOUGHT_BITS - ROLLOUT_BITS);
/// Thoughts of a trajectory, from which rollouts can be named, at most.
pub const MOST_THOUGHTS: usize = 1 << THOUGHT_BITS;
/// Rollouts of a thought that can be named, at most.
pub const MOST_ROLLOUTS: usize = 1 << ROLLOUT_BITS;

/// The name, in the random function, of a rollout from a thought (counted from 1) of a question's
/// trajectory.
pub fn rollout_row(trajectory: RowId, thought: usize, rollout: usize) -> RowId {
    debug_assert!((trajectory.trajectory as usize) < MOST_TRAJECTORIES && rollout < MOST_ROLLOUTS);
    debug_assert!((1..=MOST_THOUGHTS).contains(&thought));
    let place = trajectory.trajectory << (THOUGHT_BITS + ROLLOUT_BITS)
        | (thought as u32 - 1) << ROLLOUT_BITS
        | rollout as u32;
    RowId { trajectory: 1 << 31 | place, ..trajectory }
}

/// What a thought is labelled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThoughtLabels {
    /// Whether its trajectory's own answer is right.
    Final,
    /// The share of so many rollouts from it that answer right.
    Rollouts(NonZeroUsize),
}

impl ThoughtLabels {
    /// Rollouts from a thought.
    pub fn rollouts(self) -> usize {
        match self {
            Self::Final => 0,
            Self::Rollouts(count) => count.get(),
        }
    }
}

/// A reasoner whose thoughts are labelled.
#[derive(Clone, Copy)]
pub struct Annotator<'a> {
    /// Who thinks.
    pub reasoner: &'a Reasoner,
    /// How; `samples` is the number of trajectories of a question, and there is no deterministic
    /// one.
    pub settings: SamplingParams,
    /// What thoughts are labelled with.
    pub labels: ThoughtLabels,
}

/// A question whose trajectories were followed.
#[derive(Clone, Debug, PartialEq)]
pub struct AnnotatedQuestion {
    /// The question's number in its data set.
    pub id: u32,
    /// The tokens that the reasoner saw.
    pub prompt: Vec<u32>,
    /// Whether some trajectories are right and some wrong. If not, thoughts and labels are left
    /// out.
    pub kept: bool,
    /// The trajectories, in their order.
    pub trajectories: Vec<LabelledTrajectory>,
    /// Rollouts that were computed.
    pub rollouts: usize,
}

/// A trajectory with its labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelledTrajectory {
    /// (thoughts, width)
    pub thoughts: Tensor,
    /// One for each thought.
    pub labels: Vec<f32>,
    /// The answer's tokens, the ending one included.
    pub tokens: AnswerTokens,
    /// The answer that was found in them.
    pub answer: Option<String>,
    /// Whether it is right.
    pub correct: bool,
}

impl Annotator<'_> {
    /// Follows all questions and hands each over as soon as it is labelled, in the order of the
    /// questions.
    ///
    /// Stops early when `take` breaks.
    pub fn run(
        &self,
        questions: &[Question],
        take: &mut dyn FnMut(AnnotatedQuestion) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let prompts = self.prompts(questions)?;
        let judge = |q: usize, tokens: &[u32]| self.grade(&questions[q], &prompts[q], tokens);
        self.runner(&judge).run(&prompts, take)
    }

    /// Whether all questions can be followed: every prompt fits the model and the memory, every
    /// rollout has a name.
    pub fn check(&self, questions: &[Question]) -> Result<(), EngineError> {
        let prompts = self.prompts(questions)?;
        RolloutPlan::new(&self.runner(&|_, _| Ok(Grade::default())), &prompts).map(|_| ())
    }

    fn runner<'a>(&'a self, judge: &'a Grader<'a>) -> RolloutRunner<'a> {
        RolloutRunner {
            model: &self.reasoner.model,
            settings: self.settings,
            labels: self.labels,
            keep_all: false,
            grader: judge,
        }
    }

    fn prompts(&self, questions: &[Question]) -> Result<Vec<Prompt>, EngineError> {
        questions.iter().map(|q| prompt(self.reasoner, q)).collect()
    }

    fn grade(
        &self,
        question: &Question,
        prompt: &Prompt,
        tokens: &[u32],
    ) -> Result<Grade, EngineError> {
        let text = self.reasoner.tokenizer.decode(tokens)?;
        let answer = self.reasoner.method.answer_rule.extract(question.kind, &prompt.text, &text);
        let correct = answer.as_ref().is_some_and(|a| a.matches(&question.gold));
        Ok(Grade { answer: answer.map(|a| a.canonical()), correct })
    }
}

/// What an answer's tokens say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grade {
    /// The answer, if there is one.
    pub answer: Option<String>,
    /// Whether it is right.
    pub correct: bool,
}

/// Says of an answer's tokens what they are worth, for a question by its place in the list. Always
/// the same of the same.
pub type Grader<'a> = dyn Fn(usize, &[u32]) -> Result<Grade, EngineError> + Sync + 'a;

/// An [`Annotator`] that knows no text: of prompts, with any judge of answers.
#[derive(Clone, Copy)]
pub struct RolloutRunner<'a> {
    /// Who thinks.
    pub model: &'a LatentModel,
    /// How; see [`Annotator::settings`].
    pub settings: SamplingParams,
    /// What thoughts are labelled with.
    pub labels: ThoughtLabels,
    /// Whether questions that are all right or all wrong are labelled too.
    pub keep_all: bool,
    /// Who says what is right.
    pub grader: &'a Grader<'a>,
}

/// What a lane keeps from wave to wave: the memory, and a count of what was done.
#[derive(Default)]
pub(crate) struct RolloutState {
    cache: Option<Cache>,
    pub(crate) cost: RolloutCost,
}

/// Time by stage, rollouts beside the stages of the trajectories, and operations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RolloutCost {
    pub(crate) seconds: Seconds,
    pub(crate) rollouts: f64,
    pub(crate) cost: ComputeCost,
}

impl RolloutRunner<'_> {
    /// Follows all prompts; see [`Annotator::run`].
    pub fn run(
        &self,
        prompts: &[Prompt],
        take: &mut dyn FnMut(AnnotatedQuestion) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        self.run_with_states(prompts, &mut Vec::new(), take)
    }

    /// The same with lanes that are there already.
    pub(crate) fn run_with_states(
        &self,
        prompts: &[Prompt],
        lanes: &mut Vec<StreamState<RolloutState>>,
        take: &mut dyn FnMut(AnnotatedQuestion) -> ControlFlow<()>,
    ) -> Result<(), EngineError> {
        let plan = RolloutPlan::new(self, prompts)?;
        if lanes.len() != plan.lanes {
            *lanes = streams::open(plan.lanes);
        }
        let each = |&wave: &(usize, usize), kept: &mut RolloutState| {
            self.run_wave(&plan, wave, usize::MAX, kept)
        };
        let work =
            StreamJobs { device: self.model.decoder.device(), lanes, jobs: &plan.waves(), each };
        work.run(|_, annotated| Ok(annotated.into_iter().try_for_each(&mut *take)))
    }

    fn context(&self) -> BatchContext<'_> {
        BatchContext {
            model: self.model,
            reward_model: None,
            params: self.settings,
            return_latents: true,
        }
    }

    /// Follows `count` questions from `first` on: in halves if the device has not the memory for
    /// them at once, and a single one with fewer rollouts at a time, `at_once` at most.
    fn run_wave(
        &self,
        plan: &RolloutPlan<'_>,
        (first, count): (usize, usize),
        at_once: usize,
        kept: &mut RolloutState,
    ) -> Result<Vec<AnnotatedQuestion>, EngineError> {
        let decoder = &self.model.decoder;
        let at_once = plan.rollouts(first, count).min(at_once);
        let made = ensure_slots(&mut kept.cache, plan.slots(first, count, at_once), |n| {
            Cache::new(decoder.device(), decoder.config(), n)
        });
        let followed = match (made, &mut kept.cache) {
            (Ok(()), Some(cache)) => decoder
                .device()
                .run(|| self.annotate_wave(plan, (first, count), at_once, (cache, &mut kept.cost))),
            (made, _) => made.map(|()| Vec::new()).map_err(EngineError::from),
        };
        match followed {
            Err(EngineError::Device(e)) if e.is_out_of_memory() && (count > 1 || at_once > 1) => {
                kept.cache = None;
                if count == 1 {
                    return self.run_wave(plan, (first, 1), at_once / 2, kept);
                }
                let half = count / 2;
                let mut all = self.run_wave(plan, (first, half), at_once, kept)?;
                all.extend(self.run_wave(plan, (first + half, count - half), at_once, kept)?);
                Ok(all)
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rollout_has_a_name_of_its_own() {
        let of = |trajectory: usize| RowId { question: 3, trajectory: trajectory as u32 };
        let mut seen = std::collections::HashSet::new();
        for trajectory in [0, 1, 7, MOST_TRAJECTORIES - 1] {
            seen.insert(of(trajectory).trajectory);
            for thought in [1, 2, 6, MOST_THOUGHTS] {
                for rollout in [0, 1, 127, MOST_ROLLOUTS - 1] {
                    let id = rollout_row(of(trajectory), thought, rollout);
                    assert_eq!(id.question, 3);
                    assert!(seen.insert(id.trajectory), "{trajectory}, {thought}, {rollout}");
                }
            }
        }
    }
}
