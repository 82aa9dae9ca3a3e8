//! Compares each backward with central finite differences of its forward, on every device.
//!
//! The forward is f32, so a difference over a step h has an error of about 1e-7 / h; with h near
//! 1e-2 and a smooth function the rounding and truncation errors are both near 1e-4 of the largest
//! gradient, and the tolerance is a few times that.

use super::*;

const STEP: f32 = 1e-2;
const TOLERANCE: f32 = 2e-3;

/// A scalar loss: the sum of `weights * y`, in f64.
pub(super) fn weighted_sum(weights: &[f32], y: &Tensor) -> f64 {
    assert_eq!(weights.len(), y.data().len());
    weights.iter().zip(y.data()).map(|(w, y)| f64::from(*w) * f64::from(*y)).sum()
}

/// Compares a gradient of `f` at x with central differences, for up to forty elements.
pub(super) fn assert_gradient(found: &[f32], x: &Tensor, f: impl Fn(&Tensor) -> f64, what: &str) {
    assert_eq!(found.len(), x.data().len(), "{what}");
    let count = found.len();
    let picked: Vec<usize> = if count <= 40 {
        (0..count).collect()
    } else {
        (0..40).map(|i| i * 7919 % count).collect()
    };
    let moved = |i: usize, by: f32| {
        let mut x = x.clone();
        x.data_mut()[i] += by;
        f(&x)
    };
    let slope = |&i: &usize| ((moved(i, STEP) - moved(i, -STEP)) / f64::from(2.0 * STEP)) as f32;
    let found: Vec<f32> = picked.iter().map(|&i| found[i]).collect();
    assert_close(&found, &picked.iter().map(slope).collect::<Vec<_>>(), TOLERANCE, what);
}

pub(super) fn host(x: Tensor) -> Tensor {
    x.to_host().unwrap()
}

fn zeros(device: &Device, rows: usize, cols: usize) -> Tensor {
    Tensor::zeros_on(device, rows, cols).unwrap()
}

#[test]
fn activation_gradients_match_finite_differences() {
    let x = matrix(3, 21, 1);
    let dy = matrix(3, 21, 2);
    for device in devices() {
        for activation in [Activation::None, Activation::GeluTanh, Activation::GeluErf] {
            let forward = |x: &Tensor| {
                let mut out = Tensor::default();
                device
                    .run(|| {
                        activate(
                            &device,
                            &upload(&device, x),
                            activation,
                            OutputDtype::F32,
                            &mut out,
                        )
                    })
                    .unwrap();
                host(out)
            };
            let mut dx = Tensor::default();
            let given = upload(&device, &x);
            let reaching = upload(&device, &dy);
            device
                .run(|| {
                    activate_backward(
                        &device,
                        &given,
                        activation,
                        &reaching,
                        OutputDtype::F32,
                        &mut dx,
                    )
                })
                .unwrap();
            assert_gradient(
                host(dx).data(),
                &x,
                |x| weighted_sum(dy.data(), &forward(x)),
                &format!("{device:?} {activation:?}"),
            );
        }
    }
}

#[test]
fn a_separate_activation_equals_the_fused_one() {
    let x = matrix(5, 16, 3);
    let w = numbers(16 * 24, 4);
    for device in devices() {
        let map = Linear::from_output_major(&device, 16, 24, &w, None).unwrap();
        for activation in [Activation::GeluTanh, Activation::GeluErf] {
            let plain = upload(&device, &run_linear(&device, &x, &map, Activation::None));
            let mut out = Tensor::default();
            device
                .run(|| activate(&device, &plain, activation, OutputDtype::F32, &mut out))
                .unwrap();
            assert_close(
                host(out).data(),
                run_linear(&device, &x, &map, activation).data(),
                1e-6,
                &format!("{device:?} {activation:?}"),
            );
        }
    }
}

