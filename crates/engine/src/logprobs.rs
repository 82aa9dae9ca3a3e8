//! Log-probabilities of given tokens under the decoder as a plain language model, without prompt
//! template and thoughts.

use model::{Cache, Pass, Sequence};
use tensor::ops::{self, Activation, OutputDtype};
use tensor::{DeviceError, Tensor};

use crate::batch_plan::check_context;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::prompt::Prompt;
use crate::reasoner::LatentModel;

/// Positions whose logits are on the host at once; bounds memory for large vocabularies.
const LOGIT_ROWS: usize = 64;

/// Log-probability of a token given its predecessors, and the most likely token at its position.
///
/// The two log-probabilities are equal if and only if the token is the most likely one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenScore {
    /// The token.
    pub token: u32,
    /// Its log-probability.
    pub logprob: f32,
    /// The most likely token; the first one of a tie.
    pub top: u32,
    /// Log-probability of `top`.
    pub top_logprob: f32,
}

impl Engine {
    /// Scores every token after the first, followed by the most likely next token: as many scores
    /// as tokens.
    ///
    /// # Errors
    ///
    /// If there are no tokens, more than the context holds, or unknown ones.
    pub fn score_tokens(&self, tokens: &[u32]) -> Result<Vec<TokenScore>, EngineError> {
        let model = &self.reasoner().model;
        check_tokens(model, tokens)?;
        let device = model.decoder.device();
        let config = model.decoder.config();
        let mut cache = Cache::new(device, config, Cache::slots_for(tokens.len()))?;
        let mut sequence = TokenSequence::new(tokens.to_vec());
        device.run(|| score_positions(model, &mut cache, &mut [(&mut sequence, tokens.len())]))?;
        Ok(sequence.scores)
    }
}

/// Rejects tokens that cannot be scored.
pub(crate) fn check_tokens(model: &LatentModel, tokens: &[u32]) -> Result<(), EngineError> {
    let prompt = Prompt { id: 0, text: String::new(), tokens: tokens.to_vec() };
    if tokens.is_empty() {
        return Err(EngineError::Empty { id: 0 });
    }
    prompt.check_tokens(model.decoder.config().vocab)?;
    // One position fewer than a prompt needs: nothing is fed after the last token.
    let rest = Prompt { tokens: tokens[1..].to_vec(), ..prompt };
    check_context(model.decoder.config(), &rest, 0, 0)
}

/// Tokens whose first positions are scored.
pub(crate) struct TokenSequence {
    tokens: Vec<u32>,
    kv: Sequence,
    scores: Vec<TokenScore>,
}

impl TokenSequence {
    pub(crate) fn new(tokens: Vec<u32>) -> Self {
        Self { tokens, kv: Sequence::default(), scores: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether no position has been computed yet.
    pub(crate) fn is_new(&self) -> bool {
        self.kv.is_empty()
    }

    /// Number of positions that are not scored yet.
    pub(crate) fn left(&self) -> usize {
        self.tokens.len() - self.scores.len()
    }

    /// Its keys and values, and its scores.
    pub(crate) fn into_parts(self) -> (Sequence, Vec<TokenScore>) {
        (self.kv, self.scores)
    }
}

/// Scores the next positions of each sequence, as many as given beside it, in one forward pass.
pub(crate) fn score_positions(
    model: &LatentModel,
    cache: &mut Cache,
    parts: &mut [(&mut TokenSequence, usize)],
) -> Result<(), DeviceError> {
    let device = model.decoder.device();
    let mut pass = Pass::default();
    let mut fed = Vec::new();
    let mut next = Vec::new();
    for (sequence, count) in parts.iter_mut() {
        let first = sequence.scores.len();
        for position in first..first + *count {
            pass.push(cache, &mut sequence.kv, true);
            fed.push(sequence.tokens[position]);
            next.push(sequence.tokens.get(position + 1).copied());
        }
    }
    let hidden = model.decoder.forward(cache, &pass, model.embed(&fed)?, None)?;
    let mut scores = Vec::with_capacity(next.len());
    for first in (0..next.len()).step_by(LOGIT_ROWS) {
        let rows: Vec<usize> = (first..next.len().min(first + LOGIT_ROWS)).collect();
        let hidden = ops::select(device, [&hidden], &rows)?;
        let mut logits = Tensor::default();
        let head = model.decoder.lm_head();
        ops::linear(device, &hidden, head, Activation::None, OutputDtype::F32, &mut logits)?;
        let logits = logits.to_host()?;
        let score = |(i, &row): (usize, &usize)| TokenScore::new(logits.row(i), next[row]);
        scores.extend(rows.iter().enumerate().map(score));
    }
    let mut scores = scores.into_iter();
    for (sequence, count) in parts {
        sequence.scores.extend(scores.by_ref().take(*count));
    }
    Ok(())
}

impl TokenScore {
    /// Scores a token, or the most likely one, from its logits.
    fn new(logits: &[f32], token: Option<u32>) -> Self {
        let largest = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
        let top = (0..logits.len()).fold(0, largest);
        let sum: f64 = logits.iter().map(|&x| f64::from(x - logits[top]).exp()).sum();
        let logprob = |i: usize| (f64::from(logits[i] - logits[top]) - sum.ln()) as f32;
        let token = token.unwrap_or(top as u32);
        let top_logprob = logprob(top);
        let logprob = logprob(token as usize);
        Self { token, logprob, top: top as u32, top_logprob }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_log_softmax() {
        let logits = [1.0_f32, 3.0, 2.0, 3.0];
        let sum: f32 = logits.iter().map(|x| x.exp()).sum();
        for token in 0..4 {
            let score = TokenScore::new(&logits, Some(token));
            assert!((score.logprob - (logits[token as usize] - sum.ln())).abs() < 1e-6);
            assert_eq!(score.logprob == score.top_logprob, logits[token as usize] == 3.0);
            assert_eq!((score.token, score.top), (token, 1));
        }
        assert_eq!(TokenScore::new(&logits, None).token, 1);
    }
}
