//! One test body, every device: each instruction set of the processor, and a GPU in single
//! precision if there is one.

mod backward;
mod bf16;

use std::num::NonZeroUsize;

use super::*;
use crate::rng::{RngKey, Site};
use crate::{Device, Isa, Precision, Tensor};

fn devices() -> Vec<Device> {
    let threads = [NonZeroUsize::new(1), NonZeroUsize::new(3)];
    let present = Isa::ALL.into_iter().filter(|i| i.is_present());
    let mut all: Vec<Device> =
        present.flat_map(|isa| threads.map(|t| Device::cpu_with(t, isa).unwrap())).collect();
    match Device::cuda_availability() {
        Ok(()) => all.push(Device::cuda(0, Precision::F32).unwrap()),
        Err(why) => println!("skipped on a gpu: {why}"),
    }
    all
}

/// Numbers that look random.
fn numbers(n: usize, salt: u64) -> Vec<f32> {
    let mut x = vec![0.0; n];
    RngKey { seed: salt, question: 0, trajectory: 0, position: 0 }.add_noise(0.6, &mut x);
    x
}

fn matrix(rows: usize, cols: usize, salt: u64) -> Tensor {
    Tensor::from_vec(rows, cols, numbers(rows * cols, salt))
}

fn upload(device: &Device, x: &Tensor) -> Tensor {
    x.clone().to_device(device).unwrap()
}

/// `activation(x W + b)` on a device, back on the host.
fn run_linear(device: &Device, x: &Tensor, map: &Linear, activation: Activation) -> Tensor {
    let mut out = Tensor::default();
    device
        .run(|| linear(device, &upload(device, x), map, (activation, OutputDtype::F32), &mut out))
        .unwrap();
    out.to_host().unwrap()
}

fn assert_close(a: &[f32], b: &[f32], tolerance: f32, what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let largest = b.iter().fold(1.0f32, |m, x| m.max(x.abs()));
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!((x - y).abs() <= tolerance * largest, "{what} at {i}: {x} and {y}");
    }
}

fn naive_linear(x: &Tensor, w: &[f32], bias: &[f32]) -> Vec<f32> {
    let n = x.cols();
    let dot = |r: usize, j: usize| {
        (0..n).map(|k| f64::from(x.row(r)[k]) * f64::from(w[j * n + k])).sum::<f64>()
    };
    let at =
        |i: usize| (dot(i / bias.len(), i % bias.len()) + f64::from(bias[i % bias.len()])) as f32;
    (0..x.rows() * bias.len()).map(at).collect()
}

#[test]
fn linear_equals_the_naive_product() {
    for (rows, inputs, outputs) in [
        (1, 1, 1),
        (3, 7, 5),
        (12, 33, 16),
        (13, 64, 50),
        (29, 48, 131),
        (400, 20, 40),
        (21, 1024, 33),
    ] {
        let (x, w, bias) =
            (matrix(rows, inputs, 1), numbers(outputs * inputs, 2), numbers(outputs, 3));
        let transposed: Vec<f32> =
            (0..inputs * outputs).map(|i| w[i % outputs * inputs + i / outputs]).collect();
        for device in devices() {
            let what = format!("{device:?} {rows}x{inputs}x{outputs}");
            let map = Linear::from_output_major(&device, (inputs, outputs), &w, Some(bias.clone()))
                .unwrap();
            assert_close(
                run_linear(&device, &x, &map, Activation::None).data(),
                &naive_linear(&x, &w, &bias),
                1e-5,
                &what,
            );
            let map = Linear::from_input_major(
                &device,
                (inputs, outputs),
                &transposed,
                Some(bias.clone()),
            )
            .unwrap();
            assert_close(
                run_linear(&device, &x, &map, Activation::None).data(),
                &naive_linear(&x, &w, &bias),
                1e-5,
                &what,
            );
        }
    }
}

