//! The largest elements of rows of logits, which are never kept whole.

use super::{Activation, Linear, OutputDtype, linear, lookup, select};
use crate::cpu::topk;
use crate::device::Backend;
use crate::{Device, DeviceError, Tensor, cuda};

/// The `k` largest elements of a row with their indices, largest first; the lower index first among
/// equals.
///
/// Not-a-number counts as smaller than everything.
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

/// A token and the natural logarithm of its probability among all tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Its index.
    pub token: u32,
    /// log softmax(logits)\[token\]; not finite where a logit is not.
    pub logprob: f32,
}

/// For each row of x (rows, inputs) the largest element of `x W + b`; the lowest index among
/// equals.
///
/// Not-a-number counts as smaller than everything; a row of nothing else has index 0, so that an
/// index is always one. The results themselves, a row of which may be a whole vocabulary, are never
/// stored.
pub fn greedy_tokens(
    device: &Device,
    x: &Tensor,
    map: &Linear,
) -> Result<Vec<TokenLogprob>, DeviceError> {
    PendingTokens::greedy(device, x, map)?.read()
}

/// Words that were asked for. A GPU may still be at it, and the host has time for other things
/// before it reads them.
#[derive(Debug)]
pub struct PendingTokens(PendingState);

#[derive(Debug)]
enum PendingState {
    Ready(Vec<TokenLogprob>),
    Pending(cuda::topk::PendingArgmax),
}

impl PendingTokens {
    /// Asks for what [`likeliest`] finds.
    pub fn greedy(device: &Device, x: &Tensor, map: &Linear) -> Result<Self, DeviceError> {
        assert_eq!(
            x.cols(),
            map.inputs(),
            "likeliest: rows of {} into a map of {}",
            x.cols(),
            map.inputs()
        );
        Ok(Self(match device.backend() {
            Backend::Cpu(cpu) => {
                let (packed, bias) = map.cpu();
                PendingState::Ready(topk::greedy_tokens(cpu.isa, x.data(), packed, bias))
            }
            Backend::Cuda(_) => {
                PendingState::Pending(cuda::topk::PendingArgmax::launch(x.gpu(), map.gpu())?)
            }
        }))
    }

    /// [`lookup`] of all of them, which need not have been read for it. The table must have a row
    /// for every word.
    pub fn lookup(&self, device: &Device, table: &Linear) -> Result<Tensor, DeviceError> {
        match &self.0 {
            PendingState::Ready(words) => {
                lookup(device, table, &words.iter().map(|word| word.token).collect::<Vec<_>>())
            }
            PendingState::Pending(found) => {
                Ok(cuda::embedding::lookup_pending(table.gpu(), found)?.into())
            }
        }
    }

    /// Whether nobody has to wait for them.
    pub fn is_ready(&self) -> bool {
        matches!(self.0, PendingState::Ready(_))
    }

    /// Waits for them.
    pub fn read(self) -> Result<Vec<TokenLogprob>, DeviceError> {
        match self.0 {
            PendingState::Ready(words) => Ok(words),
            PendingState::Pending(found) => Ok(found
                .read()?
                .into_iter()
                .map(|(token, logprob)| TokenLogprob { token, logprob })
                .collect()),
        }
    }
}

impl From<Vec<TokenLogprob>> for PendingTokens {
    fn from(words: Vec<TokenLogprob>) -> Self {
        Self(PendingState::Ready(words))
    }
}

/// The indices alone of what [`likeliest`] finds.
pub fn argmax(device: &Device, x: &Tensor, map: &Linear) -> Result<Vec<u32>, DeviceError> {
    Ok(greedy_tokens(device, x, map)?.into_iter().map(|word| word.token).collect())
}

/// Rows of logits made at a time where whole rows are needed.
pub(super) const LOGIT_ROWS: usize = 64;

/// For each row of x the mixture of the `k` likeliest outputs' rows of `table`, weighted by their
/// softmax: (rows, width); and the likeliest. `table` is the head itself where the two are tied.
pub fn top_k_mixture(
    device: &Device,
    x: &Tensor,
    head: &Linear,
    table: &Linear,
    k: usize,
) -> Result<(Tensor, Vec<u32>), DeviceError> {
    if let Backend::Cuda(_) = device.backend() {
        let (thoughts, likeliest) = cuda::topk::top_k_mixture(x.gpu(), head.gpu(), table.gpu(), k)?;
        return Ok((thoughts.into(), likeliest));
    }
    let (mut thoughts, mut likeliest) =
        (Tensor::zeros(0, table.inputs()), Vec::with_capacity(x.rows()));
    let mut logits = Tensor::default();
    for start in (0..x.rows()).step_by(LOGIT_ROWS) {
        let rows: Vec<usize> = (start..x.rows().min(start + LOGIT_ROWS)).collect();
        linear(
            device,
            &select(device, [x], &rows)?,
            head,
            (Activation::None, OutputDtype::F32),
            &mut logits,
        )?;
        for r in 0..rows.len() {
            let best = softmax(top_k(logits.row(r), k));
            let embeddings = lookup(
                device,
                table,
                &best.iter().map(|&(token, _)| token as u32).collect::<Vec<_>>(),
            )?;
            let mut thought = vec![0.0; table.inputs()];
            for (i, (_, weight)) in best.iter().enumerate() {
                thought.iter_mut().zip(embeddings.row(i)).for_each(|(x, e)| *x += weight * e);
            }
            thoughts.push(&thought);
            likeliest.push(best.first().map_or(0, |&(token, _)| token as u32));
        }
    }
    Ok((thoughts, likeliest))
}

fn softmax(mut scored: Vec<(usize, f32)>) -> Vec<(usize, f32)> {
    let largest = scored.first().map_or(0.0, |&(_, x)| x);
    scored.iter_mut().for_each(|(_, x)| *x = (*x - largest).exp());
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
