//! Latent-SFT and Latent-GRPO: a thought is a mixture of the most probable tokens' embeddings.

use data::answer::AnswerRule;
use model::config::Architecture;
use model::{Checkpoint, LatentHead, Tokenizer};
use tensor::Device;

use super::FamilySpec;
use crate::error::EngineError;
use crate::method::{LatentLength, Method, TokenLookup, non_zero};

pub(super) struct LatentSft;

/// The texts before and after the question.
pub const LATENT_SFT_PROMPT: [&str; 2] = [
    "<|start_header_id|>user<|end_header_id|>\n\nPlease reason step by step, and put your final \
     answer within \\boxed{}.\n",
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
];
/// The same for Qwen, on which Latent-SFT and Latent-GRPO are trained with chains of up to 4096
/// tokens.
const QWEN_PROMPT: [&str; 2] = [
    "<|im_start|>system\nPlease reason step by step, and put your final answer within \
     \\boxed{}.<|im_end|>\n<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
];
/// Maximum thoughts on Llama and on Qwen.
const MAX_THOUGHTS: [usize; 2] = [64, 4096];
/// The texts before and after the thoughts, each tokenized separately.
pub const LATENT_SFT_MARKERS: [&str; 2] = ["<think>", "</think>"];
/// Number of tokens in a mixture.
pub const LATENT_SFT_MIXTURE: usize = 10;

impl FamilySpec for LatentSft {
    fn name(&self) -> &'static str {
        "latent-sft"
    }

    /// The family adds no tensors, so every Llama that belongs to no other family matches.
    fn detect(&self, checkpoint: &Checkpoint, _tokenizer: &Tokenizer) -> bool {
        checkpoint.config().architecture == Architecture::Llama
    }

    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError> {
        let is_qwen = tokens.config().architecture != Architecture::Llama
            && tokens.optional("<|im_start|>").is_some();
        let [prefix, suffix] = if is_qwen { QWEN_PROMPT } else { LATENT_SFT_PROMPT };
        let [begin, end] = LATENT_SFT_MARKERS;
        Ok(Method {
            prompt_prefix: prefix.into(),
            prompt_suffix: suffix.into(),
            begin_latent: tokens.encoded(begin)?,
            end_latent: tokens.encoded(end)?,
            length: LatentLength::AtMost(non_zero(MAX_THOUGHTS[usize::from(is_qwen)])),
            max_new_tokens: 128,
            answer_rule: AnswerRule::Boxed,
            ..tokens.base()?
        })
    }

    fn latent_head(
        &self,
        _device: &Device,
        _checkpoint: &Checkpoint,
    ) -> Result<LatentHead, EngineError> {
        Ok(LatentHead::TopKMixture { k: LATENT_SFT_MIXTURE })
    }
}