#[test]
fn swiglu_gradient_matches_finite_differences() {
    let x = matrix(3, 2 * 13, 5);
    let dy = matrix(3, 13, 6);
    for device in devices() {
        let forward = |x: &Tensor| {
            let mut out = Tensor::default();
            device.run(|| swiglu(&device, &upload(&device, x), &mut out)).unwrap();
            host(out)
        };
        let mut dx = Tensor::default();
        let given = upload(&device, &x);
        let reaching = upload(&device, &dy);
        device
            .run(|| swiglu_backward(&device, &given, &reaching, OutputDtype::F32, &mut dx))
            .unwrap();
        assert_gradient(
            host(dx).data(),
            &x,
            |x| weighted_sum(dy.data(), &forward(x)),
            &format!("{device:?}"),
        );
    }
}

/// A random tensor that a backward adds to, on the device and on the host.
pub(super) fn random_start(
    device: &Device,
    rows: usize,
    cols: usize,
    salt: u64,
) -> (Tensor, Tensor) {
    let start = matrix(rows, cols, salt);
    (upload(device, &start), start)
}

/// `end - start`
pub(super) fn difference(end: Tensor, start: &Tensor) -> Vec<f32> {
    host(end).data().iter().zip(start.data()).map(|(e, s)| e - s).collect()
}

#[test]
fn norm_gradients_match_finite_differences() {
    for (rows, width) in [(5, 12), (70, 20), (2100, 12), (3, 900), (2, 1100), (2, 2050)] {
        let x = matrix(rows, width, 7);
        let dy = matrix(rows, width, 8);
        let scale = matrix(1, width, 9);
        let shift = matrix(1, width, 10);
        for device in devices() {
            for layer in [true, false] {
                let make = |scale: &Tensor, shift: &Tensor| match layer {
                    true => Normalization::layer(
                        &device,
                        1e-5,
                        scale.data().to_vec(),
                        shift.data().to_vec(),
                    )
                    .unwrap(),
                    false => Normalization::rms(&device, 1e-6, scale.data().to_vec()).unwrap(),
                };
                let loss = |x: &Tensor, by: &Normalization| {
                    let mut out = Tensor::default();
                    device
                        .run(|| norm(&device, &upload(&device, x), by, OutputDtype::F32, &mut out))
                        .unwrap();
                    weighted_sum(dy.data(), &host(out))
                };
                let (mut dx, dx0) = random_start(&device, rows, width, 11);
                let (mut dscale, dscale0) = random_start(&device, 1, width, 12);
                let (mut dshift, dshift0) = random_start(&device, 1, width, 13);
                let given = upload(&device, &x);
                let by = make(&scale, &shift);
                let reaching = upload(&device, &dy);
                device
                    .run(|| {
                        let shift = layer.then_some(&mut dshift);
                        norm_backward(
                            &device,
                            NormBackward { x: &given, norm: &by, dy: &reaching },
                            &mut dx,
                            &mut dscale,
                            shift,
                        )
                    })
                    .unwrap();
                let what = format!("{device:?} {rows} x {width} layer {layer}");
                assert_gradient(&difference(dx, &dx0), &x, |x| loss(x, &by), &what);
                let of_scale = |scale: &Tensor| loss(&x, &make(scale, &shift));
                assert_gradient(
                    &difference(dscale, &dscale0),
                    &scale,
                    of_scale,
                    &format!("{what} scale"),
                );
                if layer {
                    let of_shift = |shift: &Tensor| loss(&x, &make(&scale, shift));
                    assert_gradient(
                        &difference(dshift, &dshift0),
                        &shift,
                        of_shift,
                        &format!("{what} shift"),
                    );
                }
            }
        }
    }
}

#[test]
fn norm_assign_replaces_the_parameters() {
    let x = matrix(3, 20, 14);
    let scale = matrix(1, 20, 15);
    let shift = matrix(1, 20, 16);
    for device in devices() {
        let mut by = Normalization::layer(&device, 1e-5, vec![1.0; 20], vec![0.0; 20]).unwrap();
        by.assign(&device, &upload(&device, &scale), Some(&upload(&device, &shift))).unwrap();
        let mut out = Tensor::default();
        device
            .run(|| norm(&device, &upload(&device, &x), &by, OutputDtype::F32, &mut out))
            .unwrap();
        let out = host(out);
        for r in 0..3 {
            assert_close(
                out.row(r),
                &naive_norm(x.row(r), scale.data(), Some(shift.data()), 1e-5),
                3e-6,
                &format!("{device:?}"),
            );
        }
    }
}

