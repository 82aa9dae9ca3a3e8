//! The decoder's forward and backward over segments.
//!
//! A segment is a pass whose activations are kept. Its backward takes the gradients of what the
//! pass returned, adds to the gradients of the keys and values of every position that it saw, and
//! returns the gradient of its input vectors. A plain training sequence is one segment; a latent
//! one is prompt, thought after thought, tail, taken backward in reverse order.

use std::borrow::Cow;

use tensor::ops::{
    self, Activation, AttentionBackward, AttentionMetadata, Indices, KvGrads, LinearResidualNorm,
    OutputDtype, QkvProjection, SlotMapping,
};
use tensor::rng::Site;
use tensor::{Device, DeviceError, Tensor};

use super::{Block, ChunkDropout, ChunkRows, Decoder, Dropout, LmHead, OutputRows};
use crate::cache::{Cache, Pass};
use crate::config::{Config, Mlp};
use crate::error::ModelError;
use crate::parameters::{LinearParameters, NormParameters, Parameter};
use crate::source::TensorSource;
use crate::weights::DecoderTensors;

/// A decoder that learns: what computes, and the weights behind it.
#[derive(Debug)]
pub struct TrainableDecoder {
    /// What computes.
    pub decoder: Decoder,
    /// (vocab, width)
    embedding: LinearParameters,
    /// (vocab, width), unless it is the table.
    lm_head: Option<LinearParameters>,
    /// (context, width)
    position_embedding: Option<Parameter>,
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
    fn load(
        device: &Device,
        parts: DecoderTensors<'_>,
        source: &impl TensorSource,
        i: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            attn_norm: NormParameters::load(device, &parts.attn_norm(i), source)?,
            qkv: LinearParameters::load(device, &parts.qkv(i), source)?,
            attn_out: LinearParameters::load(device, &parts.attn_out(i), source)?,
            mlp_norm: NormParameters::load(device, &parts.mlp_norm(i), source)?,
            mlp_in: LinearParameters::load(device, &parts.mlp_in(i), source)?,
            mlp_out: LinearParameters::load(device, &parts.mlp_out(i), source)?,
        })
    }

    fn sync_block(&self, device: &Device, block: &mut Block) -> Result<(), DeviceError> {
        self.attn_norm.sync_norm(device, &mut block.attn_norm)?;
        self.qkv.sync_linear(device, &mut block.qkv)?;
        self.attn_out.sync_linear(device, &mut block.attn_out)?;
        self.mlp_norm.sync_norm(device, &mut block.mlp_norm)?;
        self.mlp_in.sync_linear(device, &mut block.mlp_in)?;
        self.mlp_out.sync_linear(device, &mut block.mlp_out)
    }

    fn iter(&self) -> impl Iterator<Item = &Parameter> {
        let linears = [&self.qkv, &self.attn_out, &self.mlp_in, &self.mlp_out]
            .into_iter()
            .flat_map(LinearParameters::iter);
        [&self.attn_norm, &self.mlp_norm].into_iter().flat_map(NormParameters::iter).chain(linears)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let linears = [&mut self.qkv, &mut self.attn_out, &mut self.mlp_in, &mut self.mlp_out];
        let norms = [&mut self.attn_norm, &mut self.mlp_norm]
            .into_iter()
            .flat_map(NormParameters::iter_mut);
        norms.chain(linears.into_iter().flat_map(LinearParameters::iter_mut))
    }
}

/// A pass with everything that its backward needs.
#[derive(Debug)]
pub struct Segment {
    rows: usize,
    slot_mapping: SlotMapping,
    attention: AttentionMetadata<'static>,
    dropout: ChunkDropout,
    output: Option<OutputRows<'static>>,
    layers: Vec<LayerActivations>,
    residual: Tensor, // (wanted, width), before the final norm
}

