//! Compares gradients, and linear maps of many rows, in bf16 on a GPU with the CPU's f32, from the
//! same rounded inputs.
//!
//! They differ by the rounding of results, and of probabilities inside attention, by 2^-9 each:
//! errors are below one percent of the root mean square.

use super::*;
use crate::DeviceError;

const TOLERANCE: f64 = 1e-2;

fn gpu() -> Option<Device> {
    match Device::cuda_availability() {
        Ok(()) => Some(Device::cuda(0, Precision::Bf16).unwrap()),
        Err(why) => {
            println!("skipped on a gpu: {why}");
            None
        }
    }
}

fn rounded(x: Tensor) -> Tensor {
    let rows = x.rows();
    let cols = x.cols();
    Tensor::from_vec(
        rows,
        cols,
        x.data().iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect(),
    )
}

fn operand(device: &Device, x: &Tensor) -> Result<Tensor, DeviceError> {
    let mut out = Tensor::default();
    dropout(device, &upload(device, x), None, OutputDtype::Compute, &mut out)?;
    Ok(out)
}

/// Compares root mean squares: that of the error with that of the expected values.
fn assert_close_rms(found: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!((found.rows(), found.cols()), (expected.rows(), expected.cols()), "{what}");
    let square = |x: f64| x * x;
    let size: f64 = expected.data().iter().map(|&x| square(f64::from(x))).sum();
    let error: f64 =
        found.data().iter().zip(expected.data()).map(|(f, e)| square(f64::from(f - e))).sum();
    let share = (error / size.max(1e-30)).sqrt();
    println!("{what}: error {share:.1e}");
    assert!(share <= TOLERANCE, "{what}: an error of {share:.1e}");
}

/// One pass: its rows' slots and spans.
struct AttentionSegment {
    slots: Vec<u32>,
    spans: Vec<Vec<(u32, u32)>>,
}

/// Passes over a batch of sequences: prompts of different lengths, single thoughts, and tails that
/// attend to a second span. Returns the number of slots too.
fn segments(prompts: &[u32], thoughts: u32, tail: u32) -> (Vec<AttentionSegment>, usize) {
    let room = |n: u32| n.next_multiple_of(16);
    let starts: Vec<u32> = prompts
        .iter()
        .scan(0, |at, &n| Some(std::mem::replace(at, *at + room(n + thoughts))))
        .collect();
    let begun = starts.last().map_or(0, |s| s + room(prompts[prompts.len() - 1] + thoughts));
    let mut all = Vec::new();
    let each = || starts.iter().zip(prompts);
    all.push(AttentionSegment {
        slots: each().flat_map(|(s, n)| *s..s + n).collect(),
        spans: each().flat_map(|(&s, &n)| (1..=n).map(move |k| vec![(s, k)])).collect(),
    });
    for t in 0..thoughts {
        let slots = each().map(|(s, n)| s + n + t).collect();
        all.push(AttentionSegment {
            slots,
            spans: each().map(|(&s, &n)| vec![(s, n + t + 1)]).collect(),
        });
    }
    let own = |i: usize| begun + i as u32 * room(tail);
    let ends = |i: usize| (own(i)..own(i) + tail).collect::<Vec<_>>();
    let seen = |i: usize| {
        let prefix = (starts[i], prompts[i] + thoughts);
        (1..=tail).map(|k| vec![prefix, (own(i), k)]).collect::<Vec<_>>()
    };
    let count = prompts.len();
    all.push(AttentionSegment {
        slots: (0..count).flat_map(ends).collect(),
        spans: (0..count).flat_map(seen).collect(),
    });
    (all, own(count) as usize)
}

