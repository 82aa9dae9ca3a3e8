//! Training-time dropout, shared by reasoners and reward models.

use model::Sequence;
use tensor::ops::{RowPerturbation, SiteSet};
use tensor::rng::RngKey;

/// Dropout on attention and MLP outputs. Masks are Philox draws keyed by (seed, example, step,
/// position), so that a resumed training reproduces them. LoRA dropout uses the same keys.
#[derive(Clone, Copy, Debug)]
pub struct DropoutConfig {
    /// Probability of zeroing an element; 0 if only adapters have dropout.
    pub p: f32,
    /// Seed of the masks.
    pub seed: u64,
    /// Optimizer step, counted from 0.
    pub step: u32,
}

impl DropoutConfig {
    /// Dropout at the next position of a sequence. `stream` distinguishes the sequences and steps
    /// of an example.
    pub(crate) fn row(&self, example: u32, stream: u32, sequence: &Sequence) -> RowPerturbation {
        let position = sequence.len() as u32;
        let key = RngKey { seed: self.seed, question: example, trajectory: stream, position };
        let sites = if self.p > 0.0 { SiteSet::DROPOUT } else { SiteSet::EMPTY };
        RowPerturbation { key, strength: self.p, sites }
    }
}
