//! Micro-kernels for x86-64: AVX-512 and AVX2.

use super::{
    GemmTask, MAX_TILE, OutputTile, PANEL, PackedTile, TileCall, TileEpilogue, TileRows, by_size,
    sweep,
};
use std::arch::x86_64::*;

/// Prefetch distance in rows of a panel: the hardware prefetcher stops at every page and starts
/// late in the next.
const AHEAD: usize = 16;

/// # Safety
/// The CPU has AVX-512 F and DQ, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
pub(super) unsafe fn run_avx512<E: TileEpilogue>(task: &GemmTask<'_>, epilogue: &E) {
    sweep::<true, MAX_TILE, E>(&task.range, epilogue, |place, tile| {
        let call = task.call(place);
        // SAFETY: the features are those of this function; the call covers its operands.
        unsafe { by_size!(call, tile, avx512, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]) }
    });
}

/// # Safety
/// The CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<E: TileEpilogue>(task: &GemmTask<'_>, epilogue: &E) {
    sweep::<true, MAX_TILE, E>(&task.range, epilogue, |place, tile| {
        let call = task.call(place);
        // SAFETY: as above. Two panels fill the registers at three rows; taller tiles take one
        // panel at a time.
        unsafe {
            if call.rows <= 3 {
                by_size!(call, tile, avx2, [1 2 3]);
            } else {
                for p in 0..call.panels {
                    let b = call.b.add(p * call.inputs * PANEL);
                    let fetched = if p == 0 { call.fetched } else { b };
                    by_one_panel(TileCall { b, fetched, panels: 1, ..call }, tile, p);
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
/// The CPU has AVX-512 F; the call's pointers cover a tile of at least `R` rows of x and `P`
/// whole panels.
#[target_feature(enable = "avx512f")]
unsafe fn avx512<const R: usize, const P: usize>(call: TileCall, tile: &mut OutputTile) {
    let mut acc = [[_mm512_setzero_ps(); P]; R];
    let stride = call.inputs * PANEL;
    let mut a = call.a;
    let mut b = call.b;
    let mut fetched = call.fetched;
    for _ in 0..call.inputs {
        // SAFETY: by the contract. A prefetch may point anywhere.
        unsafe {
            let columns: [__m512; P] = std::array::from_fn(|p| _mm512_loadu_ps(b.add(p * stride)));
            for p in 0..P {
                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(p * stride + AHEAD * PANEL).cast());
            }
            _mm_prefetch::<_MM_HINT_T1>(fetched.cast());
            for (r, row) in acc.iter_mut().enumerate() {
                let a = _mm512_set1_ps(*a.add(r));
                for (x, b) in row.iter_mut().zip(columns) {
                    *x = _mm512_fmadd_ps(a, b, *x);
                }
            }
            (a, b) = (a.add(call.height), b.add(PANEL));
            fetched = fetched.wrapping_add(PANEL);
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
/// The CPU has AVX2 and FMA; the call's pointers cover a tile of at least `R` rows of x and `P`
/// whole panels; `col + 16 P <= 32`.
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2_at<const R: usize, const P: usize>(
    call: TileCall,
    tile: &mut OutputTile,
    col: usize,
) {
    let mut acc = [[[_mm256_setzero_ps(); 2]; P]; R];
    let stride = call.inputs * PANEL;
    for k in 0..call.inputs {
        // SAFETY: by the contract. A prefetch may point anywhere.
        unsafe {
            let b: [[__m256; 2]; P] = std::array::from_fn(|p| {
                let at = call.b.add(p * stride + k * PANEL);
                [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))]
            });
            _mm_prefetch::<_MM_HINT_T1>(call.fetched.wrapping_add(k * PANEL).cast());
            for (r, row) in acc.iter_mut().enumerate() {
                let a = _mm256_broadcast_ss(&*call.a.add(k * call.height + r));
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

/// Packs as many inputs as whole registers hold, and returns their number.
///
/// # Safety
/// The CPU has AVX-512 F.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn pack_avx512(tile: &mut PackedTile<'_>, rows: TileRows<'_>) -> usize {
    let inputs = tile.inputs;
    let height = tile.height;
    let TileRows { data, count, stride } = rows;
    assert!(count <= height && height <= PANEL && tile.values.len() == inputs * height);
    assert!(count == 0 || (count - 1) * stride + inputs <= data.len());
    let lanes = ((1u32 << height) - 1) as u16;
    let whole = inputs / PANEL * PANEL;
    for k in (0..whole).step_by(PANEL) {
        let mut block = [_mm512_setzero_ps(); PANEL];
        for (r, row) in block.iter_mut().enumerate().take(count) {
            // SAFETY: the row has `inputs` numbers, and `k + PANEL <= inputs`.
            *row = unsafe { _mm512_loadu_ps(data.as_ptr().add(r * stride + k)) };
        }
        for (i, column) in transposed(block).into_iter().enumerate() {
            // SAFETY: the tile is (inputs, height), and `height` lanes are stored.
            unsafe {
                let to = tile.values.as_mut_ptr().add((k + i) * height);
                _mm512_mask_storeu_ps(to.cast(), lanes, column);
            }
        }
    }
    whole
}

/// Packs most inputs, and returns their number.
///
/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn pack_avx2(tile: &mut PackedTile<'_>, rows: TileRows<'_>) -> usize {
    const LANES: usize = 8;
    let inputs = tile.inputs;
    let height = tile.height;
    let TileRows { data, count, stride } = rows;
    assert!(count <= height && height <= LANES && tile.values.len() == inputs * height);
    assert!(count == 0 || (count - 1) * stride + inputs <= data.len());
    // A whole register is stored for each input, and the next store overwrites the part beyond its
    // rows; so the last inputs are left to the caller.
    let whole = inputs.saturating_sub(LANES) / LANES * LANES;
    for k in (0..whole).step_by(LANES) {
        let mut block = [_mm256_setzero_ps(); LANES];
        for (r, row) in block.iter_mut().enumerate().take(count) {
            // SAFETY: the row has `inputs` numbers, and `k + LANES <= inputs`.
            *row = unsafe { _mm256_loadu_ps(data.as_ptr().add(r * stride + k)) };
        }
        for (i, column) in transposed_by_eight(block).into_iter().enumerate() {
            // SAFETY: the tile is (inputs, height), and at least eight inputs follow.
            unsafe {
                let to = tile.values.as_mut_ptr().add((k + i) * height);
                _mm256_storeu_ps(to.cast(), column);
            }
        }
    }
    whole
}

/// 8 rows of 8 numbers as columns.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed_by_eight(rows: [__m256; 8]) -> [__m256; 8] {
    let zero = _mm256_setzero_ps();
    // Within each 128 bits: pairs of rows, then fours.
    let mut pairs = [zero; 8];
    let mut fours = [zero; 8];
    for i in 0..4 {
        pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    for i in 0..2 {
        for half in 0..2 {
            let low = pairs[4 * i + half];
            let high = pairs[4 * i + 2 + half];
            fours[4 * i + 2 * half] = _mm256_shuffle_ps::<0x44>(low, high);
            fours[4 * i + 2 * half + 1] = _mm256_shuffle_ps::<0xee>(low, high);
        }
    }
    // Then the halves: fours[4 i + c] has columns c and c + 4 of rows 4 i to 4 i + 3.
    let mut columns = [zero; 8];
    for c in 0..4 {
        columns[c] = _mm256_permute2f128_ps::<0x20>(fours[c], fours[4 + c]);
        columns[4 + c] = _mm256_permute2f128_ps::<0x31>(fours[c], fours[4 + c]);
    }
    columns
}

/// 16 rows of 16 numbers as columns.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512; PANEL]) -> [__m512; PANEL] {
    let zero = _mm512_setzero_ps();
    // Within each 128 bits: pairs of rows, then fours.
    let mut pairs = [zero; PANEL];
    let mut fours = [zero; PANEL];
    for i in 0..PANEL / 2 {
        pairs[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    for i in 0..PANEL / 4 {
        for half in 0..2 {
            let low = _mm512_castps_pd(pairs[4 * i + half]);
            let high = _mm512_castps_pd(pairs[4 * i + 2 + half]);
            fours[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            fours[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    // Then the quarters of 128 bits: fours[4 i + c] has column c + 4 q of rows 4 i to 4 i + 3 in
    // its quarter q.
    let mut columns = [zero; PANEL];
    for c in 0..4 {
        let a = _mm512_shuffle_f32x4::<0x88>(fours[c], fours[4 + c]);
        let b = _mm512_shuffle_f32x4::<0xdd>(fours[c], fours[4 + c]);
        let d = _mm512_shuffle_f32x4::<0x88>(fours[8 + c], fours[12 + c]);
        let e = _mm512_shuffle_f32x4::<0xdd>(fours[8 + c], fours[12 + c]);
        columns[c] = _mm512_shuffle_f32x4::<0x88>(a, d);
        columns[8 + c] = _mm512_shuffle_f32x4::<0xdd>(a, d);
        columns[4 + c] = _mm512_shuffle_f32x4::<0x88>(b, e);
        columns[12 + c] = _mm512_shuffle_f32x4::<0xdd>(b, e);
    }
    columns
}
