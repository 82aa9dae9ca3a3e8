//! Greedy and sampled tokens.

use super::*;

/// log softmax(logits)[token], in f64.
fn log_softmax(logits: &[f32], token: usize) -> f32 {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum();
    (f64::from(logits[token]) - largest - sum.ln()) as f32
}

#[test]
fn greedy_tokens_have_their_log_softmax() {
    for (rows, inputs, outputs, loud) in
        [(1, 3, 1, 1.0), (7, 8, 5, 1.0), (30, 24, 201, 1.0), (400, 16, 70, 30.0), (3, 9, 4097, 8.0)]
    {
        let w: Vec<f32> = numbers(outputs * inputs, 33).into_iter().map(|x| x * loud).collect();
        let x = matrix(rows, inputs, 34);
        let bias = numbers(outputs, 35);
        for device in devices() {
            let map = Linear::from_output_major(&device, inputs, outputs, &w, Some(bias.clone()))
                .unwrap();
            let logits = run_linear(&device, &x, &map, Activation::None);
            let (found, before) = device.run(|| {
                let pending = PendingTokens::greedy(&device, &upload(&device, &x), &map).unwrap();
                let before = pending.lookup(&device, &map).unwrap();
                (pending.read().unwrap(), before.to_host().unwrap())
            });
            assert_eq!(found.len(), rows);
            let tokens: Vec<u32> = found.iter().map(|token| token.token).collect();
            let after = device.run(|| lookup(&device, &map, &tokens)).unwrap().to_host().unwrap();
            assert_eq!(
                before, after,
                "{device:?}: embeddings looked up before and after the tokens were read"
            );
            for (r, token) in found.iter().enumerate() {
                assert_eq!(
                    token.token as usize,
                    top_k(logits.row(r), 1)[0].0,
                    "{device:?} {outputs} row {r}"
                );
                let expected = log_softmax(logits.row(r), token.token as usize);
                // Two orders of summation differ in the last digits of the largest logit.
                let largest = logits.row(r).iter().fold(0.0f32, |m, x| m.max(x.abs()));
                assert!(
                    (token.logprob - expected).abs()
                        < 3e-6 * (1.0 + expected.abs()) + 5e-7 * largest,
                    "{device:?} {outputs}: {token:?}, {expected}"
                );
            }
            // Stored rows give the same result as panels that were reduced in the GEMM.
            let none = vec![None; rows];
            let clean =
                device.run(|| sample_tokens(&device, &upload(&device, &x), &map, &none)).unwrap();
            if !device.is_cuda() {
                assert_eq!(clean, found, "{device:?}");
            }
        }
    }
}

/// Tiles of int8 have other heights than those of f32, on some CPUs more rows than there are lanes.
#[test]
fn tokens_of_int8_are_those_of_its_stored_logits() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_present()) {
        let device = Device::cpu_in(NonZeroUsize::new(3), isa, Precision::Int8).unwrap();
        for (rows, outputs) in [(1, 70), (9, 5), (14, 33), (31, 300), (400, 64)] {
            let inputs = 24;
            let x = matrix(rows, 24, 37);
            let w = numbers(outputs * inputs, 38);
            let map = Linear::from_output_major(&device, inputs, outputs, &w, None).unwrap();
            let found = device.run(|| greedy_tokens(&device, &x, &map)).unwrap();
            let none = vec![None; rows];
            let stored = device.run(|| sample_tokens(&device, &x, &map, &none)).unwrap();
            assert_eq!(found.len(), rows);
            assert_eq!(found, stored, "{isa} {rows} x {outputs}");
        }
    }
}

fn draw(trajectory: u32, sampling: TokenSampling) -> Option<TokenDraw> {
    Some(TokenDraw { key: RngKey { seed: 77, question: 3, trajectory, position: 40 }, sampling })
}

