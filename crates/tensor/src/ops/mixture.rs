//! Mixtures of token embeddings whose tokens and weights follow a separate rule per row: nuclei,
//! one-sided Gumbel noise, averages of sampled tokens.
//!
//! [`super::top_k_mixture`] is the fast path of the plain rule. Here whole rows of logits are
//! copied to the host in chunks, also from a GPU; weights are computed there, and embeddings are
//! gathered on the device.

use rayon::prelude::*;

use super::sample::top_p_tokens;
use super::topk::{LOGIT_ROWS, top_k};
use super::{Activation, Linear, OutputDtype, linear, lookup, select};
use crate::params::TokenSampling;
use crate::rng::RngKey;
use crate::{Device, DeviceError, Isa, Tensor};

/// The range to which Latent-GRPO clips Gumbel numbers.
const GUMBEL_RANGE: [f32; 2] = [-1.5, 3.0];

/// The tokens and weights of a row's mixture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MixtureRule {
    /// Number of tokens in the mixture: the most probable ones.
    pub tokens: usize,
    /// Divides the logits.
    pub temperature: f32,
    /// The smallest set of these tokens with at least this share of their probability is kept.
    pub top_p: f32,
    /// The randomness that makes trajectories differ.
    pub draw: MixtureDraw,
}

/// The randomness of a row's mixture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MixtureDraw {
    /// No randomness: weights are probabilities.
    None,
    /// Weights are softmax((log p + Gumbel noise) / tau) over the same tokens.
    Gumbel {
        /// Key of the random numbers.
        key: RngKey,
        /// The temperature of the weights.
        tau: f32,
    },
    /// Latent-GRPO: over the nucleus of all tokens, and at least the mixture's tokens, scores are
    /// log p + scale (clip(Gumbel noise, -1.5, 3) + 1.5); weights are softmax(score / tau) of the
    /// best scores, as many as the mixture has tokens. Noise never lowers a score.
    OneSidedGumbel {
        /// Key of the random numbers.
        key: RngKey,
        /// The temperature of the weights.
        tau: f32,
        /// The factor of the noise.
        scale: f32,
        /// Probability mass of the nucleus.
        top_p: f32,
    },
    /// The average of independently sampled tokens.
    Sampled {
        /// Key of the random numbers.
        key: RngKey,
        /// Number of tokens.
        count: usize,
        /// Distribution of the tokens.
        sampling: TokenSampling,
    },
}

/// The linear map that computes logits, and the embeddings: the same map if the two are tied.
#[derive(Clone, Copy, Debug)]
pub struct MixtureTables<'a> {
    /// Computes the logits.
    pub head: &'a Linear,
    /// The embeddings.
    pub table: &'a Linear,
}

/// Mixtures, and the quantities that decide whether thinking continues.
#[derive(Debug)]
pub struct MixedTokens {
    /// (rows, width)
    pub mixtures: Tensor,
    /// The most probable token of each row.
    pub argmax: Vec<u32>,
    /// The entropy in nats of each row's softmax(logits / temperature).
    pub entropies: Vec<f32>,
}

/// The mixture of each row of x (rows, inputs) according to its rule.
pub fn mix_tokens(
    device: &Device,
    x: &Tensor,
    tables: MixtureTables<'_>,
    rules: &[MixtureRule],
) -> Result<MixedTokens, DeviceError> {
    assert_eq!(x.rows(), rules.len(), "mix_tokens: {} rows, {} rules", x.rows(), rules.len());
    let isa = device.isa().unwrap_or_else(Isa::detect);
    let mut mixtures = Tensor::zeros(0, tables.table.inputs());
    let mut argmax = Vec::with_capacity(x.rows());
    let mut entropies = Vec::with_capacity(x.rows());
    for start in (0..x.rows()).step_by(LOGIT_ROWS) {
        let chunk: Vec<usize> = (start..x.rows().min(start + LOGIT_ROWS)).collect();
        let rows = select(device, [x], &chunk)?;
        let mut logits = Tensor::default();
        linear(device, &rows, tables.head, Activation::None, OutputDtype::F32, &mut logits)?;
        let logits = logits.to_host()?;
        let mixed: Vec<RowMixture> = chunk
            .par_iter()
            .map(|&row| RowMixture::new(isa, logits.row(row - start), rules[row]))
            .collect();
        add_embeddings(device, tables.table, &mixed, &mut mixtures)?;
        argmax.extend(mixed.iter().map(|row| row.argmax));
        entropies.extend(mixed.iter().map(|row| row.entropy));
    }
    Ok(MixedTokens { mixtures: mixtures.to_device(device)?, argmax, entropies })
}

