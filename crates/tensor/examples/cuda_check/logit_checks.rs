//! Checks of tokens and mixtures of tokens, from logits.

use crate::checks::{KernelCheck, shapes};
use crate::cuda::args::CudaMixture;
use crate::cuda::dropout::CudaPerturbedRows;
use crate::cuda::linear::CudaLinear;
use crate::cuda::{CudaTensor, topk};
use crate::params::{RowPerturbation, SiteSet};
use crate::reference::first_max;
use crate::rng::RngKey;
use crate::{CheckResult, numbers, small};

impl KernelCheck {
    pub(crate) fn greedy_tokens(&mut self) -> CheckResult {
        let biased = [(5, 24, 50), (3, 13, 7), (200, 64, 50257), (1500, 8, 50257)];
        let plain = [(7, 24, 50), (300, 200, 1000), (600, 320, 5003)];
        let all = biased.map(|s| (s, true)).into_iter().chain(plain.map(|s| (s, false)));
        let elements =
            |((rows, inputs, vocab), _): ((usize, usize, usize), bool)| (rows + vocab) * inputs;
        for ((rows, inputs, vocab), biased) in shapes(&all.collect::<Vec<_>>(), elements) {
            // Small integers: sums are exact in every dtype, and ties are many.
            let whole = |n: usize, salt: u64| -> Vec<f32> {
                numbers(n, salt).into_iter().map(|x| (x * 1.5).round()).collect()
            };
            let mut x = whole(rows * inputs, 19);
            let w = whole(vocab * inputs, 20);
            let bias = whole(vocab, 21);
            x[inputs] = f32::NAN; // row 1: all logits are NaN
            let map = CudaLinear::from_output_major(
                &self.cuda,
                inputs,
                vocab,
                &w,
                biased.then_some(&bias[..]),
            )?;
            let got = topk::PendingRowTokens::launch(
                &CudaTensor::from_host(&self.cuda, rows, inputs, &x)?,
                &map,
            )?
            .read()?;
            let logits = |r: usize| -> Vec<f32> {
                let offset = |j: usize| if biased { bias[j] } else { 0.0 };
                let dot = |j: usize| {
                    (0..inputs).map(|k| x[r * inputs + k] * w[j * inputs + k]).sum::<f32>()
                        + offset(j)
                };
                (0..vocab).map(dot).collect()
            };
            let picked: Vec<usize> =
                (0..rows).filter(|r| *r < 8 || r % 53 == 0 || r + 1 == rows).collect();
            let right = |&&r: &&usize| {
                let logits = logits(r);
                let (token, logprob) = got[r];
                let at = first_max(&logits);
                let sum: f64 = logits.iter().map(|x| f64::from(x - logits[at]).exp()).sum();
                // A NaN logit makes the log-probability NaN.
                token as usize == at
                    && (sum.is_nan() == logprob.is_nan())
                    && (sum.is_nan() || (f64::from(logprob) + sum.ln()).abs() < 2e-5)
            };
            let wrong = picked.len() - picked.iter().filter(right).count();
            self.line(
                &format!("greedy_tokens {rows} x {inputs} -> {vocab} bias {biased}"),
                wrong == 0,
                &format!("{wrong} of {} wrong", picked.len()),
            );
        }
        Ok(())
    }

