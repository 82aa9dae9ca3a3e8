//! Every test runs on every device: each instruction set of the CPU, and a GPU in f32 if there is
//! one.

mod attention;
mod backward;
mod bf16;
mod deterministic;
mod fp8;
mod perturbation;
mod products;
mod qk_norm;
mod regression;
mod rows;
mod tokens;

use std::borrow::Cow;
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

/// Gaussian numbers, a function of the salt.
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

/// Dropout of probability `p` at both sites of the rows that have a key.
fn dropout_rows(device: &Device, keys: &[Option<RngKey>], p: f32) -> PerturbedRows {
    let row = |key| RowPerturbation { key, strength: p, sites: SiteSet::DROPOUT };
    PerturbedRows::new(device, keys.iter().map(|key| key.map(row)).collect()).unwrap()
}

/// The heads of a layer.
#[derive(Clone, Copy, Debug)]
struct HeadShape {
    kv_heads: usize,
    dim: usize,
    heads: usize,
}

impl HeadShape {
    /// Columns of queries, keys and values.
    fn qkv_cols(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.dim
    }
}

/// Rows' spans, each as its first slot and its length.
fn metadata(device: &Device, spans: &[Vec<(u32, u32)>]) -> AttentionMetadata<'static> {
    let mut all = AttentionSpans::default();
    spans.iter().for_each(|row| all.push(row.iter().map(|&(start, len)| Span { start, len })));
    AttentionMetadata::new(device, Cow::Owned(all)).unwrap()
}

fn slot_mapping(device: &Device, positions: Vec<u32>, slots: Vec<u32>) -> SlotMapping {
    SlotMapping {
        positions: Indices::new(device, positions).unwrap(),
        slots: Indices::new(device, slots).unwrap(),
    }
}

