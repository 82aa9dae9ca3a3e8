//! Render-of-Thought: a head predicts the vision encoder's embedding of a rendered thought.

use std::collections::BTreeMap;

use answer::AnswerRule;
use model::head::SwiGluNames;
use model::{Checkpoint, LatentHead, Tokenizer};
use tensor::Device;

use super::FamilySpec;
use crate::error::EngineError;
use crate::method::{LatentLength, Method, TokenLookup, non_zero};

pub(super) struct Rot;

const PROJECTION_HEAD: SwiGluNames = SwiGluNames {
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
        Ok(Method {
            prompt_prefix: "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n\
                            <|im_start|>user\n"
                .into(),
            prompt_suffix: "<|im_end|>\n<|im_start|>assistant\n".into(),
            begin_latent: vec![tokens.named("<img_begin>")?],
            end_latent: vec![tokens.named("<img_end>")?],
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
        Ok(LatentHead::swiglu(device, checkpoint, &PROJECTION_HEAD)?)
    }

    /// The frozen embeddings of the image markers live beside the table.
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
