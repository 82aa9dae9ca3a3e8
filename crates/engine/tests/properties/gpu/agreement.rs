//! The agreement of two runs up to rounding.

use latent_tts_engine::Output;
use latent_tts_engine::reference::ReferenceRow;

use crate::common::*;

/// Compares sequences of two runs; errors are relative to the largest element.
#[derive(Clone, Copy, Default)]
pub struct AgreementCount {
    pub rows: usize,
    /// Number of sequences with the same number of thoughts and the same answer.
    pub agreeing: usize,
    /// The largest errors of thoughts, logits and rewards.
    pub thoughts: f32,
    pub logits: f32,
    pub rewards: f32,
}

impl AgreementCount {
    /// Adds sequences with the same forced thoughts.
    pub fn add_forced(&mut self, found: &[ReferenceRow], expected: &[ReferenceRow]) {
        for (a, b) in found.iter().zip(expected) {
            self.rows += 1;
            self.thoughts = self.thoughts.max(common_prefix_error(&a.thoughts, &b.thoughts));
            // A sequence that ends its thoughts at another position has different logits.
            if a.thoughts.rows() == b.thoughts.rows() {
                self.agreeing += usize::from(a.tokens == b.tokens);
                let error = relative_error(&matrix(&a.first_logits), &matrix(&b.first_logits));
                self.logits = self.logits.max(error);
            }
        }
    }

    /// Adds sequences that fed their own thoughts; errors count where both have the same answer.
    pub fn add_free(&mut self, found: &[Output], expected: &[Output]) {
        assert_eq!(found.len(), expected.len());
        let mut rewards = Vec::new();
        let mut wanted = Vec::new();
        for (a, b) in found.iter().zip(expected) {
            assert_eq!((a.id, a.trajectories.len()), (b.id, b.trajectories.len()));
            for (x, y) in a.trajectories.iter().zip(&b.trajectories) {
                assert_eq!(x.number, y.number);
                self.rows += 1;
                if (x.thoughts, &x.text) == (y.thoughts, &y.text) {
                    self.agreeing += 1;
                    let error = common_prefix_error(&x.latents, &y.latents);
                    self.thoughts = self.thoughts.max(error);
                    rewards.extend(x.process_rewards.iter().flatten());
                    wanted.extend(y.process_rewards.iter().flatten());
                }
            }
        }
        self.add_rewards(&rewards, &wanted);
    }

    pub fn add_rewards(&mut self, found: &[f32], expected: &[f32]) {
        self.rewards = self.rewards.max(relative_error(&matrix(found), &matrix(expected)));
    }

    /// Adds another comparison.
    pub fn add(&mut self, other: Self) {
        self.rows += other.rows;
        self.agreeing += other.agreeing;
        self.thoughts = self.thoughts.max(other.thoughts);
        self.logits = self.logits.max(other.logits);
        self.rewards = self.rewards.max(other.rewards);
    }

    pub fn print(&self, what: &str) {
        let Self { rows, agreeing, thoughts, logits, rewards } = self;
        println!(
            "{what}: {agreeing} of {rows} rows agree; \
             errors: thoughts {thoughts:.1e}, logits {logits:.1e}, rewards {rewards:.1e}"
        );
    }

    /// Fails unless 99% of the sequences agree.
    pub fn assert_agreeing(&self, what: &str) {
        let Self { rows, agreeing, .. } = self;
        assert!(agreeing * 100 >= rows * 99, "{what}: only {agreeing} of {rows} rows agree");
    }

    /// Fails unless no error is larger than `tolerance`.
    pub fn assert_within(&self, tolerance: f32, what: &str) {
        let Self { thoughts, logits, rewards, .. } = *self;
        assert!(
            thoughts.max(logits).max(rewards) <= tolerance,
            "{what}: errors {thoughts:e}, {logits:e}, {rewards:e}"
        );
    }
}
