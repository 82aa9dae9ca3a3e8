//! The decoder: one transformer for GPT-2, Llama and Qwen, which differ in their [`Config`].
//!
//! [`Config`] is the configuration, [`Decoder`] the weights and [`Cache`] the state; only the state
//! is mutable. A forward pass computes any mix of new positions (whole prompts, single thoughts of
//! many sequences) on top of the cached ones. `chunk` prepares the inputs of a pass, `trainable`
//! has the forward and backward for training.

mod chunk;
mod chunk_dropout;
mod hidden_states;
mod trainable;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;
use tensor::ops::{
    self, Activation, GraphCache, GraphKey, KvLayer, LearnedPositions, Linear, LinearResidualNorm,
    Normalization, OutputDtype, QkvProjection, QkvTransform, Rope, RowPerturbation, SiteSet,
    SlotMapping,
};
use tensor::rng::Site;
use tensor::{Device, DeviceError, Tensor};

use crate::cache::{Cache, Pass};
use crate::config::{self, Config, Mlp, PositionEncoding};
use crate::error::ModelError;
use crate::source::TensorSource;
use crate::weights::DecoderTensors;
use chunk::{ChunkRows, PassChunk};

pub use trainable::{DecoderTuning, Segment, TrainableDecoder};

/// A decoder's weights, in the layout and dtype of the device's kernels.
#[derive(Debug)]
pub struct Decoder {
    device: Device,
    config: Config,
    graphs: GraphCache, // declared first, so that they are dropped before the weights that they use
    embedding: Option<Linear>, // width -> vocab; `None` if tied to `lm_head`
    lm_head: Option<Linear>, // width -> vocab
    position_embedding: Option<Tensor>, // (context, width); `None` with rotary positions
    rope: Option<Rope>,
    blocks: Vec<Block>,
    final_norm: Normalization,
    flops_per_position: f64,
    free_activations: Mutex<Vec<ChunkActivations>>, // memory of finished passes
}

#[derive(Debug)]
struct Block {
    attn_norm: Normalization,
    qkv: Linear, // width -> (heads + 2 kv_heads) * head_dim
    qk_norm: Option<(Normalization, Normalization)>,
    attn_out: Linear,
    mlp_norm: Normalization,
    mlp_in: Linear, // width -> ffn; SwiGLU: width -> 2 ffn, gate and up
    mlp_out: Linear,
}

/// Dropout during a pass.
#[derive(Clone, Copy, Debug)]
pub enum Dropout<'a> {
    /// Philox masks, each row of the pass with its own key, probability and sites; `None` leaves a
    /// row unchanged.
    Sampled(&'a [Option<RowPerturbation>]),
    /// Masks of another implementation, applied to all rows of the pass.
    Recorded {
        /// The dropout probability of the masks.
        p: f32,
        /// The sites at which the masks are applied.
        sites: SiteSet,
        /// For layer l, `[2 l]` is the attention site's mask, `[2 l + 1]` the MLP site's; each
        /// (rows, width), 1 keeps.
        masks: &'a [Vec<u8>],
    },
}

/// The sites at which any of some rows is perturbed.
fn sites_of(rows: &[Option<RowPerturbation>]) -> SiteSet {
    rows.iter().flatten().fold(SiteSet::EMPTY, |sites, row| sites.union(row.sites))
}

/// Options of a forward pass.
#[derive(Clone, Copy, Debug)]
pub struct ForwardOptions<'a> {
    /// Dropout of the rows of the pass.
    pub dropout: Option<Dropout<'a>>,
    /// The dtype of the returned hidden states; [`OutputDtype::Compute`] if only the LM head reads
    /// them.
    pub output: OutputDtype,
}

/// The inputs of [`Decoder::forward_deferred`].
#[derive(Clone, Copy, Debug)]
pub struct DeferredInputs<X, P> {
    /// Returns the input vectors (rows, width). Called once the pass is prepared.
    pub x: X,
    /// Called once the first block is launched; an error aborts the pass.
    pub proceed: P,
}

/// Whether a decoder is loaded with its LM head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LmHead {
    /// For models that generate tokens.
    With,
    /// For reward models.
    Without,
}

