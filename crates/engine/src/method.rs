//! The model-specific settings of a checkpoint: its family's defaults, overridden by its
//! configuration.

use std::num::NonZeroUsize;

use data::answer::AnswerRule;
use model::config::{Architecture, GenerationDefaults};
use model::{Checkpoint, Config, Tokenizer};

use crate::error::EngineError;
use crate::family::Family;
use crate::perturb::DropoutSites;

pub use schema::{ColdStop, LatentLength, LengthRange};

/// The text of COCONUT's and CODI's start marker.
pub(crate) const START_LATENT: &str = "<|start-latent|>";
const END_LATENT: &str = "<|end-latent|>";
/// The text of the token at latent positions.
pub(crate) const LATENT: &str = "<|latent|>";

/// All model-specific settings apart from weights and latent head.
#[derive(Clone, Debug)]
pub struct Method {
    /// The family.
    pub family: Family,
    /// Text before the question.
    pub prompt_prefix: String,
    /// Text after the question.
    pub prompt_suffix: String,
    /// Tokens after that text that start the latent phase.
    pub begin_latent: Vec<u32>,
    /// Tokens fed after the last thought; may be empty. The first one stops open-ended thoughts.
    pub end_latent: Vec<u32>,
    /// Open-ended thoughts stop when one of these is the most probable token; if empty, only the
    /// first of `end_latent` stops them.
    pub latent_stops: Vec<u32>,
    /// Tokens that end an answer.
    pub eos: Vec<u32>,
    /// Default number of thoughts of a trajectory.
    pub length: LatentLength,
    /// Default maximum number of answer tokens.
    pub max_new_tokens: usize,
    /// Latent positions that are computed in parallel over several loops, if the family has them.
    pub looped: Option<LatentLoop>,
    /// How the answer is extracted from the decoded text.
    pub answer_rule: AnswerRule,
    /// The default dropout rate: the checkpoint's, else the paper's for this backbone.
    pub p: f32,
    /// The default standard deviation of noise: the checkpoint's, else the paper's for this
    /// backbone.
    pub sigma: f32,
    /// The block outputs to which dropout is applied by default.
    pub sites: DropoutSites,
    /// Whether low entropy stops the thoughts by default.
    pub cold_stop: Option<ColdStop>,
    /// Whether thoughts are mixtures of a plain language model's token embeddings, which are
    /// perturbed by Gumbel noise.
    pub soft_thoughts: bool,
}

/// Latent positions that are computed in parallel, and again in each loop (LOTUS): first from the
/// embedding of the latent token, then from its sum with the latent head's output at the same
/// position in the previous pass. The answer attends to the keys and values of the last pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentLoop {
    /// The token fed at every latent position in the first pass.
    pub token: u32,
    /// Latent positions per solution step.
    pub block_width: usize,
    /// Passes whose hidden states are fed back; there are `loops + 1` passes in total.
    pub loops: usize,
}

impl Method {
    /// Resolves the method of a family for a checkpoint's vocabulary. The fields of config.json's
    /// `latent_tts` override the family's defaults.
    pub fn resolve(
        family: Family,
        checkpoint: &Checkpoint,
        tokenizer: &Tokenizer,
    ) -> Result<Self, EngineError> {
        let tokens = TokenLookup { checkpoint, tokenizer, family };
        let method = family.spec().method(&tokens)?;
        Ok(method.with_defaults(&checkpoint.config().defaults))
    }

