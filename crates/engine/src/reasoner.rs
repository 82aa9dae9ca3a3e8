//! A checkpoint becomes a reasoner or a reward model.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use model::{Checkpoint, Decoder, Folder, LatentHead, LmHead, RewardHead, Tokenizer};
use tensor::ops::{self, Asked};
use tensor::{Device, DeviceError, Tensor};

use crate::error::Error;
use crate::method::{Family, Method};

/// What thinks: tokens in, tokens out. It knows nothing of text.
pub struct Mind {
    /// The transformer.
    pub decoder: Decoder,
    /// What differs between families.
    pub method: Method,
    /// What makes a thought of a hidden state.
    pub head: LatentHead,
    /// Embeddings that a checkpoint gives beside its table.
    pub markers: BTreeMap<u32, Vec<f32>>,
}

impl Mind {
    /// The input vectors of some tokens: (tokens, width).
    pub fn embed(&self, tokens: &[u32]) -> Result<Tensor, DeviceError> {
        if !tokens.iter().any(|token| self.markers.contains_key(token)) {
            return self.decoder.embed(tokens);
        }
        // Markers' vectors are put in on the host, where each token is but once, however many rows have it.
        let distinct: Vec<u32> = BTreeSet::from_iter(tokens).into_iter().copied().collect();
        let mut vectors = self.decoder.embed(&distinct)?.to_host()?;
        for (r, vector) in distinct.iter().enumerate().filter_map(|(r, token)| Some((r, self.markers.get(token)?))) {
            vectors.row_mut(r).copy_from_slice(vector);
        }
        let (device, places) = (self.decoder.device(), tokens.iter().map(|token| distinct.partition_point(|d| d < token)));
        ops::select(device, [&vectors.to_device(device)?], &places.collect::<Vec<_>>())
    }

    /// The same of tokens that nobody has read yet; none where some tokens' vectors are not in the table.
    pub(crate) fn embed_asked(&self, tokens: &Asked) -> Result<Option<Tensor>, DeviceError> {
        if !self.markers.is_empty() {
            return Ok(None);
        }
        tokens.lookup(self.decoder.device(), self.decoder.table()).map(Some)
    }
}

/// A latent reasoner: a mind that reads and writes text.
pub struct Reasoner {
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// What thinks.
    pub mind: Mind,
}

impl Deref for Reasoner {
    type Target = Mind;

    fn deref(&self) -> &Mind {
        &self.mind
    }
}

/// Tokens that Latent-SFT mixes.
const MIXTURE: usize = 10;
/// CoLaR's embedding scale where config.json does not say.
const COLAR_STD: f32 = 0.018;

impl Reasoner {
    /// Loads a checkpoint; `family` overrides what is recognised.
    pub fn load(device: &Device, from: impl Into<Folder>, family: Option<Family>) -> Result<Self, Error> {
        let checkpoint = Checkpoint::open(from)?;
        let dir = checkpoint.dir();
        if RewardHead::find(&checkpoint).is_some() {
            return Err(Error::RewardModelAsReasoner { dir: dir.to_owned() });
        }
        let tokenizer = Tokenizer::read(checkpoint.folder())?;
        let Extras { method, head, markers } = Extras::read(device, &checkpoint, &tokenizer, family)?;
        let decoder = device.run(|| Decoder::load(device, checkpoint.config(), &checkpoint, LmHead::With))?;
        let unused = checkpoint.unused();
        if !unused.is_empty() {
            return Err(Error::UnusedTensors { dir: dir.to_owned(), family: method.family, unused });
        }
        Ok(Self { tokenizer, mind: Mind { decoder, method, head, markers } })
    }
}

/// What a family adds to a decoder.
pub struct Extras {
    /// What differs between families.
    pub method: Method,
    /// What makes a thought of a hidden state.
    pub head: LatentHead,
    /// Embeddings beside the table.
    pub markers: BTreeMap<u32, Vec<f32>>,
}

impl Extras {
    /// Reads them from a checkpoint; `family` overrides what is recognised.
    pub fn read(device: &Device, checkpoint: &Checkpoint, tokenizer: &Tokenizer, family: Option<Family>) -> Result<Self, Error> {
        let family = family.map_or_else(|| Family::recognise(checkpoint, tokenizer), Ok)?;
        let method = Method::resolve(family, checkpoint, tokenizer)?;
        let head = latent_head(device, family, checkpoint)?;
        let markers = markers(&method, checkpoint)?;
        Ok(Self { method, head, markers })
    }
}