/// Pearson's chi-squared statistic of a seeded sample is below its 99.99th percentile.
#[test]
fn sampled_tokens_follow_the_softmax() {
    let rows = 20_000usize;
    let outputs = 12;
    let logits = numbers(outputs, 36);
    let inputs = 1;
    let x = Tensor::from_vec(rows, inputs, vec![3.0; rows]);
    for (temperature, top_p) in [(1.0, 1.0), (0.5, 1.0), (2.0, 0.7), (1.0, 0.9)] {
        let mut shares: Vec<f64> =
            logits.iter().map(|&x| (f64::from(x) * 3.0 / f64::from(temperature)).exp()).collect();
        let mut sorted = shares.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let total: f64 = sorted.iter().sum();
        let mut so_far = 0.0;
        let reaches = |share: &&f64| {
            so_far += **share;
            so_far >= f64::from(top_p) * total
        };
        let least = *sorted.iter().find(reaches).unwrap_or(&sorted[outputs - 1]);
        shares.iter_mut().for_each(|share| *share = if *share < least { 0.0 } else { *share });
        let kept: f64 = shares.iter().sum();
        let sampling = TokenSampling::new(temperature, top_p).unwrap();
        let draws: Vec<_> = (0..rows as u32).map(|r| draw(r, sampling)).collect();
        for device in devices() {
            let map = Linear::from_output_major(&device, inputs, outputs, &logits, None).unwrap();
            let tokens =
                device.run(|| sample_tokens(&device, &upload(&device, &x), &map, &draws)).unwrap();
            let mut counts = vec![0.0; outputs];
            tokens.iter().for_each(|token| counts[token.token as usize] += 1.0);
            let mut statistic = 0.0;
            for (share, count) in shares.iter().zip(&counts) {
                let expected = share / kept * rows as f64;
                assert!(
                    expected > 0.0 || *count == 0.0,
                    "{device:?}: a token outside of the top-p set"
                );
                statistic +=
                    if expected > 0.0 { (count - expected).powi(2) / expected } else { 0.0 };
            }
            // 11 degrees of freedom.
            assert!(statistic < 37.4, "{device:?} {temperature} {top_p}: {statistic}, {counts:?}");
            let row: Vec<f32> = logits.iter().map(|x| x * 3.0).collect();
            assert!(
                tokens
                    .iter()
                    .all(|w| (w.logprob - log_softmax(&row, w.token as usize)).abs() < 1e-5),
                "{device:?}"
            );
        }
    }
}