impl Decoder {
    /// Loads the weights from `source`.
    pub fn load(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
        head: LmHead,
    ) -> Result<Self, ModelError> {
        device.check_model(config.width, config.head_dim)?;
        let tensors = DecoderTensors(config);
        let tied = config.tied || !DecoderTensors::has_lm_head(source);
        let embedding = tensors.embedding().load(device, source)?;
        let (embedding, lm_head) = match head {
            LmHead::Without => (Some(embedding), None),
            LmHead::With if tied => (None, Some(embedding)),
            LmHead::With => (Some(embedding), Some(tensors.lm_head().load(device, source)?)),
        };
        let position_embedding = tensors
            .position_embedding(source)?
            .map(|(_, table)| table.to_device(device))
            .transpose()?;
        let load_block = |i| Block::load(device, tensors, source, i);
        let blocks: Vec<Result<Block, ModelError>> = match device.isa() {
            // Widening, merging and packing a block consists of many short loops: processing blocks
            // in parallel utilizes the threads better than parallelizing each loop.
            Some(_) => (0..config.layers).into_par_iter().map(load_block).collect(),
            None => (0..config.layers).map(load_block).collect(),
        };
        // Report the first error in block order, whichever thread failed first.
        let blocks = blocks.into_iter().collect::<Result<Vec<_>, _>>()?;
        let rope = rope_frequencies(config)
            .map(|frequencies| Rope::new(device, frequencies))
            .transpose()?;
        let final_norm = tensors.final_norm().load(device, source)?;
        Ok(Self {
            device: device.clone(),
            graphs: GraphCache::default(),
            embedding,
            lm_head,
            position_embedding,
            rope,
            flops_per_position: blocks.iter().map(Block::flops_per_position).sum(),
            blocks,
            final_norm,
            config: config.clone(),
            free_activations: Mutex::default(),
        })
    }

    /// The reason that passes are launched kernel by kernel although they could be a CUDA graph, if
    /// so.
    pub fn graph_failure(&self) -> Option<String> {
        self.graphs.failure()
    }

    /// The same decoder with CUDA graphs disabled: every pass is launched kernel by kernel. For
    /// tests; graphs do not change results.
    pub fn without_graphs(self) -> Self {
        Self { graphs: GraphCache::disabled(), ..self }
    }

