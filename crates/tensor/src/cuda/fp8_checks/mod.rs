//! Compares every fp8 kernel with e4m3 on the host: for the tests of this crate, and for
//! `cuda_check`, which includes this directory. This file contains the shared parts; the checks are
//! in one file per family.
//!
//! Most comparisons are exact. The tensor cores compute sums of products of small integers exactly,
//! and scales are powers of two; so a wrong layout, scale or address yields a wrong number, and a
//! check reports the first one. Products of arbitrary numbers measure the error of the tensor
//! cores' sums of about 14 bits.

mod norms;
mod products;
mod rounding;

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

/// The result of a check.
pub(crate) struct Fp8CheckLine {
    pub(crate) name: String,
    pub(crate) good: bool,
    pub(crate) what: String,
}

/// The results of all checks on a device of precision fp8; if `small`, without large products.
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

/// Maximum multiply-adds of a small product.
const SMALL_WORK: usize = 1 << 24;

struct Fp8Checks<'a> {
    cuda: &'a CudaDevice,
    /// Products with more multiply-adds are skipped.
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

/// Integers from -2 to 2, the first of each row 2, times a power of two per row.
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

/// The rows of a product that are computed on the host: all if there are few; otherwise those at
/// both ends of tiles, of halves of tiles and of warps' rows, and some between.
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

/// The smallest scale of rows (rows, cols), and their largest norm.
fn common_scale(cols: usize, x: &[f32]) -> CommonScale {
    let norm = |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let max_norm = x.chunks(cols).map(norm).fold(0.0, f64::max) as f32;
    CommonScale { scale: e4m3::scale_for(largest(x)), max_norm }
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |m, x| m.max(x.abs()))
}

/// Half of the distance between adjacent e4m3 numbers around x / scale, times the scale.
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

/// Actual and expected results of some rows of a matrix.
struct Compared<'a> {
    name: String,
    picked: &'a [usize],
    cols: usize,
}

impl Fp8Checks<'_> {
    fn line(&mut self, name: &str, good: bool, what: String) {
        self.lines.push(Fp8CheckLine { name: name.to_owned(), good, what });
    }

    /// Compares elements (picked rows, cols) by `is_right`, and reports the first wrong one and the
    /// common range of all wrong ones.
    fn compare<T: Copy + std::fmt::Debug>(
        &mut self,
        of: &Compared<'_>,
        got: impl Fn(usize, usize) -> T,
        expected: impl Fn(usize, usize) -> T,
        is_right: impl Fn(T, T) -> bool,
    ) {
        let mut wrong = 0;
        let mut first = None;
        let mut rows = (usize::MAX, 0);
        let mut cols = (usize::MAX, 0);
        for (i, &r) in of.picked.iter().enumerate() {
            for c in 0..of.cols {
                let found = got(r, c);
                let should = expected(i, c);
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

    /// Root mean square and maximum of errors relative to the root mean square of the expected
    /// values.
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

    /// As e4m3 with a scale per row, through bf16 like activations.
    fn operand(&self, rows: usize, cols: usize, x: &[f32]) -> Result<CudaTensor, CudaError> {
        fp8::quantize_rows(&self.upload(rows, cols, x)?.cast(CudaDtype::Bf16)?)
    }

    /// As e4m3 with one scale, like the results of norms.
    fn scaled_operand(&self, rows: usize, cols: usize, x: &[f32]) -> Result<CudaTensor, CudaError> {
        let by = common_scale(cols, x);
        fp8::quantize(&self.upload(rows, cols, x)?.cast(CudaDtype::Bf16)?, by)
    }

    /// Both kinds of operands, with their descriptions.
    fn operands(
        &self,
        rows: usize,
        cols: usize,
        x: &[f32],
    ) -> Result<[(CudaTensor, &'static str); 2], CudaError> {
        let of_rows = self.operand(rows, cols, x)?;
        let of_all = self.scaled_operand(rows, cols, x)?;
        Ok([(of_rows, "a scale for each row"), (of_all, "one scale")])
    }
}
