//! The one decoder: GPT-2, Llama and Qwen3 are this transformer with other fields in its
//! [`Config`].
//!
//! Three types, three roles: [`Config`] is the blueprint, [`Decoder`] the weights, [`Cache`] the
//! state; only the state changes. A pass computes any mixture of new positions (whole prompts,
//! single thoughts of many rows) over what the cache holds.

mod trainable;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::Range;

use tensor::ops::{
    self, Activation, AttentionMetadata, AttentionSpans, DropoutMask, GraphCache, GraphKey,
    Indices, KeepMask, LearnedPositions, Linear, LinearResidualNorm, Normalization, OutputDtype,
    PerturbedRows, QkvProjection, QkvTransform, Rope, RowPerturbation, SiteSet, SlotMapping,
};
use tensor::rng::Site;
use tensor::{Device, DeviceError, Tensor};

use crate::cache::{Cache, Pass};
use crate::config::{self, Config, Mlp, PositionEncoding};
use crate::error::ModelError;
use crate::source::TensorSource;
use crate::weights::DecoderTensors;

pub use trainable::{Segment, TrainableDecoder};

/// A decoder's weights, packed for the device.
#[derive(Debug)]
pub struct Decoder {
    device: Device,
    config: Config,
    graphs: GraphCache,        // of passes: before the weights that they use
    embedding: Option<Linear>, // width -> vocab, unless the head is tied and serves as the table
    lm_head: Option<Linear>,   // width -> vocab
    position_embedding: Option<Tensor>, // (context, width), unless positions are rotary
    rope: Option<Rope>,
    blocks: Vec<Block>,
    final_norm: Normalization,
    flops_per_position: f64,
}

#[derive(Debug)]
struct Block {
    attn_norm: Normalization,
    qkv: Linear, // width -> (heads + 2 kv_heads) * head_dim
    qk_norm: Option<(Normalization, Normalization)>,
    attn_out: Linear,
    mlp_norm: Normalization,
    mlp_in: Linear, // width -> ffn, or both halves of a SwiGLU: width -> 2 ffn
    mlp_out: Linear,
}

