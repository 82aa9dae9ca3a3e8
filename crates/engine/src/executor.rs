//! The executor: advances sequences by one forward pass at a time. All generation uses it: samples,
//! beams, rollouts, reference traces and comparisons.
//!
//! ```text
//! step: inputs of each sequence -> forward pass -> next thoughts -> next answer tokens
//!       (prompt, thought, end tokens, token)
//! ```
//!
//! The owner of an executor adds sequences, calls [`Executor::step`] and removes the sequences that
//! are done; the executor knows neither requests nor votes. A forward pass contains either
//! sequences at any stage (open batches), or only those at the earliest stage
//! ([`Alignment::Aligned`]), so that a closed batch runs in full, homogeneous passes.
//!
//! On a GPU the executor schedules one step ahead: a step is launched before the tokens of the
//! previous step reach the host, assuming that no sequence ended with them. `forward` builds the
//! forward passes, `thoughts` runs the latent head, `answers` the LM head.

mod answers;
mod forward;
mod inputs;
mod loops;
mod sequence;
#[cfg(test)]
mod tests;
mod thoughts;

use model::{Cache, Sequence, SlotGranularity};
use tensor::{DeviceError, Tensor};

use crate::reasoner::LatentModel;
use crate::sampler::Sampler;
use crate::stage_timer::StageTimer;
use answers::PendingAnswers;

pub(crate) use inputs::Gather;
pub use sequence::AnswerTokens;
pub(crate) use sequence::{
    HiddenRef, MadeThoughts, NextInput, SequenceSpec, SequenceState, ThoughtRef, ThoughtRow,
};

/// The sequences that a forward pass contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alignment {
    /// Those at the earliest stage; the others wait.
    Aligned,
    /// All sequences.
    Mixed,
}

/// When a step is launched before the tokens of the one before it are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookahead {
    /// While the device is still computing them.
    WhileComputed,
    /// Always, even on a CPU: for tests.
    Always,
}

/// Observes the steps of an executor, for comparisons with other implementations.
pub(crate) trait StepObserver: Send {
    /// Called with the next thought of a sequence, which it may replace, before it is stored and
    /// fed.
    fn thought(&mut self, sequence: &SequenceState, thought: &mut [f32]);

    /// Called with the hidden states, (sequences, width), from which first answer tokens are
    /// decoded.
    fn first_hidden(&mut self, hidden: &Tensor);
}

/// The shared part of an item's prompt, in the KV cache.
pub(crate) struct Prefix {
    pub(crate) kv: Sequence,
    /// Whether all of it has been computed.
    is_passed: bool,
    /// The hidden state at the prompt's last token, if the whole prompt is shared.
    pub(crate) hidden: Option<HiddenRef>,
}

impl Prefix {
    /// A prefix whose first positions are already in the cache.
    pub(crate) fn begun(kv: Sequence) -> Self {
        Self { kv, is_passed: false, hidden: None }
    }
}

/// The sequences in progress; see the module documentation.
pub(crate) struct Executor<'a> {
    model: &'a LatentModel,
    alignment: Alignment,
    /// In insertion order. Sequences of one item share its prefix.
    pub(crate) sequences: Vec<SequenceState>,
    /// By item; `None` until computed.
    pub(crate) prefixes: Vec<Option<Prefix>>,
    /// The tokens of the last step, if not yet read.
    pending: Option<PendingAnswers>,
    pub(crate) lookahead: Lookahead,
    /// Slot allocation of the positions after a shared prompt.
    pub(crate) granularity: SlotGranularity,
    /// Also store thoughts without noise.
    pub(crate) keep_noiseless: bool,
    /// Store the hidden states from which thoughts and answer tokens are computed.
    pub(crate) keep_states: bool,
    pub(crate) observer: Option<&'a mut dyn StepObserver>,
    pub(crate) timer: Option<StageTimer>,
}

impl<'a> Executor<'a> {
    pub(crate) fn new(model: &'a LatentModel, alignment: Alignment) -> Self {
        Self {
            model,
            alignment,
            sequences: Vec::new(),
            prefixes: Vec::new(),
            pending: None,
            lookahead: Lookahead::WhileComputed,
            granularity: SlotGranularity::Chunk,
            keep_noiseless: false,
            keep_states: false,
            observer: None,
            timer: None,
        }
    }