/// Appends the weighted sum of each row's embeddings, added in the order of its tokens.
fn add_embeddings(
    device: &Device,
    table: &Linear,
    rows: &[RowMixture],
    mixtures: &mut Tensor,
) -> Result<(), DeviceError> {
    let tokens: Vec<u32> =
        rows.iter().flat_map(|row| row.weights.iter().map(|&(token, _)| token)).collect();
    let embeddings = lookup(device, table, &tokens)?.to_host()?;
    let mut next = 0;
    for row in rows {
        let mut mixture = vec![0.0; table.inputs()];
        for &(_, weight) in &row.weights {
            let embedding = embeddings.row(next);
            mixture.iter_mut().zip(embedding).for_each(|(x, e)| *x += weight * e);
            next += 1;
        }
        mixtures.push(&mixture);
    }
    Ok(())
}

/// One row's mixture.
#[derive(Debug, PartialEq)]
struct RowMixture {
    /// Tokens and their weights, which sum to 1.
    weights: Vec<(u32, f32)>,
    argmax: u32,
    entropy: f32,
}

impl RowMixture {
    fn new(isa: Isa, logits: &[f32], rule: MixtureRule) -> Self {
        let best = top_k(logits, rule.tokens.max(1));
        let argmax = best.first().map_or(0, |&(token, _)| token as u32);
        let largest = best.first().map_or(0.0, |&(_, logit)| logit);
        let weights = match rule.draw {
            MixtureDraw::None => nucleus(&best, largest, rule),
            MixtureDraw::Gumbel { key, tau } => {
                let kept = nucleus(&best, largest, rule);
                let score = |&(token, p): &(u32, f32)| (token, p.ln() + key.gumbel(token as usize));
                softmax(kept.iter().map(score).collect(), tau)
            }
            MixtureDraw::OneSidedGumbel { key, tau, scale, top_p } => {
                let scores = one_sided(logits, &best, (key, scale, top_p));
                softmax(scores, tau)
            }
            MixtureDraw::Sampled { key, count, sampling } => {
                let share = 1.0 / count as f32;
                let draw = |i: usize| {
                    let at = key.uniform_of(crate::rng::Site::Token, i);
                    sampling.sample(isa, logits, largest, at).unwrap_or(argmax)
                };
                (0..count).map(|i| (draw(i), share)).collect()
            }
        };
        Self { weights, argmax, entropy: entropy(logits, largest, rule.temperature) }
    }
}

/// The most probable tokens, with their probabilities among the retained ones.
fn nucleus(best: &[(usize, f32)], largest: f32, rule: MixtureRule) -> Vec<(u32, f32)> {
    let weigh = |&(token, logit): &(usize, f32)| {
        (token as u32, ((logit - largest) / rule.temperature).exp())
    };
    let mut weights: Vec<(u32, f32)> = best.iter().map(weigh).collect();
    let total: f32 = weights.iter().map(|(_, weight)| weight).sum();
    let mut so_far = 0.0;
    let kept = weights.iter().position(|(_, weight)| {
        so_far += weight;
        so_far >= rule.top_p * total
    });
    weights.truncate(kept.map_or(weights.len(), |last| last + 1));
    let kept: f32 = weights.iter().map(|(_, weight)| weight).sum();
    weights.iter_mut().for_each(|(_, weight)| *weight /= kept);
    weights
}

/// The best scores with one-sided noise, as many as the mixture has tokens.
fn one_sided(
    logits: &[f32],
    best: &[(usize, f32)],
    (key, scale, top_p): (RngKey, f32, f32),
) -> Vec<(u32, f32)> {
    let largest = best.first().map_or(0.0, |&(_, logit)| logit);
    let weights: Vec<f32> = logits.iter().map(|&x| finite((x - largest).exp())).collect();
    let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let mut tokens = top_p_tokens(&weights, f64::from(top_p) * total);
    tokens.extend(best.iter().map(|&(token, _)| token as u32));
    tokens.sort_unstable();
    tokens.dedup();
    let log_total = total.ln() as f32;
    let [low, high] = GUMBEL_RANGE;
    let mut scores: Vec<(u32, f32)> = tokens
        .into_iter()
        .map(|token| {
            let noise = key.gumbel(token as usize).clamp(low, high) - low;
            (token, logits[token as usize] - largest - log_total + scale * noise)
        })
        .collect();
    scores.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    scores.truncate(best.len());
    scores
}

fn finite(weight: f32) -> f32 {
    if weight.is_finite() { weight } else { 0.0 }
}

fn softmax(mut scores: Vec<(u32, f32)>, temperature: f32) -> Vec<(u32, f32)> {
    let largest = scores.iter().map(|&(_, x)| x).reduce(f32::max).unwrap_or(0.0);
    scores.iter_mut().for_each(|(_, x)| *x = ((*x - largest) / temperature).exp());
    let total: f32 = scores.iter().map(|(_, x)| x).sum();
    scores.iter_mut().for_each(|(_, x)| *x /= total);
    scores
}