/// Dropout during a pass.
#[derive(Clone, Copy, Debug)]
pub enum Dropout<'a> {
    /// Philox masks, each row of the pass with its own key, probability and sites; `None` leaves a
    /// row unchanged.
    Sampled(&'a [Option<RowPerturbation>]),
    /// Masks of another implementation, which fall on all rows of the pass.
    Recorded {
        /// The probability that elements were dropped with.
        p: f32,
        /// The sites that the masks are applied at.
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

/// Whether a decoder is loaded with the map from hidden states to tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LmHead {
    /// A reasoner answers in words.
    With,
    /// A reward model does not.
    Without,
}

impl Decoder {
    /// Takes a decoder's weights from `source` and packs them.
    pub fn load(
        device: &Device,
        config: &Config,
        source: &impl TensorSource,
        head: LmHead,
    ) -> Result<Self, ModelError> {
        let parts = DecoderTensors(config);
        let tied = config.tied || !DecoderTensors::has_lm_head(source);
        let table = parts.embedding().load(device, source)?;
        let (table, head) = match head {
            LmHead::Without => (Some(table), None),
            LmHead::With if tied => (None, Some(table)),
            LmHead::With => (Some(table), Some(parts.lm_head().load(device, source)?)),
        };
        let positions = parts
            .position_embedding(source)?
            .map(|(_, table)| table.to_device(device))
            .transpose()?;
        let blocks = (0..config.layers)
            .map(|i| Block::load(device, parts, source, i))
            .collect::<Result<Vec<_>, _>>()?;
        let rope = rope_frequencies(config)
            .map(|frequencies| Rope::new(device, frequencies))
            .transpose()?;
        let final_norm = parts.final_norm().load(device, source)?;
        Ok(Self {
            device: device.clone(),
            graphs: GraphCache::default(),
            embedding: table,
            lm_head: head,
            position_embedding: positions,
            rope,
            flops_per_position: blocks.iter().map(Block::flops_per_position).sum(),
            blocks,
            final_norm,
            config: config.clone(),
        })
    }

    /// The same decoder, every pass of which is launched and none replayed. For tests: replays
    /// differ in nothing but time.
    pub fn without_graphs(self) -> Self {
        Self { graphs: GraphCache::disabled(), ..self }
    }

    /// Passes that were replayed so far.
    pub fn graph_replays(&self) -> usize {
        self.graphs.replays()
    }

    /// The blueprint.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The device that computes.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Embeddings of some tokens: (tokens, width).
    ///
    /// # Panics
    /// If a token is not in the vocabulary.
    pub fn embed(&self, tokens: &[u32]) -> Result<Tensor, DeviceError> {
        ops::lookup(&self.device, self.embedding(), tokens)
    }

    /// The embeddings, as weights of a map to the vocabulary.
    pub fn embedding(&self) -> &Linear {
        self.embedding.as_ref().unwrap_or_else(|| self.lm_head())
    }

    /// The map from hidden states to logits.
    ///
    /// # Panics
    /// If the decoder was loaded without.
    pub fn lm_head(&self) -> &Linear {
        self.lm_head
            .as_ref()
            .unwrap_or_else(|| panic!("this decoder was loaded without its LM head"))
    }

    /// Computes a pass over the positions' input vectors x (rows, width) and stores their keys and
    /// values.
    ///
    /// Returns the hidden states after the final norm of the rows that the pass wants: (wanted,
    /// width).
    pub fn forward(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        x: Tensor,
        dropout: Option<Dropout<'_>>,
    ) -> Result<Tensor, DeviceError> {
        self.run_pass(cache, pass, (dropout, OutputDtype::F32, false), (|| Ok(x), || Ok(())))
    }

    /// [`Decoder::forward`] of a pass that may turn out not to be wanted, or whose input vectors
    /// are not known yet: the pass is made ready, on the device where it can be, and then `x`
    /// is asked for them; `go` is asked when the device has the first block to compute. If
    /// either fails, that is returned, and it is as if nothing had been computed. Hidden states
    /// that are for the head alone need not be kept in single precision.
    pub fn forward_deferred<E: From<DeviceError>>(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        (dropout, format): (Option<Dropout<'_>>, OutputDtype),
        (x, go): (impl FnOnce() -> Result<Tensor, E>, impl FnOnce() -> Result<(), E>),
    ) -> Result<Tensor, E> {
        self.run_pass(cache, pass, (dropout, format, true), (x, go))
    }

    /// Computes a pass that is made ready `ahead` of its input vectors, or else while the device
    /// begins with them.
    fn run_pass<E: From<DeviceError>>(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        (dropout, format, ahead): (Option<Dropout<'_>>, OutputDtype, bool),
        (x, go): (impl FnOnce() -> Result<Tensor, E>, impl FnOnce() -> Result<(), E>),
    ) -> Result<Tensor, E> {
        let (device, width) = (&self.device, self.config.width);
        let x = || {
            let x = x()?;
            assert_eq!(
                (x.rows(), x.cols()),
                (pass.rows(), width),
                "decoder: inputs do not fit the pass"
            );
            Ok::<Tensor, E>(x)
        };
        if pass.rows() > device.max_batch_rows() {
            let x = x()?;
            go()?;
            return Ok(self.forward_chunked(cache, pass, (dropout, format), x)?);
        }
        let seen = ChunkRows::new(pass, 0..pass.rows());
        if let Some(key) = self.graph_key(cache, pass, &seen, (dropout, format)) {
            // A replay has places of its own for what is brought over, and few rows take little
            // time.
            let part = |x| {
                Ok(PassChunk { x, ..PassChunk::new(device, pass, &seen, (dropout, width), true)? })
            };
            let body = |part: PassChunk<'_>| {
                self.forward_chunk(cache, part, (&mut ChunkActivations::default(), format), || {
                    Ok(())
                })
            };
            let x = x()?;
            go()?; // what is replayed is replayed whole
            return Ok(self.graphs.run(device, key, x, part, body)?);
        }
        let part = PassChunk::new(device, pass, &seen, (dropout, width), ahead)?;
        self.forward_chunk(
            cache,
            PassChunk { x: x()?, ..part },
            (&mut ChunkActivations::default(), format),
            go,
        )
    }

    /// A pass of more rows than the device takes at once, in parts of about as many: a small one
    /// would leave it idle.
    fn forward_chunked(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        (dropout, format): (Option<Dropout<'_>>, OutputDtype),
        x: Tensor,
    ) -> Result<Tensor, DeviceError> {
        let (mut work, mut parts) = (ChunkActivations::default(), Vec::new());
        let each = pass.rows().div_ceil(pass.rows().div_ceil(self.device.max_batch_rows()));
        for start in (0..pass.rows()).step_by(each) {
            let rows = start..pass.rows().min(start + each);
            let some = ops::select(&self.device, [&x], &rows.clone().collect::<Vec<_>>())?;
            let seen = ChunkRows::new(pass, rows);
            let part = PassChunk::new(&self.device, pass, &seen, (dropout, x.cols()), false)?;
            let part = PassChunk { x: some, ..part };
            parts.push(
                self.forward_chunk(cache, part, (&mut work, format), || Ok::<(), DeviceError>(()))?,
            );
        }
        ops::concat(&self.device, &parts.iter().collect::<Vec<_>>())
    }

    /// What a replay of this pass must have in common with it; none if it is not to be replayed.
    fn graph_key(
        &self,
        cache: &Cache,
        pass: &Pass,
        seen: &ChunkRows<'_>,
        (dropout, format): (Option<Dropout<'_>>, OutputDtype),
    ) -> Option<GraphKey> {
        let sites = match dropout {
            None => SiteSet::EMPTY,
            Some(Dropout::Sampled(rows)) => sites_of(rows),
            Some(Dropout::Recorded { .. }) => return None,
        };
        if !GraphKey::is_worthwhile(&cache.kv, pass.rows()) {
            return None;
        }
        // Checked here, since a replay does not check its inputs again.
        let (slots, context) =
            (cache.slots(), self.position_embedding.as_ref().map_or(usize::MAX, Tensor::rows));
        assert!(pass.slots.iter().all(|&s| (s as usize) < slots), "decoder: a slot beyond {slots}");
        assert!(pass.attention.end_slot() <= slots, "decoder: a span beyond {slots} slots");
        assert!(
            pass.positions.iter().all(|&p| (p as usize) < context),
            "decoder: a position beyond {context}"
        );
        Some(GraphKey::new(
            &cache.kv,
            &seen.spans,
            seen.drops_rows().then(|| seen.output_spans()),
            sites,
            format,
        ))
    }

    /// Computes a part of a pass, hidden states in a format; `go` is asked when the device has the
    /// first block to compute.
    fn forward_chunk<E: From<DeviceError>>(
        &self,
        cache: &mut Cache,
        mut part: PassChunk<'_>,
        (work, format): (&mut ChunkActivations, OutputDtype),
        proceed: impl FnOnce() -> Result<(), E>,
    ) -> Result<Tensor, E> {
        let mut go = Some(proceed);
        let (device, heads) = (&self.device, self.config.heads);
        part.x =
            self.embed_norm(std::mem::take(&mut part.x), &part.slot_mapping, &mut work.normed)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            let next = self.blocks.get(layer + 1);
            let qkv = QkvProjection { map: &block.qkv, transform: self.qkv_params(block) };
            let (kv, slots) = (cache.kv.layer_mut(layer), &part.slot_mapping);
            ops::project_qkv(device, &work.normed, qkv, kv, slots, &mut work.qkv)?;
            work.normed.release();
            let mut sight = part.take_metadata(device)?;
            if next.is_none() {
                sight = part.select_output(device, sight, &mut work.qkv)?; // from here on only what was asked for
            }
            ops::attention(
                device,
                &work.qkv,
                cache.kv.layer(layer),
                heads,
                &sight.attention,
                &mut work.attended,
            )?;
            work.qkv.release();
            let of = LinearResidualNorm {
                x: &work.attended,
                map: &block.attn_out,
                mask: sight.dropout.mask(layer, Site::AttnOut),
                norm: &block.mlp_norm,
                dtype: OutputDtype::Compute,
            };
            ops::linear_residual_norm(device, of, &mut part.x, &mut work.normed)?;
            work.attended.release();
            self.mlp(block, work)?;
            let (norm, dtype) = match next {
                Some(next) => (&next.attn_norm, OutputDtype::Compute),
                None => (&self.final_norm, format),
            };
            let of = LinearResidualNorm {
                x: &work.inner,
                map: &block.mlp_out,
                mask: sight.dropout.mask(layer, Site::MlpOut),
                norm,
                dtype,
            };
            ops::linear_residual_norm(device, of, &mut part.x, &mut work.normed)?;
            work.inner.release();
            part.metadata = Some(sight);
            if let Some(go) = go.take() {
                go()?;
            }
        }
        Ok(std::mem::take(&mut work.normed))
    }

    /// The stream that input vectors become, normed for the first block.
    fn embed_norm(
        &self,
        x: Tensor,
        seats: &SlotMapping,
        normed: &mut Tensor,
    ) -> Result<Tensor, DeviceError> {
        let table = self.position_embedding.as_ref();
        let learned = table.map(|table| LearnedPositions { table, positions: &seats.positions });
        let (norm, dtype) = (&self.blocks[0].attn_norm, OutputDtype::Compute);
        ops::add_positions_norm(&self.device, x, learned, norm, dtype, normed)
    }

    fn qkv_params<'a>(&'a self, block: &'a Block) -> QkvTransform<'a> {
        QkvTransform {
            heads: self.config.heads,
            qk_norms: block.qk_norm.as_ref().map(|(q, k)| (q, k)),
            rope: self.rope.as_ref(),
        }
    }

    /// The MLP up to its last product: from `work.normed`, which is let go, into `work.inner`.
    fn mlp(&self, block: &Block, work: &mut ChunkActivations) -> Result<(), DeviceError> {
        let (device, normed) = (&self.device, &work.normed);
        let into = |activation, out: &mut Tensor| {
            ops::linear(device, normed, &block.mlp_in, activation, OutputDtype::Compute, out)
        };
        match self.config.mlp {
            Mlp::GeluTanh => into(Activation::GeluTanh, &mut work.inner)?,
            Mlp::GeluErf => into(Activation::GeluErf, &mut work.inner)?,
            Mlp::SwiGlu => {
                into(Activation::None, &mut work.gates)?;
                ops::swiglu(device, &work.gates, &mut work.inner)?;
                work.gates.release();
            }
        }
        work.normed.release();
        Ok(())
    }

    /// Floating-point operations of some positions of a sequence in the blocks: the products, and
    /// attention over all before.
    pub fn flops_for(&self, positions: Range<usize>) -> f64 {
        let (from, to) = (positions.start, positions.end);
        let seen = (to * (to + 1) - from * (from + 1)) / 2;
        (to - from) as f64 * self.flops_per_position() + seen as f64 * self.flops_per_attended()
    }

    /// Floating-point operations of one position in the blocks, leaving out what depends on how
    /// much it sees.
    pub fn flops_per_position(&self) -> f64 {
        self.flops_per_position
    }

    /// Floating-point operations of attention for each position that a position sees.
    pub fn flops_per_attended(&self) -> f64 {
        4.0 * (self.config.layers * self.config.heads * self.config.head_dim) as f64
    }

    /// Floating-point operations of one row of logits.
    pub fn flops_per_logits(&self) -> f64 {
        2.0 * (self.config.width * self.config.vocab) as f64
    }
}

impl Block {
    /// Those of its products.
    fn flops_per_position(&self) -> f64 {
        let products = [&self.qkv, &self.attn_out, &self.mlp_in, &self.mlp_out];
        2.0 * products.map(|map| map.inputs() * map.outputs()).iter().sum::<usize>() as f64
    }

    fn load(
        device: &Device,
        parts: DecoderTensors<'_>,
        source: &impl TensorSource,
        i: usize,
    ) -> Result<Self, ModelError> {
        let qk_norm = match parts.qk_norm(i) {
            Some([q, k]) => Some((q.load(device, source)?, k.load(device, source)?)),
            None => None,
        };
        Ok(Self {
            attn_norm: parts.attn_norm(i).load(device, source)?,
            qkv: parts.qkv(i).load(device, source)?,
            qk_norm,
            attn_out: parts.attn_out(i).load(device, source)?,
            mlp_norm: parts.mlp_norm(i).load(device, source)?,
            mlp_in: parts.mlp_in(i).load(device, source)?,
            mlp_out: parts.mlp_out(i).load(device, source)?,
        })
    }
}

/// The rotation frequencies, with Llama 3's stretching of the slow ones.
///
/// In single precision step by step, as transformers has it: at position 1000 a last-place
/// difference in a frequency is a difference in the fourth digit of an angle, and random models
/// amplify it from thought to thought.
fn rope_frequencies(config: &Config) -> Option<Vec<f32>> {
    let PositionEncoding::Rope { theta, scaling } = config.positions else { return None };
    let base = |i: usize| 1.0 / (theta as f32).powf((2 * i) as f32 / config.head_dim as f32);
    let stretch = |f: f32| {
        let Some(config::Llama3Scaling { factor, low, high, original_context }) = scaling else {
            return f;
        };
        let (factor, low, high, context) =
            (factor as f32, low as f32, high as f32, original_context as f32);
        let wavelength = std::f32::consts::TAU / f;
        if wavelength < context / high {
            f
        } else if wavelength > context / low {
            f / factor
        } else {
            let kept = (context / wavelength - low) / (high - low);
            (1.0 - kept) * f / factor + kept * f
        }
    };
    Some((0..config.head_dim / 2).map(|i| stretch(base(i))).collect())
}

/// Activations of one part of a pass. On the processor their memory is kept from layer to layer; a
/// GPU's is let go as soon as nothing reads them any more, so that all activations of a layer fit
/// its cache.
#[derive(Default)]
struct ChunkActivations {
    normed: Tensor,   // (rows, width)
    qkv: Tensor,      // (rows, (heads + 2 kv_heads) * head_dim)
    attended: Tensor, // (rows, heads * head_dim)
    gates: Tensor,    // (rows, 2 ffn), SwiGLU only
    inner: Tensor,    // (rows, ffn)
}

/// What some rows of a pass see.
struct ChunkRows<'a> {
    range: Range<usize>,
    spans: Cow<'a, AttentionSpans>,
    output_rows: Vec<usize>,                // counted from the first row
    output_spans: OnceCell<AttentionSpans>, // what the wanted rows see
}

impl<'a> ChunkRows<'a> {
    fn new(pass: &'a Pass, rows: Range<usize>) -> Self {
        let whole = rows.len() == pass.rows();
        let all = if whole {
            Cow::Borrowed(&pass.attention)
        } else {
            Cow::Owned(pass.attention.select(rows.clone()))
        };
        let wanted =
            pass.output_rows.iter().filter(|w| rows.contains(w)).map(|w| w - rows.start).collect();
        Self { range: rows, spans: all, output_rows: wanted, output_spans: OnceCell::new() }
    }

    fn drops_rows(&self) -> bool {
        self.output_rows.len() < self.range.len()
    }

    fn output_spans(&self) -> &AttentionSpans {
        self.output_spans.get_or_init(|| self.spans.select(self.output_rows.iter().copied()))
    }
}

/// Some rows of a pass, with everything that belongs to them, on the device.
struct PassChunk<'a> {
    x: Tensor, // (rows, width): the residual stream
    slot_mapping: SlotMapping,
    rows: &'a ChunkRows<'a>,
    dropout: Option<Dropout<'a>>,        // of the whole pass
    metadata: Option<ChunkMetadata<'a>>, // when it is there
    output: Option<OutputRows<'a>>,      // if it is there ahead of time
}

/// What rows see and what is dropped of them: what a layer needs after its first product.
#[derive(Debug)]
struct ChunkMetadata<'a> {
    attention: AttentionMetadata<'a>,
    dropout: ChunkDropout,
}

