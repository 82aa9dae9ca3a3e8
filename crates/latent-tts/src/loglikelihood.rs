//! Log-likelihoods of given texts under the reasoner as a plain language model, without thoughts.

use engine::Reasoner;
use model::{Cache, Pass, Sequence, head};

use crate::Error;

/// The log-likelihood of a text given its context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loglikelihood {
    /// The sum of the tokens' log-probabilities.
    pub sum: f64,
    /// Whether every token is the most likely one.
    pub greedy: bool,
}

/// The log-likelihood of a continuation given a context, as language-model benchmarks define it:
/// trailing spaces of the context move to the continuation, both are tokenized together, and a
/// context that exceeds the model's length is truncated from the left. An empty context is replaced
/// by the end-of-text token.
pub fn loglikelihood(
    reasoner: &Reasoner,
    context: &str,
    continuation: &str,
) -> Result<Loglikelihood, Error> {
    let (tokens, start) = encode_pair(reasoner, context, continuation)?;
    let decoder = &reasoner.decoder;
    let (device, config) = (decoder.device(), decoder.config());
    // The last token is only predicted, so one more token than the context length fits.
    let excess = tokens.len().saturating_sub(config.context + 1).min(start - 1);
    let (tokens, start) = (&tokens[excess..], start - excess);
    let (inputs, targets) = (&tokens[..tokens.len() - 1], &tokens[start..]);
    if inputs.len() > config.context {
        return Err(Error::LongContinuation { tokens: targets.len(), context: config.context });
    }
    let logits = device.run(|| {
        let mut cache = Cache::new(device, config, Cache::slots_for(inputs.len()))?;
        let (mut sequence, mut pass) = (Sequence::default(), Pass::with_capacity(inputs.len()));
        (0..inputs.len()).for_each(|i| pass.push(&mut cache, &mut sequence, i + 1 >= start));
        let hidden = decoder.forward(&mut cache, &pass, reasoner.embed(inputs)?, None)?;
        head::logits(decoder, &hidden)?.to_host()
    })?;
    let mut likelihood = Loglikelihood { sum: 0.0, greedy: true };
    for (row, &target) in targets.iter().enumerate() {
        let logits = logits.row(row);
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = logits.iter().map(|x| f64::from(x - largest).exp()).sum();
        let own = logits[target as usize];
        likelihood.sum += f64::from(own - largest) - total.ln();
        likelihood.greedy &= own == largest;
    }
    Ok(likelihood)
}

/// The tokens of both texts, and the index at which the continuation starts, at least 1.
fn encode_pair(
    reasoner: &Reasoner,
    context: &str,
    continuation: &str,
) -> Result<(Vec<u32>, usize), Error> {
    let split = context.trim_end().len();
    let (context, spaces) = context.split_at(split);
    let encode = |text: &str| reasoner.tokenizer.encode(text);
    let whole = encode(&format!("{context}{spaces}{continuation}"))?;
    let start = encode(context)?.len().min(whole.len());
    let vocab = reasoner.decoder.config().vocab;
    if let Some(&token) = whole.iter().find(|token| **token as usize >= vocab) {
        return Err(Error::Engine(engine::EngineError::UnknownToken { id: 0, token, vocab }));
    }
    if start > 0 {
        return Ok((whole, start));
    }
    let eos = reasoner.method.eos.first().copied().unwrap_or_default();
    Ok((std::iter::once(eos).chain(whole).collect(), 1))
}