/// Entropy in nats; a NaN logit is ignored.
fn entropy(logits: &[f32], largest: f32, temperature: f32) -> f32 {
    let mut total = 0.0_f64;
    let mut moment = 0.0_f64;
    for &logit in logits.iter().filter(|logit| logit.is_finite()) {
        let exponent = f64::from((logit - largest) / temperature);
        let weight = exponent.exp();
        total += weight;
        moment += weight * exponent;
    }
    if total > 0.0 { (total.ln() - moment / total) as f32 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [1.0, 3.0, 2.5, -4.0, 0.0, 2.5];
    const KEY: RngKey = RngKey { seed: 3, question: 1, trajectory: 2, position: 7 };

    fn mixed(rule: MixtureRule) -> RowMixture {
        RowMixture::new(Isa::detect(), &LOGITS, rule)
    }

    fn rule(draw: MixtureDraw) -> MixtureRule {
        MixtureRule { tokens: 3, temperature: 1.0, top_p: 1.0, draw }
    }

    fn tokens(row: &RowMixture) -> Vec<u32> {
        row.weights.iter().map(|&(token, _)| token).collect()
    }

    #[test]
    fn plain_mixtures_are_the_softmax_of_the_best_tokens() {
        let row = mixed(rule(MixtureDraw::None));
        assert_eq!((tokens(&row), row.argmax), (vec![1, 2, 5], 1));
        let total = 1.0 + 2.0 * (-0.5_f32).exp();
        assert!((row.weights[0].1 - 1.0 / total).abs() < 1e-6);
        let cut = mixed(MixtureRule { top_p: 0.4, ..rule(MixtureDraw::None) });
        assert_eq!(cut.weights, [(1, 1.0)]);
        let cold = mixed(MixtureRule { temperature: 0.1, ..rule(MixtureDraw::None) });
        assert!(cold.weights[0].1 > row.weights[0].1);
    }

    #[test]
    fn gumbel_weights_follow_the_definition() {
        let row = mixed(rule(MixtureDraw::Gumbel { key: KEY, tau: 0.7 }));
        let score = |token: usize| (LOGITS[token] + KEY.gumbel(token)) / 0.7;
        let total: f32 = [1, 2, 5].into_iter().map(|token| score(token).exp()).sum();
        for &(token, weight) in &row.weights {
            assert!((weight - score(token as usize).exp() / total).abs() < 1e-5);
        }
    }

    #[test]
    fn one_sided_noise_never_lowers_a_score() {
        let draw = |scale| MixtureDraw::OneSidedGumbel { key: KEY, tau: 1.0, scale, top_p: 0.95 };
        // Without noise the best tokens are mixed by their probabilities.
        let clean = mixed(rule(draw(0.0)));
        assert_eq!(tokens(&clean), [1, 2, 5]);
        let noisy = mixed(rule(draw(1.0)));
        let log_total = LOGITS.iter().map(|x| x.exp()).sum::<f32>().ln();
        let score = |token: u32| {
            let noise = KEY.gumbel(token as usize).clamp(-1.5, 3.0) + 1.5;
            assert!(noise >= 0.0);
            LOGITS[token as usize] - log_total + noise
        };
        let total: f32 = noisy.weights.iter().map(|&(token, _)| score(token).exp()).sum();
        for &(token, weight) in &noisy.weights {
            assert!((weight - score(token).exp() / total).abs() < 1e-5);
        }
        // Every other token of the set scores less.
        let least = noisy.weights.iter().map(|&(token, _)| score(token)).fold(f32::MAX, f32::min);
        let set = [0_u32, 1, 2, 5];
        let others = set.into_iter().filter(|token| !tokens(&noisy).contains(token));
        assert!(others.map(score).all(|other| other <= least));
    }

    #[test]
    fn sampled_tokens_are_averaged() {
        let sampling = TokenSampling::new(1.0, 1.0).unwrap();
        let row = mixed(rule(MixtureDraw::Sampled { key: KEY, count: 4, sampling }));
        assert_eq!(row.weights.len(), 4);
        assert!(row.weights.iter().all(|&(_, weight)| weight == 0.25));
        let again = mixed(rule(MixtureDraw::Sampled { key: KEY, count: 2, sampling }));
        assert_eq!(tokens(&again), tokens(&row)[..2], "more samples begin with the same ones");
    }

    #[test]
    fn entropy_is_that_of_the_softmax() {
        assert!((entropy(&[2.0; 8], 2.0, 0.6) - 8.0_f32.ln()).abs() < 1e-6);
        assert!(entropy(&[0.0, 100.0], 100.0, 1.0) < 1e-6);
        assert!(entropy(&LOGITS, 3.0, 0.1) < entropy(&LOGITS, 3.0, 1.0));
    }
}