#[test]
fn activations_equal_their_definition() {
    let (x, w) = (matrix(4, 16, 4), numbers(16 * 24, 5));
    for device in devices() {
        let map = Linear::from_output_major(&device, (16, 24), &w, Some(vec![0.1; 24])).unwrap();
        let plain = run_linear(&device, &x, &map, Activation::None);
        let tanh = |x: f32| 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh());
        let by: Vec<f32> = plain.data().iter().map(|&x| tanh(x)).collect();
        assert_close(
            run_linear(&device, &x, &map, Activation::GeluTanh).data(),
            &by,
            2e-6,
            "tanh form",
        );
        // The two forms are within 1e-3 of each other and not equal.
        let erf = run_linear(&device, &x, &map, Activation::GeluErf);
        assert_close(erf.data(), &by, 1e-3, "erf form");
        assert!(erf.data() != by);
        let halves = matrix(3, 10, 6);
        let mut out = Tensor::default();
        device.run(|| swiglu(&device, &upload(&device, &halves), &mut out)).unwrap();
        let gated = |i: usize| {
            let (g, u) = (halves.row(i / 5)[i % 5], halves.row(i / 5)[5 + i % 5]);
            g / (1.0 + (-g).exp()) * u
        };
        assert_close(
            out.to_host().unwrap().data(),
            &(0..15).map(gated).collect::<Vec<_>>(),
            1e-6,
            "swiglu",
        );
    }
}

#[test]
fn a_row_of_a_batch_equals_the_row_alone() {
    let (x, w) = (matrix(37, 40, 7), numbers(70 * 40, 8));
    for device in devices() {
        let map = Linear::from_input_major(&device, (40, 70), &w, None).unwrap();
        let all = run_linear(&device, &x, &map, Activation::GeluTanh);
        for r in 0..x.rows() {
            let one = run_linear(&device, &x.select([r].into_iter()), &map, Activation::GeluTanh);
            if device.is_cuda() {
                assert_close(one.data(), all.row(r), 1e-6, "to rounding on a gpu");
            } else {
                assert_eq!(one.data(), all.row(r), "{device:?} row {r}");
            }
        }
    }
}

#[test]
fn fused_instruction_sets_agree_to_the_bit() {
    let (x, w) = (matrix(9, 65, 9), numbers(90 * 65, 10));
    let fused = devices().into_iter().filter(|d| matches!(d.isa(), Some(Isa::Avx2 | Isa::Avx512)));
    let result = |device: Device| {
        let map = Linear::from_output_major(&device, (65, 90), &w, None).unwrap();
        run_linear(&device, &x, &map, Activation::None)
    };
    let results: Vec<Tensor> = fused.map(result).collect();
    assert!(results.windows(2).all(|w| w[0] == w[1]));
}

fn naive_norm(x: &[f32], scale: &[f32], shift: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let n = x.len() as f64;
    let mean = if shift.is_some() { x.iter().map(|&x| f64::from(x)).sum::<f64>() / n } else { 0.0 };
    let square = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
    let by = 1.0 / (square + f64::from(eps)).sqrt();
    let one =
        |i: usize| ((f64::from(x[i]) - mean) * by) as f32 * scale[i] + shift.map_or(0.0, |s| s[i]);
    (0..x.len()).map(one).collect()
}

#[test]
fn norms_equal_their_definition() {
    for width in [5, 16, 48, 769] {
        let (x, scale, shift) = (matrix(7, width, 11), numbers(width, 12), numbers(width, 13));
        for device in devices() {
            let layer = Normalization::layer(&device, 1e-5, scale.clone(), shift.clone()).unwrap();
            let rms = Normalization::rms(&device, 1e-6, scale.clone()).unwrap();
            for (by, shift, eps) in [(layer, Some(&shift[..]), 1e-5), (rms, None, 1e-6)] {
                let mut out = Tensor::default();
                device
                    .run(|| norm(&device, &upload(&device, &x), &by, OutputDtype::F32, &mut out))
                    .unwrap();
                let out = out.to_host().unwrap();
                for r in 0..x.rows() {
                    assert_close(
                        out.row(r),
                        &naive_norm(x.row(r), &scale, shift, eps),
                        3e-6,
                        &format!("{device:?} {width}"),
                    );
                }
            }
        }
    }
}

