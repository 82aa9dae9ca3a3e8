//! The forward passes of a step: the positions that each sequence feeds, and the location of its
//! hidden state afterwards.
//!
//! How much of a prompt the sequences of an item share depends on the perturbation. Without one, or
//! with noise: the whole prompt and the first hidden state; with dropout on thoughts: all but the
//! last token, which every sequence computes with its own masks; with dropout in the prompt:
//! nothing. If there are few sequences, all of this is one forward pass, in which sequences attend
//! to prefixes that are computed in the same pass.

use std::sync::Arc;

use model::{Cache, DeferredInputs, ForwardOptions, Sequence, SlotGranularity};
use tensor::ops::{self, OutputDtype};
use tensor::{DeviceError, Tensor};

use super::inputs::{Gather, Input, OutputOwner, PassInputs};
use super::loops::MAX_LOOP_ROWS;
use super::sequence::{HiddenRef, NextInput};
use super::{Alignment, Executor, Prefix};
use crate::perturb::PromptSharing;
use crate::sampler::{PassStage, RecordedMasks, Sampler};
use crate::stage_timer::Stage;

/// Maximum prefix tokens plus sequences that fork them in a single pass: beyond that, two passes
/// utilize a GPU equally well, with less tile quantization.
const MAX_SINGLE_PASS: usize = 2048;
/// Number of sequences whose private prompts are computed together: enough for full speed, few
/// enough to keep the inputs small.
const PRIVATE_PROMPTS: usize = 16;

/// The hidden states after a step, by sequence.
pub(super) struct StepOutputs(pub(super) Vec<Option<HiddenRef>>);

impl StepOutputs {
    /// Selects those of some sequences: (sequences, width).
    pub(super) fn select(
        &self,
        executor: &Executor<'_>,
        sequences: &[usize],
    ) -> Result<Tensor, DeviceError> {
        let mut gather = Gather::with_capacity(sequences.len());
        for &i in sequences {
            let Some(hidden) = &self.0[i] else {
                unreachable!("a sequence that goes on has fed something")
            };
            gather.push(&hidden.outputs, hidden.row);
        }
        gather.select(executor.model.decoder.device())
    }
}

