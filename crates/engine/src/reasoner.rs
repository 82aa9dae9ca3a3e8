//! A checkpoint becomes a reasoner or a reward model.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use model::{
    Checkpoint, Decoder, GaussianMeanNames, LatentHead, LmHead, MlpNames, ModelFiles, RewardHead,
    SwiGluNames, Tokenizer,
};
use tensor::ops::{self, PendingTokens};
use tensor::{Device, DeviceError, Tensor};

use crate::error::EngineError;
use crate::method::{Family, Method};

/// What thinks: tokens in, tokens out. It knows nothing of text.
pub struct LatentModel {
    /// The transformer.
    pub decoder: Decoder,
    /// What differs between families.
    pub method: Method,
    /// What makes a thought of a hidden state.
    pub head: LatentHead,
    /// Embeddings that a checkpoint gives beside its table.
    pub marker_embeddings: BTreeMap<u32, Vec<f32>>,
}

impl LatentModel {
    /// The input vectors of some tokens: (tokens, width).
    pub fn embed(&self, tokens: &[u32]) -> Result<Tensor, DeviceError> {
        if !tokens.iter().any(|token| self.marker_embeddings.contains_key(token)) {
            return self.decoder.embed(tokens);
        }
        // Markers' vectors are put in on the host, where each token is but once, however many rows
        // have it.
        let distinct: Vec<u32> = BTreeSet::from_iter(tokens).into_iter().copied().collect();
        let mut vectors = self.decoder.embed(&distinct)?.to_host()?;
        for (r, vector) in distinct
            .iter()
            .enumerate()
            .filter_map(|(r, token)| Some((r, self.marker_embeddings.get(token)?)))
        {
            vectors.row_mut(r).copy_from_slice(vector);
        }
        let (device, places) = (
            self.decoder.device(),
            tokens.iter().map(|token| distinct.partition_point(|d| d < token)),
        );
        ops::select(device, [&vectors.to_device(device)?], &places.collect::<Vec<_>>())
    }

    /// The same of tokens that nobody has read yet; none where some tokens' vectors are not in the
    /// table.
    pub(crate) fn embed_pending(
        &self,
        tokens: &PendingTokens,
    ) -> Result<Option<Tensor>, DeviceError> {
        if !self.marker_embeddings.is_empty() {
            return Ok(None);
        }
        tokens.lookup(self.decoder.device(), self.decoder.embedding()).map(Some)
    }
}

/// A latent reasoner: a mind that reads and writes text.
pub struct Reasoner {
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// What thinks.
    pub model: LatentModel,
}

impl Deref for Reasoner {
    type Target = LatentModel;

    fn deref(&self) -> &LatentModel {
        &self.model
    }
}

/// Tokens that Latent-SFT mixes.
const MIXTURE_TOKENS: usize = 10;
/// CoLaR's embedding scale where config.json does not say.
const COLAR_STD: f32 = 0.018;

impl Reasoner {
    /// Loads a checkpoint; `family` overrides what is recognised.
    pub fn load(
        device: &Device,
        from: impl Into<ModelFiles>,
        family: Option<Family>,
    ) -> Result<Self, EngineError> {
        let checkpoint = Checkpoint::open(from)?;
        let dir = checkpoint.dir();
        if RewardHead::detect(&checkpoint).is_some() {
            return Err(EngineError::RewardModelAsReasoner { dir: dir.to_owned() });
        }
        let tokenizer = Tokenizer::read(checkpoint.model_files())?;
        let FamilyParts { method, head, markers } =
            FamilyParts::read(device, &checkpoint, &tokenizer, family)?;
        let decoder =
            device.run(|| Decoder::load(device, checkpoint.config(), &checkpoint, LmHead::With))?;
        let unused = checkpoint.unused_tensors();
        if !unused.is_empty() {
            return Err(EngineError::UnusedTensors {
                dir: dir.to_owned(),
                family: method.family,
                unused,
            });
        }
        Ok(Self {
            tokenizer,
            model: LatentModel { decoder, method, head, marker_embeddings: markers },
        })
    }
}

/// What a family adds to a decoder.
pub struct FamilyParts {
    /// What differs between families.
    pub method: Method,
    /// What makes a thought of a hidden state.
    pub head: LatentHead,
    /// Embeddings beside the table.
    pub markers: BTreeMap<u32, Vec<f32>>,
}

impl FamilyParts {
    /// Reads them from a checkpoint; `family` overrides what is recognised.
    pub fn read(
        device: &Device,
        checkpoint: &Checkpoint,
        tokenizer: &Tokenizer,
        family: Option<Family>,
    ) -> Result<Self, EngineError> {
        let family = family.map_or_else(|| Family::detect(checkpoint, tokenizer), Ok)?;
        let method = Method::resolve(family, checkpoint, tokenizer)?;
        let head = latent_head(device, family, checkpoint)?;
        let markers = marker_embeddings(&method, checkpoint)?;
        Ok(Self { method, head, markers })
    }
}