/// The rows of a part that were asked for.
#[derive(Debug)]
struct OutputRows<'a> {
    rows: Indices, // counted from the part's first row
    attention: AttentionMetadata<'a>,
    dropout: ChunkDropout,
}

impl<'a> OutputRows<'a> {
    fn new(
        device: &Device,
        seen: &'a ChunkRows<'_>,
        dropout: &ChunkDropout,
        width: usize,
    ) -> Result<Self, DeviceError> {
        Ok(Self {
            rows: Indices::new(device, seen.output_rows.iter().map(|&r| r as u32).collect())?,
            attention: AttentionMetadata::new(device, Cow::Borrowed(seen.output_spans()))?,
            dropout: dropout.select(device, &seen.output_rows, width)?,
        })
    }
}

impl<'a> ChunkMetadata<'a> {
    fn new(
        device: &Device,
        seen: &'a ChunkRows<'_>,
        dropout: Option<Dropout<'_>>,
        width: usize,
    ) -> Result<Self, DeviceError> {
        let dropout = ChunkDropout::cut(device, dropout, width, seen.range.clone())?;
        Ok(Self {
            attention: AttentionMetadata::new(device, Cow::Borrowed(&*seen.spans))?,
            dropout,
        })
    }
}

impl<'a> PassChunk<'a> {
    /// Some rows of a pass, but for their input vectors of that width, which are put in when they
    /// are there. With `ahead`, everything that the pass will need is brought to the device at
    /// once; without, what is needed later is made while the device is busy.
    fn new(
        device: &Device,
        pass: &Pass,
        seen: &'a ChunkRows<'a>,
        (dropout, width): (Option<Dropout<'a>>, usize),
        ahead: bool,
    ) -> Result<Self, DeviceError> {
        let seats = SlotMapping {
            positions: Indices::new(device, pass.positions[seen.range.clone()].to_vec())?,
            slots: Indices::new(device, pass.slots[seen.range.clone()].to_vec())?,
        };
        let sight =
            if ahead { Some(ChunkMetadata::new(device, seen, dropout, width)?) } else { None };
        let wider = sight.as_ref().filter(|_| seen.drops_rows());
        let narrow =
            wider.map(|sight| OutputRows::new(device, seen, &sight.dropout, width)).transpose()?;
        Ok(Self {
            x: Tensor::default(),
            slot_mapping: seats,
            rows: seen,
            dropout,
            metadata: sight,
            output: narrow,
        })
    }

    /// What its rows see.
    fn take_metadata(&mut self, device: &Device) -> Result<ChunkMetadata<'a>, DeviceError> {
        self.metadata
            .take()
            .map_or_else(|| ChunkMetadata::new(device, self.rows, self.dropout, self.x.cols()), Ok)
    }

