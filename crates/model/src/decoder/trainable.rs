//! Training: the decoder's forward and backward over segments.
//!
//! A [`Segment`] is a pass with its saved activations. Its backward takes the gradient of the
//! returned hidden states, adds to the gradients of the keys and values that the segment attended
//! to, and returns the gradient of the input vectors. An ordinary training sequence is one segment;
//! a latent one consists of the prompt, each thought and the completion, and the backward runs over
//! them in reverse order. `segment` has the forward pass, `backward` that of a layer.
//!
//! With [`TrainableDecoder::set_recompute`] a segment stores only the inputs of its layers. Before
//! a layer's backward its other activations are recomputed by the kernels of the forward pass;
//! dropout masks are functions of their keys, so they are identical.

mod backward;
mod segment;

use std::sync::Arc;

use tensor::ops::{self, Indices, KvGrads, OutputDtype};
use tensor::{Device, DeviceError, Tensor};

use super::{Block, Decoder, Dropout, LmHead};
use crate::cache::{Cache, Pass};
use crate::config::Config;
use crate::error::ModelError;
use crate::parameters::{
    FrozenElements, LinearParameters, LoraConfig, NormParameters, Parameter, Tuning,
};
use crate::source::TensorSource;
use crate::weights::DecoderTensors;
use backward::LayerBackward;
use segment::{BlockInputGradients, Recomputation};

pub use segment::Segment;

/// A trainable decoder: the kernels' weights and the float32 master weights.
#[derive(Debug)]
pub struct TrainableDecoder {
    /// The decoder that runs the kernels; its weights are copies of the parameters. An engine may
    /// share it, but must be dropped before the weights change.
    pub decoder: Arc<Decoder>,
    embedding: LinearParameters,           // (vocab, width)
    lm_head: Option<LinearParameters>,     // (vocab, width); `None` if tied to the embedding
    position_embedding: Option<Parameter>, // (context, width)
    blocks: Vec<BlockParameters>,
    final_norm: NormParameters,
    adapter_dropout: f32, // probability; 0 without adapters
    recompute: bool,
}

/// The trained part of a decoder.
#[derive(Clone, Copy, Debug)]
pub enum DecoderTuning<'a> {
    /// Every weight.
    Full,
    /// LoRA adapters on frozen blocks.
    Lora {
        /// The adapters.
        config: &'a LoraConfig,
        /// Number of tokens at the end of the vocabulary whose embeddings are also trained; those
        /// of all others are frozen.
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

    /// Also copies frozen weights: kernels keep a second copy for the backward.
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

    /// Loads the weights from `source`; `tuning` selects the trained part.
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
            decoder: Arc::new(Decoder::load(device, config, source, head)?),
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
            recompute: false,
        };
        trainable.assign_weights()?;
        Ok(trainable)
    }

    /// Copies all weights to the decoder, including frozen ones.
    fn assign_weights(&mut self) -> Result<(), DeviceError> {
        let device = &self.decoder.device.clone();
        let decoder = exclusive(&mut self.decoder);
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

    /// Converts the gradients of frozen weights to those of the parameters trained instead. Must be
    /// called once a batch's backward is done; a no-op without LoRA.
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
        let values = table.data();
        let count = table.data().len().max(1) as f64;
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        let squares = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
        Ok((squares / count).sqrt() as f32)
    }

    /// The elements that no optimizer updates, without norms, which are about a thousandth of them.
    pub fn frozen(&self) -> FrozenElements {
        let linears = |block: &BlockParameters| {
            let BlockParameters { qkv, attn_out, mlp_in, mlp_out, .. } = block;
            [qkv, attn_out, mlp_in, mlp_out].map(LinearParameters::frozen)
        };
        let tables = std::iter::once(&self.embedding).chain(&self.lm_head);
        let all = tables.map(LinearParameters::frozen).chain(self.blocks.iter().flat_map(linears));
        all.fold(FrozenElements::default(), |sum, of| FrozenElements {
            weights: sum.weights + of.weights,
            gradients: sum.gradients + of.gradients,
        })
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
        let decoder = exclusive(&mut self.decoder);
        decoder.graphs.clear();
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

    /// Whether LoRA adapters have dropout on their inputs. Their masks use the keys of the pass's
    /// dropout, whatever its sites; a pass without dropout has none.
    pub fn has_adapter_dropout(&self) -> bool {
        self.adapter_dropout > 0.0
    }

    /// Whether further segments store only the inputs of their layers and recompute the other
    /// activations in the backward (gradient checkpointing): about a third more matrix products for
    /// a fraction of the memory. On a CPU the gradients have the same bits either way.
    pub fn set_recompute(&mut self, recompute: bool) {
        self.recompute = recompute;
    }

    /// See [`Self::set_recompute`].
    pub fn recomputes(&self) -> bool {
        self.recompute
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
        let mut recomputation = Recomputation {
            cache,
            slot_mapping: &slot_mapping,
            attention: &attention,
            dropout: &dropout,
            adapter_dropout: &adapter_dropout,
            scratch: None,
        };
        let mut dx = Tensor::zeros_on(&device, residual.rows(), residual.cols())?;
        let norm = &self.decoder.final_norm;
        self.final_norm.accumulate_gradients(&device, norm, &residual, dhidden, &mut dx)?;
        for (layer, saved) in layers.into_iter().enumerate().rev() {
            let params = &self.blocks[layer];
            let saved = recomputation.activations(&self.decoder, params, layer, saved)?;
            // Only the last layer, which is the first one here, has output rows.
            let output = output.take();
            let output_adapter = output_adapter_dropout.take();
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

/// Exclusive access to the decoder, to change its weights.
///
/// # Panics
/// If an engine still shares it.
fn exclusive(decoder: &mut Arc<Decoder>) -> &mut Decoder {
    match Arc::get_mut(decoder) {
        Some(decoder) => decoder,
        None => panic!("the weights of a decoder change while an engine shares them"),
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
