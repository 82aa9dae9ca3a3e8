//! The next thoughts: the latent head, noise, thoughts that are given, and the logit lens.

use std::sync::Arc;

use tensor::{DeviceError, Tensor, ops};

use super::Executor;
use super::forward::HiddenStates;
use super::sequence::{MadeThoughts, NextInput, SequenceState, ThoughtRef};
use crate::method::LatentLength;
use crate::reasoner::LatentModel;
use crate::sampler::Sampler;
use crate::stage_timer::Stage;

/// Whether a sequence's request thinks at all.
fn has_thoughts(sampler: Sampler<'_>, sequence: &SequenceState) -> bool {
    sampler.params(sequence).length != LatentLength::None
}

impl Executor<'_> {
    /// Makes the next thought of every sequence that thinks, from its hidden state. Sequences that
    /// end their thoughts by themselves make none.
    pub(super) fn make_thoughts(
        &mut self,
        hidden: &HiddenStates,
        sampler: Sampler<'_>,
        fed: &[NextInput],
    ) -> Result<(), DeviceError> {
        let thinks =
            |&i: &usize| fed[i].is_before_end() && has_thoughts(sampler, &self.sequences[i]);
        let mut live: Vec<usize> = (0..fed.len()).filter(thinks).collect();
        for (sequence, next) in self.sequences.iter_mut().zip(fed) {
            if next.is_before_end() {
                sequence.end_thoughts();
            }
        }
        if live.is_empty() {
            return Ok(());
        }
        let device = self.model.decoder.device();
        if let Some(timer) = &mut self.timer {
            timer.enter(device, Stage::Thoughts)?;
        }
        let at = hidden.select(self, &live)?;
        let mut thoughts =
            next_thoughts(self.model, sampler, &at, (&mut self.sequences, &mut live))?;
        let noiseless = self.keep_noiseless.then(|| thoughts.clone());
        let sequences = &self.sequences;
        let t = live.first().map_or(0, |&i| sequences[i].thoughts.len());
        sampler.add_noise(device, live.iter().map(|&i| &sequences[i]), t, &mut thoughts)?;
        let live_sequences = live.iter().map(|&i| &sequences[i]);
        thoughts = sampler.perturb_thoughts(device, live_sequences, thoughts)?;
        let live_sequences = live.iter().map(|&i| &sequences[i]);
        thoughts = force_thoughts(self.model, sampler, thoughts, live_sequences)?;
        if let Some(observer) = &mut self.observer {
            thoughts = thoughts.to_host()?;
            for (row, &i) in live.iter().enumerate() {
                observer.thought(&sequences[i], thoughts.row_mut(row));
            }
            thoughts = thoughts.to_device(device)?;
        }
        let made = Arc::new(MadeThoughts { fed: thoughts, noiseless });
        for (row, &i) in live.iter().enumerate() {
            self.sequences[i].push_thought(ThoughtRef { made: Arc::clone(&made), row });
            if self.keep_states {
                self.sequences[i].states.extend(hidden.0[i].clone());
            }
        }
        Ok(())
    }
}

/// The next thought of each `live` sequence, without noise, from hidden states (live, width): (live
/// sequences that go on, width). Sequences that end here leave `live`.
fn next_thoughts(
    model: &LatentModel,
    sampler: Sampler<'_>,
    hidden: &Tensor,
    (sequences, live): (&mut [SequenceState], &mut Vec<usize>),
) -> Result<Tensor, DeviceError> {
    let device = model.decoder.device();
    let noise = sampler.mixture_noise(device, live.iter().map(|&i| &sequences[i]))?;
    let made = model.head.forward_perturbed(&model.decoder, hidden, noise.as_ref())?;
    let Some(stay) = undecided(model, sampler, (hidden, made.argmax), (sequences, live))? else {
        read_lens(model, sampler, hidden, (sequences, live))?;
        return Ok(made.thoughts);
    };
    if sampler.has_lens() {
        let hidden = ops::select(device, [hidden], &stay)?;
        read_lens(model, sampler, &hidden, (sequences, live))?;
    }
    ops::select(device, [&made.thoughts], &stay)
}

