//! Training-time dropout of both train steps.

use model::Sequence;
use tensor::ops::{RowPerturbation, SiteSet};
use tensor::rng::RngKey;

/// Dropout on attention and MLP outputs; masks are Philox draws keyed by (seed, example, step,
/// position), so that a resumed training repeats them. LoRA adapters drop by the same keys.
#[derive(Clone, Copy, Debug)]
pub struct DropoutConfig {
    /// Probability of zeroing an element; 0 if adapters alone have dropout.
    pub p: f32,
    /// Seed of the masks.
    pub seed: u64,
    /// Optimizer step, counted from 0.
    pub step: u32,
}

impl DropoutConfig {
    /// Dropout at the next position of a sequence. `stream` separates sequences and steps of one
    /// example.
    pub(crate) fn row(&self, example: u32, stream: u32, sequence: &Sequence) -> RowPerturbation {
        let position = sequence.len() as u32;
        let key = RngKey { seed: self.seed, question: example, trajectory: stream, position };
        let sites = if self.p > 0.0 { SiteSet::DROPOUT } else { SiteSet::EMPTY };
        RowPerturbation { key, strength: self.p, sites }
    }
}