/// A linear map's backward is compared with its definition.
#[test]
fn linear_gradients_equal_their_definition() {
    for (rows, inputs, outputs) in
        [(1, 1, 1), (7, 12, 5), (40, 33, 50), (1500, 20, 17), (9, 64, 131)]
    {
        let x = matrix(rows, inputs, 17);
        let dy = matrix(rows, outputs, 18);
        let old = numbers(inputs * outputs, 19);
        let new = matrix(outputs, inputs, 20);
        let at = |r: usize, k: usize| {
            (0..outputs).map(|j| f64::from(dy.row(r)[j]) * f64::from(new.row(j)[k])).sum::<f64>()
        };
        let expected_dx: Vec<f32> =
            (0..rows * inputs).map(|i| at(i / inputs, i % inputs) as f32).collect();
        let at = |j: usize, k: usize| {
            (0..rows).map(|r| f64::from(dy.row(r)[j]) * f64::from(x.row(r)[k])).sum::<f64>()
        };
        let expected_dw: Vec<f32> =
            (0..outputs * inputs).map(|i| at(i / inputs, i % inputs) as f32).collect();
        let expected_db: Vec<f32> = (0..outputs)
            .map(|j| (0..rows).map(|r| f64::from(dy.row(r)[j])).sum::<f64>() as f32)
            .collect();
        for device in devices() {
            let what = format!("{device:?} {rows} x {inputs} -> {outputs}");
            let given = upload(&device, &x);
            let reaching = upload(&device, &dy);
            let bias = matrix(1, outputs, 21);
            let mut map =
                Linear::from_output_major(&device, inputs, outputs, &old, Some(vec![0.0; outputs]))
                    .unwrap();
            device
                .run(|| {
                    map.prepare_backward(
                        &device,
                        &upload(&device, &Tensor::from_vec(outputs, inputs, old.clone())),
                    )
                })
                .unwrap();
            device
                .run(|| map.assign(&device, &upload(&device, &new), Some(&upload(&device, &bias))))
                .unwrap();
            assert_close(
                run_linear(&device, &x, &map, Activation::None).data(),
                &naive_linear(&x, new.data(), bias.data()),
                1e-5,
                &what,
            );
            let mut dx = Tensor::default();
            device.run(|| linear_dx(&device, &reaching, &map, OutputDtype::F32, &mut dx)).unwrap();
            assert_close(host(dx).data(), &expected_dx, 1e-5, &format!("{what} dx"));
            let (mut dw, dw0) = random_start(&device, outputs, inputs, 22);
            let (mut db, db0) = random_start(&device, 1, outputs, 23);
            device.run(|| linear_dw(&device, &given, &reaching, &mut dw, Some(&mut db))).unwrap();
            assert_close(&difference(dw, &dw0), &expected_dw, 1e-5, &format!("{what} dw"));
            assert_close(&difference(db, &db0), &expected_db, 1e-5, &format!("{what} db"));
        }
    }
}

#[test]
fn scatter_add_sums_repeated_rows() {
    let x = matrix(5, 19, 25);
    let to = matrix(3, 19, 26);
    let rows = [2, 0, 2, 2, 1];
    for device in devices() {
        let mut sum = upload(&device, &to);
        scatter_add(
            &device,
            &upload(&device, &x),
            &Indices::new(&device, rows.to_vec()).unwrap(),
            &mut sum,
        )
        .unwrap();
        let mut expected = to.clone();
        for (r, &row) in rows.iter().enumerate() {
            expected.row_mut(row as usize).iter_mut().zip(x.row(r)).for_each(|(t, x)| *t += x);
        }
        assert_close(host(sum.clone()).data(), expected.data(), 1e-6, &format!("{device:?}"));
        fill_zero(&device, &mut sum).unwrap();
        assert_eq!(host(sum), Tensor::zeros(3, 19), "{device:?}");
    }
}