/// What a layer's backward needs. In the last layer everything from the queries on is of the wanted
/// rows alone.
#[derive(Debug, Default)]
struct LayerActivations {
    x: Tensor,      // (rows, width): the stream that comes in
    normed: Tensor, // (rows, width)
    qkv: Tensor,    /* (rows, (heads + 2 kv_heads) * head_dim), queries as attention
                     * took them */
    attended: Tensor,       // (rows, heads * head_dim)
    mid_residual: Tensor,   // (rows, width): the stream after attention
    mlp_normed: Tensor,     // (rows, width)
    pre_activation: Tensor, // (rows, ffn) before the activation, or (rows, 2 ffn) of a SwiGLU
    inner: Tensor,          // (rows, ffn)
}

impl TrainableDecoder {
    /// Takes a decoder's weights from `source`, to be changed.
    pub fn load(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
        head: LmHead,
    ) -> Result<Self, ModelError> {
        if config.qk_norm {
            return Err(ModelError::NotTrainable { what: "norms of queries and keys (Qwen3)" });
        }
        let parts = DecoderTensors(config);
        let untied = head == LmHead::With && !config.tied && DecoderTensors::has_lm_head(source);
        let positions = parts.position_embedding(source)?;
        let mut trainable = Self {
            decoder: Decoder::load(device, config, source, head)?,
            embedding: LinearParameters::load(device, &parts.embedding(), source)?,
            lm_head: if untied {
                Some(LinearParameters::load(device, &parts.lm_head(), source)?)
            } else {
                None
            },
            position_embedding: positions
                .map(|(name, table)| Parameter::matrix(device, name, table))
                .transpose()?,
            blocks: (0..config.layers)
                .map(|i| BlockParameters::load(device, parts, source, i))
                .collect::<Result<_, _>>()?,
            final_norm: NormParameters::load(device, &parts.final_norm(), source)?,
        };
        trainable.sync_weights()?;
        Ok(trainable)
    }

