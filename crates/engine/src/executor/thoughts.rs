//! Computes the next thoughts: the latent head, noise, forced thoughts, and the logit lens.

use std::sync::Arc;

use model::head::LatentOutput;
use tensor::ops::{self, MixtureRule};
use tensor::{DeviceError, Tensor};

use super::Executor;
use super::forward::StepOutputs;
use super::sequence::{MadeThoughts, NextInput, SequenceState, ThoughtRef};
use crate::method::LatentLength;
use crate::reasoner::LatentModel;
use crate::sampler::Sampler;
use crate::stage_timer::Stage;

/// Whether a sequence's request has thoughts.
pub(super) fn has_thoughts(sampler: Sampler<'_>, sequence: &SequenceState) -> bool {
    sampler.params(sequence).length != LatentLength::None
}

impl Executor<'_> {
    /// Computes the next thought of every sequence in its latent phase from its hidden state.
    /// Sequences that stop here get none.
    pub(super) fn make_thoughts(
        &mut self,
        hidden: &StepOutputs,
        sampler: Sampler<'_>,
        fed: &[NextInput],
    ) -> Result<(), DeviceError> {
        if let Some(looped) = self.model.method.looped {
            return self.loop_thoughts(looped, hidden, sampler, fed);
        }
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
        let fed = || live.iter().map(|&i| sequences[i].next_thought());
        sampler.add_noise(device, fed(), t, &mut thoughts)?;
        thoughts = sampler.perturb_thoughts(device, fed(), thoughts)?;
        let live_sequences = live.iter().map(|&i| &sequences[i]);
        thoughts = force_thoughts(self.model, sampler, thoughts, live_sequences)?;
        if let Some(observer) = &mut self.observer {
            thoughts = thoughts.to_host()?;
            for (row, &i) in live.iter().enumerate() {
                observer.thought(&sequences[i], thoughts.row_mut(row));
            }
            thoughts = thoughts.to_device(device)?;
        }
        let last = last_thoughts(self.model, sampler, &thoughts, (&self.sequences, &live))?;
        let made = Arc::new(MadeThoughts { fed: thoughts, noiseless });
        for (row, &i) in live.iter().enumerate() {
            let sequence = &mut self.sequences[i];
            if last.get(row) == Some(&true) {
                sequence.limit = Some(sequence.thoughts.len() + 1);
            }
            sequence.push_thought(ThoughtRef { made: Arc::clone(&made), row });
            if self.keep_states {
                sequence.states.extend(hidden.0[i].clone());
            }
        }
        Ok(())
    }
}

