//! What differs between models, resolved for one checkpoint: the family's customs under the
//! checkpoint's own settings.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use data::answer::AnswerRule;
use model::config::{Architecture, GenerationDefaults};
use model::{Checkpoint, Tokenizer};

use crate::error::EngineError;
use crate::family::Family;
use crate::perturb::DropoutSites;

/// How many thoughts a trajectory has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatentLength {
    /// None: the answer follows the prompt.
    None,
    /// That many.
    Exactly(NonZeroUsize),
    /// Until the model's argmax is the end token; at the limit the end tokens are forced. No
    /// thought at all is legal.
    AtMost(NonZeroUsize),
    /// Each trajectory draws its number uniformly from the range.
    Between(LengthRange),
}

/// Numbers of thoughts, both ends included; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthRange {
    low: NonZeroUsize,
    high: NonZeroUsize,
}

impl LengthRange {
    /// From `low` to `high`, unless `high` is the smaller one.
    pub fn new(low: NonZeroUsize, high: NonZeroUsize) -> Option<Self> {
        (low <= high).then_some(Self { low, high })
    }

    /// The smallest number.
    pub fn low(self) -> NonZeroUsize {
        self.low
    }

    /// The largest number.
    pub fn high(self) -> NonZeroUsize {
        self.high
    }
}

impl LatentLength {
    /// The most thoughts that a trajectory can have.
    pub fn limit(self) -> usize {
        match self {
            Self::None => 0,
            Self::Exactly(n) | Self::AtMost(n) => n.get(),
            Self::Between(range) => range.high.get(),
        }
    }

    /// The same rule for another number of thoughts.
    fn with_limit(self, thoughts: usize) -> Self {
        match (self, NonZeroUsize::new(thoughts)) {
            (_, None) => Self::None,
            (Self::AtMost(_), Some(n)) => Self::AtMost(n),
            (_, Some(n)) => Self::Exactly(n),
        }
    }
}

/// `0`, `6`, `<=64` or `4-6`, as [`LatentLength::from_str`] reads it.
impl fmt::Display for LatentLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("0"),
            Self::Exactly(n) => n.fmt(f),
            Self::AtMost(n) => write!(f, "<={n}"),
            Self::Between(range) => write!(f, "{}-{}", range.low, range.high),
        }
    }
}

/// More thoughts than any model has positions for.
const MAX_THOUGHTS: usize = 1 << 20;

impl FromStr for LatentLength {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = |text: &str| {
            let number: Option<NonZeroUsize> = text.trim().parse().ok();
            number.filter(|n| n.get() <= MAX_THOUGHTS).ok_or_else(|| {
                let text = text.trim();
                format!("{text:?} is no count from 1 to {MAX_THOUGHTS}; write 6, <=64 or 4-6")
            })
        };
        if let Some(most) = text.trim().strip_prefix("<=") {
            return Ok(Self::AtMost(count(most)?));
        }
        if text.trim() == "0" {
            return Ok(Self::None);
        }
        let Some((low, high)) = text.split_once('-') else {
            return Ok(Self::Exactly(count(text)?));
        };
        let (low, high) = (count(low)?, count(high)?);
        let range = LengthRange::new(low, high);
        range.map(Self::Between).ok_or_else(|| format!("the range is empty; write {high}-{low}"))
    }
}

/// The text of COCONUT's and CODI's marker tokens.
pub(crate) const START_LATENT: &str = "<|start-latent|>";
const END_LATENT: &str = "<|end-latent|>";

/// Everything that differs between models, beside weights and latent head.
#[derive(Clone, Debug)]
pub struct Method {
    /// The family.
    pub family: Family,
    /// Text before the question.
    pub prompt_prefix: String,
    /// Text after the question.
    pub prompt_suffix: String,
    /// Tokens after that text, which begin the latent thoughts.
    pub begin_latent: Vec<u32>,
    /// Tokens fed after the last thought; perhaps none. The first one ends thoughts of open length.
    pub end_latent: Vec<u32>,
    /// Tokens that end an answer.
    pub eos: Vec<u32>,
    /// Thoughts of a trajectory by default.
    pub length: LatentLength,
    /// Answer tokens at most, by default.
    pub max_new_tokens: usize,
    /// Where the answer is in the decoded text.
    pub answer_rule: AnswerRule,
    /// The default dropout rate: the checkpoint's own, else the paper's for this backbone.
    pub p: f32,
    /// The default standard deviation of noise: likewise.
    pub sigma: f32,
    /// The block outputs that dropout falls on by default.
    pub sites: DropoutSites,
}

impl Method {
    /// The method of a family for a checkpoint's vocabulary. What config.json's `latent_tts` says
    /// wins over what is customary in the family.
    pub fn resolve(
        family: Family,
        checkpoint: &Checkpoint,
        tokenizer: &Tokenizer,
    ) -> Result<Self, EngineError> {
        let tokens = TokenLookup { checkpoint, tokenizer, family };
        let method = family.spec().method(&tokens)?;
        Ok(method.with_defaults(&checkpoint.config().defaults))
    }

