//! Checks of norms, SwiGLU, and maps that are fused with the residual stream.

use super::*;

impl Fp8Checks<'_> {
    /// Compares a norm's e4m3 results with those in f32 (rows, cols), of which they should be the
    /// rounding: each within half a step, and within the bounds implied by its scale.
    fn compare_rounded(
        &mut self,
        name: &str,
        got: &CudaTensor,
        exact: &[f32],
    ) -> Result<(), CudaError> {
        let rows = got.rows();
        let cols = got.cols();
        assert_eq!(got.dtype(), CudaDtype::E4m3, "{name} writes e4m3");
        let Some(by) = got.common_scale() else { panic!("{name} writes rows of one scale") };
        let found = got.to_host()?;
        let picked = (0..rows).collect::<Vec<_>>();
        let needed = common_scale(cols, exact);
        let largest = largest(exact);
        let good = needed.scale <= by.scale && needed.max_norm <= by.max_norm * 1.000_01;
        self.line(&format!("{name}, bounds"), good, format!("{needed:?} within {by:?}"));
        let expected = |r: usize, c: usize| {
            let x = f64::from(exact[r * cols + c]);
            (x, 1.001 * half_step(x, by.scale) + 1e-6 * f64::from(largest))
        };
        let of = Compared { name: name.to_owned(), picked: &picked, cols };
        let close = |a: (f64, f64), b: (f64, f64)| (a.0 - b.0).abs() <= b.1;
        self.compare(&of, |r, c| (f64::from(found[r * cols + c]), 0.0), expected, close);
        Ok(())
    }

    /// Compares `add_norm_*_2` in e4m3 with that in f32, whose other checks are in `cuda_check`:
    /// the stream to the bit, the norm to half a step.
    pub(super) fn norms(&mut self) -> Result<(), CudaError> {
        for (rows, cols) in [
            (1, 16),
            (37, 752),
            (129, 768),
            (4090, 768),
            (33, 1024),
            (37, 2048),
            (3, 5120),
            (2, 16384),
        ] {
            let start = numbers(rows * cols, 12);
            let y = numbers(rows * cols, 13);
            let bias = numbers(cols, 14);
            let scale = numbers(cols, 15);
            let shift = numbers(cols, 16);
            let y = self.upload(rows, cols, &y)?.cast(CudaDtype::Bf16)?;
            let bias = DeviceBuffer::upload(self.cuda, &bias)?;
            let perturbed = CudaPerturbedRows::new(self.cuda, &dropout_rows(rows))?;
            let mask = CudaDropoutMask::Sampled { layer: 5, site: Site::MlpOut, rows: &perturbed };
            for is_rms in [false, true] {
                let by = match is_rms {
                    true => CudaNorm::rms(self.cuda, 1e-6, &scale)?,
                    false => CudaNorm::layer(self.cuda, 1e-5, &scale, &shift)?,
                };
                let addend = ResidualAddend { y: &y, bias: Some(&bias), mask: Some(mask) };
                let mut streams =
                    [self.upload(rows, cols, &start)?, self.upload(rows, cols, &start)?];
                let [exact_stream, stream] = &mut streams;
                let exact = add_norm(exact_stream, addend, &by, CudaDtype::F32)?.to_host()?;
                let got = add_norm(stream, addend, &by, CudaDtype::E4m3)?;
                let kind = if is_rms { "rms" } else { "layer" };
                let name = format!("add_norm of e4m3 {rows} x {cols} {kind}");
                let before = streams[0].to_host()?;
                let after = streams[1].to_host()?;
                let picked: Vec<usize> = (0..rows).collect();
                let of = Compared { name: format!("{name}, stream"), picked: &picked, cols };
                let at = |x: &[f32], r: usize, c: usize| x[r * cols + c];
                self.compare(&of, |r, c| at(&after, r, c), |r, c| at(&before, r, c), |a, b| a == b);
                self.compare_rounded(&name, &got, &exact)?;
            }
        }
        Ok(())
    }

    /// `add_norm_*_0` and `_1` in e4m3: plain norms, and learned positions.
    pub(super) fn positions_and_plain_norms(&mut self) -> Result<(), CudaError> {
        for (rows, cols) in [(37, 768), (129, 2048), (3, 4096)] {
            let x = self.upload(rows, cols, &numbers(rows * cols, 17))?;
            let by = CudaNorm::layer(self.cuda, 1e-5, &numbers(cols, 18), &numbers(cols, 19))?;
            let exact = norm(&x, &by, CudaDtype::F32)?.to_host()?;
            let got = norm(&x, &by, CudaDtype::E4m3)?;
            self.compare_rounded(&format!("norm of e4m3 {rows} x {cols}"), &got, &exact)?;
            let context = 40;
            let table = self.upload(context, cols, &numbers(context * cols, 20))?;
            let places: Vec<u32> = (0..rows as u32).map(|r| r * 7 % context as u32).collect();
            let positions = CudaIndices::new(self.cuda, &places)?;
            let learned = Some(CudaLearnedPositions { table: &table, positions: &positions });
            let exact_sum = x.uninit_like()?;
            let sum = x.uninit_like()?;
            let exact =
                add_positions_norm(&x, &exact_sum, learned, &by, CudaDtype::F32)?.to_host()?;
            let got = add_positions_norm(&x, &sum, learned, &by, CudaDtype::E4m3)?;
            let name = format!("add_positions_norm of e4m3 {rows} x {cols}");
            let same = exact_sum.to_host()? == sum.to_host()?;
            self.line(&format!("{name}, stream"), same, format!("equal: {same}"));
            self.compare_rounded(&name, &got, &exact)?;
        }
        Ok(())
    }

    /// Compares with the rounding of `swiglu`'s bf16 results, except for their last digit.
    pub(super) fn swiglu(&mut self) -> Result<(), CudaError> {
        for (rows, n) in [(1, 16), (37, 208), (129, 3072), (65, 8192), (2, 16384)] {
            let gates: Vec<f32> = numbers(rows * 2 * n, 21);
            let x = self.upload(rows, 2 * n, &gates)?.cast(CudaDtype::Bf16)?;
            let rounded = x.to_host()?;
            let got = activation::swiglu(self.cuda, &x)?;
            let name = format!("swiglu_fp8 {rows} x {n}");
            assert_eq!(got.dtype(), CudaDtype::E4m3, "{name} writes e4m3");
            let (_, scales) = got.codes_to_host()?;
            let one = |r: usize, c: usize| {
                let at = |c: usize| f64::from(rounded[r * 2 * n + c]);
                at(c) / (1.0 + (-at(c)).exp()) * at(n + c)
            };
            let found = got.to_host()?;
            let picked = (0..rows).collect::<Vec<_>>();
            let expected = |r: usize, c: usize| {
                let x = one(r, c);
                (x, 1.01 * half_step(x, scales[r]) + x.abs() / 256.0)
            };
            let of = Compared { name: name.clone(), picked: &picked, cols: n };
            let close = |a: (f64, f64), b: (f64, f64)| (a.0 - b.0).abs() <= b.1;
            self.compare(&of, |r, c| (f64::from(found[r * n + c]), 0.0), expected, close);
            let largest = |r: usize| (0..n).fold(0.0f64, |m, c| m.max(one(r, c).abs())) as f32;
            let scale = |r: usize| {
                (e4m3::scale_for(largest(r) * 0.996), e4m3::scale_for(largest(r) * 1.004))
            };
            let near = |a: (f32, f32), b: (f32, f32)| a.0 == b.0 || a.0 == b.1;
            let of = Compared { name: format!("{name}, scales"), picked: &picked, cols: 1 };
            self.compare(&of, |r, _| (scales[r], 0.0), |r, _| scale(r), near);
        }
        Ok(())
    }

    /// Attention's result added to the stream: with 768 outputs as bf16, with 2048 rounded to e4m3
    /// first; and the MLP's result, which is e4m3. Integers: the stream is exact except for bf16
    /// rounding, which fused kernels do not have. Results in all dtypes are compared with the norm
    /// of the stream.
    pub(super) fn residual(&mut self) -> Result<(), CudaError> {
        for (rows, depth, width, is_e4m3) in [
            (37, 768, 768, false),
            (4090, 768, 768, false),
            (129, 2048, 2048, false),
            (1, 144, 768, true),
            (129, 3072, 768, true),
            (4090, 3072, 768, true),
            (1, 8192, 2048, true),
        ] {
            if rows * depth * width > self.max_work {
                continue;
            }
            let x = whole(rows, depth, 22);
            let w = whole(width, depth, 23);
            let bias: Vec<f32> = (0..width).map(|c| (c % 3) as f32).collect();
            let map = CudaLinear::from_output_major(self.cuda, depth, width, &w, Some(&bias))?;
            let scale = numbers(width, 26);
            let shift = numbers(width, 27);
            let by = CudaNorm::layer(self.cuda, 1e-5, &scale, &shift)?;
            let x_there = match is_e4m3 {
                true => self.scaled_operand(rows, depth, &x)?,
                false => self.upload(rows, depth, &x)?.cast(CudaDtype::Bf16)?,
            };
            let picked = picked_rows(rows);
            let sums = product(&x, &w, depth, &picked);
            for dtype in [CudaDtype::E4m3, CudaDtype::Bf16, CudaDtype::F32] {
                let mut stream = CudaTensor::zeros(self.cuda, rows, width, CudaDtype::F32)?;
                let of =
                    CudaLinearResidualNorm { x: &x_there, map: &map, mask: None, norm: &by, dtype };
                let is_fused = select_kernel(&of).is_some();
                let normed = linear_residual_norm(of, &mut stream)?;
                let exact = norm(&stream, &by, CudaDtype::F32)?.to_host()?;
                let expected = |i: usize, c: usize| {
                    let sum = sums[i * width + c] as f32;
                    bias[c] + if is_fused { sum } else { bf16::from_f32(sum).to_f32() }
                };
                let shape = format!("{rows} x {depth} -> {width}");
                let kind = format!("e4m3 {is_e4m3} to {dtype:?}, fused {is_fused}");
                let name = format!("residual fp8 {shape}, {kind}");
                let got = stream.to_host()?;
                let of = Compared { name: format!("{name}, stream"), picked: &picked, cols: width };
                self.compare(&of, |r, c| got[r * width + c], expected, |a, b| a == b);
                if dtype == CudaDtype::E4m3 {
                    self.compare_rounded(&name, &normed, &exact)?;
                    continue;
                }
                let got = normed.to_host()?;
                let step = 2f32.powi(-8);
                let tolerance = |x: f32| match dtype {
                    CudaDtype::Bf16 => step * x.abs() + 1e-5,
                    _ => 1e-5 * (1.0 + x.abs()),
                };
                let of = Compared { name, picked: &picked, cols: width };
                let should = |i: usize, c: usize| exact[picked[i] * width + c];
                let close = |a: f32, b: f32| (a - b).abs() <= tolerance(b);
                self.compare(&of, |r, c| got[r * width + c], should, close);
            }
        }
        self.fused_dropout()?;
        // A table of an fp8 device is read as bf16.
        let table = numbers(64 * 48, 24);
        let map = CudaLinear::from_output_major(self.cuda, 48, 64, &table, None)?;
        let tokens = CudaIndices::new(self.cuda, &[63, 0, 7])?;
        let got = embedding::lookup(&map, &tokens)?.to_host()?;
        let expected = [63, 0, 7].map(|t| &table[t * 48..(t + 1) * 48]).concat();
        let same = got.iter().zip(&expected).all(|(a, b)| *a == bf16::from_f32(*b).to_f32());
        self.line("lookup on an fp8 device", same, "rows of bf16".to_owned());
        Ok(())
    }

    /// Compares dropout in the fused kernels with a product in f32 and `add_norm`, added to a
    /// stream that is not zero, with either norm.
    fn fused_dropout(&mut self) -> Result<(), CudaError> {
        let width = 768;
        for (rows, depth, is_e4m3, is_rms) in [
            (129, 768, false, false),
            (4090, 768, false, false),
            (129, 1024, true, false),
            (4090, 3072, true, true),
        ] {
            if rows * depth * width > self.max_work {
                continue;
            }
            let x = whole(rows, depth, 28);
            let w = whole(width, depth, 29);
            let bias: Vec<f32> = (0..width).map(|c| (c % 3) as f32).collect();
            let map = CudaLinear::from_output_major(self.cuda, depth, width, &w, Some(&bias))?;
            let by = match is_rms {
                true => CudaNorm::rms(self.cuda, 1e-6, &numbers(width, 26))?,
                false => {
                    CudaNorm::layer(self.cuda, 1e-5, &numbers(width, 26), &numbers(width, 27))?
                }
            };
            let bf16 = self.upload(rows, depth, &x)?.cast(CudaDtype::Bf16)?;
            let operand = is_e4m3.then(|| self.scaled_operand(rows, depth, &x)).transpose()?;
            let perturbed = CudaPerturbedRows::new(self.cuda, &dropout_rows(rows))?;
            let mask =
                Some(CudaDropoutMask::Sampled { layer: 5, site: Site::MlpOut, rows: &perturbed });
            let start = numbers(rows * width, 30);
            let mut streams =
                [self.upload(rows, width, &start)?, self.upload(rows, width, &start)?];
            let [exact_stream, stream] = &mut streams;
            let y = matmul(&bf16, &map, CudaDtype::F32)?;
            let addend = ResidualAddend { y: &y, bias: map.padded_bias(), mask };
            let exact = add_norm(exact_stream, addend, &by, CudaDtype::F32)?.to_host()?;
            let x = operand.as_ref().unwrap_or(&bf16);
            let dtype = CudaDtype::E4m3;
            let of = CudaLinearResidualNorm { x, map: &map, mask, norm: &by, dtype };
            let Some(kernel) = select_kernel(&of) else { continue };
            let got = linear_residual_norm(of, stream)?;
            let name = format!("{kernel} {rows} x {depth} with dropout, rms {is_rms}");
            let before = streams[0].to_host()?;
            let after = streams[1].to_host()?;
            let picked: Vec<usize> = (0..rows).collect();
            let of = Compared { name: format!("{name}, stream"), picked: &picked, cols: width };
            let at = |x: &[f32], r: usize, c: usize| x[r * width + c];
            let near = |a: f32, b: f32| (a - b).abs() <= 1e-6 * (1.0 + b.abs());
            self.compare(&of, |r, c| at(&after, r, c), |r, c| at(&before, r, c), near);
            self.compare_rounded(&name, &got, &exact)?;
        }
        Ok(())
    }
}
