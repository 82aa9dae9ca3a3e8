//! Naive computations on the host, and rows of spans for attention.

use crate::params::{Activation, MIN_STD, RowPerturbation, keep_scale};
use crate::rng::Site;

/// The factor of dropout for element `j` of a row.
pub(crate) fn dropout_factor(
    row: Option<RowPerturbation>,
    layer: usize,
    site: Site,
    j: usize,
) -> f32 {
    match row {
        Some(RowPerturbation { key, strength, sites }) if sites.contains(site) => {
            if key.keeps(layer, site, j, strength) { keep_scale(strength) } else { 0.0 }
        }
        _ => 1.0,
    }
}

/// Rows of whole prompts with causal attention.
pub(crate) fn prompts(lengths: &[u32]) -> Vec<Vec<(u32, u32)>> {
    let starts =
        lengths.iter().scan(0, |at, l| Some(std::mem::replace(at, (*at + l).next_multiple_of(16))));
    starts.zip(lengths).flat_map(|(start, &l)| (1..=l).map(move |n| vec![(start, n)])).collect()
}

/// `samples` rows for each prefix, with up to `own` unshared slots in zero, one or two spans.
pub(crate) fn forks(prefixes: &[u32], samples: u32, own: u32) -> Vec<Vec<(u32, u32)>> {
    let mut next = 0u32;
    let mut rows = Vec::new();
    let mut take = |n: u32| {
        let start = next;
        next = (start + n).next_multiple_of(16);
        start
    };
    for &len in prefixes {
        let prefix = (take(len), len);
        for k in 0..samples {
            let mine = if own == 0 { 0 } else { (own + k) % (own + 1) };
            let mut row = vec![prefix];
            let first = mine / 3;
            for n in [first, mine - first] {
                if n > 0 {
                    row.push((take(n), n));
                }
            }
            rows.push(row);
        }
    }
    rows
}

pub(crate) fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::GeluTanh => {
            0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
    }
}

/// The error function by its series, which converges everywhere.
pub(crate) fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    let mut term = x;
    let mut sum = x;
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

pub(crate) fn norm_row(x: &[f64], is_rms: bool, scale: &[f32], shift: &[f32]) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = if is_rms { 0.0 } else { x.iter().sum::<f64>() / n };
    let eps = if shift.is_empty() { 1e-6 } else { 1e-5 };
    let inverse = 1.0 / (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + eps).sqrt();
    let shifted = |i: usize| if is_rms { 0.0 } else { f64::from(shift[i]) };
    x.iter()
        .enumerate()
        .map(|(i, x)| (x - mean) * inverse * f64::from(scale[i]) + shifted(i))
        .collect()
}

/// A rotation whose angle is a product in f32, as in the contract of `Rope`.
pub(crate) fn rotate(head: &mut [f64], frequencies: &[f32], position: u32) {
    let half = frequencies.len();
    for (i, f) in frequencies.iter().enumerate() {
        let (s, c) = f64::from(f * position as f32).sin_cos();
        let x = head[i];
        let y = head[i + half];
        (head[i], head[i + half]) = (x * c - y * s, y * c + x * s);
    }
}

/// One head's attention over slots: `kv(slot, 0)` is a key, `kv(slot, 1)` a value.
pub(crate) fn naive_attention<'a>(
    q: &[f32],
    slots: &[usize],
    key: impl Fn(usize, usize) -> &'a [f32],
) -> Vec<f64> {
    let dot = |k: &[f32]| {
        q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
            / (q.len() as f64).sqrt()
    };
    let scores: Vec<f64> = slots.iter().map(|&s| dot(key(s, 0))).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
    let mut out = vec![0.0; q.len()];
    for (&slot, score) in slots.iter().zip(&scores) {
        out.iter_mut()
            .zip(key(slot, 1))
            .for_each(|(o, v)| *o += (score - largest).exp() / total * f64::from(*v));
    }
    out
}

pub(crate) fn first_max(row: &[f32]) -> usize {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|&x| x == largest).unwrap_or(0)
}

/// The loss of a group of `smooth_l1`, and the student's gradient times `weight`.
pub(crate) fn smooth_l1_group(student: &[f32], teacher: &[f32], weight: f32) -> (f64, Vec<f64>) {
    let n = teacher.len() as f64;
    let mean = teacher.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let squares = teacher.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
    let std = (squares / (n - 1.0).max(1.0)).sqrt().max(f64::from(MIN_STD));
    let difference = |(s, t): (&f32, &f32)| f64::from(*s) - f64::from(*t);
    let differences: Vec<f64> = student.iter().zip(teacher).map(difference).collect();
    let smooth = |d: &f64| if d.abs() < 1.0 { 0.5 * d * d } else { d.abs() - 0.5 };
    let slope = |d: &f64| f64::from(weight) * d.clamp(-1.0, 1.0) / (n * std);
    let loss = differences.iter().map(smooth).sum::<f64>() / (n * std);
    (loss, differences.iter().map(slope).collect())
}

/// The gradient of one head's input from that of its RMSNorm's result, and its share of the
/// scale's.
pub(crate) fn rms_head_backward(x: &[f32], scale: &[f32], dy: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let n = x.len();
    let wide = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let x = wide(x);
    let scale = wide(scale);
    let dy = wide(dy);
    let inverse = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / n as f64 + 1e-6).sqrt();
    let normed: Vec<f64> = x.iter().map(|x| x * inverse).collect();
    let product = (0..n).map(|i| dy[i] * scale[i] * normed[i]).sum::<f64>() / n as f64;
    let dx = (0..n).map(|i| inverse * (dy[i] * scale[i] - normed[i] * product)).collect();
    (dx, (0..n).map(|i| dy[i] * normed[i]).collect())
}
