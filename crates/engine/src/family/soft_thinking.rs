//! Soft Thinking: a plain, untrained language model whose thoughts are mixtures of token embeddings
//! weighted by their probabilities. It thinks until its most probable token ends the thoughts or
//! its answer, or until its entropy has been low for a while (Cold Stop), and then answers in
//! tokens.
//!
//! Every plain language model qualifies, so it is never detected: config.json or the caller must
//! name it. Trajectories differ by Gumbel noise on the mixtures (Stochastic Soft Thinking), or by
//! averaging sampled tokens (Multiplex Thinking).

use data::answer::AnswerRule;
use model::config::Architecture;
use model::{Checkpoint, LatentHead};
use tensor::Device;

use super::FamilySpec;
use super::latent_sft::LATENT_SFT_PROMPT;
use crate::error::EngineError;
use crate::method::{ColdStop, LatentLength, Method, TokenLookup, non_zero};

pub(super) struct SoftThinking;

/// The published sampling of mixtures: ten tokens at temperature 0.6 with top-p 0.95.
const MIXTURE: LatentHead = LatentHead::SoftMixture { k: 10, temperature: 0.6, top_p: 0.95 };
/// Maximum thoughts, each of which replaces a token.
const MAX_THOUGHTS: usize = 512;
/// The instruction of the published code.
const INSTRUCTION: &str = "Please reason step by step, and put your final answer within \\boxed{}.";
/// The marker that ends the thoughts of models that think between markers.
const END_THINKING: &str = "</think>";
/// Fed after the thoughts of models without such a marker.
const ANSWER_CUE: &str = "\n\nThe final answer is:";

impl FamilySpec for SoftThinking {
    fn name(&self) -> &'static str {
        "soft-thinking"
    }

    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError> {
        let base = tokens.base()?;
        let [prefix, suffix] = chat_prompt(tokens);
        let marker = tokens.optional(END_THINKING);
        let end_latent = match marker {
            Some(_) => tokens.encoded("</think>\n\n")?,
            None => tokens.encoded(ANSWER_CUE)?,
        };
        Ok(Method {
            prompt_prefix: prefix,
            prompt_suffix: suffix,
            begin_latent: Vec::new(),
            latent_stops: marker.into_iter().chain(base.eos.iter().copied()).collect(),
            end_latent,
            length: LatentLength::AtMost(non_zero(MAX_THOUGHTS)),
            max_new_tokens: 256,
            answer_rule: AnswerRule::LastNumber,
            cold_stop: Some(ColdStop::PUBLISHED),
            soft_thoughts: true,
            ..base
        })
    }

    fn latent_head(
        &self,
        _device: &Device,
        _checkpoint: &Checkpoint,
    ) -> Result<LatentHead, EngineError> {
        Ok(MIXTURE)
    }
}

/// The texts around the question in the vocabulary's chat format; plain text if there is none.
fn chat_prompt(tokens: &TokenLookup<'_>) -> [String; 2] {
    let think = if tokens.optional("<think>").is_some() { "<think>\n" } else { "" };
    let is_llama = tokens.config().architecture == Architecture::Llama;
    if tokens.optional("<|im_start|>").is_some() {
        let suffix = format!("\n{INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n{think}");
        return ["<|im_start|>user\n".to_owned(), suffix];
    }
    if is_llama && tokens.optional("<|start_header_id|>").is_some() {
        let [prefix, suffix] = LATENT_SFT_PROMPT.map(str::to_owned);
        return [format!("<|begin_of_text|>{prefix}"), format!("{suffix}{think}")];
    }
    ["Question: ".to_owned(), format!("\n{INSTRUCTION}\nAnswer: {think}")]
}
