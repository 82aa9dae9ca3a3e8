//! Sums and multiples of tensors and of their rows.

use super::*;

/// One element, rows whose length is not a multiple of four, and more than one parallel task.
const SHAPES: [(usize, usize); 5] = [(1, 1), (3, 7), (5, 64), (70, 129), (2, 16_384)];

#[test]
fn add_scaled_equals_its_definition() {
    for (rows, cols) in SHAPES {
        let x = matrix(rows, cols, 70);
        let y = matrix(rows, cols, 71);
        for by in [0.0, 1.0, -0.37] {
            let sum = |(x, y): (&f32, &f32)| (f64::from(*x) + f64::from(by) * f64::from(*y)) as f32;
            let expected: Vec<f32> = x.data().iter().zip(y.data()).map(sum).collect();
            for device in devices() {
                let mut to = upload(&device, &x);
                let from = upload(&device, &y);
                device.run(|| add_scaled(&device, &mut to, &from, by)).unwrap();
                let what = format!("{device:?} {rows} x {cols} by {by}");
                assert_close(to.to_host().unwrap().data(), &expected, 2e-7, &what);
                assert_eq!(from.to_host().unwrap(), y, "{what}");
            }
        }
    }
}

#[test]
fn adding_once_is_adding() {
    let x = matrix(70, 129, 72);
    let y = matrix(70, 129, 73);
    let expected: Vec<f32> = x.data().iter().zip(y.data()).map(|(x, y)| x + y).collect();
    for device in devices() {
        let mut sum = upload(&device, &x);
        let mut scaled = upload(&device, &x);
        let y = upload(&device, &y);
        device.run(|| add(&device, &mut sum, &y)).unwrap();
        device.run(|| add_scaled(&device, &mut scaled, &y, 1.0)).unwrap();
        assert_eq!(sum.to_host().unwrap().data(), expected, "{device:?}");
        assert_eq!(scaled.to_host().unwrap().data(), expected, "{device:?}");
    }
}

#[test]
fn scale_rows_equals_its_definition() {
    for (rows, cols) in SHAPES {
        let x = matrix(rows, cols, 74);
        let mut factors = numbers(rows, 75);
        factors[0] = 0.0;
        let one = |i: usize| x.data()[i] * factors[i / cols];
        let expected: Vec<f32> = (0..rows * cols).map(one).collect();
        for device in devices() {
            let mut scaled = upload(&device, &x);
            device.run(|| scale_rows(&device, &mut scaled, &factors)).unwrap();
            let what = format!("{device:?} {rows} x {cols}");
            assert_eq!(scaled.to_host().unwrap().data(), expected, "{what}");
        }
    }
}

#[test]
fn linear_add_is_a_product_and_a_sum() {
    for (rows, inputs, outputs) in [(1, 1, 1), (5, 8, 70), (33, 129, 24)] {
        let x = matrix(rows, inputs, 76);
        let weights = matrix(outputs, inputs, 77);
        let to = matrix(rows, outputs, 78);
        for device in devices() {
            let bias = Some(vec![9.0; outputs]); // not added
            let map =
                Linear::from_output_major(&device, inputs, outputs, weights.data(), bias).unwrap();
            let x = upload(&device, &x);
            let mut sum = upload(&device, &to);
            device.run(|| linear_add(&device, &x, &map, &mut sum)).unwrap();
            let x = x.to_host().unwrap();
            let one = |i: usize| {
                let row = x.row(i / outputs);
                let column = weights.row(i % outputs);
                let terms = row.iter().zip(column).map(|(x, w)| f64::from(*x) * f64::from(*w));
                (f64::from(to.data()[i]) + terms.sum::<f64>()) as f32
            };
            let expected: Vec<f32> = (0..rows * outputs).map(one).collect();
            let what = format!("{device:?} {rows} x {inputs} x {outputs}");
            assert_close(sum.to_host().unwrap().data(), &expected, 1e-5, &what);
        }
    }
}
