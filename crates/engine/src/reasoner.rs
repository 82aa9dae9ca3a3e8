//! Loads a checkpoint as a reasoner or a reward model.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use data::answer::{Answer, AnswerKind};
use model::{
    Checkpoint, Decoder, LatentHead, LmHead, ModelError, ModelFiles, ModelWarning, RewardHead,
    StopGate, Tokenizer,
};
use tensor::ops::{self, PendingTokens};
use tensor::{Device, DeviceError, Tensor};

use crate::error::EngineError;
use crate::family::Family;
use crate::method::Method;
use crate::sampling_params::{Search, SearchMethod};

/// A latent reasoner without text: tokens in, thoughts and tokens out. Clones share the weights.
#[derive(Clone)]
pub struct LatentModel {
    /// The transformer.
    pub decoder: Arc<Decoder>,
    /// Prompt template, lengths, end tokens, answer rule and defaults.
    pub method: Method,
    /// Turns a hidden state into the next thought.
    pub head: Arc<LatentHead>,
    /// Embeddings that the checkpoint stores outside its embedding table, by token, each (width).
    pub marker_embeddings: BTreeMap<u32, Vec<f32>>,
    /// Decides when open-ended thoughts stop, in models with such a gate.
    pub gate: Option<Arc<StopGate>>,
}

impl LatentModel {
    /// The input vectors of some tokens: (tokens, width).
    pub fn embed(&self, tokens: &[u32]) -> Result<Tensor, DeviceError> {
        if !tokens.iter().any(|token| self.marker_embeddings.contains_key(token)) {
            return self.decoder.embed(tokens);
        }
        // Marker embeddings are inserted on the host: each distinct token is transferred once,
        // however many sequences have it.
        let distinct: Vec<u32> = BTreeSet::from_iter(tokens).into_iter().copied().collect();
        let mut vectors = self.decoder.embed(&distinct)?.to_host()?;
        for (r, token) in distinct.iter().enumerate() {
            if let Some(vector) = self.marker_embeddings.get(token) {
                vectors.row_mut(r).copy_from_slice(vector);
            }
        }
        let device = self.decoder.device();
        let indices: Vec<usize> = tokens
            .iter()
            .map(|token: &u32| distinct.partition_point(|other| other < token))
            .collect();
        ops::select(device, [&vectors.to_device(device)?], &indices)
    }

    /// The input vectors of some tokens; `None` if there are no tokens.
    pub(crate) fn embed_some(&self, tokens: &[u32]) -> Result<Option<Tensor>, DeviceError> {
        if tokens.is_empty() { Ok(None) } else { self.embed(tokens).map(Some) }
    }

    /// The input vectors of tokens that are still on the device; `None` if some tokens' embeddings
    /// are outside the table.
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

/// A latent reasoner with its tokenizer.
pub struct Reasoner {
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The model.
    pub model: LatentModel,
    /// The files that it was loaded from.
    pub files: ModelFiles,
    /// Problems of the checkpoint that do not prevent its use.
    pub warnings: Vec<ModelWarning>,
}

impl Deref for Reasoner {
    type Target = LatentModel;

    fn deref(&self) -> &LatentModel {
        &self.model
    }
}

impl Reasoner {
    /// Loads a checkpoint; `family` overrides what is detected.
    pub fn load(
        device: &Device,
        from: impl Into<ModelFiles>,
        family: Option<Family>,
    ) -> Result<Self, EngineError> {
        let checkpoint = Checkpoint::open(from)?;
        let dir = || checkpoint.dir().to_owned();
        if RewardHead::detect(&checkpoint).is_some() {
            return Err(EngineError::RewardModelAsReasoner { dir: dir() });
        }
        let tokenizer = Tokenizer::read(checkpoint.model_files())?;
        let FamilyParts { method, head, marker_embeddings, gate } =
            FamilyParts::read(device, &checkpoint, &tokenizer, family)?;
        let decoder =
            device.run(|| Decoder::load(device, checkpoint.config(), &checkpoint, LmHead::With))?;
        let unused = checkpoint.unused_tensors();
        if !unused.is_empty() {
            let dir = dir();
            let family = method.family;
            return Err(EngineError::UnusedTensors { dir, family, unused });
        }
        let decoder = Arc::new(decoder);
        let head = Arc::new(head);
        Ok(Self {
            tokenizer: Arc::new(tokenizer),
            model: LatentModel {
                decoder,
                method,
                head,
                marker_embeddings,
                gate: gate.map(Arc::new),
            },
            files: checkpoint.model_files().clone(),
            warnings: checkpoint.warnings().to_vec(),
        })
    }