/// Tensor names of CODI's projector.
pub const CODI_HEAD: MlpNames =
    MlpNames { up: "projector.1", down: "projector.3", norm: "projector.4" };
/// Tensor names of CoLaR's latent policy.
const COLAR_HEAD: GaussianMeanNames = GaussianMeanNames {
    up: "lt_head.fc.0",
    down: "lt_head.fc.2",
    norm: "lt_head.fc.3",
    mean: "lt_head.mean",
};
/// Tensor names of Render-of-Thought's projection head.
const ROT_HEAD: SwiGluNames = SwiGluNames {
    norm: "projection_head.0",
    up: "projection_head.1",
    gate: "projection_head.2.w1",
    value: "projection_head.2.w2",
    down: "projection_head.2.w3",
    out: "projection_head.3",
};

fn latent_head(
    device: &Device,
    family: Family,
    checkpoint: &Checkpoint,
) -> Result<LatentHead, EngineError> {
    Ok(match family {
        Family::Coconut | Family::Cot => LatentHead::Identity,
        Family::Codi => LatentHead::mlp(device, checkpoint, &CODI_HEAD)?,
        Family::Colar => {
            let std = checkpoint.config().latent.embedding_std.unwrap_or(COLAR_STD);
            LatentHead::gaussian_mean(device, checkpoint, &COLAR_HEAD, std)?
        }
        Family::LatentSft => LatentHead::TopKMixture { k: MIXTURE_TOKENS },
        Family::Rot => LatentHead::swiglu(device, checkpoint, &ROT_HEAD)?,
    })
}

/// Render-of-Thought's frozen marker embeddings, which live beside the table.
fn marker_embeddings(
    method: &Method,
    checkpoint: &Checkpoint,
) -> Result<BTreeMap<u32, Vec<f32>>, EngineError> {
    let mut out = BTreeMap::new();
    for (name, tokens) in
        [("img_begin_emb", &method.begin_latent), ("img_end_emb", &method.end_latent)]
    {
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
    pub outcome_head: Option<RewardHead>,
    /// What it thinks with, before it reads what others thought; a judge may have none.
    pub reference: Option<LatentModel>,
}

/// The folder of a judge's own mind.
pub const REFERENCE_DIR: &str = "mind";

impl RewardModel {
    /// Loads a LatentRM for thoughts of a reasoner.
    pub fn load(
        device: &Device,
        from: impl Into<ModelFiles>,
        reasoner: &Reasoner,
    ) -> Result<Self, EngineError> {
        let checkpoint = Checkpoint::open(from)?;
        if RewardHead::detect(&checkpoint).is_none() {
            return Err(EngineError::NotARewardModel { dir: checkpoint.dir().to_owned() });
        }
        let (reward, width) = (checkpoint.config().width, reasoner.decoder.config().width);
        if reward != width {
            return Err(EngineError::WidthDiffers { reward, reasoner: width });
        }
        let head = RewardHead::load(device, checkpoint.config(), &checkpoint)?;
        let verdict = RewardHead::outcome(device, checkpoint.config(), &checkpoint)?;
        let (reads, says) = (checkpoint.config().vocab, reasoner.decoder.config().vocab);
        if verdict.is_some() && reads < says {
            return Err(EngineError::UnreadableAnswers { reads, says });
        }
        let decoder = device
            .run(|| Decoder::load(device, checkpoint.config(), &checkpoint, LmHead::Without))?;
        let mind = checkpoint
            .model_files()
            .subdir(REFERENCE_DIR)
            .map(|folder| Self::load_reference(device, folder, width))
            .transpose()?;
        Ok(Self { decoder, head, outcome_head: verdict, reference: mind })
    }

    /// Loads what a judge of a width thinks with: a reasoner.
    pub fn load_reference(
        device: &Device,
        from: impl Into<ModelFiles>,
        width: usize,
    ) -> Result<LatentModel, EngineError> {
        let folder = from.into();
        let mind = Reasoner::load(device, &folder, None)?.model;
        let unfit =
            |why: String| Err(EngineError::UnfitMind { dir: folder.path().to_owned(), why });
        match (mind.decoder.config().width, mind.method.length.limit()) {
            (own, _) if own != width => unfit(format!("it is {own} wide and the judge {width}")),
            (_, 0) => unfit(format!("a {} model has no thoughts", mind.method.family)),
            _ => Ok(mind),
        }
    }

    /// Thoughts of its own that it has at most.
    pub(crate) fn reference_thoughts(&self) -> usize {
        self.reference.as_ref().map_or(0, |mind| mind.method.length.limit())
    }

    /// Positions of a row that it reads: thoughts, and what was said after them if it reads
    /// answers.
    pub(crate) fn positions_read(&self, thoughts: usize, said: usize) -> usize {
        thoughts + if self.outcome_head.is_some() { said } else { 0 }
    }
}
