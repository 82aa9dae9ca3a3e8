//! Argmax and top-k of logits, without storing the logits.

use rayon::prelude::*;

use super::sample::sample_on_host;
use super::{Activation, Linear, OutputDtype, PerturbedRows, linear, lookup, select};
use crate::cpu::topk::{self, RowMax};
use crate::device::Backend;
use crate::params::TokenDraw;
use crate::rng::Site;
use crate::{Device, DeviceError, Isa, Tensor, cuda};

/// The indices and values of the `k` largest elements of a row, in descending order; ties in order
/// of index.
///
/// NaN counts as smaller than everything.
pub fn top_k(row: &[f32], k: usize) -> Vec<(usize, f32)> {
    let mut best: Vec<(usize, f32)> = Vec::with_capacity(k + 1);
    for (i, &x) in row.iter().enumerate() {
        if x.is_nan() || (best.len() == k && best.last().is_none_or(|&(_, worst)| x <= worst)) {
            continue;
        }
        let at = best.partition_point(|&(_, y)| y >= x);
        best.insert(at, (i, x));
        best.truncate(k);
    }
    best
}

/// A token and its log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Token id.
    pub token: u32,
    /// log softmax(logits)\[token\], natural; NaN if any logit of the row is NaN.
    pub logprob: f32,
}

/// The argmax of `x W + b` for each row of x (rows, inputs), the lowest index of a tie.
///
/// NaN counts as smaller than everything; a row of only NaN gives index 0, so that an index is
/// always valid. The logits are not stored if the device can reduce them in the kernel of the
/// product.
pub fn greedy_tokens(
    device: &Device,
    x: &Tensor,
    map: &Linear,
) -> Result<Vec<TokenLogprob>, DeviceError> {
    PendingTokens::greedy(device, x, map)?.read()
}

/// Tokens that a GPU may still be computing: the host can queue more work before it reads them.
#[derive(Debug)]
pub struct PendingTokens(PendingState);

#[derive(Debug)]
enum PendingState {
    Ready(Vec<TokenLogprob>),
    Pending(cuda::topk::PendingRowTokens),
}

impl PendingTokens {
    /// Queues [`greedy_tokens`].
    pub fn greedy(device: &Device, x: &Tensor, map: &Linear) -> Result<Self, DeviceError> {
        assert_eq!(
            x.cols(),
            map.inputs(),
            "greedy_tokens: rows of {} into a map of {}",
            x.cols(),
            map.inputs()
        );
        Ok(Self(match device.backend() {
            Backend::Cpu(cpu) => {
                let (packed, bias) = map.cpu();
                PendingState::Ready(topk::greedy_tokens(cpu.isa, x.data(), packed, bias))
            }
            Backend::Cuda(_) => {
                PendingState::Pending(cuda::topk::PendingRowTokens::launch(x.gpu(), map.gpu())?)
            }
        }))
    }

    /// Queues [`super::sample_tokens`].
    pub fn sampled(
        device: &Device,
        x: &Tensor,
        head: &Linear,
        draws: &[Option<TokenDraw>],
    ) -> Result<Self, DeviceError> {
        let rows = x.rows();
        assert_eq!(rows, draws.len(), "sample_tokens: {rows} rows, {} draws", draws.len());
        Ok(Self(match device.backend() {
            Backend::Cpu(cpu) => {
                PendingState::Ready(sample_on_host(device, cpu.isa, (x, head), draws)?)
            }
            Backend::Cuda(_) => {
                let pending = cuda::topk::PendingRowTokens::sample(x.gpu(), head.gpu(), draws)?;
                PendingState::Pending(pending)
            }
        }))
    }

    /// [`lookup`] of the tokens, on the device: they need not have been read. The table must have a
    /// row for every token.
    pub fn lookup(&self, device: &Device, table: &Linear) -> Result<Tensor, DeviceError> {
        match &self.0 {
            PendingState::Ready(tokens) => {
                lookup(device, table, &tokens.iter().map(|token| token.token).collect::<Vec<_>>())
            }
            PendingState::Pending(pending) => {
                Ok(cuda::embedding::lookup_pending(table.gpu(), pending)?.into())
            }
        }
    }

    /// Whether [`PendingTokens::read`] returns without waiting for a device.
    pub fn is_ready(&self) -> bool {
        matches!(self.0, PendingState::Ready(_))
    }

    /// Waits for the tokens.
    pub fn read(self) -> Result<Vec<TokenLogprob>, DeviceError> {
        match self.0 {
            PendingState::Ready(tokens) => Ok(tokens),
            PendingState::Pending(pending) => Ok(pending
                .read()?
                .into_iter()
                .map(|(token, logprob)| TokenLogprob { token, logprob })
                .collect()),
        }
    }
}

impl From<Vec<TokenLogprob>> for PendingTokens {
    fn from(tokens: Vec<TokenLogprob>) -> Self {
        Self(PendingState::Ready(tokens))
    }
}

/// The tokens of [`greedy_tokens`], without their log-probabilities.
pub fn argmax(device: &Device, x: &Tensor, map: &Linear) -> Result<Vec<u32>, DeviceError> {
    Ok(greedy_tokens(device, x, map)?.into_iter().map(|token| token.token).collect())
}

/// Rows of logits computed at a time when whole rows are stored.
pub(super) const LOGIT_ROWS: usize = 64;