    /// Number of CUDA graph replays so far.
    pub fn graph_replays(&self) -> usize {
        self.graphs.replays()
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The device that holds the weights.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Token embeddings: (tokens, width).
    ///
    /// # Panics
    /// If a token is not in the vocabulary.
    pub fn embed(&self, tokens: &[u32]) -> Result<Tensor, DeviceError> {
        ops::lookup(&self.device, self.embedding(), tokens)
    }

    /// The token embedding, stored as a linear layer width -> vocab.
    pub fn embedding(&self) -> &Linear {
        self.embedding.as_ref().unwrap_or_else(|| self.lm_head())
    }

    /// The LM head, width -> vocab.
    ///
    /// # Panics
    /// If the decoder was loaded without one.
    pub fn lm_head(&self) -> &Linear {
        self.lm_head
            .as_ref()
            .unwrap_or_else(|| panic!("this decoder was loaded without its LM head"))
    }

    /// Computes a pass over the input vectors x (rows, width) and writes the rows' keys and values
    /// to the cache.
    ///
    /// Returns the hidden states, after the final norm, of the pass's output rows: (output rows,
    /// width), float32.
    pub fn forward(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        x: Tensor,
        dropout: Option<Dropout<'_>>,
    ) -> Result<Tensor, DeviceError> {
        let options = ForwardOptions { dropout, output: OutputDtype::F32 };
        let inputs = DeferredInputs { x: || Ok(x), proceed: || Ok(()) };
        self.run_pass(cache, pass, options, false, inputs)
    }

    /// [`Decoder::forward`] of a pass whose input vectors may not be known yet, or that may be
    /// aborted: everything but the input vectors is copied to the device first, then `inputs.x` is
    /// called, and `inputs.proceed` once the first block is launched. If either fails, its error is
    /// returned; the caller then rolls back the cache, and the pass has had no effect.
    pub fn forward_deferred<E, X, P>(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        options: ForwardOptions<'_>,
        inputs: DeferredInputs<X, P>,
    ) -> Result<Tensor, E>
    where
        E: From<DeviceError>,
        X: FnOnce() -> Result<Tensor, E>,
        P: FnOnce() -> Result<(), E>,
    {
        self.run_pass(cache, pass, options, true, inputs)
    }

    /// Runs a pass whole, in chunks, or as a CUDA graph. With `stage_ahead`, metadata is copied to
    /// the device before the input vectors are requested; without, while the first block runs.
    fn run_pass<E, X, P>(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        options: ForwardOptions<'_>,
        stage_ahead: bool,
        DeferredInputs { x, proceed }: DeferredInputs<X, P>,
    ) -> Result<Tensor, E>
    where
        E: From<DeviceError>,
        X: FnOnce() -> Result<Tensor, E>,
        P: FnOnce() -> Result<(), E>,
    {
        let device = &self.device;
        let width = self.config.width;
        let x = || {
            let x = x()?;
            let shape = (x.rows(), x.cols());
            let expected = (pass.rows(), width);
            assert_eq!(shape, expected, "decoder: the inputs do not match the pass");
            Ok::<Tensor, E>(x)
        };
        if pass.rows() > device.max_batch_rows() {
            let x = x()?;
            proceed()?;
            return Ok(self.forward_in_turn(cache, pass, options, &x)?);
        }
        let rows = ChunkRows::new(pass, 0..pass.rows());
        if let Some(key) = self.graph_key(cache, pass, &rows, options) {
            // A graph has separate input buffers, and copies for its few rows take little time.
            let chunk = |x| PassChunk::new(device, pass, &rows, options.dropout)?.staged(device, x);
            let body = |chunk: PassChunk<'_>| {
                let observe = |_: usize, _: &[PassChunk<'_>]| Ok::<(), DeviceError>(());
                self.concat(self.forward_chunks(cache, vec![chunk], options.output, observe)?)
            };
            let x = x()?;
            proceed()?; // a graph cannot be aborted midway
            return Ok(self.graphs.run(device, key, x, chunk, body)?);
        }
        let rows = self.chunk_rows(pass, 0..pass.rows());
        let mut chunks = self.chunks(pass, &rows, options.dropout)?;
        if stage_ahead {
            chunks.iter_mut().try_for_each(|chunk| chunk.stage(device, width))?;
        }
        match (x()?, &mut chunks[..]) {
            (x, [chunk]) => chunk.x = x,
            (x, chunks) => self.set_inputs(chunks, &rows, &x)?,
        }
        let mut proceed = Some(proceed);
        let observe = |layer: usize, _: &[PassChunk<'_>]| match layer {
            1 => proceed.take().map_or(Ok(()), |proceed| proceed()),
            _ => Ok(()),
        };
        let hidden = self.forward_chunks(cache, chunks, options.output, observe)?;
        Ok(self.concat(hidden)?)
    }

    /// Runs a pass of more rows than the device takes at once, in parts of about equal size: a
    /// small last part would underutilize the device.
    fn forward_in_turn(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        options: ForwardOptions<'_>,
        x: &Tensor,
    ) -> Result<Tensor, DeviceError> {
        let mut hidden = Vec::new();
        let turns = pass.rows().div_ceil(self.device.max_batch_rows());
        for range in ranges(0..pass.rows(), pass.rows().div_ceil(turns)) {
            let rows = self.chunk_rows(pass, range);
            let mut chunks = self.chunks(pass, &rows, options.dropout)?;
            self.set_inputs(&mut chunks, &rows, x)?;
            let observe = |_: usize, _: &[PassChunk<'_>]| Ok::<(), DeviceError>(());
            hidden.extend(self.forward_chunks(cache, chunks, options.output, observe)?);
        }
        self.concat(hidden)
    }

    /// Splits a range of a pass's rows into the chunks that the device computes in parallel.
    fn chunk_rows<'a>(&self, pass: &'a Pass, range: Range<usize>) -> Vec<ChunkRows<'a>> {
        let rows = self.device.part_rows(range.len());
        ranges(range, rows).map(|range| ChunkRows::new(pass, range)).collect()
    }