    /// Whether this most probable token at a thought's position stops the thoughts.
    pub fn ends_thoughts(&self, token: u32) -> bool {
        match self.latent_stops.is_empty() {
            true => self.end_latent.first() == Some(&token),
            false => self.latent_stops.contains(&token),
        }
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

/// A non-zero constant; `n` must not be 0.
pub(crate) const fn non_zero(n: usize) -> NonZeroUsize {
    match NonZeroUsize::new(n) {
        Some(n) => n,
        None => NonZeroUsize::MIN,
    }
}

/// Looks up a family's tokens in a checkpoint's vocabulary and reports missing ones.
pub struct TokenLookup<'a> {
    checkpoint: &'a Checkpoint,
    tokenizer: &'a Tokenizer,
    family: Family,
}

impl TokenLookup<'_> {
    /// The defaults of a family: no prompt template, six thoughts, the answer after `#`, and the
    /// paper's perturbation strengths for the backbone.
    pub fn base(&self) -> Result<Method, EngineError> {
        let gpt2 = self.is_gpt2();
        Ok(Method {
            family: self.family,
            prompt_prefix: String::new(),
            prompt_suffix: String::new(),
            begin_latent: Vec::new(),
            end_latent: Vec::new(),
            latent_stops: Vec::new(),
            eos: self.eos()?,
            length: LatentLength::Exactly(non_zero(6)),
            max_new_tokens: 64,
            looped: None,
            answer_rule: AnswerRule::Hash,
            p: if gpt2 { 0.2 } else { 0.02 },
            sigma: if gpt2 { 0.6 } else { 0.02 },
            sites: if gpt2 { DropoutSites::BOTH } else { DropoutSites::MLP },
            cold_stop: None,
            soft_thoughts: false,
        })
    }

    /// The configuration of the checkpoint.
    pub fn config(&self) -> &Config {
        self.checkpoint.config()
    }

    /// The checkpoint, for decisions that depend on its tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        self.checkpoint
    }

    /// The id of an added token, if both tokenizer and vocabulary have it.
    pub fn optional(&self, token: &str) -> Option<u32> {
        self.named(token).ok()
    }

    /// Whether the backbone is GPT-2.
    pub fn is_gpt2(&self) -> bool {
        self.checkpoint.config().architecture == Architecture::Gpt2
    }

    /// The generation defaults of config.json's `latent_tts`.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.checkpoint.config().defaults
    }

    /// Rows of the embedding table.
    pub fn vocab(&self) -> usize {
        self.checkpoint.config().vocab
    }

    /// Number of tokens in the tokenizer.
    pub fn tokenizer_vocab(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// The error for a token that the vocabulary lacks; `how` is the required form.
    pub fn absent(&self, token: &str, how: &'static str) -> EngineError {
        EngineError::AbsentToken {
            dir: self.checkpoint.dir().to_owned(),
            token: token.to_owned(),
            family: self.family,
            how,
        }
    }

    /// Whether the tokenizer has an added token.
    pub fn has(&self, token: &str) -> bool {
        self.tokenizer.token_to_id(token).is_some()
    }

    /// The id of an added token.
    pub fn named(&self, token: &str) -> Result<u32, EngineError> {
        let id = self.tokenizer.token_to_id(token);
        self.checked(token, id.ok_or_else(|| self.absent(token, "as an added token"))?)
    }

    /// An id from config.json, if it is within the vocabulary.
    pub fn in_vocabulary(&self, token: &str, id: u32) -> Result<u32, EngineError> {
        self.checked(token, id)
    }

    /// The tokens of a text.
    pub fn encoded(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        self.tokenizer.encode(text)?.into_iter().map(|id| self.checked(text, id)).collect()
    }

    /// The token at latent positions: from the tokenizer, else from config.json.
    pub fn latent_token(&self) -> Result<u32, EngineError> {
        let known = self.tokenizer.token_to_id(LATENT);
        let id = known.or(self.checkpoint.config().latent.latent_id);
        self.checked(LATENT, id.ok_or_else(|| self.absent(LATENT, "as an added token"))?)
    }

    /// The tokens that start and end the latent phase: from the tokenizer, else from config.json,
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
        let dir = self.checkpoint.dir().to_owned();
        let token = token.to_owned();
        Err(EngineError::TokenBeyondVocabulary { dir, token, id, vocab })
    }

    /// The tokens that end an answer: those in the checkpoint's files, and the backbone's default.
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