#[test]
fn residual_dropout_follows_the_rng_keys() {
    let (rows, inputs, outputs, p) = (5, 8, 52, 0.3);
    let (x, w, bias) =
        (matrix(rows, inputs, 14), numbers(outputs * inputs, 15), numbers(outputs, 16));
    let start = matrix(rows, outputs, 17);
    let draws: Vec<Option<RngKey>> = (0..rows as u32)
        .map(|r| (r != 2).then_some(RngKey { seed: 1, question: 2, trajectory: r, position: 9 }))
        .collect();
    let keeps = |r: usize, j: usize| draws[r].is_none_or(|d| d.keeps(4, Site::MlpOut, j, p));
    let keep: Vec<u8> =
        (0..rows * outputs).map(|i| keeps(i / outputs, i % outputs).into()).collect();
    for device in devices() {
        let map =
            Linear::from_output_major(&device, (inputs, outputs), &w, Some(bias.clone())).unwrap();
        let by = Normalization::rms(&device, 1e-5, vec![1.0; outputs]).unwrap();
        let plain = run_linear(&device, &x, &map, Activation::None);
        let run = |mask: DropoutMask<'_>| {
            let (mut stream, mut out) = (upload(&device, &start), Tensor::default());
            let x = upload(&device, &x);
            let into = (&by, OutputDtype::F32, &mut out);
            device
                .run(|| linear_residual_norm(&device, &x, &map, Some(mask), &mut stream, into))
                .unwrap();
            (stream.to_host().unwrap(), out.to_host().unwrap())
        };
        let drawn = PerturbedRows::new(&device, draws.clone()).unwrap();
        let (stream, out) =
            run(DropoutMask::Sampled { p, layer: 4, site: Site::MlpOut, rows: &drawn });
        for (r, draw) in draws.iter().enumerate() {
            let scale = if draw.is_some() { 1.0 / (1.0 - p) } else { 1.0 };
            let one = |j: usize| {
                start.row(r)[j] + if keeps(r, j) { plain.row(r)[j] * scale } else { 0.0 }
            };
            assert_close(
                stream.row(r),
                &(0..outputs).map(one).collect::<Vec<_>>(),
                1e-6,
                &format!("{device:?} row {r}"),
            );
            assert_close(
                out.row(r),
                &naive_norm(stream.row(r), &vec![1.0; outputs], None, 1e-5),
                3e-6,
                "the new stream's norm",
            );
        }
        let recorded = KeepMask::new(&device, rows, outputs, keep.clone()).unwrap();
        let (replayed, _) = run(DropoutMask::Recorded { p, keep: &recorded });
        for r in (0..rows).filter(|&r| draws[r].is_some()) {
            assert_close(replayed.row(r), stream.row(r), 1e-6, "a mask drawn is a mask recorded");
        }
    }
}

/// log softmax(logits)[token], in double precision.
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
        let (x, bias) = (matrix(rows, inputs, 34), numbers(outputs, 35));
        for device in devices() {
            let map = Linear::from_output_major(&device, (inputs, outputs), &w, Some(bias.clone()))
                .unwrap();
            let logits = run_linear(&device, &x, &map, Activation::None);
            let (found, ahead) = device.run(|| {
                let asked = PendingTokens::greedy(&device, &upload(&device, &x), &map).unwrap();
                let ahead = asked.lookup(&device, &map).unwrap();
                (asked.read().unwrap(), ahead.to_host().unwrap())
            });
            assert_eq!(found.len(), rows);
            let tokens: Vec<u32> = found.iter().map(|word| word.token).collect();
            let after = device.run(|| lookup(&device, &map, &tokens)).unwrap().to_host().unwrap();
            assert_eq!(
                ahead, after,
                "{device:?}: embeddings of words before and after they were read"
            );
            for (r, word) in found.iter().enumerate() {
                assert_eq!(
                    word.token as usize,
                    top_k(logits.row(r), 1)[0].0,
                    "{device:?} {outputs} row {r}"
                );
                let expected = log_softmax(logits.row(r), word.token as usize);
                // Logits that two ways of summing give differ in the last digits of the largest of
                // them.
                let largest = logits.row(r).iter().fold(0.0f32, |m, x| m.max(x.abs()));
                assert!(
                    (word.logprob - expected).abs()
                        < 3e-6 * (1.0 + expected.abs()) + 5e-7 * largest,
                    "{device:?} {outputs}: {word:?}, {expected}"
                );
            }
            // Whole rows give the same as panels that were never kept.
            let clean = device
                .run(|| {
                    sample_tokens(
                        &device,
                        &upload(&device, &x),
                        &map,
                        &vec![None; rows],
                        TokenSampling::FULL_SOFTMAX,
                    )
                })
                .unwrap();
            if !device.is_cuda() {
                assert_eq!(clean, found, "{device:?}");
            }
        }
    }
}

