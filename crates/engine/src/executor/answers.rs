//! Answer tokens: runs the LM head, reads the tokens, and launches the next step before they are
//! read.
//!
//! A step that feeds pending tokens is launched speculatively, assuming that no sequence ended with
//! them; the results of sequences that did end are ignored. Aligned sequences often end together:
//! if more than a few do, the step is aborted and the others continue in a new one.

use model::{Cache, DeferredInputs, ForwardOptions};
use tensor::ops::{self, OutputDtype, PendingTokens, TokenLogprob};
use tensor::{DeviceError, Tensor};

use super::forward::StepOutputs;
use super::inputs::PassInputs;
use super::sequence::{NextInput, SequenceState};
use super::{Alignment, Executor, Lookahead};
use crate::sampler::Sampler;
use crate::stage_timer::Stage;

/// The speculative step is aborted if more than one in this many sequences ended: ignoring a few
/// results costs less than preparing another step.
const MAX_ENDED_SHARE: usize = 16;

/// The next tokens of sequences that are answering. A GPU may still be computing them.
pub(super) struct PendingAnswers {
    /// The sequence of each token; `None` if the sequence has left.
    sequences: Vec<Option<usize>>,
    tokens: PendingTokens,
    /// Their input vectors, if these can be computed before the tokens are read.
    pub(super) embedded: Option<Tensor>,
}

impl PendingAnswers {
    /// Updates the sequence indices after sequences were removed.
    pub(super) fn move_sequences(&mut self, indices: &[Option<usize>]) {
        self.sequences.iter_mut().for_each(|i| *i = i.and_then(|i| indices[i]));
    }
}

/// The reason that a speculative step was not completed.
enum StepAborted {
    /// Too many of its sequences ended with the pending tokens.
    Ended,
    Failed(DeviceError),
}

impl From<DeviceError> for StepAborted {
    fn from(e: DeviceError) -> Self {
        Self::Failed(e)
    }
}

/// Appends tokens to the answers of sequences; those whose token ends the answer are done.
fn add_tokens(
    sequences: &mut [SequenceState],
    owners: &[Option<usize>],
    tokens: &[TokenLogprob],
    eos: &[u32],
) {
    for (owner, token) in owners.iter().zip(tokens) {
        let Some(i) = *owner else { continue };
        let sequence = &mut sequences[i];
        sequence.tokens.push(token.token);
        sequence.logprob += token.logprob;
        let ends = sequence.next == NextInput::AwaitLastToken || eos.contains(&token.token);
        sequence.next = if ends { NextInput::Done } else { NextInput::Token(token.token) };
    }
}

