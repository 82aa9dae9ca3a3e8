//! The executor: advances sequences by one forward pass at a time. Everything that generates runs
//! through it: samples, beams, rollouts, reference traces and comparisons.
//!
//! ```text
//! step: inputs of each sequence -> forward pass -> next thoughts -> next answer tokens
//!       (prompt, thought, end tokens, token)
//! ```
//!
//! The owner of an executor adds sequences, calls [`Executor::step`] and takes the sequences that
//! are done; the executor knows neither requests nor votes. A pass may hold sequences at any stage
//! (open batches), or only those at the earliest one ([`Alignment::Aligned`]), so that a closed
//! batch runs in full passes of one kind.
//!
//! On a GPU the executor runs one step ahead: a step is launched before the tokens of the one
//! before it reach the host, as if no sequence had ended with them. `forward` has the passes,
//! `thoughts` the latent head, `answers` the LM head.

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

/// Which sequences a pass holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alignment {
    /// Those at the earliest stage; the others wait for them.
    Aligned,
    /// All.
    Mixed,
}

/// When a step is launched before the tokens of the one before it are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookahead {
    /// While a device still computes them.
    WhileComputed,
    /// Always: on a CPU what a GPU does, for tests.
    Always,
}

/// Looks into the steps of an executor, for comparisons with other implementations.
pub(crate) trait StepObserver: Send {
    /// Sees, and may replace, the next thought of a sequence before it is stored and fed.
    fn thought(&mut self, sequence: &SequenceState, thought: &mut [f32]);

    /// Sees the hidden states, (sequences, width), from which first answer tokens are read.
    fn first_hidden(&mut self, hidden: &Tensor);
}

/// The part of a prompt that the sequences of an item share, in the cache.
pub(crate) struct Prefix {
    pub(crate) kv: Sequence,
    /// Whether all of it has been passed.
    is_passed: bool,
    /// The hidden state at the prompt's last token, where all of the prompt is shared.
    pub(crate) hidden: Option<HiddenRef>,
}

impl Prefix {
    /// A prefix of which the first positions are in the cache.
    pub(crate) fn begun(kv: Sequence) -> Self {
        Self { kv, is_passed: false, hidden: None }
    }
}

/// Sequences in progress; see the module's documentation.
pub(crate) struct Executor<'a> {
    model: &'a LatentModel,
    alignment: Alignment,
    /// In the order in which they were added. Sequences of one item share its prefix.
    pub(crate) sequences: Vec<SequenceState>,
    /// By item.
    pub(crate) prefixes: Vec<Option<Prefix>>,
    /// The tokens of the last step, where they are not read yet.
    pending: Option<PendingAnswers>,
    pub(crate) lookahead: Lookahead,
    /// Slots of the positions after a shared prompt.
    pub(crate) granularity: SlotGranularity,
    /// Keep thoughts as they were before noise, too.
    pub(crate) keep_noiseless: bool,
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
            observer: None,
            timer: None,
        }
    }

    /// An executor of sequences that begin with their prompts and advance together.
    pub(crate) fn aligned(model: &'a LatentModel, specs: &[SequenceSpec]) -> Self {
        let sequences = specs.iter().map(|&spec| SequenceState::new(spec)).collect();
        Self { sequences, ..Self::new(model, Alignment::Aligned) }
    }

    /// One forward pass over the next inputs of the sequences, and what they make of it.
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

    /// Steps until every sequence has its answer. Those of cancelled items leave.
    pub(crate) fn run(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
    ) -> Result<(), DeviceError> {
        self.run_while(cache, sampler, |sequence| sequence.next != NextInput::Done)
    }

    /// Steps until no sequence is before the end of its thoughts.
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

    /// Takes sequences out, in their order.
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

    /// Removes items, by ascending index, whose sequences have left; returns the prefix of each.
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

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.sequences.clear();
        self.prefixes.clear();
        self.pending = None;
    }

    /// What each sequence feeds in the next step.
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