    /// The digest of the checkpoint's weights.
    pub fn digest(&self) -> Result<String, ModelError> {
        Checkpoint::open(&self.files)?.digest()
    }

    /// Decodes an answer's tokens, and extracts the answer by the family's rule.
    pub fn parse_answer(
        &self,
        kind: AnswerKind,
        tokens: &[u32],
    ) -> Result<(String, Option<Answer>), EngineError> {
        let text = self.tokenizer.decode(tokens)?;
        let answer = self.method.answer_rule.extract(kind, &text);
        Ok((text, answer))
    }
}

/// The family-specific parts of a model.
pub struct FamilyParts {
    /// Prompt template, lengths, end tokens, answer rule and defaults.
    pub method: Method,
    /// Turns a hidden state into the next thought.
    pub head: LatentHead,
    /// Embeddings outside the table, by token, each (width).
    pub marker_embeddings: BTreeMap<u32, Vec<f32>>,
    /// Decides when open-ended thoughts stop.
    pub gate: Option<StopGate>,
}

impl FamilyParts {
    /// Reads them from a checkpoint; `family` overrides what is detected.
    pub fn read(
        device: &Device,
        checkpoint: &Checkpoint,
        tokenizer: &Tokenizer,
        family: Option<Family>,
    ) -> Result<Self, EngineError> {
        let family = family.map_or_else(|| Family::detect(checkpoint, tokenizer), Ok)?;
        let method = Method::resolve(family, checkpoint, tokenizer)?;
        let head = family.spec().latent_head(device, checkpoint)?;
        let marker_embeddings = family.spec().marker_embeddings(&method, checkpoint)?;
        let gate = family.spec().stop_gate(device, checkpoint)?;
        Ok(Self { method, head, marker_embeddings, gate })
    }
}

/// A Latent Reward Model: a decoder over prompt and thoughts, with a scalar head.
pub struct RewardModel {
    /// The transformer.
    pub decoder: Decoder,
    /// Computes a process reward at each thought's position.
    pub head: RewardHead,
    /// Computes an outcome reward at the end of the answer, in a reward model that scores answers.
    pub outcome_head: Option<RewardHead>,
    /// The reference reasoner, whose thoughts about the question precede the candidate's.
    pub reference: Option<LatentModel>,
    /// Problems of the checkpoint that do not prevent its use.
    pub warnings: Vec<ModelWarning>,
}

/// The subdirectory of a reward model that contains its reference reasoner.
pub const REFERENCE_DIR: &str = "reference";

/// Its name in reward models of version 0.1.
pub const OLD_REFERENCE_DIR: &str = "mind";

/// The files of the reference reasoner in a reward model's directory, if it is there.
pub fn reference_files(reward_model: &ModelFiles) -> Option<ModelFiles> {
    let old = || reward_model.subdir(OLD_REFERENCE_DIR);
    reward_model.subdir(REFERENCE_DIR).or_else(old)
}

impl RewardModel {
    /// Number of finished paths of a search that are decoded: all that are retained if they vote or
    /// outcome rewards rank their answers, else 1.
    pub(crate) fn num_finalists(&self, search: Search) -> usize {
        let needs_all = search.method != SearchMethod::Beam || self.outcome_head.is_some();
        if needs_all { search.width.get() } else { 1 }
    }

