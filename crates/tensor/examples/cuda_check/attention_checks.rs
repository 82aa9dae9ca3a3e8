//! Checks of KV writes, and of attention.

use crate::checks::KernelCheck;
use crate::cuda::args::{CudaQkvTransform, CudaSlotMapping};
use crate::cuda::attention::{CudaAttentionMetadata, CudaKv, attention};
use crate::cuda::norm::CudaNorm;
use crate::cuda::qkv::{CudaRope, rope_and_cache};
use crate::cuda::{CudaDtype, CudaIndices, Precision, e4m3};
use crate::reference::{forks, naive_attention, norm_row, prompts, rotate};
use crate::{CheckResult, numbers, small};

/// A number rounded to the dtype of a store.
fn stored(kv: &CudaKv, x: f32) -> f32 {
    if kv.dtype() == CudaDtype::E4m3 { e4m3::to_f32(e4m3::from_f32(x)) } else { x }
}

impl KernelCheck {
    pub(crate) fn rope_and_cache(&mut self) -> CheckResult {
        let rows = 33usize;
        let slots = 80usize;
        let layers = 2usize;
        for (heads, kv_heads, dim) in
            [(12, 12, 64), (16, 8, 128), (4, 2, 12), (3, 1, 80), (5, 5, 13), (2, 1, 256)]
        {
            for is_rotary in [false, true] {
                if is_rotary && dim % 2 == 1 {
                    continue;
                }
                let cols = (heads + 2 * kv_heads) * dim;
                let x = self.rounded(numbers(rows * cols, 10));
                let qs = numbers(dim, 11);
                let ks = numbers(dim, 12);
                let norms =
                    (CudaNorm::rms(&self.cuda, 1e-6, &qs)?, CudaNorm::rms(&self.cuda, 1e-6, &ks)?);
                let frequencies: Vec<f32> = (0..dim / 2)
                    .map(|i| 1.0 / 10_000f32.powf((2 * i) as f32 / dim as f32))
                    .collect();
                let rope = CudaRope::new(&self.cuda, &frequencies)?;
                let positions: Vec<u32> = (0..rows as u32).map(|r| r * 37 % 1500).collect();
                let to: Vec<u32> = (0..rows as u32).map(|r| (r * 7 + 3) % slots as u32).collect();
                let p = CudaIndices::new(&self.cuda, &positions)?;
                let s = CudaIndices::new(&self.cuda, &to)?;
                let mut kv = CudaKv::new(&self.cuda, layers, kv_heads, dim, slots)?;
                let mut qkv = self.operand(rows, cols, &x)?;
                let by = CudaQkvTransform {
                    heads,
                    qk_norms: is_rotary.then_some((&norms.0, &norms.1)),
                    rope: is_rotary.then_some(&rope),
                };
                rope_and_cache(
                    &mut qkv,
                    by,
                    &mut kv,
                    1,
                    CudaSlotMapping { positions: &p, slots: &s },
                )?;

                let mut expected: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                if is_rotary {
                    for (r, row) in expected.chunks_mut(cols).enumerate() {
                        for (h, head) in row.chunks_mut(dim).take(heads + kv_heads).enumerate() {
                            let normed =
                                norm_row(head, true, if h < heads { &qs } else { &ks }, &[]);
                            head.copy_from_slice(&normed);
                            rotate(head, &frequencies, positions[r]);
                        }
                    }
                }
                let q = qkv.to_host()?;
                let pick = |from: &[f64]| -> Vec<f64> {
                    from.chunks(cols).flat_map(|row| row[..heads * dim].to_vec()).collect()
                };
                let got: Vec<f32> =
                    q.chunks(cols).flat_map(|row| row[..heads * dim].to_vec()).collect();
                let name = format!(
                    "{heads}/{kv_heads} heads of {dim} {}",
                    if is_rotary { "norm and rope" } else { "plain" }
                );
                let tolerance =
                    if is_rotary { self.tolerance(self.cuda.compute_dtype()) } else { 0.0 };
                self.report(
                    &format!("rope_and_cache queries {name}"),
                    &got,
                    &pick(&expected),
                    tolerance,
                );
                let (keys, values) = kv.to_host(1)?;
                for (what, store, first) in
                    [("keys", keys, heads), ("values", values, heads + kv_heads)]
                {
                    let mut got = Vec::new();
                    let mut want = Vec::new();
                    for r in 0..rows {
                        for h in 0..kv_heads {
                            got.extend_from_slice(
                                &store[(h * slots + to[r] as usize) * dim..][..dim],
                            );
                            let from = &expected[r * cols + (first + h) * dim..][..dim];
                            let kept = from.iter().map(|&x| f64::from(stored(&kv, x as f32)));
                            want.extend(kept);
                        }
                    }
                    // A key between two codes may be rounded to either.
                    let rounded = if kv.dtype() == CudaDtype::E4m3 { 8.0 } else { 1.0 };
                    self.report(
                        &format!("rope_and_cache {what} {name}"),
                        &got,
                        &want,
                        if what == "keys" { rounded * tolerance } else { 0.0 },
                    );
                }
            }
        }
        Ok(())
    }

