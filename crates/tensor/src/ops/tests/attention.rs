//! Tests of attention, and of the preceding operations on queries, keys and values.

use super::*;

/// A store whose keys and values are the rows of kv, (slots, 2 * kv_heads * head_dim), without norm
/// or rotation; row r is in slot `slot_of(r)`.
fn filled_kv(
    device: &Device,
    kv: &Tensor,
    shape: HeadShape,
    slot_of: impl Fn(u32) -> u32,
) -> KvStore {
    let HeadShape { kv_heads, dim, .. } = shape;
    let mut store = KvStore::new(device, 1, kv_heads, dim, kv.rows()).unwrap();
    let mut qkv = Tensor::zeros(0, (2 + 1) * kv_heads * dim);
    let no_queries = vec![0.0; kv_heads * dim];
    (0..kv.rows()).for_each(|r| qkv.push(&[&no_queries[..], kv.row(r)].concat()));
    let slots =
        slot_mapping(device, vec![0; kv.rows()], (0..kv.rows() as u32).map(slot_of).collect());
    let transform = QkvTransform { heads: kv_heads, qk_norms: None, rope: None };
    let mut qkv = upload(device, &qkv);
    device.run(|| rope_and_cache(device, &mut qkv, transform, store.layer_mut(0), &slots)).unwrap();
    store
}

fn run_attention(
    device: &Device,
    q: &Tensor,
    kv: &KvStore,
    heads: usize,
    spans: &[Vec<(u32, u32)>],
) -> Tensor {
    let q = upload(device, q);
    let metadata = metadata(device, spans);
    let mut out = Tensor::default();
    device.run(|| attention(device, &q, kv.layer(0), heads, &metadata, &mut out)).unwrap();
    out.to_host().unwrap()
}

/// Naive attention in f64.
fn naive_attention(q: &[f32], kv: &Tensor, shape: HeadShape, slots: &[usize]) -> Vec<f32> {
    let HeadShape { kv_heads, dim, heads } = shape;
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
    let spans: Vec<Vec<(u32, u32)>> = vec![
        vec![(0, 1)],
        vec![(0, 33), (48, 3)],
        vec![(0, 33), (50, 2), (69, 1), (60, 1)],
        vec![(5, 40)],
        vec![(0, 33), (64, 6)],
        vec![(16, 16)],
    ];
    for (kv_heads, dim, heads) in [(1, 12, 1), (2, 16, 4), (3, 64, 3), (2, 80, 6)] {
        let shape = HeadShape { kv_heads, dim, heads };
        let kv = matrix(70, 2 * kv_heads * dim, 26);
        let q = matrix(spans.len(), heads * dim, 27);
        for device in devices() {
            let store = filled_kv(&device, &kv, shape, |s| s);
            let out = run_attention(&device, &q, &store, heads, &spans);
            for (r, row_spans) in spans.iter().enumerate() {
                let slots: Vec<usize> =
                    row_spans.iter().flat_map(|&(s, n)| (s..s + n).map(|x| x as usize)).collect();
                let expected = naive_attention(q.row(r), &kv, shape, &slots);
                assert_close(out.row(r), &expected, 3e-6, &format!("{device:?} {shape:?} row {r}"));
            }
        }
    }
}

#[test]
fn attention_does_not_depend_on_slots() {
    let kv = matrix(64, 2 * 2 * 32, 28);
    let q = matrix(1, 4 * 32, 29);
    for device in devices() {
        let shape = HeadShape { kv_heads: 2, dim: 32, heads: 4 };
        let straight = filled_kv(&device, &kv, shape, |s| s);
        let reversed = filled_kv(&device, &kv, shape, |s| 63 - s);
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

/// Queries are normalized and rotated in place; so are keys, which affects attention over more than
/// one slot.
#[test]
fn qk_norm_and_rope_are_applied_before_attention() {
    let heads = 4;
    let kv_heads = 2;
    let dim = 8;
    let rows = 5;
    let shape = HeadShape { kv_heads, dim, heads };
    let qkv = matrix(rows, shape.qkv_cols(), 30);
    let q_scale = numbers(dim, 31);
    let k_scale = numbers(dim, 32);
    let frequencies = vec![1.0, 0.3, 0.1, 0.02];
    let rotated = |x: &[f32], scale: &[f32], position: u32| {
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
            &(0..heads).flat_map(|h| rotated(head(h), &q_scale, position)).collect::<Vec<_>>(),
        );
        let keys = (heads..heads + kv_heads).flat_map(|h| rotated(head(h), &k_scale, position));
        kv.push(
            &keys.chain(qkv.row(r)[(heads + kv_heads) * dim..].iter().copied()).collect::<Vec<_>>(),
        );
    }
    for device in devices() {
        let norms =
            [&q_scale, &k_scale].map(|s| Normalization::rms(&device, 1e-6, s.clone()).unwrap());
        let rope = Rope::new(&device, frequencies.clone()).unwrap();
        let qk_norms = Some((&norms[0], &norms[1]));
        let transform = QkvTransform { heads, qk_norms, rope: Some(&rope) };
        let mut store = KvStore::new(&device, 1, kv_heads, dim, rows).unwrap();
        let slots = slot_mapping(&device, positions.clone(), (0..rows as u32).collect());
        let mut result = upload(&device, &qkv);
        device
            .run(|| rope_and_cache(&device, &mut result, transform, store.layer_mut(0), &slots))
            .unwrap();
        let result = result.to_host().unwrap();
        for r in 0..rows {
            assert_close(
                &result.row(r)[..heads * dim],
                queries.row(r),
                3e-6,
                &format!("{device:?} queries {r}"),
            );
            let out = run_attention(
                &device,
                &result.select([r].into_iter()),
                &store,
                heads,
                &[vec![(0, rows as u32)]],
            );
            let expected = naive_attention(queries.row(r), &kv, shape, &[0, 1, 2, 3, 4]);
            assert_close(out.data(), &expected, 5e-6, &format!("{device:?} row {r}"));
        }
    }
}
