//! LOTUS: blocks of latent positions, computed in parallel and in several loops. Each loop adds the
//! hidden states of the previous pass to the latent token's embedding; block k is trained to
//! predict step k of the solution, so that the LM head reads thoughts as text.
//!
//! A checkpoint cannot be distinguished from COCONUT's: config.json or the caller must name the
//! family.

use super::FamilySpec;
use crate::error::EngineError;
use crate::method::{LatentLength, LatentLoop, Method, TokenLookup, non_zero};

pub(super) struct Lotus;

/// The published number of blocks.
pub const LOTUS_BLOCKS: usize = 6;
/// The published number of loops.
pub const LOTUS_LOOPS: usize = 6;
/// The published widths of a block: GPT-2's and that of other backbones.
const BLOCK_WIDTHS: [usize; 2] = [13, 25];
/// The first token of Llama's prompts.
const BEGIN_OF_TEXT: &str = "<|begin_of_text|>";

impl FamilySpec for Lotus {
    fn name(&self) -> &'static str {
        "lotus"
    }

    fn method(&self, tokens: &TokenLookup<'_>) -> Result<Method, EngineError> {
        let [start, end] = tokens.latent_markers(None)?;
        let defaults = tokens.defaults();
        let published_width = BLOCK_WIDTHS[usize::from(!tokens.is_gpt2())];
        let blocks = defaults.blocks.unwrap_or(LOTUS_BLOCKS);
        let block_width = defaults.block_width.unwrap_or(published_width);
        let has_prefix = tokens.has(BEGIN_OF_TEXT);
        let prefix = if has_prefix { BEGIN_OF_TEXT } else { "" };
        let base = tokens.base()?;
        Ok(Method {
            prompt_prefix: prefix.into(),
            prompt_suffix: "\n".into(),
            begin_latent: vec![start],
            end_latent: vec![end],
            length: LatentLength::Exactly(non_zero(blocks.saturating_mul(block_width))),
            looped: Some(LatentLoop {
                token: tokens.latent_token()?,
                block_width,
                loops: defaults.loops.unwrap_or(LOTUS_LOOPS),
            }),
            ..base
        })
    }
}
