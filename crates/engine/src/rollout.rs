//! Labels for a reward model: how often does a thought lead to the correct answer?
//!
//! ```text
//! question -> N trajectories -> mixed? -> M rollouts from every thought -> share of right answers
//!             (prefill, think, decode)    (fork, think on, decode)
//! ```
//!
//! The label of thought t (the paper's Monte Carlo estimate) is the share of M continuations, with
//! thoughts 1 to t fixed and fresh masks or noise after them, whose answer is correct. A rollout is
//! a fork of its trajectory: nothing before thought t is recomputed. Questions whose N trajectories
//! are all correct or all incorrect give a reward model nothing to compare and are skipped before
//! any rollout.
//!
//! If nothing random remains after a thought, all rollouts would equal the trajectory itself, and
//! the label is the trajectory's own outcome. This is the case after the last thought, unless
//! dropout also applies to the answer or, with open-ended thoughts, the next pass may decide to
//! continue.
//!
//! # Random numbers of a rollout
//!
//! A rollout has its own random number key: its trajectory number has the highest bit set, followed
//! by 10 bits for the trajectory it forks, 9 for the thought (minus one), and 12 for its index; see
//! [`rollout_row`]. So no rollout shares random numbers with another or with a trajectory, and the
//! first four of 128 rollouts equal those of a run with four.
//!
//! `plan` sizes batches to fit the memory, `run` runs them.

mod plan;
mod run;

use std::num::NonZeroUsize;
use std::ops::Range;

use model::Cache;
use tensor::Tensor;

use crate::aligned_batch::ensure_slots;
use crate::batch::BatchContext;
use crate::error::EngineError;
use crate::executor::AnswerTokens;
use crate::prompt::Prompt;
use crate::reasoner::LatentModel;
use crate::reply::{ComputeCost, StageSeconds};
use crate::request::CancelToken;
use crate::sampler::SequenceId;
use crate::sampling_params::SamplingParams;
use crate::streams::{self, StreamJobs, StreamState};
use plan::RolloutPlan;

const THOUGHT_BITS: u32 = 9;
const ROLLOUT_BITS: u32 = 12;
/// Maximum trajectories of a question, limited by the bits of a rollout's key.
pub const MAX_TRAJECTORIES: usize = 1 << (31 - THOUGHT_BITS - ROLLOUT_BITS);
/// Maximum thoughts of a trajectory, limited by the bits of a rollout's key.
pub const MAX_THOUGHTS: usize = 1 << THOUGHT_BITS;
/// Maximum rollouts of a thought, limited by the bits of a rollout's key.
pub const MAX_ROLLOUTS: usize = 1 << ROLLOUT_BITS;

/// The random number key of a rollout from a thought (counted from 1) of a question's trajectory.
pub fn rollout_row(trajectory: SequenceId, thought: usize, rollout: usize) -> SequenceId {
    debug_assert!((trajectory.trajectory as usize) < MAX_TRAJECTORIES && rollout < MAX_ROLLOUTS);
    debug_assert!((1..=MAX_THOUGHTS).contains(&thought));
    let place = trajectory.trajectory << (THOUGHT_BITS + ROLLOUT_BITS)
        | (thought as u32 - 1) << ROLLOUT_BITS
        | rollout as u32;
    SequenceId { trajectory: 1 << 31 | place, ..trajectory }
}

/// The label of a thought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThoughtLabels {
    /// Whether its trajectory's own answer is correct.
    Final,
    /// The share of this number of rollouts whose answer is correct.
    Rollouts(NonZeroUsize),
}

impl ThoughtLabels {
    /// Number of rollouts from each thought.
    pub fn rollouts(self) -> usize {
        match self {
            Self::Final => 0,
            Self::Rollouts(count) => count.get(),
        }
    }
}

/// A question with its labeled trajectories.
#[derive(Clone, Debug, PartialEq)]
pub struct AnnotatedQuestion {
    /// The prompt's id.
    pub id: u32,
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// Whether some trajectories are correct and some incorrect. If not, thoughts and labels are
    /// omitted.
    pub kept: bool,
    /// The trajectories, by number.
    pub trajectories: Vec<LabelledTrajectory>,
    /// Number of rollouts that were computed.
    pub rollouts: usize,
}

/// A trajectory with its labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LabelledTrajectory {
    /// (thoughts, width)
    pub thoughts: Tensor,
    /// One label per thought.
    pub labels: Vec<f32>,
    /// The answer's tokens, including EOS.
    pub tokens: AnswerTokens,
    /// The answer extracted from them.
    pub answer: Option<String>,
    /// Whether it is right.
    pub correct: bool,
}

