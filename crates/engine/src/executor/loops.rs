//! Latent positions that are computed in parallel, and again in each loop (LOTUS).
//!
//! ```text
//! prompt -> pass 0 -> pass 1 -> … -> pass R and end tokens -> answer
//!             └──────────┴ the hidden states of a pass, added to the latent token's embedding, are
//!                          what the next one reads at the same positions
//! ```
//!
//! A pass replaces the keys and values of the previous one. Perturbations apply to all passes
//! except the last.

use std::sync::Arc;

use model::Cache;
use smallvec::SmallVec;
use tensor::{DeviceError, Tensor, ops};

use super::Executor;
use super::forward::StepOutputs;
use super::inputs::{Gather, Input, OutputOwner, PassInputs};
use super::sequence::{HiddenRef, MadeThoughts, NextInput, SequenceState, ThoughtRef, ThoughtRow};
use super::thoughts::{has_thoughts, read_lens};
use crate::method::LatentLoop;
use crate::sampler::{PassStage, Sampler};
use crate::stage_timer::Stage;

/// Maximum positions of a pass over loops: enough for full speed, few enough to keep the
/// activations small.
pub(super) const MAX_LOOP_ROWS: usize = 16384;

/// References to thoughts `first` to `first + count` of a matrix.
fn thought_refs(made: &Arc<MadeThoughts>, first: usize, count: usize) -> SmallVec<[ThoughtRef; 8]> {
    (first..first + count).map(|row| ThoughtRef { made: Arc::clone(made), row }).collect()
}

/// The thoughts of a sequence that are already computed, with their positions in the random number
/// keys.
fn looped_rows(sequence: &SequenceState) -> impl Iterator<Item = ThoughtRow<'_>> {
    let count = sequence.thoughts.len();
    let first = sequence.random_position() - count;
    (0..count).map(move |index| ThoughtRow { sequence, position: first + index, index })
}

/// Whether the logit lens reads the last pass over a sequence's thoughts.
fn has_lens(sampler: Sampler<'_>, sequence: &SequenceState) -> bool {
    sampler.lens_tokens(sequence).is_some()
}

