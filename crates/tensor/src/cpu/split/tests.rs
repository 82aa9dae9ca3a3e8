use super::*;
use crate::cpu::linear::StoreEpilogue;

fn product(kernel: SplitKernel, x: &[f32], weights: &Bf16Weights) -> Vec<f32> {
    let rows = x.len() / weights.inputs;
    StoreEpilogue::product(rows, weights.outputs, |store| {
        gemm_by(kernel, Isa::detect(), x, weights, store);
    })
}

fn present() -> Vec<SplitKernel> {
    let mut kernels = vec![SplitKernel::Portable];
    #[cfg(target_arch = "x86_64")]
    if Isa::Amx.is_present() {
        kernels.push(SplitKernel::Amx);
    } else {
        println!("skipped with AMX: this processor has none, or the system does not lend it");
    }
    kernels
}

/// Numbers from -1 to 1 with full significands.
fn numbers(count: usize, salt: u64) -> Vec<f32> {
    let bits = |i: u64| (i + salt * 104_729).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (0..count as u64).map(|i| bits(i) as f32 / (1 << 23) as f32 - 1.0).collect()
}

fn bf16_numbers(count: usize, salt: u64) -> Vec<f32> {
    numbers(count, salt).iter().map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).collect()
}

#[test]
fn parts_add_up_to_their_number() {
    let some = [0.0, -0.0, 1.0, -1.5, 1.000_000_1, f32::MAX, 3.0e-30, -2.9e38, 0.1];
    for x in numbers(2000, 1).into_iter().chain(some) {
        let parts = parts_of(x).map(widened);
        assert_eq!(parts.iter().sum::<f32>().to_bits(), (x + 0.0).to_bits(), "{x:e}: {parts:?}");
    }
}

/// In units of the sum of the products' magnitudes, the error of a chain of n f32 multiply-adds is
/// up to n 2^-24; these sums are shorter.
#[test]
fn products_are_those_of_f32() {
    for (rows, inputs, outputs) in
        [(1, 4, 16), (3, 33, 5), (16, 64, 32), (17, 192, 48), (40, 130, 33), (70, 700, 20)]
    {
        let x = numbers(rows * inputs, 1);
        let w = bf16_numbers(inputs * outputs, 2);
        let weights = Bf16Weights::new(inputs, outputs, |k, j| w[k * outputs + j]).unwrap();
        let expected = product(SplitKernel::Portable, &x, &weights);
        for kernel in present() {
            let got = product(kernel, &x, &weights);
            let same = got.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{kernel:?} at {rows} x {inputs} x {outputs}");
        }
        for (i, &got) in expected.iter().enumerate() {
            let r = i / outputs;
            let j = i % outputs;
            let terms =
                (0..inputs).map(|k| f64::from(x[r * inputs + k]) * f64::from(w[k * outputs + j]));
            let (exact, size) =
                terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
            let error = (f64::from(got) - exact).abs() / size;
            assert!(error < 3.0e-7, "{error:e} at {rows} x {inputs} x {outputs}");
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_batch_and_nan_stays_in_its_row() {
    let inputs = 50;
    let outputs = 20;
    let mut x = numbers(40 * inputs, 3);
    let w = bf16_numbers(inputs * outputs, 4);
    x[4 * inputs + 3] = f32::NAN;
    x[5 * inputs + 3] = f32::INFINITY;
    let weights = Bf16Weights::new(inputs, outputs, |k, j| w[k * outputs + j]).unwrap();
    for kernel in present() {
        let all = product(kernel, &x, &weights);
        for (r, row) in x.chunks(inputs).enumerate() {
            let alone = product(kernel, row, &weights);
            let own = &all[r * outputs..][..outputs];
            if r == 4 || r == 5 {
                assert!(own.iter().all(|value| value.is_nan()));
            } else {
                assert_eq!(own, alone, "{kernel:?}, row {r}");
            }
        }
    }
}

#[test]
fn columns_come_back_and_other_numbers_are_refused() {
    let mut w = bf16_numbers(10 * 21, 5);
    let weights = Bf16Weights::new(10, 21, |k, j| w[k * 21 + j]).unwrap();
    let mut column = [0.0; 10];
    for j in 0..21 {
        weights.column(j, &mut column);
        for (k, got) in column.iter().enumerate() {
            assert_eq!(*got, w[k * 21 + j]);
        }
    }
    assert_eq!((weights.inputs(), weights.outputs()), (10, 21));
    w[77] = 0.1;
    assert!(Bf16Weights::new(10, 21, |k, j| w[k * 21 + j]).is_none());
}
