//! Every fp8 kernel against the host's e4m3: for the tests of this crate, and for `cuda_check`,
//! which includes this file.
//!
//! Most comparisons are exact. Products of small whole numbers have sums that the tensor cores keep
//! whole, and scales are powers of two; so a wrong layout, scale or address is a wrong number, and
//! a check names the first one. Products of arbitrary numbers measure what the tensor cores' sums
//! of about 14 bits cost.

use half::bf16;

use crate::cuda::args::{
    CudaDropoutMask, CudaLearnedPositions, CudaLinearResidualNorm, CudaQkvTransform,
    CudaSlotMapping, ResidualAddend,
};
use crate::cuda::attention::CudaKv;
use crate::cuda::dropout::CudaPerturbedRows;
use crate::cuda::linear::{CudaLinear, linear, matmul};
use crate::cuda::memory::{CommonScale, DeviceBuffer};
use crate::cuda::norm::{CudaNorm, add_norm, add_positions_norm, norm};
use crate::cuda::qkv::project_qkv;
use crate::cuda::residual::{linear_residual_norm, select_kernel};
use crate::cuda::{
    CudaDevice, CudaDtype, CudaError, CudaIndices, CudaTensor, activation, e4m3, embedding, fp8,
    topk,
};
use crate::params::{Activation, RowPerturbation, SiteSet};
use crate::rng::{RngKey, Site};

/// What a check found.
pub(crate) struct Fp8CheckLine {
    pub(crate) name: String,
    pub(crate) good: bool,
    pub(crate) what: String,
}

/// The lines of all checks on a device of precision fp8; if `small`, without large products.
pub(crate) fn all(cuda: &CudaDevice, small: bool) -> Result<Vec<Fp8CheckLine>, CudaError> {
    let max_work = if small { SMALL_WORK } else { usize::MAX };
    let mut checks = Fp8Checks { cuda, max_work, lines: Vec::new() };
    checks.rounding()?;
    checks.scales()?;
    checks.scales_of_weights()?;
    checks.exact_products()?;
    checks.rounded_products()?;
    checks.gelu()?;
    checks.gelu_without_a_bound()?;
    checks.queries_keys_and_values()?;
    checks.greedy_tokens()?;
    checks.norms()?;
    checks.positions_and_plain_norms()?;
    checks.swiglu()?;
    checks.residual()?;
    Ok(checks.lines)
}

/// Multiply-adds of a small product, at most.
const SMALL_WORK: usize = 1 << 24;

struct Fp8Checks<'a> {
    cuda: &'a CudaDevice,
    /// Products of more multiply-adds are left out.
    max_work: usize,
    lines: Vec<Fp8CheckLine>,
}

/// Gaussian numbers, a function of the salt.
fn numbers(n: usize, salt: u64) -> Vec<f32> {
    let mut x = vec![0.0; n];
    for (i, part) in x.chunks_mut(4096).enumerate() {
        let key = RngKey { seed: salt, question: i as u32, trajectory: 1, position: 0 };
        key.add_noise(1.0, part);
    }
    x
}

/// Whole numbers from -2 to 2, the first of each row 2, times a power of two for each row.
fn whole(rows: usize, cols: usize, salt: u64) -> Vec<f32> {
    let clipped = |x: f32| x.round().clamp(-2.0, 2.0);
    let mut x: Vec<f32> = numbers(rows * cols, salt).into_iter().map(clipped).collect();
    for (r, row) in x.chunks_mut(cols).enumerate() {
        row[0] = 2.0;
        let by = 2f32.powi((r * 7 % 11) as i32 - 5);
        row.iter_mut().for_each(|x| *x *= by);
    }
    x
}

/// The rows of a product that are computed on the host: all of few; of many those at both ends of
/// tiles, of halves of tiles and of warps' rows, and some between.
fn picked_rows(rows: usize) -> Vec<usize> {
    let edges = |r: usize| [0, 7, 8, 15, 16, 63, 64, 127].contains(&(r % 128));
    let chosen =
        |r: &usize| rows <= 40 || (*r < 300 && edges(*r)) || r.is_multiple_of(211) || r + 3 > rows;
    (0..rows).filter(chosen).collect()
}

