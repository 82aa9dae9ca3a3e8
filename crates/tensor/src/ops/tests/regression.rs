//! Compares losses between vectors with their definition in f64, and their gradients with finite
//! differences.

use super::backward::{assert_gradient, host, weighted_sum};
use super::*;

/// Hidden states of a student and of a teacher, some of them more than 1 apart.
fn hidden_states(rows: usize, cols: usize) -> (Tensor, Tensor) {
    let wide = |salt| numbers(rows * cols, salt).iter().map(|x| 2.0 * x + 0.5).collect();
    (Tensor::from_vec(rows, cols, wide(80)), Tensor::from_vec(rows, cols, wide(81)))
}

/// The losses of groups and dstudent, copied to the host.
fn run_smooth_l1(
    device: &Device,
    student: &Tensor,
    teacher: &Tensor,
    groups: usize,
    weight: f32,
) -> (Tensor, Tensor) {
    let student = upload(device, student);
    let teacher = upload(device, teacher);
    let mut dstudent = Tensor::default();
    let losses = device
        .run(|| smooth_l1(device, &student, &teacher, groups, weight, &mut dstudent))
        .unwrap();
    (host(losses), host(dstudent))
}

/// The loss of a group and its gradient times `weight`.
fn naive_smooth_l1(student: &[f32], teacher: &[f32], weight: f32) -> (f32, Vec<f32>) {
    let n = teacher.len() as f64;
    let mean = teacher.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let squares = teacher.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
    let scale = 1.0 / (n * (squares / (n - 1.0).max(1.0)).sqrt().max(1e-6));
    let difference = |(s, t): (&f32, &f32)| f64::from(*s) - f64::from(*t);
    let differences: Vec<f64> = student.iter().zip(teacher).map(difference).collect();
    let smooth = |d: &f64| if d.abs() < 1.0 { 0.5 * d * d } else { d.abs() - 0.5 };
    let slope = |d: &f64| (f64::from(weight) * scale * d.clamp(-1.0, 1.0)) as f32;
    let loss = differences.iter().map(smooth).sum::<f64>() * scale;
    (loss as f32, differences.iter().map(slope).collect())
}

#[test]
fn smooth_l1_equals_its_definition() {
    // The last two have several parallel parts per group, and the group size of the last is not a
    // multiple of four.
    for (groups, n, cols) in [(1, 1, 2), (3, 5, 7), (12, 3, 64), (2, 130, 96), (3, 61, 139)] {
        let (student, teacher) = hidden_states(groups * n, cols);
        let size = n * cols;
        let weight = 1.5 * (n * cols) as f32;
        for device in devices() {
            let what = format!("{device:?} {groups} groups of {n} x {cols}");
            let (losses, dstudent) = run_smooth_l1(&device, &student, &teacher, groups, weight);
            assert_eq!((losses.rows(), losses.cols()), (groups, 1), "{what}");
            assert_eq!((dstudent.rows(), dstudent.cols()), (groups * n, cols), "{what}");
            for g in 0..groups {
                let part = |x: &'_ Tensor| x.data()[g * size..(g + 1) * size].to_vec();
                let (loss, slopes) = naive_smooth_l1(&part(&student), &part(&teacher), weight);
                assert_close(losses.row(g), &[loss], 1e-6, &format!("{what}: loss {g}"));
                assert_close(&part(&dstudent), &slopes, 1e-6, &format!("{what}: gradient {g}"));
            }
        }
    }
}

#[test]
fn smooth_l1_gradients_match_finite_differences() {
    let groups = 3;
    let n = 4;
    let cols = 9;
    let (student, teacher) = hidden_states(groups * n, cols);
    let weight = (n * cols) as f32;
    for device in devices() {
        let (_, dstudent) = run_smooth_l1(&device, &student, &teacher, groups, weight);
        let loss = |student: &Tensor| {
            let (losses, _) = run_smooth_l1(&device, student, &teacher, groups, weight);
            weighted_sum(&[weight; 3], &losses)
        };
        assert_gradient(dstudent.data(), &student, loss, &format!("{device:?}"));
    }
}

