//! e4m3 on the host: four exponent bits, three significand bits, no infinities (`fp8.cuh`).
//!
//! 448 is the largest magnitude, 2^-6 the smallest normal one, 2^-9 the smallest; 0x7f and 0xff
//! are NaN. Scales of rows and of weights are powers of two, so that rounding to e4m3 is the only
//! rounding.

/// The largest magnitude.
pub(crate) const MAX: f32 = 448.0;

/// Smaller maxima are treated as this value when a scale is chosen, so that the inverse scale stays
/// finite.
const LEAST_LARGEST: f32 = 1e-30;

/// 2^exponent.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Rounds to nearest even; beyond 448 saturates, NaN stays NaN. As `cvt.rn.satfinite.e4m3x2.f32`.
#[allow(dead_code, reason = "a GPU rounds; tests and `cuda_check` compare it with this")]
pub(crate) fn from_f32(x: f32) -> u8 {
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    let magnitude = x.abs();
    if magnitude.is_nan() {
        return sign | 0x7f;
    }
    if magnitude >= MAX {
        return sign | 0x7e;
    }
    // The step is 2^-9 below the smallest normal number, else an eighth of the binade's start.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-6);
    let steps = (magnitude * power_of_two(3 - exponent)).round_ties_even() as u8; // at most 16
    let biased = (exponent + 7) as u8;
    // Step counts from 8 on include the implicit bit; 16 of them are the next binade.
    sign | if exponent == -6 { steps } else { (biased << 3) + steps - 8 }
}

