//! Measures the CPU's peak FLOP/s.

use std::time::Instant;

use super::isa::{Isa, fma, per_isa};
use crate::Device;

/// Total FLOP/s (a multiply-add counts as two) of the device's threads on register operands. The
/// best of several short runs, because other load on the machine can only lower one.
pub(crate) fn fma_flops(device: &Device, isa: Isa) -> f64 {
    const STEPS: usize = 4_000_000;
    let lanes = if isa.is_wide() { WIDE } else { NARROW } * 16;
    let run = || {
        let start = Instant::now();
        let sums = device.run(|| rayon::broadcast(|_| chains(isa, STEPS)));
        assert!(sums.iter().all(|s| s.is_finite()));
        2.0 * (STEPS * lanes * sums.len()) as f64 / start.elapsed().as_secs_f64()
    };
    (0..7).map(|_| run()).fold(0.0, f64::max)
}

/// Independent chains of 16 lanes: enough to hide the latency of a multiply-add, few enough to stay
/// in registers.
const WIDE: usize = 10;
const NARROW: usize = 5;

fn chains(isa: Isa, steps: usize) -> f32 {
    if isa.is_wide() {
        per_isa!(isa, wide(steps: usize) -> f32)
    } else {
        per_isa!(isa, narrow(steps: usize) -> f32)
    }
}

#[inline(always)]
fn wide<const FUSED: bool>(steps: usize) -> f32 {
    spin::<FUSED, WIDE>(steps)
}

#[inline(always)]
fn narrow<const FUSED: bool>(steps: usize) -> f32 {
    spin::<FUSED, NARROW>(steps)
}

#[inline(always)]
fn spin<const FUSED: bool, const N: usize>(steps: usize) -> f32 {
    let scale = std::hint::black_box(0.999f32);
    let shift = std::hint::black_box(0.001f32);
    let mut acc = [[1.0f32; 16]; N];
    for _ in 0..steps {
        for chain in &mut acc {
            for x in chain {
                *x = fma::<FUSED>(*x, scale, shift);
            }
        }
    }
    std::hint::black_box(acc).as_flattened().iter().sum()
}
