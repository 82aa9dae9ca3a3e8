//! The families as data: what a prompt looks like, how long to think, how thoughts end, where the
//! answer is.
//!
//! One method runs them all, the baseline that thinks in words included. A family is recognised by
//! what its checkpoint says or holds; nothing else in the engine asks which family it is.

use std::fmt;
use std::num::NonZeroUsize;

use model::config::{Architecture, GenerationDefaults};
use model::{Checkpoint, Tokenizer};

use crate::answer::{AnswerRule, AnswerScope as Text};
use crate::error::EngineError;
use crate::perturb::DropoutSites;

/// A family of reasoners: five that think in vectors, and their baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Hidden states are fed back as they are.
    Coconut,
    /// Hidden states go through a projector first.
    Codi,
    /// A head predicts the mean of the next compressed embedding.
    Colar,
    /// Thoughts are mixtures of token embeddings.
    LatentSft,
    /// Render-of-Thought: a head predicts what a picture of the thought would look like.
    Rot,
    /// No thoughts but words: explicit chains of thought, or answers without any. Every plain
    /// language model could be one, so that it is never recognised by what a checkpoint holds.
    Cot,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Coconut, Self::Codi, Self::Colar, Self::LatentSft, Self::Rot, Self::Cot];

    /// The name that commands take.
    pub fn name(self) -> &'static str {
        match self {
            Self::Coconut => "coconut",
            Self::Codi => "codi",
            Self::Colar => "colar",
            Self::LatentSft => "latent-sft",
            Self::Rot => "rot",
            Self::Cot => "cot",
        }
    }

    /// The family of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.name() == name)
    }

    /// What a checkpoint's config.json says by name, else what its tensors, tokens and
    /// configuration hold.
    pub fn detect(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Result<Self, EngineError> {
        let dir = || checkpoint.dir().to_owned();
        match &checkpoint.config().defaults.family {
            Some(name) => Self::from_name(name)
                .ok_or_else(|| EngineError::UnknownFamily { dir: dir(), name: name.clone() }),
            None => Self::detect_by_content(checkpoint, tokenizer)
                .ok_or_else(|| EngineError::Unrecognised { dir: dir() }),
        }
    }

    fn detect_by_content(checkpoint: &Checkpoint, tokenizer: &Tokenizer) -> Option<Self> {
        let config = checkpoint.config();
        let heads = [
            ("projector.1.weight", Self::Codi),
            ("lt_head.mean.weight", Self::Colar),
            ("projection_head.1.weight", Self::Rot),
        ];
        if let Some((_, family)) = heads.iter().find(|(tensor, _)| checkpoint.has(tensor)) {
            return Some(*family);
        }
        let marked = tokenizer.token_to_id(START).is_some() || config.latent.start_id.is_some();
        match config.architecture {
            Architecture::Gpt2 if marked => Some(Self::Coconut),
            Architecture::Llama if marked => Some(Self::Coconut),
            Architecture::Llama => Some(Self::LatentSft),
            _ => None,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How many thoughts a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatentLength {
    /// None: the answer follows the prompt.
    None,
    /// That many.
    Exactly(NonZeroUsize),
    /// Until the model's likeliest token is the end of thinking; at the limit the end is forced.
    /// None at all is legal.
    AtMost(NonZeroUsize),
    /// Each row draws its number from the range.
    Between(LengthRange),
}

/// Numbers of thoughts, ends included; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthRange {
    low: NonZeroUsize,
    high: NonZeroUsize,
}

impl LengthRange {
    /// From `low` to `high`, if there is anything between them.
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
    /// The most thoughts that a row can have.
    pub fn limit(self) -> usize {
        match self {
            Self::None => 0,
            Self::Exactly(n) | Self::AtMost(n) => n.get(),
            Self::Between(range) => range.high.get(),
        }
    }

    /// The same rule for another number of thoughts.
    fn with(self, thoughts: usize) -> Self {
        match (self, NonZeroUsize::new(thoughts)) {
            (_, None) => Self::None,
            (Self::AtMost(_), Some(n)) => Self::AtMost(n),
            (_, Some(n)) => Self::Exactly(n),
        }
    }
}

const START: &str = "<|start-latent|>";
const END: &str = "<|end-latent|>";

/// Everything that differs between families, resolved for one checkpoint.
#[derive(Clone, Debug)]
pub struct Method {
    /// The family.
    pub family: Family,
    /// Text before the question.
    pub prompt_prefix: &'static str,
    /// Text after the question.
    pub prompt_suffix: &'static str,
    /// Tokens after that text.
    pub begin_latent: Vec<u32>,
    /// Tokens fed after the last thought; perhaps none. The first one is the token that ends
    /// thoughts of open length.
    pub end_latent: Vec<u32>,
    /// Tokens that end an answer.
    pub eos: Vec<u32>,
    /// How long to think if nothing else is said.
    pub length: LatentLength,
    /// Answer tokens at most if nothing else is said.
    pub max_new_tokens: usize,
    /// Where the answer is in the decoded text.
    pub answer_rule: AnswerRule,
    /// The dropout rate: the model's own, else the paper's for this backbone.
    pub p: f32,
    /// The noise: the model's own, else the paper's for this backbone.
    pub sigma: f32,
    /// Where dropout falls if nothing else is said.
    pub sites: DropoutSites,
}

impl Method {
    /// The method of a family for a checkpoint's vocabulary.
    pub fn resolve(
        family: Family,
        checkpoint: &Checkpoint,
        tokenizer: &Tokenizer,
    ) -> Result<Self, EngineError> {
        let tokens = TokenLookup { checkpoint, tokenizer, family };
        let gpt2 = checkpoint.config().architecture == Architecture::Gpt2;
        let fixed = |n| LatentLength::Exactly(count(n));
        let base = Self {
            family,
            prompt_prefix: "",
            prompt_suffix: "",
            begin_latent: Vec::new(),
            end_latent: Vec::new(),
            eos: tokens.eos()?,
            length: fixed(6),
            max_new_tokens: 64,
            answer_rule: AnswerRule::Hash,
            p: if gpt2 { 0.2 } else { 0.02 },
            sigma: if gpt2 { 0.6 } else { 0.02 },
            sites: if gpt2 { DropoutSites::BOTH } else { DropoutSites::MLP },
        };
        let method = match family {
            Family::Coconut => {
                let [start, end] = tokens.markers()?;
                Self {
                    prompt_suffix: "\n",
                    begin_latent: vec![start],
                    end_latent: vec![end],
                    ..base
                }
            }
            Family::Codi => {
                let [start, end] = tokens.markers()?;
                let before = if gpt2 { "" } else { "<|begin_of_text|>" };
                let rule = AnswerRule::LastNumber(Text::Answer);
                Self {
                    prompt_prefix: before,
                    begin_latent: vec![start],
                    end_latent: vec![end],
                    answer_rule: rule,
                    sigma: if gpt2 { 1.4 } else { base.sigma },
                    ..base
                }
            }
            Family::Colar => {
                let end = tokens.encoded("###")?;
                if end.len() != 1 {
                    return Err(tokens.absent("###", "as one token of its own"));
                }
                let after = " Let's think step by step:(Thinking speed: 2)###";
                let length = LatentLength::AtMost(count(64));
                Self {
                    prompt_prefix: "Question: ",
                    prompt_suffix: after,
                    end_latent: end,
                    length,
                    answer_rule: AnswerRule::AnswerColon,
                    p: 0.03,
                    sigma: 0.01,
                    ..base
                }
            }
            Family::LatentSft => Self {
                prompt_prefix: "<|start_header_id|>user<|end_header_id|>\n\nPlease reason step by step, and put your final answer within \\boxed{}.\n",
                prompt_suffix: "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
                begin_latent: tokens.encoded("<think>")?,
                end_latent: tokens.encoded("</think>")?,
                length: LatentLength::AtMost(count(64)),
                max_new_tokens: 128,
                answer_rule: AnswerRule::Boxed,
                ..base
            },
            Family::Rot => Self {
                prompt_prefix: "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n",
                prompt_suffix: "<|im_end|>\n<|im_start|>assistant\n",
                begin_latent: vec![tokens.named("<img_begin>")?],
                end_latent: vec![tokens.named("<img_end>")?],
                length: fixed(32),
                answer_rule: AnswerRule::Cascade,
                ..base
            },
            Family::Cot => Self {
                prompt_suffix: "\n",
                length: LatentLength::None,
                max_new_tokens: 128,
                ..base
            },
        };
        Ok(method.with(&checkpoint.config().defaults))
    }

    /// What whoever trained the model says wins over what is customary in its family.
    fn with(self, said: &GenerationDefaults) -> Self {
        Self {
            length: said.thoughts.map_or(self.length, |thoughts| self.length.with(thoughts)),
            max_new_tokens: said.max_new_tokens.unwrap_or(self.max_new_tokens),
            p: said.p.map_or(self.p, |p| p as f32),
            sigma: said.sigma.map_or(self.sigma, |sigma| sigma as f32),
            ..self
        }
    }
}

/// A constant that is not zero.
fn count(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN)
}

/// Looks tokens up and says what is missing.
struct TokenLookup<'a> {
    checkpoint: &'a Checkpoint,
    tokenizer: &'a Tokenizer,
    family: Family,
}