/// Forward through all passes, backward in reverse: the gradient of each pass's qkv.
fn forward_backward(
    device: &Device,
    shape: HeadShape,
    segments: &[AttentionSegment],
    slots: usize,
) -> Result<Vec<Tensor>, DeviceError> {
    let HeadShape { kv_heads, dim, heads } = shape;
    let rope = Rope::new(device, (0..dim / 2).map(|i| 0.5 / (i + 1) as f32).collect())?;
    let rope = (kv_heads != heads).then_some(&rope);
    let transform = QkvTransform { heads, qk_norms: None, rope };
    let mut kv = KvStore::new(device, 2, kv_heads, dim, slots)?;
    let mut saved = Vec::new();
    for (i, segment) in segments.iter().enumerate() {
        let rows = segment.slots.len();
        let mut qkv = operand(device, &matrix(rows, shape.qkv_cols(), 60 + i as u64))?;
        let positions = segment.slots.iter().map(|s| s % 50).collect();
        let slots = slot_mapping(device, positions, segment.slots.clone());
        rope_and_cache(device, &mut qkv, transform, kv.layer_mut(1), &slots)?;
        let metadata = metadata(device, &segment.spans);
        let mut out = Tensor::default();
        attention(device, &qkv, kv.layer(1), heads, &metadata, &mut out)?;
        saved.push((qkv, slots, metadata, out));
    }
    let mut grads = KvGrads::zeros(device, &kv)?;
    let mut gradients = Vec::new();
    for (i, (q, slots, metadata, out)) in saved.iter().enumerate().rev() {
        let dout = operand(device, &matrix(q.rows(), heads * dim, 80 + i as u64))?;
        let mut dqkv = Tensor::default();
        let of = AttentionBackward { q, kv: kv.layer(1), heads, metadata, out, dout: &dout };
        attention_backward(device, of, &mut grads, &mut dqkv)?;
        rope_and_cache_backward(device, &mut dqkv, transform, &grads, 1, slots)?;
        gradients.push(dqkv.to_host()?);
    }
    Ok(gradients)
}

#[test]
fn attention_gradients_in_bf16_match_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let cpu = Device::cpu(None).unwrap();
    let many: Vec<u32> = (0..40).map(|i| 40 + i * 13 % 60).collect();
    for (name, (segments, slots)) in
        [("few", segments(&[75, 20, 1, 64, 130, 300], 3, 5)), ("many", segments(&many, 2, 60))]
    {
        for (kv_heads, dim, heads) in [(2, 32, 2), (2, 64, 2), (1, 64, 3), (2, 128, 4), (1, 80, 1)]
        {
            let shape = HeadShape { kv_heads, dim, heads };
            let found = gpu.run(|| forward_backward(&gpu, shape, &segments, slots)).unwrap();
            let expected = cpu.run(|| forward_backward(&cpu, shape, &segments, slots)).unwrap();
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_close_rms(
                    found,
                    expected,
                    &format!("{name}, {shape:?}, pass {i} from the end"),
                );
            }
        }
    }
}

/// Linear maps with enough rows and outputs for the Hopper GEMM, in shapes that are not multiples
/// of its tiles: each activation, then queries, keys and values in attention, where every row
/// attends to its own slot and to those of the first rows.
#[test]
fn linear_of_many_rows_in_bf16_matches_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let cpu = Device::cpu(None).unwrap();
    for (rows, inputs, heads, kv_heads, dim) in
        [(1200, 768, 12, 12, 64), (1270, 520, 26, 13, 40), (2049, 584, 20, 10, 32)]
    {
        let outputs = HeadShape { kv_heads, dim, heads }.qkv_cols();
        let w = matrix(outputs, inputs, 91);
        let w = rounded(Tensor::from_vec(
            outputs,
            inputs,
            w.data().iter().map(|x| x * 2.0 / (inputs as f32).sqrt()).collect(),
        ));
        let x = rounded(matrix(rows, inputs, 92));
        let bias = numbers(outputs, 93);
        let to: Vec<u32> = (0..rows as u32).rev().collect();
        let run = |device: &Device| {
            let map =
                Linear::from_output_major(device, inputs, outputs, w.data(), Some(bias.clone()))?;
            let x = operand(device, &x)?;
            let mut made = Vec::new();
            for activation in [Activation::None, Activation::GeluTanh, Activation::GeluErf] {
                let mut out = Tensor::default();
                linear(device, &x, &map, activation, OutputDtype::Compute, &mut out)?;
                made.push(out);
            }
            let mut kv = KvStore::new(device, 2, kv_heads, dim, rows)?;
            let slots = slot_mapping(device, vec![0; rows], to.clone());
            let mut qkv = Tensor::default();
            let mut attended = Tensor::default();
            let transform = QkvTransform { heads, qk_norms: None, rope: None };
            let projection = QkvProjection { map: &map, transform };
            let part = QkvRows { x: &x, slot_mapping: &slots, qkv: &mut qkv };
            project_qkv(device, vec![part], projection, kv.layer_mut(1))?;
            let spans: Vec<_> =
                to.iter().map(|&slot| vec![(rows as u32 - 3, 3), (slot, 1)]).collect();
            let metadata = metadata(device, &spans);
            attention(device, &qkv, kv.layer(1), heads, &metadata, &mut attended)?;
            made.push(attended);
            made.into_iter().map(Tensor::to_host).collect::<Result<Vec<_>, DeviceError>>()
        };
        let found = gpu.run(|| run(&gpu)).unwrap();
        let expected = cpu.run(|| run(&cpu)).unwrap();
        for (name, (found, expected)) in
            ["linear", "tanh-GELU", "erf-GELU", "attention"].iter().zip(found.iter().zip(&expected))
        {
            assert_close_rms(
                found,
                expected,
                &format!("{name} of {rows} rows, {inputs} to {outputs}"),
            );
        }
    }
}