#[test]
fn cross_entropy_and_its_gradient_equal_their_definition() {
    for (rows, vocabulary) in [(4, 7), (3, 400), (2, 1030)] {
        let logits = Tensor::from_vec(
            rows,
            vocabulary,
            numbers(rows * vocabulary, 27).iter().map(|x| 5.0 * x).collect(),
        );
        let targets: Vec<u32> = (0..rows as u32).map(|r| (r * 5 + 2) % vocabulary as u32).collect();
        let weights: Vec<f32> = (0..rows).map(|r| [0.5, 0.0, 1.5, 0.25][r]).collect();
        for device in devices() {
            let mut dlogits = Tensor::default();
            let given = upload(&device, &logits);
            let named = Indices::new(&device, targets.clone()).unwrap();
            let losses = device
                .run(|| cross_entropy(&device, &given, &named, &weights, &mut dlogits))
                .unwrap();
            let losses = host(losses);
            let dlogits = host(dlogits);
            assert_eq!((losses.rows(), losses.cols()), (rows, 1));
            for r in 0..rows {
                let total: f64 = logits.row(r).iter().map(|&x| f64::from(x).exp()).sum();
                let target = targets[r] as usize;
                assert_close(
                    &[losses.row(r)[0]],
                    &[(total.ln() - f64::from(logits.row(r)[target])) as f32],
                    2e-6,
                    &format!("{device:?}"),
                );
                let share = |j: usize| {
                    f64::from(logits.row(r)[j]).exp() / total - f64::from(u8::from(j == target))
                };
                let expected: Vec<f32> =
                    (0..vocabulary).map(|j| weights[r] * share(j) as f32).collect();
                assert_close(
                    dlogits.row(r),
                    &expected,
                    1e-6,
                    &format!("{device:?} row {r} of {vocabulary}"),
                );
            }
        }
    }
}

#[test]
fn gradients_through_logits_match_finite_differences() {
    let rows = 6;
    let width = 16;
    let vocabulary = 43;
    let x = matrix(rows, width, 28);
    let w = matrix(vocabulary, width, 29);
    let targets: Vec<u32> = (0..rows as u32).collect();
    for device in devices() {
        let named = Indices::new(&device, targets.clone()).unwrap();
        let run = |x: &Tensor, w: &Tensor| {
            let mut head =
                Linear::from_output_major(&device, width, vocabulary, w.data(), None).unwrap();
            head.prepare_backward(&device, &upload(&device, w)).unwrap();
            let x = upload(&device, x);
            let mut given = Tensor::default();
            let mut dlogits = Tensor::default();
            device.run(|| logits(&device, &x, &head, &mut given)).unwrap();
            let losses = device
                .run(|| cross_entropy(&device, &given, &named, &[1.0; 6], &mut dlogits))
                .unwrap();
            let mut dx = Tensor::default();
            let mut dw = zeros(&device, vocabulary, width);
            device.run(|| linear_dx(&device, &dlogits, &head, OutputDtype::F32, &mut dx)).unwrap();
            device.run(|| linear_dw(&device, &x, &dlogits, &mut dw, None)).unwrap();
            (weighted_sum(&[1.0; 6], &host(losses)), host(dx), host(dw))
        };
        let (_, dx, dw) = run(&x, &w);
        assert_gradient(dx.data(), &x, |x| run(x, &w).0, &format!("{device:?} dx"));
        assert_gradient(dw.data(), &w, |w| run(&x, w).0, &format!("{device:?} dw"));
    }
}