    /// Leaves the rows out that nobody asked for; returns what the others see.
    fn select_output(
        &mut self,
        device: &Device,
        sight: ChunkMetadata<'a>,
        qkv: &mut Tensor,
    ) -> Result<ChunkMetadata<'a>, DeviceError> {
        if !self.rows.drops_rows() {
            return Ok(sight);
        }
        let made = self.output.take().map_or_else(
            || OutputRows::new(device, self.rows, &sight.dropout, self.x.cols()),
            Ok,
        )?;
        self.x = ops::gather(device, &self.x, &made.rows)?;
        *qkv = ops::gather(device, qkv, &made.rows)?;
        Ok(ChunkMetadata { attention: made.attention, dropout: made.dropout })
    }
}

/// The dropout of some rows.
#[derive(Debug)]
enum ChunkDropout {
    None,
    /// `sites` are those of any row of the chunk, so that the same kernels run for its output rows.
    Sampled {
        sites: SiteSet,
        rows: PerturbedRows,
    },
    Recorded {
        p: f32,
        sites: SiteSet,
        masks: Vec<Vec<u8>>,
        keep: Vec<KeepMask>,
    },
}

impl ChunkDropout {
    fn cut(
        device: &Device,
        dropout: Option<Dropout<'_>>,
        width: usize,
        rows: Range<usize>,
    ) -> Result<Self, DeviceError> {
        match dropout {
            None => Ok(Self::None),
            Some(Dropout::Sampled(all)) => {
                let rows = all[rows].to_vec();
                Ok(Self::Sampled {
                    sites: sites_of(&rows),
                    rows: PerturbedRows::new(device, rows)?,
                })
            }
            Some(Dropout::Recorded { p, sites, masks }) => {
                let masks: Vec<_> = masks
                    .iter()
                    .map(|m| m[rows.start * width..rows.end * width].to_vec())
                    .collect();
                let keep = keep(device, &masks, width)?;
                Ok(Self::Recorded { p, sites, masks, keep })
            }
        }
    }

