//! Token sampling: temperature, then top-p, then the inverse of the cumulative distribution at one
//! random number.
//!
//! A GPU samples in one kernel after the LM head (`cuda/sample.cu`): logits never reach the host.
//! The random number is the same on every device; sums of probabilities are rounded differently, so
//! a number on the boundary of a token's interval may select the adjacent token.

use rayon::prelude::*;

use super::topk::{LOGIT_ROWS, PendingTokens, TokenLogprob};
use super::{Activation, Indices, Linear, OutputDtype, cross_entropy, linear, logits, select};
use crate::cpu::isa::per_isa;
use crate::cpu::math::exp;
use crate::cpu::topk::RowMax;
use crate::device::Backend;
use crate::params::{TokenDraw, TokenSampling};
use crate::rng::Site;
use crate::{Device, DeviceError, Isa, Tensor};

impl TokenSampling {
    /// The token whose interval of the cumulative distribution, in the order of tokens, contains
    /// `at` in `[0, 1)`. `None` if no logit is a number. `max` is the largest logit.
    pub(super) fn sample(self, isa: Isa, logits: &[f32], max: f32, at: f64) -> Option<u32> {
        let shift = max;
        let scale = 1.0 / self.temperature();
        let weights =
            per_isa!(isa, softmax_weights(logits: &[f32], shift: f32, scale: f32) -> Vec<f32>);
        let total = sum_f64(weights.iter().copied());
        if !total.is_finite() || total <= 0.0 {
            return None;
        }
        if self.top_p() >= 1.0 {
            return inverse_cdf((0..weights.len() as u32).zip(weights.iter().copied()), at * total);
        }
        let kept = top_p_tokens(&weights, f64::from(self.top_p()) * total);
        let kept = kept.iter().map(|&token| (token, weights[token as usize]));
        inverse_cdf(kept.clone(), at * sum_f64(kept.map(|(_, weight)| weight)))
    }
}

/// A token for each row of x (rows, inputs), sampled from softmax(x W + b) according to that row's
/// draw; the argmax if it has none. Log-probabilities are those of the softmax at temperature 1
/// over all tokens.
pub fn sample_tokens(
    device: &Device,
    x: &Tensor,
    head: &Linear,
    draws: &[Option<TokenDraw>],
) -> Result<Vec<TokenLogprob>, DeviceError> {
    PendingTokens::sampled(device, x, head, draws)?.read()
}

/// Rows whose logits are stored at once on a GPU when log-probabilities of given tokens are
/// computed.
const GPU_LOGIT_ROWS: usize = 1024;

/// The log-probability of a given token for each row of x (rows, inputs), under softmax(x W + b).
///
/// On a CPU it has the same bits as the result of [`sample_tokens`] for the sampled token.
pub fn token_logprobs(
    device: &Device,
    x: &Tensor,
    head: &Linear,
    tokens: &[u32],
) -> Result<Vec<f32>, DeviceError> {
    let rows = x.rows();
    assert_eq!(rows, tokens.len(), "token_logprobs: {rows} rows, {} tokens", tokens.len());
    let step = match device.backend() {
        Backend::Cpu(_) => LOGIT_ROWS,
        Backend::Cuda(_) => GPU_LOGIT_ROWS,
    };
    let mut logprobs = Vec::with_capacity(rows);
    for start in (0..rows).step_by(step) {
        let chunk: Vec<usize> = (start..rows.min(start + step)).collect();
        let x = select(device, [x], &chunk)?;
        let tokens = &tokens[start..start + chunk.len()];
        logprobs.extend(chunk_logprobs(device, &x, head, tokens)?);
    }
    Ok(logprobs)
}

/// [`token_logprobs`] of few enough rows that their logits can be stored.
fn chunk_logprobs(
    device: &Device,
    x: &Tensor,
    head: &Linear,
    tokens: &[u32],
) -> Result<Vec<f32>, DeviceError> {
    let mut scores = Tensor::default();
    match device.backend() {
        Backend::Cpu(cpu) => {
            linear(device, x, head, Activation::None, OutputDtype::F32, &mut scores)?;
            let logprob = |(r, &token): (usize, &u32)| {
                let row = scores.row(r);
                RowMax::from_logits(cpu.isa, row).logprob(row[token as usize])
            };
            Ok(tokens.par_iter().enumerate().map(logprob).collect())
        }
        Backend::Cuda(_) => {
            logits(device, x, head, &mut scores)?;
            let targets = Indices::new(device, tokens.to_vec())?;
            let weights = vec![0.0; tokens.len()];
            let losses =
                cross_entropy(device, &scores, &targets, &weights, &mut Tensor::default())?;
            Ok(losses.to_host()?.data().iter().map(|loss| -loss).collect())
        }
    }
}

/// [`sample_tokens`] on a CPU.
pub(super) fn sample_on_host(
    device: &Device,
    isa: Isa,
    (x, head): (&Tensor, &Linear),
    draws: &[Option<TokenDraw>],
) -> Result<Vec<TokenLogprob>, DeviceError> {
    let mut tokens = Vec::with_capacity(x.rows());
    for start in (0..x.rows()).step_by(LOGIT_ROWS) {
        let chunk: Vec<usize> = (start..x.rows().min(start + LOGIT_ROWS)).collect();
        let x = select(device, [x], &chunk)?;
        let mut logits = Tensor::default();
        linear(device, &x, head, Activation::None, OutputDtype::F32, &mut logits)?;
        tokens.par_extend(
            chunk.par_iter().map(|&r| sample_row(isa, logits.row(r - start), draws[r])),
        );
    }
    Ok(tokens)
}

