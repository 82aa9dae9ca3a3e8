//! Compares each operation with its naive counterpart in [`reference`](crate::reference).

use crate::cuda::args::{CudaDropoutMask, CudaLinearResidualNorm, ResidualAddend};
use crate::cuda::dropout::CudaPerturbedRows;
use crate::cuda::linear::{CudaLinear, linear};
use crate::cuda::norm::{CudaNorm, add_norm, norm};
use crate::cuda::residual::linear_residual_norm;
use crate::cuda::{CudaDevice, CudaDtype, CudaError, CudaTensor, Precision};
use crate::params::{Activation, RowPerturbation, SiteSet};
use crate::reference::{activate, dropout_factor, norm_row};
use crate::rng::Site;
use crate::{CheckResult, is_selected, numbers, perturbed_rows, small};

/// The comparisons of an operation at its shapes.
type OperationCheck = fn(&mut KernelCheck) -> CheckResult;

/// The checks, with their names for `--only`.
pub(crate) const CHECKS: &[(&str, OperationCheck)] = &[
    ("linear", KernelCheck::linear),
    ("norm", KernelCheck::norm),
    ("residual", KernelCheck::residual),
    ("masks", KernelCheck::masks),
    ("noise", KernelCheck::noise),
    ("rope_and_cache", KernelCheck::rope_and_cache),
    ("attention", KernelCheck::attention),
    ("rows", KernelCheck::rows),
    ("greedy_tokens", KernelCheck::greedy_tokens),
    ("both_kernels", KernelCheck::greedy_tokens_of_both_kernels),
    ("mixture", KernelCheck::top_k_mixture),
    ("training", KernelCheck::training),
];

/// Maximum elements of a small shape.
const SMALL: usize = 200_000;

/// The shapes to check: all of them, or with `--small` the small ones.
pub(crate) fn shapes<T: Copy>(all: &[T], elements: impl Fn(T) -> usize) -> Vec<T> {
    all.iter().copied().filter(|&shape| !small() || elements(shape) <= SMALL).collect()
}

/// [`perturbed_rows`] of different strengths, of which one in seven has no dropout at the MLP.
pub(crate) fn mixed_dropout_rows(rows: usize, strength: f32) -> Vec<Option<RowPerturbation>> {
    let mut all = perturbed_rows(rows, strength, SiteSet::DROPOUT);
    for (r, row) in all.iter_mut().enumerate().filter_map(|(r, row)| Some((r, row.as_mut()?))) {
        row.strength *= [1.0, 0.5, 1.75][r % 3];
        row.sites = if r % 7 == 2 { SiteSet::ATTN_OUT } else { row.sites };
    }
    all
}

pub(crate) struct KernelCheck {
    pub(crate) cuda: CudaDevice,
    missed: usize,
}

impl KernelCheck {
    pub(crate) fn new(cuda: CudaDevice) -> Self {
        Self { cuda, missed: 0 }
    }

    /// The number of comparisons that exceeded their tolerance.
    pub(crate) fn missed(&self) -> usize {
        self.missed
    }

    pub(crate) fn all(&mut self) -> CheckResult {
        let mut selected = CHECKS.iter().filter(|(name, _)| is_selected(name));
        selected.try_for_each(|(_, check)| check(self))
    }

    /// The kernels of a device of precision fp8, and the operations that use them.
    pub(crate) fn fp8(&mut self) -> CheckResult {
        for line in crate::fp8_checks::all(&self.cuda, crate::small())? {
            self.line(&line.name, line.good, &line.what);
        }
        self.rope_and_cache()?;
        self.attention()?;
        self.greedy_tokens()?;
        self.greedy_tokens_of_both_kernels()?;
        self.top_k_mixture()
    }

    /// Values rounded to the compute dtype.
    pub(crate) fn rounded(&self, mut x: Vec<f32>) -> Vec<f32> {
        if self.cuda.precision() != Precision::F32 {
            x.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
        }
        x
    }

    /// Reports the root mean square and the maximum of the errors, relative to the root mean square
    /// of the expected values.
    pub(crate) fn report(&mut self, name: &str, got: &[f32], expected: &[f64], tolerance: f64) {
        assert_eq!(got.len(), expected.len(), "{name}: another number of results");
        let rms = (expected.iter().map(|x| x * x).sum::<f64>() / expected.len().max(1) as f64)
            .sqrt()
            .max(1e-30);
        let errors = got.iter().zip(expected).map(|(&g, &e)| (f64::from(g) - e).abs() / rms);
        let mut square = 0.0;
        let mut largest = 0.0f64;
        let mut sane = true;
        for e in errors {
            sane &= e.is_finite();
            square += e * e;
            largest = largest.max(e);
        }
        let mean = (square / got.len().max(1) as f64).sqrt();
        self.line(
            name,
            sane && mean <= tolerance && largest <= 20.0 * tolerance,
            &format!("error {mean:.1e}, largest {largest:.1e}"),
        );
    }

