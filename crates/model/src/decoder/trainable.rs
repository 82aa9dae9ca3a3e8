//! Training: the decoder's forward and backward over segments.
//!
//! A [`Segment`] is a pass with its saved activations. Its backward takes the gradient of the
//! returned hidden states, adds to the gradients of the keys and values that the segment attended
//! to, and returns the gradient of the input vectors. An ordinary training sequence is one segment;
//! a latent one consists of the prompt, each thought and the completion, and the backward runs over
//! them in reverse order.

use std::borrow::Cow;

use tensor::ops::{
    self, AttentionBackward, AttentionMetadata, Indices, KvGrads, KvLayerMut, LinearResidualNorm,
    Normalization, OutputDtype, QkvProjection, RowPerturbation, SiteSet, SlotMapping,
};
use tensor::rng::Site;
use tensor::{Device, DeviceError, Tensor};

use super::chunk::{ChunkRows, OutputRows, slot_mapping};
use super::{Block, ChunkDropout, Decoder, Dropout, LmHead, mlp_activation};
use crate::cache::{Cache, Pass};
use crate::config::Config;
use crate::error::ModelError;
use crate::parameters::{
    AdapterInput, LinearBackward, LinearParameters, LoraConfig, NormParameters, Parameter, Tuning,
};
use crate::source::TensorSource;
use crate::weights::DecoderTensors;

/// A trainable decoder: the kernels' weights and the float32 master weights.
#[derive(Debug)]
pub struct TrainableDecoder {
    /// The decoder that runs the kernels; its weights are copies of the parameters.
    pub decoder: Decoder,
    embedding: LinearParameters,           // (vocab, width)
    lm_head: Option<LinearParameters>,     // (vocab, width); `None` if tied to the embedding
    position_embedding: Option<Parameter>, // (context, width)
    blocks: Vec<BlockParameters>,
    final_norm: NormParameters,
    adapter_dropout: f32, // probability; 0 without adapters
}

/// What of a decoder is trained.
#[derive(Clone, Copy, Debug)]
pub enum DecoderTuning<'a> {
    /// Every weight.
    Full,
    /// LoRA adapters on frozen blocks.
    Lora {
        /// The adapters.
        config: &'a LoraConfig,
        /// Tokens at the end of the vocabulary whose embeddings are trained too; those of all
        /// others are frozen.
        new_tokens: usize,
    },
}

#[derive(Debug)]
struct BlockParameters {
    attn_norm: NormParameters,
    qkv: LinearParameters,
    qk_norm: Option<[NormParameters; 2]>, // of queries and of keys
    attn_out: LinearParameters,
    mlp_norm: NormParameters,
    mlp_in: LinearParameters,
    mlp_out: LinearParameters,
}

impl BlockParameters {
    fn load(
        device: &Device,
        tensors: DecoderTensors<'_>,
        source: &impl TensorSource,
        tuning: Tuning<'_>,
        i: usize,
    ) -> Result<Self, ModelError> {
        let linear = |spec| LinearParameters::load(device, &spec, source, tuning);
        let norm = |spec| NormParameters::load(device, &spec, source, tuning);
        let qk_norm = match tensors.qk_norm(i) {
            Some([q, k]) => Some([norm(q)?, norm(k)?]),
            None => None,
        };
        Ok(Self {
            attn_norm: norm(tensors.attn_norm(i))?,
            qkv: linear(tensors.qkv(i))?,
            qk_norm,
            attn_out: linear(tensors.attn_out(i))?,
            mlp_norm: norm(tensors.mlp_norm(i))?,
            mlp_in: linear(tensors.mlp_in(i))?,
            mlp_out: linear(tensors.mlp_out(i))?,
        })
    }

    /// See [`TrainableDecoder::collect_gradients`].
    fn collect_gradients(&mut self, device: &Device) -> Result<(), DeviceError> {
        let norms = [&mut self.attn_norm, &mut self.mlp_norm].into_iter();
        norms
            .chain(self.qk_norm.iter_mut().flatten())
            .try_for_each(|norm| norm.collect_gradients(device))?;
        let linears = [&mut self.qkv, &mut self.attn_out, &mut self.mlp_in, &mut self.mlp_out];
        linears.into_iter().try_for_each(|linear| linear.collect_gradients(device))
    }

