//! Every instruction set against a naive product, every finish against its definition.

use super::*;
use crate::Isa;
use std::num::NonZeroUsize;

fn devices() -> Vec<Device> {
    let threads = [NonZeroUsize::new(1), NonZeroUsize::new(3)];
    let present = Isa::ALL.into_iter().filter(|i| i.is_present());
    present.flat_map(|isa| threads.map(|t| Device::cpu_with(t, isa).unwrap())).collect()
}

/// Numbers in (-1, 1) that look random.
fn numbers(n: usize, salt: u64) -> Vec<f32> {
    let at = |i| f64::from(Draw { seed: salt, question: 0, trajectory: 0, position: 0 }.bits(0, Site::Noise, i)[0]);
    (0..n).map(|i| (at(i) / 2_147_483_648.0 - 1.0) as f32).collect()
}

fn naive(x: &Tensor, w: &[f32], bias: &[f32], r: usize, j: usize) -> f64 {
    let n = x.cols();
    let sum: f64 = (0..n).map(|k| f64::from(x.row(r)[k]) * f64::from(w[j * n + k])).sum();
    sum + f64::from(bias[j])
}

#[test]
fn every_instruction_set_equals_the_naive_product() {
    for (rows, inputs, outputs) in [(1, 1, 1), (3, 7, 5), (12, 33, 16), (13, 64, 50), (29, 48, 131), (400, 20, 40)] {
        let x = Tensor::from_vec(rows, inputs, numbers(rows * inputs, 1));
        let (w, bias) = (numbers(outputs * inputs, 2), numbers(outputs, 3));
        let map = Linear::from_output_major(inputs, outputs, &w, Some(bias.clone()));
        for device in devices() {
            let mut out = Tensor::default();
            device.run(|| linear(&device, &x, &map, Finish::Write(Activation::None), &mut out));
            assert_eq!((out.rows(), out.cols()), (rows, outputs));
            for r in 0..rows {
                for j in 0..outputs {
                    let expected = naive(&x, &w, &bias, r, j);
                    assert!(
                        (f64::from(out.row(r)[j]) - expected).abs() < 1e-5,
                        "{device:?} {rows}x{inputs}x{outputs} at {r},{j}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_of_a_batch_equals_the_row_alone() {
    let (rows, inputs, outputs) = (37, 40, 70);
    let x = Tensor::from_vec(rows, inputs, numbers(rows * inputs, 4));
    let map = Linear::from_input_major(inputs, outputs, &numbers(outputs * inputs, 5), None);
    for device in devices() {
        let (mut all, mut one) = (Tensor::default(), Tensor::default());
        device.run(|| linear(&device, &x, &map, Finish::Write(Activation::GeluTanh), &mut all));
        for r in 0..rows {
            let alone = x.select([r].into_iter());
            device.run(|| linear(&device, &alone, &map, Finish::Write(Activation::GeluTanh), &mut one));
            assert_eq!(one.data(), all.row(r), "{device:?} row {r}");
        }
    }
}

#[test]
fn fused_instruction_sets_agree_to_the_bit() {
    let x = Tensor::from_vec(9, 65, numbers(9 * 65, 6));
    let map = Linear::from_output_major(65, 90, &numbers(90 * 65, 7), None);
    let results: Vec<Tensor> = devices()
        .into_iter()
        .filter(|d| d.isa() != Isa::Portable)
        .map(|device| {
            let mut out = Tensor::default();
            device.run(|| linear(&device, &x, &map, Finish::Write(Activation::None), &mut out));
            out
        })
        .collect();
    assert!(results.windows(2).all(|w| w[0] == w[1]));
}

#[test]
fn dropout_drops_what_the_draws_say_and_adds_to_the_residual() {
    let (rows, inputs, outputs, p) = (5, 8, 50, 0.3);
    let x = Tensor::from_vec(rows, inputs, numbers(rows * inputs, 8));
    let map = Linear::from_output_major(inputs, outputs, &numbers(outputs * inputs, 9), Some(numbers(outputs, 10)));
    let start = Tensor::from_vec(rows, outputs, numbers(rows * outputs, 11));
    let draws: Vec<Option<Draw>> =
        (0..rows as u32).map(|r| (r != 2).then_some(Draw { seed: 1, question: 2, trajectory: r, position: 9 })).collect();
    for device in devices() {
        let mut plain = Tensor::default();
        device.run(|| linear(&device, &x, &map, Finish::Write(Activation::None), &mut plain));
        let mask = Mask::Drawn { p, layer: 4, site: Site::MlpOut, rows: &draws };
        let mut out = start.clone();
        device.run(|| linear(&device, &x, &map, Finish::Residual(Some(mask)), &mut out));
        let keeps = |r: usize, j: usize| draws[r].is_none_or(|d| d.keeps(4, Site::MlpOut, j, p));
        let scale = |r: usize| if draws[r].is_some() { 1.0 / (1.0 - p) } else { 1.0 };
        let keep: Vec<u8> = (0..rows * outputs).map(|i| keeps(i / outputs, i % outputs).into()).collect();
        for r in 0..rows {
            for j in 0..outputs {
                let kept = if keeps(r, j) { plain.row(r)[j] * scale(r) } else { 0.0 };
                assert!((out.row(r)[j] - (start.row(r)[j] + kept)).abs() < 1e-6, "{device:?} {r},{j}");
            }
        }
        let mut replayed = start.clone();
        let recorded = Mask::Recorded { p, keep: &keep };
        device.run(|| linear(&device, &x, &map, Finish::Residual(Some(recorded)), &mut replayed));
        for r in (0..rows).filter(|&r| draws[r].is_some()) {
            assert_eq!(replayed.row(r), out.row(r));
        }
    }
}

#[test]
fn argmax_finds_the_largest_and_the_first_among_equals() {
    let (rows, inputs, outputs) = (30, 24, 200);
    let x = Tensor::from_vec(rows, inputs, numbers(rows * inputs, 12));
    let mut w = numbers(outputs * inputs, 13);
    w.copy_within(7 * inputs..8 * inputs, 150 * inputs); // output 150 always ties with output 7
    let map = Linear::from_output_major(inputs, outputs, &w, None);
    for device in devices() {
        let mut out = Tensor::default();
        device.run(|| linear(&device, &x, &map, Finish::Write(Activation::None), &mut out));
        let expected: Vec<u32> = (0..rows).map(|r| super::super::top_k(out.row(r), 1)[0].0 as u32).collect();
        assert_eq!(device.run(|| argmax(&device, &x, &map)), expected, "{device:?}");
    }
}

/// An index outside the row would be looked up in an embedding table.
#[test]
fn argmax_of_what_is_no_number_is_an_index() {
    let map = Linear::from_output_major(2, 40, &numbers(80, 15), None);
    let x = Tensor::from_vec(3, 2, vec![f32::NAN, 1.0, f32::INFINITY, f32::NEG_INFINITY, 1.0, 1.0]);
    for device in devices() {
        let found = device.run(|| argmax(&device, &x, &map));
        assert_eq!(found[0], 0, "{device:?}");
        assert!(found.iter().all(|&i| i < 40), "{device:?}: {found:?}");
    }
}

#[test]
fn packed_weights_can_be_read_back() {
    let w = numbers(19 * 21, 14);
    let map = Linear::from_output_major(19, 21, &w, None);
    let mut row = vec![0.0; 19];
    for j in 0..21 {
        map.output_weights(j, &mut row);
        assert_eq!(row, w[j * 19..(j + 1) * 19]);
    }
}