    pub(crate) fn line(&mut self, name: &str, good: bool, what: &str) {
        println!("{}  {name}: {what}", if good { "ok  " } else { "MISS" });
        self.missed += usize::from(!good);
    }

    pub(crate) fn tolerance(&self, out: CudaDtype) -> f64 {
        match (self.cuda.precision(), out) {
            (Precision::F32, CudaDtype::F32) => 3e-6,
            (_, CudaDtype::F32) => 3e-5, // products of bf16 are exact, sums are f32
            (_, CudaDtype::Bf16 | CudaDtype::E4m3) => 4e-3,
        }
    }

    pub(crate) fn operand(
        &self,
        rows: usize,
        cols: usize,
        x: &[f32],
    ) -> Result<CudaTensor, CudaError> {
        CudaTensor::from_host(&self.cuda, rows, cols, x)?.cast(self.cuda.compute_dtype())
    }

    fn linear(&mut self) -> CheckResult {
        let shapes = [
            (9, 12, 1),
            (3, 24, 50),
            (17, 13, 7),
            (64, 801, 257),
            (129, 100, 33),
            (150, 72, 200),
            (37, 768, 2304),
            (300, 768, 768),
        ];
        let elements = |(rows, inputs, outputs)| (rows + outputs) * inputs;
        for (rows, inputs, outputs) in self::shapes(&shapes, elements) {
            let x = self.rounded(numbers(rows * inputs, 1));
            let w = self.rounded(numbers(rows + inputs * outputs, 2)[rows..].to_vec());
            let b = self.rounded(numbers(outputs, 3));
            let transposed: Vec<f32> =
                (0..inputs * outputs).map(|i| w[i % outputs * inputs + i / outputs]).collect();
            for (activation, biased, want) in [
                (Activation::None, false, CudaDtype::F32),
                (Activation::None, true, self.cuda.compute_dtype()),
                (Activation::GeluTanh, true, self.cuda.compute_dtype()),
                (Activation::GeluTanh, true, CudaDtype::F32),
                (Activation::GeluErf, true, CudaDtype::F32),
            ] {
                let bias = biased.then_some(&b[..]);
                let map = if activation == Activation::None {
                    CudaLinear::from_output_major(&self.cuda, inputs, outputs, &w, bias)?
                } else {
                    CudaLinear::from_input_major(&self.cuda, inputs, outputs, &transposed, bias)?
                };
                let got = linear(
                    &CudaTensor::from_host(&self.cuda, rows, inputs, &x)?,
                    &map,
                    activation,
                    want,
                )?
                .to_host()?;
                let one = |r: usize, j: usize| {
                    let dot: f64 = (0..inputs)
                        .map(|k| f64::from(x[r * inputs + k]) * f64::from(w[j * inputs + k]))
                        .sum();
                    activate(activation, dot + if biased { f64::from(b[j]) } else { 0.0 })
                };
                let expected: Vec<f64> =
                    (0..rows * outputs).map(|i| one(i / outputs, i % outputs)).collect();
                let name = format!(
                    "linear {rows} x {inputs} -> {outputs} {activation:?} bias {biased} {want:?}"
                );
                self.report(&name, &got, &expected, self.tolerance(want));
            }
        }
        Ok(())
    }