    fn with_defaults(self, defaults: &GenerationDefaults) -> Self {
        let length = |thoughts| self.length.with_limit(thoughts);
        Self {
            length: defaults.thoughts.map_or(self.length, length),
            max_new_tokens: defaults.max_new_tokens.unwrap_or(self.max_new_tokens),
            p: defaults.p.map_or(self.p, |p| p as f32),
            sigma: defaults.sigma.map_or(self.sigma, |sigma| sigma as f32),
            prompt_prefix: defaults.prompt_prefix.clone().unwrap_or(self.prompt_prefix),
            prompt_suffix: defaults.prompt_suffix.clone().unwrap_or(self.prompt_suffix),
            ..self
        }
    }
}

/// A constant that is not zero.
pub(crate) const fn non_zero(n: usize) -> NonZeroUsize {
    match NonZeroUsize::new(n) {
        Some(n) => n,
        None => NonZeroUsize::MIN,
    }
}

/// Looks a family's tokens up in a checkpoint's vocabulary and reports what is missing.
pub struct TokenLookup<'a> {
    checkpoint: &'a Checkpoint,
    tokenizer: &'a Tokenizer,
    family: Family,
}

impl TokenLookup<'_> {
    /// What a family has unless it says otherwise: a bare question, six thoughts, the answer after
    /// `#`, and the paper's strengths for the backbone.
    pub fn base(&self) -> Result<Method, EngineError> {
        let gpt2 = self.is_gpt2();
        Ok(Method {
            family: self.family,
            prompt_prefix: String::new(),
            prompt_suffix: String::new(),
            begin_latent: Vec::new(),
            end_latent: Vec::new(),
            eos: self.eos()?,
            length: LatentLength::Exactly(non_zero(6)),
            max_new_tokens: 64,
            answer_rule: AnswerRule::Hash,
            p: if gpt2 { 0.2 } else { 0.02 },
            sigma: if gpt2 { 0.6 } else { 0.02 },
            sites: if gpt2 { DropoutSites::BOTH } else { DropoutSites::MLP },
        })
    }

    /// Whether the backbone is GPT-2.
    pub fn is_gpt2(&self) -> bool {
        self.checkpoint.config().architecture == Architecture::Gpt2
    }

    /// Rows of the embedding table.
    pub fn vocab(&self) -> usize {
        self.checkpoint.config().vocab
    }

    /// Tokens that the tokenizer knows.
    pub fn tokenizer_vocab(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// The error for a token that the vocabulary lacks; `how` says in which form.
    pub fn absent(&self, token: &str, how: &'static str) -> EngineError {
        EngineError::AbsentToken {
            dir: self.checkpoint.dir().to_owned(),
            token: token.to_owned(),
            family: self.family,
            how,
        }
    }

    /// The id of an added token.
    pub fn named(&self, token: &str) -> Result<u32, EngineError> {
        let id = self.tokenizer.token_to_id(token);
        self.checked(token, id.ok_or_else(|| self.absent(token, "as an added token"))?)
    }

    /// The tokens of a text.
    pub fn encoded(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        self.tokenizer.encode(text)?.into_iter().map(|id| self.checked(text, id)).collect()
    }

    /// The tokens that begin and end latent thoughts: from the tokenizer, else from config.json,
    /// else `unnamed`.
    pub fn latent_markers(&self, unnamed: Option<[u32; 2]>) -> Result<[u32; 2], EngineError> {
        let latent = &self.checkpoint.config().latent;
        let find = |token: &str, field: Option<u32>, i: usize| {
            let id = self.tokenizer.token_to_id(token).or(field).or(unnamed.map(|ids| ids[i]));
            self.checked(token, id.ok_or_else(|| self.absent(token, "as an added token"))?)
        };
        Ok([find(START_LATENT, latent.start_id, 0)?, find(END_LATENT, latent.end_id, 1)?])
    }

    fn checked(&self, token: &str, id: u32) -> Result<u32, EngineError> {
        let vocab = self.vocab();
        if (id as usize) < vocab {
            return Ok(id);
        }
        let (dir, token) = (self.checkpoint.dir().to_owned(), token.to_owned());
        Err(EngineError::TokenBeyondVocabulary { dir, token, id, vocab })
    }

    /// What ends an answer: what the checkpoint's files say, and the backbone's customary token.
    fn eos(&self) -> Result<Vec<u32>, EngineError> {
        let config = self.checkpoint.config();
        let mut ids = config.eos.clone();
        ids.extend(self.tokenizer.eos());
        let customary = match config.architecture {
            Architecture::Gpt2 => "<|endoftext|>",
            Architecture::Llama => "<|eot_id|>",
            Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Qwen3Vl => "<|im_end|>",
        };
        ids.extend(self.tokenizer.token_to_id(customary));
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|&id| (id as usize) < config.vocab);
        match ids.is_empty() {
            true => Err(self.absent(customary, "as the token that ends an answer")),
            false => Ok(ids),
        }
    }
}
