//! The rotation of rows and weights before they are rounded.
//!
//! The rounding error is proportional to a row's largest number, and some rows have a few numbers
//! many times larger than the rest, especially after GELU. Rotating both operands does not change
//! their product, and a rotation by Hadamard matrices, whose entries have equal magnitude, spreads
//! each number evenly over those that it is mixed with.

use super::super::isa::{Isa, per_isa};
use super::PANEL;

/// Number of registers that are mixed, lane by lane: a matrix of this order acts on numbers that
/// are `PANEL` apart.
const ORDER: usize = 16;

/// Rotates a vector; rotating twice is the identity, up to rounding. Every instruction set computes
/// the same sums, and so the same bits.
pub(super) fn rotate(isa: Isa, x: &mut [f32]) {
    per_isa!(isa, rotate_blocks(x: &mut [f32]));
}

#[inline(always)]
fn rotate_blocks<const FUSED: bool>(x: &mut [f32]) {
    let registers = x.as_chunks_mut::<PANEL>().0;
    let (blocks, rest) = registers.as_chunks_mut::<ORDER>();
    blocks.iter_mut().for_each(|block| mix::<ORDER>(block, 0.25));
    // The remainder is rotated in the largest possible blocks, and numbers beyond the last pair of
    // registers are not rotated.
    let (blocks, rest) = rest.as_chunks_mut::<8>();
    blocks.iter_mut().for_each(|block| mix::<8>(block, std::f32::consts::FRAC_1_SQRT_2 / 2.0));
    let (blocks, rest) = rest.as_chunks_mut::<4>();
    blocks.iter_mut().for_each(|block| mix::<4>(block, 0.5));
    let blocks = rest.as_chunks_mut::<2>().0;
    blocks.iter_mut().for_each(|block| mix::<2>(block, std::f32::consts::FRAC_1_SQRT_2));
}

/// Multiplies by the matrix of order `N`, whose entries are `scale` and `-scale`, as sums and
/// differences of halves.
#[inline(always)]
fn mix<const N: usize>(block: &mut [[f32; PANEL]; N], scale: f32) {
    let mut values = *block;
    let mut half = 1;
    while half < N {
        for i in (0..N).filter(|i| i & half == 0) {
            let a = values[i];
            let b = values[i + half];
            values[i] = std::array::from_fn(|l| a[l] + b[l]);
            values[i + half] = std::array::from_fn(|l| a[l] - b[l]);
        }
        half *= 2;
    }
    for (to, from) in block.iter_mut().zip(values) {
        *to = from.map(|x| x * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_keeps_products_and_is_its_own_inverse() {
        for len in [1, 31, 32, 48, 64, 100, 256, 576, 1000] {
            let numbers = |salt: usize| -> Vec<f32> {
                (0..len).map(|i| ((i * 37 + salt) % 101) as f32 / 50.0 - 1.0).collect()
            };
            let a = numbers(3);
            let b = numbers(58);
            let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
            let rotated = |x: &[f32]| {
                let mut x = x.to_vec();
                rotate(Isa::detect(), &mut x);
                x
            };
            let ra = rotated(&a);
            let rb = rotated(&b);
            assert!((dot(&ra, &rb) - dot(&a, &b)).abs() < 1e-3, "{len}");
            assert!(rotated(&ra).iter().zip(&a).all(|(x, y)| (x - y).abs() < 1e-5), "{len}");
        }
    }

    #[test]
    fn a_large_number_is_spread_evenly() {
        let mut x = vec![0.0; 256];
        x[37] = 8.0;
        rotate(Isa::detect(), &mut x);
        assert_eq!(x.iter().filter(|x| x.abs() == 2.0).count(), ORDER);
        assert_eq!(x.iter().filter(|&&x| x == 0.0).count(), 256 - ORDER);
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let x: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 2003) as f32 / 1001.0 - 1.0).collect();
        let rotated = |isa| {
            let mut x = x.clone();
            rotate(isa, &mut x);
            x
        };
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_present()) {
            assert_eq!(rotated(isa), rotated(Isa::Portable), "{isa}");
        }
    }
}
