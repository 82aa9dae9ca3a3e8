//! On a GPU opened as deterministic, a row's result is independent, to the bit, of the other rows,
//! their number and its position among them, in both precisions. On the CPU this always holds.
//!
//! Every differing operation is printed before a test fails.

use std::ops::Range;

use super::*;
use crate::DeviceError;

/// Enough rows for kernels that are only used for many.
pub(super) const ROWS: usize = 2304;

/// Ranges of these rows: few and many, starting at different offsets within a tile.
fn parts() -> [Range<usize>; 7] {
    [0..1, 7..12, 100..116, 1..130, 200..500, 1000..2100, 1..ROWS]
}

fn invariant_devices() -> Vec<Device> {
    let mut all = vec![Device::cpu(NonZeroUsize::new(2)).unwrap()];
    match Device::cuda_availability() {
        Ok(()) => all.extend(
            [Precision::F32, Precision::Bf16].map(|p| Device::cuda_with(0, p, true).unwrap()),
        ),
        Err(why) => println!("skipped on a gpu: {why}"),
    }
    assert!(all.iter().all(Device::is_deterministic));
    all
}

/// The operations that differed.
#[derive(Default)]
pub(super) struct Misses(Vec<String>);

impl Misses {
    /// Computes all rows and each part of them, and compares the part's results.
    pub(super) fn check(
        &mut self,
        device: &Device,
        what: &str,
        compute: impl Fn(Range<usize>) -> Result<Tensor, DeviceError> + Sync,
    ) {
        let run = |rows: Range<usize>| device.run(|| compute(rows)?.to_host()).unwrap();
        let whole = run(0..ROWS);
        for part in parts() {
            let found = run(part.clone());
            assert_eq!((found.rows(), found.cols()), (part.len(), whole.cols()), "{what}");
            let differs = |r: &usize| {
                let pairs = found.row(*r).iter().zip(whole.row(part.start + r));
                pairs.into_iter().any(|(a, b)| a.to_bits() != b.to_bits())
            };
            let different: Vec<usize> = (0..part.len()).filter(differs).collect();
            if let Some(&first) = different.first() {
                let a = found.row(first);
                let b = whole.row(part.start + first);
                let c = (0..a.len()).find(|&c| a[c].to_bits() != b[c].to_bits()).unwrap();
                self.0.push(format!(
                    "{what} on {}: {} of the rows {part:?} differ from all {ROWS}; row {first} \
                     of the part, column {c}: {} and {}",
                    device.describe(),
                    different.len(),
                    a[c],
                    b[c]
                ));
            }
        }
    }

    pub(super) fn none(self) {
        self.0.iter().for_each(|miss| println!("MISS {miss}"));
        assert!(self.0.is_empty(), "{} misses, the first: {}", self.0.len(), self.0[0]);
    }
}

/// Rows of a matrix on the device, as inputs of maps.
fn some(device: &Device, x: &Tensor, rows: Range<usize>) -> Tensor {
    let x = upload(device, &x.select(rows));
    let mut out = Tensor::default();
    dropout(device, &x, None, OutputDtype::Compute, &mut out).unwrap();
    out
}

pub(super) fn weights(outputs: usize, inputs: usize, salt: u64) -> Vec<f32> {
    let size = (inputs as f32).sqrt().recip();
    numbers(outputs * inputs, salt).into_iter().map(|x| x * size).collect()
}

#[test]
fn a_row_of_a_linear_map_is_the_row_alone() {
    let mut misses = Misses::default();
    // Shapes of GPT-2 and of the embedded model, and shapes that are not whole vectors.
    let shapes = [(768, 2304), (768, 3072), (256, 768), (72, 40), (75, 43)];
    for device in invariant_devices() {
        for (inputs, outputs) in shapes {
            let x = matrix(ROWS, inputs, 1);
            let w = weights(outputs, inputs, 2);
            let bias = Some(numbers(outputs, 3));
            let map = Linear::from_output_major(&device, inputs, outputs, &w, bias).unwrap();
            let kinds = [Activation::None, Activation::GeluTanh, Activation::GeluErf];
            for (activation, dtype) in kinds
                .map(|activation| (activation, OutputDtype::Compute))
                .into_iter()
                .chain([(Activation::None, OutputDtype::F32)])
            {
                let what = format!("{inputs} to {outputs}, {activation:?} as {dtype:?}");
                misses.check(&device, &what, |rows| {
                    let x = some(&device, &x, rows);
                    let mut out = Tensor::default();
                    linear(&device, &x, &map, activation, dtype, &mut out)?;
                    Ok(out)
                });
            }
        }
    }
    misses.none();
}

