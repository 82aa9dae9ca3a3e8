//! Vector micro-kernels for x86-64: AVX-512 VNNI, AVX-VNNI and AVX2.

use super::super::linear::{
    MAX_TILE, OutputTile, PANEL, TileEpilogue, by_size, panel_by_panel, sweep,
};
use super::{Int8Call, Int8Task, QUAD};
use std::arch::x86_64::*;

/// # Safety
/// The CPU has AVX-512 F, DQ and VNNI, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512dq,avx512vnni,avx2,fma")]
pub(super) unsafe fn run_avx512_vnni<E: TileEpilogue>(task: &Int8Task<'_>, epilogue: &E) {
    sweep::<true, MAX_TILE, E>(&task.range, epilogue, |place, tile| {
        let call = task.call(place);
        // SAFETY: the features are those of this function; the call covers its operands.
        unsafe { by_size!(call, tile, avx512_vnni, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]) }
    });
}

/// # Safety
/// The CPU has AVX-VNNI, AVX2 and FMA.
#[target_feature(enable = "avxvnni,avx2,fma")]
pub(super) unsafe fn run_avx_vnni<E: TileEpilogue>(task: &Int8Task<'_>, epilogue: &E) {
    sweep::<true, MAX_TILE, E>(&task.range, epilogue, |place, tile| {
        let call = task.call(place);
        // SAFETY: the features are those of this function; the call covers its operands.
        unsafe { panel_by_panel!(call, tile, avx_vnni, [1 2 3 4 5 6]) }
    });
}

/// # Safety
/// The CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<E: TileEpilogue>(task: &Int8Task<'_>, epilogue: &E) {
    sweep::<true, MAX_TILE, E>(&task.range, epilogue, |place, tile| {
        let call = task.call(place);
        // SAFETY: as above.
        unsafe { panel_by_panel!(call, tile, avx2, [1 2 3]) }
    });
}

/// # Safety
/// The CPU has AVX-512 F and VNNI; the call's pointers cover `R` rows and `P` panels.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn avx512_vnni<const R: usize, const P: usize>(call: Int8Call<'_>, tile: &mut OutputTile) {
    let mut sums = [[_mm512_setzero_si512(); P]; R];
    let row = call.quads * QUAD;
    let panel = call.quads * QUAD * PANEL;
    for q in 0..call.quads {
        // SAFETY: by the contract. A prefetch may point anywhere.
        unsafe {
            let b: [__m512i; P] = std::array::from_fn(|p| {
                _mm512_loadu_si512(call.b.add(p * panel + q * QUAD * PANEL).cast())
            });
            _mm_prefetch::<_MM_HINT_T1>(call.fetched.wrapping_add(q * QUAD * PANEL).cast());
            for (r, sums) in sums.iter_mut().enumerate() {
                let a = call.a.add(r * row + q * QUAD).cast::<i32>().read_unaligned();
                let a = _mm512_set1_epi32(a);
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = _mm512_dpbusd_epi32(*sum, b, a);
                }
            }
        }
    }
    for (r, (sums, out)) in sums.iter().zip(tile).enumerate() {
        let offset = _mm512_set1_epi32(call.offsets[r]);
        let row_scale = _mm512_set1_ps(call.row_scales[r]);
        for (p, sum) in sums.iter().enumerate() {
            let sum = _mm512_cvtepi32_ps(_mm512_sub_epi32(*sum, offset));
            // SAFETY: scales and a tile's row hold `P` panels.
            unsafe {
                let scale = _mm512_loadu_ps(call.scales.as_ptr().add(p * PANEL));
                let value = _mm512_mul_ps(_mm512_mul_ps(sum, row_scale), scale);
                _mm512_storeu_ps(out.as_mut_ptr().add(p * PANEL), value);
            }
        }
    }
}

/// # Safety
/// The CPU has AVX-VNNI and AVX2; the call's pointers cover `R` rows and panel `p`.
#[target_feature(enable = "avxvnni,avx2")]
unsafe fn avx_vnni<const R: usize>(call: Int8Call<'_>, tile: &mut OutputTile, p: usize) {
    const HALF: usize = PANEL / 2;
    let mut sums = [[_mm256_setzero_si256(); 2]; R];
    let fetched = if p == 0 { call.fetched } else { call.b };
    for q in 0..call.quads {
        // SAFETY: by the contract. A prefetch may point anywhere.
        unsafe {
            _mm_prefetch::<_MM_HINT_T1>(fetched.wrapping_add(q * QUAD * PANEL).cast());
            let b = call.b.add((p * call.quads + q) * QUAD * PANEL);
            let b: [__m256i; 2] =
                std::array::from_fn(|half| _mm256_loadu_si256(b.add(half * QUAD * HALF).cast()));
            for (r, sums) in sums.iter_mut().enumerate() {
                let a = call.a.add((r * call.quads + q) * QUAD).cast::<i32>().read_unaligned();
                let a = _mm256_set1_epi32(a);
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = _mm256_dpbusd_avx_epi32(*sum, b, a);
                }
            }
        }
    }
    for (r, (sums, out)) in sums.iter().zip(tile).enumerate() {
        let mut values = [0i32; PANEL];
        for (half, sum) in values.chunks_mut(HALF).zip(sums) {
            // SAFETY: eight 32-bit numbers.
            unsafe { _mm256_storeu_si256(half.as_mut_ptr().cast(), *sum) };
        }
        call.finish(r, p, values, out);
    }
}

/// Bytes are widened to 16 bits, because the instruction for bytes saturates.
///
/// # Safety
/// The CPU has AVX2; the call's pointers cover `R` rows and panel `p`.
#[target_feature(enable = "avx2")]
unsafe fn avx2<const R: usize>(call: Int8Call<'_>, tile: &mut OutputTile, p: usize) {
    const PARTS: usize = 4; // of a panel: four columns, each as two sums of pairs
    let mut sums = [[_mm256_setzero_si256(); PARTS]; R];
    for q in 0..call.quads {
        // SAFETY: by the contract.
        unsafe {
            let b = call.b.add((p * call.quads + q) * QUAD * PANEL);
            let b: [__m256i; PARTS] = std::array::from_fn(|part| {
                _mm256_cvtepu8_epi16(_mm_loadu_si128(b.add(part * 16).cast()))
            });
            for (r, sums) in sums.iter_mut().enumerate() {
                let a = call.a.add((r * call.quads + q) * QUAD).cast::<i32>().read_unaligned();
                let a = _mm256_cvtepi8_epi16(_mm_set1_epi32(a));
                for (sum, b) in sums.iter_mut().zip(b) {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(a, b));
                }
            }
        }
    }
    for (r, (sums, out)) in sums.iter().zip(tile).enumerate() {
        let mut values = [0i32; PANEL];
        for (values, sum) in values.chunks_mut(PARTS).zip(sums) {
            let mut pairs = [[0i32; 2]; PARTS];
            // SAFETY: eight 32-bit numbers.
            unsafe { _mm256_storeu_si256(pairs.as_mut_ptr().cast(), *sum) };
            for (value, pair) in values.iter_mut().zip(pairs) {
                *value = pair[0] + pair[1];
            }
        }
        call.finish(r, p, values, out);
    }
}