/// Far from zero, deviations in f32 would be dominated by rounding; a constant has none.
#[test]
fn smooth_l1_of_a_distant_or_constant_teacher_is_finite() {
    let near = matrix(60, 130, 82);
    let weight = 60.0 * 130.0;
    let distant: Vec<f32> = near.data().iter().map(|x| 3000.0 + x).collect();
    for device in devices() {
        for (what, teacher) in
            [("distant", distant.clone()), ("constant", vec![1.0; distant.len()])]
        {
            let student: Vec<f32> = teacher.iter().map(|x| x + 0.25).collect();
            let (loss, slopes) = naive_smooth_l1(&student, &teacher, weight);
            let of = |x| Tensor::from_vec(60, 130, x);
            let (found, dstudent) = run_smooth_l1(&device, &of(student), &of(teacher), 1, weight);
            let what = format!("{device:?} {what}");
            assert_close(found.data(), &[loss], 1e-6, &what);
            assert_close(dstudent.data(), &slopes, 1e-6, &what);
        }
        let one = Tensor::from_vec(1, 1, vec![2.0]);
        let (losses, dstudent) = run_smooth_l1(&device, &one, &one, 1, 1.0);
        assert_eq!((losses.data(), dstudent.data()), (&[0.0][..], &[0.0][..]), "{device:?}");
    }
}

/// Mean, logarithm of the standard deviation, noise and target.
fn gaussian_inputs(rows: usize, cols: usize) -> [Tensor; 4] {
    [90, 91, 92, 93].map(|salt| matrix(rows, cols, salt))
}

/// The rows' losses and both gradients, copied to the host.
fn run_gaussian_loss(device: &Device, of: &[Tensor; 4], weight: f32) -> [Tensor; 3] {
    let [mean, log_std, noise, target] = &of.each_ref().map(|x| upload(device, x));
    let of = GaussianLoss { mean, log_std, noise, target, weight };
    let mut dmean = Tensor::default();
    let mut dlog_std = Tensor::default();
    let losses = device.run(|| gaussian_loss(device, of, &mut dmean, &mut dlog_std)).unwrap();
    [losses, dmean, dlog_std].map(host)
}

#[test]
fn gaussian_loss_equals_its_definition() {
    for (rows, cols) in [(1, 1), (3, 7), (9, 64), (2, 1030)] {
        let of = gaussian_inputs(rows, cols);
        let weight = 1.5 * cols as f32;
        let at = |which: usize, i: usize| f64::from(of[which].data()[i]);
        let moved = |i: usize| at(1, i).exp() * at(2, i);
        let error = |i: usize| at(0, i) + moved(i) - at(3, i);
        let dmean = |i: usize| f64::from(weight) * 2.0 * error(i) / cols as f64;
        let of_row = |r: usize| (r * cols..(r + 1) * cols).map(|i| error(i).powi(2)).sum::<f64>();
        let losses: Vec<f32> = (0..rows).map(|r| (of_row(r) / cols as f64) as f32).collect();
        let all = |f: &dyn Fn(usize) -> f64| (0..rows * cols).map(|i| f(i) as f32).collect();
        let dmeans: Vec<f32> = all(&dmean);
        let dlog_stds: Vec<f32> = all(&|i| dmean(i) * moved(i));
        for device in devices() {
            let what = format!("{device:?} {rows} x {cols}");
            let found = run_gaussian_loss(&device, &of, weight);
            assert_eq!((found[0].rows(), found[0].cols()), (rows, 1), "{what}");
            for (found, expected) in found.iter().zip([&losses, &dmeans, &dlog_stds]) {
                assert_close(found.data(), expected, 2e-6, &what);
            }
        }
    }
}

#[test]
fn gaussian_loss_gradients_match_finite_differences() {
    let rows = 4;
    let cols = 9;
    let of = gaussian_inputs(rows, cols);
    let weight = cols as f32;
    for device in devices() {
        let [_, dmean, dlog_std] = run_gaussian_loss(&device, &of, weight);
        let loss = |which: usize, x: &Tensor| {
            let mut of = of.clone();
            of[which] = x.clone();
            weighted_sum(&vec![weight; rows], &run_gaussian_loss(&device, &of, weight)[0])
        };
        assert_gradient(dmean.data(), &of[0], |x| loss(0, x), &format!("{device:?} mean"));
        assert_gradient(dlog_std.data(), &of[1], |x| loss(1, x), &format!("{device:?} log_std"));
    }
}

#[test]
fn losses_do_not_depend_on_the_number_of_threads() {
    let (student, teacher) = hidden_states(3 * 61, 139);
    let of = gaussian_inputs(70, 33);
    for isa in Isa::ALL.into_iter().filter(|i| i.is_present()) {
        let run = |threads: usize| {
            let device = Device::cpu_with(NonZeroUsize::new(threads), isa).unwrap();
            let distilled = run_smooth_l1(&device, &student, &teacher, 3, 0.7);
            (distilled, run_gaussian_loss(&device, &of, 0.7))
        };
        assert!(run(1) == run(3), "{isa}");
    }
}
