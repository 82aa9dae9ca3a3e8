//! Each operation against its naive counterpart in [`reference`](crate::reference).

use crate::cuda::args::{
    CudaDropoutMask, CudaLearnedPositions, CudaLinearResidualNorm, CudaMixture, CudaQkvTransform,
    CudaSlotMapping, ResidualAddend,
};
use crate::cuda::attention::{CudaAttentionMetadata, CudaKv, attention};
use crate::cuda::dropout::{CudaKeepMask, CudaPerturbedRows};
use crate::cuda::linear::{CudaLinear, linear};
use crate::cuda::norm::{CudaNorm, add, add_norm, add_positions_norm, norm};
use crate::cuda::qkv::{CudaRope, rope_and_cache};
use crate::cuda::residual::linear_residual_norm;
use crate::cuda::{
    CudaDevice, CudaDtype, CudaError, CudaIndices, CudaTensor, Precision, activation, embedding,
    noise, topk,
};
use crate::params::{Activation, RowPerturbation, SiteSet};
use crate::reference::{
    activate, dropout_factor, first_max, forks, naive_attention, norm_row, prompts, rotate,
};
use crate::rng::{RngKey, Site};
use crate::{CheckResult, is_selected, numbers, perturbed_rows, small};

/// The comparisons of an operation at its shapes.
type OperationCheck = fn(&mut KernelCheck) -> CheckResult;

/// The checks, by the names that `--only` takes.
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

/// The most elements of a small shape.
const SMALL: usize = 200_000;

/// The shapes to check: all of them, or with `--small` the small ones.
pub(crate) fn shapes<T: Copy>(all: &[T], elements: impl Fn(T) -> usize) -> Vec<T> {
    all.iter().copied().filter(|&shape| !small() || elements(shape) <= SMALL).collect()
}