    /// Copies frozen weights too: kernels keep a second copy for the backward.
    fn assign_block(&self, device: &Device, block: &mut Block) -> Result<(), DeviceError> {
        self.qkv.assign(device, &mut block.qkv)?;
        self.attn_out.assign(device, &mut block.attn_out)?;
        self.mlp_in.assign(device, &mut block.mlp_in)?;
        self.mlp_out.assign(device, &mut block.mlp_out)
    }

    fn sync_block(&mut self, device: &Device, block: &mut Block) -> Result<(), DeviceError> {
        self.attn_norm.sync_norm(device, &mut block.attn_norm)?;
        self.qkv.sync_linear(device, &mut block.qkv)?;
        if let (Some([q, k]), Some((to_q, to_k))) = (&self.qk_norm, &mut block.qk_norm) {
            q.sync_norm(device, to_q)?;
            k.sync_norm(device, to_k)?;
        }
        self.attn_out.sync_linear(device, &mut block.attn_out)?;
        self.mlp_norm.sync_norm(device, &mut block.mlp_norm)?;
        self.mlp_in.sync_linear(device, &mut block.mlp_in)?;
        self.mlp_out.sync_linear(device, &mut block.mlp_out)
    }

    fn iter(&self) -> impl Iterator<Item = &Parameter> {
        let linears = [&self.qkv, &self.attn_out, &self.mlp_in, &self.mlp_out]
            .into_iter()
            .flat_map(LinearParameters::iter);
        let norms =
            [&self.attn_norm, &self.mlp_norm].into_iter().chain(self.qk_norm.iter().flatten());
        norms.flat_map(NormParameters::iter).chain(linears)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let linears = [&mut self.qkv, &mut self.attn_out, &mut self.mlp_in, &mut self.mlp_out];
        let norms = [&mut self.attn_norm, &mut self.mlp_norm]
            .into_iter()
            .chain(self.qk_norm.iter_mut().flatten())
            .flat_map(NormParameters::iter_mut);
        norms.chain(linears.into_iter().flat_map(LinearParameters::iter_mut))
    }
}

/// A pass with the activations and metadata that its backward needs.
#[derive(Debug)]
pub struct Segment {
    rows: usize,
    slot_mapping: SlotMapping,
    attention: AttentionMetadata<'static>,
    dropout: ChunkDropout,
    adapter_dropout: ChunkDropout,
    output: Option<OutputRows<'static>>,
    output_adapter_dropout: Option<ChunkDropout>,
    layers: Vec<LayerActivations>,
    residual: Tensor, // (output rows, width): the input of the final norm
    input_gradients: Option<BlockInputGradients>,
}

/// Gradients of a loss on the hidden states between blocks, at some rows of a segment.
#[derive(Debug)]
struct BlockInputGradients {
    rows: Indices,
    gradients: Vec<Tensor>, // (rows, width) per block
}

/// The saved activations of a layer. In the last layer `qkv` and everything after it have the
/// output rows only; `raw_qkv` has all rows, whose keys others attend to.
#[derive(Debug, Default)]
struct LayerActivations {
    x: Tensor,              // (rows, width): the residual stream at the layer's input
    normed: Tensor,         // (rows, width)
    raw_qkv: Tensor,        // (rows, (heads + 2 kv_heads) * head_dim) before QK norms, if any
    qkv: Tensor,            // (rows, (heads + 2 kv_heads) * head_dim), queries after RoPE
    attended: Tensor,       // (rows, heads * head_dim)
    mid_residual: Tensor,   // (rows, width): the residual stream after attention
    mlp_normed: Tensor,     // (rows, width)
    pre_activation: Tensor, // (rows, ffn); SwiGLU: (rows, 2 ffn)
    inner: Tensor,          // (rows, ffn)
}

impl TrainableDecoder {
    /// Loads the weights from `source`; all of them are trained.
    pub fn load(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
        head: LmHead,
    ) -> Result<Self, ModelError> {
        Self::load_tuned(device, config, source, head, DecoderTuning::Full)
    }

