//! Benchmarks of the stages on prompts of random tokens.

use std::num::NonZeroUsize;
use std::time::Instant;

use crate::aligned_batch::BatchCaches;
use crate::batch::{BatchContext, BatchItem};
use crate::batch_plan::{BatchPlan, SequenceRange};
use crate::cost::CostModel;
use crate::error::EngineError;
use crate::prompt::Prompt;
use crate::question::FinishedSequence;
use crate::reasoner::{LatentModel, RewardModel};
use crate::reply::{ComputeCost, StageSeconds};
use crate::request::CancelToken;
use crate::rollout::{Grade, RolloutCost, RolloutRunner, RolloutState, ThoughtLabels};
use crate::sampling_params::SamplingParams;
use crate::streams::{self, StreamState};

/// Times and operation counts of a benchmark run.
#[derive(Clone, Copy, Debug, Default)]
pub struct BenchResult {
    /// Seconds per stage, and in total.
    pub seconds: StageSeconds,
    /// Floating-point operations of the algorithm.
    pub flops: f64,
    /// Number of trajectories.
    pub trajectories: usize,
    /// Number of rollouts.
    pub rollouts: usize,
    /// Seconds spent on rollouts.
    pub rollout_seconds: f64,
}

/// A benchmark of one model. Its caches are reused between runs.
pub struct EngineBench<'a> {
    context: BatchContext<'a>,
    params: SamplingParams,
    memory: usize,
    streams: Vec<StreamState<BatchCaches>>,
    rollout_streams: Vec<StreamState<RolloutState>>,
}

impl<'a> EngineBench<'a> {
    /// Creates a benchmark with `memory` bytes of KV cache.
    pub fn new(
        model: &'a LatentModel,
        reward_model: Option<&'a RewardModel>,
        params: SamplingParams,
        memory: usize,
    ) -> Self {
        let context = BatchContext {
            model,
            reward_model,
            probe: None,
            return_latents: false,
            return_states: false,
        };
        let streams = Vec::new();
        let rollout_streams = Vec::new();
        Self { context, params, memory, streams, rollout_streams }
    }

    /// Runs all prompts through all stages once.
    pub fn run(&mut self, prompts: &[Prompt]) -> Result<BenchResult, EngineError> {
        let Self { context, params, memory, .. } = *self;
        let start = Instant::now();
        let cancel = CancelToken::default();
        let item = |prompt| BatchItem::new(prompt, &params, &cancel);
        let items: Vec<BatchItem<'_>> = prompts.iter().map(item).collect();
        items.iter().try_for_each(|item| BatchPlan::check(&context, item, memory))?;
        let plan = BatchPlan::new(&context, &items, memory);
        let mut result = BenchResult::default();
        if self.streams.len() != plan.streams() {
            self.streams = streams::open(plan.streams());
        }
        let range = |question| SequenceRange { question, rows: 0..params.rows() };
        let batches = plan.batches(&(0..prompts.len()).map(range).collect::<Vec<_>>());
        context.run_batches(&plan, &batches, &self.streams, |batch, done, seconds| {
            result.seconds += seconds;
            for (range, rows) in batch.iter().zip(done) {
                let costs = CostModel { context, item: items[range.question] };
                let first = if range.rows.start == 0 { costs.prompt() } else { Default::default() };
                let mut cost: ComputeCost = first;
                // Most sequences have equal lengths, and counting the operations is part of the
                // measured time.
                let lengths = |row: &FinishedSequence| (row.thoughts, row.tokens.len());
                for alike in rows.chunk_by(|a, b| lengths(a) == lengths(b)) {
                    let (thoughts, tokens) = lengths(&alike[0]);
                    cost.flops += alike.len() as f64 * costs.row(thoughts, tokens).flops;
                }
                result.flops += cost.flops;
                result.trajectories += rows.len();
            }
            Ok::<(), EngineError>(())
        })?;
        result.seconds.total = start.elapsed().as_secs_f64();
        Ok(result)
    }

    /// Labels the thoughts of all prompts once, with `rollouts` rollouts per thought; no question
    /// is skipped.
    pub fn annotate(
        &mut self,
        prompts: &[Prompt],
        rollouts: NonZeroUsize,
    ) -> Result<BenchResult, EngineError> {
        let grader = |_: usize, _: &[u32]| Ok(Grade::default());
        let runner = RolloutRunner {
            model: self.context.model,
            params: self.params,
            memory: self.memory,
            labels: ThoughtLabels::Rollouts(rollouts),
            keep_all: true,
            grader: &grader,
            cancel: None,
        };
        let states = &mut self.rollout_streams;
        states.iter().for_each(|state| streams::lock(state).cost = RolloutCost::default());
        let mut result = BenchResult::default();
        let start = Instant::now();
        runner.run_with_states(prompts, states, |annotated| {
            result.trajectories += annotated.trajectories.len();
            result.rollouts += annotated.rollouts;
            Ok::<(), EngineError>(())
        })?;
        // Streams ran concurrently: each is attributed its share of the time.
        let part = 1.0 / states.len() as f64;
        for state in states {
            let RolloutCost { seconds, rollout_seconds, cost } = streams::lock(state).cost;
            result.seconds += seconds.scaled(part);
            result.rollout_seconds += rollout_seconds * part;
            result.flops += cost.flops;
        }
        result.seconds.total = start.elapsed().as_secs_f64();
        Ok(result)
    }
}
