//! A segment's forward pass, layer by layer, with the data for its backward: all activations, or
//! only the layers' inputs and the recomputation of the rest.

use std::borrow::Cow;

use tensor::ops::{
    self, AttentionMetadata, Indices, KvLayer, KvLayerMut, KvStore, LinearResidualNorm,
    Normalization, OutputDtype, QkvProjection, QkvRows, RowPerturbation, SiteSet, SlotMapping,
};
use tensor::rng::Site;
use tensor::{Device, DeviceError, Tensor};

use super::super::chunk::{ChunkRows, OutputRows, slot_mapping};
use super::super::chunk_dropout::ChunkDropout;
use super::super::{Block, Decoder, Dropout, mlp_activation};
use super::{BlockParameters, TrainableDecoder};
use crate::cache::{Cache, Pass};
use crate::config::Config;
use crate::parameters::{AdapterInput, LinearParameters};

/// A pass with the activations and metadata that its backward needs.
#[derive(Debug)]
pub struct Segment {
    pub(super) rows: usize,
    pub(super) slot_mapping: SlotMapping,
    pub(super) attention: AttentionMetadata<'static>,
    pub(super) dropout: ChunkDropout,
    pub(super) adapter_dropout: ChunkDropout,
    pub(super) output: Option<OutputRows<'static>>,
    pub(super) output_adapter_dropout: Option<ChunkDropout>,
    pub(super) layers: Vec<SavedLayer>,
    pub(super) residual: Tensor, // (output rows, width): the input of the final norm
    pub(super) input_gradients: Option<BlockInputGradients>,
}

/// Gradients of a loss on the hidden states between blocks, at some rows of a segment.
#[derive(Debug)]
pub(super) struct BlockInputGradients {
    pub(super) rows: Indices,
    pub(super) gradients: Vec<Tensor>, // (rows, width) per block
}

/// The data that a layer stores for its backward.
#[derive(Debug)]
pub(super) enum SavedLayer {
    /// All activations that its backward reads.
    Activations(Box<LayerActivations>),
    /// Its input (rows, width); the rest is recomputed. Never the last layer, whose other
    /// activations contain the output rows only and whose backward comes first.
    Input(Tensor),
}

impl SavedLayer {
    /// (rows, width): the residual stream at the layer's input.
    fn x(&self) -> &Tensor {
        match self {
            Self::Activations(saved) => &saved.x,
            Self::Input(x) => x,
        }
    }
}

/// The activations that a layer's backward reads. In the last layer `qkv` and everything after it
/// have the output rows only; `raw_qkv` has all rows, because other rows attend to their keys.
#[derive(Debug, Default)]
pub(super) struct LayerActivations {
    pub(super) x: Tensor, // (rows, width): the residual stream at the layer's input
    pub(super) normed: Tensor, // (rows, width)
    pub(super) raw_qkv: Tensor, // (rows, (heads + 2 kv_heads) * head_dim) before QK norms, if any
    pub(super) qkv: Tensor, // (rows, (heads + 2 kv_heads) * head_dim), queries after RoPE
    pub(super) attended: Tensor, // (rows, heads * head_dim)
    pub(super) mid_residual: Tensor, // (rows, width): the residual stream after attention
    pub(super) mlp_normed: Tensor, // (rows, width)
    pub(super) pre_activation: Tensor, // (rows, ffn); SwiGLU: (rows, 2 ffn)
    pub(super) inner: Tensor, // (rows, ffn)
}

impl Segment {
    pub(super) fn new(
        trainable: &TrainableDecoder,
        pass: &Pass,
        dropout: Option<Dropout<'_>>,
    ) -> Result<Self, DeviceError> {
        let decoder = &trainable.decoder;
        let device = &decoder.device;
        let width = decoder.config.width;
        let rows = pass.rows();
        let chunk = ChunkRows::new(pass, 0..rows);
        let adapter_rows = adapter_rows(dropout, trainable.adapter_dropout);
        let adapter_dropout = adapter_rows.as_deref().map(Dropout::Sampled);
        let adapter_dropout = ChunkDropout::cut(device, adapter_dropout, width, 0..rows)?;
        let dropout = ChunkDropout::cut(device, dropout, width, 0..rows)?;
        let mut output = None;
        let mut output_adapter_dropout = None;
        if chunk.drops_rows() {
            let spans = Cow::Owned(chunk.output_spans().clone());
            output = Some(OutputRows::new(device, &chunk, spans, &dropout, width)?);
            output_adapter_dropout =
                Some(adapter_dropout.select(device, &chunk.output_rows, width)?);
        }
        Ok(Self {
            rows,
            slot_mapping: slot_mapping(device, pass, 0..rows)?,
            attention: AttentionMetadata::new(device, Cow::Owned(pass.attention.clone()))?,
            dropout,
            adapter_dropout,
            output,
            output_adapter_dropout,
            layers: Vec::with_capacity(decoder.blocks.len()),
            residual: Tensor::default(),
            input_gradients: None,
        })
    }

