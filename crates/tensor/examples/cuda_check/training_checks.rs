//! Compares the operations that are only used in training with naive computations in double
//! precision.

use crate::checks::{KernelCheck, shapes};
use crate::cuda::args::{CudaDropoutMask, CudaGaussianLoss, CudaQkvTransform};
use crate::cuda::dropout::{CudaPerturbedRows, dropout};
use crate::cuda::norm::CudaNorm;
use crate::cuda::qkv::qk_norm_backward;
use crate::cuda::regression::{gaussian_loss, smooth_l1};
use crate::cuda::rows::{add_scaled, scale_rows};
use crate::cuda::{CudaDtype, CudaTensor};
use crate::params::SiteSet;
use crate::reference::{dropout_factor, rms_head_backward, smooth_l1_group};
use crate::rng::Site;
use crate::{CheckResult, numbers, perturbed_rows};

/// Tolerance of f32 results from f32 inputs.
const TOLERANCE: f64 = 3e-6;

impl KernelCheck {
    pub(crate) fn training(&mut self) -> CheckResult {
        self.row_arithmetic()?;
        self.adapter_masks()?;
        self.smooth_l1()?;
        self.gaussian_loss()?;
        self.qk_norm_backward()
    }

    fn row_arithmetic(&mut self) -> CheckResult {
        let all = [(1, 1), (7, 24), (65, 801), (300, 768), (3, 16_384)];
        for (rows, cols) in shapes(&all, |(rows, cols)| rows * cols) {
            let x = numbers(rows * cols, 41);
            let y = numbers(rows * cols, 42);
            let factors = numbers(rows, 43);
            let upload = |x: &[f32]| CudaTensor::from_host(&self.cuda, rows, cols, x);
            let mut sum = upload(&x)?;
            let mut scaled = upload(&x)?;
            let addend = upload(&y)?;
            add_scaled(&mut sum, &addend, -0.37)?;
            scale_rows(&mut scaled, &factors)?;
            let by = f64::from(-0.37f32);
            let one = |i: usize| f64::from(x[i]) + by * f64::from(y[i]);
            let expected: Vec<f64> = (0..rows * cols).map(one).collect();
            let name = format!("{rows} x {cols}");
            self.report(&format!("add_scaled {name}"), &sum.to_host()?, &expected, 1e-7);
            let one = |i: usize| f64::from(x[i] * factors[i / cols]);
            let expected: Vec<f64> = (0..rows * cols).map(one).collect();
            self.report(&format!("scale_rows {name}"), &scaled.to_host()?, &expected, 0.0);
        }
        Ok(())
    }

    /// Masks at the inputs of adapted maps have the same bits as on the host.
    fn adapter_masks(&mut self) -> CheckResult {
        for (rows, cols, site) in [
            (70, 768, Site::LoraQkv),
            (9, 801, Site::LoraAttnOut),
            (5, 5120, Site::LoraMlpIn),
            (3, 16_384, Site::LoraMlpOut),
        ] {
            let all = perturbed_rows(rows, 0.2, SiteSet::LORA);
            let ones = CudaTensor::from_host(&self.cuda, rows, cols, &vec![1.0; rows * cols])?;
            let uploaded = CudaPerturbedRows::new(&self.cuda, &all)?;
            let mask = CudaDropoutMask::Sampled { layer: 35, site, rows: &uploaded };
            let got = dropout(&ones, Some(mask), CudaDtype::F32)?.to_host()?;
            let expected = |i: usize| dropout_factor(all[i / cols], 35, site, i % cols);
            let wrong = (0..rows * cols).filter(|&i| got[i] != expected(i)).count();
            self.line(
                &format!("dropout {site:?} {rows} x {cols}"),
                wrong == 0,
                &format!("{wrong} of {} differ", got.len()),
            );
        }
        Ok(())
    }

    fn smooth_l1(&mut self) -> CheckResult {
        let all = [(1, 1, 1), (1, 1, 2), (3, 5, 7), (12, 64, 768), (3, 61, 139), (28, 128, 2048)];
        for (groups, n, cols) in shapes(&all, |(groups, n, cols)| groups * n * cols) {
            let rows = groups * n;
            let size = n * cols;
            let weight = 0.7;
            let student: Vec<f32> = numbers(rows * cols, 44).iter().map(|x| 2.0 * x).collect();
            let teacher: Vec<f32> = numbers(rows * cols, 45).iter().map(|x| 3.0 + x).collect();
            let upload = |x: &[f32]| CudaTensor::from_host(&self.cuda, rows, cols, x);
            let s = upload(&student)?;
            let t = upload(&teacher)?;
            let (losses, gradient) = smooth_l1(&s, &t, groups, weight)?;
            let losses = losses.to_host()?;
            let gradient = gradient.to_host()?;
            let mut expected = Vec::new();
            let mut slopes = Vec::new();
            for (student, teacher) in student.chunks(size).zip(teacher.chunks(size)) {
                let (loss, of_group) = smooth_l1_group(student, teacher, weight);
                expected.push(loss);
                slopes.extend(of_group);
            }
            let name = format!("smooth_l1 {groups} groups of {n} x {cols}");
            self.report(&name, &losses, &expected, TOLERANCE);
            self.report(&format!("{name} gradient"), &gradient, &slopes, TOLERANCE);
            let again = smooth_l1(&s, &t, groups, weight)?;
            let same = again.0.to_host()? == losses && again.1.to_host()? == gradient;
            self.line(&name, same, "the same bits again");
        }
        Ok(())
    }