#[test]
fn a_row_of_the_residual_stream_is_the_row_alone() {
    let mut misses = Misses::default();
    for device in invariant_devices() {
        for (inputs, outputs) in [(768, 768), (3072, 768), (72, 768), (256, 256)] {
            let x = matrix(ROWS, inputs, 11);
            let start = matrix(ROWS, outputs, 12);
            let w = weights(outputs, inputs, 13);
            let bias = Some(numbers(outputs, 14));
            let map = Linear::from_output_major(&device, inputs, outputs, &w, bias).unwrap();
            let scale = numbers(outputs, 15);
            let shift = numbers(outputs, 16);
            let by = Normalization::layer(&device, 1e-5, scale, shift).unwrap();
            let key = |r: usize| {
                let row = r as u32;
                (!row.is_multiple_of(3)).then_some(RngKey {
                    seed: 3,
                    question: row / 64,
                    trajectory: row % 64,
                    position: 80,
                })
            };
            for dtype in [OutputDtype::Compute, OutputDtype::F32] {
                let what = format!("residual stream, {inputs} to {outputs} as {dtype:?}");
                misses.check(&device, &what, |rows| {
                    let keys: Vec<_> = rows.clone().map(key).collect();
                    let perturbed = dropout_rows(&device, &keys, 0.25);
                    let mut stream = upload(&device, &start.select(rows.clone()));
                    let x = some(&device, &x, rows);
                    let mut out = Tensor::default();
                    let site = Site::AttnOut;
                    let rows = &perturbed;
                    let mask = Some(DropoutMask::Sampled { layer: 0, site, rows });
                    let of = LinearResidualNorm { x: &x, map: &map, mask, norm: &by, dtype };
                    linear_residual_norm(&device, of, &mut stream, &mut out)?;
                    // Both results, concatenated.
                    let stream = stream.to_host()?;
                    let out = out.to_host()?;
                    let both = |r| stream.row(r).iter().chain(out.row(r)).copied();
                    let data = (0..stream.rows()).flat_map(both).collect();
                    Ok(Tensor::from_vec(stream.rows(), 2 * outputs, data))
                });
            }
        }
    }
    misses.none();
}

/// Queries, and values, read through attention to a row's own slot only.
#[test]
fn a_row_of_queries_keys_and_values_is_the_row_alone() {
    let mut misses = Misses::default();
    for device in invariant_devices() {
        for (inputs, heads, kv_heads, dim, rotated) in
            [(768, 12, 12, 64, false), (256, 8, 8, 32, false), (512, 8, 2, 64, true)]
        {
            let shape = HeadShape { kv_heads, dim, heads };
            let outputs = shape.qkv_cols();
            let x = matrix(ROWS, inputs, 41);
            let w = weights(outputs, inputs, 42);
            let bias = Some(numbers(outputs, 43));
            let map = Linear::from_output_major(&device, inputs, outputs, &w, bias).unwrap();
            let frequencies = (0..dim / 2).map(|i| 0.5 / (i + 1) as f32).collect();
            let rope = Rope::new(&device, frequencies).unwrap();
            let transform = QkvTransform { heads, qk_norms: None, rope: rotated.then_some(&rope) };
            misses.check(&device, &format!("queries and values of {shape:?}"), |rows| {
                let count = rows.len();
                let mut kv = KvStore::new(&device, 1, kv_heads, dim, count)?;
                let positions = rows.clone().map(|r| r as u32 % 100).collect();
                let slots = slot_mapping(&device, positions, (0..count as u32).rev().collect());
                let mut qkv = Tensor::default();
                let mut values = Tensor::default();
                let projection = QkvProjection { map: &map, transform };
                let x = some(&device, &x, rows);
                let part = QkvRows { x: &x, slot_mapping: &slots, qkv: &mut qkv };
                project_qkv(&device, vec![part], projection, kv.layer_mut(0))?;
                let spans: Vec<_> = (0..count as u32).rev().map(|slot| vec![(slot, 1)]).collect();
                let metadata = metadata(&device, &spans);
                attention(&device, &qkv, kv.layer(0), heads, &metadata, &mut values)?;
                let qkv = qkv.to_host()?;
                let values = values.to_host()?;
                let width = heads * dim;
                let both = |r| qkv.row(r)[..width].iter().chain(values.row(r)).copied();
                let data = (0..count).flat_map(both).collect();
                Ok(Tensor::from_vec(count, 2 * width, data))
            });
        }
    }
    misses.none();
}