/// The grade of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grade {
    /// The extracted answer, if any.
    pub answer: Option<String>,
    /// Whether it is right.
    pub correct: bool,
}

/// Grades an answer's tokens for the prompt of the given index. Must be deterministic: grades are
/// cached.
pub type Grader<'a> = dyn Fn(usize, &[u32]) -> Result<Grade, EngineError> + Sync + 'a;

/// Labels the thoughts of a model's trajectories.
#[derive(Clone, Copy)]
pub struct RolloutRunner<'a> {
    /// The model.
    pub model: &'a LatentModel,
    /// How trajectories and rollouts are sampled; `samples` is the number of trajectories per
    /// question, without a greedy one.
    pub params: SamplingParams,
    /// KV memory budget in bytes.
    pub memory: usize,
    /// The kind of labels.
    pub labels: ThoughtLabels,
    /// Also label questions whose trajectories are all correct or all incorrect.
    pub keep_all: bool,
    /// Decides whether answers are correct.
    pub grader: &'a Grader<'a>,
    /// Checked between forward passes; cancelling ends the run with [`EngineError::Cancelled`].
    pub cancel: Option<&'a CancelToken>,
}

/// A stream's state between batches.
#[derive(Default)]
pub(crate) struct RolloutState {
    cache: Option<Cache>,
    pub(crate) cost: RolloutCost,
}

/// Time and operations since the last reset.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RolloutCost {
    /// Seconds per stage of the trajectories.
    pub(crate) seconds: StageSeconds,
    pub(crate) rollout_seconds: f64,
    pub(crate) cost: ComputeCost,
}

impl RolloutRunner<'_> {
    /// Labels the thoughts of all prompts and passes each question to `take` as soon as it is
    /// complete, in prompt order.
    ///
    /// # Errors
    ///
    /// The first error of `take`, which ends the run, or an error of a prompt or the device.
    pub fn run<E: From<EngineError>>(
        &self,
        prompts: &[Prompt],
        take: impl FnMut(AnnotatedQuestion) -> Result<(), E>,
    ) -> Result<(), E> {
        self.run_with_states(prompts, &mut Vec::new(), take)
    }

    /// Rejects prompts that do not fit the model or the memory, and rollouts beyond the limits of
    /// their keys.
    pub fn check(&self, prompts: &[Prompt]) -> Result<(), EngineError> {
        RolloutPlan::new(self, prompts).map(drop)
    }

    /// [`Self::run`] with existing stream states.
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
        let each = |batch: &Range<usize>, state: &mut RolloutState| {
            self.run_batch(&plan, batch.clone(), usize::MAX, state)
        };
        let device = self.model.decoder.device();
        let streams = states.as_slice();
        let jobs = StreamJobs { device, streams, jobs: &plan.batches(), each };
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

    /// Annotates the prompts of a batch: in two halves if the device lacks the memory for all at
    /// once, and a single prompt with at most `max_rollouts` rollouts at a time.
    fn run_batch(
        &self,
        plan: &RolloutPlan<'_>,
        batch: Range<usize>,
        max_rollouts: usize,
        state: &mut RolloutState,
    ) -> Result<Vec<AnnotatedQuestion>, EngineError> {
        let decoder = &self.model.decoder;
        let at_once = plan.rollouts(batch.clone()).min(max_rollouts);
        let slots = plan.slots(batch.clone(), at_once);
        let ready = ensure_slots(&mut state.cache, slots, decoder);
        let annotated = match (ready, &mut state.cache) {
            (Ok(()), Some(cache)) => {
                let prompts = &plan.prompts[batch.clone()];
                let batch =
                    run::RolloutBatch { runner: self, first: batch.start, prompts, at_once };
                decoder.device().run(|| batch.annotate(cache, &mut state.cost))
            }
            (ready, _) => ready.map(|()| Vec::new()).map_err(EngineError::from),
        };
        let count = batch.len();
        match annotated {
            Err(EngineError::Device(e)) if e.is_out_of_memory() && (count > 1 || at_once > 1) => {
                tracing::warn!(questions = count, "out of device memory; annotating in two halves");
                state.cache = None;
                if count == 1 {
                    return self.run_batch(plan, batch, at_once / 2, state);
                }
                let middle = batch.start + count / 2;
                let mut all = self.run_batch(plan, batch.start..middle, at_once, state)?;
                all.extend(self.run_batch(plan, middle..batch.end, at_once, state)?);
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
        let of = |trajectory: usize| SequenceId { question: 3, trajectory: trajectory as u32 };
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