/// `activation(x W + b)`, computed on a device and copied to the host.
fn run_linear(device: &Device, x: &Tensor, map: &Linear, activation: Activation) -> Tensor {
    let mut out = Tensor::default();
    device
        .run(|| linear(device, &upload(device, x), map, activation, OutputDtype::F32, &mut out))
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
    let sizes = [
        (1, 1, 1),
        (3, 7, 5),
        (12, 33, 16),
        (13, 64, 50),
        (29, 48, 131),
        (400, 20, 40),
        (21, 1024, 33),
    ];
    // Miri takes seconds for each product of small matrices.
    for (rows, inputs, outputs) in sizes.into_iter().take(if cfg!(miri) { 3 } else { 7 }) {
        let x = matrix(rows, inputs, 1);
        let w = numbers(outputs * inputs, 2);
        let bias = numbers(outputs, 3);
        let transposed: Vec<f32> =
            (0..inputs * outputs).map(|i| w[i % outputs * inputs + i / outputs]).collect();
        for device in devices() {
            let what = format!("{device:?} {rows}x{inputs}x{outputs}");
            let map = Linear::from_output_major(&device, inputs, outputs, &w, Some(bias.clone()))
                .unwrap();
            assert_close(
                run_linear(&device, &x, &map, Activation::None).data(),
                &naive_linear(&x, &w, &bias),
                1e-5,
                &what,
            );
            let map =
                Linear::from_input_major(&device, inputs, outputs, &transposed, Some(bias.clone()))
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
    let x = matrix(4, 16, 4);
    let w = numbers(16 * 24, 5);
    for device in devices() {
        let map = Linear::from_output_major(&device, 16, 24, &w, Some(vec![0.1; 24])).unwrap();
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
            let g = halves.row(i / 5)[i % 5];
            let u = halves.row(i / 5)[5 + i % 5];
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
    let x = matrix(37, 40, 7);
    let w = numbers(70 * 40, 8);
    for device in devices() {
        let map = Linear::from_input_major(&device, 40, 70, &w, None).unwrap();
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
    let x = matrix(9, 65, 9);
    let w = numbers(90 * 65, 10);
    let fused = devices().into_iter().filter(|d| d.isa().is_some_and(Isa::is_fused));
    let result = |device: Device| {
        let map = Linear::from_output_major(&device, 65, 90, &w, None).unwrap();
        run_linear(&device, &x, &map, Activation::None)
    };
    for result in fused.map(result) {
        let bits = result.data().iter().map(|x| u64::from(x.to_bits()));
        let digest = bits.fold(0, |hash: u64, x| (hash ^ x).wrapping_mul(0x0100_0000_01b3));
        // A size for all CPUs, so that those of other kinds are covered too.
        assert_eq!(digest, 0x07be_fe1d_19a4_963f);
    }
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
        let x = matrix(7, width, 11);
        let scale = numbers(width, 12);
        let shift = numbers(width, 13);
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
fn select_concat_lookup_and_add_move_rows() {
    let w = numbers(19 * 21, 21);
    let a = matrix(4, 19, 22);
    let b = matrix(3, 19, 23);
    for device in devices() {
        let map = Linear::from_output_major(&device, 19, 21, &w, None).unwrap();
        let found = lookup(&device, &map, &[20, 0, 7]).unwrap().to_host().unwrap();
        assert_eq!(found.data(), [&w[380..399], &w[..19], &w[133..152]].concat());
        let x = upload(&device, &a);
        let y = upload(&device, &b);
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
    let x = matrix(5, 19, 26);
    let table = matrix(3, 19, 27);
    let picked = vec![2, 0, 0, 1, 2];
    let one = |i: usize| x.data()[i] + table.row(picked[i / 19] as usize)[i % 19];
    let sum = Tensor::from_vec(5, 19, (0..95).map(one).collect());
    for device in devices() {
        let by = Normalization::layer(&device, 1e-5, numbers(19, 28), numbers(19, 29)).unwrap();
        let table = upload(&device, &table);
        let positions = Indices::new(&device, picked.clone()).unwrap();
        let learned = LearnedPositions { table: &table, positions: &positions };
        for (positions, expected) in [(Some(learned), &sum), (None, &x)] {
            let mut expected_norm = Tensor::default();
            let from = upload(&device, expected);
            norm(&device, &from, &by, OutputDtype::F32, &mut expected_norm).unwrap();
            let expected_norm = expected_norm.to_host().unwrap();
            for shared in [false, true] {
                let from = upload(&device, &x);
                let mut normed = Tensor::default();
                let clone = shared.then(|| from.clone());
                let stream = device
                    .run(|| {
                        add_positions_norm(
                            &device,
                            from,
                            positions,
                            &by,
                            OutputDtype::F32,
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
                    expected_norm.data(),
                    1e-5,
                    &format!("{device:?}: its norm"),
                );
                assert!(
                    clone.is_none_or(|clone| clone.to_host().unwrap() == x),
                    "{device:?}: a tensor that shares its memory changed"
                );
            }
        }
    }
}

/// A clone shares the memory until one of the two is written.
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

/// Concurrent work on all streams, in memory that is freed and reused, read at the end.
#[test]
fn streams_do_not_share_memory() {
    const SIDE: usize = 512;
    let x = |stream: usize, step: usize| {
        let element = |i: usize| ((i * (2 * step + 1) + stream) % (1 << 20)) as f32;
        Tensor::from_vec(SIDE, SIDE, (0..SIDE * SIDE).map(element).collect())
    };
    let reversed: Vec<usize> = (0..SIDE).rev().collect();
    for device in devices() {
        let work = |stream: usize| {
            let made: Vec<Tensor> = (0..48)
                .map(|step| {
                    select(&device, [&upload(&device, &x(stream, step))], &reversed).unwrap()
                })
                .collect();
            for (step, made) in made.into_iter().enumerate() {
                let expected = x(stream, step).select(reversed.iter().copied());
                assert_eq!(
                    made.to_host().unwrap(),
                    expected,
                    "stream {stream}, step {step}, {}",
                    device.describe()
                );
            }
        };
        std::thread::scope(|scope| {
            for stream in 0..device.streams() {
                let device = &device;
                let work = &work;
                scope.spawn(move || device.on_stream(stream, || work(stream)).unwrap());
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
    let x = upload(device, &matrix(64, 64, 1));
    let picked = Vec::from_iter(0..64);
    (0..10).fold(x, |x, _| select(device, [&x], &picked).unwrap())
}