impl Executor<'_> {
    /// Computes the inputs of the next pass over latent positions.
    pub(super) fn loop_thoughts(
        &mut self,
        looped: LatentLoop,
        hidden: &StepOutputs,
        sampler: Sampler<'_>,
        fed: &[NextInput],
    ) -> Result<(), DeviceError> {
        let mut starting = Vec::new();
        let mut looping = Vec::new();
        for (i, next) in fed.iter().enumerate() {
            match next {
                next if !next.is_before_end() => {}
                _ if !has_thoughts(sampler, &self.sequences[i]) => self.sequences[i].end_thoughts(),
                NextInput::Prompt => starting.push(i),
                _ => looping.push(i),
            }
        }
        self.read_last_pass(hidden, sampler, fed)?;
        if !starting.is_empty() {
            self.start_loops(looped, hidden, sampler, &starting)?;
        }
        if looping.is_empty() {
            return Ok(());
        }
        if let Some(timer) = &mut self.timer {
            timer.enter(self.model.decoder.device(), Stage::Thoughts)?;
        }
        self.feed_back(looped, hidden, sampler, &looping)
    }

    /// Starts sequences with the latent token's embedding at every position, or with their forced
    /// thoughts.
    fn start_loops(
        &mut self,
        looped: LatentLoop,
        hidden: &StepOutputs,
        sampler: Sampler<'_>,
        starting: &[usize],
    ) -> Result<(), DeviceError> {
        if sampler.has_lens() {
            let at = hidden.select(self, starting)?;
            read_lens(self.model, sampler, &at, (&mut self.sequences, starting))?;
        }
        let limit = |&i: &usize| self.sequences[i].limit.unwrap_or(0);
        let longest = starting.iter().map(limit).max().unwrap_or(0);
        let fed = self.model.embed(&vec![looped.token; longest])?;
        let embedded = Arc::new(MadeThoughts { fed, noiseless: None });
        for &i in starting {
            let sequence = &mut self.sequences[i];
            match sampler.forced_thoughts(sequence) {
                Some(forced) => {
                    let fed = forced.clone().to_device(self.model.decoder.device())?;
                    let made = Arc::new(MadeThoughts { fed, noiseless: None });
                    sequence.set_thoughts(thought_refs(&made, 0, forced.rows()), true);
                }
                None => {
                    let count = sequence.limit.unwrap_or(0);
                    sequence.set_thoughts(thought_refs(&embedded, 0, count), looped.loops == 0);
                }
            }
        }
        Ok(())
    }

    /// Computes the thoughts of the next loop from the hidden states of the last one.
    fn feed_back(
        &mut self,
        looped: LatentLoop,
        hidden: &StepOutputs,
        sampler: Sampler<'_>,
        looping: &[usize],
    ) -> Result<(), DeviceError> {
        let device = self.model.decoder.device();
        let mut at = Gather::default();
        for &i in looping {
            let Some(of) = &hidden.0[i] else { unreachable!("a loop has hidden states") };
            let count = self.sequences[i].thoughts.len();
            (of.row + 1 - count..=of.row).for_each(|row| at.push(&of.outputs, row));
        }
        let at = at.select(device)?;
        let mut thoughts = self.model.head.forward(&self.model.decoder, &at)?.thoughts;
        let embedding = self.model.embed(&[looped.token])?;
        let embeddings = ops::select(device, [&embedding], &vec![0; thoughts.rows()])?;
        ops::add(device, &mut thoughts, &embeddings)?;
        for &i in looping {
            self.sequences[i].loops += 1;
        }
        let noiseless = self.keep_noiseless.then(|| thoughts.clone());
        let sequences = &self.sequences;
        let done = looping.first().map_or(1, |&i| sequences[i].loops);
        let fed = || looping.iter().flat_map(|&i| looped_rows(&sequences[i]));
        sampler.add_noise(device, fed(), done - 1, &mut thoughts)?;
        thoughts = sampler.perturb_thoughts(device, fed(), thoughts)?;
        if let Some(observer) = &mut self.observer {
            thoughts = thoughts.to_host()?;
            for (row, thought) in fed().enumerate() {
                observer.thought(thought.sequence, thoughts.row_mut(row));
            }
            thoughts = thoughts.to_device(device)?;
        }
        let made = Arc::new(MadeThoughts { fed: thoughts, noiseless });
        let keep_states = self.keep_states;
        let mut first = 0;
        for &i in looping {
            let sequence = &mut self.sequences[i];
            let count = sequence.thoughts.len();
            let is_last = sequence.loops >= looped.loops;
            if let Some(of) = hidden.0[i].as_ref().filter(|_| is_last && keep_states) {
                let state = |row| HiddenRef { outputs: Arc::clone(&of.outputs), row };
                sequence.states.extend((of.row + 1 - count..=of.row).map(state));
            }
            sequence.set_thoughts(thought_refs(&made, first, count), is_last);
            first += count;
        }
        Ok(())
    }

    /// Lets a sequence continue from the whole chunks of its shared prompt and recompute the rest:
    /// prompt and latent positions are then one prefix, which attention reads in tiles. Dropout on
    /// thoughts starts after the prompt.
    pub(super) fn continue_prompt(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
        i: usize,
        inputs: &mut PassInputs,
    ) {
        let sequence = &mut self.sequences[i];
        let item = &sampler.items[sequence.spec.item];
        let shared = item.continued_tokens();
        let Some(prefix) = &self.prefixes[sequence.spec.item] else {
            unreachable!("a shared prompt is passed before its sequences begin")
        };
        sequence.kv = prefix.kv.fork_at(shared).continued();
        for (position, &token) in item.prompt.tokens.iter().enumerate().skip(shared) {
            let is_last = position + 1 == item.prompt_len();
            let owner = is_last.then_some(OutputOwner::Sequence(i));
            inputs.push(cache, &mut sequence.kv, (Input::Token(token), None), owner);
        }
        inputs.has_prompts = true;
    }

    /// Adds all thoughts of a sequence to a forward pass: in new slots, or in those of the previous
    /// loop.
    pub(super) fn push_looped(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
        (i, stage): (usize, PassStage),
        inputs: &mut PassInputs,
    ) {
        let sequence = &mut self.sequences[i];
        let prompt = sampler.items[sequence.spec.item].prompt_len();
        let thoughts = sequence.thoughts.clone();
        let is_last = sequence.pending;
        let first_random = prompt + sequence.loops * thoughts.len();
        let reads_last = is_last && has_lens(sampler, sequence);
        for (index, thought) in thoughts.iter().enumerate() {
            let dropout = sampler.dropout_at(sequence, first_random + index, stage);
            let is_output = if is_last { reads_last && index + 1 < thoughts.len() } else { true };
            let owner = is_output.then_some(OutputOwner::Sequence(i));
            let input = (Input::Thought(thought.clone()), dropout);
            inputs.push_at(cache, &mut sequence.kv, (prompt + index, input), owner);
        }
        // There are many rows, as in a prompt.
        inputs.has_prompts = true;
    }

    /// Reads the last pass over latent positions through the LM head. The token at a position is
    /// predicted one position earlier, the first one at the end of the prompt.
    fn read_last_pass(
        &mut self,
        hidden: &StepOutputs,
        sampler: Sampler<'_>,
        fed: &[NextInput],
    ) -> Result<(), DeviceError> {
        if !sampler.has_lens() {
            return Ok(());
        }
        let mut at = Gather::default();
        let mut owners = Vec::new();
        for (i, next) in fed.iter().enumerate() {
            let sequence = &self.sequences[i];
            let count = sequence.thoughts.len();
            if *next != NextInput::End || count < 2 || !has_lens(sampler, sequence) {
                continue;
            }
            let Some(of) = &hidden.0[i] else { unreachable!("the end tokens were fed") };
            for row in of.row + 1 - count..of.row {
                at.push(&of.outputs, row);
                owners.push(i);
            }
        }
        if owners.is_empty() {
            return Ok(());
        }
        let at: Tensor = at.select(self.model.decoder.device())?;
        read_lens(self.model, sampler, &at, (&mut self.sequences, &owners))
    }
}
