//! Micro-kernels for aarch64: NEON int8 dot products.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::linear::{MAX_TILE, OutputTile, PANEL, TileEpilogue, panel_by_panel, sweep};
use super::{Int8Call, Int8Task, OFFSET, QUAD};

/// Columns per register; a panel's quads span several registers.
const COLUMNS: usize = 4;
const REGISTERS: usize = PANEL / COLUMNS;

/// # Safety
/// The CPU has dot products.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn run<E: TileEpilogue>(task: &Int8Task<'_>, epilogue: &E) {
    sweep::<true, MAX_TILE, E>(&task.range, epilogue, |place, tile| {
        let call = task.call(place);
        // SAFETY: the features are those of this function; the call covers its operands.
        unsafe { panel_by_panel!(call, tile, multiply, [1 2 3 4 5 6]) }
    });
}

/// # Safety
/// The CPU has dot products; the call's pointers cover `R` rows and panel `p`.
#[target_feature(enable = "neon,dotprod")]
unsafe fn multiply<const R: usize>(call: Int8Call<'_>, tile: &mut OutputTile, p: usize) {
    // The instruction takes signed bytes: weights lose their offset here, so the sums start with
    // its contribution.
    let mut sums: [[int32x4_t; REGISTERS]; R] =
        std::array::from_fn(|r| [vdupq_n_s32(call.offsets[r]); REGISTERS]);
    let offset = vdupq_n_u8(OFFSET as u8);
    for q in 0..call.quads {
        // SAFETY: by the contract.
        unsafe {
            let b = call.b.add((p * call.quads + q) * QUAD * PANEL);
            let b: [uint8x16_t; REGISTERS] =
                std::array::from_fn(|i| veorq_u8(vld1q_u8(b.add(i * COLUMNS * QUAD)), offset));
            for (r, sums) in sums.iter_mut().enumerate() {
                let a = call.a.add((r * call.quads + q) * QUAD).cast::<i32>().read_unaligned();
                let a = vdupq_n_s32(a);
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = dot(*sum, b, a);
                }
            }
        }
    }
    for (r, (sums, out)) in sums.iter().zip(tile).enumerate() {
        let mut values = [0i32; PANEL];
        for (values, sum) in values.chunks_mut(COLUMNS).zip(sums) {
            // SAFETY: four 32-bit numbers.
            unsafe { vst1q_s32(values.as_mut_ptr(), *sum) };
        }
        call.finish(r, p, values, out);
    }
}

/// Adds the products of its four bytes to each lane. The intrinsic is not stable in the oldest
/// supported Rust version.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot(mut sum: int32x4_t, b: uint8x16_t, a: int32x4_t) -> int32x4_t {
    // SAFETY: only uses registers.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {b:v}.16b, {a:v}.16b",
            sum = inout(vreg) sum,
            b = in(vreg) b,
            a = in(vreg) a,
            options(pure, nomem, nostack),
        );
    }
    sum
}
