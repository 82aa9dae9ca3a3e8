//! Micro-kernels of x86-64: AVX-512 and AVX2.

use super::{
    GemmTask, MAX_TILE, OutputTile, PANEL, TileCall, TileEpilogue, TileHeight, by_size, sweep,
};
use std::arch::x86_64::*;

/// Rows of an AVX-512 tile. Rows of x that are a multiple of 4 KiB apart fall into one set of
/// the L1 cache, which has eight ways (measured at 3072 inputs: 8 rows 98% of the peak, 12 rows
/// 83%).
fn tile_rows(inputs: usize) -> usize {
    if (inputs * size_of::<f32>()).is_multiple_of(4096) { 8 } else { MAX_TILE }
}

/// # Safety
/// The CPU has AVX-512 F and DQ, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
pub(super) unsafe fn run_avx512<E: TileEpilogue>(task: &GemmTask<'_>, epilogue: &E) {
    let height = TileHeight::up_to(tile_rows(task.weights.inputs));
    sweep::<true, MAX_TILE, E>(&task.range, epilogue, height, |place, tile| {
        let call = task.call(place);
        // SAFETY: the features are those of this function; the call covers its operands.
        unsafe { by_size!(call, tile, avx512, [1 2 3 4 5 6 7 8 9 10 11 12]) }
    });
}

/// # Safety
/// The CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<E: TileEpilogue>(task: &GemmTask<'_>, epilogue: &E) {
    sweep::<true, MAX_TILE, E>(&task.range, epilogue, TileHeight::up_to(6), |place, tile| {
        let call = task.call(place);
        // SAFETY: as above. Two panels fill the registers at three rows; taller tiles take one
        // panel at a time.
        unsafe {
            if call.rows <= 3 {
                by_size!(call, tile, avx2, [1 2 3]);
            } else {
                for p in 0..call.panels {
                    let one =
                        TileCall { b: call.b.add(p * call.inputs * PANEL), panels: 1, ..call };
                    by_one_panel(one, tile, p);
                }
            }
        }
    });
}

/// # Safety
/// As [`avx2_at`]; 4 to 6 rows, one panel, whose result goes to columns `16 * p ..`.
#[target_feature(enable = "avx2,fma")]
unsafe fn by_one_panel(call: TileCall, tile: &mut OutputTile, p: usize) {
    // SAFETY: by this function's own contract.
    unsafe {
        match call.rows {
            4 => avx2_at::<4, 1>(call, tile, p * PANEL),
            5 => avx2_at::<5, 1>(call, tile, p * PANEL),
            _ => avx2_at::<6, 1>(call, tile, p * PANEL),
        }
    }
}

/// # Safety
/// The CPU has AVX-512 F; the call's pointers cover `R` x `inputs` of x and `P` whole
/// panels.
#[target_feature(enable = "avx512f")]
unsafe fn avx512<const R: usize, const P: usize>(call: TileCall, tile: &mut OutputTile) {
    let mut acc = [[_mm512_setzero_ps(); P]; R];
    let stride = call.inputs * PANEL;
    for k in 0..call.inputs {
        // SAFETY: by the contract.
        unsafe {
            let b: [__m512; P] =
                std::array::from_fn(|p| _mm512_loadu_ps(call.b.add(p * stride + k * PANEL)));
            for (r, row) in acc.iter_mut().enumerate() {
                let a = _mm512_set1_ps(*call.a.add(r * call.inputs + k));
                for (x, b) in row.iter_mut().zip(b) {
                    *x = _mm512_fmadd_ps(a, b, *x);
                }
            }
        }
    }
    for (row, out) in acc.iter().zip(tile) {
        for (p, x) in row.iter().enumerate() {
            // SAFETY: a tile's row holds two panels.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr().add(p * PANEL), *x) };
        }
    }
}

/// # Safety
/// As [`avx2_at`].
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2<const R: usize, const P: usize>(call: TileCall, tile: &mut OutputTile) {
    // SAFETY: by this function's own contract.
    unsafe { avx2_at::<R, P>(call, tile, 0) }
}

/// # Safety
/// The CPU has AVX2 and FMA; the call's pointers cover `R` x `inputs` of x and `P` whole
/// panels; `col + 16 P <= 32`.
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2_at<const R: usize, const P: usize>(
    call: TileCall,
    tile: &mut OutputTile,
    col: usize,
) {
    let mut acc = [[[_mm256_setzero_ps(); 2]; P]; R];
    let stride = call.inputs * PANEL;
    for k in 0..call.inputs {
        // SAFETY: by the contract.
        unsafe {
            let b: [[__m256; 2]; P] = std::array::from_fn(|p| {
                let at = call.b.add(p * stride + k * PANEL);
                [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))]
            });
            for (r, row) in acc.iter_mut().enumerate() {
                let a = _mm256_broadcast_ss(&*call.a.add(r * call.inputs + k));
                for (x, b) in row.iter_mut().zip(b) {
                    x[0] = _mm256_fmadd_ps(a, b[0], x[0]);
                    x[1] = _mm256_fmadd_ps(a, b[1], x[1]);
                }
            }
        }
    }
    for (row, out) in acc.iter().zip(tile) {
        for (p, x) in row.iter().enumerate() {
            // SAFETY: by the contract on `col`.
            unsafe {
                _mm256_storeu_ps(out.as_mut_ptr().add(col + p * PANEL), x[0]);
                _mm256_storeu_ps(out.as_mut_ptr().add(col + p * PANEL + 8), x[1]);
            }
        }
    }
}