/// The definition of [`TokenSampling`], by sorting, in f64.
fn sampled_by_sorting(logits: &[f32], draw: TokenDraw) -> u32 {
    let TokenDraw { key, sampling } = draw;
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let temperature = f64::from(sampling.temperature());
    let weights: Vec<f64> =
        logits.iter().map(|&x| ((f64::from(x) - largest) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
    let mut mass = 0.0;
    let reaches = |&token: &usize| {
        mass += weights[token];
        mass >= f64::from(sampling.top_p()) * total
    };
    let count = order.iter().position(reaches).map_or(order.len(), |last| last + 1);
    let mut kept = order[..count].to_vec();
    kept.sort_unstable();
    let target = key.uniform(Site::Token) * kept.iter().map(|&token| weights[token]).sum::<f64>();
    let mut so_far = 0.0;
    let chosen = kept.iter().find(|&&token| {
        so_far += weights[token];
        so_far > target
    });
    *chosen.unwrap_or(&kept[count - 1]) as u32
}

/// Vocabularies of all sizes, distributions from peaked to flat (more candidates than a GPU's block
/// stores), and ties, of which the top-p set may contain some.
#[test]
fn sampled_tokens_are_those_of_a_sort() {
    let rows = 96;
    let inputs = 8;
    for (outputs, loud) in [(5, 1.0), (97, 2.0), (5000, 12.0), (5001, 4.0), (40_000, 0.5)] {
        let mut w: Vec<f32> = numbers(outputs * inputs, 41).into_iter().map(|x| x * loud).collect();
        // Pairs of tokens with equal logits.
        for pair in w.chunks_exact_mut(2 * inputs).step_by(3) {
            pair.copy_within(..inputs, inputs);
        }
        let x = matrix(rows, inputs, 42);
        let samplings = [(0.7, 0.95), (1.0, 1.0), (1.0, 0.5), (3.0, 0.9), (0.3, 0.999)];
        let draws: Vec<_> = (0..rows)
            .map(|r| {
                let (temperature, top_p) = samplings[r % samplings.len()];
                draw(r as u32, TokenSampling::new(temperature, top_p).unwrap())
            })
            .collect();
        for device in devices() {
            let map = Linear::from_output_major(&device, inputs, outputs, &w, None).unwrap();
            let logits = run_linear(&device, &x, &map, Activation::None);
            let tokens =
                device.run(|| sample_tokens(&device, &upload(&device, &x), &map, &draws)).unwrap();
            let other = (0..rows)
                .filter(|&r| {
                    tokens[r].token != sampled_by_sorting(logits.row(r), draws[r].unwrap())
                })
                .count();
            // Rounding decides if the random number falls on the boundary of a token's interval.
            assert!(other <= 2, "{device:?} {outputs} x {loud}: {other} of {rows} rows differ");
            for (r, token) in tokens.iter().enumerate() {
                let expected = log_softmax(logits.row(r), token.token as usize);
                let error = (token.logprob - expected).abs();
                assert!(error < 1e-4, "{device:?} {outputs} row {r}: {token:?}, {expected}");
            }
        }
    }
}

#[test]
fn sampled_rows_are_batch_invariant_whatever_the_sampling_of_their_neighbours() {
    let rows = 150;
    let inputs = 10;
    let outputs = 90;
    let x = matrix(rows, inputs, 37);
    let w = numbers(outputs * inputs, 38);
    let tiny_top_p = TokenSampling::new(1.0, 1e-6).unwrap();
    let samplings = [
        None, // greedy
        TokenSampling::new(0.8, 0.95),
        TokenSampling::new(2.5, 1.0),
        Some(TokenSampling::FULL_SOFTMAX),
        TokenSampling::new(1.0, 0.5),
        Some(tiny_top_p),
    ];
    let sampling = |r: usize| samplings[r % samplings.len()];
    let draws: Vec<_> =
        (0..rows).map(|r| sampling(r).and_then(|sampling| draw(r as u32, sampling))).collect();
    for device in devices() {
        let map = Linear::from_output_major(&device, inputs, outputs, &w, None).unwrap();
        let run = |x: &Tensor, draws: &[Option<TokenDraw>]| {
            device.run(|| sample_tokens(&device, &upload(&device, x), &map, draws)).unwrap()
        };
        let all = run(&x, &draws);
        for r in 0..rows {
            let alone = run(&x.select([r].into_iter()), &draws[r..=r])[0];
            assert_eq!(alone.token, all[r].token, "{device:?} row {r}");
            if !device.is_cuda() {
                assert_eq!(alone, all[r], "{device:?} row {r}");
            }
        }
        let greedy: Vec<u32> = device.run(|| argmax(&device, &upload(&device, &x), &map)).unwrap();
        assert!((0..rows).any(|r| all[r].token != greedy[r]), "{device:?}");
        let is_greedy = |r: &usize| sampling(*r).is_none_or(|sampling| sampling == tiny_top_p);
        for r in (0..rows).filter(is_greedy) {
            assert_eq!(all[r].token, greedy[r], "{device:?} row {r}");
        }
    }
}

#[test]
fn argmax_finds_the_largest_and_the_first_among_equals() {
    let rows = 30;
    let inputs = 24;
    let outputs = 200;
    let mut w = numbers(outputs * inputs, 18);
    w.copy_within(7 * inputs..8 * inputs, 150 * inputs); // output 150 always ties with output 7
    let x = matrix(rows, inputs, 19);
    for device in devices() {
        let map = Linear::from_output_major(&device, inputs, outputs, &w, None).unwrap();
        let logits = run_linear(&device, &x, &map, Activation::None);
        let expected: Vec<u32> = (0..rows).map(|r| top_k(logits.row(r), 1)[0].0 as u32).collect();
        assert_eq!(
            device.run(|| argmax(&device, &upload(&device, &x), &map)).unwrap(),
            expected,
            "{device:?}"
        );
        // Every third row has Gumbel noise.
        let key = |r: usize| RngKey { seed: 3, question: 2, trajectory: r as u32, position: 8 };
        let tau = 0.7;
        let is_noisy = |r: usize| r % 3 == 1;
        let noise =
            |r: usize| RowPerturbation { key: key(r), strength: tau, sites: SiteSet::GUMBEL };
        let noise = (0..rows).map(|r| is_noisy(r).then(|| noise(r))).collect();
        let noise = PerturbedRows::new(&device, noise).unwrap();
        let mixture = TopKMixture { head: &map, table: &map, k: 3, noise: Some(&noise) };
        let (mixed, argmax_tokens) =
            device.run(|| top_k_mixture(&device, &upload(&device, &x), mixture)).unwrap();
        assert_eq!(argmax_tokens, expected, "{device:?}");
        let mixed = mixed.to_host().unwrap();
        let clean = TopKMixture { noise: None, ..mixture };
        let (clean, _) =
            device.run(|| top_k_mixture(&device, &upload(&device, &x), clean)).unwrap();
        let clean = clean.to_host().unwrap();
        for r in 0..rows {
            assert_eq!(clean.row(r) != mixed.row(r), is_noisy(r), "{device:?} row {r}");
            let mut best = top_k(logits.row(r), 3);
            let temperature = if is_noisy(r) {
                best.iter_mut().for_each(|(token, x)| *x += key(r).gumbel(*token));
                tau
            } else {
                1.0
            };
            let largest = best.iter().map(|(_, x)| *x).fold(f32::MIN, f32::max);
            let weights: Vec<f32> =
                best.iter().map(|(_, x)| ((x - largest) / temperature).exp()).collect();
            let total: f32 = weights.iter().sum();
            let one = |k: usize| {
                best.iter()
                    .zip(&weights)
                    .map(|((j, _), p)| p / total * w[j * inputs + k])
                    .sum::<f32>()
            };
            assert_close(
                mixed.row(r),
                &(0..inputs).map(one).collect::<Vec<_>>(),
                2e-6,
                &format!("{device:?} mixture {r}"),
            );
        }
    }
}

/// An invalid index would be used in an embedding lookup.
#[test]
fn argmax_of_nan_is_a_valid_index() {
    let x = Tensor::from_vec(3, 2, vec![f32::NAN, 1.0, f32::INFINITY, f32::NEG_INFINITY, 1.0, 1.0]);
    for device in devices() {
        let map = Linear::from_output_major(&device, 2, 40, &numbers(80, 20), None).unwrap();
        let found = device.run(|| argmax(&device, &upload(&device, &x), &map)).unwrap();
        assert_eq!(found[0], 0, "{device:?}");
        assert!(found.iter().all(|&i| i < 40), "{device:?}: {found:?}");
        let draws: Vec<_> = (0..3).map(|r| draw(r, TokenSampling::FULL_SOFTMAX)).collect();
        let sampled =
            device.run(|| sample_tokens(&device, &upload(&device, &x), &map, &draws)).unwrap();
        assert!(sampled[0].token == 0 && sampled.iter().all(|t| t.token < 40), "{sampled:?}");
        let logprobs = sampled.iter().map(|t| t.logprob).collect::<Vec<_>>();
        assert!(logprobs[0].is_nan() && logprobs[2].is_finite(), "{device:?}: {sampled:?}");
    }
}