    /// Chunks without input vectors, reusing the memory of earlier passes.
    fn chunks<'a>(
        &self,
        pass: &Pass,
        rows: &'a [ChunkRows<'a>],
        dropout: Option<Dropout<'a>>,
    ) -> Result<Vec<PassChunk<'a>>, DeviceError> {
        let mut free = self.free_activations();
        let chunk = |rows| {
            let mut chunk = PassChunk::new(&self.device, pass, rows, dropout)?;
            chunk.work = free.pop().unwrap_or_default();
            Ok(chunk)
        };
        rows.iter().map(chunk).collect()
    }

    fn free_activations(&self) -> MutexGuard<'_, Vec<ChunkActivations>> {
        self.free_activations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns each chunk its rows of the pass's input vectors.
    fn set_inputs(
        &self,
        chunks: &mut [PassChunk<'_>],
        rows: &[ChunkRows<'_>],
        x: &Tensor,
    ) -> Result<(), DeviceError> {
        let mut chunks: Vec<_> = chunks.iter_mut().zip(rows).collect();
        self.device.for_each(&mut chunks, |(chunk, rows)| {
            let picked: Vec<usize> = rows.range.clone().collect();
            chunk.x = ops::select(&self.device, [x], &picked)?;
            Ok(())
        })
    }

    /// The rows of all tensors.
    fn concat(&self, mut parts: Vec<Tensor>) -> Result<Tensor, DeviceError> {
        match parts.len() {
            1 => Ok(parts.remove(0)),
            _ => ops::concat(&self.device, &parts.iter().collect::<Vec<_>>()),
        }
    }

    /// The key of the CUDA graph for this pass; `None` if it is launched without a graph.
    fn graph_key(
        &self,
        cache: &Cache,
        pass: &Pass,
        rows: &ChunkRows<'_>,
        options: ForwardOptions<'_>,
    ) -> Option<GraphKey> {
        let sites = match options.dropout {
            None => SiteSet::EMPTY,
            Some(Dropout::Sampled(rows)) => sites_of(rows),
            Some(Dropout::Recorded { .. }) => return None,
        };
        if !GraphKey::is_worthwhile(&cache.kv, pass.rows()) {
            return None;
        }
        // Checked here: a graph replay does not check its inputs.
        let slots = cache.slots();
        let context = self.position_embedding.as_ref().map_or(usize::MAX, Tensor::rows);
        assert!(
            pass.slots.iter().all(|&s| (s as usize) < slots),
            "decoder: slot out of range of {slots}"
        );
        assert!(pass.attention.end_slot() <= slots, "decoder: span out of range of {slots} slots");
        assert!(
            pass.positions.iter().all(|&p| (p as usize) < context),
            "decoder: position out of range of {context}"
        );
        Some(GraphKey::new(
            &cache.kv,
            &rows.spans,
            rows.drops_rows().then(|| rows.output_spans()),
            sites,
            options.output,
        ))
    }

    /// Runs all blocks over chunks of a pass, in parallel where the device can, and returns their
    /// hidden states in the dtype `output`. `observe` is called with the number of launched blocks,
    /// starting from 0, and the chunks, whose `x` is then the residual stream.
    ///
    /// A row attends to rows of any chunk, so the keys and values of all chunks are stored before
    /// attention; otherwise chunks are independent within a block.
    fn forward_chunks<E: From<DeviceError>>(
        &self,
        cache: &mut Cache,
        mut chunks: Vec<PassChunk<'_>>,
        output: OutputDtype,
        mut observe: impl FnMut(usize, &[PassChunk<'_>]) -> Result<(), E>,
    ) -> Result<Vec<Tensor>, E> {
        let device = &self.device;
        device.for_each(&mut chunks, |chunk| {
            let x = std::mem::take(&mut chunk.x);
            chunk.x = self.embed_norm(x, &chunk.slot_mapping, &mut chunk.work.normed)?;
            Ok(())
        })?;
        observe(0, &chunks)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            let qkv = QkvProjection { map: &block.qkv, transform: self.qkv_params(block) };
            let parts = chunks.iter_mut().map(PassChunk::qkv_rows).collect();
            ops::project_qkv(device, parts, qkv, cache.kv.layer_mut(layer))?;
            let kv = cache.kv.layer(layer);
            device.for_each(&mut chunks, |chunk| self.finish_block(layer, kv, output, chunk))?;
            observe(layer + 1, &chunks)?;
        }
        let hidden =
            chunks.iter_mut().map(|chunk| std::mem::take(&mut chunk.work.normed)).collect();
        self.free_activations().extend(chunks.into_iter().map(|chunk| chunk.work));
        Ok(hidden)
    }

    /// Attention of a layer and the rest of the layer, up to and including the next layer's first
    /// norm, or the final norm.
    fn finish_block(
        &self,
        layer: usize,
        kv: KvLayer<'_>,
        output: OutputDtype,
        chunk: &mut PassChunk<'_>,
    ) -> Result<(), DeviceError> {
        let device = &self.device;
        let heads = self.config.heads;
        let block = &self.blocks[layer];
        let next = self.blocks.get(layer + 1);
        chunk.work.normed.release();
        let mut metadata = chunk.take_metadata(device)?;
        if next.is_none() {
            // Beyond the keys and values, the last block is computed for the output rows only.
            metadata = chunk.select_output(device, metadata)?;
        }
        let work = &mut chunk.work;
        ops::attention(device, &work.qkv, kv, heads, &metadata.attention, &mut work.attended)?;
        work.qkv.release();
        let of = LinearResidualNorm {
            x: &work.attended,
            map: &block.attn_out,
            mask: metadata.dropout.mask(layer, Site::AttnOut),
            norm: &block.mlp_norm,
            dtype: OutputDtype::Operand,
        };
        ops::linear_residual_norm(device, of, &mut chunk.x, &mut work.normed)?;
        work.attended.release();
        self.mlp(block, work)?;
        let (norm, dtype) = match next {
            Some(next) => (&next.attn_norm, OutputDtype::Operand),
            None => (&self.final_norm, output),
        };
        let of = LinearResidualNorm {
            x: &work.inner,
            map: &block.mlp_out,
            mask: metadata.dropout.mask(layer, Site::MlpOut),
            norm,
            dtype,
        };
        ops::linear_residual_norm(device, of, &mut chunk.x, &mut work.normed)?;
        work.inner.release();
        chunk.metadata = Some(metadata);
        Ok(())
    }

    /// Adds position embeddings to the input vectors, if any; returns the residual stream and
    /// writes its first norm to `normed`.
    fn embed_norm(
        &self,
        x: Tensor,
        slot_mapping: &SlotMapping,
        normed: &mut Tensor,
    ) -> Result<Tensor, DeviceError> {
        let table = self.position_embedding.as_ref();
        let learned =
            table.map(|table| LearnedPositions { table, positions: &slot_mapping.positions });
        let norm = &self.blocks[0].attn_norm;
        let dtype = OutputDtype::Operand;
        ops::add_positions_norm(&self.device, x, learned, norm, dtype, normed)
    }

    fn qkv_params<'a>(&'a self, block: &'a Block) -> QkvTransform<'a> {
        QkvTransform {
            heads: self.config.heads,
            qk_norms: block.qk_norm.as_ref().map(|(q, k)| (q, k)),
            rope: self.rope.as_ref(),
        }
    }

    /// The MLP up to its output projection: from `work.normed`, which is released, to `work.inner`.
    fn mlp(&self, block: &Block, work: &mut ChunkActivations) -> Result<(), DeviceError> {
        let device = &self.device;
        let normed = &work.normed;
        let mlp_in = |activation, dtype, out: &mut Tensor| {
            ops::linear(device, normed, &block.mlp_in, activation, dtype, out)
        };
        match mlp_activation(self.config.mlp) {
            Some(activation) => mlp_in(activation, OutputDtype::Operand, &mut work.inner)?,
            None => {
                mlp_in(Activation::None, OutputDtype::Compute, &mut work.gates)?;
                ops::swiglu(device, &work.gates, &mut work.inner)?;
                work.gates.release();
            }
        }
        work.normed.release();
        Ok(())
    }

    /// Floating-point operations of the blocks for a range of a sequence's positions: matrix
    /// products and causal attention.
    pub fn flops_for(&self, positions: Range<usize>) -> f64 {
        let from = positions.start;
        let to = positions.end;
        let attended = (to * (to + 1) - from * (from + 1)) / 2;
        (to - from) as f64 * self.flops_per_position() + attended as f64 * self.flops_per_attended()
    }

    /// Floating-point operations of the blocks' matrix products per position.
    pub fn flops_per_position(&self) -> f64 {
        self.flops_per_position
    }

    /// Floating-point operations of attention per pair of a position and one it attends to.
    pub fn flops_per_attended(&self) -> f64 {
        4.0 * (self.config.layers * self.config.heads * self.config.head_dim) as f64
    }

    /// Floating-point operations per row of logits.
    pub fn flops_per_logits(&self) -> f64 {
        2.0 * (self.config.width * self.config.vocab) as f64
    }
}

impl Block {
    fn flops_per_position(&self) -> f64 {
        let products = [&self.qkv, &self.attn_out, &self.mlp_in, &self.mlp_out];
        2.0 * products.map(|linear| linear.inputs() * linear.outputs()).iter().sum::<usize>() as f64
    }

    fn load(
        device: &Device,
        tensors: DecoderTensors<'_>,
        source: &impl TensorSource,
        i: usize,
    ) -> Result<Self, ModelError> {
        let qk_norm = match tensors.qk_norm(i) {
            Some([q, k]) => Some((q.load(device, source)?, k.load(device, source)?)),
            None => None,
        };
        Ok(Self {
            attn_norm: tensors.attn_norm(i).load(device, source)?,
            qkv: tensors.qkv(i).load(device, source)?,
            qk_norm,
            attn_out: tensors.attn_out(i).load(device, source)?,
            mlp_norm: tensors.mlp_norm(i).load(device, source)?,
            mlp_in: tensors.mlp_in(i).load(device, source)?,
            mlp_out: tensors.mlp_out(i).load(device, source)?,
        })
    }
}

/// The activation of an MLP without a gate; `None` for SwiGLU.
fn mlp_activation(mlp: Mlp) -> Option<Activation> {
    match mlp {
        Mlp::GeluTanh => Some(Activation::GeluTanh),
        Mlp::GeluErf => Some(Activation::GeluErf),
        Mlp::SwiGlu => None,
    }
}

/// The RoPE frequencies, with Llama 3's scaling.
///
/// Computed in float32 step by step, as in transformers: at position 1000 a difference in the last
/// bit of a frequency changes the fourth digit of an angle, and random models amplify it from
/// thought to thought.
fn rope_frequencies(config: &Config) -> Option<Vec<f32>> {
    let PositionEncoding::Rope { theta, scaling } = config.positions else { return None };
    let base = |i: usize| 1.0 / (theta as f32).powf((2 * i) as f32 / config.head_dim as f32);
    let scale = |f: f32| {
        let Some(config::Llama3Scaling { factor, low, high, original_context }) = scaling else {
            return f;
        };
        let factor = factor as f32;
        let low = low as f32;
        let high = high as f32;
        let context = original_context as f32;
        let wavelength = std::f32::consts::TAU / f;
        if wavelength < context / high {
            f
        } else if wavelength > context / low {
            f / factor
        } else {
            let smooth = (context / wavelength - low) / (high - low);
            (1.0 - smooth) * f / factor + smooth * f
        }
    };
    Some((0..config.head_dim / 2).map(|i| scale(base(i))).collect())
}

/// Splits a range into parts of `count`, the last one possibly shorter; an empty range is one part.
fn ranges(range: Range<usize>, count: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = range.len().div_ceil(count.max(1)).max(1);
    (0..parts).map(move |i| {
        let start = range.start + i * count;
        start..range.end.min(start + count)
    })
}

/// Activations of one chunk. On the CPU their memory is reused from layer to layer and from pass to
/// pass; on a GPU each is released after its last use, so that a layer's activations fit the L2
/// cache.
#[derive(Debug, Default)]
struct ChunkActivations {
    normed: Tensor,   // (rows, width)
    qkv: Tensor,      // (rows, (heads + 2 kv_heads) * head_dim)
    attended: Tensor, // (rows, heads * head_dim)
    gates: Tensor,    // (rows, 2 ffn): gate and up, SwiGLU only
    inner: Tensor,    // (rows, ffn)
}