    /// All parameters, always in the same order.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let first = self
            .embedding
            .iter()
            .chain(self.lm_head.iter().flat_map(LinearParameters::iter))
            .chain(&self.position_embedding);
        first
            .chain(self.blocks.iter().flat_map(BlockParameters::iter))
            .chain(self.final_norm.iter())
    }

    /// All parameters, to be changed. [`Self::refresh`] makes the change known to what computes.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let heads = self.lm_head.iter_mut().flat_map(LinearParameters::iter_mut);
        let first = self.embedding.iter_mut().chain(heads).chain(&mut self.position_embedding);
        first
            .chain(self.blocks.iter_mut().flat_map(BlockParameters::iter_mut))
            .chain(self.final_norm.iter_mut())
    }

    /// Writes the parameters to where the kernels read them.
    pub fn sync_weights(&mut self) -> Result<(), DeviceError> {
        let device = &self.decoder.device.clone();
        let decoder = &mut self.decoder;
        // A tied table is loaded as the head, or as the table where there is no head.
        match (&mut decoder.embedding, &mut decoder.lm_head, &self.lm_head) {
            (Some(table), head, own) => {
                self.embedding.sync_linear(device, table)?;
                if let (Some(head), Some(own)) = (head, own) {
                    own.sync_linear(device, head)?;
                }
            }
            (None, Some(head), _) => self.embedding.sync_linear(device, head)?,
            (None, None, _) => {}
        }
        if let (Some(table), Some(parameter)) =
            (&mut decoder.position_embedding, &self.position_embedding)
        {
            *table = parameter.value.clone(); // shares the memory; the next step writes to memory of its own
        }
        for (block, parameters) in decoder.blocks.iter_mut().zip(&self.blocks) {
            parameters.sync_block(device, block)?;
        }
        self.final_norm.sync_norm(device, &mut decoder.final_norm)
    }

    /// [`Decoder::forward`], keeping what the backward needs. Returns the hidden states of the rows
    /// that the pass wants.
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

    /// From the gradients of the hidden states that the segment returned, (wanted, width): adds to
    /// the gradients of all parameters and of the keys and values that it saw, and returns the
    /// gradient of its input vectors, (rows, width).
    pub fn backward(
        &mut self,
        cache: &Cache,
        dkv: &mut KvGrads,
        segment: Segment,
        dhidden: &Tensor,
    ) -> Result<Tensor, DeviceError> {
        let device = self.decoder.device.clone();
        let Segment {
            rows,
            slot_mapping: seats,
            attention: views,
            dropout,
            output: mut narrow,
            layers,
            residual: stream,
        } = segment;
        let mut dx = Tensor::zeros_on(&device, stream.rows(), stream.cols())?;
        self.final_norm.accumulate_gradients(
            &device,
            (&stream, &self.decoder.final_norm, dhidden),
            &mut dx,
        )?;
        for (layer, kept) in layers.into_iter().enumerate().rev() {
            let wanted = narrow.take(); // of the last layer alone
            let seen = wanted.as_ref().map_or((&views, &dropout), |n| (&n.attention, &n.dropout));
            let mut step = LayerBackward {
                decoder: &self.decoder,
                device: &device,
                params: &mut self.blocks[layer],
                layer,
                saved: &kept,
            };
            step.mlp(seen.1, &mut dx)?;
            let mut dqkv = step.attention((cache, dkv), seen, &mut dx)?;
            if let Some(wanted) = &wanted {
                dqkv = scatter_rows(&device, &dqkv, &wanted.rows, rows)?;
                dx = scatter_rows(&device, &dx, &wanted.rows, rows)?;
            }
            step.qkv(dkv, &mut dqkv, &seats, &mut dx)?;
        }
        if let Some(positions) = &mut self.position_embedding {
            ops::scatter_add(&device, &dx, &seats.positions, &mut positions.gradient)?;
        }
        Ok(dx)
    }

    /// Adds to the gradients of some tokens' embeddings.
    pub fn accumulate_embedding_gradients(
        &mut self,
        tokens: Vec<u32>,
        dx: &Tensor,
    ) -> Result<(), DeviceError> {
        let device = self.decoder.device();
        ops::scatter_add(
            device,
            dx,
            &Indices::new(device, tokens)?,
            &mut self.embedding.weight.gradient,
        )
    }

    /// Cross entropy of tokens after hidden states (rows, width), each row weighted: the rows'
    /// losses (rows, 1), unweighted, and the gradient of the hidden states. Adds to the head's
    /// gradients.
    pub fn cross_entropy(
        &mut self,
        hidden: &Tensor,
        tokens: Vec<u32>,
        weights: &[f32],
    ) -> Result<(Tensor, Tensor), DeviceError> {
        let device = self.decoder.device().clone();
        let (mut logits, mut dlogits, mut dhidden) = Default::default();
        ops::logits(&device, hidden, self.decoder.lm_head(), &mut logits)?;
        let losses = ops::cross_entropy(
            &device,
            &logits,
            &Indices::new(&device, tokens)?,
            weights,
            &mut dlogits,
        )?;
        self.lm_head
            .as_mut()
            .unwrap_or(&mut self.embedding)
            .accumulate_gradients(&device, hidden, &dlogits)?;
        ops::linear_dx(&device, &dlogits, self.decoder.lm_head(), OutputDtype::F32, &mut dhidden)?;
        Ok((losses, dhidden))
    }
}

/// Rows among zeros: x (wanted, columns) to (rows, columns).
fn scatter_rows(
    device: &Device,
    x: &Tensor,
    wanted: &Indices,
    rows: usize,
) -> Result<Tensor, DeviceError> {
    let mut out = Tensor::zeros_on(device, rows, x.cols())?;
    ops::scatter_add(device, x, wanted, &mut out)?;
    Ok(out)
}

impl Segment {
    fn new(
        decoder: &Decoder,
        pass: &Pass,
        dropout: Option<Dropout<'_>>,
    ) -> Result<Self, DeviceError> {
        let (device, width, rows) = (&decoder.device, decoder.config.width, pass.rows());
        let seen = ChunkRows::new(pass, 0..rows);
        let dropout = ChunkDropout::cut(device, dropout, width, 0..rows)?;
        let narrow = if seen.drops_rows() {
            let views = AttentionMetadata::new(device, Cow::Owned(seen.output_spans().clone()))?;
            let rows = Indices::new(device, seen.output_rows.iter().map(|&r| r as u32).collect())?;
            Some(OutputRows {
                rows,
                attention: views,
                dropout: dropout.select(device, &seen.output_rows, width)?,
            })
        } else {
            None
        };
        Ok(Self {
            rows,
            slot_mapping: SlotMapping {
                positions: Indices::new(device, pass.positions.clone())?,
                slots: Indices::new(device, pass.slots.clone())?,
            },
            attention: AttentionMetadata::new(device, Cow::Owned(pass.attention.clone()))?,
            dropout,
            output: narrow,
            layers: Vec::with_capacity(decoder.blocks.len()),
            residual: Tensor::default(),
        })
    }

