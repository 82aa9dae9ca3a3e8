//! Labels for a reward model: how often does a thought lead to the right answer?
//!
//! ```text
//! question -> N trajectories -> mixed? -> M rollouts from every thought -> share of right answers
//!             (prefill, think, decode)    (fork, think on, decode)
//! ```
//!
//! The label of thought t (the paper's Monte Carlo estimate) is the share of M continuations, with
//! thoughts 1 to t fixed and fresh masks or noise after them, that answer right. A rollout is a
//! fork of its trajectory: nothing before thought t is computed again. Questions whose N
//! trajectories are all right or all wrong give a reward model nothing to compare and are left out
//! before any rollout.
//!
//! Where nothing random is left to happen after a thought, all rollouts would be the trajectory
//! itself, and the label is the trajectory's own outcome: after the last thought, unless dropout
//! reaches the answer or, with an open length, the next pass may decide to think on.
//!
//! # Random numbers of a rollout
//!
//! A rollout is a row of its own in the random function: its trajectory number has the highest bit
//! set, then 10 bits of the trajectory it left, 9 of the thought (less one), 12 of its own number;
//! see [`rollout_row`]. So no rollout shares numbers with another or with a trajectory, and the
//! first four of 128 rollouts are the four of a run with four.
//!
//! `plan` sizes waves to the memory, `run` runs them.

mod plan;
mod run;

use std::num::NonZeroUsize;
use std::ops::Range;

use model::Cache;
use tensor::Tensor;

use crate::batch::BatchContext;
use crate::error::EngineError;
use crate::executor::AnswerTokens;
use crate::prompt::Prompt;
use crate::reasoner::LatentModel;
use crate::reply::{ComputeCost, StageSeconds};
use crate::request::CancelToken;
use crate::sampler::RowId;
use crate::sampling_params::SamplingParams;
use crate::streams::{self, StreamJobs, StreamState};
use crate::wave::ensure_slots;
use plan::RolloutPlan;

const THOUGHT_BITS: u32 = 9;
const ROLLOUT_BITS: u32 = 12;
/// Trajectories of a question whose rollouts can be named, at most.
pub const MAX_TRAJECTORIES: usize = 1 << (31 - THOUGHT_BITS - ROLLOUT_BITS);
/// Thoughts of a trajectory whose rollouts can be named, at most.
pub const MAX_THOUGHTS: usize = 1 << THOUGHT_BITS;
/// Rollouts of a thought that can be named, at most.
pub const MAX_ROLLOUTS: usize = 1 << ROLLOUT_BITS;

/// The name, in the random function, of a rollout from a thought (counted from 1) of a question's
/// trajectory.
pub fn rollout_row(trajectory: RowId, thought: usize, rollout: usize) -> RowId {
    debug_assert!((trajectory.trajectory as usize) < MAX_TRAJECTORIES && rollout < MAX_ROLLOUTS);
    debug_assert!((1..=MAX_THOUGHTS).contains(&thought));
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
    /// Rollouts from each thought.
    pub fn rollouts(self) -> usize {
        match self {
            Self::Final => 0,
            Self::Rollouts(count) => count.get(),
        }
    }
}

/// A question with its labelled trajectories.
#[derive(Clone, Debug, PartialEq)]
pub struct AnnotatedQuestion {
    /// The prompt's id.
    pub id: u32,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Some trajectories are right and some wrong. If not, thoughts and labels are left out.
    pub kept: bool,
    /// The trajectories, by number.
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
    /// The answer's tokens, the EOS token included.
    pub tokens: AnswerTokens,
    /// The answer that was found in them.
    pub answer: Option<String>,
    /// Whether it is right.
    pub correct: bool,
}

/// What an answer is worth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grade {
    /// The answer, if there is one.
    pub answer: Option<String>,
    /// Whether it is right.
    pub correct: bool,
}

/// Grades an answer's tokens, for a prompt by its index. Must be deterministic: grades are cached.
pub type Grader<'a> = dyn Fn(usize, &[u32]) -> Result<Grade, EngineError> + Sync + 'a;

/// Labels the thoughts of a model's trajectories.
#[derive(Clone, Copy)]
pub struct RolloutRunner<'a> {
    /// The model.
    pub model: &'a LatentModel,
    /// How trajectories and rollouts are sampled; `samples` is the number of trajectories of a
    /// question, and there is no greedy one.
    pub params: SamplingParams,
    /// Bytes of keys and values that may be used.
    pub memory: usize,
    /// What thoughts are labelled with.
    pub labels: ThoughtLabels,
    /// Label questions that are all right or all wrong, too.
    pub keep_all: bool,
    /// Tells right answers from wrong ones.
    pub grader: &'a Grader<'a>,
    /// Looked at between passes; cancelling ends the run with [`EngineError::Cancelled`].
    pub cancel: Option<&'a CancelToken>,
}