impl TokenLookup<'_> {
    fn absent(&self, token: &str, how: &'static str) -> EngineError {
        EngineError::AbsentToken {
            dir: self.checkpoint.dir().to_owned(),
            token: token.to_owned(),
            family: self.family,
            how,
        }
    }

    fn checked(&self, token: &str, id: u32) -> Result<u32, EngineError> {
        let vocab = self.checkpoint.config().vocab;
        if id as usize >= vocab {
            return Err(EngineError::TokenBeyondVocabulary {
                dir: self.checkpoint.dir().to_owned(),
                token: token.to_owned(),
                id,
                vocab,
            });
        }
        Ok(id)
    }

    fn named(&self, token: &str) -> Result<u32, EngineError> {
        let id = self
            .tokenizer
            .token_to_id(token)
            .ok_or_else(|| self.absent(token, "as an added token"))?;
        self.checked(token, id)
    }

    fn encoded(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        self.tokenizer.encode(text)?.into_iter().map(|id| self.checked(text, id)).collect()
    }

    /// The start and end markers: from the tokenizer, else from config.json, else where the
    /// published CODI checkpoints, whose markers have no text, put them: the last two rows of
    /// the vocabulary.
    fn markers(&self) -> Result<[u32; 2], EngineError> {
        let latent = &self.checkpoint.config().latent;
        let vocab = self.checkpoint.config().vocab as u32;
        let tokenizer_is_short = self.tokenizer.vocab_size() + 3 == vocab as usize;
        let unnamed =
            (self.family == Family::Codi && tokenizer_is_short).then(|| [vocab - 2, vocab - 1]);
        let find = |token: &str, field: Option<u32>, i: usize| {
            let id = self.tokenizer.token_to_id(token).or(field).or(unnamed.map(|u| u[i]));
            self.checked(token, id.ok_or_else(|| self.absent(token, "as an added token"))?)
        };
        Ok([find(START, latent.start_id, 0)?, find(END, latent.end_id, 1)?])
    }

    /// What ends an answer: what the checkpoint's files say, else the base model's customary token.
    fn eos(&self) -> Result<Vec<u32>, EngineError> {
        let config = self.checkpoint.config();
        let mut ids = config.eos.clone();
        ids.extend(self.tokenizer.eos());
        let customary = match config.architecture {
            Architecture::Gpt2 => "<|endoftext|>",
            Architecture::Llama => "<|eot_id|>",
            Architecture::Qwen3 => "<|im_end|>",
        };
        ids.extend(self.tokenizer.token_to_id(customary));
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|&id| (id as usize) < config.vocab);
        if ids.is_empty() {
            Err(self.absent(customary, "as the token that ends an answer"))
        } else {
            Ok(ids)
        }
    }
}