    /// Loads a LatentRM for the thoughts of a reasoner. On a device of precision fp8 it is loaded
    /// in bf16: votes over many trajectories tolerate rounding, a ranking of them does not
    /// (docs/explanation/numerics.md).
    pub fn load(
        device: &Device,
        from: impl Into<ModelFiles>,
        reasoner: &Reasoner,
    ) -> Result<Self, EngineError> {
        let device = &device.without_fp8();
        let checkpoint = Checkpoint::open(from)?;
        if RewardHead::detect(&checkpoint).is_none() {
            return Err(EngineError::NotARewardModel { dir: checkpoint.dir().to_owned() });
        }
        let config = checkpoint.config();
        let width = reasoner.decoder.config().width;
        if config.width != width {
            return Err(EngineError::WidthDiffers { reward: config.width, reasoner: width });
        }
        let head = RewardHead::load(device, config, &checkpoint)?;
        let outcome_head = RewardHead::outcome(device, config, &checkpoint)?;
        let reads = config.vocab;
        let says = reasoner.decoder.config().vocab;
        if outcome_head.is_some() && reads < says {
            return Err(EngineError::UnreadableAnswers { reads, says });
        }
        let decoder = device.run(|| Decoder::load(device, config, &checkpoint, LmHead::Without))?;
        let reference = Self::find_reference(device, &checkpoint, reasoner)?;
        let warnings = checkpoint.warnings().to_vec();
        Ok(Self { decoder, head, outcome_head, reference, warnings })
    }

    /// The reference reasoner of a checkpoint: a copy in its directory, or the one at the recorded
    /// path. If it is the reasoner itself, both share the weights.
    fn find_reference(
        device: &Device,
        checkpoint: &Checkpoint,
        reasoner: &Reasoner,
    ) -> Result<Option<LatentModel>, EngineError> {
        let files = checkpoint.model_files();
        let width = checkpoint.config().width;
        if let Some(copy) = reference_files(files) {
            return Self::load_reference(device, copy, width).map(Some);
        }
        let Some(record) = &checkpoint.config().reference else { return Ok(None) };
        if record.digest == reasoner.digest()? {
            return fitting(reasoner.model.clone(), files.path(), width).map(Some);
        }
        let path = files.path().join(&record.path);
        if !path.exists() {
            let dir = files.path().to_owned();
            return Err(EngineError::MissingReference { dir, path });
        }
        Self::load_reference(device, &path, width).map(Some)
    }

    /// Loads a reference reasoner for a reward model of the given width.
    pub fn load_reference(
        device: &Device,
        from: impl Into<ModelFiles>,
        width: usize,
    ) -> Result<LatentModel, EngineError> {
        let files = from.into();
        let model = Reasoner::load(device, &files, None)?.model;
        fitting(model, files.path(), width)
    }

    /// Maximum thoughts of a reference trace; 0 without a reference reasoner.
    pub(crate) fn reference_thoughts(&self) -> usize {
        self.reference.as_ref().map_or(0, |model| model.method.length.limit())
    }

    /// Positions of a sequence that it reads: thoughts, and with an outcome head also the end
    /// tokens and the answer.
    pub(crate) fn positions_read(&self, thoughts: usize, answer: usize) -> usize {
        thoughts + if self.outcome_head.is_some() { answer } else { 0 }
    }
}

/// Checks that a model can be the reference reasoner of a reward model of the given width.
fn fitting(model: LatentModel, dir: &Path, width: usize) -> Result<LatentModel, EngineError> {
    let unfit = |why: String| Err(EngineError::UnfitReference { dir: dir.to_owned(), why });
    match (model.decoder.config().width, model.method.length.limit()) {
        (own, _) if own != width => {
            unfit(format!("its width is {own} and the reward model's is {width}"))
        }
        (_, 0) => unfit(format!("a {} model has no thoughts", model.method.family)),
        _ => Ok(model),
    }
}
