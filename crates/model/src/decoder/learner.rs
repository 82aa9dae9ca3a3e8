//! The decoder's forward and backward over segments.
//!
//! A segment is a pass whose activations are kept. Its backward takes the gradients of what the pass returned, adds to the
//! gradients of the keys and values of every position that it saw, and returns the gradient of its input vectors. A plain
//! training sequence is one segment; a latent one is prompt, thought after thought, tail, taken backward in reverse order.

use std::borrow::Cow;

use tensor::ops::{self, Activation, AttentionBackward, Format, Indices, KvGrads, Seats, Views};
use tensor::rng::Site;
use tensor::{Device, DeviceError, Tensor};

use super::{Block, Decoder, Dropout, LmHead, Narrow, PartDropout, Seen};
use crate::cache::{Cache, Pass};
use crate::config::{Config, Mlp};
use crate::error::Error;
use crate::parameters::{LinearParameters, NormParameters, Parameter};
use crate::source::TensorSource;
use crate::weights::Parts;

/// A decoder that learns: what computes, and the weights behind it.
#[derive(Debug)]
pub struct Learner {
    /// What computes.
    pub decoder: Decoder,
    /// (vocab, width)
    table: LinearParameters,
    /// (vocab, width), unless it is the table.
    head: Option<LinearParameters>,
    /// (context, width)
    positions: Option<Parameter>,
    blocks: Vec<BlockParameters>,
    final_norm: NormParameters,
}

#[derive(Debug)]
struct BlockParameters {
    attn_norm: NormParameters,
    qkv: LinearParameters,
    attn_out: LinearParameters,
    mlp_norm: NormParameters,
    mlp_in: LinearParameters,
    mlp_out: LinearParameters,
}

impl BlockParameters {
    fn read(device: &Device, parts: Parts<'_>, source: &impl TensorSource, i: usize) -> Result<Self, Error> {
        Ok(Self {
            attn_norm: NormParameters::read(device, &parts.attn_norm(i), source)?,
            qkv: LinearParameters::read(device, &parts.qkv(i), source)?,
            attn_out: LinearParameters::read(device, &parts.attn_out(i), source)?,
            mlp_norm: NormParameters::read(device, &parts.mlp_norm(i), source)?,
            mlp_in: LinearParameters::read(device, &parts.mlp_in(i), source)?,
            mlp_out: LinearParameters::read(device, &parts.mlp_out(i), source)?,
        })
    }

    fn write(&self, device: &Device, block: &mut Block) -> Result<(), DeviceError> {
        self.attn_norm.write(device, &mut block.attn_norm)?;
        self.qkv.write(device, &mut block.qkv)?;
        self.attn_out.write(device, &mut block.attn_out)?;
        self.mlp_norm.write(device, &mut block.mlp_norm)?;
        self.mlp_in.write(device, &mut block.mlp_in)?;
        self.mlp_out.write(device, &mut block.mlp_out)
    }

    fn all(&self) -> impl Iterator<Item = &Parameter> {
        let linears = [&self.qkv, &self.attn_out, &self.mlp_in, &self.mlp_out].into_iter().flat_map(LinearParameters::all);
        [&self.attn_norm, &self.mlp_norm].into_iter().flat_map(NormParameters::all).chain(linears)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let linears = [&mut self.qkv, &mut self.attn_out, &mut self.mlp_in, &mut self.mlp_out];
        let norms = [&mut self.attn_norm, &mut self.mlp_norm].into_iter().flat_map(NormParameters::all_mut);
        norms.chain(linears.into_iter().flat_map(LinearParameters::all_mut))
    }
}

/// A pass with everything that its backward needs.
#[derive(Debug)]
pub struct Segment {
    rows: usize,
    seats: Seats,
    views: Views<'static>,
    dropout: PartDropout,
    narrow: Option<Narrow<'static>>,
    layers: Vec<Kept>,
    stream: Tensor, // (wanted, width), before the final norm
}

/// What a layer's backward needs. In the last layer everything from the queries on is of the wanted rows alone.
#[derive(Debug, Default)]
struct Kept {
    x: Tensor,          // (rows, width): the stream that comes in
    normed: Tensor,     // (rows, width)
    qkv: Tensor,        // (rows, (heads + 2 kv_heads) * head_dim), queries as attention took them
    mixed: Tensor,      // (rows, heads * head_dim)
    middle: Tensor,     // (rows, width): the stream after attention
    mlp_normed: Tensor, // (rows, width)
    before: Tensor,     // (rows, ffn) before the activation, or (rows, 2 ffn) of a SwiGLU
    inner: Tensor,      // (rows, ffn)
}