    /// Loads the weights from `source`; what is trained is up to `tuning`.
    pub fn load_tuned(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
        head: LmHead,
        decoder_tuning: DecoderTuning<'_>,
    ) -> Result<Self, ModelError> {
        let tensors = DecoderTensors(config);
        let untied = head == LmHead::With && !config.tied && DecoderTensors::has_lm_head(source);
        let positions = tensors.position_embedding(source)?;
        let (tuning, table_tuning, adapter_dropout) = match decoder_tuning {
            DecoderTuning::Full => (Tuning::Full, Tuning::Full, 0.0),
            DecoderTuning::Lora { config, new_tokens } => {
                (Tuning::Lora(config), Tuning::LastRows(new_tokens), config.dropout)
            }
        };
        let table = |spec| LinearParameters::load(device, &spec, source, table_tuning);
        let mut trainable = Self {
            decoder: Decoder::load(device, config, source, head)?,
            embedding: table(tensors.embedding())?,
            lm_head: untied.then(|| table(tensors.lm_head())).transpose()?,
            position_embedding: positions
                .filter(|_| matches!(tuning, Tuning::Full))
                .map(|(name, table)| Parameter::matrix(device, name, table))
                .transpose()?,
            blocks: (0..config.layers)
                .map(|i| BlockParameters::load(device, tensors, source, tuning, i))
                .collect::<Result<_, _>>()?,
            final_norm: NormParameters::load(device, &tensors.final_norm(), source, tuning)?,
            adapter_dropout,
        };
        trainable.assign_weights()?;
        Ok(trainable)
    }

    /// Copies all weights to the decoder, frozen ones too.
    fn assign_weights(&mut self) -> Result<(), DeviceError> {
        let (device, decoder) = (&self.decoder.device.clone(), &mut self.decoder);
        match (&mut decoder.embedding, &mut decoder.lm_head) {
            (None, Some(tied)) => self.embedding.assign(device, tied)?,
            (_, Some(lm_head)) => {
                self.lm_head.iter().try_for_each(|own| own.assign(device, lm_head))?;
            }
            _ => {}
        }
        for (block, parameters) in decoder.blocks.iter_mut().zip(&self.blocks) {
            parameters.assign_block(device, block)?;
        }
        self.sync_weights()
    }

    /// Turns the gradients of frozen weights into those of what is trained in their place. To be
    /// called once a batch's backward is done; without LoRA it does nothing.
    pub fn collect_gradients(&mut self) -> Result<(), DeviceError> {
        let device = &self.decoder.device.clone();
        self.embedding.collect_gradients(device)?;
        self.lm_head.iter_mut().try_for_each(|head| head.collect_gradients(device))?;
        self.final_norm.collect_gradients(device)?;
        self.blocks.iter_mut().try_for_each(|block| block.collect_gradients(device))
    }

    /// The standard deviation of all elements of the token embedding.
    pub fn embedding_std(&self) -> Result<f32, DeviceError> {
        let table = self.embedding.weight().clone().to_host()?;
        let (values, count) = (table.data(), table.data().len().max(1) as f64);
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        let squares = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
        Ok((squares / count).sqrt() as f32)
    }

    /// The trained parameters, in a fixed order.
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

    /// The trained parameters, mutably; call [`Self::sync_weights`] after a change.
    pub fn parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameter> {
        let heads = self.lm_head.iter_mut().flat_map(LinearParameters::iter_mut);
        let first = self.embedding.iter_mut().chain(heads).chain(&mut self.position_embedding);
        first
            .chain(self.blocks.iter_mut().flat_map(BlockParameters::iter_mut))
            .chain(self.final_norm.iter_mut())
    }

    /// Copies the parameters to the decoder's weights; needed after every change.
    pub fn sync_weights(&mut self) -> Result<(), DeviceError> {
        let device = &self.decoder.device.clone();
        let decoder = &mut self.decoder;
        // A tied embedding is loaded as the LM head, or as the embedding if there is no LM head.
        match (&mut decoder.embedding, &mut decoder.lm_head, &mut self.lm_head) {
            (Some(embedding), lm_head, untied) => {
                self.embedding.sync_linear(device, embedding)?;
                if let (Some(lm_head), Some(untied)) = (lm_head, untied) {
                    untied.sync_linear(device, lm_head)?;
                }
            }
            (None, Some(lm_head), _) => self.embedding.sync_linear(device, lm_head)?,
            (None, None, _) => {}
        }
        if let (Some(table), Some(parameter)) =
            (&mut decoder.position_embedding, &self.position_embedding)
        {
            *table = parameter.value.clone(); // copy-on-write: the next step writes to new memory
        }
        for (block, parameters) in decoder.blocks.iter_mut().zip(&mut self.blocks) {
            parameters.sync_block(device, block)?;
        }
        self.final_norm.sync_norm(device, &mut decoder.final_norm)
    }

