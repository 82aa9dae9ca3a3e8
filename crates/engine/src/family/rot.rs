//! Render-of-Thought: a head predicts the vision encoder's embedding of a rendered thought.

use std::collections::BTreeMap;

use data::answer::AnswerRule;
use model::head::SwiGluNames;
use model::{Checkpoint, LatentHead, Tokenizer};
use tensor::Device;

use super::FamilySpec;
use crate::error::EngineError;
use crate::method::{LatentLength, Method, TokenLookup, non_zero};

pub(super) struct Rot;

/// The texts before and after the question.
pub const ROT_PROMPT: [&str; 2] = [
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
];
/// The tokens before and after the thoughts.
pub const ROT_MARKERS: [&str; 2] = ["<img_begin>", "<img_end>"];
/// The module names of Render-of-Thought's projection head.
pub const ROT_HEAD: SwiGluNames = SwiGluNames {
    norm: "projection_head.0",
    up: "projection_head.1",
    gate: "projection_head.2.w1",
    value: "projection_head.2.w2",
    down: "projection_head.2.w3",
    out: "projection_head.3",
};

impl FamilySpec for Rot {
    fn name(&self) -> &'static str {
        "rot"
    }

    fn detect(&self, checkpoint: &Checkpoint, _tokenizer: &Tokenizer) -> bool {
        checkpoint.has("projection_head.1.weight")
    }

    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError> {
        let [prefix, suffix] = ROT_PROMPT;
        let [begin, end] = ROT_MARKERS;
        Ok(Method {
            prompt_prefix: prefix.into(),
            prompt_suffix: suffix.into(),
            begin_latent: vec![tokens.named(begin)?],
            end_latent: vec![tokens.named(end)?],
            length: LatentLength::Exactly(non_zero(32)),
            answer_rule: AnswerRule::Cascade,
            ..tokens.base()?
        })
    }

    fn latent_head(
        &self,
        device: &Device,
        checkpoint: &Checkpoint,
    ) -> Result<LatentHead, EngineError> {
        Ok(LatentHead::swiglu(device, checkpoint, &ROT_HEAD)?)
    }

    /// The frozen embeddings of the image markers are stored outside the table.
    fn marker_embeddings(
        &self,
        method: &Method,
        checkpoint: &Checkpoint,
    ) -> Result<BTreeMap<u32, Vec<f32>>, EngineError> {
        let mut embeddings = BTreeMap::new();
        let markers =
            [("img_begin_emb", &method.begin_latent), ("img_end_emb", &method.end_latent)];
        for (name, tokens) in markers {
            if let (true, Some(&token)) = (checkpoint.has(name), tokens.first()) {
                let embedding = checkpoint.tensor(name, &[checkpoint.config().width])?;
                embeddings.insert(token, embedding);
            }
        }
        Ok(embeddings)
    }
}