    pub(crate) fn attention(&mut self) -> CheckResult {
        for (heads, kv_heads, dim) in [
            (12, 12, 64),
            (16, 8, 128),
            (4, 2, 32),
            (4, 2, 12),
            (3, 1, 80),
            (2, 2, 13),
            (2, 1, 256),
        ] {
            if small() {
                self.attention_over("prompts", (heads, kv_heads, dim), &prompts(&[20, 5, 70]))?;
                let forks = forks(&[70, 33, 1], 17, 3);
                self.attention_over("forks", (heads, kv_heads, dim), &forks)?;
                continue;
            }
            self.attention_over("prompts", (heads, kv_heads, dim), &prompts(&[72, 5, 130]))?;
            self.attention_over(
                "forks",
                (heads, kv_heads, dim),
                &forks(&[72, 33, 1, 200], 19, 11),
            )?;
            self.attention_over(
                "lone rows",
                (heads, kv_heads, dim),
                &forks(&[64, 65, 63, 16, 1, 129], 1, 0),
            )?;
        }
        if small() {
            return self.attention_over("long forks", (4, 2, 64), &forks(&[130, 20], 20, 70));
        }
        for heads in [(12, 12, 64), (4, 2, 64), (4, 2, 128), (3, 1, 32), (4, 2, 48)] {
            self.attention_over("many forks", heads, &forks(&[72, 100, 40, 90], 600, 9))?;
            self.attention_over("long forks", heads, &forks(&[130, 20, 300], 40, 70))?;
        }
        Ok(())
    }

    fn attention_over(
        &mut self,
        what: &str,
        (heads, kv_heads, dim): (usize, usize, usize),
        spans: &[Vec<(u32, u32)>],
    ) -> CheckResult {
        let slots = spans.iter().flatten().map(|s| (s.0 + s.1) as usize).max().unwrap_or(0) + 3;
        let rows = spans.len();
        let cols = (heads + 2 * kv_heads) * dim;
        let mut filling = self.rounded(numbers(slots * cols, 13));
        let all: Vec<u32> = (0..slots as u32).collect();
        let slot_mapping = CudaIndices::new(&self.cuda, &all)?;
        let mut kv = CudaKv::new(&self.cuda, 2, kv_heads, dim, slots)?;
        let mut fill = self.operand(slots, cols, &filling)?;
        rope_and_cache(
            &mut fill,
            CudaQkvTransform { heads, qk_norms: None, rope: None },
            &mut kv,
            1,
            CudaSlotMapping { positions: &slot_mapping, slots: &slot_mapping },
        )?;
        filling.iter_mut().for_each(|x| *x = stored(&kv, *x));
        let q = self.rounded(numbers(rows * cols, 14));
        let metadata = CudaAttentionMetadata::new(&self.cuda, rows, |r| spans[r].iter().copied())?;
        let got = attention(&self.operand(rows, cols, &q)?, &kv, 1, heads, &metadata)?.to_host()?;
        // All rows if they are few; else some, including those at both ends of tiles.
        let picked: Vec<usize> = (0..rows)
            .filter(|r| {
                rows < 500 || r % 37 == 0 || [0, 63, 64, 599, 600].contains(r) || r + 1 == rows
            })
            .collect();
        let mut expected = Vec::new();
        for &r in &picked {
            let slots: Vec<usize> =
                spans[r].iter().flat_map(|s| s.0 as usize..(s.0 + s.1) as usize).collect();
            for h in 0..heads {
                let key = |s: usize, part: usize| {
                    &filling[s * cols + (heads + part * kv_heads + h / (heads / kv_heads)) * dim..]
                        [..dim]
                };
                expected.extend(naive_attention(&q[r * cols + h * dim..][..dim], &slots, key));
            }
        }
        let width = heads * dim;
        let got: Vec<f32> =
            picked.iter().flat_map(|r| got[r * width..(r + 1) * width].to_vec()).collect();
        let tolerance = if self.cuda.precision() == Precision::F32 { 1e-5 } else { 6e-3 };
        self.report(
            &format!("attention {what} {rows} rows, {heads}/{kv_heads} heads of {dim}"),
            &got,
            &expected,
            tolerance,
        );
        Ok(())
    }
}
