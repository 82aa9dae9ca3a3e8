//! Sums and multiples of tensors and of their rows.

use super::*;

/// Of one element, of rows that four does not divide, and of more than one parallel task.
const SHAPES: [(usize, usize); 5] = [(1, 1), (3, 7), (5, 64), (70, 129), (2, 16_384)];

#[test]
fn add_scaled_equals_its_definition() {
    for (rows, cols) in SHAPES {
        let (x, y) = (matrix(rows, cols, 70), matrix(rows, cols, 71));
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
    let (x, y) = (matrix(70, 129, 72), matrix(70, 129, 73));
    let expected: Vec<f32> = x.data().iter().zip(y.data()).map(|(x, y)| x + y).collect();
    for device in devices() {
        let (mut sum, mut scaled) = (upload(&device, &x), upload(&device, &x));
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
        let (x, mut factors) = (matrix(rows, cols, 74), numbers(rows, 75));
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