    /// With and without logits in memory, at GPT-2's size: sums of integers are exact, so the
    /// tokens must be equal. Skipped if there is only one kernel.
    pub(crate) fn greedy_tokens_of_both_kernels(&mut self) -> CheckResult {
        if small() {
            return Ok(());
        }
        let rows = 1111;
        let inputs = 768;
        let vocab = 50257;
        let whole = |n: usize, salt: u64| -> Vec<f32> {
            numbers(65_521, salt).into_iter().map(|x| (x * 1.5).round()).cycle().take(n).collect()
        };
        let x = self.operand(rows, inputs, &whole(rows * inputs, 24))?;
        let w = whole(vocab * inputs, 25);
        let kept =
            CudaLinear::from_output_major(&self.cuda, inputs, vocab, &w, Some(&vec![0.0; vocab]))?;
        let never = CudaLinear::from_output_major(&self.cuda, inputs, vocab, &w, None)?;
        if !crate::cuda::hopper_gemm::supports_argmax(&x, &never) {
            return Ok(());
        }
        let kept = topk::PendingRowTokens::launch(&x, &kept)?.read()?;
        let never = topk::PendingRowTokens::launch(&x, &never)?.read()?;
        let differ =
            kept.iter().zip(&never).filter(|(a, b)| a.0 != b.0 || (a.1 - b.1).abs() > 2e-5).count();
        let tokens: std::collections::BTreeSet<u32> = kept.iter().map(|a| a.0).collect();
        self.line(
            "greedy_tokens of both kernels",
            differ == 0,
            &format!("{differ} of {rows} differ, {} tokens", tokens.len()),
        );
        Ok(())
    }

    pub(crate) fn top_k_mixture(&mut self) -> CheckResult {
        let all = [(5, 24, 50, 3), (2, 16, 7, 10), (70, 64, 50257, 10), (9, 128, 3001, 64)];
        let elements = |(rows, width, vocab, _)| (rows + vocab) * width;
        for (rows, width, vocab, k) in shapes(&all, elements) {
            let x = self.rounded(numbers(rows * width, 22));
            let w = self.rounded(numbers(vocab * width, 23));
            let map = CudaLinear::from_output_major(&self.cuda, width, vocab, &w, None)?;
            // Odd rows have Gumbel noise at a temperature of 0.5.
            let key = |r: usize| RngKey { seed: 5, question: 1, trajectory: r as u32, position: 9 };
            let noise = |r: usize| {
                let row = RowPerturbation { key: key(r), strength: 0.5, sites: SiteSet::GUMBEL };
                (r % 2 == 1).then_some(row)
            };
            let noise =
                CudaPerturbedRows::new(&self.cuda, &(0..rows).map(noise).collect::<Vec<_>>())?;
            let (got, argmax) = topk::top_k_mixture(
                &CudaTensor::from_host(&self.cuda, rows, width, &x)?,
                &map,
                &map,
                CudaMixture { k, noise: Some(&noise) },
            )?;
            let mut expected = Vec::new();
            let mut wrong = 0;
            for r in 0..rows {
                let dot = |j: usize| {
                    (0..width)
                        .map(|c| f64::from(x[r * width + c]) * f64::from(w[j * width + c]))
                        .sum::<f64>()
                };
                let mut scored: Vec<(usize, f64)> = (0..vocab).map(|j| (j, dot(j))).collect();
                scored.sort_by(|a, b| b.1.total_cmp(&a.1));
                scored.truncate(k);
                wrong += usize::from(scored[0].0 != argmax[r] as usize);
                let temperature = if r % 2 == 1 {
                    scored.iter_mut().for_each(|s| s.1 += f64::from(key(r).gumbel(s.0)));
                    0.5
                } else {
                    1.0
                };
                let largest = scored.iter().map(|s| s.1).fold(f64::NEG_INFINITY, f64::max);
                let exp = |s: &(usize, f64)| ((s.1 - largest) / temperature).exp();
                let total: f64 = scored.iter().map(exp).sum();
                let weight =
                    |s: &(usize, f64), c: usize| exp(s) / total * f64::from(w[s.0 * width + c]);
                expected
                    .extend((0..width).map(|c| scored.iter().map(|s| weight(s, c)).sum::<f64>()));
            }
            let name = format!("mixture {rows} x {width} -> {vocab} k {k}");
            self.report(&name, &got.to_host()?, &expected, 3e-5);
            self.line(&name, wrong == 0, &format!("{wrong} argmax wrong"));
        }
        Ok(())
    }
}