fn sample_row(isa: Isa, logits: &[f32], draw: Option<TokenDraw>) -> TokenLogprob {
    let row = RowMax::from_logits(isa, logits);
    let sampled = draw.and_then(|TokenDraw { key, sampling }| {
        sampling.sample(isa, logits, row.max, key.uniform(Site::Token))
    });
    let token = sampled.unwrap_or(row.argmax);
    TokenLogprob { token, logprob: row.logprob(logits[token as usize]) }
}

/// e^((logit - shift) scale); 0 for NaN.
#[inline(always)]
fn softmax_weights<const FUSED: bool>(logits: &[f32], shift: f32, scale: f32) -> Vec<f32> {
    let mut out = vec![0.0; logits.len()];
    for (out, &x) in out.iter_mut().zip(logits) {
        // A difference of 0 stays 0 even if the scale is infinite, as for the lowest temperatures.
        let exponent = if x == shift { 0.0 } else { (x - shift) * scale };
        let weight = exp::<FUSED>(exponent);
        *out = if weight.is_nan() { 0.0 } else { weight };
    }
    out
}

fn sum_f64(weights: impl Iterator<Item = f32>) -> f64 {
    weights.map(f64::from).sum()
}

/// The first token at which the running sum of weights exceeds `target`; the last one of positive
/// weight if, due to rounding, there is none.
fn inverse_cdf(shares: impl Iterator<Item = (u32, f32)>, target: f64) -> Option<u32> {
    let mut so_far = 0.0;
    let mut last = None;
    for (token, weight) in shares.filter(|&(_, weight)| weight > 0.0) {
        so_far += f64::from(weight);
        last = Some(token);
        if so_far > target {
            break;
        }
    }
    last
}

/// Tokens sorted first; most nuclei are smaller.
const INITIAL_TOP: usize = 64;

/// The smallest set of tokens whose weights sum to at least `mass`, in ascending token order: two
/// tokens of nearly equal weight, whose order by weight rounding may change, then keep their
/// intervals on every device.
pub(super) fn top_p_tokens(weights: &[f32], mass: f64) -> Vec<u32> {
    let heavier =
        |a: &u32, b: &u32| weights[*b as usize].total_cmp(&weights[*a as usize]).then(a.cmp(b));
    let mut order: Vec<u32> =
        (0..weights.len() as u32).filter(|&token| weights[token as usize] > 0.0).collect();
    let mut look = INITIAL_TOP;
    loop {
        let sorted = look.min(order.len());
        if sorted < order.len() {
            order.select_nth_unstable_by(sorted, heavier);
        }
        order[..sorted].sort_unstable_by(heavier);
        let mut so_far = 0.0;
        let enough = order[..sorted].iter().position(|&token| {
            so_far += f64::from(weights[token as usize]);
            so_far >= mass
        });
        if enough.is_some() || sorted == order.len() {
            order.truncate(enough.map_or(sorted, |at| at + 1));
            break;
        }
        look *= 8;
    }
    order.sort_unstable();
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_p_tokens_are_the_shortest_prefix_of_a_sort() {
        let weights: Vec<f32> = (0..1000u32).map(|i| (i * 7919 % 613) as f32).collect();
        let total = sum_f64(weights.iter().copied());
        let mut sorted: Vec<u32> = (0..1000).collect();
        sorted
            .sort_by(|&a, &b| weights[b as usize].total_cmp(&weights[a as usize]).then(a.cmp(&b)));
        for top_p in [1e-9, 0.01, 0.1, 0.5, 0.9, 0.999, 1.0] {
            let mut so_far = 0.0;
            let reaches = |&token: &u32| {
                so_far += f64::from(weights[token as usize]);
                so_far >= top_p * total
            };
            let mut expected = sorted[..=sorted.iter().position(reaches).unwrap()].to_vec();
            expected.sort_unstable();
            assert_eq!(top_p_tokens(&weights, top_p * total), expected, "{top_p}");
        }
    }

    #[test]
    fn only_valid_temperature_and_top_p_are_accepted() {
        for (temperature, top_p) in
            [(0.0, 1.0), (-1.0, 1.0), (f32::NAN, 1.0), (f32::INFINITY, 1.0), (1.0, 0.0), (1.0, 1.1)]
        {
            assert_eq!(TokenSampling::new(temperature, top_p), None);
        }
        assert_eq!(TokenSampling::new(1.0, 1.0), Some(TokenSampling::FULL_SOFTMAX));
    }

    #[test]
    fn low_temperature_and_small_top_p_select_the_argmax() {
        let logits = [0.5, 3.0, 2.999, -1.0, f32::NAN, 2.0];
        for sampling in [
            TokenSampling::new(1e-38, 1.0),
            TokenSampling::new(1e-45, 1.0),
            TokenSampling::new(1.0, 1e-6),
            TokenSampling::new(5.0, 1e-6),
        ] {
            for at in [0.0, 0.3, 0.999_999_9] {
                assert_eq!(
                    sampling.unwrap().sample(Isa::Portable, &logits, 3.0, at),
                    Some(1),
                    "{sampling:?}"
                );
            }
        }
    }

    #[test]
    fn nan_is_never_sampled() {
        let none = [f32::NAN, f32::NEG_INFINITY];
        assert_eq!(
            TokenSampling::FULL_SOFTMAX.sample(Isa::Portable, &none, f32::NEG_INFINITY, 0.5),
            Some(1)
        );
        assert_eq!(
            TokenSampling::FULL_SOFTMAX.sample(
                Isa::Portable,
                &[f32::NAN; 3],
                f32::NEG_INFINITY,
                0.5
            ),
            None
        );
    }
}