    fn gaussian_loss(&mut self) -> CheckResult {
        let all = [(1, 1), (7, 24), (65, 801), (300, 2048)];
        for (rows, cols) in shapes(&all, |(rows, cols)| rows * cols) {
            let count = rows * cols;
            let host = [46, 47, 48, 49].map(|salt| numbers(count, salt));
            let upload = |x: &Vec<f32>| CudaTensor::from_host(&self.cuda, rows, cols, x);
            let [mean, log_std, noise, target] = &host;
            let [m, l, n, t] = &[upload(mean)?, upload(log_std)?, upload(noise)?, upload(target)?];
            let weight = 0.7;
            let of = CudaGaussianLoss { mean: m, log_std: l, noise: n, target: t, weight };
            let (losses, [dmean, dlog_std]) = gaussian_loss(of)?;
            let moved = |i: usize| f64::from(log_std[i]).exp() * f64::from(noise[i]);
            let error = |i: usize| f64::from(mean[i]) + moved(i) - f64::from(target[i]);
            let slope = |i: usize| f64::from(weight) * 2.0 * error(i) / cols as f64;
            let squares = |r: usize| (0..cols).map(|c| error(r * cols + c).powi(2)).sum::<f64>();
            let expected: Vec<f64> = (0..rows).map(|r| squares(r) / cols as f64).collect();
            let name = format!("gaussian_loss {rows} x {cols}");
            self.report(&name, &losses.to_host()?, &expected, TOLERANCE);
            let expected: Vec<f64> = (0..count).map(slope).collect();
            self.report(&format!("{name} dmean"), &dmean.to_host()?, &expected, TOLERANCE);
            let expected: Vec<f64> = (0..count).map(|i| slope(i) * moved(i)).collect();
            self.report(&format!("{name} dlog_std"), &dlog_std.to_host()?, &expected, TOLERANCE);
        }
        Ok(())
    }

    /// Gradients in the compute dtype, and in f32 as in the last layer.
    fn qk_norm_backward(&mut self) -> CheckResult {
        let all = [(70, 16, 8, 128), (1100, 4, 2, 32), (9, 2, 1, 13), (5, 2, 1, 256)];
        let elements = |(rows, heads, kv_heads, dim)| rows * (heads + 2 * kv_heads) * dim;
        for shape in shapes(&all, elements) {
            for dtype in [self.cuda.compute_dtype(), CudaDtype::F32] {
                self.qk_norm_backward_of(shape, dtype)?;
            }
        }
        Ok(())
    }

    fn qk_norm_backward_of(
        &mut self,
        (rows, heads, kv_heads, dim): (usize, usize, usize, usize),
        dtype: CudaDtype,
    ) -> CheckResult {
        let cols = (heads + 2 * kv_heads) * dim;
        let qkv = self.rounded(numbers(rows * cols, 50));
        let dqkv = self.rounded(numbers(rows * cols, 51));
        let scales = [numbers(dim, 52), numbers(dim, 53)];
        let [q, k] = &[
            CudaNorm::rms(&self.cuda, 1e-6, &scales[0])?,
            CudaNorm::rms(&self.cuda, 1e-6, &scales[1])?,
        ];
        let transform = CudaQkvTransform { heads, qk_norms: Some((q, k)), rope: None };
        let mut gradient = CudaTensor::from_host(&self.cuda, rows, cols, &dqkv)?.cast(dtype)?;
        let zeros = || CudaTensor::zeros(&self.cuda, 1, dim, CudaDtype::F32);
        let mut dq = zeros()?;
        let mut dk = zeros()?;
        let raw = self.operand(rows, cols, &qkv)?;
        qk_norm_backward(&raw, transform, &mut gradient, [&mut dq, &mut dk])?;
        let mut expected: Vec<f64> = dqkv.iter().map(|&x| f64::from(x)).collect();
        let mut dscales = [vec![0.0; dim], vec![0.0; dim]];
        for at in (0..rows).flat_map(|r| (0..heads + kv_heads).map(move |h| r * cols + h * dim)) {
            let which = usize::from(at % cols >= heads * dim);
            let x = &qkv[at..at + dim];
            let dy = &dqkv[at..at + dim];
            let (dx, dscale) = rms_head_backward(x, &scales[which], dy);
            expected[at..at + dim].copy_from_slice(&dx);
            dscales[which].iter_mut().zip(dscale).for_each(|(s, d)| *s += d);
        }
        let name =
            format!("qk_norm_backward {rows} rows, {heads}/{kv_heads} heads of {dim}, {dtype:?}");
        let tolerance = self.tolerance(dtype);
        self.report(&name, &gradient.to_host()?, &expected, tolerance);
        self.report(&format!("{name}: query scale"), &dq.to_host()?, &dscales[0], 1e-5);
        self.report(&format!("{name}: key scale"), &dk.to_host()?, &dscales[1], 1e-5);
        Ok(())
    }
}