/// Enough rows that SMs run several CTAs in sequence, over prefixes of more units than are in
/// flight at a time. The unshared spans of rows overlap, which is fine for reading.
#[test]
fn attention_over_long_prefixes_in_bf16_matches_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let cpu = Device::cpu(None).unwrap();
    let rows = 2400;
    let heads = 12;
    let dim = 64;
    let slots = 1000;
    let cols = 3 * heads * dim;
    let filling = rounded(matrix(slots, cols, 100));
    let queries = rounded(matrix(rows, cols, 101));
    let row_spans = |r: u32| {
        let prefix = [(0, 72), (72, 100), (172, 40), (212, 300)][r as usize / 600];
        vec![prefix, (520 + 7 * r % 400, 9)]
    };
    let spans: Vec<_> = (0..rows as u32).map(row_spans).collect();
    let run = |device: &Device| {
        let all = slot_mapping(device, vec![0; slots], (0..slots as u32).collect());
        let mut kv = KvStore::new(device, 1, heads, dim, slots)?;
        let transform = QkvTransform { heads, qk_norms: None, rope: None };
        let mut filling = operand(device, &filling)?;
        rope_and_cache(device, &mut filling, transform, kv.layer_mut(0), &all)?;
        let metadata = metadata(device, &spans);
        let mut out = Tensor::default();
        attention(device, &operand(device, &queries)?, kv.layer(0), heads, &metadata, &mut out)?;
        out.to_host()
    };
    let expected = cpu.run(|| run(&cpu)).unwrap();
    for _ in 0..4 {
        assert_close_rms(
            &gpu.run(|| run(&gpu)).unwrap(),
            &expected,
            "attention of many rows over long prefixes",
        );
    }
}

/// Enough rows for Hopper's fused kernel, whose CTAs exchange statistics through the mailbox;
/// repeated, to detect a CTA that uses an earlier launch's statistics.
#[test]
fn residual_norm_of_many_rows_in_bf16_matches_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let cpu = Device::cpu(None).unwrap();
    let outputs = 768;
    let p = 0.25;
    for (rows, inputs, is_rms) in [(4096, 136, false), (3467, 768, false), (8300, 72, true)] {
        let w = matrix(outputs, inputs, 94);
        let w = rounded(Tensor::from_vec(
            outputs,
            inputs,
            w.data().iter().map(|x| x * 2.0 / (inputs as f32).sqrt()).collect(),
        ));
        let x = rounded(matrix(rows, inputs, 95));
        let bias = numbers(outputs, 96);
        let start = matrix(rows, outputs, 97);
        let scale = numbers(outputs, 98);
        let shift = numbers(outputs, 99);
        let key = |r: u32| {
            (r % 7 != 2).then_some(RngKey {
                seed: 3,
                question: r / 64,
                trajectory: r % 64,
                position: 80,
            })
        };
        let run = |device: &Device| {
            let map =
                Linear::from_output_major(device, inputs, outputs, w.data(), Some(bias.clone()))?;
            let by = match is_rms {
                true => Normalization::rms(device, 1e-5, scale.clone())?,
                false => Normalization::layer(device, 1e-5, scale.clone(), shift.clone())?,
            };
            let keys: Vec<_> = (0..rows as u32).map(key).collect();
            let x = operand(device, &x)?;
            let perturbed = dropout_rows(device, &keys, p);
            let mut stream = upload(device, &start);
            let mut made = Vec::new();
            for layer in 0..3 {
                let mask = (layer != 1).then_some(DropoutMask::Sampled {
                    layer,
                    site: Site::AttnOut,
                    rows: &perturbed,
                });
                let dtype = if layer == 2 { OutputDtype::F32 } else { OutputDtype::Compute };
                let of = LinearResidualNorm { x: &x, map: &map, mask, norm: &by, dtype };
                let mut out = Tensor::default();
                linear_residual_norm(device, of, &mut stream, &mut out)?;
                made.push(out);
            }
            made.push(stream);
            made.into_iter().map(Tensor::to_host).collect::<Result<Vec<_>, DeviceError>>()
        };
        let found = gpu.run(|| run(&gpu)).unwrap();
        let expected = cpu.run(|| run(&cpu)).unwrap();
        for (name, (found, expected)) in
            ["first", "second", "third", "stream"].iter().zip(found.iter().zip(&expected))
        {
            assert_close_rms(
                found,
                expected,
                &format!("{name} of {rows} rows, {inputs} to {outputs}"),
            );
        }
    }
}