/// Tokens as numbers, with their log-probabilities; mixtures with their argmax.
#[test]
fn a_row_of_logits_is_the_row_alone() {
    let mut misses = Misses::default();
    let inputs = 256;
    let outputs = 5003;
    for device in invariant_devices() {
        let x = matrix(ROWS, inputs, 21);
        let w = weights(outputs, inputs, 22);
        for bias in [None, Some(numbers(outputs, 23))] {
            let with = if bias.is_some() { "with a bias" } else { "without a bias" };
            let head = Linear::from_output_major(&device, inputs, outputs, &w, bias).unwrap();
            misses.check(&device, &format!("greedy tokens {with}"), |rows| {
                let tokens = greedy_tokens(&device, &some(&device, &x, rows.clone()), &head)?;
                let data = tokens.iter().flat_map(|t| [t.token as f32, t.logprob]).collect();
                Ok(Tensor::from_vec(rows.len(), 2, data))
            });
            let mixture = TopKMixture { head: &head, table: &head, k: 10, noise: None };
            misses.check(&device, &format!("mixtures {with}"), |rows| {
                Ok(top_k_mixture(&device, &some(&device, &x, rows), mixture)?.0)
            });
        }
    }
    misses.none();
}

/// Rows with several prefixes and different numbers of unshared slots, in heads of every kernel:
/// queries of one row, of 16 and of hundreds, so that neighbors in a tile and tiles differ. Then
/// the same rows with their prefixes scattered.
#[test]
fn a_row_of_attention_is_the_row_alone_wherever_its_slots_are() {
    let mut misses = Misses::default();
    let shapes = [(12, 12, 64), (4, 4, 32), (4, 2, 128), (6, 2, 64), (8, 2, 64), (3, 3, 40)];
    let prefix = |r: usize| [23u32, 72, 64, 150, 1][r / 500];
    let own = |r: usize| (r % 8 + r / 300) as u32;
    // Slot j of prefix p: in order, or with its units of 16 permuted.
    let prefix_start = |r: usize| 160 * (r / 500) as u32;
    let scattered = |r: usize| {
        let units = prefix(r).div_ceil(16);
        let unit = move |u: u32| {
            let len = (prefix(r) - 16 * u).min(16);
            Span { start: 1600 + prefix_start(r) + 16 * (units - 1 - u), len }
        };
        (0..units).map(unit).collect::<Vec<_>>()
    };
    let own_start = |r: usize| 800 + 7 * (r as u32 % 100);
    let slots = 2600u32;
    for device in invariant_devices() {
        for (heads, kv_heads, dim) in shapes {
            let shape = HeadShape { kv_heads, dim, heads };
            let cols = shape.qkv_cols();
            let mut filling = matrix(slots as usize, cols, 31);
            // Results at other positions are the same.
            for r in (0..ROWS).step_by(500) {
                for (u, to) in scattered(r).into_iter().enumerate() {
                    for i in 0..to.len {
                        let from = filling.row((prefix_start(r) + 16 * u as u32 + i) as usize);
                        let from = from.to_vec();
                        filling.row_mut((to.start + i) as usize).copy_from_slice(&from);
                    }
                }
            }
            let mut kv = KvStore::new(&device, 1, kv_heads, dim, slots as usize).unwrap();
            let transform = QkvTransform { heads, qk_norms: None, rope: None };
            device.run(|| {
                let all = slot_mapping(&device, vec![0; slots as usize], (0..slots).collect());
                let mut filling = some(&device, &filling, 0..slots as usize);
                rope_and_cache(&device, &mut filling, transform, kv.layer_mut(0), &all).unwrap();
            });
            let queries = matrix(ROWS, cols, 32);
            let attend = |rows: Range<usize>, in_pieces: bool| -> Result<Tensor, DeviceError> {
                let mut spans = AttentionSpans::default();
                for r in rows.clone() {
                    let first = Span { start: prefix_start(r), len: prefix(r) };
                    let prefixes = if in_pieces { scattered(r) } else { vec![first] };
                    let own = Span { start: own_start(r), len: own(r) };
                    spans.push_with_prefix(prefixes.into_iter().chain([own]), prefix(r));
                }
                let metadata = AttentionMetadata::new(&device, Cow::Owned(spans))?;
                let q = some(&device, &queries, rows);
                let mut out = Tensor::default();
                attention(&device, &q, kv.layer(0), heads, &metadata, &mut out)?;
                out.to_host()
            };
            let what = format!("attention of {shape:?}");
            misses.check(&device, &what, |rows| attend(rows, false));
            let (together, apart) =
                device.run(|| (attend(0..ROWS, false).unwrap(), attend(0..ROWS, true).unwrap()));
            let differs = |r: &usize| together.row(*r) != apart.row(*r);
            let different = (0..ROWS).filter(differs).count();
            if different > 0 {
                let on = device.describe();
                misses.0.push(format!("{what} on {on}: {different} rows differ in pieces"));
            }
        }
    }
    misses.none();
}
