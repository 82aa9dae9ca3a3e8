//! Checks of products and their fused epilogues: bias, GELU, keys and values, argmax.

use super::*;

impl Fp8Checks<'_> {
    /// STORE with integers: to the bit, with and without a bias, from one row on, at depths and
    /// outputs that end inside a tile.
    pub(super) fn exact_products(&mut self) -> Result<(), CudaError> {
        for (rows, depth, outputs) in [
            (1, 16, 8),
            (1, 768, 768),
            (37, 144, 200),
            (129, 768, 2304),
            (300, 1040, 776),
            (129, 3072, 768),
            (4090, 768, 2304),
            (4096, 3072, 768),
            (17_000, 128, 192),
        ] {
            if rows * depth * outputs > self.max_work {
                continue;
            }
            let x = whole(rows, depth, 2);
            let w = whole(outputs, depth, 3);
            let bias: Vec<f32> = (0..outputs).map(|c| (c % 13) as f32 - 6.0).collect();
            let map = CudaLinear::from_output_major(self.cuda, depth, outputs, &w, Some(&bias))?;
            let picked = picked_rows(rows);
            let sums = product(&x, &w, depth, &picked);
            let operands = self.operands(rows, depth, &x)?;
            for (biased, (x_there, kind)) in
                [true, false].iter().flat_map(|&biased| operands.iter().map(move |x| (biased, x)))
            {
                let got = match biased {
                    true => linear(x_there, &map, Activation::None, CudaDtype::Bf16)?,
                    false => matmul(x_there, &map, CudaDtype::Bf16)?,
                };
                let got = got.to_host()?;
                let expected = |i: usize, c: usize| {
                    let y = sums[i * outputs + c] + if biased { f64::from(bias[c]) } else { 0.0 };
                    bf16::from_f32(y as f32).to_f32()
                };
                let shape = format!("{rows} x {depth} -> {outputs}");
                let name = format!("gemm_fp8_store {shape} bias {biased}, {kind}");
                let of = Compared { name, picked: &picked, cols: outputs };
                self.compare(&of, |r, c| got[r * outputs + c], expected, |a, b| a == b);
            }
        }
        Ok(())
    }

    /// STORE with Gaussian numbers compared with exact sums of the same codes: the rounding of bf16
    /// (1.1e-3 of the root mean square) and of the tensor cores' sums.
    pub(super) fn rounded_products(&mut self) -> Result<(), CudaError> {
        for (rows, depth, outputs, tolerance) in
            [(129, 768, 2304, 3e-3), (129, 3072, 768, 5e-3), (129, 8192, 2048, 8e-3)]
        {
            if rows * depth * outputs > self.max_work {
                continue;
            }
            let x = numbers(rows * depth, 4);
            let w = numbers(outputs * depth, 5);
            let map = CudaLinear::from_output_major(self.cuda, depth, outputs, &w, None)?;
            let x = self.operand(rows, depth, &x)?;
            let picked: Vec<usize> = (0..rows).step_by(16).collect();
            let weights = map.fp8().map(|w| w.matrix.to_host()).transpose()?.unwrap_or_default();
            let sums = product(&x.to_host()?, &weights[..outputs * depth], depth, &picked);
            let got = matmul(&x, &map, CudaDtype::Bf16)?.to_host()?;
            let at = |i: usize| f64::from(got[picked[i / outputs] * outputs + i % outputs]);
            let errors: Vec<f64> = (0..sums.len()).map(|i| at(i) - sums[i]).collect();
            let rms = (sums.iter().map(|x| x * x).sum::<f64>() / sums.len() as f64).sqrt();
            let name = format!("gemm_fp8_store {rows} x {depth} -> {outputs}, Gaussian");
            self.measure(&name, &errors, rms, tolerance);
        }
        Ok(())
    }

    /// The scale of the results, and each result to half a step plus the error of f16.
    pub(super) fn gelu(&mut self) -> Result<(), CudaError> {
        for (rows, depth, outputs) in
            [(1, 768, 3072), (37, 144, 208), (129, 768, 3072), (4090, 768, 3072)]
        {
            if rows * depth * outputs > self.max_work {
                continue;
            }
            let x: Vec<f32> = whole(rows, depth, 6).iter().map(|x| x / 16.0).collect();
            let w: Vec<f32> = whole(outputs, depth, 7).iter().map(|x| x / 64.0).collect();
            let bias: Vec<f32> = (0..outputs).map(|c| (c % 5) as f32 / 4.0 - 0.5).collect();
            let map = CudaLinear::from_output_major(self.cuda, depth, outputs, &w, Some(&bias))?;
            let x_there = self.scaled_operand(rows, depth, &x)?;
            let out = linear(&x_there, &map, Activation::GeluTanh, CudaDtype::E4m3)?;
            assert_eq!(out.dtype(), CudaDtype::E4m3, "gelu writes e4m3");
            let bounds = common_scale(depth, &x);
            let picked = picked_rows(rows);
            let bound = 1.13 * bounds.max_norm * common_scale(depth, &w).max_norm + largest(&bias);
            let name = format!("gemm_fp8_gelu {rows} x {depth} -> {outputs}");
            // The bound may be within rounding of the next power of two.
            let near = [0.999_99, 1.000_01].map(|by| e4m3::scale_for(bound * by));
            let scale = out.common_scale().map_or(f32::NAN, |by| by.scale);
            let what = format!("{scale}, should be of {near:?}");
            self.line(&format!("{name}, scale"), near.contains(&scale), what);
            let sums = product(&x, &w, depth, &picked);
            let got = out.to_host()?;
            let expected = |i: usize, c: usize| {
                let y = sums[i * outputs + c] + f64::from(bias[c]);
                // Before GELU a result is rounded to f16.
                (gelu(y), 1.01 * half_step(gelu(y), scale) + 2e-3 * y.abs())
            };
            let of = Compared { name, picked: &picked, cols: outputs };
            let close = |a: (f64, f64), b: (f64, f64)| (a.0 - b.0).abs() <= b.1;
            self.compare(&of, |r, c| (f64::from(got[r * outputs + c]), 0.0), expected, close);
        }
        Ok(())
    }

    /// Weights so large that results might exceed f16's range, and rows with a scale each: GELU is
    /// computed in f32.
    pub(super) fn gelu_without_a_bound(&mut self) -> Result<(), CudaError> {
        let rows = 37;
        let depth = 144;
        let outputs = 208;
        let x: Vec<f32> = whole(rows, depth, 6).iter().map(|x| x / 64.0).collect();
        let w: Vec<f32> = whole(outputs, depth, 7).iter().map(|x| x * 64.0).collect();
        let map = CudaLinear::from_output_major(self.cuda, depth, outputs, &w, None)?;
        let picked = picked_rows(rows);
        let sums = product(&x, &w, depth, &picked);
        for (x_there, kind) in self.operands(rows, depth, &x)? {
            assert!(fp8::gelu_scale(&x_there, &map).is_none(), "such results fit f16");
            let out = linear(&x_there, &map, Activation::GeluTanh, CudaDtype::E4m3)?;
            let scales = out.codes_to_host()?.1;
            let got = out.to_host()?;
            let expected = |i: usize, c: usize| {
                let y = sums[i * outputs + c];
                let tolerance = 1.01 * half_step(gelu(y), scales[picked[i]]);
                (gelu(y), tolerance + 4e-3 * y.abs())
            };
            let name = format!("GELU without a bound {rows} x {depth} -> {outputs}, {kind}");
            let of = Compared { name, picked: &picked, cols: outputs };
            let close = |a: (f64, f64), b: (f64, f64)| (a.0 - b.0).abs() <= b.1;
            self.compare(&of, |r, c| (f64::from(got[r * outputs + c]), 0.0), expected, close);
        }
        Ok(())
    }

    /// Queries in place, keys and values in their slots: to the bit.
    pub(super) fn queries_keys_and_values(&mut self) -> Result<(), CudaError> {
        for (rows, depth, heads, kv_heads, dim) in [
            (1, 768, 12, 12, 64),
            (37, 256, 8, 8, 32),
            (129, 272, 6, 2, 40),
            (4090, 768, 12, 12, 64),
        ] {
            if rows * depth * (heads + 2 * kv_heads) * dim > self.max_work {
                continue;
            }
            let outputs = (heads + 2 * kv_heads) * dim;
            let x = whole(rows, depth, 8);
            let w = whole(outputs, depth, 9);
            let bias: Vec<f32> = (0..outputs).map(|c| (c % 9) as f32 - 4.0).collect();
            let map = CudaLinear::from_output_major(self.cuda, depth, outputs, &w, Some(&bias))?;
            let slots: Vec<u32> = (0..rows as u32).rev().map(|r| r + 3).collect();
            let to = CudaIndices::new(self.cuda, &slots)?;
            let transform = CudaQkvTransform { heads, qk_norms: None, rope: None };
            let mapping = CudaSlotMapping { positions: &to, slots: &to };
            let picked = picked_rows(rows);
            let sums = product(&x, &w, depth, &picked);
            for (x_there, kind) in self.operands(rows, depth, &x)? {
                let mut kv = CudaKv::new(self.cuda, 2, kv_heads, dim, rows + 5)?;
                let queries =
                    project_qkv(&x_there, &map, transform, &mut kv, 1, mapping)?.to_host()?;
                let (keys, values) = kv.to_host(1)?;
                let expected = |i: usize, c: usize| {
                    let sum = (sums[i * outputs + c] + f64::from(bias[c])) as f32;
                    match c >= heads * dim && kv.dtype() == CudaDtype::E4m3 {
                        true => e4m3::to_f32(e4m3::from_f32(sum)),
                        false => bf16::from_f32(sum).to_f32(),
                    }
                };
                let got = |r: usize, c: usize| {
                    let Some(c) = c.checked_sub(heads * dim) else {
                        return queries[r * outputs + c];
                    };
                    let head = c / dim;
                    let within = c % dim;
                    let at = |head: usize| (head * (rows + 5) + slots[r] as usize) * dim + within;
                    if head < kv_heads { keys[at(head)] } else { values[at(head - kv_heads)] }
                };
                let shape = format!("{rows} x {depth}, {heads}/{kv_heads} heads of {dim}");
                let name = format!("gemm_fp8_qkv {shape}, {kind}");
                let of = Compared { name, picked: &picked, cols: outputs };
                self.compare(&of, got, expected, |a, b| a == b);
            }
        }
        Ok(())
    }

    /// The argmax of logits with many ties, which must match exactly, and its log-probability.
    pub(super) fn greedy_tokens(&mut self) -> Result<(), CudaError> {
        for (rows, depth, vocab) in [(1, 768, 50257), (37, 144, 1003), (300, 768, 5003)] {
            if rows * depth * vocab > self.max_work {
                continue;
            }
            // Without the rows' powers of two, so that logits are integers.
            let plain = |n: usize, salt: u64| -> Vec<f32> {
                numbers(n, salt).into_iter().map(|x| (x * 1.5).round()).collect()
            };
            let x = plain(rows * depth, 10);
            let w = plain(vocab * depth, 11);
            let map = CudaLinear::from_output_major(self.cuda, depth, vocab, &w, None)?;
            let x_there = self.upload(rows, depth, &x)?.cast(CudaDtype::Bf16)?;
            let got = topk::PendingRowTokens::launch(&x_there, &map)?.read()?;
            let picked: Vec<usize> = (0..rows).filter(|r| r % 29 == 0 || r + 1 == rows).collect();
            let logits = product(&x, &w, depth, &picked);
            let expected = |i: usize, _: usize| {
                let row = &logits[i * vocab..(i + 1) * vocab];
                let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
                let token = row.iter().position(|&x| x == largest).unwrap_or(0);
                (token as u32, -sum.ln() as f32)
            };
            let same = |a: (u32, f32), b: (u32, f32)| a.0 == b.0 && (a.1 - b.1).abs() < 2e-5;
            let name = format!("gemm_fp8_argmax {rows} x {depth} -> {vocab}");
            let of = Compared { name, picked: &picked, cols: 1 };
            self.compare(&of, |r, _| got[r], expected, same);
        }
        Ok(())
    }
}