    fn forward(
        &mut self,
        decoder: &Decoder,
        cache: &mut Cache,
        mut x: Tensor,
    ) -> Result<Tensor, DeviceError> {
        let (device, heads) = (&decoder.device, decoder.config.heads);
        let mut normed = Tensor::default();
        x = decoder.embed_norm(x, &self.slot_mapping, &mut normed)?;
        for (layer, block) in decoder.blocks.iter().enumerate() {
            let next = decoder.blocks.get(layer + 1);
            let mut kept = LayerActivations { x: x.clone(), normed, ..LayerActivations::default() };
            let qkv = QkvProjection { map: &block.qkv, transform: decoder.qkv_params(block) };
            let (kv, slots) = (cache.kv.layer_mut(layer), &self.slot_mapping);
            ops::project_qkv(device, &kept.normed, qkv, kv, slots, &mut kept.qkv)?;
            let (mut views, mut dropout) = (&self.attention, &self.dropout);
            if let (None, Some(narrow)) = (next, &self.output) {
                x = ops::gather(device, &x, &narrow.rows)?;
                kept.qkv = ops::gather(device, &kept.qkv, &narrow.rows)?;
                (views, dropout) = (&narrow.attention, &narrow.dropout);
            }
            ops::attention(
                device,
                &kept.qkv,
                cache.kv.layer(layer),
                heads,
                views,
                &mut kept.attended,
            )?;
            let of = LinearResidualNorm {
                x: &kept.attended,
                map: &block.attn_out,
                mask: dropout.mask(layer, Site::AttnOut),
                norm: &block.mlp_norm,
                dtype: OutputDtype::Compute,
            };
            ops::linear_residual_norm(device, of, &mut x, &mut kept.mlp_normed)?;
            kept.mid_residual = x.clone();
            kept.mlp(decoder, block)?;
            normed = Tensor::default();
            let (norm, dtype) = match next {
                Some(next) => (&next.attn_norm, OutputDtype::Compute),
                None => (&decoder.final_norm, OutputDtype::F32),
            };
            let of = LinearResidualNorm {
                x: &kept.inner,
                map: &block.mlp_out,
                mask: dropout.mask(layer, Site::MlpOut),
                norm,
                dtype,
            };
            ops::linear_residual_norm(device, of, &mut x, &mut normed)?;
            self.layers.push(kept);
        }
        self.residual = x;
        Ok(normed)
    }
}

impl LayerActivations {
    /// The MLP up to its last product.
    fn mlp(&mut self, decoder: &Decoder, block: &Block) -> Result<(), DeviceError> {
        let device = &decoder.device;
        ops::linear(
            device,
            &self.mlp_normed,
            &block.mlp_in,
            Activation::None,
            OutputDtype::Compute,
            &mut self.pre_activation,
        )?;
        match mlp_activation(decoder.config.mlp) {
            Some(activation) => ops::activate(
                device,
                &self.pre_activation,
                activation,
                OutputDtype::Compute,
                &mut self.inner,
            ),
            None => ops::swiglu(device, &self.pre_activation, &mut self.inner),
        }
    }
}

/// The activation of an MLP of two matrices; a SwiGLU has none of its own.
fn mlp_activation(mlp: Mlp) -> Option<Activation> {
    match mlp {
        Mlp::GeluTanh => Some(Activation::GeluTanh),
        Mlp::GeluErf => Some(Activation::GeluErf),
        Mlp::SwiGlu => None,
    }
}

