//! The one decoder: GPT-2, Llama and Qwen3 are this transformer with other fields in its [`Config`].
//!
//! Three types, three roles: [`Config`] is the blueprint, [`Decoder`] the weights, [`Cache`] the state; only the state
//! changes. A pass computes any mixture of new positions (whole prompts, single thoughts of many rows) over what the
//! cache holds.

mod learner;

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::Range;

use tensor::ops::{
    self, Activation, Attend, Draws, Format, Indices, Keep, Key, Linear, Mask, Norm, Place, Replays, Rope, Seats, Views,
};
use tensor::rng::{Draw, Site};
use tensor::{Device, DeviceError, Tensor};

use crate::cache::{Cache, Pass};
use crate::config::{self, Config, Mlp, Positions};
use crate::error::Error;
use crate::source::TensorSource;
use crate::weights::Parts;

pub use learner::{Learner, Segment};

/// A decoder's weights, packed for the device.
#[derive(Debug)]
pub struct Decoder {
    device: Device,
    config: Config,
    replays: Replays,          // of passes: before the weights that they use
    table: Option<Linear>,     // width -> vocab, unless the head is tied and serves as the table
    head: Option<Linear>,      // width -> vocab
    positions: Option<Tensor>, // (context, width), unless positions are rotary
    rope: Option<Rope>,
    blocks: Vec<Block>,
    final_norm: Norm,
    flops_per_position: f64,
}

#[derive(Debug)]
struct Block {
    attn_norm: Norm,
    qkv: Linear, // width -> (heads + 2 kv_heads) * head_dim
    qk_norm: Option<(Norm, Norm)>,
    attn_out: Linear,
    mlp_norm: Norm,
    mlp_in: Linear, // width -> ffn, or both halves of a SwiGLU: width -> 2 ffn
    mlp_out: Linear,
}

/// Dropout during a pass.
#[derive(Clone, Copy, Debug)]
pub struct Dropout<'a> {
    /// The share of elements dropped.
    pub p: f32,
    /// On the attention block's output?
    pub attn_out: bool,
    /// On the MLP block's output?
    pub mlp_out: bool,
    /// Where the masks come from.
    pub masks: Masks<'a>,
}

