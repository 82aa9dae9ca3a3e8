//! The positions of one forward pass with their input vectors; and gathering rows of tensors.

use model::{Cache, Dropout, Pass, Sequence};
use tensor::ops::{self, RowPerturbation};
use tensor::{Device, DeviceError, Tensor};

use super::sequence::{HiddenRef, ThoughtRef};
use crate::reasoner::LatentModel;

/// The input at a position.
#[derive(Clone)]
pub(super) enum Input {
    Token(u32),
    /// An end token, by its index among the end tokens.
    EndToken(usize),
    /// The token of this index among the pending ones.
    PendingToken(usize),
    Thought(ThoughtRef),
}

/// The owner of an output hidden state.
#[derive(Clone, Copy)]
pub(super) enum OutputOwner {
    Sequence(usize),
    /// The shared prompt of an item.
    Prefix(usize),
}

/// The positions of a forward pass with their inputs and dropout.
#[derive(Default)]
pub(super) struct PassInputs {
    pub(super) pass: Pass,
    inputs: Vec<Input>,
    dropout: Vec<Option<RowPerturbation>>,
    pub(super) outputs: Vec<OutputOwner>,
    /// Whether it contains prompt positions other than those that each sequence computes
    /// separately.
    pub(super) has_prompts: bool,
}

impl PassInputs {
    /// Adds the next position of a sequence; its hidden state is an output if it has an owner.
    pub(super) fn push(
        &mut self,
        cache: &mut Cache,
        kv: &mut Sequence,
        (input, dropout): (Input, Option<RowPerturbation>),
        owner: Option<OutputOwner>,
    ) {
        self.pass.push(cache, kv, owner.is_some());
        self.inputs.push(input);
        self.dropout.push(dropout);
        self.outputs.extend(owner);
    }

    /// Adds a position of a sequence: its next one, or an existing one, whose keys and values are
    /// then replaced.
    pub(super) fn push_at(
        &mut self,
        cache: &mut Cache,
        kv: &mut Sequence,
        (position, (input, dropout)): (usize, (Input, Option<RowPerturbation>)),
        owner: Option<OutputOwner>,
    ) {
        if position >= kv.len() {
            return self.push(cache, kv, (input, dropout), owner);
        }
        self.pass.push_again(kv, position, owner.is_some());
        self.inputs.push(input);
        self.dropout.push(dropout);
        self.outputs.extend(owner);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    /// The dropout of the forward pass, if any.
    pub(super) fn dropout(&self) -> Option<Dropout<'_>> {
        let is_perturbed = self.dropout.iter().any(Option::is_some);
        is_perturbed.then_some(Dropout::Sampled(&self.dropout))
    }

    pub(super) fn rows(&self) -> usize {
        self.inputs.len()
    }

    /// The input vectors, (positions, width); `pending` contains those of the pending tokens.
    pub(super) fn vectors(
        &self,
        model: &LatentModel,
        pending: Option<&Tensor>,
    ) -> Result<Tensor, DeviceError> {
        let token = |input: &Input| match input {
            Input::Token(token) => Some(*token),
            _ => None,
        };
        let tokens: Vec<u32> = self.inputs.iter().filter_map(token).collect();
        let embedded = model.embed_some(&tokens)?;
        if tokens.len() == self.inputs.len() {
            return Ok(embedded.unwrap_or_default());
        }
        let has_end = self.inputs.iter().any(|input| matches!(input, Input::EndToken(_)));
        let end = if has_end { model.embed_some(&model.method.end_latent)? } else { None };
        let mut vectors = Gather::with_capacity(self.inputs.len());
        let mut next_token = 0..;
        for input in &self.inputs {
            let (part, row) = match input {
                Input::Token(_) => (embedded.as_ref(), next_token.next().unwrap_or_default()),
                Input::EndToken(index) => (end.as_ref(), *index),
                Input::PendingToken(index) => (pending, *index),
                Input::Thought(thought) => (Some(&thought.made.fed), thought.row),
            };
            let Some(part) = part else { unreachable!("every kind of input has its vectors") };
            vectors.push(part, row);
        }
        vectors.select(model.decoder.device())
    }
}

/// Gathers rows of several tensors in one operation.
#[derive(Default)]
pub(crate) struct Gather<'a> {
    /// Each tensor with the index of its first row in their concatenation.
    parts: Vec<(&'a Tensor, usize)>,
    total: usize,
    indices: Vec<usize>,
}

impl<'a> Gather<'a> {
    pub(crate) fn with_capacity(rows: usize) -> Self {
        Self { indices: Vec::with_capacity(rows), ..Self::default() }
    }

    /// Adds a row of a tensor.
    pub(crate) fn push(&mut self, part: &'a Tensor, row: usize) {
        let known = self.parts.iter().rev().find(|(known, _)| std::ptr::eq(*known, part));
        let first = match known {
            Some(&(_, first)) => first,
            None => {
                let first = self.total;
                self.parts.push((part, first));
                self.total += part.rows();
                first
            }
        };
        self.indices.push(first + row);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// The rows in insertion order: (rows, width).
    pub(crate) fn select(self, device: &Device) -> Result<Tensor, DeviceError> {
        ops::select(device, self.parts.iter().map(|(part, _)| *part), &self.indices)
    }

    /// The same on the host; each tensor is copied whole.
    pub(crate) fn to_host(&self, width: usize) -> Result<Tensor, DeviceError> {
        let mut all = Tensor::zeros(0, width);
        for (part, _) in &self.parts {
            all.extend(&(*part).clone().to_host()?);
        }
        Ok(all.select(self.indices.iter().copied()))
    }

    /// Gathers hidden states.
    pub(crate) fn of_states(states: impl Iterator<Item = &'a HiddenRef>) -> Self {
        let mut gather = Self::default();
        states.for_each(|state| gather.push(&state.outputs, state.row));
        gather
    }

    /// Gathers the vectors of thoughts as they were fed.
    pub(crate) fn of_thoughts(thoughts: impl Iterator<Item = &'a ThoughtRef>) -> Self {
        let mut gather = Self::default();
        thoughts.for_each(|thought| gather.push(&thought.made.fed, thought.row));
        gather
    }
}
