use super::*;
use crate::cpu::linear::StoreEpilogue;

fn product(kernel: ByteKernel, x: &[f32], weights: &Int8Weights) -> Vec<f32> {
    let rows = x.len() / weights.inputs;
    StoreEpilogue::product(rows, weights.outputs, |store| {
        gemm_by(kernel, Isa::detect(), x, weights, store);
    })
}

fn numbers(count: usize, salt: u32) -> Vec<f32> {
    (0..count as u32).map(|i| ((i * 7919 + salt * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
}

fn present() -> impl Iterator<Item = ByteKernel> {
    let kernels = Isa::ALL.into_iter().flat_map(ByteKernel::of_isa);
    kernels.filter(|kernel| kernel.is_present())
}

#[test]
fn every_instruction_set_gives_the_same_bits_near_the_exact_product() {
    for (rows, inputs, outputs) in
        [(1, 4, 16), (3, 7, 5), (13, 66, 50), (16, 64, 32), (17, 192, 48), (40, 530, 33)]
    {
        let x = numbers(rows * inputs, 1);
        let w = numbers(inputs * outputs, 2);
        let weights = Int8Weights::new(inputs, outputs, |k, j| w[k * outputs + j]);
        let expected = product(ByteKernel::Portable, &x, &weights);
        for kernel in present() {
            let got = product(kernel, &x, &weights);
            let same = got.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{kernel} at {rows} x {inputs} x {outputs}");
        }
        for (i, got) in expected.iter().enumerate() {
            let r = i / outputs;
            let j = i % outputs;
            let exact: f32 = (0..inputs).map(|k| x[r * inputs + k] * w[k * outputs + j]).sum();
            // The error of each factor is at most half a step, which is the largest number divided
            // by 127; a rotation makes that at most four times as large.
            let tolerance = 4.0 * inputs as f32 / 127.0;
            assert!((got - exact).abs() <= tolerance, "{got} for {exact}");
        }
    }
}

#[test]
fn the_largest_sums_do_not_overflow_or_saturate() {
    let inputs = 4096;
    // All ones once rotated: every rounded number is the largest one.
    let mut x = vec![1.0; inputs];
    rotate(Isa::detect(), &mut x);
    let weights = Int8Weights::new(inputs, 16, |k, j| if j % 2 == 0 { x[k] } else { -x[k] });
    for kernel in present() {
        let got = product(kernel, &x, &weights);
        for (j, &value) in got.iter().enumerate() {
            let sign = if j % 2 == 0 { 1.0 } else { -1.0 };
            assert!((value - sign * inputs as f32).abs() < 0.01, "{kernel}: {value}");
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch_and_nan_stays_in_its_row() {
    let inputs = 30;
    let outputs = 20;
    let mut x = numbers(9 * inputs, 3);
    let w = numbers(inputs * outputs, 4);
    x[4 * inputs + 3] = f32::NAN;
    let weights = Int8Weights::new(inputs, outputs, |k, j| w[k * outputs + j]);
    for kernel in present() {
        let all = product(kernel, &x, &weights);
        for (r, row) in x.chunks(inputs).enumerate() {
            let alone = product(kernel, row, &weights);
            let own = &all[r * outputs..][..outputs];
            if r == 4 {
                assert!(own.iter().all(|value| value.is_nan()));
            } else {
                assert_eq!(own, alone, "{kernel}, row {r}");
            }
        }
    }
}

#[test]
fn columns_come_back_rounded() {
    let w = numbers(10 * 21, 5);
    let weights = Int8Weights::new(10, 21, |k, j| w[k * 21 + j]);
    let mut column = [0.0; 10];
    for j in 0..21 {
        weights.column(j, &mut column);
        for (k, got) in column.iter().enumerate() {
            assert!((got - w[k * 21 + j]).abs() <= 0.5 / 127.0 + 1e-6);
        }
    }
    assert_eq!((weights.inputs(), weights.outputs()), (10, 21));
}

#[test]
fn a_few_large_numbers_do_not_coarsen_the_others() {
    // Like a row after GELU: one number in 61 is thirty times the others.
    let inputs = 1024;
    let outputs = 64;
    let mut x = numbers(inputs, 6);
    x.iter_mut().step_by(61).for_each(|x| *x *= 30.0);
    let w = numbers(inputs * outputs, 7);
    let weights = Int8Weights::new(inputs, outputs, |k, j| w[k * outputs + j]);
    let got = product(ByteKernel::Portable, &x, &weights);
    // The error without rotation.
    let step = x.iter().fold(0.0f32, |most, x| most.max(x.abs())) / LIMIT;
    let rounded: Vec<f32> = x.iter().map(|x| (x / step).round() * step).collect();
    let times = |x: &[f32], j: usize| -> f32 {
        x.iter().enumerate().map(|(k, x)| x * w[k * outputs + j]).sum()
    };
    let mut error = 0.0;
    let mut unrotated = 0.0;
    for (j, got) in got.iter().enumerate() {
        let exact = times(&x, j);
        error += (got - exact).powi(2);
        unrotated += (times(&rounded, j) - exact).powi(2);
    }
    assert!(error < 0.25 * unrotated, "{error} of {unrotated}");
}