    /// An executor of sequences that start with their prompts and advance in lockstep.
    pub(crate) fn aligned(model: &'a LatentModel, specs: &[SequenceSpec]) -> Self {
        let sequences = specs.iter().map(|&spec| SequenceState::new(spec)).collect();
        Self { sequences, ..Self::new(model, Alignment::Aligned) }
    }

    /// Runs one forward pass over the next inputs of the sequences, and updates the sequences from
    /// its outputs.
    pub(crate) fn step(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
    ) -> Result<(), DeviceError> {
        self.prefixes.resize_with(sampler.items.len(), || None);
        let mut fed = self.next_inputs();
        let hidden = match self.speculate(cache, sampler, &fed)? {
            Some(hidden) => hidden,
            None => {
                fed = self.next_inputs();
                self.forward(cache, sampler, &fed)?
            }
        };
        self.make_thoughts(&hidden, sampler, &fed)?;
        self.read_pending()?;
        self.request_tokens(&hidden, sampler, &fed)
    }

    /// Runs until every sequence has its answer. Sequences of cancelled items are removed.
    pub(crate) fn run(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
    ) -> Result<(), DeviceError> {
        self.run_while(cache, sampler, |sequence| sequence.next != NextInput::Done)
    }

    /// Runs until every sequence has reached the end of its thoughts.
    pub(crate) fn run_thoughts(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
    ) -> Result<(), DeviceError> {
        self.run_while(cache, sampler, |sequence| sequence.next.is_before_end())
    }

    fn run_while(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
        is_running: impl Fn(&SequenceState) -> bool,
    ) -> Result<(), DeviceError> {
        loop {
            let cancelled = sampler.cancelled_items();
            if cancelled.contains(&true) {
                self.remove(|sequence| cancelled[sequence.spec.item]);
            }
            if !self.sequences.iter().any(&is_running) {
                return Ok(());
            }
            self.step(cache, sampler)?;
        }
    }

    /// Removes the sequences for which `leaves` is true, preserving their order.
    pub(crate) fn remove(&mut self, leaves: impl Fn(&SequenceState) -> bool) -> Vec<SequenceState> {
        let mut stay = 0..;
        let index = |sequence: &SequenceState| match leaves(sequence) {
            true => None,
            false => stay.next(),
        };
        let indices: Vec<Option<usize>> = self.sequences.iter().map(index).collect();
        if let Some(pending) = &mut self.pending {
            pending.move_sequences(&indices);
        }
        let all = std::mem::take(&mut self.sequences).into_iter().zip(indices);
        let mut removed = Vec::new();
        for (sequence, index) in all {
            match index {
                Some(_) => self.sequences.push(sequence),
                None => removed.push(sequence),
            }
        }
        removed
    }

    /// Removes items, given by ascending index, whose sequences have been removed; returns the
    /// prefix of each.
    pub(crate) fn remove_items(&mut self, items: &[usize]) -> Vec<Option<Prefix>> {
        for sequence in &mut self.sequences {
            sequence.spec.item -= items.partition_point(|&item| item < sequence.spec.item);
        }
        let mut removed = Vec::new();
        for &item in items.iter().rev() {
            let is_known = item < self.prefixes.len();
            removed.push(if is_known { self.prefixes.remove(item) } else { None });
        }
        removed.reverse();
        removed
    }

    /// Removes all sequences and prefixes.
    pub(crate) fn clear(&mut self) {
        self.sequences.clear();
        self.prefixes.clear();
        self.pending = None;
    }

    /// The input of each sequence in the next step.
    fn next_inputs(&self) -> Vec<NextInput> {
        let stage = |sequence: &SequenceState| sequence.next.stage();
        let first = match self.alignment {
            Alignment::Aligned => self.sequences.iter().map(stage).min(),
            Alignment::Mixed => None,
        };
        let waits = |sequence: &SequenceState| first.is_some_and(|first| stage(sequence) > first);
        let input = |sequence: &SequenceState| match waits(sequence) {
            true => NextInput::Wait,
            false => sequence.next,
        };
        self.sequences.iter().map(input).collect()
    }
}