/// [`perturbed_rows`] of different strengths, of which one in seven has no dropout at the MLP.
fn mixed_dropout_rows(rows: usize, strength: f32) -> Vec<Option<RowPerturbation>> {
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

    /// The number of comparisons that missed their tolerance.
    pub(crate) fn missed(&self) -> usize {
        self.missed
    }

    pub(crate) fn all(&mut self) -> CheckResult {
        let mut selected = CHECKS.iter().filter(|(name, _)| is_selected(name));
        selected.try_for_each(|(_, check)| check(self))
    }

    /// The kernels that only a device of precision fp8 has, and greedy tokens with them.
    pub(crate) fn fp8(&mut self) -> CheckResult {
        for line in crate::fp8_checks::all(&self.cuda, crate::small())? {
            self.line(&line.name, line.good, &line.what);
        }
        self.greedy_tokens()?;
        self.greedy_tokens_of_both_kernels()?;
        self.top_k_mixture()
    }

    /// Values as the compute dtype rounds them.
    pub(crate) fn rounded(&self, mut x: Vec<f32>) -> Vec<f32> {
        if self.cuda.precision() != Precision::F32 {
            x.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
        }
        x
    }

    /// Reports the root mean square and the largest of the errors, relative to the root mean square
    /// of the expected values.
    pub(crate) fn report(&mut self, name: &str, got: &[f32], expected: &[f64], tolerance: f64) {
        assert_eq!(got.len(), expected.len(), "{name}: another number of results");
        let rms = (expected.iter().map(|x| x * x).sum::<f64>() / expected.len().max(1) as f64)
            .sqrt()
            .max(1e-30);
        let errors = got.iter().zip(expected).map(|(&g, &e)| (f64::from(g) - e).abs() / rms);
        let (mut square, mut largest, mut sane) = (0.0, 0.0f64, true);
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
            let (x, y, bias) = (numbers(rows * cols, 4), numbers(rows * cols, 5), numbers(cols, 6));
            let (scale, shift) = (numbers(cols, 7), numbers(cols, 8));
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
            let (x, w) = (
                self.rounded(numbers(rows * inputs, 31)),
                self.rounded(numbers(width * inputs, 32)),
            );
            let (bias, scale, shift) = (numbers(width, 33), numbers(width, 34), numbers(width, 35));
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
                let (r, j) = (i / width, i % width);
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

    /// Masks have the same bits as on the host: applied to ones, they give the scale or 0 exactly.
    fn masks(&mut self) -> CheckResult {
        for (rows, cols, p) in [(70, 768, 0.2f32), (9, 801, 0.5), (3, 2050, 0.03)] {
            let (all, ones) = (
                mixed_dropout_rows(rows, p),
                CudaTensor::from_host(&self.cuda, rows, cols, &vec![1.0; rows * cols])?,
            );
            let uploaded = CudaPerturbedRows::new(&self.cuda, &all)?;
            let mut x = CudaTensor::zeros(&self.cuda, rows, cols, CudaDtype::F32)?;
            let mask = CudaDropoutMask::Sampled { layer: 3, site: Site::MlpOut, rows: &uploaded };
            add(&mut x, ResidualAddend { y: &ones, bias: None, mask: Some(mask) })?;
            let expected = |i: usize| dropout_factor(all[i / cols], 3, Site::MlpOut, i % cols);
            let got = x.to_host()?;
            let wrong = (0..rows * cols).filter(|&i| got[i] != expected(i)).count();
            self.line(
                &format!("mask sampled {rows} x {cols} p {p}"),
                wrong == 0,
                &format!("{wrong} of {} differ", got.len()),
            );

            let keep: Vec<u8> = (0..rows * cols).map(|i| u8::from(i % 3 != 1)).collect();
            let kept = CudaKeepMask::new(&self.cuda, rows, cols, &keep)?;
            let mut x = CudaTensor::zeros(&self.cuda, rows, cols, CudaDtype::F32)?;
            add(
                &mut x,
                ResidualAddend {
                    y: &ones,
                    bias: None,
                    mask: Some(CudaDropoutMask::Recorded { p, keep: &kept }),
                },
            )?;
            let got = x.to_host()?;
            let wrong = (0..rows * cols)
                .filter(|&i| got[i] != if keep[i] != 0 { 1.0 / (1.0 - p) } else { 0.0 })
                .count();
            self.line(
                &format!("mask recorded {rows} x {cols}"),
                wrong == 0,
                &format!("{wrong} differ"),
            );
        }
        Ok(())
    }

    fn noise(&mut self) -> CheckResult {
        let (rows, cols) = (65, 803);
        let mut all = perturbed_rows(rows, 0.6, SiteSet::NOISE);
        all.iter_mut().flatten().step_by(4).for_each(|row| row.strength = 1.1);
        let mut expected = numbers(rows * cols, 9);
        let mut x = CudaTensor::from_host(&self.cuda, rows, cols, &expected)?;
        noise::add_noise(&mut x, &CudaPerturbedRows::new(&self.cuda, &all)?)?;
        for (x, row) in expected.chunks_mut(cols).zip(&all) {
            if let Some(row) = row {
                row.key.add_noise(row.strength, x);
            }
        }
        let got = x.to_host()?;
        let differ = got.iter().zip(&expected).filter(|(g, e)| g != e).count();
        let far = got
            .iter()
            .zip(&expected)
            .filter(|(g, e)| (**g - **e).abs() > 2e-7 * e.abs().max(1.0))
            .count();
        self.line(
            "noise",
            far == 0,
            &format!("{differ} of {} differ in the last place, {far} by more", got.len()),
        );
        Ok(())
    }

    fn rope_and_cache(&mut self) -> CheckResult {
        let (rows, slots, layers) = (33usize, 80usize, 2usize);
        for (heads, kv_heads, dim) in
            [(12, 12, 64), (16, 8, 128), (4, 2, 12), (3, 1, 80), (5, 5, 13), (2, 1, 256)]
        {
            for is_rotary in [false, true] {
                if is_rotary && dim % 2 == 1 {
                    continue;
                }
                let cols = (heads + 2 * kv_heads) * dim;
                let x = self.rounded(numbers(rows * cols, 10));
                let (qs, ks) = (numbers(dim, 11), numbers(dim, 12));
                let norms =
                    (CudaNorm::rms(&self.cuda, 1e-6, &qs)?, CudaNorm::rms(&self.cuda, 1e-6, &ks)?);
                let frequencies: Vec<f32> = (0..dim / 2)
                    .map(|i| 1.0 / 10_000f32.powf((2 * i) as f32 / dim as f32))
                    .collect();
                let rope = CudaRope::new(&self.cuda, &frequencies)?;
                let positions: Vec<u32> = (0..rows as u32).map(|r| r * 37 % 1500).collect();
                let to: Vec<u32> = (0..rows as u32).map(|r| (r * 7 + 3) % slots as u32).collect();
                let (p, s) =
                    (CudaIndices::new(&self.cuda, &positions)?, CudaIndices::new(&self.cuda, &to)?);
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
                    let (mut got, mut want) = (Vec::new(), Vec::new());
                    for r in 0..rows {
                        for h in 0..kv_heads {
                            got.extend_from_slice(
                                &store[(h * slots + to[r] as usize) * dim..][..dim],
                            );
                            want.extend_from_slice(
                                &expected[r * cols + (first + h) * dim..][..dim],
                            );
                        }
                    }
                    self.report(
                        &format!("rope_and_cache {what} {name}"),
                        &got,
                        &want,
                        if what == "keys" { tolerance } else { 0.0 },
                    );
                }
            }
        }
        Ok(())
    }

    fn attention(&mut self) -> CheckResult {
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
        let (rows, cols) = (spans.len(), (heads + 2 * kv_heads) * dim);
        let filling = self.rounded(numbers(slots * cols, 13));
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

    fn rows(&mut self) -> CheckResult {
        for (rows, width) in shapes(&[(7, 24), (65, 801), (300, 768)], |(rows, cols)| rows * cols) {
            let (vocab, context) = (113, 40);
            let (table, learned) =
                (self.rounded(numbers(vocab * width, 15)), numbers(context * width, 16));
            let map = CudaLinear::from_output_major(&self.cuda, width, vocab, &table, None)?;
            let positions = CudaTensor::from_host(&self.cuda, context, width, &learned)?;
            let tokens: Vec<u32> = (0..rows as u32).map(|r| r * 31 % vocab as u32).collect();
            let places: Vec<u32> = (0..rows as u32).map(|r| r * 7 % context as u32).collect();
            let (t, p) =
                (CudaIndices::new(&self.cuda, &tokens)?, CudaIndices::new(&self.cuda, &places)?);
            let at = |i: usize| (table[tokens[i / width] as usize * width + i % width], i);
            let looked_up: Vec<f64> =
                (0..rows * width).map(at).map(|(x, _)| f64::from(x)).collect();
            let x = embedding::lookup(&map, &t)?;
            self.report(&format!("lookup {rows} x {width}"), &x.to_host()?, &looked_up, 0.0);
            let by = CudaNorm::rms(&self.cuda, 1e-5, &numbers(width, 19))?;
            for own in [false, true] {
                let sum = if own { x.uninit_like()? } else { x.copy()? };
                let learned_there = CudaLearnedPositions { table: &positions, positions: &p };
                let from = if own { &x } else { &sum };
                let normed =
                    add_positions_norm(from, &sum, Some(learned_there), &by, CudaDtype::F32)?;
                let add = |(x, i): (f32, usize)| {
                    f64::from(x + learned[places[i / width] as usize * width + i % width])
                };
                let expected: Vec<f64> = (0..rows * width).map(at).map(add).collect();
                self.report(
                    &format!("add_positions_norm {rows} x {width}"),
                    &sum.to_host()?,
                    &expected,
                    0.0,
                );
                let again = norm(&sum, &by, CudaDtype::F32)?.to_host()?;
                self.line("add_positions_norm's norm", normed.to_host()? == again, "as of the sum");
            }
            self.report(
                &format!("add_positions_norm leaves {rows} x {width}"),
                &x.to_host()?,
                &looked_up,
                0.0,
            );

            let x = self.operand(rows, width, &self.rounded(numbers(rows * width, 17)))?;
            let picked: Vec<u32> = (0..rows as u32 + 3).map(|r| r * 5 % rows as u32).collect();
            let picked_there = CudaIndices::new(&self.cuda, &picked)?;
            let selected = embedding::select(&[&x], &picked_there)?;
            let joined = embedding::concat(&[&selected, &x, &selected])?.to_host()?;
            for parts in [2, 16, 17] {
                // Rows of the last part, indexed as if all were concatenated.
                let rows = rows as u32 * (parts - 1);
                let there = CudaIndices::new(
                    &self.cuda,
                    &picked.iter().map(|r| rows + r).collect::<Vec<_>>(),
                )?;
                let other = embedding::select(
                    &[&x],
                    &CudaIndices::new(&self.cuda, &(0..x.rows() as u32).rev().collect::<Vec<_>>())?,
                )?;
                let all: Vec<&CudaTensor> = (1..parts).map(|_| &other).chain([&x]).collect();
                let same = embedding::select(&all, &there)?.to_host()? == selected.to_host()?;
                self.line("select", same, &format!("of {parts} parts"));
            }
            let (x, selected) = (x.to_host()?, selected.to_host()?);
            let expected: Vec<f64> = picked
                .iter()
                .flat_map(|&r| x[r as usize * width..][..width].to_vec())
                .map(f64::from)
                .collect();
            self.report(&format!("select {rows} x {width}"), &selected, &expected, 0.0);
            self.line(
                "concat",
                joined == [selected.clone(), x.clone(), selected].concat(),
                "three parts",
            );

            let gates = self.rounded(numbers(rows * 2 * width, 18));
            let x = self.operand(rows, 2 * width, &gates)?;
            let got = activation::swiglu(&self.cuda, &x)?.to_host()?;
            let half = |i: usize| {
                (
                    f64::from(gates[i / width * 2 * width + i % width]),
                    f64::from(gates[(i / width * 2 + 1) * width + i % width]),
                )
            };
            let expected: Vec<f64> =
                (0..rows * width).map(half).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            self.report(
                &format!("swiglu {rows} x {width}"),
                &got,
                &expected,
                self.tolerance(self.cuda.compute_dtype()),
            );
        }
        Ok(())
    }

    fn greedy_tokens(&mut self) -> CheckResult {
        let biased = [(5, 24, 50), (3, 13, 7), (200, 64, 50257), (1500, 8, 50257)];
        let plain = [(7, 24, 50), (300, 200, 1000), (600, 320, 5003)];
        let all = biased.map(|s| (s, true)).into_iter().chain(plain.map(|s| (s, false)));
        let elements =
            |((rows, inputs, vocab), _): ((usize, usize, usize), bool)| (rows + vocab) * inputs;
        for ((rows, inputs, vocab), biased) in shapes(&all.collect::<Vec<_>>(), elements) {
            // Small integers: sums are exact in every dtype, and ties are many.
            let whole = |n: usize, salt: u64| -> Vec<f32> {
                numbers(n, salt).into_iter().map(|x| (x * 1.5).round()).collect()
            };
            let (mut x, w, bias) =
                (whole(rows * inputs, 19), whole(vocab * inputs, 20), whole(vocab, 21));
            x[inputs] = f32::NAN; // row 1: all logits are NaN
            let map = CudaLinear::from_output_major(
                &self.cuda,
                inputs,
                vocab,
                &w,
                biased.then_some(&bias[..]),
            )?;
            let got = topk::PendingArgmax::launch(
                &CudaTensor::from_host(&self.cuda, rows, inputs, &x)?,
                &map,
            )?
            .read()?;
            let logits = |r: usize| -> Vec<f32> {
                let offset = |j: usize| if biased { bias[j] } else { 0.0 };
                let dot = |j: usize| {
                    (0..inputs).map(|k| x[r * inputs + k] * w[j * inputs + k]).sum::<f32>()
                        + offset(j)
                };
                (0..vocab).map(dot).collect()
            };
            let picked: Vec<usize> =
                (0..rows).filter(|r| *r < 8 || r % 53 == 0 || r + 1 == rows).collect();
            let right = |&&r: &&usize| {
                let (logits, (token, logprob)) = (logits(r), got[r]);
                let at = first_max(&logits);
                let sum: f64 = logits.iter().map(|x| f64::from(x - logits[at]).exp()).sum();
                // A NaN logit makes the log-probability NaN.
                token as usize == at
                    && (sum.is_nan() == logprob.is_nan())
                    && (sum.is_nan() || (f64::from(logprob) + sum.ln()).abs() < 2e-5)
            };
            let wrong = picked.len() - picked.iter().filter(right).count();
            self.line(
                &format!("greedy_tokens {rows} x {inputs} -> {vocab} bias {biased}"),
                wrong == 0,
                &format!("{wrong} of {} wrong", picked.len()),
            );
        }
        Ok(())
    }

    /// With and without logits in memory, at GPT-2's size: sums of integers are exact, so the
    /// tokens are the same. Nothing to compare where there is only one kernel.
    fn greedy_tokens_of_both_kernels(&mut self) -> CheckResult {
        if small() {
            return Ok(());
        }
        let (rows, inputs, vocab) = (1111, 768, 50257);
        let whole = |n: usize, salt: u64| -> Vec<f32> {
            numbers(65_521, salt).into_iter().map(|x| (x * 1.5).round()).cycle().take(n).collect()
        };
        let (x, w) =
            (self.operand(rows, inputs, &whole(rows * inputs, 24))?, whole(vocab * inputs, 25));
        let kept =
            CudaLinear::from_output_major(&self.cuda, inputs, vocab, &w, Some(&vec![0.0; vocab]))?;
        let never = CudaLinear::from_output_major(&self.cuda, inputs, vocab, &w, None)?;
        if !crate::cuda::hopper_gemm::supports_argmax(&x, &never) {
            return Ok(());
        }
        let (kept, never) = (
            topk::PendingArgmax::launch(&x, &kept)?.read()?,
            topk::PendingArgmax::launch(&x, &never)?.read()?,
        );
        let differ =
            kept.iter().zip(&never).filter(|(a, b)| a.0 != b.0 || (a.1 - b.1).abs() > 2e-5).count();
        let tokens: std::collections::BTreeSet<u32> = kept.iter().map(|a| a.0).collect();
        self.line(
            "greedy_tokens of both kernels",
            differ == 0,
            &format!("{differ} of {rows} differ, {} tokens", tokens.len()),
        );
        Ok(())
    }

    fn top_k_mixture(&mut self) -> CheckResult {
        let all = [(5, 24, 50, 3), (2, 16, 7, 10), (70, 64, 50257, 10), (9, 128, 3001, 64)];
        let elements = |(rows, width, vocab, _)| (rows + vocab) * width;
        for (rows, width, vocab, k) in shapes(&all, elements) {
            let (x, w) =
                (self.rounded(numbers(rows * width, 22)), self.rounded(numbers(vocab * width, 23)));
            let map = CudaLinear::from_output_major(&self.cuda, width, vocab, &w, None)?;
            // Odd rows have Gumbel noise at a temperature of 0.5.
            let key = |r: usize| RngKey { seed: 5, question: 1, trajectory: r as u32, position: 9 };
            let noise = |r: usize| {
                let row = RowPerturbation { key: key(r), strength: 0.5, sites: SiteSet::GUMBEL };
                (r % 2 == 1).then_some(row)
            };
            let noise =
                CudaPerturbedRows::new(&self.cuda, &(0..rows).map(noise).collect::<Vec<_>>())?;
            let (got, argmax) = topk::top_k_mixture(
                &CudaTensor::from_host(&self.cuda, rows, width, &x)?,
                &map,
                &map,
                CudaMixture { k, noise: Some(&noise) },
            )?;
            let (mut expected, mut wrong) = (Vec::new(), 0);
            for r in 0..rows {
                let dot = |j: usize| {
                    (0..width)
                        .map(|c| f64::from(x[r * width + c]) * f64::from(w[j * width + c]))
                        .sum::<f64>()
                };
                let mut scored: Vec<(usize, f64)> = (0..vocab).map(|j| (j, dot(j))).collect();
                scored.sort_by(|a, b| b.1.total_cmp(&a.1));
                scored.truncate(k);
                wrong += usize::from(scored[0].0 != argmax[r] as usize);
                let temperature = if r % 2 == 1 {
                    scored.iter_mut().for_each(|s| s.1 += f64::from(key(r).gumbel(s.0)));
                    0.5
                } else {
                    1.0
                };
                let largest = scored.iter().map(|s| s.1).fold(f64::NEG_INFINITY, f64::max);
                let exp = |s: &(usize, f64)| ((s.1 - largest) / temperature).exp();
                let total: f64 = scored.iter().map(exp).sum();
                let weight =
                    |s: &(usize, f64), c: usize| exp(s) / total * f64::from(w[s.0 * width + c]);
                expected
                    .extend((0..width).map(|c| scored.iter().map(|s| weight(s, c)).sum::<f64>()));
            }
            let name = format!("mixture {rows} x {width} -> {vocab} k {k}");
            self.report(&name, &got.to_host()?, &expected, 3e-5);
            self.line(&name, wrong == 0, &format!("{wrong} argmax wrong"));
        }
        Ok(())
    }
}
