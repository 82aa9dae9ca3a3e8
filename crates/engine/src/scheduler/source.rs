//! What the scheduler runs: sources of sequences.

use tensor::Tensor;

use crate::batch::BatchItem;
use crate::batch_plan::Footprint;
use crate::error::EngineError;
use crate::executor::{SequenceSpec, SequenceState};
use crate::stage_timer::Stage;

/// Hands sequences to a batch and receives their states after each step.
pub(crate) trait SequenceSource {
    /// What its sequences are sampled with.
    fn item(&self) -> BatchItem<'_>;

    /// The memory of its prompt and of each sequence.
    fn footprint(&self) -> &Footprint;

    /// Sequences that wait to be admitted.
    fn waiting(&self) -> usize;

    /// The next of these; `item` is the source's index in the batch.
    fn next(&mut self, item: usize) -> Option<SequenceSpec>;

    /// Takes back a sequence that the device lacked memory for: it begins anew.
    fn requeue(&mut self, spec: SequenceSpec);

    /// Sees a sequence after a step.
    fn observe(&mut self, sequence: &SequenceState);

    /// Is told a part of a step's seconds, in which its sequences were at this stage.
    fn add_seconds(&mut self, stage: Stage, seconds: f64);

    /// Whether the thoughts of its sequences are copied to the host.
    fn returns_latents(&self) -> bool;

    /// Takes a sequence that is done, and its thoughts on the host if it returns them.
    fn finish(
        &mut self,
        sequence: SequenceState,
        latents: Option<Tensor>,
    ) -> Result<(), EngineError>;
}