    fn norm(&mut self) -> CheckResult {
        let all = [
            (1, 24),
            (5, 801),
            (4097, 768),
            (33, 1024),
            (9, 2048),
            (7, 3001),
            (3, 5120),
            (2, 16384),
        ];
        for (rows, cols) in shapes(&all, |(rows, cols)| rows * cols) {
            let x = numbers(rows * cols, 4);
            let y = numbers(rows * cols, 5);
            let bias = numbers(cols, 6);
            let scale = numbers(cols, 7);
            let shift = numbers(cols, 8);
            for is_rms in [false, true] {
                let by = if is_rms {
                    CudaNorm::rms(&self.cuda, 1e-5, &scale)?
                } else {
                    CudaNorm::layer(&self.cuda, 1e-5, &scale, &shift)?
                };
                let want = self.cuda.compute_dtype();
                let normed = |x: &[f64]| -> Vec<f64> {
                    x.chunks(cols).flat_map(|row| norm_row(row, is_rms, &scale, &shift)).collect()
                };
                let device = CudaTensor::from_host(&self.cuda, rows, cols, &x)?;
                let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
                let name = format!("{rows} x {cols} {}", if is_rms { "rms" } else { "layer" });
                let got = norm(&device, &by, want)?.to_host()?;
                self.report(&format!("norm {name}"), &got, &normed(&wide), self.tolerance(want));

                let mut sum = device;
                let y = self.rounded(y.clone());
                let y_device = self.operand(rows, cols, &y)?;
                let bias_device = crate::cuda::memory::DeviceBuffer::upload(&self.cuda, &bias)?;
                let all = mixed_dropout_rows(rows, 0.3);
                let uploaded = CudaPerturbedRows::new(&self.cuda, &all)?;
                let mask =
                    CudaDropoutMask::Sampled { layer: 11, site: Site::MlpOut, rows: &uploaded };
                let got = add_norm(
                    &mut sum,
                    ResidualAddend { y: &y_device, bias: Some(&bias_device), mask: Some(mask) },
                    &by,
                    want,
                )?
                .to_host()?;
                let kept = |i: usize| {
                    let value = f64::from(y[i]) + f64::from(bias[i % cols]);
                    let factor = dropout_factor(all[i / cols], 11, Site::MlpOut, i % cols);
                    f64::from(x[i]) + value * f64::from(factor)
                };
                let expected: Vec<f64> = (0..rows * cols).map(kept).collect();
                self.report(&format!("add_norm sum {name}"), &sum.to_host()?, &expected, 3e-6);
                self.report(
                    &format!("add_norm {name}"),
                    &got,
                    &normed(&expected),
                    self.tolerance(want),
                );
            }
        }
        Ok(())
    }

    /// Linear map, dropout, residual stream and norm: few rows as a GEMM and `add_norm`, many in
    /// the fused kernel where there is one.
    fn residual(&mut self) -> CheckResult {
        let width = 768;
        let all = [
            (37, 200, false, true, self.cuda.compute_dtype()),
            (3501, 72, true, true, self.cuda.compute_dtype()),
            (4090, 328, false, true, self.cuda.compute_dtype()),
            (4096, 64, false, false, CudaDtype::F32),
        ];
        let elements =
            |(rows, inputs, ..): (usize, usize, bool, bool, CudaDtype)| (rows + width) * inputs;
        for (rows, inputs, is_rms, drops, dtype) in shapes(&all, elements) {
            let x = self.rounded(numbers(rows * inputs, 31));
            let w = self.rounded(numbers(width * inputs, 32));
            let bias = numbers(width, 33);
            let scale = numbers(width, 34);
            let shift = numbers(width, 35);
            let start = numbers(rows * width, 36);
            let map = CudaLinear::from_output_major(&self.cuda, inputs, width, &w, Some(&bias))?;
            let by = match is_rms {
                true => CudaNorm::rms(&self.cuda, 1e-5, &scale)?,
                false => CudaNorm::layer(&self.cuda, 1e-5, &scale, &shift)?,
            };
            let all = mixed_dropout_rows(rows, 0.2);
            let uploaded = CudaPerturbedRows::new(&self.cuda, &all)?;
            let mask = drops.then_some(CudaDropoutMask::Sampled {
                layer: 7,
                site: Site::MlpOut,
                rows: &uploaded,
            });
            let mut stream = CudaTensor::from_host(&self.cuda, rows, width, &start)?;
            let operand = self.operand(rows, inputs, &x)?;
            let of = CudaLinearResidualNorm { x: &operand, map: &map, mask, norm: &by, dtype };
            let got = linear_residual_norm(of, &mut stream)?.to_host()?;
            let one = |i: usize| {
                let r = i / width;
                let j = i % width;
                let product = (0..inputs)
                    .map(|c| f64::from(x[r * inputs + c]) * f64::from(w[j * inputs + c]))
                    .sum::<f64>();
                let row = all[r].filter(|_| drops);
                let factor = f64::from(dropout_factor(row, 7, Site::MlpOut, j));
                f64::from(start[i]) + (product + f64::from(bias[j])) * factor
            };
            let expected: Vec<f64> = (0..rows * width).map(one).collect();
            let normed: Vec<f64> = expected
                .chunks(width)
                .flat_map(|row| norm_row(row, is_rms, &scale, &shift))
                .collect();
            let name =
                format!("{rows} x {inputs} -> {width} {}", if is_rms { "rms" } else { "layer" });
            self.report(
                &format!("residual stream {name}"),
                &stream.to_host()?,
                &expected,
                self.tolerance(self.cuda.compute_dtype()),
            );
            self.report(
                &format!("residual {name}"),
                &got,
                &normed,
                self.tolerance(self.cuda.compute_dtype()),
            );
        }
        Ok(())
    }
}
