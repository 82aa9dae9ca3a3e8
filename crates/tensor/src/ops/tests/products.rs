//! Products small enough for Miri, which interprets the portable kernels, with several threads.

use super::*;

#[test]
fn small_products_in_both_precisions() {
    for (rows, inputs, outputs) in [(1, 1, 1), (3, 7, 5), (5, 9, 18)] {
        let x = matrix(rows, inputs, 1);
        let w = numbers(outputs * inputs, 2);
        let bias = vec![0.5; outputs];
        let exact = naive_linear(&x, &w, &bias);
        // In int8, the error of each factor is at most half a step of its row's or column's
        // largest.
        let largest = |values: &[f32]| values.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let rounding = inputs as f32 * largest(x.data()) * largest(&w) / 100.0;
        for (precision, tolerance) in [(Precision::F32, 1e-5), (Precision::Int8, rounding)] {
            let device = Device::cpu_in(NonZeroUsize::new(2), Isa::Portable, precision).unwrap();
            let map = Linear::from_output_major(&device, inputs, outputs, &w, Some(bias.clone()));
            let what = format!("{device:?} {rows}x{inputs}x{outputs}");
            let product = run_linear(&device, &x, &map.unwrap(), Activation::None);
            assert_close(product.data(), &exact, tolerance, &what);
        }
    }
}

/// Weights that some instruction sets store and multiply differently from f32 weights, until others
/// are assigned.
#[test]
fn products_with_weights_that_are_bf16_numbers() {
    let rows = 37;
    let inputs = 70;
    let outputs = 90;
    let x = matrix(rows, inputs, 3);
    let f32_weights = matrix(outputs, inputs, 4);
    let bias = vec![0.5; 90];
    let leading = |w: &f32| f32::from_bits(w.to_bits() & 0xffff_0000);
    let w: Vec<f32> = f32_weights.data().iter().map(leading).collect();
    for device in devices() {
        let map = Linear::from_output_major(&device, inputs, outputs, &w, Some(bias.clone()));
        let mut map = map.unwrap();
        let product = |map: &Linear| run_linear(&device, &x, map, Activation::None);
        assert_close(
            product(&map).data(),
            &naive_linear(&x, &w, &bias),
            1e-5,
            &format!("{device:?}"),
        );
        let shift = upload(&device, &Tensor::from_vec(1, outputs, bias.clone()));
        map.assign(&device, &upload(&device, &f32_weights), Some(&shift)).unwrap();
        let expected = naive_linear(&x, f32_weights.data(), &bias);
        assert_close(product(&map).data(), &expected, 1e-5, &format!("{device:?}, assigned"));
    }
}
