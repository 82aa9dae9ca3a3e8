//! Training: the decoder's forward and backward over segments.
//!
//! A [`Segment`] is a pass with its saved activations. Its backward takes the gradient of the
//! returned hidden states, adds to the gradients of the keys and values that the segment attended
//! to, and returns the gradient of the input vectors. An ordinary training sequence is one segment;
//! a latent one consists of the prompt, each thought and the completion, and the backward runs over
//! them in reverse order.

use std::borrow::Cow;

use tensor::ops::{
    self, Activation, AttentionBackward, AttentionMetadata, Indices, KvGrads, KvLayerMut,
    LinearResidualNorm, OutputDtype, QkvProjection, SlotMapping,
};
use tensor::rng::Site;
use tensor::{Device, DeviceError, Tensor};

use super::chunk::{ChunkRows, OutputRows, slot_mapping};
use super::{Block, ChunkDropout, Decoder, Dropout, LmHead, mlp_activation};
use crate::cache::{Cache, Pass};
use crate::config::Config;
use crate::error::ModelError;
use crate::parameters::{LinearParameters, LoraConfig, NormParameters, Parameter, Tuning};
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
    output: Option<OutputRows<'static>>,
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
        let (tuning, table_tuning) = match decoder_tuning {
            DecoderTuning::Full => (Tuning::Full, Tuning::Full),
            DecoderTuning::Lora { config, new_tokens } => {
                (Tuning::Lora(config), Tuning::LastRows(new_tokens))
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

    /// [`Decoder::forward`] that saves activations: the hidden states of the output rows, and the
    /// segment for [`Self::backward`].
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
        let Segment { layers, residual, input_gradients, .. } = segment;
        let mut dx = Tensor::zeros_on(&device, residual.rows(), residual.cols())?;
        let norm = &self.decoder.final_norm;
        self.final_norm.accumulate_gradients(&device, norm, &residual, dhidden, &mut dx)?;
        for (layer, saved) in layers.into_iter().enumerate().rev() {
            let output = output.take(); // only the last layer, the first here, has output rows
            let (attention, dropout) =
                output.as_ref().map_or((&attention, &dropout), |o| (&o.attention, &o.dropout));
            let mut step = LayerBackward {
                decoder: &self.decoder,
                device: &device,
                params: &mut self.blocks[layer],
                layer,
                saved: &saved,
            };
            step.mlp(dropout, &mut dx)?;
            let mut dqkv = step.attention(cache, dkv, attention, dropout, &mut dx)?;
            if let Some(output) = &output {
                dqkv = scatter_rows(&device, &dqkv, &output.rows, rows)?;
                dx = scatter_rows(&device, &dx, &output.rows, rows)?;
            }
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
        decoder: &Decoder,
        pass: &Pass,
        dropout: Option<Dropout<'_>>,
    ) -> Result<Self, DeviceError> {
        let (device, width, rows) = (&decoder.device, decoder.config.width, pass.rows());
        let chunk = ChunkRows::new(pass, 0..rows);
        let dropout = ChunkDropout::cut(device, dropout, width, 0..rows)?;
        let output = if chunk.drops_rows() {
            let spans = Cow::Owned(chunk.output_spans().clone());
            Some(OutputRows::new(device, &chunk, spans, &dropout, width)?)
        } else {
            None
        };
        Ok(Self {
            rows,
            slot_mapping: slot_mapping(device, pass, 0..rows)?,
            attention: AttentionMetadata::new(device, Cow::Owned(pass.attention.clone()))?,
            dropout,
            output,
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
        decoder: &Decoder,
        cache: &mut Cache,
        mut x: Tensor,
    ) -> Result<Tensor, DeviceError> {
        let (device, heads) = (&decoder.device, decoder.config.heads);
        let mut normed = Tensor::default();
        x = decoder.embed_norm(x, &self.slot_mapping, &mut normed)?;
        for (layer, block) in decoder.blocks.iter().enumerate() {
            let next = decoder.blocks.get(layer + 1);
            let mut saved =
                LayerActivations { x: x.clone(), normed, ..LayerActivations::default() };
            let kv = cache.kv.layer_mut(layer);
            saved.project_qkv(decoder, block, kv, &self.slot_mapping)?;
            let (mut attention, mut dropout) = (&self.attention, &self.dropout);
            if let (None, Some(output)) = (next, &self.output) {
                x = ops::gather(device, &x, &output.rows)?;
                saved.qkv = ops::gather(device, &saved.qkv, &output.rows)?;
                (attention, dropout) = (&output.attention, &output.dropout);
            }
            ops::attention(
                device,
                &saved.qkv,
                cache.kv.layer(layer),
                heads,
                attention,
                &mut saved.attended,
            )?;
            let of = LinearResidualNorm {
                x: &saved.attended,
                map: &block.attn_out,
                mask: dropout.mask(layer, Site::AttnOut),
                norm: &block.mlp_norm,
                dtype: OutputDtype::Compute,
            };
            ops::linear_residual_norm(device, of, &mut x, &mut saved.mlp_normed)?;
            saved.mid_residual = x.clone();
            saved.mlp(decoder, block)?;
            normed = Tensor::default();
            let (norm, dtype) = match next {
                Some(next) => (&next.attn_norm, OutputDtype::Compute),
                None => (&decoder.final_norm, OutputDtype::F32),
            };
            let of = LinearResidualNorm {
                x: &saved.inner,
                map: &block.mlp_out,
                mask: dropout.mask(layer, Site::MlpOut),
                norm,
                dtype,
            };
            ops::linear_residual_norm(device, of, &mut x, &mut normed)?;
            self.layers.push(saved);
        }
        self.residual = x;
        Ok(normed)
    }
}

impl LayerActivations {
    /// The QKV projection. QK norms are not fused with it: their backward needs its result.
    fn project_qkv(
        &mut self,
        decoder: &Decoder,
        block: &Block,
        kv: KvLayerMut<'_>,
        slots: &SlotMapping,
    ) -> Result<(), DeviceError> {
        let (device, transform) = (&decoder.device, decoder.qkv_params(block));
        let (normed, map, qkv) = (&self.normed, &block.qkv, &mut self.qkv);
        if transform.qk_norms.is_none() {
            let projection = QkvProjection { map, transform };
            return ops::project_qkv(device, normed, projection, kv, slots, qkv);
        }
        ops::linear(device, normed, map, Activation::None, OutputDtype::Compute, qkv)?;
        self.raw_qkv = qkv.clone();
        ops::rope_and_cache(device, qkv, transform, kv, slots)
    }

    /// The MLP up to its output projection.
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

/// The backward of one layer.
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
        self.params.mlp_out.accumulate_gradients(device, &saved.inner, &dy)?;
        ops::linear_dx(device, &dy, &block.mlp_out, OutputDtype::Compute, &mut dinner)?;
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
        self.params.mlp_in.accumulate_gradients(device, &saved.mlp_normed, &dpre)?;
        ops::linear_dx(device, &dpre, &block.mlp_in, OutputDtype::F32, &mut dnormed)?;
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
        self.params.attn_out.accumulate_gradients(device, &saved.attended, &dy)?;
        ops::linear_dx(device, &dy, &block.attn_out, OutputDtype::Compute, &mut dattended)?;
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
        self.params.qkv.accumulate_gradients(device, &saved.normed, dqkv)?;
        let mut dnormed = Tensor::default();
        ops::linear_dx(device, dqkv, &self.block().qkv, OutputDtype::F32, &mut dnormed)?;
        let norm = &self.decoder.blocks[self.layer].attn_norm;
        self.params.attn_norm.accumulate_gradients(device, norm, &saved.x, &dnormed, dx)
    }
}