impl Learner {
    /// Takes a decoder's weights from `source`, to be changed.
    pub fn load(device: &Device, config: &Config, source: &impl TensorSource, head: LmHead) -> Result<Self, Error> {
        if config.qk_norm {
            return Err(Error::CannotLearn { what: "norms of queries and keys (Qwen3)" });
        }
        let parts = Parts(config);
        let untied = head == LmHead::With && !config.tied && Parts::has_head(source);
        let positions = parts.positions(source)?;
        let mut learner = Self {
            decoder: Decoder::load(device, config, source, head)?,
            table: LinearParameters::read(device, &parts.embedding(), source)?,
            head: if untied { Some(LinearParameters::read(device, &parts.head(), source)?) } else { None },
            positions: positions.map(|(name, table)| Parameter::table(device, name, table)).transpose()?,
            blocks: (0..config.layers).map(|i| BlockParameters::read(device, parts, source, i)).collect::<Result<_, _>>()?,
            final_norm: NormParameters::read(device, &parts.final_norm(), source)?,
        };
        learner.refresh()?;
        Ok(learner)
    }

    /// All parameters, always in the same order.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let first = self.table.all().chain(self.head.iter().flat_map(LinearParameters::all)).chain(&self.positions);
        first.chain(self.blocks.iter().flat_map(BlockParameters::all)).chain(self.final_norm.all())
    }

    /// All parameters, to be changed. [`Self::refresh`] makes the change known to what computes.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let heads = self.head.iter_mut().flat_map(LinearParameters::all_mut);
        let first = self.table.all_mut().chain(heads).chain(&mut self.positions);
        first.chain(self.blocks.iter_mut().flat_map(BlockParameters::all_mut)).chain(self.final_norm.all_mut())
    }

    /// Writes the parameters to where the kernels read them.
    pub fn refresh(&mut self) -> Result<(), DeviceError> {
        let device = &self.decoder.device.clone();
        let decoder = &mut self.decoder;
        // A tied table is loaded as the head, or as the table where there is no head.
        match (&mut decoder.table, &mut decoder.head, &self.head) {
            (Some(table), head, own) => {
                self.table.write(device, table)?;
                if let (Some(head), Some(own)) = (head, own) {
                    own.write(device, head)?;
                }
            }
            (None, Some(head), _) => self.table.write(device, head)?,
            (None, None, _) => {}
        }
        if let (Some(table), Some(parameter)) = (&mut decoder.positions, &self.positions) {
            *table = parameter.value.clone(); // shares the memory; the next step writes to memory of its own
        }
        for (block, parameters) in decoder.blocks.iter_mut().zip(&self.blocks) {
            parameters.write(device, block)?;
        }
        self.final_norm.write(device, &mut decoder.final_norm)
    }

    /// [`Decoder::forward`], keeping what the backward needs. Returns the hidden states of the rows that the pass wants.
    pub fn forward(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        x: Tensor,
        dropout: Option<Dropout<'_>>,
    ) -> Result<(Tensor, Segment), DeviceError> {
        let decoder = &self.decoder;
        let mut segment = Segment::new(decoder, pass, dropout)?;
        let hidden = segment.forward(decoder, cache, x)?;
        Ok((hidden, segment))
    }

    /// From the gradients of the hidden states that the segment returned, (wanted, width): adds to the gradients of all
    /// parameters and of the keys and values that it saw, and returns the gradient of its input vectors, (rows, width).
    pub fn backward(
        &mut self,
        cache: &Cache,
        dkv: &mut KvGrads,
        segment: Segment,
        dhidden: &Tensor,
    ) -> Result<Tensor, DeviceError> {
        let device = self.decoder.device.clone();
        let Segment { rows, seats, views, dropout, mut narrow, layers, stream } = segment;
        let mut dx = Tensor::zeros_on(&device, stream.rows(), stream.cols())?;
        self.final_norm.learn(&device, (&stream, &self.decoder.final_norm, dhidden), &mut dx)?;
        for (layer, kept) in layers.into_iter().enumerate().rev() {
            let wanted = narrow.take(); // of the last layer alone
            let seen = wanted.as_ref().map_or((&views, &dropout), |n| (&n.views, &n.dropout));
            let mut step = Step { decoder: &self.decoder, device: &device, own: &mut self.blocks[layer], layer, kept: &kept };
            step.mlp(seen.1, &mut dx)?;
            let mut dqkv = step.attention((cache, dkv), seen, &mut dx)?;
            if let Some(wanted) = &wanted {
                dqkv = widened(&device, &dqkv, &wanted.rows, rows)?;
                dx = widened(&device, &dx, &wanted.rows, rows)?;
            }
            step.placed(dkv, &mut dqkv, &seats, &mut dx)?;
        }
        if let Some(positions) = &mut self.positions {
            ops::scatter_add(&device, &dx, &seats.positions, &mut positions.gradient)?;
        }
        Ok(dx)
    }

    /// Adds to the gradients of some tokens' embeddings.
    pub fn embedded(&mut self, tokens: Vec<u32>, dx: &Tensor) -> Result<(), DeviceError> {
        let device = self.decoder.device();
        ops::scatter_add(device, dx, &Indices::new(device, tokens)?, &mut self.table.weight.gradient)
    }

    /// Cross entropy of tokens after hidden states (rows, width), each row weighted: the rows' losses (rows, 1), unweighted,
    /// and the gradient of the hidden states. Adds to the head's gradients.
    pub fn cross_entropy(&mut self, hidden: &Tensor, tokens: Vec<u32>, weights: &[f32]) -> Result<(Tensor, Tensor), DeviceError> {
        let device = self.decoder.device().clone();
        let (mut logits, mut dlogits, mut dhidden) = Default::default();
        ops::logits(&device, hidden, self.decoder.head(), &mut logits)?;
        let losses = ops::cross_entropy(&device, &logits, &Indices::new(&device, tokens)?, weights, &mut dlogits)?;
        self.head.as_mut().unwrap_or(&mut self.table).learn(&device, hidden, &dlogits)?;
        ops::linear_dx(&device, &dlogits, self.decoder.head(), Format::Single, &mut dhidden)?;
        Ok((losses, dhidden))
    }
}