    /// The hidden states of some rows at the input of every block, (rows, width) each:
    /// `hidden_states` in transformers, without the last.
    pub fn block_inputs(
        &self,
        device: &Device,
        rows: &[usize],
    ) -> Result<Vec<Tensor>, DeviceError> {
        self.layers.iter().map(|layer| ops::select(device, [layer.x()], rows)).collect()
    }

    /// Makes the backward add the gradients of a loss on [`Self::block_inputs`].
    pub fn set_input_gradients(
        &mut self,
        device: &Device,
        rows: &[usize],
        gradients: Vec<Tensor>,
    ) -> Result<(), DeviceError> {
        assert_eq!(gradients.len(), self.layers.len(), "one gradient per block");
        let rows = Indices::new(device, rows.iter().map(|&row| row as u32).collect())?;
        self.input_gradients = Some(BlockInputGradients { rows, gradients });
        Ok(())
    }

    pub(super) fn forward(
        &mut self,
        trainable: &TrainableDecoder,
        cache: &mut Cache,
        mut x: Tensor,
    ) -> Result<Tensor, DeviceError> {
        let decoder = &trainable.decoder;
        let device = &decoder.device;
        let mut normed = Tensor::default();
        x = decoder.embed_norm(x, &self.slot_mapping, &mut normed)?;
        for (layer, block) in decoder.blocks.iter().enumerate() {
            let next = decoder.blocks.get(layer + 1);
            let mut saved =
                LayerActivations { x: x.clone(), normed, ..LayerActivations::default() };
            let mut of = LayerForward {
                decoder,
                block,
                params: &trainable.blocks[layer],
                layer,
                dropout: &self.dropout,
                adapter_dropout: &self.adapter_dropout,
            };
            of.project_qkv(&mut saved, cache.kv.layer_mut(layer), &self.slot_mapping)?;
            let mut attention = &self.attention;
            if let (None, Some(output)) = (next, &self.output) {
                x = ops::gather(device, &x, &output.rows)?;
                saved.qkv = ops::gather(device, &saved.qkv, &output.rows)?;
                (attention, of.dropout) = (&output.attention, &output.dropout);
                of.adapter_dropout =
                    self.output_adapter_dropout.as_ref().unwrap_or(&self.adapter_dropout);
            }
            of.attend(&mut saved, &mut x, cache.kv.layer(layer), attention)?;
            normed = Tensor::default();
            let (norm, dtype) = match next {
                Some(next) => (&next.attn_norm, OutputDtype::Compute),
                None => (&decoder.final_norm, OutputDtype::F32),
            };
            of.mlp_out(&saved, &mut x, norm, dtype, &mut normed)?;
            self.layers.push(match next {
                Some(_) if trainable.recompute => SavedLayer::Input(saved.x),
                _ => SavedLayer::Activations(Box::new(saved)),
            });
        }
        self.residual = x;
        Ok(normed)
    }
}

/// Recomputes the activations of a pass's layers from their inputs, by the kernels of the forward
/// pass. The pass's keys and values are in the cache already.
pub(super) struct Recomputation<'a> {
    pub(super) cache: &'a Cache,
    pub(super) slot_mapping: &'a SlotMapping,
    pub(super) attention: &'a AttentionMetadata<'static>,
    pub(super) dropout: &'a ChunkDropout,
    pub(super) adapter_dropout: &'a ChunkDropout,
    /// A one-layer KV store with the cache's slots, for recomputed keys and values, which nothing
    /// reads.
    pub(super) scratch: Option<KvStore>,
}

impl Recomputation<'_> {
    /// The activations of a layer: stored or recomputed.
    pub(super) fn activations(
        &mut self,
        decoder: &Decoder,
        params: &BlockParameters,
        layer: usize,
        saved: SavedLayer,
    ) -> Result<LayerActivations, DeviceError> {
        let mut x = match saved {
            SavedLayer::Activations(saved) => return Ok(*saved),
            SavedLayer::Input(x) => x,
        };
        let block = &decoder.blocks[layer];
        let device = &decoder.device;
        let dropout = self.dropout;
        let adapter_dropout = self.adapter_dropout;
        let of = LayerForward { decoder, block, params, layer, dropout, adapter_dropout };
        let mut saved = LayerActivations { x: x.clone(), ..LayerActivations::default() };
        ops::norm(device, &x, &block.attn_norm, OutputDtype::Compute, &mut saved.normed)?;
        let scratch = match &mut self.scratch {
            Some(scratch) => scratch,
            none => {
                let Config { kv_heads, head_dim, .. } = decoder.config;
                let slots = self.cache.slots();
                none.insert(KvStore::new(device, 1, kv_heads, head_dim, slots)?)
            }
        };
        of.project_qkv(&mut saved, scratch.layer_mut(0), self.slot_mapping)?;
        of.attend(&mut saved, &mut x, self.cache.kv.layer(layer), self.attention)?;
        Ok(saved)
    }
}

/// The rows of a pass with the dropout of adapters' inputs, which uses the keys of the pass's
/// dropout.
fn adapter_rows(dropout: Option<Dropout<'_>>, p: f32) -> Option<Vec<Option<RowPerturbation>>> {
    let Some(Dropout::Sampled(rows)) = dropout.filter(|_| p > 0.0) else { return None };
    let of = |row: RowPerturbation| RowPerturbation { strength: p, sites: SiteSet::LORA, ..row };
    Some(rows.iter().map(|row| row.map(of)).collect())
}

