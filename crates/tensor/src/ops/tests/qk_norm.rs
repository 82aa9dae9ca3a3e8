//! The backward of the norms of queries and keys.

use super::backward::{assert_gradient, difference, host, random_start, weighted_sum};
use super::*;

const EPS: f32 = 1e-6;

/// The norms of queries and of keys.
fn norms(device: &Device, scales: [&Tensor; 2]) -> [Normalization; 2] {
    scales.map(|s| Normalization::rms(device, EPS, s.data().to_vec()).unwrap())
}

/// The gradient of one head's input from that of its norm's result, and its share of the scale's.
fn naive_head(x: &[f32], scale: &[f32], dy: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let n = x.len();
    let [x, scale, dy] =
        [x, scale, dy].map(|v| v.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>());
    let mean_square = x.iter().map(|x| x * x).sum::<f64>() / n as f64;
    let inverse = 1.0 / (mean_square + f64::from(EPS)).sqrt();
    let normed: Vec<f64> = x.iter().map(|x| x * inverse).collect();
    let product = (0..n).map(|i| dy[i] * scale[i] * normed[i]).sum::<f64>() / n as f64;
    let dx = (0..n).map(|i| inverse * (dy[i] * scale[i] - normed[i] * product)).collect();
    (dx, (0..n).map(|i| dy[i] * normed[i]).collect())
}

/// The gradient of qkv, and those of both scales.
fn naive(
    shape: HeadShape,
    qkv: &Tensor,
    scales: [&Tensor; 2],
    dqkv: &Tensor,
) -> (Vec<f32>, [Vec<f32>; 2]) {
    let HeadShape { kv_heads, dim, heads } = shape;
    let mut out = dqkv.clone();
    let mut dscales = [vec![0.0f64; dim], vec![0.0f64; dim]];
    for r in 0..qkv.rows() {
        for h in 0..heads + kv_heads {
            let at = h * dim..(h + 1) * dim;
            let which = usize::from(h >= heads);
            let x = &qkv.row(r)[at.clone()];
            let dy = &dqkv.row(r)[at.clone()];
            let (dx, dscale) = naive_head(x, scales[which].data(), dy);
            out.row_mut(r)[at].iter_mut().zip(dx).for_each(|(o, d)| *o = d as f32);
            dscales[which].iter_mut().zip(dscale).for_each(|(s, d)| *s += d);
        }
    }
    let narrow = |x: Vec<f64>| x.into_iter().map(|x| x as f32).collect();
    (out.data().to_vec(), dscales.map(narrow))
}

#[test]
fn qk_norm_gradients_equal_their_definition() {
    // Rows of one and of several partial sums, heads of every kind of width.
    for (rows, kv_heads, dim, heads) in
        [(3, 1, 5, 1), (130, 2, 8, 4), (9, 8, 128, 16), (5, 1, 256, 2), (1100, 1, 6, 2)]
    {
        let shape = HeadShape { kv_heads, dim, heads };
        let qkv = matrix(rows, shape.qkv_cols(), 100);
        let dqkv = matrix(rows, shape.qkv_cols(), 101);
        let scales = [&matrix(1, dim, 102), &matrix(1, dim, 103)];
        let (expected, expected_scales) = naive(shape, &qkv, scales, &dqkv);
        for device in devices() {
            let what = format!("{device:?} {rows} rows of {shape:?}");
            let [q, k] = &norms(&device, scales);
            let transform = QkvTransform { heads, qk_norms: Some((q, k)), rope: None };
            let raw = upload(&device, &qkv);
            let mut gradient = upload(&device, &dqkv);
            let (mut dq, dq0) = random_start(&device, 1, dim, 104);
            let (mut dk, dk0) = random_start(&device, 1, dim, 105);
            let sums = [&mut dq, &mut dk];
            device.run(|| qk_norm_backward(&device, &raw, transform, &mut gradient, sums)).unwrap();
            assert_close(host(gradient).data(), &expected, 3e-6, &what);
            assert_close(&difference(dq, &dq0), &expected_scales[0], 3e-6, &format!("{what} q"));
            assert_close(&difference(dk, &dk0), &expected_scales[1], 3e-6, &format!("{what} k"));
        }
    }
}

/// Six positions of one sequence through norms, rotation and attention.
struct QkNormCase {
    shape: HeadShape,
    dout: Tensor,
}

