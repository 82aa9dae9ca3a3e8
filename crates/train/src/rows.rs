//! Rows of a decoder forward pass, shared by the train steps: the input of each position, and the
//! accumulation of gradients over selected rows.
//!
//! Sequences of different lengths are packed without padding; each row is one position of one
//! sequence.

use model::{Cache, Decoder, Dropout, Pass, Sequence, TrainableDecoder};
use tensor::ops::{self, Indices, RowPerturbation};
use tensor::{Device, DeviceError, Tensor};

/// The input of a row.
#[derive(Clone, Copy)]
pub(crate) enum RowInput {
    /// The embedding of a token.
    Token(u32),
    /// A thought: the next of the input vectors of the pass.
    Vector,
}

/// The inputs of a forward pass, row by row.
#[derive(Default)]
pub(crate) struct PassRows {
    pub(crate) pass: Pass,
    /// Dropout per row, if any.
    dropout: Vec<Option<RowPerturbation>>,
    /// Input tokens, in row order.
    pub(crate) tokens: Vec<u32>,
    /// Rows whose inputs are `tokens`, and rows whose inputs are vectors.
    pub(crate) token_rows: Vec<usize>,
    pub(crate) vector_rows: Vec<usize>,
}

impl PassRows {
    /// Adds the next position of `sequence`. Only rows with `is_output` have a hidden state.
    pub(crate) fn push(
        &mut self,
        cache: &mut Cache,
        sequence: &mut Sequence,
        input: RowInput,
        dropout: Option<RowPerturbation>,
        is_output: bool,
    ) {
        let row = self.dropout.len();
        match input {
            RowInput::Token(token) => {
                self.tokens.push(token);
                self.token_rows.push(row);
            }
            RowInput::Vector => self.vector_rows.push(row),
        }
        self.dropout.push(dropout);
        self.pass.push(cache, sequence, is_output);
    }

    /// Dropout of all rows.
    pub(crate) fn dropout(&self) -> Dropout<'_> {
        Dropout::Sampled(&self.dropout)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.dropout.is_empty()
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.dropout.len()
    }

    /// The input vectors (rows, width): embedded tokens, and `vectors` for the other rows.
    pub(crate) fn embed(
        &self,
        decoder: &Decoder,
        vectors: Option<Tensor>,
    ) -> Result<Tensor, DeviceError> {
        match vectors {
            None => decoder.embed(&self.tokens),
            Some(vectors) if self.tokens.is_empty() => Ok(vectors),
            Some(vectors) => {
                let tokens = decoder.embed(&self.tokens)?;
                ops::select(decoder.device(), [&tokens, &vectors], &self.input_order())
            }
        }
    }

    /// Accumulates the gradients of the token embeddings, given those of all input vectors; returns
    /// those of the vector rows.
    pub(crate) fn accumulate_embedding_gradients(
        self,
        model: &mut TrainableDecoder,
        dx: &Tensor,
    ) -> Result<Tensor, DeviceError> {
        let device = model.decoder.device().clone();
        if !self.tokens.is_empty() {
            let dtokens = ops::select(&device, [dx], &self.token_rows)?;
            model.accumulate_embedding_gradients(self.tokens, &dtokens)?;
        }
        ops::select(&device, [dx], &self.vector_rows)
    }

    /// Per row: the index of its input in the concatenation of embedded tokens and vectors.
    pub(crate) fn input_order(&self) -> Vec<usize> {
        let mut order = vec![0; self.dropout.len()];
        let rows = self.token_rows.iter().chain(&self.vector_rows);
        rows.enumerate().for_each(|(i, &row)| order[row] = i);
        order
    }
}

/// The previous batch's cache, cleared, if it has enough slots; otherwise a new cache with 1/8
/// spare slots.
pub(crate) fn reuse_cache(
    previous: Option<Cache>,
    decoder: &Decoder,
    slots: usize,
) -> Result<Cache, DeviceError> {
    match previous {
        Some(mut cache) if cache.slots() >= slots => {
            cache.clear();
            Ok(cache)
        }
        _ => Cache::new(decoder.device(), decoder.config(), slots + slots / 8),
    }
}

fn is_identity(rows: &[usize], count: usize) -> bool {
    rows.len() == count && rows.iter().enumerate().all(|(i, &row)| i == row)
}

/// `out[rows[i]] += x[i]`
pub(crate) fn scatter_add(
    device: &Device,
    x: &Tensor,
    rows: &[usize],
    out: &mut Tensor,
) -> Result<(), DeviceError> {
    if is_identity(rows, out.rows()) {
        return ops::add(device, out, x);
    }
    let rows = Indices::new(device, rows.iter().map(|&row| row as u32).collect())?;
    ops::scatter_add(device, x, &rows, out)
}

/// A matrix with the shape of `like`: the sum of the parts, each scattered to its rows.
pub(crate) fn assemble_rows(
    device: &Device,
    mut parts: Vec<(Tensor, Vec<usize>)>,
    like: &Tensor,
) -> Result<Tensor, DeviceError> {
    if let [(_, rows)] = &parts[..]
        && is_identity(rows, like.rows())
    {
        return Ok(parts.remove(0).0);
    }
    let mut out = Tensor::zeros_on(device, like.rows(), like.cols())?;
    for (part, rows) in &parts {
        scatter_add(device, part, rows, &mut out)?;
    }
    Ok(out)
}