/// The value of a code.
pub(crate) fn to_f32(code: u8) -> f32 {
    let exponent = i32::from(code >> 3 & 15);
    let fraction = f32::from(code & 7);
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction * power_of_two(-9),
        _ => (8.0 + fraction) * power_of_two(exponent - 10),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The scale for numbers up to `largest` in magnitude: the smallest power of two such that the
/// quotients are at most 448.
pub(crate) fn scale_for(largest: f32) -> f32 {
    let bits = largest.max(LEAST_LARGEST).to_bits(); // 448 is 1.75 * 2^8
    let exponent = (bits >> 23) - 8 + u32::from(bits & 0x7f_ffff > 0x60_0000);
    f32::from_bits(exponent << 23)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RngKey;

    /// All values of the format by definition, sorted: (value, code) without sign and NaN.
    fn all_numbers() -> Vec<(f64, u8)> {
        let number = |code: u8| {
            let e = i32::from(code) / 8;
            let m = f64::from(code % 8);
            let value =
                if e == 0 { m / 8.0 * 2f64.powi(-6) } else { (1.0 + m / 8.0) * 2f64.powi(e - 7) };
            (value, code)
        };
        (0..0x7f).map(number).collect()
    }

    /// Rounds by search: the nearest value, ties to even codes.
    fn nearest(x: f64, numbers: &[(f64, u8)]) -> u8 {
        let sign = if x.is_sign_negative() { 0x80 } else { 0 };
        let at = numbers.partition_point(|n| n.0 <= x.abs());
        let below = numbers[at - 1];
        let Some(&above) = numbers.get(at) else { return sign | below.1 };
        let down = x.abs() - below.0;
        let up = above.0 - x.abs();
        let rounds_up = up < down || (up == down && above.1 % 2 == 0);
        sign | if rounds_up { above.1 } else { below.1 }
    }

    #[test]
    fn every_code_is_its_definition_and_survives_a_round_trip() {
        for (value, code) in all_numbers() {
            for (value, code) in [(value, code), (-value, code | 0x80)] {
                assert_eq!(f64::from(to_f32(code)), value, "{code:#x}");
                assert_eq!(from_f32(to_f32(code)), code, "{code:#x}");
            }
        }
        for code in [0x7f, 0xff] {
            assert!(to_f32(code).is_nan());
            assert_eq!(from_f32(to_f32(code)) & 0x7f, 0x7f);
        }
        assert_eq!((to_f32(0x7e), to_f32(1), to_f32(8)), (MAX, 2f32.powi(-9), 2f32.powi(-6)));
    }

    /// Every f32 with arbitrary leading 16 bits, i.e. all bf16 numbers, and the numbers next to
    /// every midpoint.
    #[test]
    fn rounding_is_to_the_nearest_even() {
        let numbers = all_numbers();
        let check = |x: f32| {
            if x.is_nan() {
                assert_eq!(from_f32(x) & 0x7f, 0x7f);
            } else {
                assert_eq!(from_f32(x), nearest(f64::from(x), &numbers), "{x:e}");
            }
        };
        (0..=u16::MAX).for_each(|high| check(f32::from_bits(u32::from(high) << 16)));
        for pair in numbers.windows(2) {
            let middle = ((pair[0].0 + pair[1].0) / 2.0) as f32; // exact
            for bits in middle.to_bits() - 2..=middle.to_bits() + 2 {
                check(f32::from_bits(bits));
                check(-f32::from_bits(bits));
            }
        }
        assert_eq!((from_f32(464.0), from_f32(-1e30), from_f32(f32::INFINITY)), (0x7e, 0xfe, 0x7e));
        assert_eq!((from_f32(-0.0), from_f32(2f32.powi(-10)), from_f32(1e-40)), (0x80, 0, 0));
    }

    #[test]
    fn a_scale_is_the_least_power_of_two_that_fits() {
        for largest in [1e-20f32, 0.3, 1.0, 1.75, 1.750_000_1, 3.999, 447.9, 448.0, 448.1, 3e30] {
            let scale = scale_for(largest);
            assert_eq!(scale.to_bits() & 0x7f_ffff, 0, "{scale} is no power of two");
            assert!(largest / scale <= MAX && largest / scale > MAX / 2.0, "{largest}: {scale}");
        }
        assert_eq!(
            (scale_for(448.0), scale_for(448.1), scale_for(1.75)),
            (1.0, 2.0, 2f32.powi(-8))
        );
        assert!(scale_for(0.0) > 0.0 && (1.0 / scale_for(0.0)).is_finite());
        assert!((1.0 / scale_for(f32::MAX)) > 0.0);
    }

    /// Gaussian numbers, and their rounding to e4m3 with the scale of the largest.
    fn rounded_row(n: usize, salt: u64) -> (Vec<f32>, Vec<f32>) {
        let mut x = vec![0.0; n];
        let key = RngKey { seed: salt, question: 0, trajectory: 0, position: 0 };
        key.add_noise(1.0, &mut x);
        let scale = scale_for(x.iter().fold(0.0, |m: f32, x| m.max(x.abs())));
        let rounded = x.iter().map(|x| to_f32(from_f32(x / scale)) * scale).collect();
        (x, rounded)
    }

    /// A model of the tensor cores' sums: of the 32 products of an instruction and the sum so far,
    /// bits more than 13 below the largest are truncated.
    fn truncated_dot(x: &[f32], w: &[f32]) -> f64 {
        x.chunks(32).zip(w.chunks(32)).fold(0.0, |sum: f64, (x, w)| {
            let products = x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b));
            let addends: Vec<f64> = products.chain([sum]).collect();
            let largest = addends.iter().fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs()));
            let unit = 2f64.powf(largest.log2().floor() - 13.0);
            addends.iter().map(|x| (x / unit).trunc()).sum::<f64>() * unit
        })
    }

    /// The errors reported in docs/explanation/numerics.md, relative to the root mean square of the
    /// results: of rounding the operands, and of the sums of the rounded ones.
    #[test]
    fn sums_of_fourteen_bits_cost_less_than_the_rounding_of_operands() {
        let rms = |x: &[f64]| (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64).sqrt();
        for (depth, tolerance) in [(768, 1e-3), (3072, 2.5e-3), (8192, 4e-3)] {
            let mut exact = Vec::new();
            let mut by_rounding = Vec::new();
            let mut by_sums = Vec::new();
            for salt in 0..100 {
                let (x, x_rounded) = rounded_row(depth, 2 * salt);
                let (w, w_rounded) = rounded_row(depth, 2 * salt + 1);
                let dot = |x: &[f32], w: &[f32]| {
                    x.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
                };
                let all = dot(&x, &w);
                let of_rounded = dot(&x_rounded, &w_rounded);
                exact.push(all);
                by_rounding.push(of_rounded - all);
                by_sums.push(truncated_dot(&x_rounded, &w_rounded) - of_rounded);
            }
            let rounding = rms(&by_rounding) / rms(&exact);
            let sums = rms(&by_sums) / rms(&exact);
            println!("{depth}: rounding {rounding:.1e}, sums {sums:.1e}");
            assert!((2.5e-2..5e-2).contains(&rounding), "{depth}: {rounding}");
            assert!(sums < tolerance, "{depth}: {sums}");
        }
    }
}