/// Rows among zeros: x (wanted, columns) to (rows, columns).
fn widened(device: &Device, x: &Tensor, wanted: &Indices, rows: usize) -> Result<Tensor, DeviceError> {
    let mut out = Tensor::zeros_on(device, rows, x.cols())?;
    ops::scatter_add(device, x, wanted, &mut out)?;
    Ok(out)
}

impl Segment {
    fn new(decoder: &Decoder, pass: &Pass, dropout: Option<Dropout<'_>>) -> Result<Self, DeviceError> {
        let (device, width, rows) = (&decoder.device, decoder.config.width, pass.rows());
        let seen = Seen::cut(pass, 0..rows);
        let dropout = PartDropout::cut(device, dropout, width, 0..rows)?;
        let narrow = if seen.is_narrowed() {
            let views = Views::new(device, Cow::Owned(seen.narrow().clone()))?;
            let rows = Indices::new(device, seen.wanted.iter().map(|&r| r as u32).collect())?;
            Some(Narrow { rows, views, dropout: dropout.select(device, &seen.wanted, width)? })
        } else {
            None
        };
        Ok(Self {
            rows,
            seats: Seats {
                positions: Indices::new(device, pass.positions.clone())?,
                slots: Indices::new(device, pass.slots.clone())?,
            },
            views: Views::new(device, Cow::Owned(pass.attend.clone()))?,
            dropout,
            narrow,
            layers: Vec::with_capacity(decoder.blocks.len()),
            stream: Tensor::default(),
        })
    }

    fn forward(&mut self, decoder: &Decoder, cache: &mut Cache, mut x: Tensor) -> Result<Tensor, DeviceError> {
        let (device, heads) = (&decoder.device, decoder.config.heads);
        let mut normed = Tensor::default();
        x = decoder.enter(x, &self.seats, &mut normed)?;
        for (layer, block) in decoder.blocks.iter().enumerate() {
            let next = decoder.blocks.get(layer + 1);
            let mut kept = Kept { x: x.clone(), normed, ..Kept::default() };
            let (by, into) = ((&block.qkv, decoder.placing(block)), (&mut cache.kv, layer));
            ops::project(device, &kept.normed, by, into, &self.seats, &mut kept.qkv)?;
            let (mut views, mut dropout) = (&self.views, &self.dropout);
            if let (None, Some(narrow)) = (next, &self.narrow) {
                x = ops::gather(device, &x, &narrow.rows)?;
                kept.qkv = ops::gather(device, &kept.qkv, &narrow.rows)?;
                (views, dropout) = (&narrow.views, &narrow.dropout);
            }
            ops::attention(device, &kept.qkv, cache.kv.layer(layer), heads, views, &mut kept.mixed)?;
            let mask = dropout.mask(layer, Site::AttnOut);
            let into = (&block.mlp_norm, Format::Operand, &mut kept.mlp_normed);
            ops::residual(device, &kept.mixed, &block.attn_out, mask, &mut x, into)?;
            kept.middle = x.clone();
            kept.mlp(decoder, block)?;
            let mask = dropout.mask(layer, Site::MlpOut);
            normed = Tensor::default();
            let into = match next {
                Some(next) => (&next.attn_norm, Format::Operand, &mut normed),
                None => (&decoder.final_norm, Format::Single, &mut normed),
            };
            ops::residual(device, &kept.inner, &block.mlp_out, mask, &mut x, into)?;
            self.layers.push(kept);
        }
        self.stream = x;
        Ok(normed)
    }
}

