//! The stages on prompts of made-up tokens, for measuring.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::time::Instant;

use record::Seconds;

use crate::cost::Cost;
use crate::error::Error;
use crate::lanes::{self, Lane};
use crate::plan::{Plan, Share};
use crate::prompt::Prompt;
use crate::reasoner::{Mind, RewardModel};
use crate::rollout::{Explorer, Kept, Labels, Spent, Verdict};
use crate::settings::Settings;
use crate::wave::{Caches, Finished, Party};

/// What a run took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
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
pub struct Bench<'a> {
    party: Party<'a>,
    lanes: Vec<Lane<Caches>>,
    rollouts: Vec<Lane<Kept>>,
}

impl<'a> Bench<'a> {
    /// Prepares to measure.
    pub fn new(mind: &'a Mind, judge: Option<&'a RewardModel>, settings: Settings) -> Self {
        Self { party: Party { mind, judge, settings, keep_thoughts: false }, lanes: Vec::new(), rollouts: Vec::new() }
    }

    /// Passes all prompts through the stages once.
    pub fn run(&mut self, prompts: &[Prompt]) -> Result<Measured, Error> {
        let party = self.party;
        let start = Instant::now();
        let plan = Plan::new(&party, prompts)?;
        let mut measured = Measured::default();
        if self.lanes.len() != plan.lanes() {
            self.lanes = lanes::open(plan.lanes());
        }
        let waves = plan.waves(&Share::of_each(0..prompts.len(), &(0..party.rows())));
        party.pass_all(&plan, &waves, &self.lanes, |wave, done, seconds| {
            measured.seconds += seconds;
            for (share, rows) in wave.iter().zip(done) {
                let length = prompts[share.question].tokens.len();
                let mut cost = Cost::default();
                if share.rows.start == 0 {
                    cost = Cost::of_prompt(&party, length);
                }
                // Mostly all are alike, and the time of counting them is part of what is measured.
                let of = |row: &Finished| (row.thoughts, row.tokens.len());
                for alike in rows.chunk_by(|a, b| of(a) == of(b)) {
                    let (mut each, (thoughts, tokens)) = (Cost::default(), of(&alike[0]));
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

    /// Labels the thoughts of all prompts once, each by so many rollouts; every question counts as one worth labelling.
    pub fn annotate(&mut self, prompts: &[Prompt], rollouts: NonZeroUsize) -> Result<Measured, Error> {
        let Party { mind, settings, .. } = self.party;
        let judge = |_: usize, _: &[u32]| Ok(Verdict::default());
        let explorer = Explorer { mind, settings, labels: Labels::Rollouts(rollouts), keep_all: true, judge: &judge };
        self.rollouts.iter().for_each(|lane| lanes::state(lane).spent = Spent::default());
        let mut measured = Measured::default();
        let start = Instant::now();
        explorer.run_again(prompts, &mut self.rollouts, &mut |annotated| {
            measured.trajectories += annotated.paths.len();
            measured.rollouts.0 += annotated.rollouts;
            ControlFlow::Continue(())
        })?;
        // Lanes ran beside each other: each has its part of the time.
        let part = 1.0 / self.rollouts.len() as f64;
        for lane in &self.rollouts {
            let Spent { seconds, rollouts, cost } = lanes::state(lane).spent;
            measured.seconds += seconds.scaled(part);
            measured.rollouts.1 += rollouts * part;
            measured.flops += cost.flops;
        }
        measured.seconds.total = start.elapsed().as_secs_f64();
        Ok(measured)
    }
}