fn key(trajectory: u32) -> Option<RngKey> {
    Some(RngKey { seed: 77, question: 3, trajectory, position: 40 })
}

/// Pearson's statistic of a seeded sample stays below what chance exceeds once in 10,000 times.
#[test]
fn sampled_tokens_follow_the_softmax() {
    let (rows, outputs) = (20_000usize, 12);
    let (logits, inputs) = (numbers(outputs, 36), 1);
    let x = Tensor::from_vec(rows, inputs, vec![3.0; rows]);
    let draws: Vec<_> = (0..rows as u32).map(key).collect();
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
        for device in devices() {
            let map = Linear::from_output_major(&device, (inputs, outputs), &logits, None).unwrap();
            let from = TokenSampling::new(temperature, top_p).unwrap();
            let words = device
                .run(|| sample_tokens(&device, &upload(&device, &x), &map, &draws, from))
                .unwrap();
            let mut counts = vec![0.0; outputs];
            words.iter().for_each(|word| counts[word.token as usize] += 1.0);
            let mut statistic = 0.0;
            for (share, count) in shares.iter().zip(&counts) {
                let expected = share / kept * rows as f64;
                assert!(
                    expected > 0.0 || *count == 0.0,
                    "{device:?}: a token outside of the nucleus"
                );
                statistic +=
                    if expected > 0.0 { (count - expected).powi(2) / expected } else { 0.0 };
            }
            assert!(statistic < 37.4, "{device:?} {temperature} {top_p}: {statistic}, {counts:?}"); // 11 degrees of freedom
            let row: Vec<f32> = logits.iter().map(|x| x * 3.0).collect();
            assert!(
                words
                    .iter()
                    .all(|w| (w.logprob - log_softmax(&row, w.token as usize)).abs() < 1e-5),
                "{device:?}"
            );
        }
    }
}

#[test]
fn a_sampled_row_is_batch_invariant_and_a_tiny_top_p_is_greedy() {
    let (rows, inputs, outputs) = (150, 10, 90);
    let (x, w) = (matrix(rows, inputs, 37), numbers(outputs * inputs, 38));
    let draws: Vec<_> = (0..rows as u32).map(|r| key(r).filter(|_| r % 7 != 0)).collect();
    for device in devices() {
        let map = Linear::from_output_major(&device, (inputs, outputs), &w, None).unwrap();
        let run = |x: &Tensor, draws: &[Option<RngKey>], from| {
            device.run(|| sample_tokens(&device, &upload(&device, x), &map, draws, from)).unwrap()
        };
        let from = TokenSampling::new(0.8, 0.95).unwrap();
        let all = run(&x, &draws, from);
        for r in [0, 1, 63, 64, 149] {
            assert_eq!(
                run(&x.select([r].into_iter()), &draws[r..=r], from)[0].token,
                all[r].token,
                "{device:?}"
            );
        }
        let likely: Vec<u32> = device.run(|| argmax(&device, &upload(&device, &x), &map)).unwrap();
        let tokens = |words: &[TokenLogprob]| words.iter().map(|w| w.token).collect::<Vec<_>>();
        assert_ne!(tokens(&all), likely, "{device:?}");
        assert!(
            (0..rows).step_by(7).all(|r| all[r].token == likely[r]),
            "rows without a draw are the likeliest"
        );
        assert_eq!(
            tokens(&run(&x, &draws, TokenSampling::new(1.0, 1e-6).unwrap())),
            likely,
            "{device:?}"
        );
    }
}