impl Kept {
    /// The MLP up to its last product.
    fn mlp(&mut self, decoder: &Decoder, block: &Block) -> Result<(), DeviceError> {
        let device = &decoder.device;
        ops::linear(device, &self.mlp_normed, &block.mlp_in, (Activation::None, Format::Operand), &mut self.before)?;
        match activation(decoder.config.mlp) {
            Some(activation) => ops::activate(device, &self.before, activation, Format::Operand, &mut self.inner),
            None => ops::swiglu(device, &self.before, &mut self.inner),
        }
    }
}

/// The activation of an MLP of two matrices; a SwiGLU has none of its own.
fn activation(mlp: Mlp) -> Option<Activation> {
    match mlp {
        Mlp::Gelu => Some(Activation::GeluTanh),
        Mlp::GeluErf => Some(Activation::GeluErf),
        Mlp::SwiGlu => None,
    }
}

/// One layer's way back.
struct Step<'a> {
    decoder: &'a Decoder,
    device: &'a Device,
    own: &'a mut BlockParameters,
    layer: usize,
    kept: &'a Kept,
}

impl Step<'_> {
    fn block(&self) -> &Block {
        &self.decoder.blocks[self.layer]
    }

    /// Through the MLP and its norm: dx is the gradient of the stream behind it, then of the stream before it.
    fn mlp(&mut self, dropout: &PartDropout, dx: &mut Tensor) -> Result<(), DeviceError> {
        let (device, kept, block) = (self.device, self.kept, &self.decoder.blocks[self.layer]);
        let (mut dy, mut dinner, mut dbefore, mut dnormed) = Default::default();
        ops::dropout(device, dx, dropout.mask(self.layer, Site::MlpOut), Format::Operand, &mut dy)?;
        self.own.mlp_out.learn(device, &kept.inner, &dy)?;
        ops::linear_dx(device, &dy, &block.mlp_out, Format::Operand, &mut dinner)?;
        match activation(self.decoder.config.mlp) {
            Some(a) => ops::activate_backward(device, &kept.before, a, &dinner, Format::Operand, &mut dbefore)?,
            None => ops::swiglu_backward(device, &kept.before, &dinner, Format::Operand, &mut dbefore)?,
        }
        self.own.mlp_in.learn(device, &kept.mlp_normed, &dbefore)?;
        ops::linear_dx(device, &dbefore, &block.mlp_in, Format::Single, &mut dnormed)?;
        self.own.mlp_norm.learn(device, (&kept.middle, &block.mlp_norm, &dnormed), dx)
    }

    /// Through attention, up to the queries; returns the gradient of queries, keys and values with the queries' part done.
    fn attention(
        &mut self,
        (cache, dkv): (&Cache, &mut KvGrads),
        (views, dropout): (&Views<'static>, &PartDropout),
        dx: &mut Tensor,
    ) -> Result<Tensor, DeviceError> {
        let (device, kept, block) = (self.device, self.kept, &self.decoder.blocks[self.layer]);
        let (mut dy, mut dmixed, mut dqkv) = Default::default();
        ops::dropout(device, dx, dropout.mask(self.layer, Site::AttnOut), Format::Operand, &mut dy)?;
        self.own.attn_out.learn(device, &kept.mixed, &dy)?;
        ops::linear_dx(device, &dy, &block.attn_out, Format::Operand, &mut dmixed)?;
        let of = AttentionBackward {
            q: &kept.qkv,
            kv: cache.kv.layer(self.layer),
            heads: self.decoder.config.heads,
            views,
            out: &kept.mixed,
            dout: &dmixed,
        };
        ops::attention_backward(device, of, dkv, &mut dqkv)?;
        Ok(dqkv)
    }

    /// Through the queries', keys' and values' making and the first norm, for all rows of the segment.
    fn placed(&mut self, dkv: &KvGrads, dqkv: &mut Tensor, seats: &Seats, dx: &mut Tensor) -> Result<(), DeviceError> {
        let (device, kept) = (self.device, self.kept);
        ops::place_backward(device, dqkv, self.decoder.placing(self.block()), dkv, self.layer, seats)?;
        self.own.qkv.learn(device, &kept.normed, dqkv)?;
        let mut dnormed = Tensor::default();
        ops::linear_dx(device, dqkv, &self.block().qkv, Format::Single, &mut dnormed)?;
        let norm = &self.decoder.blocks[self.layer].attn_norm;
        self.own.attn_norm.learn(device, (&kept.x, norm, &dnormed), dx)
    }
}