    /// Whether LoRA adapters drop elements of their inputs. Their masks have the keys of the pass's
    /// dropout, whatever its sites; without dropout a pass has none.
    pub fn has_adapter_dropout(&self) -> bool {
        self.adapter_dropout > 0.0
    }

    /// [`Decoder::forward`] that saves activations: the hidden states of the output rows, and the
    /// segment for [`Self::backward`].
    pub fn forward(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        x: Tensor,
        dropout: Option<Dropout<'_>>,
    ) -> Result<(Tensor, Segment), DeviceError> {
        let mut segment = Segment::new(self, pass, dropout)?;
        let hidden = segment.forward(self, cache, x)?;
        Ok((hidden, segment))
    }

    /// The backward of a segment. Takes the gradient of its hidden states (output rows, width),
    /// adds to the gradients of all parameters and to `dkv`, those of the keys and values that it
    /// attended to, and returns the gradient of its input vectors (rows, width).
    pub fn backward(
        &mut self,
        cache: &Cache,
        dkv: &mut KvGrads,
        segment: Segment,
        dhidden: &Tensor,
    ) -> Result<Tensor, DeviceError> {
        let device = self.decoder.device.clone();
        let Segment { rows, slot_mapping, attention, dropout, mut output, .. } = segment;
        let Segment { adapter_dropout, mut output_adapter_dropout, .. } = segment;
        let Segment { layers, residual, input_gradients, .. } = segment;
        let mut dx = Tensor::zeros_on(&device, residual.rows(), residual.cols())?;
        let norm = &self.decoder.final_norm;
        self.final_norm.accumulate_gradients(&device, norm, &residual, dhidden, &mut dx)?;
        for (layer, saved) in layers.into_iter().enumerate().rev() {
            // Only the last layer, the first here, has output rows.
            let (output, output_adapter) = (output.take(), output_adapter_dropout.take());
            let (attention, dropout) =
                output.as_ref().map_or((&attention, &dropout), |o| (&o.attention, &o.dropout));
            let mut step = LayerBackward {
                decoder: &self.decoder,
                device: &device,
                params: &mut self.blocks[layer],
                layer,
                saved: &saved,
                adapter_dropout: output_adapter.as_ref().unwrap_or(&adapter_dropout),
            };
            step.mlp(dropout, &mut dx)?;
            let mut dqkv = step.attention(cache, dkv, attention, dropout, &mut dx)?;
            if let Some(output) = &output {
                dqkv = scatter_rows(&device, &dqkv, &output.rows, rows)?;
                dx = scatter_rows(&device, &dx, &output.rows, rows)?;
            }
            step.adapter_dropout = &adapter_dropout;
            step.qkv(dkv, &mut dqkv, &slot_mapping, &mut dx)?;
            if let Some(BlockInputGradients { rows, gradients }) = &input_gradients {
                ops::scatter_add(&device, &gradients[layer], rows, &mut dx)?;
            }
        }
        if let Some(table) = &mut self.position_embedding {
            ops::scatter_add(&device, &dx, &slot_mapping.positions, &mut table.gradient)?;
        }
        Ok(dx)
    }

    /// Adds the gradients dx (tokens, width) of token embeddings to the embedding's gradient.
    pub fn accumulate_embedding_gradients(
        &mut self,
        tokens: Vec<u32>,
        dx: &Tensor,
    ) -> Result<(), DeviceError> {
        let device = self.decoder.device();
        self.embedding.accumulate_rows(device, &Indices::new(device, tokens)?, dx)
    }