/// The forward of one layer.
struct LayerForward<'a> {
    decoder: &'a Decoder,
    block: &'a Block,
    params: &'a BlockParameters,
    layer: usize,
    dropout: &'a ChunkDropout,
    adapter_dropout: &'a ChunkDropout,
}

impl<'a> LayerForward<'a> {
    fn input<'x>(&self, x: &'x Tensor, site: Site) -> AdapterInput<'x>
    where
        'a: 'x,
    {
        AdapterInput { x, mask: self.adapter_dropout.mask(self.layer, site) }
    }

    /// The QKV projection. Its result before QK norms, if any, is stored for their backward.
    fn project_qkv(
        &self,
        saved: &mut LayerActivations,
        kv: KvLayerMut<'_>,
        slots: &SlotMapping,
    ) -> Result<(), DeviceError> {
        let device = &self.decoder.device;
        let transform = self.decoder.qkv_params(self.block);
        let normed = &saved.normed;
        let map = &self.block.qkv;
        let qkv = &mut saved.qkv;
        if transform.qk_norms.is_none() && !self.params.qkv.has_adapter_pass() {
            let projection = QkvProjection { map, transform };
            let rows = QkvRows { x: normed, slot_mapping: slots, qkv };
            return ops::project_qkv(device, vec![rows], projection, kv);
        }
        let input = self.input(normed, Site::LoraQkv);
        self.params.qkv.forward(device, map, input, OutputDtype::Compute, qkv)?;
        if transform.qk_norms.is_some() {
            saved.raw_qkv = qkv.clone();
        }
        ops::rope_and_cache(device, qkv, transform, kv, slots)
    }

    /// Attention and the rest of the layer up to the output projection of the MLP. `x` is the
    /// residual stream at the layer's input, and on return that after attention.
    fn attend(
        &self,
        saved: &mut LayerActivations,
        x: &mut Tensor,
        kv: KvLayer<'_>,
        attention: &AttentionMetadata<'_>,
    ) -> Result<(), DeviceError> {
        let device = &self.decoder.device;
        let heads = self.decoder.config.heads;
        ops::attention(device, &saved.qkv, kv, heads, attention, &mut saved.attended)?;
        self.attn_out(saved, x)?;
        saved.mid_residual = x.clone();
        self.mlp(saved)
    }

    /// The output projection of attention and the norm after it.
    fn attn_out(&self, saved: &mut LayerActivations, x: &mut Tensor) -> Result<(), DeviceError> {
        let of = LinearResidualNorm {
            x: &saved.attended,
            map: &self.block.attn_out,
            mask: self.dropout.mask(self.layer, Site::AttnOut),
            norm: &self.block.mlp_norm,
            dtype: OutputDtype::Compute,
        };
        self.residual_norm(&self.params.attn_out, Site::LoraAttnOut, of, x, &mut saved.mlp_normed)
    }

    /// The MLP up to its output projection.
    fn mlp(&self, saved: &mut LayerActivations) -> Result<(), DeviceError> {
        let device = &self.decoder.device;
        let dtype = OutputDtype::Compute;
        let input = self.input(&saved.mlp_normed, Site::LoraMlpIn);
        let params = &self.params.mlp_in;
        let map = &self.block.mlp_in;
        params.forward(device, map, input, dtype, &mut saved.pre_activation)?;
        match mlp_activation(self.decoder.config.mlp) {
            Some(activation) => {
                ops::activate(device, &saved.pre_activation, activation, dtype, &mut saved.inner)
            }
            None => ops::swiglu(device, &saved.pre_activation, &mut saved.inner),
        }
    }

    /// The MLP's output projection and the norm after it.
    fn mlp_out(
        &self,
        saved: &LayerActivations,
        x: &mut Tensor,
        norm: &Normalization,
        dtype: OutputDtype,
        normed: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let of = LinearResidualNorm {
            x: &saved.inner,
            map: &self.block.mlp_out,
            mask: self.dropout.mask(self.layer, Site::MlpOut),
            norm,
            dtype,
        };
        self.residual_norm(&self.params.mlp_out, Site::LoraMlpOut, of, x, normed)
    }

    /// [`ops::linear_residual_norm`], including an unmerged adapter.
    fn residual_norm(
        &self,
        params: &LinearParameters,
        site: Site,
        of: LinearResidualNorm<'_>,
        stream: &mut Tensor,
        out: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let device = &self.decoder.device;
        if !params.has_adapter_pass() {
            return ops::linear_residual_norm(device, of, stream, out);
        }
        let LinearResidualNorm { x, map, mask, norm, dtype } = of;
        let mut result = Tensor::default();
        let mut dropped = Tensor::default();
        params.forward(device, map, self.input(x, site), OutputDtype::F32, &mut result)?;
        ops::dropout(device, &result, mask, OutputDtype::F32, &mut dropped)?;
        ops::add(device, stream, &dropped)?;
        ops::norm(device, stream, norm, dtype, out)
    }
}