/// What a stream keeps from wave to wave.
#[derive(Default)]
pub(crate) struct RolloutState {
    cache: Option<Cache>,
    pub(crate) cost: RolloutCost,
}

/// Time and operations since they were last reset.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RolloutCost {
    /// The stages of the trajectories.
    pub(crate) seconds: StageSeconds,
    pub(crate) rollout_seconds: f64,
    pub(crate) cost: ComputeCost,
}

impl RolloutRunner<'_> {
    /// Labels the thoughts of all prompts and hands each one over as soon as it is complete, in the
    /// order of the prompts.
    ///
    /// # Errors
    ///
    /// The first error of `take`, which ends the run, or what is wrong with a prompt or the device.
    pub fn run<E: From<EngineError>>(
        &self,
        prompts: &[Prompt],
        take: impl FnMut(AnnotatedQuestion) -> Result<(), E>,
    ) -> Result<(), E> {
        self.run_with_states(prompts, &mut Vec::new(), take)
    }

    /// Refuses prompts that do not fit the model or the memory, and rollouts that have no name.
    pub fn check(&self, prompts: &[Prompt]) -> Result<(), EngineError> {
        RolloutPlan::new(self, prompts).map(drop)
    }

    /// [`Self::run`] with streams that are there already.
    pub(crate) fn run_with_states<E: From<EngineError>>(
        &self,
        prompts: &[Prompt],
        states: &mut Vec<StreamState<RolloutState>>,
        mut take: impl FnMut(AnnotatedQuestion) -> Result<(), E>,
    ) -> Result<(), E> {
        let plan = RolloutPlan::new(self, prompts)?;
        if states.len() != plan.streams {
            *states = streams::open(plan.streams);
        }
        let each = |wave: &Range<usize>, state: &mut RolloutState| {
            self.run_wave(&plan, wave.clone(), usize::MAX, state)
        };
        let (device, streams) = (self.model.decoder.device(), states.as_slice());
        let jobs = StreamJobs { device, streams, jobs: &plan.waves(), each };
        jobs.run(|_, annotated: Vec<_>| annotated.into_iter().try_for_each(&mut take))
    }

    fn context(&self) -> BatchContext<'_> {
        BatchContext {
            model: self.model,
            reward_model: None,
            probe: None,
            return_latents: true,
            return_states: false,
        }
    }

    /// Annotates the prompts of a wave: in halves if the device has not the memory for them at
    /// once, and a single one with fewer rollouts at a time, `max_rollouts` at most.
    fn run_wave(
        &self,
        plan: &RolloutPlan<'_>,
        wave: Range<usize>,
        max_rollouts: usize,
        state: &mut RolloutState,
    ) -> Result<Vec<AnnotatedQuestion>, EngineError> {
        let decoder = &self.model.decoder;
        let at_once = plan.rollouts(wave.clone()).min(max_rollouts);
        let slots = plan.slots(wave.clone(), at_once);
        let ready = ensure_slots(&mut state.cache, slots, decoder);
        let annotated = match (ready, &mut state.cache) {
            (Ok(()), Some(cache)) => {
                let prompts = &plan.prompts[wave.clone()];
                let wave = run::WaveRun { runner: self, first: wave.start, prompts, at_once };
                decoder.device().run(|| wave.annotate(cache, &mut state.cost))
            }
            (ready, _) => ready.map(|()| Vec::new()).map_err(EngineError::from),
        };
        let count = wave.len();
        match annotated {
            Err(EngineError::Device(e)) if e.is_out_of_memory() && (count > 1 || at_once > 1) => {
                tracing::warn!(questions = count, "out of device memory; annotating in two halves");
                state.cache = None;
                if count == 1 {
                    return self.run_wave(plan, wave, at_once / 2, state);
                }
                let middle = wave.start + count / 2;
                let mut all = self.run_wave(plan, wave.start..middle, at_once, state)?;
                all.extend(self.run_wave(plan, middle..wave.end, at_once, state)?);
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
        for trajectory in [0, 1, 7, MAX_TRAJECTORIES - 1] {
            seen.insert(of(trajectory).trajectory);
            for thought in [1, 2, 6, MAX_THOUGHTS] {
                for rollout in [0, 1, 127, MAX_ROLLOUTS - 1] {
                    let id = rollout_row(of(trajectory), thought, rollout);
                    assert_eq!(id.question, 3);
                    assert!(seen.insert(id.trajectory), "{trajectory}, {thought}, {rollout}");
                }
            }
        }
    }
}
