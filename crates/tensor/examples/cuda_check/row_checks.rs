//! Checks of operations that copy, add and perturb rows.

use crate::checks::{KernelCheck, mixed_dropout_rows, shapes};
use crate::cuda::args::{CudaDropoutMask, CudaLearnedPositions, ResidualAddend};
use crate::cuda::dropout::{CudaKeepMask, CudaPerturbedRows};
use crate::cuda::linear::CudaLinear;
use crate::cuda::norm::{CudaNorm, add, add_positions_norm, norm};
use crate::cuda::{CudaDtype, CudaIndices, CudaTensor, activation, embedding, noise};
use crate::params::SiteSet;
use crate::reference::dropout_factor;
use crate::rng::Site;
use crate::{CheckResult, numbers, perturbed_rows};

impl KernelCheck {
    /// Masks have the same bits as on the host: applied to ones, they give the scale or 0 exactly.
    pub(crate) fn masks(&mut self) -> CheckResult {
        for (rows, cols, p) in [(70, 768, 0.2f32), (9, 801, 0.5), (3, 2050, 0.03)] {
            let all = mixed_dropout_rows(rows, p);
            let ones = CudaTensor::from_host(&self.cuda, rows, cols, &vec![1.0; rows * cols])?;
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

    pub(crate) fn noise(&mut self) -> CheckResult {
        let rows = 65;
        let cols = 803;
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

    pub(crate) fn rows(&mut self) -> CheckResult {
        for (rows, width) in shapes(&[(7, 24), (65, 801), (300, 768)], |(rows, cols)| rows * cols) {
            let vocab = 113;
            let context = 40;
            let table = self.rounded(numbers(vocab * width, 15));
            let learned = numbers(context * width, 16);
            let map = CudaLinear::from_output_major(&self.cuda, width, vocab, &table, None)?;
            let positions = CudaTensor::from_host(&self.cuda, context, width, &learned)?;
            let tokens: Vec<u32> = (0..rows as u32).map(|r| r * 31 % vocab as u32).collect();
            let places: Vec<u32> = (0..rows as u32).map(|r| r * 7 % context as u32).collect();
            let t = CudaIndices::new(&self.cuda, &tokens)?;
            let p = CudaIndices::new(&self.cuda, &places)?;
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
            let x = x.to_host()?;
            let selected = selected.to_host()?;
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
}
