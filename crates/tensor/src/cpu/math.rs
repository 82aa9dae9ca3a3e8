//! Vectorizable elementary functions: straight-line polynomials without branches and library calls.
//!
//! Each is accurate to a few ulp over the range of values in a network, far within the tolerance of
//! any comparison with another implementation. `FUSED` is as in [`super::isa`].

use std::ops::AddAssign;

use super::isa::fma;

/// e^x. Saturates to 0 below -87.3 and to about 1.7e38 above 88.
#[inline(always)]
pub(crate) fn exp<const FUSED: bool>(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer in the low bits
    let clamped = x.clamp(-87.3, 88.0);
    let shifted = fma::<FUSED>(clamped, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    // ln 2 in two parts, so that the remainder is exact (Cody and Waite).
    let r = fma::<FUSED>(n, -1.428_606_8e-6, fma::<FUSED>(n, -0.693_145_75, clamped));
    let mut y = fma::<FUSED>(r, 1.987_569_1e-4, 1.398_199_9e-3);
    y = fma::<FUSED>(r, y, 8.333_452e-3);
    y = fma::<FUSED>(r, y, 4.166_579_6e-2);
    y = fma::<FUSED>(r, y, 1.666_666_5e-1);
    y = fma::<FUSED>(r, y, 0.5);
    y = fma::<FUSED>(r * r, y, r) + 1.0;
    let power = (shifted.to_bits() << 23).wrapping_add(0x3f80_0000);
    let scaled = y * f32::from_bits(power);
    if x < -87.3 { 0.0 } else { scaled }
}

/// GELU in its tanh form, as in GPT-2 (`gelu_new`).
#[inline(always)]
pub(crate) fn gelu_tanh<const FUSED: bool>(x: f32) -> f32 {
    // 0.5 (1 + tanh u) = 1 / (1 + e^-2u), without cancellation.
    let u = 0.797_884_6 * fma::<FUSED>(0.044_715 * x * x, x, x);
    x / (1.0 + exp::<FUSED>(-2.0 * u))
}

/// GELU with the error function, as in CODI's projector and CoLaR's head.
#[inline(always)]
pub(crate) fn gelu_erf<const FUSED: bool>(x: f32) -> f32 {
    0.5 * x * (1.0 + erf::<FUSED>(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// The derivative of [`gelu_tanh`].
#[inline(always)]
pub(crate) fn gelu_tanh_derivative<const FUSED: bool>(x: f32) -> f32 {
    let u = 0.797_884_6 * fma::<FUSED>(0.044_715 * x * x, x, x);
    let slope = 0.797_884_6 * fma::<FUSED>(0.134_145 * x, x, 1.0);
    let share = 1.0 / (1.0 + exp::<FUSED>(-2.0 * u));
    fma::<FUSED>(2.0 * x * slope * share, 1.0 - share, share)
}

/// The derivative of [`gelu_erf`]: the normal distribution's CDF at x, plus x times its density.
#[inline(always)]
pub(crate) fn gelu_erf_derivative<const FUSED: bool>(x: f32) -> f32 {
    let share = 0.5 * (1.0 + erf::<FUSED>(x * std::f32::consts::FRAC_1_SQRT_2));
    fma::<FUSED>(0.398_942_3 * x, exp::<FUSED>(-0.5 * x * x), share)
}

/// The error function to 1.5e-7 (Abramowitz and Stegun 7.1.26).
#[inline(always)]
fn erf<const FUSED: bool>(x: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / fma::<FUSED>(0.327_591_1, a, 1.0);
    let mut y = fma::<FUSED>(1.061_405_4, t, -1.453_152_1);
    y = fma::<FUSED>(y, t, 1.421_413_8);
    y = fma::<FUSED>(y, t, -0.284_496_74);
    y = fma::<FUSED>(y, t, 0.254_829_6);
    (1.0 - y * t * exp::<FUSED>(-a * a)).copysign(x)
}

/// x * sigmoid(x).
#[inline(always)]
pub(crate) fn silu<const FUSED: bool>(x: f32) -> f32 {
    x / (1.0 + exp::<FUSED>(-x))
}

/// The derivative of [`silu`].
#[inline(always)]
pub(crate) fn silu_derivative<const FUSED: bool>(x: f32) -> f32 {
    let share = 1.0 / (1.0 + exp::<FUSED>(-x));
    fma::<FUSED>(x * share, 1.0 - share, share)
}

/// Sums `n` terms in sixteen interleaved accumulators that are combined in a fixed order, which can
/// be vectorized; `term(i, sum)` returns `sum` plus term `i`.
#[inline(always)]
pub(crate) fn sum_lanes(n: usize, term: impl FnMut(usize, f32) -> f32) -> f32 {
    sum_interleaved(n, term)
}

/// [`sum_lanes`] in f64.
#[inline(always)]
pub(crate) fn sum_lanes_f64(n: usize, term: impl FnMut(usize, f64) -> f64) -> f64 {
    sum_interleaved(n, term)
}

#[inline(always)]
fn sum_interleaved<T: Copy + Default + AddAssign>(
    n: usize,
    mut term: impl FnMut(usize, T) -> T,
) -> T {
    let mut lanes = [T::default(); 16];
    let whole = n / 16 * 16;
    for start in (0..whole).step_by(16) {
        for (l, lane) in lanes.iter_mut().enumerate() {
            *lane = term(start + l, *lane);
        }
    }
    for (l, lane) in lanes.iter_mut().enumerate().take(n - whole) {
        *lane = term(whole + l, *lane);
    }
    fold_lanes(lanes, |mut a, b| {
        a += b;
        a
    })
}

/// A tree reduction of sixteen lanes, in the same order for every instruction set. Each level is a
/// separate array, because otherwise the compiler goes through memory lane by lane.
#[inline(always)]
pub(super) fn fold_lanes<T: Copy>(lanes: [T; 16], f: impl Fn(T, T) -> T) -> T {
    let mut eight = [lanes[0]; 8];
    let mut four = [lanes[0]; 4];
    for l in 0..8 {
        eight[l] = f(lanes[l], lanes[l + 8]);
    }
    for l in 0..4 {
        four[l] = f(eight[l], eight[l + 4]);
    }
    f(f(four[0], four[2]), f(four[1], four[3]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worst(
        range: std::ops::Range<f32>,
        f: impl Fn(f32) -> f32,
        exact: impl Fn(f64) -> f64,
        floor: f64,
    ) -> f64 {
        let n = 20_000;
        let at = |i: usize| range.start + (range.end - range.start) * i as f32 / n as f32;
        let error = |x: f32| {
            (f64::from(f(x)) - exact(f64::from(x))).abs() / exact(f64::from(x)).abs().max(floor)
        };
        (0..n).map(|i| error(at(i))).fold(0.0, f64::max)
    }

    #[test]
    fn functions_are_accurate() {
        assert!(worst(-87.0..88.0, exp::<false>, f64::exp, 1e-37) < 3e-7);
        assert!(worst(-87.0..88.0, exp::<true>, f64::exp, 1e-37) < 3e-7);
        assert!(worst(-30.0..30.0, silu::<false>, |x| x / (1.0 + (-x).exp()), 1e-3) < 1e-6);
        let gelu = |x: f64| {
            0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x * x * x)).tanh())
        };
        assert!(worst(-8.0..8.0, gelu_tanh::<false>, gelu, 1e-2) < 1e-6);
    }

    #[test]
    fn erf_meets_known_values() {
        for (x, y) in [
            (0.0f32, 0.0f32),
            (0.5, 0.520_499_9),
            (1.0, 0.842_700_8),
            (-1.0, -0.842_700_8),
            (3.0, 0.999_977_9),
        ] {
            assert!((erf::<false>(x) - y).abs() < 3e-7, "erf({x})");
        }
    }

    #[test]
    fn exp_saturates() {
        assert_eq!(exp::<false>(-1e30), 0.0);
        assert_eq!(exp::<false>(f32::NEG_INFINITY), 0.0);
        assert!(exp::<false>(1e30).is_finite() && exp::<false>(1e30) > 1e38);
    }
}