#[test]
fn adamw_equals_a_plain_loop() {
    let rows = 7;
    let cols = 11;
    let by = |step| AdamW {
        lr: 1e-2,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        step,
        gradient_scale: 0.5,
    };
    for device in devices() {
        let mut value = upload(&device, &matrix(rows, cols, 30));
        let mut moments =
            Moments { first: zeros(&device, rows, cols), second: zeros(&device, rows, cols) };
        let mut expected: Vec<[f64; 3]> =
            matrix(rows, cols, 30).data().iter().map(|&x| [f64::from(x), 0.0, 0.0]).collect();
        for step in 1..=4u32 {
            let given = matrix(rows, cols, 30 + u64::from(step));
            let mut gradient = upload(&device, &given);
            device
                .run(|| adamw(&device, &by(step), &mut value, &mut gradient, &mut moments))
                .unwrap();
            assert_eq!(
                host(gradient),
                Tensor::zeros(rows, cols),
                "{device:?}: the gradient is used up"
            );
            for ([x, m, v], &g) in expected.iter_mut().zip(given.data()) {
                let g = 0.5 * f64::from(g);
                *x *= 1.0 - 1e-2 * 0.1;
                *m = 0.9 * *m + 0.1 * g;
                *v = 0.95 * *v + 0.05 * g * g;
                let first = *m / (1.0 - 0.9f64.powi(step as i32));
                let second = *v / (1.0 - 0.95f64.powi(step as i32));
                *x -= 1e-2 * first / (second.sqrt() + 1e-8);
            }
        }
        let value = host(value);
        assert_close(
            value.data(),
            &expected.iter().map(|e| e[0] as f32).collect::<Vec<_>>(),
            1e-6,
            &format!("{device:?}"),
        );
    }
}

#[test]
fn sum_of_squares_covers_all_tensors() {
    let a = matrix(3, 7, 35);
    let b = matrix(130, 70, 36);
    let expected: f64 = a.data().iter().chain(b.data()).map(|&x| f64::from(x) * f64::from(x)).sum();
    for device in devices() {
        let a = upload(&device, &a);
        let b = upload(&device, &b);
        let sum = device.run(|| sum_of_squares(&device, &[&a, &b])).unwrap();
        assert!((sum - expected).abs() < 1e-6 * expected, "{device:?}: {sum} and {expected}");
    }
}

/// Two passes through one layer: the first fills slots, the second attends.
struct AttentionCase {
    shape: HeadShape,
    spans: Vec<Vec<(u32, u32)>>,
    slots: Vec<u32>, // of the second pass
    before: usize,   // slots that the first pass fills
}

impl AttentionCase {
    fn slot_mapping(&self, device: &Device, first: bool) -> SlotMapping {
        let slots: Vec<u32> =
            if first { (0..self.before as u32).collect() } else { self.slots.clone() };
        slot_mapping(device, slots.iter().map(|s| s % 13).collect(), slots)
    }

    /// Returns attention's result, and the gradients of both passes' qkv.
    fn run(
        &self,
        device: &Device,
        early: &Tensor,
        late: &Tensor,
        dout: &Tensor,
    ) -> (Tensor, Tensor, Tensor) {
        let HeadShape { kv_heads, dim, heads } = self.shape;
        let frequencies = (0..dim / 2).map(|i| 0.5 / (i + 1) as f32).collect();
        let rope = Rope::new(device, frequencies).unwrap();
        let rope = dim.is_multiple_of(2).then_some(&rope);
        let transform = QkvTransform { heads, qk_norms: None, rope };
        let mut kv = KvStore::new(device, 2, kv_heads, dim, 96).unwrap();
        let mut first = upload(device, early);
        let mut second = upload(device, late);
        let first_slots = self.slot_mapping(device, true);
        let own = self.slot_mapping(device, false);
        let metadata = metadata(device, &self.spans);
        let work = || {
            rope_and_cache(device, &mut first, transform, kv.layer_mut(1), &first_slots)?;
            rope_and_cache(device, &mut second, transform, kv.layer_mut(1), &own)?;
            let mut out = Tensor::default();
            attention(device, &second, kv.layer(1), heads, &metadata, &mut out)?;
            let mut grads = KvGrads::zeros(device, &kv)?;
            let mut late = Tensor::default();
            let dout = upload(device, dout);
            let of = AttentionBackward {
                q: &second,
                kv: kv.layer(1),
                heads,
                metadata: &metadata,
                out: &out,
                dout: &dout,
            };
            attention_backward(device, of, &mut grads, &mut late)?;
            rope_and_cache_backward(device, &mut late, transform, &grads, 1, &own)?;
            let mut early = zeros(device, self.before, self.shape.qkv_cols());
            rope_and_cache_backward(device, &mut early, transform, &grads, 1, &first_slots)?;
            grads.clear(device)?;
            let mut none = zeros(device, self.before, self.shape.qkv_cols());
            rope_and_cache_backward(device, &mut none, transform, &grads, 1, &first_slots)?;
            assert!(none.to_host()?.data().iter().all(|&x| x == 0.0), "cleared");
            Ok::<_, crate::DeviceError>((out.to_host()?, early.to_host()?, late.to_host()?))
        };
        device.run(work).unwrap()
    }
}