    /// Cross-entropy of the next tokens given hidden states (rows, width). Returns the unweighted
    /// losses (rows, 1) and the gradient of the hidden states; gradients are weighted by row. Adds
    /// to the LM head's gradients.
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

/// Scatters x (output rows, columns) into zeros (rows, columns).
fn scatter_rows(
    device: &Device,
    x: &Tensor,
    output_rows: &Indices,
    rows: usize,
) -> Result<Tensor, DeviceError> {
    let mut out = Tensor::zeros_on(device, rows, x.cols())?;
    ops::scatter_add(device, x, output_rows, &mut out)?;
    Ok(out)
}

impl Segment {
    fn new(
        trainable: &TrainableDecoder,
        pass: &Pass,
        dropout: Option<Dropout<'_>>,
    ) -> Result<Self, DeviceError> {
        let decoder = &trainable.decoder;
        let (device, width, rows) = (&decoder.device, decoder.config.width, pass.rows());
        let chunk = ChunkRows::new(pass, 0..rows);
        let adapter_rows = adapter_rows(dropout, trainable.adapter_dropout);
        let adapter_dropout = adapter_rows.as_deref().map(Dropout::Sampled);
        let adapter_dropout = ChunkDropout::cut(device, adapter_dropout, width, 0..rows)?;
        let dropout = ChunkDropout::cut(device, dropout, width, 0..rows)?;
        let (mut output, mut output_adapter_dropout) = (None, None);
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

    /// The hidden states of some rows at the input of every block, (rows, width) each: those that
    /// transformers calls `hidden_states`, without the last.
    pub fn block_inputs(
        &self,
        device: &Device,
        rows: &[usize],
    ) -> Result<Vec<Tensor>, DeviceError> {
        self.layers.iter().map(|layer| ops::select(device, [&layer.x], rows)).collect()
    }

    /// Has the backward add the gradients of a loss on [`Self::block_inputs`].
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

    fn forward(
        &mut self,
        trainable: &TrainableDecoder,
        cache: &mut Cache,
        mut x: Tensor,
    ) -> Result<Tensor, DeviceError> {
        let decoder = &trainable.decoder;
        let (device, heads) = (&decoder.device, decoder.config.heads);
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
            ops::attention(
                device,
                &saved.qkv,
                cache.kv.layer(layer),
                heads,
                attention,
                &mut saved.attended,
            )?;
            of.attn_out(&mut saved, &mut x)?;
            saved.mid_residual = x.clone();
            of.mlp(&mut saved)?;
            normed = Tensor::default();
            let (norm, dtype) = match next {
                Some(next) => (&next.attn_norm, OutputDtype::Compute),
                None => (&decoder.final_norm, OutputDtype::F32),
            };
            of.mlp_out(&saved, &mut x, norm, dtype, &mut normed)?;
            self.layers.push(saved);
        }
        self.residual = x;
        Ok(normed)
    }
}

/// The rows of a pass with the dropout of adapters' inputs: the keys of the pass's own dropout.
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

    /// The QKV projection, whose result before QK norms, if there are any, is kept for their
    /// backward.
    fn project_qkv(
        &self,
        saved: &mut LayerActivations,
        kv: KvLayerMut<'_>,
        slots: &SlotMapping,
    ) -> Result<(), DeviceError> {
        let (device, transform) = (&self.decoder.device, self.decoder.qkv_params(self.block));
        let (normed, map, qkv) = (&saved.normed, &self.block.qkv, &mut saved.qkv);
        if transform.qk_norms.is_none() && !self.params.qkv.has_adapter_pass() {
            let projection = QkvProjection { map, transform };
            return ops::project_qkv(device, normed, projection, kv, slots, qkv);
        }
        let input = self.input(normed, Site::LoraQkv);
        self.params.qkv.forward(device, map, input, OutputDtype::Compute, qkv)?;
        if transform.qk_norms.is_some() {
            saved.raw_qkv = qkv.clone();
        }
        ops::rope_and_cache(device, qkv, transform, kv, slots)
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
        let (device, dtype) = (&self.decoder.device, OutputDtype::Compute);
        let input = self.input(&saved.mlp_normed, Site::LoraMlpIn);
        let (params, map) = (&self.params.mlp_in, &self.block.mlp_in);
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

    /// [`ops::linear_residual_norm`], an unmerged adapter included.
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
        let (mut result, mut dropped) = (Tensor::default(), Tensor::default());
        params.forward(device, map, self.input(x, site), OutputDtype::F32, &mut result)?;
        ops::dropout(device, &result, mask, OutputDtype::F32, &mut dropped)?;
        ops::add(device, stream, &dropped)?;
        ops::norm(device, stream, norm, dtype, out)
    }
}

/// The backward of one layer.
struct LayerBackward<'a> {
    decoder: &'a Decoder,
    device: &'a Device,
    params: &'a mut BlockParameters,
    layer: usize,
    saved: &'a LayerActivations,
    adapter_dropout: &'a ChunkDropout,
}