impl Executor<'_> {
    /// Computes the next token of every answering sequence from its last hidden state.
    pub(super) fn request_tokens(
        &mut self,
        hidden: &StepOutputs,
        sampler: Sampler<'_>,
        fed: &[NextInput],
    ) -> Result<(), DeviceError> {
        let decoder = &self.model.decoder;
        let ends_directly = self.model.method.end_latent.is_empty();
        let answers = |&i: &usize| match fed[i] {
            // A sequence that fed a pending token may turn out to have ended with it.
            _ if self.sequences[i].next == NextInput::Done => false,
            next if next.is_answer() => true,
            // Without end tokens the answer starts directly after the thoughts.
            next => {
                let sequence = &self.sequences[i];
                let ends = sequence.next == NextInput::End && !sequence.pending;
                next.is_before_end() && ends && ends_directly
            }
        };
        let live: Vec<usize> = (0..fed.len()).filter(answers).collect();
        if live.is_empty() {
            return Ok(());
        }
        if let Some(timer) = &mut self.timer {
            timer.enter(decoder.device(), Stage::Answers)?;
        }
        let at = hidden.select(self, &live)?;
        if let Some(observer) = &mut self.observer
            && self.sequences[live[0]].tokens.is_empty()
        {
            observer.first_hidden(&at);
        }
        let tokens = sampler.next_tokens(decoder, &at, live.iter().map(|&i| &self.sequences[i]))?;
        for (index, &i) in live.iter().enumerate() {
            let sequence = &mut self.sequences[i];
            if self.keep_states {
                sequence.states.extend(hidden.0[i].clone());
            }
            let ends = sequence.tokens.len() + 1 >= sampler.params(sequence).max_new_tokens.get()
                || sequence.kv.len() >= decoder.config().context;
            sequence.next = match ends {
                true => NextInput::AwaitLastToken,
                false => NextInput::PendingToken(index),
            };
        }
        let runs_ahead = !tokens.is_ready() || self.lookahead == Lookahead::Always;
        let embedded = if runs_ahead { self.model.embed_pending(&tokens)? } else { None };
        let sequences = live.into_iter().map(Some).collect();
        self.pending = Some(PendingAnswers { sequences, tokens, embedded });
        if runs_ahead { Ok(()) } else { self.read_pending() }
    }

    /// Reads the tokens of the last step, if not yet read.
    pub(super) fn read_pending(&mut self) -> Result<(), DeviceError> {
        let Some(pending) = self.pending.take() else { return Ok(()) };
        let tokens = pending.tokens.read()?;
        add_tokens(&mut self.sequences, &pending.sequences, &tokens, &self.model.method.eos);
        Ok(())
    }

    /// Launches a step that only feeds pending tokens before they are read, and reads them once the
    /// step is running. `None` if the step has other inputs, or was aborted.
    pub(super) fn speculate(
        &mut self,
        cache: &mut Cache,
        sampler: Sampler<'_>,
        fed: &[NextInput],
    ) -> Result<Option<StepOutputs>, DeviceError> {
        let index = |(i, next): (usize, &NextInput)| match next {
            NextInput::PendingToken(index) => Some((i, *index)),
            _ => None,
        };
        let (members, indices): (Vec<usize>, Vec<usize>) =
            fed.iter().enumerate().filter_map(index).unzip();
        let is_other = |next: &NextInput| {
            next.is_before_end() || matches!(next, NextInput::End | NextInput::Token(_))
        };
        let is_mixed = fed.iter().any(is_other);
        let has_vectors = self.pending.as_ref().is_some_and(|pending| pending.embedded.is_some());
        if is_mixed || self.alignment == Alignment::Mixed {
            // The tokens are read after the pass is launched, unless it needs them before.
            if !members.is_empty() && !has_vectors {
                self.read_pending()?;
            }
            return Ok(None);
        }
        if members.is_empty() {
            self.read_pending()?;
            return Ok(None);
        }
        let Some(pending) = self.pending.take() else { return Ok(None) };
        self.enter_stage(fed)?;
        let mark = cache.mark();
        let mut inputs = PassInputs::default();
        for &i in &members {
            self.push_input(cache, sampler, (i, fed[i]), &mut inputs);
        }
        let mut tokens = Vec::new();
        let outputs = self.run_speculative(
            cache,
            &inputs,
            (pending.tokens, pending.embedded),
            &indices,
            &mut tokens,
        );
        let eos = &self.model.method.eos;
        add_tokens(&mut self.sequences, &pending.sequences, &tokens, eos);
        match outputs {
            Ok(outputs) => {
                let mut hidden = StepOutputs(vec![None; fed.len()]);
                self.assign_outputs(&inputs.outputs, outputs, &mut hidden);
                Ok(Some(hidden))
            }
            Err(StepAborted::Ended) => {
                let mut is_member = vec![false; fed.len()];
                members.iter().for_each(|&i| is_member[i] = true);
                let fed = self.sequences.iter_mut().zip(is_member).filter(|(_, member)| *member);
                let kv: Vec<_> = fed.map(|(sequence, _)| &mut sequence.kv).collect();
                cache.rollback(mark, kv);
                Ok(None)
            }
            Err(StepAborted::Failed(e)) => Err(e),
        }
    }

    /// The dtype of the hidden states of answers, which mostly only the LM head reads.
    pub(super) fn answer_dtype(&self) -> OutputDtype {
        if self.keep_states { OutputDtype::F32 } else { OutputDtype::Compute }
    }

    /// Launches the forward pass over pending tokens, reads these into `tokens`, and completes the
    /// pass unless too many of the sequences ended.
    fn run_speculative(
        &self,
        cache: &mut Cache,
        inputs: &PassInputs,
        (pending, embedded): (PendingTokens, Option<Tensor>),
        indices: &[usize],
        tokens: &mut Vec<TokenLogprob>,
    ) -> Result<Tensor, StepAborted> {
        let decoder = &self.model.decoder;
        let eos = &self.model.method.eos;
        let read = |max_ended: usize| {
            *tokens = pending.read()?;
            let ends = |&&i: &&usize| eos.contains(&tokens[i].token);
            let ended = indices.iter().filter(ends).count();
            if ended > max_ended { Err(StepAborted::Ended) } else { Ok(&*tokens) }
        };
        let output = self.answer_dtype();
        let options = ForwardOptions { dropout: inputs.dropout(), output };
        match embedded {
            Some(embedded) => {
                let x = ops::select(decoder.device(), [&embedded], indices)?;
                let proceed = || read(indices.len() / MAX_ENDED_SHARE).map(drop);
                let deferred = DeferredInputs { x: || Ok(x), proceed };
                decoder.forward_deferred(cache, &inputs.pass, options, deferred)
            }
            None => {
                let x = || {
                    let tokens = read(0)?;
                    let tokens: Vec<u32> = indices.iter().map(|&i| tokens[i].token).collect();
                    Ok(self.model.embed(&tokens)?)
                };
                let deferred = DeferredInputs { x, proceed: || Ok(()) };
                decoder.forward_deferred(cache, &inputs.pass, options, deferred)
            }
        }
    }
}