fn latent_head(device: &Device, family: Family, checkpoint: &Checkpoint) -> Result<LatentHead, Error> {
    let config = checkpoint.config();
    let rows =
        |name: &str, otherwise: usize| checkpoint.shape(name).map_or(otherwise, |s| s.first().copied().unwrap_or(otherwise));
    let width = config.width;
    Ok(match family {
        Family::Coconut | Family::Cot => LatentHead::Identity,
        Family::Codi => LatentHead::projector(device, config, checkpoint, rows("projector.1.weight", width))?,
        Family::Colar => {
            let std = config.latent.embedding_std.unwrap_or(COLAR_STD);
            LatentHead::mean(device, config, checkpoint, (rows("lt_head.fc.0.weight", width), std))?
        }
        Family::LatentSft => LatentHead::Mixture { k: MIXTURE },
        Family::Rot => LatentHead::projection(device, config, checkpoint, rows("projection_head.1.weight", width))?,
    })
}

/// Render-of-Thought's frozen marker embeddings, which live beside the table.
fn markers(method: &Method, checkpoint: &Checkpoint) -> Result<BTreeMap<u32, Vec<f32>>, Error> {
    let mut out = BTreeMap::new();
    for (name, tokens) in [("img_begin_emb", &method.then), ("img_end_emb", &method.end)] {
        if let (true, Some(&token)) = (checkpoint.has(name), tokens.first()) {
            out.insert(token, checkpoint.tensor(name, &[checkpoint.config().width])?);
        }
    }
    Ok(out)
}

/// A Latent Reward Model: a decoder that reads prompt and thoughts, and a scalar head.
pub struct RewardModel {
    /// The transformer.
    pub decoder: Decoder,
    /// What makes a reward of a hidden state.
    pub head: RewardHead,
    /// What judges whole answers, in a judge that reads them.
    pub verdict: Option<RewardHead>,
    /// What it thinks with, before it reads what others thought; a judge may have none.
    pub mind: Option<Mind>,
}

/// The folder of a judge's own mind.
pub const MIND: &str = "mind";

impl RewardModel {
    /// Loads a LatentRM for thoughts of a reasoner.
    pub fn load(device: &Device, from: impl Into<Folder>, reasoner: &Reasoner) -> Result<Self, Error> {
        let checkpoint = Checkpoint::open(from)?;
        if RewardHead::find(&checkpoint).is_none() {
            return Err(Error::NotARewardModel { dir: checkpoint.dir().to_owned() });
        }
        let (reward, width) = (checkpoint.config().width, reasoner.decoder.config().width);
        if reward != width {
            return Err(Error::WidthDiffers { reward, reasoner: width });
        }
        let head = RewardHead::load(device, checkpoint.config(), &checkpoint)?;
        let verdict = RewardHead::verdict(device, checkpoint.config(), &checkpoint)?;
        let (reads, says) = (checkpoint.config().vocab, reasoner.decoder.config().vocab);
        if verdict.is_some() && reads < says {
            return Err(Error::UnreadableAnswers { reads, says });
        }
        let decoder = device.run(|| Decoder::load(device, checkpoint.config(), &checkpoint, LmHead::Without))?;
        let mind = checkpoint.folder().folder(MIND).map(|folder| Self::mind(device, folder, width)).transpose()?;
        Ok(Self { decoder, head, verdict, mind })
    }

    /// Loads what a judge of a width thinks with: a reasoner.
    pub fn mind(device: &Device, from: impl Into<Folder>, width: usize) -> Result<Mind, Error> {
        let folder = from.into();
        let mind = Reasoner::load(device, &folder, None)?.mind;
        let unfit = |why: String| Err(Error::UnfitMind { dir: folder.path().to_owned(), why });
        match (mind.decoder.config().width, mind.method.length.limit()) {
            (own, _) if own != width => unfit(format!("it is {own} wide and the judge {width}")),
            (_, 0) => unfit(format!("a {} model has no thoughts", mind.method.family)),
            _ => Ok(mind),
        }
    }

    /// Thoughts of its own that it has at most.
    pub(crate) fn reflects(&self) -> usize {
        self.mind.as_ref().map_or(0, |mind| mind.method.length.limit())
    }

    /// Positions of a row that it reads: thoughts, and what was said after them if it reads answers.
    pub(crate) fn reads(&self, thoughts: usize, said: usize) -> usize {
        thoughts + if self.verdict.is_some() { said } else { 0 }
    }
}
