//! Checks of rounding to e4m3, and of the scales of rows and weights.

use super::*;

impl Fp8Checks<'_> {
    /// Every bf16 number of magnitude up to 448 and NaN, in rows whose scale is 1.
    pub(super) fn rounding(&mut self) -> Result<(), CudaError> {
        let cols = 256;
        let all = (0..=u16::MAX).map(|bits| bf16::from_bits(bits).to_f32());
        let fitting: Vec<f32> = all.filter(|x| x.is_nan() || x.abs() <= e4m3::MAX).collect();
        let rows: Vec<Vec<f32>> = fitting
            .chunks(cols - 1)
            .map(|part| {
                let mut row = [&[e4m3::MAX][..], part].concat();
                row.resize(cols, 0.0);
                row
            })
            .collect();
        let count = rows.len();
        let x = rows.concat();
        let picked: Vec<usize> = (0..count).collect();
        let codes = |i: usize| e4m3::from_f32(x[i]);
        let same = |a: u8, b: u8| a == b || (a & 0x7f == 0x7f && b & 0x7f == 0x7f);
        for dtype in [CudaDtype::F32, CudaDtype::Bf16] {
            let from = self.upload(count, cols, &x)?;
            let from = from.cast_if_needed(dtype)?.unwrap_or(from);
            let one = CommonScale { scale: 1.0, max_norm: f32::INFINITY };
            for (quantized, kind) in [
                (fp8::quantize_rows(&from)?, "a scale for each row"),
                (fp8::quantize(&from, one)?, "one scale"),
            ] {
                let (got, scales) = quantized.codes_to_host()?;
                let name = format!("e4m3 of every bf16 number, from {dtype:?}, {kind}");
                let of = Compared { name: name.clone(), picked: &picked, cols };
                self.compare(&of, |r, c| got[r * cols + c], |r, c| codes(r * cols + c), same);
                let of = Compared { name: format!("{name}, scales"), picked: &picked, cols: 1 };
                self.compare(&of, |r, _| scales[r], |_, _| 1.0, |a, b| a == b);
            }
        }
        // The reverse: every code, with different scales, and with one.
        let codes: Vec<u8> = (0..8).flat_map(|_| 0..=255).collect();
        let scales: Vec<f32> = (0..8).map(|r| 2f32.powi(r - 4)).collect();
        let x = CudaTensor::from_codes(self.cuda, cols, &codes, &scales)?;
        let got = fp8::dequantize_rows(&x)?.to_host()?;
        let expected = |r: usize, c: usize| e4m3::to_f32(c as u8) * scales[r];
        let rows: Vec<usize> = (0..8).collect();
        let of = Compared { name: "dequantize_rows of every code".to_owned(), picked: &rows, cols };
        let same = |a: f32, b: f32| a == b || (a.is_nan() && b.is_nan());
        self.compare(&of, |r, c| got[r * cols + c], expected, same);
        let numbers: Vec<f32> = (0..128).map(|c| e4m3::to_f32(c) / 8.0).collect();
        let numbers: Vec<f32> = numbers.into_iter().filter(|x| !x.is_nan()).chain([0.0]).collect();
        let got = fp8::dequantize_rows(&self.scaled_operand(1, 128, &numbers)?)?.to_host()?;
        let of =
            Compared { name: "dequantize_rows, one scale".to_owned(), picked: &[0], cols: 128 };
        self.compare(&of, |_, c| got[c], |_, c| numbers[c], |a, b| a == b);
        Ok(())
    }

    /// Scales of rows of different magnitudes, including a row of zeros.
    pub(super) fn scales(&mut self) -> Result<(), CudaError> {
        for (rows, cols) in [(1, 16), (37, 48), (129, 768), (5, 2064), (3, 8192)] {
            let mut x = numbers(rows * cols, 1);
            for (r, row) in x.chunks_mut(cols).enumerate() {
                let by = if r == 2 { 0.0 } else { 3f32.powi(r as i32 % 40 - 20) };
                row.iter_mut().for_each(|x| *x = bf16::from_f32(*x * by).to_f32());
            }
            let (codes, scales) = self.operand(rows, cols, &x)?.codes_to_host()?;
            let picked: Vec<usize> = (0..rows).collect();
            let scale = |row: &[f32]| e4m3::scale_for(largest(row));
            let expected: Vec<f32> = x.chunks(cols).map(scale).collect();
            let name = format!("quantize_rows {rows} x {cols}");
            let of = Compared { name: format!("{name}, scales"), picked: &picked, cols: 1 };
            self.compare(&of, |r, _| scales[r], |r, _| expected[r], |a, b| a == b);
            let code = |r: usize, c: usize| e4m3::from_f32(x[r * cols + c] / expected[r]);
            let of = Compared { name, picked: &picked, cols };
            self.compare(&of, |r, c| codes[r * cols + c], code, |a, b| a == b);
        }
        Ok(())
    }

    /// The scale of a map's weights, their largest norm, and their codes.
    pub(super) fn scales_of_weights(&mut self) -> Result<(), CudaError> {
        for (outputs, inputs) in [(8, 16), (200, 144), (129, 768), (5, 8192)] {
            let mut w = numbers(outputs * inputs, 25);
            for (r, row) in w.chunks_mut(inputs).enumerate() {
                let by = 3f32.powi(r as i32 % 5 - 2);
                row.iter_mut().for_each(|x| *x = bf16::from_f32(*x * by).to_f32());
            }
            let map = CudaLinear::from_output_major(self.cuda, inputs, outputs, &w, None)?;
            let Some(weights) = map.fp8() else { panic!("{inputs} inputs are whole groups") };
            let by = weights.scale;
            let expected = common_scale(inputs, &w);
            let close = (by.max_norm - expected.max_norm).abs() <= 1e-5 * expected.max_norm;
            let name = format!("weights {outputs} x {inputs}");
            let good = by.scale == expected.scale && close;
            self.line(&format!("{name}, scale"), good, format!("{by:?}, should be {expected:?}"));
            let codes = weights.matrix.codes_to_host()?.0;
            let picked = picked_rows(outputs);
            let code = |i: usize, c: usize| e4m3::from_f32(w[picked[i] * inputs + c] / by.scale);
            let of = Compared { name, picked: &picked, cols: inputs };
            self.compare(&of, |r, c| codes[r * inputs + c], code, |a, b| a == b);
        }
        Ok(())
    }
}