#[test]
fn argmax_finds_the_largest_and_the_first_among_equals() {
    let (rows, inputs, outputs) = (30, 24, 200);
    let mut w = numbers(outputs * inputs, 18);
    w.copy_within(7 * inputs..8 * inputs, 150 * inputs); // output 150 always ties with output 7
    let x = matrix(rows, inputs, 19);
    for device in devices() {
        let map = Linear::from_output_major(&device, (inputs, outputs), &w, None).unwrap();
        let logits = run_linear(&device, &x, &map, Activation::None);
        let expected: Vec<u32> = (0..rows).map(|r| top_k(logits.row(r), 1)[0].0 as u32).collect();
        assert_eq!(
            device.run(|| argmax(&device, &upload(&device, &x), &map)).unwrap(),
            expected,
            "{device:?}"
        );
        let (mixed, likeliest) =
            device.run(|| top_k_mixture(&device, &upload(&device, &x), &map, &map, 3)).unwrap();
        assert_eq!(likeliest, expected, "{device:?}");
        let mixed = mixed.to_host().unwrap();
        for r in 0..rows {
            let best = top_k(logits.row(r), 3);
            let weights: Vec<f32> = best.iter().map(|(_, x)| (x - best[0].1).exp()).collect();
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

/// An index outside the row would be looked up in an embedding table.
#[test]
fn argmax_of_nan_is_a_valid_index() {
    let x = Tensor::from_vec(3, 2, vec![f32::NAN, 1.0, f32::INFINITY, f32::NEG_INFINITY, 1.0, 1.0]);
    for device in devices() {
        let map = Linear::from_output_major(&device, (2, 40), &numbers(80, 20), None).unwrap();
        let found = device.run(|| argmax(&device, &upload(&device, &x), &map)).unwrap();
        assert_eq!(found[0], 0, "{device:?}");
        assert!(found.iter().all(|&i| i < 40), "{device:?}: {found:?}");
        let draws: Vec<_> = (0..3).map(key).collect();
        let drawn = device
            .run(|| {
                sample_tokens(
                    &device,
                    &upload(&device, &x),
                    &map,
                    &draws,
                    TokenSampling::FULL_SOFTMAX,
                )
            })
            .unwrap();
        assert!(
            drawn[0].token == 0 && drawn.iter().all(|word| word.token < 40),
            "{device:?}: {drawn:?}"
        );
        assert!(drawn[0].logprob.is_nan() && drawn[2].logprob.is_finite(), "{device:?}: {drawn:?}");
    }
}

#[test]
fn select_concat_lookup_and_add_move_rows() {
    let w = numbers(19 * 21, 21);
    let (a, b) = (matrix(4, 19, 22), matrix(3, 19, 23));
    for device in devices() {
        let map = Linear::from_output_major(&device, (19, 21), &w, None).unwrap();
        let found = lookup(&device, &map, &[20, 0, 7]).unwrap().to_host().unwrap();
        assert_eq!(found.data(), [&w[380..399], &w[..19], &w[133..152]].concat());
        let (x, y) = (upload(&device, &a), upload(&device, &b));
        let both = concat(&device, &[&x, &y]).unwrap();
        let picked = select(&device, [&both], &[6, 0, 6]).unwrap().to_host().unwrap();
        assert_eq!(picked.data(), [b.row(2), a.row(0), b.row(2)].concat());
        let none = select(&device, [&both], &[]).unwrap();
        for parts in
            [vec![&x, &y], vec![&none, &x, &none, &y], [vec![&none; 20], vec![&x, &y]].concat()]
        {
            let picked =
                select(&device, parts.iter().copied(), &[6, 0, 3, 4]).unwrap().to_host().unwrap();
            assert_eq!(
                picked.data(),
                [b.row(2), a.row(0), a.row(3), b.row(0)].concat(),
                "{device:?}: {} parts",
                parts.len()
            );
        }
        let mut sum = select(&device, [&x], &[3, 1, 2]).unwrap();
        add(&device, &mut sum, &y).unwrap();
        scale(&device, &mut sum, 2.0).unwrap();
        let one = |r: usize, k: usize| 2.0 * (a.row([3, 1, 2][r])[k] + b.row(r)[k]);
        let expected: Vec<f32> = (0..57).map(|i| one(i / 19, i % 19)).collect();
        assert_close(sum.to_host().unwrap().data(), &expected, 1e-6, &format!("{device:?}"));
    }
}

#[test]
fn add_positions_norm_leaves_shared_tensors_unchanged() {
    let (x, table, picked) = (matrix(5, 19, 26), matrix(3, 19, 27), vec![2, 0, 0, 1, 2]);
    let one = |i: usize| x.data()[i] + table.row(picked[i / 19] as usize)[i % 19];
    let sum = Tensor::from_vec(5, 19, (0..95).map(one).collect());
    for device in devices() {
        let by = Normalization::layer(&device, 1e-5, numbers(19, 28), numbers(19, 29)).unwrap();
        let places = Indices::new(&device, picked.clone()).unwrap();
        let positions = upload(&device, &table);
        for (places, expected) in [(Some((&positions, &places)), &sum), (None, &x)] {
            let mut wanted = Tensor::default();
            norm(&device, &upload(&device, expected), &by, OutputDtype::F32, &mut wanted).unwrap();
            let wanted = wanted.to_host().unwrap();
            for shared in [false, true] {
                let (from, mut normed) = (upload(&device, &x), Tensor::default());
                let held = shared.then(|| from.clone());
                let stream = device
                    .run(|| {
                        add_positions_norm(
                            &device,
                            from,
                            places,
                            (&by, OutputDtype::F32),
                            &mut normed,
                        )
                    })
                    .unwrap();
                assert_close(
                    stream.to_host().unwrap().data(),
                    expected.data(),
                    1e-6,
                    &format!("{device:?}: the stream"),
                );
                assert_close(
                    normed.to_host().unwrap().data(),
                    wanted.data(),
                    1e-5,
                    &format!("{device:?}: its norm"),
                );
                assert!(
                    held.is_none_or(|held| held.to_host().unwrap() == x),
                    "{device:?}: what others hold changed"
                );
            }
        }
    }
}

/// Shared by a copy until one of them is written.
#[test]
fn a_clone_is_not_changed_by_its_original() {
    for device in devices() {
        let mut x = upload(&device, &matrix(2, 8, 24));
        let before = x.clone();
        scale(&device, &mut x, 3.0).unwrap();
        add(&device, &mut x, &before).unwrap();
        assert_eq!(before.to_host().unwrap(), matrix(2, 8, 24));
    }
}

#[test]
fn noise_equals_the_host_rng() {
    let draws = vec![Some(RngKey { seed: 3, question: 1, trajectory: 0, position: 5 }), None];
    for device in devices() {
        let mut x = upload(&device, &matrix(2, 10, 25));
        add_noise(&device, &mut x, &PerturbedRows::new(&device, draws.clone()).unwrap(), 0.4)
            .unwrap();
        let mut expected = matrix(2, 10, 25);
        draws[0].unwrap().add_noise(0.4, expected.row_mut(0));
        assert_eq!(x.to_host().unwrap(), expected, "{device:?}");
    }
}

/// Keys and values of `slots` positions, (slots, 2 * kv_heads * head_dim), put into a store by
/// `place` without any norm or rotation, each at the slot that `at` gives.
fn filled_kv(
    device: &Device,
    kv: &Tensor,
    shape: (usize, usize),
    at: impl Fn(u32) -> u32,
) -> KvStore {
    let (kv_heads, head_dim) = shape;
    let mut store = KvStore::new(device, 1, shape, kv.rows()).unwrap();
    let mut qkv = Tensor::zeros(0, (2 + 1) * kv_heads * head_dim);
    (0..kv.rows())
        .for_each(|r| qkv.push(&[&vec![0.0; kv_heads * head_dim][..], kv.row(r)].concat()));
    let slots: Vec<u32> = (0..kv.rows() as u32).map(at).collect();
    let seats = SlotMapping {
        positions: Indices::new(device, vec![0; kv.rows()]).unwrap(),
        slots: Indices::new(device, slots).unwrap(),
    };
    let by = QkvTransform { heads: kv_heads, qk_norms: None, rope: None };
    device
        .run(|| rope_and_cache(device, &mut upload(device, &qkv), by, &mut store, 0, &seats))
        .unwrap();
    store
}

fn run_attention(
    device: &Device,
    q: &Tensor,
    kv: &KvStore,
    heads: usize,
    views: &[Vec<(u32, u32)>],
) -> Tensor {
    let (mut attend, mut out) = (AttentionSpans::default(), Tensor::default());
    views.iter().for_each(|v| attend.push(v.iter().map(|&(start, len)| Span { start, len })));
    let views = AttentionMetadata::new(device, std::borrow::Cow::Owned(attend)).unwrap();
    device
        .run(|| attention(device, &upload(device, q), kv.layer(0), heads, &views, &mut out))
        .unwrap();
    out.to_host().unwrap()
}

/// The definition, in double precision.
fn naive_attention(
    q: &[f32],
    kv: &Tensor,
    (kv_heads, dim, heads): (usize, usize, usize),
    slots: &[usize],
) -> Vec<f32> {
    let mut out = vec![0.0f64; heads * dim];
    for h in 0..heads {
        let g = h / (heads / kv_heads);
        let dot = |s: usize| {
            (0..dim)
                .map(|i| f64::from(q[h * dim + i]) * f64::from(kv.row(s)[g * dim + i]))
                .sum::<f64>()
        };
        let scores: Vec<f64> = slots.iter().map(|&s| dot(s) / (dim as f64).sqrt()).collect();
        let total: f64 = scores.iter().map(|x| x.exp()).sum();
        for (&s, score) in slots.iter().zip(&scores) {
            for i in 0..dim {
                out[h * dim + i] +=
                    score.exp() / total * f64::from(kv.row(s)[(kv_heads + g) * dim + i]);
            }
        }
    }
    out.into_iter().map(|x| x as f32).collect()
}

#[test]
fn attention_equals_its_definition() {
    let views: Vec<Vec<(u32, u32)>> = vec![
        vec![(0, 1)],
        vec![(0, 33), (48, 3)],
        vec![(0, 33), (50, 2), (69, 1), (60, 1)],
        vec![(5, 40)],
        vec![(0, 33), (64, 6)],
        vec![(16, 16)],
    ];
    for (kv_heads, dim, heads) in [(1, 12, 1), (2, 16, 4), (3, 64, 3), (2, 80, 6)] {
        let kv = matrix(70, 2 * kv_heads * dim, 26);
        let q = matrix(views.len(), heads * dim, 27);
        for device in devices() {
            let out = run_attention(
                &device,
                &q,
                &filled_kv(&device, &kv, (kv_heads, dim), |s| s),
                heads,
                &views,
            );
            for (r, view) in views.iter().enumerate() {
                let slots: Vec<usize> =
                    view.iter().flat_map(|&(s, n)| (s..s + n).map(|x| x as usize)).collect();
                let expected = naive_attention(q.row(r), &kv, (kv_heads, dim, heads), &slots);
                assert_close(
                    out.row(r),
                    &expected,
                    3e-6,
                    &format!("{device:?} {kv_heads} {dim} row {r}"),
                );
            }
        }
    }
}

#[test]
fn attention_does_not_depend_on_slots() {
    let (kv, q) = (matrix(64, 2 * 2 * 32, 28), matrix(1, 4 * 32, 29));
    for device in devices() {
        let (straight, reversed) =
            (filled_kv(&device, &kv, (2, 32), |s| s), filled_kv(&device, &kv, (2, 32), |s| 63 - s));
        let together = run_attention(&device, &q, &straight, 4, &[vec![(0, 37)]]);
        let split = run_attention(&device, &q, &straight, 4, &[vec![(0, 20), (20, 17)]]);
        let scattered =
            run_attention(&device, &q, &reversed, 4, &[(0..37).map(|p| (63 - p, 1)).collect()]);
        if device.is_cuda() {
            assert_close(split.data(), together.data(), 1e-6, "to rounding on a gpu");
            assert_close(scattered.data(), together.data(), 1e-6, "to rounding on a gpu");
        } else {
            assert_eq!(together, split, "{device:?}");
            assert_eq!(together, scattered, "{device:?}");
        }
    }
}

/// Queries come back normalised and turned; keys do too, which attention over a single slot cannot
/// show, so two are seen.
#[test]
fn qk_norm_and_rope_are_applied_before_attention() {
    let (heads, kv_heads, dim, rows) = (4, 2, 8, 5);
    let qkv = matrix(rows, (heads + 2 * kv_heads) * dim, 30);
    let (q_scale, k_scale, frequencies) =
        (numbers(dim, 31), numbers(dim, 32), vec![1.0, 0.3, 0.1, 0.02]);
    let turned = |x: &[f32], scale: &[f32], position: u32| {
        let x = naive_norm(x, scale, None, 1e-6);
        let mut out = x.clone();
        for i in 0..dim / 2 {
            let (sin, cos) = (frequencies[i] * position as f32).sin_cos();
            (out[i], out[i + dim / 2]) =
                (x[i] * cos - x[i + dim / 2] * sin, x[i + dim / 2] * cos + x[i] * sin);
        }
        out
    };
    let positions: Vec<u32> = (0..rows as u32).map(|r| r * 7).collect();
    let mut kv = Tensor::zeros(0, 2 * kv_heads * dim);
    let mut queries = Tensor::zeros(0, heads * dim);
    for (r, &position) in positions.iter().enumerate() {
        let head = |h: usize| &qkv.row(r)[h * dim..(h + 1) * dim];
        queries.push(
            &(0..heads).flat_map(|h| turned(head(h), &q_scale, position)).collect::<Vec<_>>(),
        );
        let keys = (heads..heads + kv_heads).flat_map(|h| turned(head(h), &k_scale, position));
        kv.push(
            &keys.chain(qkv.row(r)[(heads + kv_heads) * dim..].iter().copied()).collect::<Vec<_>>(),
        );
    }
    for device in devices() {
        let norms =
            [&q_scale, &k_scale].map(|s| Normalization::rms(&device, 1e-6, s.clone()).unwrap());
        let rope = Rope::new(&device, frequencies.clone()).unwrap();
        let by = QkvTransform { heads, qk_norms: Some((&norms[0], &norms[1])), rope: Some(&rope) };
        let mut store = KvStore::new(&device, 1, (kv_heads, dim), rows).unwrap();
        let slots = Indices::new(&device, (0..rows as u32).collect()).unwrap();
        let seats =
            SlotMapping { positions: Indices::new(&device, positions.clone()).unwrap(), slots };
        let mut placed = upload(&device, &qkv);
        device.run(|| rope_and_cache(&device, &mut placed, by, &mut store, 0, &seats)).unwrap();
        let placed = placed.to_host().unwrap();
        for r in 0..rows {
            assert_close(
                &placed.row(r)[..heads * dim],
                queries.row(r),
                3e-6,
                &format!("{device:?} queries {r}"),
            );
            let out = run_attention(
                &device,
                &placed.select([r].into_iter()),
                &store,
                heads,
                &[vec![(0, rows as u32)]],
            );
            let expected =
                naive_attention(queries.row(r), &kv, (kv_heads, dim, heads), &[0, 1, 2, 3, 4]);
            assert_close(out.data(), &expected, 5e-6, &format!("{device:?} row {r}"));
        }
    }
}

/// Work in all lanes at once, in memory that is dropped and taken again, read at the end.
#[test]
fn streams_do_not_share_memory() {
    const SIDE: usize = 512;
    let x = |lane: usize, time: usize| {
        let number = |i: usize| ((i * (2 * time + 1) + lane) % (1 << 20)) as f32;
        Tensor::from_vec(SIDE, SIDE, (0..SIDE * SIDE).map(number).collect())
    };
    let turned: Vec<usize> = (0..SIDE).rev().collect();
    for device in devices() {
        let work = |lane: usize| {
            let made: Vec<Tensor> = (0..48)
                .map(|time| select(&device, [&upload(&device, &x(lane, time))], &turned).unwrap())
                .collect();
            for (time, made) in made.into_iter().enumerate() {
                let expected = x(lane, time).select(turned.iter().copied());
                assert_eq!(
                    made.to_host().unwrap(),
                    expected,
                    "lane {lane}, time {time}, {}",
                    device.describe()
                );
            }
        };
        std::thread::scope(|scope| {
            for lane in 0..device.streams() {
                let (device, work) = (&device, &work);
                scope.spawn(move || device.on_stream(lane, || work(lane)).unwrap());
            }
        });
    }
}

#[test]
fn events_measure_elapsed_time() {
    for device in devices() {
        let first = device.record_event().unwrap();
        let x = select_repeatedly(&device);
        let second = device.record_event().unwrap();
        assert!(first.elapsed(&second).unwrap() > 0.0, "{}", device.describe());
        drop(x);
    }
}

fn select_repeatedly(device: &Device) -> Tensor {
    let (x, picked) = (upload(device, &matrix(64, 64, 1)), Vec::from_iter(0..64));
    (0..10).fold(x, |x, _| select(device, [&x], &picked).unwrap())
}