    fn select(&self, device: &Device, wanted: &[usize], width: usize) -> Result<Self, DeviceError> {
        Ok(match self {
            Self::None => Self::None,
            Self::Sampled { sites, rows } => {
                let rows = wanted.iter().map(|&r| rows.rows()[r]).collect();
                Self::Sampled { sites: *sites, rows: PerturbedRows::new(device, rows)? }
            }
            Self::Recorded { p, sites, masks, .. } => {
                let picked = |mask: &Vec<u8>| {
                    wanted
                        .iter()
                        .flat_map(|&r| &mask[r * width..(r + 1) * width])
                        .copied()
                        .collect()
                };
                let masks: Vec<Vec<u8>> = masks.iter().map(picked).collect();
                let keep = keep(device, &masks, width)?;
                Self::Recorded { p: *p, sites: *sites, masks, keep }
            }
        })
    }

    fn mask(&self, layer: usize, site: Site) -> Option<DropoutMask<'_>> {
        match self {
            Self::Sampled { sites, rows } if sites.contains(site) => {
                Some(DropoutMask::Sampled { layer, site, rows })
            }
            Self::Recorded { p, sites, keep, .. } if sites.contains(site) => {
                let which = usize::from(site == Site::MlpOut);
                Some(DropoutMask::Recorded { p: *p, keep: &keep[2 * layer + which] })
            }
            _ => None,
        }
    }
}

fn keep(device: &Device, masks: &[Vec<u8>], width: usize) -> Result<Vec<KeepMask>, DeviceError> {
    masks.iter().map(|m| KeepMask::new(device, m.len() / width, width, m.clone())).collect()
}