/// The `k` most probable tokens of each row of x (rows, inputs) under softmax(x W + b), with their
/// log-probabilities: in descending order, ties in order of index. A NaN logit belongs to no token,
/// and makes the row's log-probabilities NaN.
///
/// It needs whole rows of logits, which are copied from a GPU in chunks of rows.
pub fn top_tokens(
    device: &Device,
    x: &Tensor,
    map: &Linear,
    k: usize,
) -> Result<Vec<Vec<TokenLogprob>>, DeviceError> {
    let isa = device.isa().unwrap_or_else(Isa::detect);
    let mut tokens = Vec::with_capacity(x.rows());
    for start in (0..x.rows()).step_by(LOGIT_ROWS) {
        let chunk: Vec<usize> = (start..x.rows().min(start + LOGIT_ROWS)).collect();
        let x = select(device, [x], &chunk)?;
        let mut logits = Tensor::default();
        linear(device, &x, map, Activation::None, OutputDtype::F32, &mut logits)?;
        let logits = logits.to_host()?;
        tokens.par_extend((0..chunk.len()).into_par_iter().map(|r| {
            let max = RowMax::from_logits(isa, logits.row(r));
            let with_logprob = |(token, logit): (usize, f32)| TokenLogprob {
                token: token as u32,
                logprob: max.logprob(logit),
            };
            top_k(logits.row(r), k).into_iter().map(with_logprob).collect()
        }));
    }
    Ok(tokens)
}

/// Mixtures of token embeddings.
#[derive(Clone, Copy, Debug)]
pub struct TopKMixture<'a> {
    /// Computes the logits.
    pub head: &'a Linear,
    /// The embeddings; the head itself if the two are tied.
    pub table: &'a Linear,
    /// Number of tokens per mixture.
    pub k: usize,
    /// For rows that are perturbed at [`Site::Gumbel`], weights are softmax((logits + Gumbel
    /// noise) / strength) over the same `k` tokens. (rows)
    pub noise: Option<&'a PerturbedRows>,
}

/// For each row of x the sum of the top `k` tokens' embeddings, weighted by the softmax over those
/// `k`: (rows, width); and the argmax of the logits without noise.
pub fn top_k_mixture(
    device: &Device,
    x: &Tensor,
    mixture: TopKMixture<'_>,
) -> Result<(Tensor, Vec<u32>), DeviceError> {
    let TopKMixture { head, table, k, noise } = mixture;
    if let Some(noise) = noise {
        let count = noise.rows().len();
        assert_eq!(count, x.rows(), "mixture: {count} perturbations for {} rows", x.rows());
    }
    if let Backend::Cuda(_) = device.backend() {
        let weights = cuda::args::CudaMixture { k, noise: noise.map(PerturbedRows::gpu) };
        let (mixtures, argmax) =
            cuda::topk::top_k_mixture(x.gpu(), head.gpu(), table.gpu(), weights)?;
        return Ok((mixtures.into(), argmax));
    }
    let mut mixtures = Tensor::zeros(0, table.inputs());
    let mut argmax = Vec::with_capacity(x.rows());
    let mut logits = Tensor::default();
    for start in (0..x.rows()).step_by(LOGIT_ROWS) {
        let rows: Vec<usize> = (start..x.rows().min(start + LOGIT_ROWS)).collect();
        let x = select(device, [x], &rows)?;
        linear(device, &x, head, Activation::None, OutputDtype::F32, &mut logits)?;
        for (r, &row) in rows.iter().enumerate() {
            let mut best = top_k(logits.row(r), k);
            let noise = noise.and_then(|noise| noise.at(row, Site::Gumbel));
            if let Some(row) = noise {
                best.iter_mut().for_each(|(token, x)| *x += row.key.gumbel(*token));
            }
            let best = softmax(best, noise.map_or(1.0, |row| row.strength));
            let tokens: Vec<u32> = best.iter().map(|&(token, _)| token as u32).collect();
            let embeddings = lookup(device, table, &tokens)?;
            let mut mixture = vec![0.0; table.inputs()];
            for (i, (_, weight)) in best.iter().enumerate() {
                mixture.iter_mut().zip(embeddings.row(i)).for_each(|(x, e)| *x += weight * e);
            }
            mixtures.push(&mixture);
            argmax.push(tokens.first().copied().unwrap_or(0));
        }
    }
    Ok((mixtures, argmax))
}

fn softmax(mut scored: Vec<(usize, f32)>, temperature: f32) -> Vec<(usize, f32)> {
    let largest = scored.iter().map(|&(_, x)| x).reduce(f32::max).unwrap_or(0.0);
    scored.iter_mut().for_each(|(_, x)| *x = ((*x - largest) / temperature).exp());
    let total: f32 = scored.iter().map(|(_, x)| x).sum();
    scored.iter_mut().for_each(|(_, x)| *x /= total);
    scored
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_first_and_lower_index_among_equals() {
        assert_eq!(top_k(&[1.0, 3.0, 2.0, 3.0, f32::NAN], 3), [(1, 3.0), (3, 3.0), (2, 2.0)]);
        assert_eq!(top_k(&[1.0], 3), [(0, 1.0)]);
        assert_eq!(top_k(&[], 3), []);
        assert_eq!(top_k(&[1.0, 2.0], 0), []);
    }

    proptest::proptest! {
        #[test]
        fn top_k_equals_a_sort(row in proptest::collection::vec(-5i8..5, 0..40), k in 0usize..12) {
            let row: Vec<f32> = row.into_iter().map(f32::from).collect();
            let mut sorted: Vec<(usize, f32)> = row.iter().copied().enumerate().collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            sorted.truncate(k);
            proptest::prop_assert_eq!(top_k(&row, k), sorted);
        }
    }
}