impl QkNormCase {
    /// The loss, the gradient of qkv and those of both scales.
    fn run(&self, device: &Device, qkv: &Tensor, scales: [&Tensor; 2]) -> (f64, [Tensor; 3]) {
        let HeadShape { kv_heads, dim, heads } = self.shape;
        let frequencies = (0..dim / 2).map(|i| 0.5 / (i + 1) as f32).collect();
        let rope = Rope::new(device, frequencies).unwrap();
        let [q, k] = &norms(device, scales);
        let transform = QkvTransform { heads, qk_norms: Some((q, k)), rope: Some(&rope) };
        let mut kv = KvStore::new(device, 1, kv_heads, dim, 8).unwrap();
        let slots = slot_mapping(device, (0..6).collect(), (1..7).collect());
        let metadata = metadata(device, &(1..7).map(|n| vec![(1, n)]).collect::<Vec<_>>());
        let raw = upload(device, qkv);
        let dout = upload(device, &self.dout);
        let work = || {
            let mut placed = raw.clone();
            let mut out = Tensor::default();
            let mut dqkv = Tensor::default();
            rope_and_cache(device, &mut placed, transform, kv.layer_mut(0), &slots)?;
            attention(device, &placed, kv.layer(0), heads, &metadata, &mut out)?;
            let mut grads = KvGrads::zeros(device, &kv)?;
            let of = AttentionBackward {
                q: &placed,
                kv: kv.layer(0),
                heads,
                metadata: &metadata,
                out: &out,
                dout: &dout,
            };
            attention_backward(device, of, &mut grads, &mut dqkv)?;
            rope_and_cache_backward(device, &mut dqkv, transform, &grads, 0, &slots)?;
            let zeros = || Tensor::zeros_on(device, 1, dim);
            let mut dq = zeros()?;
            let mut dk = zeros()?;
            qk_norm_backward(device, &raw, transform, &mut dqkv, [&mut dq, &mut dk])?;
            Ok::<_, crate::DeviceError>((out, [dqkv, dq, dk]))
        };
        let (out, gradients) = device.run(work).unwrap();
        (weighted_sum(self.dout.data(), &host(out)), gradients.map(host))
    }
}

#[test]
fn qk_norm_gradients_match_finite_differences() {
    for (kv_heads, dim, heads) in [(1, 6, 2), (2, 16, 4), (1, 32, 1)] {
        let shape = HeadShape { kv_heads, dim, heads };
        let case = QkNormCase { shape, dout: matrix(6, heads * dim, 106) };
        let qkv = matrix(6, shape.qkv_cols(), 107);
        let q = matrix(1, dim, 108);
        let k = matrix(1, dim, 109);
        for device in devices() {
            let (_, [dqkv, dq, dk]) = case.run(&device, &qkv, [&q, &k]);
            let what = |which: &str| format!("{device:?} {shape:?} {which}");
            let of_qkv = |x: &Tensor| case.run(&device, x, [&q, &k]).0;
            assert_gradient(dqkv.data(), &qkv, of_qkv, &what("qkv"));
            let of_q = |x: &Tensor| case.run(&device, &qkv, [x, &k]).0;
            assert_gradient(dq.data(), &q, of_q, &what("query scale"));
            let of_k = |x: &Tensor| case.run(&device, &qkv, [&q, x]).0;
            assert_gradient(dk.data(), &k, of_k, &what("key scale"));
        }
    }
}

#[test]
fn qk_norm_gradients_do_not_depend_on_the_number_of_threads() {
    let shape = HeadShape { kv_heads: 2, dim: 12, heads: 4 };
    let qkv = matrix(500, shape.qkv_cols(), 110);
    for isa in Isa::ALL.into_iter().filter(|i| i.is_present()) {
        let run = |threads: usize| {
            let device = Device::cpu_with(NonZeroUsize::new(threads), isa).unwrap();
            let [q, k] = &norms(&device, [&matrix(1, 12, 111), &matrix(1, 12, 112)]);
            let transform = QkvTransform { heads: 4, qk_norms: Some((q, k)), rope: None };
            let mut dqkv = matrix(500, shape.qkv_cols(), 113);
            let mut dq = Tensor::zeros(1, 12);
            let mut dk = Tensor::zeros(1, 12);
            let sums = [&mut dq, &mut dk];
            device.run(|| qk_norm_backward(&device, &qkv, transform, &mut dqkv, sums)).unwrap();
            (dqkv, dq, dk)
        };
        assert!(run(1) == run(3), "{isa}");
    }
}