impl Executor<'_> {
    /// Runs the forward pass over the inputs of the sequences: a single pass, unless prompts
    /// require more.
    pub(super) fn forward(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
        fed: &[NextInput],
    ) -> Result<StepOutputs, DeviceError> {
        self.enter_stage(fed)?;
        let mut hidden = StepOutputs(vec![None; fed.len()]);
        let mut inputs = self.pass_prefixes(cache, sampler, fed, &mut hidden)?;
        let stage = self.pass_stage(fed);
        let is_looped = self.model.method.looped.is_some();
        let max_rows = if is_looped { MAX_LOOP_ROWS } else { usize::MAX };
        let mut private = Vec::new();
        let mut whole = Vec::new();
        cache.set_slot_granularity(self.granularity);
        for (i, &next) in fed.iter().enumerate() {
            if inputs.rows() + self.sequences[i].thoughts.len() > max_rows {
                let full = (std::mem::take(&mut inputs), stage);
                self.run_pass(cache, sampler, full, &mut hidden)?;
            }
            if next != NextInput::Prompt {
                self.push_input(cache, sampler, (i, next), &mut inputs);
                continue;
            }
            let item = self.sequences[i].spec.item;
            self.sequences[i].limit = Some(sampler.max_thoughts(&self.sequences[i]));
            match sampler.prompt_sharing(item) {
                PromptSharing::Nothing => private.push(i),
                _ if is_looped => self.continue_prompt(cache, sampler, i, &mut inputs),
                sharing => {
                    let prefix = self.prefixes[item].as_ref();
                    self.sequences[i].kv = prefix.map(|p| p.kv.fork()).unwrap_or_default();
                    match sharing {
                        PromptSharing::Whole => whole.push(i),
                        _ => self.push_last_token(cache, sampler, i, &mut inputs),
                    }
                }
            }
        }
        self.run_pass(cache, sampler, (inputs, stage), &mut hidden)?;
        cache.set_slot_granularity(SlotGranularity::Chunk);
        for some in private.chunks(PRIVATE_PROMPTS) {
            let inputs = self.private_prompts(cache, sampler, some);
            self.run_pass(cache, sampler, (inputs, PassStage::Prompt), &mut hidden)?;
        }
        for &i in &whole {
            let prefix = self.prefixes[self.sequences[i].spec.item].as_ref();
            hidden.0[i] = prefix.and_then(|prefix| prefix.hidden.clone());
        }
        self.keep_prefix_hidden(&whole)?;
        for (i, next) in fed.iter().enumerate() {
            if let NextInput::Fork(of) = *next {
                self.sequences[i].kv = self.sequences[of].kv.fork();
                hidden.0[i] = hidden.0[of].clone();
            }
        }
        Ok(hidden)
    }

    /// Adds the shared prompts that are not in the cache yet. They are computed in a separate pass
    /// if they and the sequences that fork them are many.
    fn pass_prefixes(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
        fed: &[NextInput],
        hidden: &mut StepOutputs,
    ) -> Result<PassInputs, DeviceError> {
        let mut inputs = PassInputs::default();
        let mut forks = 0;
        cache.set_slot_granularity(SlotGranularity::Chunk);
        for (sequence, next) in self.sequences.iter().zip(fed) {
            let item = sequence.spec.item;
            let sharing = sampler.prompt_sharing(item);
            if *next != NextInput::Prompt || sharing == PromptSharing::Nothing {
                continue;
            }
            forks += usize::from(sharing == PromptSharing::AllButLast);
            let prefix = &mut self.prefixes[item];
            let prefix = prefix.get_or_insert_with(|| Prefix::begun(Sequence::default()));
            if !prefix.is_passed {
                inputs.has_prompts = true;
                let of = &sampler.items[item];
                let cached = prefix.kv.len();
                let shared = of.prompt.tokens[..of.shared_tokens()].iter().enumerate();
                for (i, &token) in shared.skip(cached) {
                    let is_last = i + 1 == of.prompt_len();
                    let owner = is_last.then_some(OutputOwner::Prefix(item));
                    inputs.push(cache, &mut prefix.kv, (Input::Token(token), None), owner);
                }
                prefix.is_passed = true;
            }
        }
        // Recorded masks apply to all rows of a pass, which therefore must not contain prefixes.
        let is_single = sampler.recorded.is_none() && inputs.rows() + forks <= MAX_SINGLE_PASS;
        if forks > 0 && !is_single {
            let prefixes = std::mem::take(&mut inputs);
            self.run_pass(cache, sampler, (prefixes, PassStage::Prompt), hidden)?;
        }
        Ok(inputs)
    }

    /// Copies the hidden states from which sequences may still start and drops the other outputs: a
    /// prefix outlives its pass. Aligned sequences have all started.
    fn keep_prefix_hidden(&mut self, begun: &[usize]) -> Result<(), DeviceError> {
        let device = self.model.decoder.device();
        for &i in begun {
            let prefix = self.prefixes[self.sequences[i].spec.item].as_mut();
            let Some(hidden) = prefix.map(|prefix| &mut prefix.hidden) else { continue };
            match hidden {
                _ if self.alignment == Alignment::Aligned => *hidden = None,
                Some(of) if of.outputs.rows() > 1 => {
                    let own = ops::select(device, [&*of.outputs], &[of.row])?;
                    *of = HiddenRef { outputs: Arc::new(own), row: 0 };
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Adds the last prompt token of a sequence that computes it separately.
    fn push_last_token(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
        i: usize,
        inputs: &mut PassInputs,
    ) {
        let sequence = &mut self.sequences[i];
        let Some(&token) = sampler.items[sequence.spec.item].prompt.tokens.last() else { return };
        let dropout = sampler.dropout_row(sequence, PassStage::Thought(0));
        let owner = Some(OutputOwner::Sequence(i));
        inputs.push(cache, &mut sequence.kv, (Input::Token(token), dropout), owner);
    }

    /// Runs the whole prompts of sequences that share nothing.
    fn private_prompts(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
        sequences: &[usize],
    ) -> PassInputs {
        let mut inputs = PassInputs::default();
        inputs.has_prompts = true;
        for &i in sequences {
            let sequence = &mut self.sequences[i];
            let prompt = &sampler.items[sequence.spec.item].prompt.tokens;
            for (position, &token) in prompt.iter().enumerate() {
                let dropout = sampler.dropout_row(sequence, PassStage::Prompt);
                let is_last = position + 1 == prompt.len();
                let owner = is_last.then_some(OutputOwner::Sequence(i));
                inputs.push(cache, &mut sequence.kv, (Input::Token(token), dropout), owner);
            }
        }
        inputs
    }

    /// Adds the input of a sequence after its prompt.
    pub(super) fn push_input(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
        (i, next): (usize, NextInput),
        inputs: &mut PassInputs,
    ) {
        let end = &self.model.method.end_latent;
        let is_looped = self.model.method.looped.is_some();
        if is_looped && next == NextInput::Thought {
            let stage = PassStage::Thought(self.sequences[i].loops);
            return self.push_looped(cache, sampler, (i, stage), inputs);
        }
        if is_looped && next == NextInput::End && self.sequences[i].pending {
            self.push_looped(cache, sampler, (i, PassStage::Answer), inputs);
            self.sequences[i].pending = false;
        }
        let sequence = &mut self.sequences[i];
        let owner = OutputOwner::Sequence(i);
        let single = match next {
            NextInput::Thought => sequence.thoughts.last().cloned().map(Input::Thought),
            NextInput::Token(token) => Some(Input::Token(token)),
            NextInput::PendingToken(index) => Some(Input::PendingToken(index)),
            _ => None,
        };
        if let Some(input) = single {
            let stage = match next {
                NextInput::Thought => PassStage::Thought(sequence.thoughts.len()),
                _ => PassStage::Answer,
            };
            let dropout = sampler.dropout_row(sequence, stage);
            inputs.push(cache, &mut sequence.kv, (input, dropout), Some(owner));
        } else if next == NextInput::End {
            let pending = sequence.thoughts.last().cloned().filter(|_| sequence.pending);
            let count = usize::from(pending.is_some()) + end.len();
            let thought = pending.into_iter().map(Input::Thought);
            for (n, input) in thought.chain((0..end.len()).map(Input::EndToken)).enumerate() {
                let dropout = sampler.dropout_row(sequence, PassStage::Answer);
                let owner = (n + 1 == count).then_some(owner);
                inputs.push(cache, &mut sequence.kv, (input, dropout), owner);
            }
            sequence.pending = false;
        }
    }

    /// The stage of a pass of aligned sequences: the key for recorded masks.
    fn pass_stage(&self, fed: &[NextInput]) -> PassStage {
        let is_looped = self.model.method.looped.is_some();
        let stage = |(i, next): (usize, &NextInput)| match next {
            NextInput::Prompt if is_looped => Some(PassStage::Prompt),
            NextInput::Prompt => Some(PassStage::Thought(0)),
            NextInput::Thought if is_looped => Some(PassStage::Thought(self.sequences[i].loops)),
            NextInput::Thought => Some(PassStage::Thought(self.sequences[i].thoughts.len())),
            _ => None,
        };
        fed.iter().enumerate().find_map(stage).unwrap_or(PassStage::Answer)
    }

    /// Runs a forward pass, if it has positions, and records the owners of its outputs.
    fn run_pass(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
        (inputs, stage): (PassInputs, PassStage),
        hidden: &mut StepOutputs,
    ) -> Result<(), DeviceError> {
        if inputs.is_empty() {
            return Ok(());
        }
        let pending = self.pending.as_ref().and_then(|pending| pending.embedded.as_ref());
        let x = inputs.vectors(self.model, pending)?;
        let owners = inputs.outputs.iter().filter_map(|owner| match owner {
            OutputOwner::Sequence(i) => Some(&self.sequences[*i]),
            OutputOwner::Prefix(_) => None,
        });
        let recorded = sampler.recorded_masks(owners, stage);
        let dropout = recorded.as_ref().map(RecordedMasks::dropout).or(inputs.dropout());
        let decoder = &self.model.decoder;
        let is_answer = stage == PassStage::Answer;
        let output = if is_answer { self.answer_dtype() } else { OutputDtype::F32 };
        let options = ForwardOptions { dropout, output };
        let outputs = if inputs.has_prompts {
            // Copying its metadata takes a while: it overlaps with the first block.
            decoder.forward(cache, &inputs.pass, x, dropout)?
        } else {
            let deferred = DeferredInputs { x: || Ok::<_, DeviceError>(x), proceed: || Ok(()) };
            decoder.forward_deferred(cache, &inputs.pass, options, deferred)?
        };
        self.assign_outputs(&inputs.outputs, outputs, hidden);
        Ok(())
    }

    /// Assigns the outputs of a forward pass to their owners.
    pub(super) fn assign_outputs(
        &mut self,
        owners: &[OutputOwner],
        outputs: Tensor,
        hidden: &mut StepOutputs,
    ) {
        let outputs = Arc::new(outputs);
        for (row, owner) in owners.iter().enumerate() {
            let of = Some(HiddenRef { outputs: Arc::clone(&outputs), row });
            match *owner {
                OutputOwner::Sequence(i) => hidden.0[i] = of,
                OutputOwner::Prefix(item) => {
                    self.prefixes[item].iter_mut().for_each(|prefix| prefix.hidden = of.clone());
                }
            }
        }
    }

    /// Attributes the time from here on to the stage of the forward pass.
    pub(super) fn enter_stage(&mut self, fed: &[NextInput]) -> Result<(), DeviceError> {
        let Some(timer) = &mut self.timer else { return Ok(()) };
        let stage = match fed.iter().map(|next| next.stage()).min() {
            Some(0) => Stage::Prefill,
            Some(1) => Stage::Thoughts,
            _ => Stage::Answers,
        };
        timer.enter(self.model.decoder.device(), stage)
    }
}