/// Lets sequences end before their limit: those of open length where the model's argmax at their
/// position is the end token, those with forced thoughts after the last of these.
///
/// Removes them from `live` and returns the indices in it of the others; `None` where no sequence
/// can end early.
fn undecided(
    model: &LatentModel,
    sampler: Sampler<'_>,
    (hidden, argmax): (&Tensor, Option<Vec<u32>>),
    (sequences, live): (&[SequenceState], &mut Vec<usize>),
) -> Result<Option<Vec<usize>>, DeviceError> {
    let forced = |i: usize| sampler.forced_thoughts(&sequences[i]);
    let is_open = |i: usize| {
        let length = sampler.params(&sequences[i]).length;
        matches!(length, LatentLength::AtMost(_)) && forced(i).is_none()
    };
    let any_open = live.iter().any(|&i| is_open(i));
    if !any_open && !live.iter().any(|&i| forced(i).is_some()) {
        return Ok(None);
    }
    let decoder = &model.decoder;
    let argmax = match argmax {
        None if any_open => ops::argmax(decoder.device(), hidden, decoder.lm_head())?,
        known => known.unwrap_or_default(),
    };
    let end = model.method.end_latent.first();
    let stays = |&(row, i): &(usize, usize)| match forced(i) {
        Some(forced) => sequences[i].thoughts.len() < forced.rows(),
        None => !is_open(i) || end != Some(&argmax[row]),
    };
    let (rows, stay) = live.iter().copied().enumerate().filter(stays).unzip();
    *live = stay;
    Ok(Some(rows))
}

/// Reads the hidden states (live, width) from which the next thoughts are made through the LM head,
/// for the sequences whose requests ask for it.
fn read_lens(
    model: &LatentModel,
    sampler: Sampler<'_>,
    hidden: &Tensor,
    (sequences, live): (&mut [SequenceState], &[usize]),
) -> Result<(), DeviceError> {
    if !sampler.has_lens() {
        return Ok(());
    }
    let requested =
        |(row, &i): (usize, &usize)| Some((row, i, sampler.lens_tokens(&sequences[i])?));
    let requested: Vec<_> = live.iter().enumerate().filter_map(requested).collect();
    let Some(most) = requested.iter().map(|&(_, _, count)| count).max() else { return Ok(()) };
    let (decoder, device) = (&model.decoder, model.decoder.device());
    let rows: Vec<usize> = requested.iter().map(|&(row, ..)| row).collect();
    let hidden = ops::select(device, [hidden], &rows)?;
    let read = ops::top_tokens(device, &hidden, decoder.lm_head(), most)?;
    for ((_, i, count), mut tokens) in requested.into_iter().zip(read) {
        tokens.truncate(count);
        sequences[i].lens.push(tokens);
    }
    Ok(())
}

/// The next thoughts (sequences, width) with those that requests force in their places.
fn force_thoughts<'s>(
    model: &LatentModel,
    sampler: Sampler<'_>,
    thoughts: Tensor,
    sequences: impl Iterator<Item = &'s SequenceState>,
) -> Result<Tensor, DeviceError> {
    if !sampler.forces_thoughts() {
        return Ok(thoughts);
    }
    let mut forced = Tensor::zeros(0, thoughts.cols());
    let index = |(i, sequence): (usize, &SequenceState)| match sampler.forced_thoughts(sequence) {
        Some(own) => {
            forced.push(own.row(sequence.thoughts.len()));
            thoughts.rows() + forced.rows() - 1
        }
        None => i,
    };
    let indices: Vec<usize> = sequences.enumerate().map(index).collect();
    if forced.rows() == 0 {
        return Ok(thoughts);
    }
    let device = model.decoder.device();
    ops::select(device, [&thoughts, &forced.to_device(device)?], &indices)
}
