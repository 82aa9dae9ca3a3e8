//! The families of latent reasoners: one file per family, with everything specific to it.
//!
//! A family defines its prompt template, the head that computes thoughts, their number, the tokens
//! that end them, the position of the answer, and the names of its tensors. No other code in the
//! workspace depends on the family of a model. To add one, write its file and add it to
//! [`FAMILIES`]; a user of the library passes [`Family::new`] to
//! [`Reasoner::load`](crate::Reasoner::load) instead.

mod adaptive;
mod coconut;
mod codi;
mod colar;
mod cot;
mod latent_sft;
mod lotus;
mod rot;
mod soft_thinking;

pub use codi::CODI_PROJECTOR;
pub use colar::COLAR_HEAD;
pub use latent_sft::{LATENT_SFT_MARKERS, LATENT_SFT_MIXTURE, LATENT_SFT_PROMPT};
pub use lotus::{LOTUS_BLOCKS, LOTUS_LOOPS};
pub use rot::{ROT_HEAD, ROT_MARKERS, ROT_PROMPT};

use std::collections::BTreeMap;
use std::fmt;

use model::{Checkpoint, LatentHead, StopGate, Tokenizer};
use tensor::Device;

use crate::error::EngineError;
use crate::method::{Method, TokenLookup};

/// The definition of a family of latent reasoners.
pub trait FamilySpec: Send + Sync {
    /// The name in `config.json`'s `latent_tts.family` and on command lines.
    fn name(&self) -> &'static str;

    /// Whether a checkpoint that does not name its family belongs to this one, according to its
    /// tensors, tokens and configuration.
    fn detect(&self, _checkpoint: &Checkpoint, _tokenizer: &Tokenizer) -> bool {
        false
    }

    /// Prompt template, length rule, end tokens, answer rule and defaults, starting from
    /// [`TokenLookup::base`].
    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError>;

    /// The head that turns a hidden state into the next thought.
    fn latent_head(
        &self,
        _device: &Device,
        _checkpoint: &Checkpoint,
    ) -> Result<LatentHead, EngineError> {
        Ok(LatentHead::Identity)
    }

    /// The gate that decides when open-ended thoughts stop, if the checkpoint has one.
    fn stop_gate(
        &self,
        _device: &Device,
        _checkpoint: &Checkpoint,
    ) -> Result<Option<StopGate>, EngineError> {
        Ok(None)
    }

    /// Embeddings of marker tokens that the checkpoint stores outside its embedding table, each
    /// (width).
    fn marker_embeddings(
        &self,
        _method: &Method,
        _checkpoint: &Checkpoint,
    ) -> Result<BTreeMap<u32, Vec<f32>>, EngineError> {
        Ok(BTreeMap::new())
    }
}

/// All families in detection order: those with distinctive tensors first.
pub static FAMILIES: [Family; 9] = [
    Family::ADAPTIVE,
    Family::CODI,
    Family::COLAR,
    Family::ROT,
    Family::COCONUT,
    Family::LATENT_SFT,
    Family::LOTUS,
    Family::COT,
    Family::SOFT_THINKING,
];

/// A family of latent reasoners. Two families are equal if their names are.
#[derive(Clone, Copy)]
pub struct Family(&'static dyn FamilySpec);

impl Family {
    /// Adaptive latent reasoning: hidden states are filtered, and two rows of the LM head decide
    /// when to stop.
    pub const ADAPTIVE: Self = Self(&adaptive::Adaptive);
    /// COCONUT: hidden states are fed back unchanged; with a stop gate, SLPO.
    pub const COCONUT: Self = Self(&coconut::Coconut);
    /// CODI: hidden states are fed back through a projector.
    pub const CODI: Self = Self(&codi::Codi);
    /// CoLaR: a Gaussian head predicts the next compressed embedding.
    pub const COLAR: Self = Self(&colar::Colar);
    /// Latent-SFT: thoughts are mixtures of token embeddings.
    pub const LATENT_SFT: Self = Self(&latent_sft::LatentSft);
    /// LOTUS: blocks of latent positions, computed in parallel in several loops.
    pub const LOTUS: Self = Self(&lotus::Lotus);
    /// Render-of-Thought: a head predicts the vision encoder's embedding of a rendered thought.
    pub const ROT: Self = Self(&rot::Rot);
    /// Explicit chains of thought, or direct answers: the baseline without latent thoughts.
    pub const COT: Self = Self(&cot::Cot);

    /// Soft Thinking: a plain language model whose thoughts are mixtures of token embeddings.
    pub const SOFT_THINKING: Self = Self(&soft_thinking::SoftThinking);

    /// A family that is not one of [`FAMILIES`].
    pub const fn new(spec: &'static dyn FamilySpec) -> Self {
        Self(spec)
    }

    /// The name in configurations and on command lines.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// Looks a family up by name.
    pub fn from_name(name: &str) -> Option<Self> {
        FAMILIES.into_iter().find(|family| family.name() == name)
    }

    /// All names, separated by commas.
    pub(crate) fn names() -> String {
        FAMILIES.map(Self::name).join(", ")
    }

    /// The family named in `config.json`, else the one detected from tensors, tokens and
    /// configuration.
    pub fn detect(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Self, EngineError> {
        let dir = || checkpoint.dir().to_owned();
        match &checkpoint.config().defaults.family {
            Some(name) => Self::from_name(name)
                .ok_or_else(|| EngineError::UnknownFamily { dir: dir(), name: name.clone() }),
            None => FAMILIES
                .into_iter()
                .find(|family| family.0.detect(checkpoint, tokenizer))
                .ok_or_else(|| EngineError::Unrecognised { dir: dir() }),
        }
    }

    pub(crate) fn spec(self) -> &'static dyn FamilySpec {
        self.0
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Family {}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Family({})", self.name())
    }
}
