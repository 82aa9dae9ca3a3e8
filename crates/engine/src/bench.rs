//! The stages on prompts of made-up tokens, for measuring.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::time::Instant;

use record::Seconds;

use crate::batch_plan::{BatchPlan, RowRange};
use crate::cost::ComputeCost;
use crate::error::EngineError;
use crate::prompt::Prompt;
use crate::reasoner::{LatentModel, RewardModel};
use crate::rollout::{Grade, RolloutCost, RolloutRunner, RolloutState, ThoughtLabels};
use crate::sampling_params::SamplingParams;
use crate::streams::{self, StreamState};
use crate::wave::{BatchContext, FinishedRow, WaveCaches};

/// What a run took.
#[derive(Clone, Copy, Debug, Default)]
pub struct BenchResult {
    /// Time by stage, and from start to end.
    pub seconds: Seconds,
    /// Floating-point operations of the algorithm.
    pub flops: f64,
    /// Rows that answered.
    pub trajectories: usize,
    /// Rollouts from their thoughts, and the seconds that they took.
    pub rollouts: (usize, f64),
}

/// A mind that can be measured again and again; its caches are kept.
pub struct EngineBench<'a> {
    party: BatchContext<'a>,
    lanes: Vec<StreamState<WaveCaches>>,
    rollouts: Vec<StreamState<RolloutState>>,
}

impl<'a> EngineBench<'a> {
    /// Prepares to measure.
    pub fn new(
        mind: &'a LatentModel,
        judge: Option<&'a RewardModel>,
        settings: SamplingParams,
    ) -> Self {
        Self {
            party: BatchContext {
                model: mind,
                reward_model: judge,
                params: settings,
                return_latents: false,
            },
            lanes: Vec::new(),
            rollouts: Vec::new(),
        }
    }

    /// Passes all prompts through the stages once.
    pub fn run(&mut self, prompts: &[Prompt]) -> Result<BenchResult, EngineError> {
        let party = self.party;
        let start = Instant::now();
        let plan = BatchPlan::new(&party, prompts)?;
        let mut measured = BenchResult::default();
        if self.lanes.len() != plan.streams() {
            self.lanes = streams::open(plan.streams());
        }
        let waves = plan.waves(&RowRange::for_each_question(0..prompts.len(), &(0..party.rows())));
        party.run_waves(&plan, &waves, &self.lanes, |wave, done, seconds| {
            measured.seconds += seconds;
            for (share, rows) in wave.iter().zip(done) {
                let length = prompts[share.question].tokens.len();
                let mut cost = ComputeCost::default();
                if share.rows.start == 0 {
                    cost = ComputeCost::of_prompt(&party, length);
                }
                // Mostly all are alike, and the time of counting them is part of what is measured.
                let of = |row: &FinishedRow| (row.thoughts, row.tokens.len());
                for alike in rows.chunk_by(|a, b| of(a) == of(b)) {
                    let (mut each, (thoughts, tokens)) = (ComputeCost::default(), of(&alike[0]));
                    each.add_row(&party, length, thoughts, tokens);
                    cost.flops += alike.len() as f64 * each.flops;
                }
                measured.flops += cost.flops;
                measured.trajectories += rows.len();
            }
            Ok(ControlFlow::Continue(()))
        })?;
        measured.seconds.total = start.elapsed().as_secs_f64();
        Ok(measured)
    }

    /// Labels the thoughts of all prompts once, each by so many rollouts; every question counts as
    /// one worth labelling.
    pub fn annotate(
        &mut self,
        prompts: &[Prompt],
        rollouts: NonZeroUsize,
    ) -> Result<BenchResult, EngineError> {
        let BatchContext { model: mind, params: settings, .. } = self.party;
        let judge = |_: usize, _: &[u32]| Ok(Grade::default());
        let explorer = RolloutRunner {
            model: mind,
            settings,
            labels: ThoughtLabels::Rollouts(rollouts),
            keep_all: true,
            grader: &judge,
        };
        self.rollouts.iter().for_each(|lane| streams::lock(lane).cost = RolloutCost::default());
        let mut measured = BenchResult::default();
        let start = Instant::now();
        explorer.run_with_states(prompts, &mut self.rollouts, &mut |annotated| {
            measured.trajectories += annotated.trajectories.len();
            measured.rollouts.0 += annotated.rollouts;
            ControlFlow::Continue(())
        })?;
        // Lanes ran beside each other: each has its part of the time.
        let part = 1.0 / self.rollouts.len() as f64;
        for lane in &self.rollouts {
            let RolloutCost { seconds, rollouts, cost } = streams::lock(lane).cost;
            measured.seconds += seconds.scaled(part);
            measured.rollouts.1 += rollouts * part;
            measured.flops += cost.flops;
        }
        measured.seconds.total = start.elapsed().as_secs_f64();
        Ok(measured)
    }
}