/// One layer's way back.
struct LayerBackward<'a> {
    decoder: &'a Decoder,
    device: &'a Device,
    params: &'a mut BlockParameters,
    layer: usize,
    saved: &'a LayerActivations,
}

impl LayerBackward<'_> {
    fn block(&self) -> &Block {
        &self.decoder.blocks[self.layer]
    }

    /// Through the MLP and its norm: dx is the gradient of the stream behind it, then of the stream
    /// before it.
    fn mlp(&mut self, dropout: &ChunkDropout, dx: &mut Tensor) -> Result<(), DeviceError> {
        let (device, kept, block) = (self.device, self.saved, &self.decoder.blocks[self.layer]);
        let (mut dy, mut dinner, mut dbefore, mut dnormed) = Default::default();
        ops::dropout(
            device,
            dx,
            dropout.mask(self.layer, Site::MlpOut),
            OutputDtype::Compute,
            &mut dy,
        )?;
        self.params.mlp_out.accumulate_gradients(device, &kept.inner, &dy)?;
        ops::linear_dx(device, &dy, &block.mlp_out, OutputDtype::Compute, &mut dinner)?;
        match mlp_activation(self.decoder.config.mlp) {
            Some(a) => ops::activate_backward(
                device,
                &kept.pre_activation,
                a,
                &dinner,
                OutputDtype::Compute,
                &mut dbefore,
            )?,
            None => ops::swiglu_backward(
                device,
                &kept.pre_activation,
                &dinner,
                OutputDtype::Compute,
                &mut dbefore,
            )?,
        }
        self.params.mlp_in.accumulate_gradients(device, &kept.mlp_normed, &dbefore)?;
        ops::linear_dx(device, &dbefore, &block.mlp_in, OutputDtype::F32, &mut dnormed)?;
        self.params.mlp_norm.accumulate_gradients(
            device,
            (&kept.mid_residual, &block.mlp_norm, &dnormed),
            dx,
        )
    }

    /// Through attention, up to the queries; returns the gradient of queries, keys and values with
    /// the queries' part done.
    fn attention(
        &mut self,
        (cache, dkv): (&Cache, &mut KvGrads),
        (views, dropout): (&AttentionMetadata<'static>, &ChunkDropout),
        dx: &mut Tensor,
    ) -> Result<Tensor, DeviceError> {
        let (device, kept, block) = (self.device, self.saved, &self.decoder.blocks[self.layer]);
        let (mut dy, mut dmixed, mut dqkv) = Default::default();
        ops::dropout(
            device,
            dx,
            dropout.mask(self.layer, Site::AttnOut),
            OutputDtype::Compute,
            &mut dy,
        )?;
        self.params.attn_out.accumulate_gradients(device, &kept.attended, &dy)?;
        ops::linear_dx(device, &dy, &block.attn_out, OutputDtype::Compute, &mut dmixed)?;
        let of = AttentionBackward {
            q: &kept.qkv,
            kv: cache.kv.layer(self.layer),
            heads: self.decoder.config.heads,
            metadata: views,
            out: &kept.attended,
            dout: &dmixed,
        };
        ops::attention_backward(device, of, dkv, &mut dqkv)?;
        Ok(dqkv)
    }

    /// Through the queries', keys' and values' making and the first norm, for all rows of the
    /// segment.
    fn qkv(
        &mut self,
        dkv: &KvGrads,
        dqkv: &mut Tensor,
        seats: &SlotMapping,
        dx: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let (device, kept) = (self.device, self.saved);
        ops::rope_and_cache_backward(
            device,
            dqkv,
            self.decoder.qkv_params(self.block()),
            dkv,
            self.layer,
            seats,
        )?;
        self.params.qkv.accumulate_gradients(device, &kept.normed, dqkv)?;
        let mut dnormed = Tensor::default();
        ops::linear_dx(device, dqkv, &self.block().qkv, OutputDtype::F32, &mut dnormed)?;
        let norm = &self.decoder.blocks[self.layer].attn_norm;
        self.params.attn_norm.accumulate_gradients(device, (&kept.x, norm, &dnormed), dx)
    }
}