impl<'a> LayerBackward<'a> {
    /// The backward of a layer that was fed `x`, from the gradient `dy` of its result.
    fn linear<'x>(
        &self,
        x: &'x Tensor,
        site: Site,
        dy: &'x Tensor,
        dtype: OutputDtype,
    ) -> LinearBackward<'x>
    where
        'a: 'x,
    {
        let input = AdapterInput { x, mask: self.adapter_dropout.mask(self.layer, site) };
        LinearBackward { input, dy, dtype }
    }

    /// The backward of the MLP and its norm. `dx` holds the gradient of the residual stream after
    /// the MLP, and on return that before it.
    fn mlp(&mut self, dropout: &ChunkDropout, dx: &mut Tensor) -> Result<(), DeviceError> {
        let (device, saved, block) = (self.device, self.saved, &self.decoder.blocks[self.layer]);
        let (mut dy, mut dinner, mut dpre, mut dnormed) = Default::default();
        ops::dropout(
            device,
            dx,
            dropout.mask(self.layer, Site::MlpOut),
            OutputDtype::Compute,
            &mut dy,
        )?;
        let compute = OutputDtype::Compute;
        let of = self.linear(&saved.inner, Site::LoraMlpOut, &dy, compute);
        self.params.mlp_out.backward(device, &block.mlp_out, of, &mut dinner)?;
        match mlp_activation(self.decoder.config.mlp) {
            Some(a) => ops::activate_backward(
                device,
                &saved.pre_activation,
                a,
                &dinner,
                OutputDtype::Compute,
                &mut dpre,
            )?,
            None => ops::swiglu_backward(
                device,
                &saved.pre_activation,
                &dinner,
                OutputDtype::Compute,
                &mut dpre,
            )?,
        }
        let of = self.linear(&saved.mlp_normed, Site::LoraMlpIn, &dpre, OutputDtype::F32);
        self.params.mlp_in.backward(device, &block.mlp_in, of, &mut dnormed)?;
        let mlp_norm = &mut self.params.mlp_norm;
        mlp_norm.accumulate_gradients(device, &block.mlp_norm, &saved.mid_residual, &dnormed, dx)
    }

    /// The backward of attention and its output projection. Adds to `dkv` and returns the gradient
    /// of the QKV projection, of which only the queries' columns are set.
    fn attention(
        &mut self,
        cache: &Cache,
        dkv: &mut KvGrads,
        metadata: &AttentionMetadata<'static>,
        dropout: &ChunkDropout,
        dx: &mut Tensor,
    ) -> Result<Tensor, DeviceError> {
        let (device, saved, block) = (self.device, self.saved, &self.decoder.blocks[self.layer]);
        let (mut dy, mut dattended, mut dqkv) = Default::default();
        ops::dropout(
            device,
            dx,
            dropout.mask(self.layer, Site::AttnOut),
            OutputDtype::Compute,
            &mut dy,
        )?;
        let of = self.linear(&saved.attended, Site::LoraAttnOut, &dy, OutputDtype::Compute);
        self.params.attn_out.backward(device, &block.attn_out, of, &mut dattended)?;
        let inputs = AttentionBackward {
            q: &saved.qkv,
            kv: cache.kv.layer(self.layer),
            heads: self.decoder.config.heads,
            metadata,
            out: &saved.attended,
            dout: &dattended,
        };
        ops::attention_backward(device, inputs, dkv, &mut dqkv)?;
        Ok(dqkv)
    }

    /// The backward of RoPE, QK norms, the QKV projection and the first norm, for all rows of the
    /// segment: gradients of keys and values come from `dkv`.
    fn qkv(
        &mut self,
        dkv: &KvGrads,
        dqkv: &mut Tensor,
        slot_mapping: &SlotMapping,
        dx: &mut Tensor,
    ) -> Result<(), DeviceError> {
        let (device, saved) = (self.device, self.saved);
        let transform = self.decoder.qkv_params(&self.decoder.blocks[self.layer]);
        ops::rope_and_cache_backward(device, dqkv, transform, dkv, self.layer, slot_mapping)?;
        if let Some([q, k]) = &mut self.params.qk_norm {
            let dscales = [&mut q.weight.gradient, &mut k.weight.gradient];
            ops::qk_norm_backward(device, &saved.raw_qkv, transform, dqkv, dscales)?;
        }
        let (mut dnormed, block) = (Tensor::default(), &self.decoder.blocks[self.layer]);
        let of = self.linear(&saved.normed, Site::LoraQkv, dqkv, OutputDtype::F32);
        self.params.qkv.backward(device, &block.qkv, of, &mut dnormed)?;
        let norm = &block.attn_norm;
        self.params.attn_norm.accumulate_gradients(device, norm, &saved.x, &dnormed, dx)
    }
}
