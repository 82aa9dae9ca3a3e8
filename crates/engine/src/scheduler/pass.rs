//! One pass of the continuous batch: positions of any rows at any stage, and the vectors that they
//! feed.

use std::sync::Arc;

use model::{Cache, Dropout, Pass, Sequence};
use tensor::ops::{self, RowPerturbation};
use tensor::{DeviceError, Tensor};

use crate::reasoner::LatentModel;

/// A thought on the device: a row of the tensor that was made at one pass for all rows.
#[derive(Clone)]
pub(crate) struct ThoughtRef {
    pub(crate) made: Arc<Tensor>,
    pub(crate) row: usize,
}

/// What a position feeds.
#[derive(Clone)]
pub(crate) enum Input {
    Token(u32),
    /// At this place among the pending tokens.
    PendingToken(usize),
    Thought(ThoughtRef),
}

/// Positions of a pass with their inputs and dropout.
#[derive(Default)]
pub(crate) struct PassBuilder {
    pass: Pass,
    inputs: Vec<Input>,
    dropout: Vec<Option<RowPerturbation>>,
    outputs: usize,
}

impl PassBuilder {
    /// Adds the next position of a sequence. Returns the index of its hidden state among the
    /// outputs, if it is one.
    pub(crate) fn push(
        &mut self,
        cache: &mut Cache,
        sequence: &mut Sequence,
        input: Input,
        dropout: Option<RowPerturbation>,
        output: bool,
    ) -> Option<usize> {
        self.pass.push(cache, sequence, output);
        self.inputs.push(input);
        self.dropout.push(dropout);
        self.outputs += usize::from(output);
        output.then(|| self.outputs - 1)
    }

    /// Runs the pass; `None` where it has no positions. Returns the outputs: (outputs, width).
    /// `pending` are the input vectors of the pending tokens.
    pub(crate) fn forward(
        self,
        model: &LatentModel,
        cache: &mut Cache,
        pending: Option<&Tensor>,
    ) -> Result<Option<Tensor>, DeviceError> {
        if self.inputs.is_empty() {
            return Ok(None);
        }
        let x = self.input_vectors(model, pending)?;
        let is_perturbed = self.dropout.iter().any(Option::is_some);
        let dropout = is_perturbed.then_some(Dropout::Sampled(&self.dropout));
        model.decoder.forward(cache, &self.pass, x, dropout).map(Some)
    }

    /// (positions, width)
    fn input_vectors(
        &self,
        model: &LatentModel,
        pending: Option<&Tensor>,
    ) -> Result<Tensor, DeviceError> {
        let token = |input: &Input| match input {
            Input::Token(token) => Some(*token),
            Input::PendingToken(_) | Input::Thought(_) => None,
        };
        let tokens: Vec<u32> = self.inputs.iter().filter_map(token).collect();
        let embedded = if tokens.is_empty() { None } else { Some(model.embed(&tokens)?) };
        if let (Some(x), true) = (&embedded, tokens.len() == self.inputs.len()) {
            return Ok(x.clone());
        }
        let mut thoughts = ThoughtParts::after(tokens.len() + pending.map_or(0, Tensor::rows));
        let mut next_token = 0..;
        let place = |input: &Input| match input {
            Input::Token(_) => next_token.next().unwrap_or_default(),
            Input::PendingToken(place) => tokens.len() + place,
            Input::Thought(thought) => thoughts.place(thought),
        };
        let places: Vec<usize> = self.inputs.iter().map(place).collect();
        let parts = embedded.iter().chain(pending).chain(thoughts.parts());
        ops::select(model.decoder.device(), parts, &places)
    }
}

/// The distinct tensors of some thoughts, and the places of the thoughts in their concatenation.
#[derive(Default)]
pub(crate) struct ThoughtParts {
    parts: Vec<(Arc<Tensor>, usize)>,
    rows: usize,
}

impl ThoughtParts {
    /// Places are counted from `rows` on.
    pub(crate) fn after(rows: usize) -> Self {
        Self { parts: Vec::new(), rows }
    }

    pub(crate) fn place(&mut self, thought: &ThoughtRef) -> usize {
        let known = self.parts.iter().rev().find(|(part, _)| Arc::ptr_eq(part, &thought.made));
        let first = known.map(|(_, first)| *first).unwrap_or_else(|| {
            let first = self.rows;
            self.parts.push((Arc::clone(&thought.made), first));
            self.rows += thought.made.rows();
            first
        });
        first + thought.row
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &Tensor> {
        self.parts.iter().map(|(part, _)| &**part)
    }
}