#[test]
fn gradients_in_bf16_match_the_cpu() {
    let Some(gpu) = gpu() else { return };
    let rows = 300;
    let width = 96;
    let vocabulary = 1003;
    let w = rounded(matrix(vocabulary, width, 51));
    let run = |device: &Device| {
        let mut head = Linear::from_output_major(
            device,
            width,
            vocabulary,
            w.data(),
            Some(vec![0.0; vocabulary]),
        )?;
        head.prepare_backward(device, &upload(device, &w))?;
        head.assign(
            device,
            &upload(device, &w),
            Some(&upload(device, &matrix(1, vocabulary, 52))),
        )?;
        let x = operand(device, &rounded(matrix(rows, width, 53)))?;
        let mut given = Tensor::default();
        let mut dlogits = Tensor::default();
        logits(device, &x, &head, &mut given)?;
        let targets =
            Indices::new(device, (0..rows as u32).map(|r| r * 3 % vocabulary as u32).collect())?;
        let losses = cross_entropy(device, &given, &targets, &vec![0.1; rows], &mut dlogits)?;
        let mut dx = Tensor::default();
        let mut inner = Tensor::default();
        linear_dx(device, &dlogits, &head, OutputDtype::Compute, &mut dx)?;
        let mut dw = Tensor::zeros_on(device, vocabulary, width)?;
        let mut db = Tensor::zeros_on(device, 1, vocabulary)?;
        linear_dw(device, &x, &dlogits, &mut dw, Some(&mut db))?;
        activate_backward(device, &x, Activation::GeluTanh, &dx, OutputDtype::Compute, &mut inner)?;
        let mut gates = Tensor::default();
        swiglu_backward(
            device,
            &operand(device, &rounded(matrix(rows, 2 * width, 54)))?,
            &inner,
            OutputDtype::F32,
            &mut gates,
        )?;
        let by = Normalization::layer(device, 1e-5, numbers(width, 55), numbers(width, 56))?;
        let stream = upload(device, &matrix(rows, width, 57));
        let mut dstream = Tensor::zeros_on(device, rows, width)?;
        let mut dscale = Tensor::zeros_on(device, 1, width)?;
        let mut dshift = Tensor::zeros_on(device, 1, width)?;
        norm_backward(
            device,
            NormBackward { x: &stream, norm: &by, dy: &inner },
            &mut dstream,
            &mut dscale,
            Some(&mut dshift),
        )?;
        let mut table = Tensor::zeros_on(device, 7, width)?;
        scatter_add(
            device,
            &inner,
            &Indices::new(device, (0..rows as u32).map(|r| r % 7).collect())?,
            &mut table,
        )?;
        let all = [losses, dlogits, dx, dw, db, inner, gates, dstream, dscale, dshift, table];
        all.into_iter().map(Tensor::to_host).collect::<Result<Vec<_>, DeviceError>>()
    };
    let cpu = Device::cpu(None).unwrap();
    let found = gpu.run(|| run(&gpu)).unwrap();
    let expected = cpu.run(|| run(&cpu)).unwrap();
    let names = [
        "losses",
        "dlogits",
        "dx",
        "dw",
        "db",
        "activation",
        "swiglu",
        "norm",
        "norm's scale",
        "norm's shift",
        "scattered",
    ];
    names
        .iter()
        .zip(found.iter().zip(&expected))
        .for_each(|(name, (f, e))| assert_close_rms(f, e, name));
}