/// Rows that share a prefix and rows with unshared spans, contiguous and scattered; a row attends
/// to others of the same pass.
fn attention_cases() -> Vec<AttentionCase> {
    let spans: Vec<Vec<(u32, u32)>> = vec![
        vec![(0, 20), (32, 1)],
        vec![(0, 20), (32, 2)],
        vec![(0, 20), (48, 1), (33, 1), (50, 1)],
        vec![(3, 9)],
        vec![(0, 20), (64, 1)],
        vec![(0, 18)],
    ];
    let slots = vec![32, 33, 50, 44, 64, 40];
    let shapes = [(1, 5, 1), (2, 16, 4), (2, 32, 2), (1, 64, 2)];
    shapes
        .map(|(kv_heads, dim, heads)| AttentionCase {
            shape: HeadShape { kv_heads, dim, heads },
            spans: spans.clone(),
            slots: slots.clone(),
            before: 20,
        })
        .into()
}

#[test]
fn attention_and_rope_gradients_match_finite_differences() {
    for (n, case) in attention_cases().into_iter().enumerate() {
        let rows = case.spans.len();
        let cols = case.shape.qkv_cols();
        let early = matrix(case.before, cols, 40);
        let late = matrix(rows, cols, 41);
        let dout = matrix(rows, case.shape.heads * case.shape.dim, 42);
        for device in devices() {
            let (_, dearly, dlate) = case.run(&device, &early, &late, &dout);
            let loss = |early: &Tensor, late: &Tensor| {
                weighted_sum(dout.data(), &case.run(&device, early, late, &dout).0)
            };
            let what = |which: &str| format!("{device:?} case {n} {which}");
            assert_gradient(dearly.data(), &early, |x| loss(x, &late), &what("early"));
            assert_gradient(dlate.data(), &late, |x| loss(&early, x), &what("late"));
        }
    }
}

#[test]
fn gradients_do_not_depend_on_the_number_of_threads() {
    let case = &attention_cases()[1];
    let rows = case.spans.len();
    let cols = case.shape.qkv_cols();
    let early = matrix(case.before, cols, 43);
    let late = matrix(rows, cols, 44);
    let dout = matrix(rows, case.shape.heads * case.shape.dim, 45);
    let x = matrix(1100, 40, 46);
    let dy = matrix(1100, 48, 47);
    let w = numbers(40 * 48, 48);
    let run = |threads: usize, isa: Isa| {
        let device = Device::cpu_with(NonZeroUsize::new(threads), isa).unwrap();
        let mut map = Linear::from_output_major(&device, 40, 48, &w, None).unwrap();
        map.prepare_backward(&device, &Tensor::from_vec(48, 40, w.clone())).unwrap();
        let by = Normalization::layer(&device, 1e-5, numbers(40, 49), numbers(40, 50)).unwrap();
        let mut dx = Tensor::default();
        let mut dw = Tensor::zeros(48, 40);
        let mut db = Tensor::zeros(1, 48);
        let mut dscale = Tensor::zeros(1, 40);
        let mut dshift = Tensor::zeros(1, 40);
        let work = || {
            linear_dx(&device, &dy, &map, OutputDtype::Compute, &mut dx)?;
            linear_dw(&device, &x, &dy, &mut dw, Some(&mut db))?;
            let of = NormBackward { x: &x, norm: &by, dy: &x };
            norm_backward(&device, of, &mut dx, &mut dscale, Some(&mut dshift))
        };
        device.run(work).unwrap();
        (case.run(&device, &early, &late, &dout), dx, dw, db, dscale, dshift)
    };
    for isa in Isa::ALL.into_iter().filter(|i| i.is_present()) {
        assert!(run(1, isa) == run(3, isa), "{isa}");
    }
}