/// The next thought of each `live` sequence, without noise, from hidden states (live, width):
/// (remaining live sequences, width). Sequences that stop here are removed from `live`.
fn next_thoughts(
    model: &LatentModel,
    sampler: Sampler<'_>,
    hidden: &Tensor,
    (sequences, live): (&mut [SequenceState], &mut Vec<usize>),
) -> Result<Tensor, DeviceError> {
    let device = model.decoder.device();
    let made = latent_output(model, sampler, hidden, (sequences, live))?;
    if let Some(entropies) = &made.entropies {
        count_certain(sampler, entropies, (sequences, live));
    }
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

/// The latent head's output for hidden states (live, width). Rows whose mixtures have a special
/// rule use a separate operation, as they would alone.
fn latent_output(
    model: &LatentModel,
    sampler: Sampler<'_>,
    hidden: &Tensor,
    (sequences, live): (&[SequenceState], &[usize]),
) -> Result<LatentOutput, DeviceError> {
    let device = model.decoder.device();
    let head = &model.head;
    let plain_output = |hidden: &Tensor, rows: &[usize]| {
        let noise = sampler.mixture_noise(device, rows.iter().map(|&i| &sequences[i]))?;
        head.forward_perturbed(&model.decoder, hidden, noise.as_ref())
    };
    let Some(rule) = head.mixture_rule() else { return plain_output(hidden, live) };
    let ruled_output = |hidden: &Tensor, rows: &[usize]| {
        let rule = |&i: &usize| sampler.mixture_rule(rule, &sequences[i]);
        let rules: Vec<MixtureRule> = rows.iter().map(rule).collect();
        head.forward_mixed(&model.decoder, hidden, &rules)
    };
    let needs_rule = |&row: &usize| sampler.needs_rule(head, &sequences[live[row]]);
    let (ruled, plain): (Vec<usize>, Vec<usize>) = (0..live.len()).partition(needs_rule);
    if ruled.is_empty() {
        return plain_output(hidden, live);
    }
    if plain.is_empty() {
        return ruled_output(hidden, live);
    }
    let of = |rows: &[usize]| -> Vec<usize> { rows.iter().map(|&row| live[row]).collect() };
    let first = ruled_output(&ops::select(device, [hidden], &ruled)?, &of(&ruled))?;
    let second = plain_output(&ops::select(device, [hidden], &plain)?, &of(&plain))?;
    let mut places = vec![0; live.len()];
    ruled.iter().chain(&plain).enumerate().for_each(|(place, &row)| places[row] = place);
    let argmax = [first.argmax, second.argmax].map(Option::unwrap_or_default).concat();
    let mut entropies = vec![f32::INFINITY; live.len()];
    let certainties = first.entropies.unwrap_or_default();
    ruled.iter().zip(certainties).for_each(|(&row, entropy)| entropies[row] = entropy);
    Ok(LatentOutput {
        thoughts: ops::select(device, [&first.thoughts, &second.thoughts], &places)?,
        argmax: Some(places.iter().map(|&place| argmax[place]).collect()),
        entropies: Some(entropies),
    })
}

/// Counts the consecutive low-entropy thoughts of each `live` sequence with Cold Stop.
fn count_certain(
    sampler: Sampler<'_>,
    entropies: &[f32],
    (sequences, live): (&mut [SequenceState], &[usize]),
) {
    for (&i, entropy) in live.iter().zip(entropies) {
        let Some(stop) = sampler.cold_stop(&sequences[i]) else { continue };
        let is_certain = *entropy < stop.entropy;
        sequences[i].certain = if is_certain { sequences[i].certain + 1 } else { 0 };
    }
}

/// Which of the next thoughts (live, width) are the last ones of open-ended sequences according to
/// the model's gate; empty without a gate.
fn last_thoughts(
    model: &LatentModel,
    sampler: Sampler<'_>,
    thoughts: &Tensor,
    (sequences, live): (&[SequenceState], &[usize]),
) -> Result<Vec<bool>, DeviceError> {
    let is_open = |i: usize| {
        matches!(sampler.params(&sequences[i]).length, LatentLength::AtMost(_))
            && sampler.forced_thoughts(&sequences[i]).is_none()
    };
    let Some(gate) = model.gate.as_ref().filter(|_| live.iter().any(|&i| is_open(i))) else {
        return Ok(Vec::new());
    };
    let ends = gate.ends_with(model.decoder.device(), thoughts)?;
    Ok(live.iter().zip(ends).map(|(&i, ends)| ends && is_open(i)).collect())
}

/// Stops sequences before their limit: open-ended ones if the argmax token at their position or the
/// gate ends the thoughts, or after a run of low-entropy thoughts; those with forced thoughts after
/// the last of these.
///
/// Removes them from `live` and returns the previous indices of the others; `None` if no sequence
/// can stop early.
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
    let ends = match (&model.gate, argmax) {
        (Some(gate), _) if any_open => gate.ends_before(decoder, hidden)?,
        (None, None) if any_open => {
            let argmax = ops::argmax(decoder.device(), hidden, decoder.lm_head())?;
            argmax.into_iter().map(|token| model.method.ends_thoughts(token)).collect()
        }
        (None, Some(argmax)) => {
            argmax.into_iter().map(|token| model.method.ends_thoughts(token)).collect()
        }
        _ => Vec::new(),
    };
    let is_cold = |i: usize| {
        let stop = sampler.cold_stop(&sequences[i]);
        stop.is_some_and(|stop| sequences[i].certain >= stop.steps.get())
    };
    let stays = |&(row, i): &(usize, usize)| match forced(i) {
        Some(forced) => sequences[i].thoughts.len() < forced.rows(),
        None => !is_open(i) || !(ends[row] || is_cold(i)),
    };
    let (rows, stay) = live.iter().copied().enumerate().filter(stays).unzip();
    *live = stay;
    Ok(Some(rows))
}

/// Reads the hidden states (live, width) from which the next thoughts are computed through the LM
/// head, for sequences whose requests have a lens.
pub(super) fn read_lens(
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
    let decoder = &model.decoder;
    let device = model.decoder.device();
    let rows: Vec<usize> = requested.iter().map(|&(row, ..)| row).collect();
    let hidden = ops::select(device, [hidden], &rows)?;
    let read = ops::top_tokens(device, &hidden, decoder.lm_head(), most)?;
    for ((_, i, count), mut tokens) in requested.into_iter().zip(read) {
        tokens.truncate(count);
        sequences[i].lens.push(tokens);
    }
    Ok(())
}

/// The next thoughts (sequences, width), with forced thoughts replacing computed ones.
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