/// `x W^T` of some rows in f64: x is (rows, depth), w (outputs, depth).
fn product(x: &[f32], w: &[f32], depth: usize, picked: &[usize]) -> Vec<f64> {
    let row = |r: &usize| {
        let x = &x[r * depth..(r + 1) * depth];
        let dot = |w: &[f32]| x.iter().zip(w).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        w.chunks(depth).map(dot).collect::<Vec<f64>>()
    };
    picked.iter().flat_map(row).collect()
}

/// The least scale of rows (rows, cols), and their largest norm.
fn common_scale(cols: usize, x: &[f32]) -> CommonScale {
    let norm = |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let max_norm = x.chunks(cols).map(norm).fold(0.0, f64::max) as f32;
    CommonScale { scale: e4m3::scale_for(largest(x)), max_norm }
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |m, x| m.max(x.abs()))
}

/// Half of the distance between the numbers of e4m3 around x / scale, times the scale.
fn half_step(x: f64, scale: f32) -> f64 {
    let magnitude = (x / f64::from(scale)).abs().max(f64::MIN_POSITIVE);
    let exponent = magnitude.log2().floor().max(-6.0);
    f64::from(scale) * 2f64.powf(exponent - 4.0)
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh())
}

/// Perturbations of most rows at both sites of dropout.
fn dropout_rows(rows: usize) -> Vec<Option<RowPerturbation>> {
    let key = |r: usize| RngKey { seed: 9, question: 3, trajectory: r as u32, position: 70 };
    let row = |r: usize| RowPerturbation { key: key(r), strength: 0.3, sites: SiteSet::DROPOUT };
    (0..rows).map(|r| (r % 5 != 3).then(|| row(r))).collect()
}

/// Results and what they should be, of some rows of a matrix.
struct Compared<'a> {
    name: String,
    picked: &'a [usize],
    cols: usize,
}

