//! Micro-kernels for aarch64: NEON, which every aarch64 CPU has.

use std::arch::aarch64::*;

use super::{GemmTask, MAX_TILE, OutputTile, PANEL, TileCall, TileEpilogue, panel_by_panel, sweep};

/// Lanes per register; a panel's row spans several registers.
const LANES: usize = 4;
const REGISTERS: usize = PANEL / LANES;

pub(super) fn run<E: TileEpilogue>(task: &GemmTask<'_>, epilogue: &E) {
    sweep::<true, MAX_TILE, E>(&task.range, epilogue, |place, tile| {
        let call = task.call(place);
        // SAFETY: the call covers its rows and panels.
        unsafe { panel_by_panel!(call, tile, multiply, [1 2 3 4 5 6]) }
    });
}

/// # Safety
/// The call's pointers cover a tile of at least `R` rows of x and panel `p`, which is 0 or 1.
unsafe fn multiply<const R: usize>(call: TileCall, tile: &mut OutputTile, p: usize) {
    // SAFETY: by the contract; a tile's row holds two panels.
    unsafe {
        let mut acc = [[vdupq_n_f32(0.0); REGISTERS]; R];
        let panel = call.b.add(p * call.inputs * PANEL);
        for k in 0..call.inputs {
            let b: [float32x4_t; REGISTERS] =
                std::array::from_fn(|i| vld1q_f32(panel.add(k * PANEL + i * LANES)));
            for (r, row) in acc.iter_mut().enumerate() {
                let a = vld1q_dup_f32(call.a.add(k * call.height + r));
                for (x, b) in row.iter_mut().zip(b) {
                    *x = vfmaq_f32(*x, a, b);
                }
            }
        }
        for (row, out) in acc.iter().zip(tile) {
            for (i, x) in row.iter().enumerate() {
                vst1q_f32(out.as_mut_ptr().add(p * PANEL + i * LANES), *x);
            }
        }
    }
}
