//! The interface between the scheduler's batch and a request: a source of sequences.

use tensor::Tensor;

use crate::batch::BatchItem;
use crate::batch_plan::Footprint;
use crate::error::EngineError;
use crate::executor::{SequenceSpec, SequenceState};
use crate::stage_timer::Stage;

/// Supplies a batch with sequences and receives their states after each step.
pub(crate) trait SequenceSource {
    /// The question and parameters of its sequences.
    fn item(&self) -> BatchItem<'_>;

    /// The memory of its prompt and of each sequence.
    fn footprint(&self) -> &Footprint;

    /// Number of sequences waiting to be admitted.
    fn waiting(&self) -> usize;

    /// The next waiting sequence; `item` is the source's index in the batch.
    fn next(&mut self, item: usize) -> Option<SequenceSpec>;

    /// Takes back a sequence after an out-of-memory error: it restarts.
    fn requeue(&mut self, spec: SequenceSpec);

    /// Called with each sequence after a step.
    fn observe(&mut self, sequence: &SequenceState);

    /// Adds a share of a step's seconds, in which its sequences were at this stage.
    fn add_seconds(&mut self, stage: Stage, seconds: f64);

    /// Whether the thoughts of its sequences are copied to the host.
    fn returns_latents(&self) -> bool;

    /// Takes a finished sequence, and its thoughts on the host if `returns_latents`.
    fn finish(
        &mut self,
        sequence: SequenceState,
        latents: Option<Tensor>,
    ) -> Result<(), EngineError>;
}