impl Fp8Checks<'_> {
    fn line(&mut self, name: &str, good: bool, what: String) {
        self.lines.push(Fp8CheckLine { name: name.to_owned(), good, what });
    }

    /// Compares elements (picked rows, cols) by `is_right`, and names the first that is wrong and
    /// what all that are have in common.
    fn compare<T: Copy + std::fmt::Debug>(
        &mut self,
        of: &Compared<'_>,
        got: impl Fn(usize, usize) -> T,
        expected: impl Fn(usize, usize) -> T,
        is_right: impl Fn(T, T) -> bool,
    ) {
        let (mut wrong, mut first) = (0, None);
        let (mut rows, mut cols) = ((usize::MAX, 0), (usize::MAX, 0));
        for (i, &r) in of.picked.iter().enumerate() {
            for c in 0..of.cols {
                let (found, should) = (got(r, c), expected(i, c));
                if !is_right(found, should) {
                    wrong += 1;
                    first.get_or_insert((r, c, found, should));
                    (rows, cols) = ((rows.0.min(r), rows.1.max(r)), (cols.0.min(c), cols.1.max(c)));
                }
            }
        }
        let all = of.picked.len() * of.cols;
        let what = match first {
            None => format!("{all} right"),
            Some((r, c, found, should)) => format!(
                "{wrong} of {all} wrong, in rows {} to {} and columns {} to {}; the first: row {r} \
                 (tile row {}), column {c} (tile column {}): {found:?}, should be {should:?}",
                rows.0,
                rows.1,
                cols.0,
                cols.1,
                r % 128,
                c % 192,
            ),
        };
        self.line(&of.name, wrong == 0, what);
    }

    /// Root mean square and largest of errors relative to the root mean square of what is expected.
    fn measure(&mut self, name: &str, errors: &[f64], rms: f64, tolerance: f64) {
        let mean = (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt() / rms;
        let largest = errors.iter().fold(0.0f64, |m, e| m.max(e.abs())) / rms;
        let good = mean <= tolerance && largest <= 12.0 * tolerance; // not if NaN
        let what = format!("error {mean:.1e} of {tolerance:.0e}, largest {largest:.1e}");
        self.line(name, good, what);
    }

    fn upload(&self, rows: usize, cols: usize, x: &[f32]) -> Result<CudaTensor, CudaError> {
        CudaTensor::from_host(self.cuda, rows, cols, x)
    }

    /// As e4m3 with a scale for each row, through bf16 as activations are.
    fn operand(&self, rows: usize, cols: usize, x: &[f32]) -> Result<CudaTensor, CudaError> {
        fp8::quantize_rows(&self.upload(rows, cols, x)?.cast(CudaDtype::Bf16)?)
    }

    /// As e4m3 with one scale, as norms' results are.
    fn scaled_operand(&self, rows: usize, cols: usize, x: &[f32]) -> Result<CudaTensor, CudaError> {
        let by = common_scale(cols, x);
        fp8::quantize(&self.upload(rows, cols, x)?.cast(CudaDtype::Bf16)?, by)
    }

    /// Both kinds of operands, and how they are called.
    fn operands(
        &self,
        rows: usize,
        cols: usize,
        x: &[f32],
    ) -> Result<[(CudaTensor, &'static str); 2], CudaError> {
        let (of_rows, of_all) = (self.operand(rows, cols, x)?, self.scaled_operand(rows, cols, x)?);
        Ok([(of_rows, "a scale for each row"), (of_all, "one scale")])
    }

    /// Every bf16 number of a magnitude up to 448 and NaN, in rows whose scale is 1.
    fn rounding(&mut self) -> Result<(), CudaError> {
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
        let (count, x) = (rows.len(), rows.concat());
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
        // Back: every code, with different scales, and with one.
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

    /// Scales of rows of different sizes, among them one of zeros.
    fn scales(&mut self) -> Result<(), CudaError> {
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

    /// The one scale of a map's weights, their largest norm, and their codes.
    fn scales_of_weights(&mut self) -> Result<(), CudaError> {
        for (outputs, inputs) in [(8, 16), (200, 144), (129, 768), (5, 8192)] {
            let mut w = numbers(outputs * inputs, 25);
            for (r, row) in w.chunks_mut(inputs).enumerate() {
                let by = 3f32.powi(r as i32 % 5 - 2);
                row.iter_mut().for_each(|x| *x = bf16::from_f32(*x * by).to_f32());
            }
            let map = CudaLinear::from_output_major(self.cuda, inputs, outputs, &w, None)?;
            let Some(weights) = map.fp8() else { panic!("{inputs} inputs are whole groups") };
            let (by, expected) = (weights.scale, common_scale(inputs, &w));
            let close = (by.max_norm - expected.max_norm).abs() <= 1e-5 * expected.max_norm;
            let name = format!("weights {outputs} x {inputs}");
            let good = by.scale == expected.scale && close;
            self.line(&format!("{name}, scale"), good, format!("{by:?}, should be {expected:?}"));
            let (codes, picked) = (weights.matrix.codes_to_host()?.0, picked_rows(outputs));
            let code = |i: usize, c: usize| e4m3::from_f32(w[picked[i] * inputs + c] / by.scale);
            let of = Compared { name, picked: &picked, cols: inputs };
            self.compare(&of, |r, c| codes[r * inputs + c], code, |a, b| a == b);
        }
        Ok(())
    }

    /// STORE with whole numbers: to the bit, with and without a bias, from one row on, at depths
    /// and outputs that end inside of a tile.
    fn exact_products(&mut self) -> Result<(), CudaError> {
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
            let (x, w) = (whole(rows, depth, 2), whole(outputs, depth, 3));
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

    /// STORE with Gaussian numbers against exact sums of the same codes: bf16's rounding (1.1e-3 of
    /// the root mean square) and that of the tensor cores' sums.
    fn rounded_products(&mut self) -> Result<(), CudaError> {
        for (rows, depth, outputs, tolerance) in
            [(129, 768, 2304, 3e-3), (129, 3072, 768, 5e-3), (129, 8192, 2048, 8e-3)]
        {
            if rows * depth * outputs > self.max_work {
                continue;
            }
            let (x, w) = (numbers(rows * depth, 4), numbers(outputs * depth, 5));
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

    /// The results' scale, each result to half a step and what f16 is off by.
    fn gelu(&mut self) -> Result<(), CudaError> {
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
            let (bounds, picked) = (common_scale(depth, &x), picked_rows(rows));
            let bound = 1.13 * bounds.max_norm * common_scale(depth, &w).max_norm + largest(&bias);
            let name = format!("gemm_fp8_gelu {rows} x {depth} -> {outputs}");
            // The bound may be the last digit's rounding away from the next power of two.
            let near = [0.999_99, 1.000_01].map(|by| e4m3::scale_for(bound * by));
            let scale = out.common_scale().map_or(f32::NAN, |by| by.scale);
            let what = format!("{scale}, should be of {near:?}");
            self.line(&format!("{name}, scale"), near.contains(&scale), what);
            let (sums, got) = (product(&x, &w, depth, &picked), out.to_host()?);
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

    /// Weights so large that results might leave f16's range, and rows with a scale for each: GELU
    /// is computed in f32.
    fn gelu_without_a_bound(&mut self) -> Result<(), CudaError> {
        let (rows, depth, outputs) = (37, 144, 208);
        let x: Vec<f32> = whole(rows, depth, 6).iter().map(|x| x / 64.0).collect();
        let w: Vec<f32> = whole(outputs, depth, 7).iter().map(|x| x * 64.0).collect();
        let map = CudaLinear::from_output_major(self.cuda, depth, outputs, &w, None)?;
        let picked = picked_rows(rows);
        let sums = product(&x, &w, depth, &picked);
        for (x_there, kind) in self.operands(rows, depth, &x)? {
            assert!(fp8::gelu_scale(&x_there, &map).is_none(), "such results fit f16");
            let out = linear(&x_there, &map, Activation::GeluTanh, CudaDtype::E4m3)?;
            let (scales, got) = (out.codes_to_host()?.1, out.to_host()?);
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
    fn queries_keys_and_values(&mut self) -> Result<(), CudaError> {
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
            let (x, w) = (whole(rows, depth, 8), whole(outputs, depth, 9));
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
                    let (head, within) = (c / dim, c % dim);
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

    /// The argmax of logits with many ties, to the token; its log-probability.
    fn greedy_tokens(&mut self) -> Result<(), CudaError> {
        for (rows, depth, vocab) in [(1, 768, 50257), (37, 144, 1003), (300, 768, 5003)] {
            if rows * depth * vocab > self.max_work {
                continue;
            }
            // Without the rows' powers of two, so that logits are whole numbers.
            let plain = |n: usize, salt: u64| -> Vec<f32> {
                numbers(n, salt).into_iter().map(|x| (x * 1.5).round()).collect()
            };
            let (x, w) = (plain(rows * depth, 10), plain(vocab * depth, 11));
            let map = CudaLinear::from_output_major(self.cuda, depth, vocab, &w, None)?;
            let x_there = self.upload(rows, depth, &x)?.cast(CudaDtype::Bf16)?;
            let got = topk::PendingArgmax::launch(&x_there, &map)?.read()?;
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

    /// Compares a norm's results as e4m3 with those in f32 (rows, cols) that they should be the
    /// rounding of: each within half a step, and within the bounds that its scale stands for.
    fn compare_rounded(
        &mut self,
        name: &str,
        got: &CudaTensor,
        exact: &[f32],
    ) -> Result<(), CudaError> {
        let (rows, cols) = (got.rows(), got.cols());
        assert_eq!(got.dtype(), CudaDtype::E4m3, "{name} writes e4m3");
        let Some(by) = got.common_scale() else { panic!("{name} writes rows of one scale") };
        let (found, picked) = (got.to_host()?, (0..rows).collect::<Vec<_>>());
        let (needed, largest) = (common_scale(cols, exact), largest(exact));
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

    /// `add_norm_*_2` of e4m3 against that in f32, whose other checks are `cuda_check`'s: the
    /// stream to the bit, the norm to half a step.
    fn norms(&mut self) -> Result<(), CudaError> {
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
            let (start, y) = (numbers(rows * cols, 12), numbers(rows * cols, 13));
            let (bias, scale, shift) = (numbers(cols, 14), numbers(cols, 15), numbers(cols, 16));
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
                let (before, after) = (streams[0].to_host()?, streams[1].to_host()?);
                let picked: Vec<usize> = (0..rows).collect();
                let of = Compared { name: format!("{name}, stream"), picked: &picked, cols };
                let at = |x: &[f32], r: usize, c: usize| x[r * cols + c];
                self.compare(&of, |r, c| at(&after, r, c), |r, c| at(&before, r, c), |a, b| a == b);
                self.compare_rounded(&name, &got, &exact)?;
            }
        }
        Ok(())
    }

    /// `add_norm_*_0` and `_1` of e4m3: plain norms, and learned positions.
    fn positions_and_plain_norms(&mut self) -> Result<(), CudaError> {
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
            let (exact_sum, sum) = (x.uninit_like()?, x.uninit_like()?);
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

    /// Against the rounding of `swiglu`'s own bf16 results, but for the last digit of these.
    fn swiglu(&mut self) -> Result<(), CudaError> {
        for (rows, n) in [(1, 16), (37, 208), (129, 3072), (65, 8192), (2, 16384)] {
            let gates: Vec<f32> = numbers(rows * 2 * n, 21);
            let x = self.upload(rows, 2 * n, &gates)?.cast(CudaDtype::Bf16)?;
            let (rounded, got) = (x.to_host()?, activation::swiglu(self.cuda, &x)?);
            let name = format!("swiglu_fp8 {rows} x {n}");
            assert_eq!(got.dtype(), CudaDtype::E4m3, "{name} writes e4m3");
            let (_, scales) = got.codes_to_host()?;
            let one = |r: usize, c: usize| {
                let at = |c: usize| f64::from(rounded[r * 2 * n + c]);
                at(c) / (1.0 + (-at(c)).exp()) * at(n + c)
            };
            let (found, picked) = (got.to_host()?, (0..rows).collect::<Vec<_>>());
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

    /// Attention's result into the stream: of 768 outputs as bf16, of 2048 rounded to e4m3 first;
    /// and the MLP's, which is e4m3. Whole numbers: the stream is exact but for bf16's rounding,
    /// which fused kernels do not have. Results in all dtypes, against the norm of the stream.
    fn residual(&mut self) -> Result<(), CudaError> {
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
            let (x, w) = (whole(rows, depth, 22), whole(width, depth, 23));
            let bias: Vec<f32> = (0..width).map(|c| (c % 3) as f32).collect();
            let map = CudaLinear::from_output_major(self.cuda, depth, width, &w, Some(&bias))?;
            let (scale, shift) = (numbers(width, 26), numbers(width, 27));
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
                let (is_fused, normed) =
                    (select_kernel(&of).is_some(), linear_residual_norm(of, &mut stream)?);
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
                let (got, step) = (normed.to_host()?, 2f32.powi(-8));
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

    /// Dropout in the fused kernels against a product in f32 and `add_norm`, into a stream that is
    /// not empty, with either norm.
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
            let (x, w) = (whole(rows, depth, 28), whole(width, depth, 29));
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
            let (x, dtype) = (operand.as_ref().unwrap_or(&bf16), CudaDtype::E4m3);
            let of = CudaLinearResidualNorm { x, map: &map, mask, norm: &by, dtype };
            let Some(kernel) = select_kernel(&of) else { continue };
            let got = linear_residual_norm(of, stream)?;
            let name = format!("{kernel} {rows} x {depth} with dropout, rms {is_rms}");
            let (before, after) = (streams[0].to_host()?, streams[1].to_host()?);
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