/// Where dropout masks come from.
#[derive(Clone, Copy, Debug)]
pub enum Masks<'a> {
    /// Drawn, row by row of the pass; `None` leaves a row clean.
    Drawn(&'a [Option<Draw>]),
    /// Recorded elsewhere: for layer l, `[2 l]` is the attention site's mask, `[2 l + 1]` the MLP site's; each (rows, width).
    Recorded(&'a [Vec<u8>]),
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
    pub fn load(device: &Device, config: &Config, source: &impl TensorSource, head: LmHead) -> Result<Self, Error> {
        let parts = Parts(config);
        let tied = config.tied || !Parts::has_head(source);
        let table = parts.embedding().load(device, source)?;
        let (table, head) = match head {
            LmHead::Without => (Some(table), None),
            LmHead::With if tied => (None, Some(table)),
            LmHead::With => (Some(table), Some(parts.head().load(device, source)?)),
        };
        let positions = parts.positions(source)?.map(|(_, table)| table.to_device(device)).transpose()?;
        let blocks = (0..config.layers).map(|i| Block::load(device, parts, source, i)).collect::<Result<Vec<_>, _>>()?;
        let rope = rotations(config).map(|frequencies| Rope::new(device, frequencies)).transpose()?;
        let final_norm = parts.final_norm().load(device, source)?;
        Ok(Self {
            device: device.clone(),
            replays: Replays::default(),
            table,
            head,
            positions,
            rope,
            flops_per_position: blocks.iter().map(Block::flops_per_position).sum(),
            blocks,
            final_norm,
            config: config.clone(),
        })
    }

    /// The same decoder, every pass of which is launched and none replayed. For tests: replays differ in nothing but time.
    pub fn without_replays(self) -> Self {
        Self { replays: Replays::off(), ..self }
    }

    /// Passes that were replayed so far.
    pub fn replayed(&self) -> usize {
        self.replays.count()
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
        ops::lookup(&self.device, self.table(), tokens)
    }

    /// The embeddings, as weights of a map to the vocabulary.
    pub fn table(&self) -> &Linear {
        self.table.as_ref().unwrap_or_else(|| self.head())
    }

    /// The map from hidden states to logits.
    ///
    /// # Panics
    /// If the decoder was loaded without.
    pub fn head(&self) -> &Linear {
        self.head.as_ref().unwrap_or_else(|| panic!("this decoder was loaded without its LM head"))
    }

    /// Computes a pass over the positions' input vectors x (rows, width) and stores their keys and values.
    ///
    /// Returns the hidden states after the final norm of the rows that the pass wants: (wanted, width).
    pub fn forward(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        x: Tensor,
        dropout: Option<Dropout<'_>>,
    ) -> Result<Tensor, DeviceError> {
        self.compute(cache, pass, (dropout, Format::Single, false), (|| Ok(x), || Ok(())))
    }

    /// [`Decoder::forward`] of a pass that may turn out not to be wanted, or whose input vectors are not known yet: the pass is
    /// made ready, on the device where it can be, and then `x` is asked for them; `go` is asked when the device has the first
    /// block to compute. If either fails, that is returned, and it is as if nothing had been computed. Hidden states that are for
    /// the head alone need not be kept in single precision.
    pub fn forward_when<E: From<DeviceError>>(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        (dropout, format): (Option<Dropout<'_>>, Format),
        (x, go): (impl FnOnce() -> Result<Tensor, E>, impl FnOnce() -> Result<(), E>),
    ) -> Result<Tensor, E> {
        self.compute(cache, pass, (dropout, format, true), (x, go))
    }

    /// Computes a pass that is made ready `ahead` of its input vectors, or else while the device begins with them.
    fn compute<E: From<DeviceError>>(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        (dropout, format, ahead): (Option<Dropout<'_>>, Format, bool),
        (x, go): (impl FnOnce() -> Result<Tensor, E>, impl FnOnce() -> Result<(), E>),
    ) -> Result<Tensor, E> {
        let (device, width) = (&self.device, self.config.width);
        let x = || {
            let x = x()?;
            assert_eq!((x.rows(), x.cols()), (pass.rows(), width), "decoder: inputs do not fit the pass");
            Ok::<Tensor, E>(x)
        };
        if pass.rows() > device.rows_at_once() {
            let x = x()?;
            go()?;
            return Ok(self.forward_in_parts(cache, pass, (dropout, format), x)?);
        }
        let seen = Seen::cut(pass, 0..pass.rows());
        if let Some(key) = self.key(cache, pass, &seen, (dropout, format)) {
            // A replay has places of its own for what is brought over, and few rows take little time.
            let part = |x| Ok(Part { x, ..Part::cut(device, pass, &seen, (dropout, width), true)? });
            let body = |part: Part<'_>| self.forward_part(cache, part, (&mut Work::default(), format), || Ok(()));
            let x = x()?;
            go()?; // what is replayed is replayed whole
            return Ok(self.replays.run(device, key, x, part, body)?);
        }
        let part = Part::cut(device, pass, &seen, (dropout, width), ahead)?;
        self.forward_part(cache, Part { x: x()?, ..part }, (&mut Work::default(), format), go)
    }

    /// A pass of more rows than the device takes at once, in parts of about as many: a small one would leave it idle.
    fn forward_in_parts(
        &self,
        cache: &mut Cache,
        pass: &Pass,
        (dropout, format): (Option<Dropout<'_>>, Format),
        x: Tensor,
    ) -> Result<Tensor, DeviceError> {
        let (mut work, mut parts) = (Work::default(), Vec::new());
        let each = pass.rows().div_ceil(pass.rows().div_ceil(self.device.rows_at_once()));
        for start in (0..pass.rows()).step_by(each) {
            let rows = start..pass.rows().min(start + each);
            let some = ops::select(&self.device, [&x], &rows.clone().collect::<Vec<_>>())?;
            let seen = Seen::cut(pass, rows);
            let part = Part::cut(&self.device, pass, &seen, (dropout, x.cols()), false)?;
            let part = Part { x: some, ..part };
            parts.push(self.forward_part(cache, part, (&mut work, format), || Ok::<(), DeviceError>(()))?);
        }
        ops::concat(&self.device, &parts.iter().collect::<Vec<_>>())
    }

    /// What a replay of this pass must have in common with it; none if it is not to be replayed.
    fn key(&self, cache: &Cache, pass: &Pass, seen: &Seen<'_>, (dropout, format): (Option<Dropout<'_>>, Format)) -> Option<Key> {
        if let Some(Dropout { masks: Masks::Recorded(_), .. }) = dropout {
            return None;
        }
        if !Key::is_worth_while(&cache.kv, pass.rows()) {
            return None;
        }
        // Checked here, since a replay does not check its inputs again.
        let (slots, context) = (cache.slots(), self.positions.as_ref().map_or(usize::MAX, Tensor::rows));
        assert!(pass.slots.iter().all(|&s| (s as usize) < slots), "decoder: a slot beyond {slots}");
        assert!(pass.attend.end() <= slots, "decoder: a span beyond {slots} slots");
        assert!(pass.positions.iter().all(|&p| (p as usize) < context), "decoder: a position beyond {context}");
        let dropout = dropout.map(|d| (d.p, [d.attn_out, d.mlp_out]));
        Some(Key::new(&cache.kv, &seen.all, seen.is_narrowed().then(|| seen.narrow()), (dropout, format)))
    }

    /// Computes a part of a pass, hidden states in a format; `go` is asked when the device has the first block to compute.
    fn forward_part<E: From<DeviceError>>(
        &self,
        cache: &mut Cache,
        mut part: Part<'_>,
        (work, format): (&mut Work, Format),
        go: impl FnOnce() -> Result<(), E>,
    ) -> Result<Tensor, E> {
        let mut go = Some(go);
        let (device, heads) = (&self.device, self.config.heads);
        part.x = self.enter(std::mem::take(&mut part.x), &part.seats, &mut work.normed)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            let next = self.blocks.get(layer + 1);
            let (by, into) = ((&block.qkv, self.placing(block)), (&mut cache.kv, layer));
            ops::project(device, &work.normed, by, into, &part.seats, &mut work.qkv)?;
            work.normed.let_go();
            let mut sight = part.sight(device)?;
            if next.is_none() {
                sight = part.narrow(device, sight, &mut work.qkv)?; // from here on only what was asked for
            }
            ops::attention(device, &work.qkv, cache.kv.layer(layer), heads, &sight.views, &mut work.mixed)?;
            work.qkv.let_go();
            let mask = sight.dropout.mask(layer, Site::AttnOut);
            let normed = (&block.mlp_norm, Format::Operand, &mut work.normed);
            ops::residual(device, &work.mixed, &block.attn_out, mask, &mut part.x, normed)?;
            work.mixed.let_go();
            self.mlp(block, work)?;
            let mask = sight.dropout.mask(layer, Site::MlpOut);
            let normed = match next {
                Some(next) => (&next.attn_norm, Format::Operand, &mut work.normed),
                None => (&self.final_norm, format, &mut work.normed),
            };
            ops::residual(device, &work.inner, &block.mlp_out, mask, &mut part.x, normed)?;
            work.inner.let_go();
            part.sight = Some(sight);
            if let Some(go) = go.take() {
                go()?;
            }
        }
        Ok(std::mem::take(&mut work.normed))
    }

    /// The stream that input vectors become, normed for the first block.
    fn enter(&self, x: Tensor, seats: &Seats, normed: &mut Tensor) -> Result<Tensor, DeviceError> {
        let positions = self.positions.as_ref().map(|table| (table, &seats.positions));
        ops::enter(&self.device, x, positions, (&self.blocks[0].attn_norm, Format::Operand), normed)
    }

    fn placing<'a>(&'a self, block: &'a Block) -> Place<'a> {
        Place { heads: self.config.heads, norms: block.qk_norm.as_ref().map(|(q, k)| (q, k)), rope: self.rope.as_ref() }
    }

    /// The MLP up to its last product: from `work.normed`, which is let go, into `work.inner`.
    fn mlp(&self, block: &Block, work: &mut Work) -> Result<(), DeviceError> {
        let (device, normed) = (&self.device, &work.normed);
        let into = |activation, out: &mut Tensor| ops::linear(device, normed, &block.mlp_in, (activation, Format::Operand), out);
        match self.config.mlp {
            Mlp::Gelu => into(Activation::GeluTanh, &mut work.inner)?,
            Mlp::GeluErf => into(Activation::GeluErf, &mut work.inner)?,
            Mlp::SwiGlu => {
                into(Activation::None, &mut work.gates)?;
                ops::swiglu(device, &work.gates, &mut work.inner)?;
                work.gates.let_go();
            }
        }
        work.normed.let_go();
        Ok(())
    }

    /// Floating-point operations of some positions of a sequence in the blocks: the products, and attention over all before.
    pub fn flops_of(&self, positions: Range<usize>) -> f64 {
        let (from, to) = (positions.start, positions.end);
        let seen = (to * (to + 1) - from * (from + 1)) / 2;
        (to - from) as f64 * self.flops_per_position() + seen as f64 * self.flops_per_seen()
    }

    /// Floating-point operations of one position in the blocks, leaving out what depends on how much it sees.
    pub fn flops_per_position(&self) -> f64 {
        self.flops_per_position
    }

    /// Floating-point operations of attention for each position that a position sees.
    pub fn flops_per_seen(&self) -> f64 {
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

    fn load(device: &Device, parts: Parts<'_>, source: &impl TensorSource, i: usize) -> Result<Self, Error> {
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
/// In single precision step by step, as transformers has it: at position 1000 a last-place difference in a frequency is a
/// difference in the fourth digit of an angle, and random models amplify it from thought to thought.
fn rotations(config: &Config) -> Option<Vec<f32>> {
    let Positions::Rope { theta, scaling } = config.positions else { return None };
    let base = |i: usize| 1.0 / (theta as f32).powf((2 * i) as f32 / config.head_dim as f32);
    let stretch = |f: f32| {
        let Some(config::Llama3Scaling { factor, low, high, original_context }) = scaling else { return f };
        let (factor, low, high, context) = (factor as f32, low as f32, high as f32, original_context as f32);
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

/// Activations of one part of a pass. On the processor their memory is kept from layer to layer; a GPU's is let go as soon as nothing
/// reads them any more, so that all activations of a layer fit its cache.
#[derive(Default)]
struct Work {
    normed: Tensor, // (rows, width)
    qkv: Tensor,    // (rows, (heads + 2 kv_heads) * head_dim)
    mixed: Tensor,  // (rows, heads * head_dim)
    gates: Tensor,  // (rows, 2 ffn), SwiGLU only
    inner: Tensor,  // (rows, ffn)
}

/// What some rows of a pass see.
struct Seen<'a> {
    rows: Range<usize>,
    all: Cow<'a, Attend>,
    wanted: Vec<usize>,       // counted from the first row
    narrow: OnceCell<Attend>, // what the wanted rows see
}

impl<'a> Seen<'a> {
    fn cut(pass: &'a Pass, rows: Range<usize>) -> Self {
        let whole = rows.len() == pass.rows();
        let all = if whole { Cow::Borrowed(&pass.attend) } else { Cow::Owned(pass.attend.select(rows.clone())) };
        let wanted = pass.wanted.iter().filter(|w| rows.contains(w)).map(|w| w - rows.start).collect();
        Self { rows, all, wanted, narrow: OnceCell::new() }
    }

    fn is_narrowed(&self) -> bool {
        self.wanted.len() < self.rows.len()
    }

    fn narrow(&self) -> &Attend {
        self.narrow.get_or_init(|| self.all.select(self.wanted.iter().copied()))
    }
}

/// Some rows of a pass, with everything that belongs to them, on the device.
struct Part<'a> {
    x: Tensor, // (rows, width): the residual stream
    seats: Seats,
    seen: &'a Seen<'a>,
    dropout: Option<Dropout<'a>>, // of the whole pass
    sight: Option<Sight<'a>>,     // when it is there
    narrow: Option<Narrow<'a>>,   // if it is there ahead of time
}

/// What rows see and what is dropped of them: what a layer needs after its first product.
#[derive(Debug)]
struct Sight<'a> {
    views: Views<'a>,
    dropout: PartDropout,
}

/// The rows of a part that were asked for.
#[derive(Debug)]
struct Narrow<'a> {
    rows: Indices, // counted from the part's first row
    views: Views<'a>,
    dropout: PartDropout,
}

impl<'a> Narrow<'a> {
    fn of(device: &Device, seen: &'a Seen<'_>, dropout: &PartDropout, width: usize) -> Result<Self, DeviceError> {
        Ok(Self {
            rows: Indices::new(device, seen.wanted.iter().map(|&r| r as u32).collect())?,
            views: Views::new(device, Cow::Borrowed(seen.narrow()))?,
            dropout: dropout.select(device, &seen.wanted, width)?,
        })
    }
}

impl<'a> Sight<'a> {
    fn of(device: &Device, seen: &'a Seen<'_>, dropout: Option<Dropout<'_>>, width: usize) -> Result<Self, DeviceError> {
        let dropout = PartDropout::cut(device, dropout, width, seen.rows.clone())?;
        Ok(Self { views: Views::new(device, Cow::Borrowed(&*seen.all))?, dropout })
    }
}

impl<'a> Part<'a> {
    /// Some rows of a pass, but for their input vectors of that width, which are put in when they are there. With `ahead`,
    /// everything that the pass will need is brought to the device at once; without, what is needed later is made while the
    /// device is busy.
    fn cut(
        device: &Device,
        pass: &Pass,
        seen: &'a Seen<'a>,
        (dropout, width): (Option<Dropout<'a>>, usize),
        ahead: bool,
    ) -> Result<Self, DeviceError> {
        let seats = Seats {
            positions: Indices::new(device, pass.positions[seen.rows.clone()].to_vec())?,
            slots: Indices::new(device, pass.slots[seen.rows.clone()].to_vec())?,
        };
        let sight = if ahead { Some(Sight::of(device, seen, dropout, width)?) } else { None };
        let wider = sight.as_ref().filter(|_| seen.is_narrowed());
        let narrow = wider.map(|sight| Narrow::of(device, seen, &sight.dropout, width)).transpose()?;
        Ok(Self { x: Tensor::default(), seats, seen, dropout, sight, narrow })
    }

    /// What its rows see.
    fn sight(&mut self, device: &Device) -> Result<Sight<'a>, DeviceError> {
        self.sight.take().map_or_else(|| Sight::of(device, self.seen, self.dropout, self.x.cols()), Ok)
    }

    /// Leaves the rows out that nobody asked for; returns what the others see.
    fn narrow(&mut self, device: &Device, sight: Sight<'a>, qkv: &mut Tensor) -> Result<Sight<'a>, DeviceError> {
        if !self.seen.is_narrowed() {
            return Ok(sight);
        }
        let made = self.narrow.take().map_or_else(|| Narrow::of(device, self.seen, &sight.dropout, self.x.cols()), Ok)?;
        self.x = ops::gather(device, &self.x, &made.rows)?;
        *qkv = ops::gather(device, qkv, &made.rows)?;
        Ok(Sight { views: made.views, dropout: made.dropout })
    }
}

/// The dropout of some rows.
#[derive(Debug)]
enum PartDropout {
    None,
    Drawn { p: f32, sites: [bool; 2], draws: Draws },
    Recorded { p: f32, sites: [bool; 2], masks: Vec<Vec<u8>>, keep: Vec<Keep> },
}

impl PartDropout {
    fn cut(device: &Device, dropout: Option<Dropout<'_>>, width: usize, rows: Range<usize>) -> Result<Self, DeviceError> {
        let Some(Dropout { p, attn_out, mlp_out, masks }) = dropout else { return Ok(Self::None) };
        let sites = [attn_out, mlp_out];
        match masks {
            Masks::Drawn(draws) => Ok(Self::Drawn { p, sites, draws: Draws::new(device, draws[rows].to_vec())? }),
            Masks::Recorded(masks) => {
                let masks: Vec<_> = masks.iter().map(|m| m[rows.start * width..rows.end * width].to_vec()).collect();
                let keep = keep(device, &masks, width)?;
                Ok(Self::Recorded { p, sites, masks, keep })
            }
        }
    }

    fn select(&self, device: &Device, wanted: &[usize], width: usize) -> Result<Self, DeviceError> {
        Ok(match self {
            Self::None => Self::None,
            Self::Drawn { p, sites, draws } => {
                let draws = Draws::new(device, wanted.iter().map(|&r| draws.rows()[r]).collect())?;
                Self::Drawn { p: *p, sites: *sites, draws }
            }
            Self::Recorded { p, sites, masks, .. } => {
                let picked = |mask: &Vec<u8>| wanted.iter().flat_map(|&r| &mask[r * width..(r + 1) * width]).copied().collect();
                let masks: Vec<Vec<u8>> = masks.iter().map(picked).collect();
                let keep = keep(device, &masks, width)?;
                Self::Recorded { p: *p, sites: *sites, masks, keep }
            }
        })
    }

    fn mask(&self, layer: usize, site: Site) -> Option<Mask<'_>> {
        let which = usize::from(site == Site::MlpOut);
        match self {
            Self::Drawn { p, sites, draws } if sites[which] => Some(Mask::Drawn { p: *p, layer, site, draws }),
            Self::Recorded { p, sites, keep, .. } if sites[which] => {
                Some(Mask::Recorded { p: *p, keep: &keep[2 * layer + which] })
            }
            _ => None,
        }
    }
}

fn keep(device: &Device, masks: &[Vec<u8>], width: usize) -> Result<Vec<Keep>, DeviceError> {
    masks.iter().map(|m| Keep::new(device, m.len() / width, width, m.clone())).collect()
}
