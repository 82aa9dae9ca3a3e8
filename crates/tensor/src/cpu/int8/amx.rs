//! Int8 products with Intel AMX: an instruction multiplies 16 rows of 64 bytes by 64 bytes of 16
//! columns.
//!
//! A panel's layout is that of the instruction: 16 quads of 16 columns are 16 rows of 64 bytes.

use std::arch::asm;

use super::super::amx::{ROW_BYTES, fetch_register, with_tiles};
use super::super::linear::{
    MAX_REGISTER_TILE, OutputTile, PANEL, REGISTER_ROWS, TILE_COLS, TileEpilogue, sweep,
};
use super::{DEPTH, Int8Call, Int8Task, QUAD, READ_AHEAD};

const _: () = assert!(READ_AHEAD + 1 == REGISTER_ROWS && DEPTH == ROW_BYTES);
/// Bytes of a panel consumed by one instruction.
const STEP: usize = DEPTH * PANEL;

/// # Safety
/// The CPU and the process have AMX; the CPU has AVX-512 F and DQ, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
pub(super) unsafe fn run<E: TileEpilogue>(task: &Int8Task<'_>, epilogue: &E) {
    let work = || {
        sweep::<true, MAX_REGISTER_TILE, E>(&task.range, epilogue, |place, tile| {
            let call = task.call(place);
            let mut sums = [[0i32; TILE_COLS]; MAX_REGISTER_TILE];
            // SAFETY: the registers are configured; the call covers its operands, and `READ_AHEAD`
            // rows more.
            unsafe {
                match (call.rows <= REGISTER_ROWS, call.panels) {
                    (true, 1) => multiply_one(call, &mut sums),
                    (true, _) => multiply_wide(call, &mut sums),
                    (false, 1) => multiply_tall(call, &mut sums),
                    (false, _) => multiply_four(call, &mut sums),
                }
            }
            finish(call, &sums, tile);
        });
    };
    // SAFETY: by this function's own contract.
    unsafe { with_tiles(work) };
}

#[inline(always)]
fn finish(
    call: Int8Call<'_>,
    sums: &[[i32; TILE_COLS]; MAX_REGISTER_TILE],
    tile: &mut OutputTile<MAX_REGISTER_TILE>,
) {
    for (r, (sums, out)) in sums[..call.rows].iter().zip(tile).enumerate() {
        for (p, sums) in sums.as_chunks::<PANEL>().0[..call.panels].iter().enumerate() {
            call.finish(r, p, *sums, out);
        }
    }
}

/// Defines a product of registers of rows (`$a`) and panels (`$b`) from the given loads,
/// multiplications and stores, which may use the pointers `a0`, `a1` (rows), `b0`, `b1` (panels),
/// `c0`, `c1` (sums) and the strides `row`, `quad`, `out`.
macro_rules! product {
    ($name:ident, [$($zero:literal)*], [$($multiply:literal)*], [$($store:literal)*]) => {
        /// # Safety
        /// The registers are configured; the call's pointers cover 16 or 32 rows and its panels.
        #[inline(always)]
        unsafe fn $name(call: Int8Call<'_>, sums: &mut [[i32; TILE_COLS]; MAX_REGISTER_TILE]) {
            let row = call.quads * QUAD;
            let c0 = sums.as_mut_ptr();
            // SAFETY: by the contract. The second pointers are only read through where there is a
            // second register of rows or a second panel.
            unsafe {
                asm!(
                    $($zero,)*
                    "2:",
                    $($multiply,)*
                    fetch_register!(),
                    "add {a0}, {depth}",
                    "add {a1}, {depth}",
                    "add {b0}, {step}",
                    "add {b1}, {step}",
                    "dec {left}",
                    "jnz 2b",
                    $($store,)*
                    "/* {a0} {a1} {b0} {b1} {c0} {c1} {row} {quad} {out} */",
                    a0 = inout(reg) call.a => _,
                    a1 = inout(reg) call.a.wrapping_add(REGISTER_ROWS * row) => _,
                    b0 = inout(reg) call.b => _,
                    b1 = inout(reg) call.b.wrapping_add(row * PANEL) => _,
                    fetched = inout(reg) call.fetched => _,
                    c0 = in(reg) c0,
                    c1 = in(reg) c0.add(REGISTER_ROWS),
                    row = in(reg) row,
                    quad = in(reg) QUAD * PANEL,
                    out = in(reg) TILE_COLS * size_of::<i32>(),
                    left = inout(reg) row / DEPTH => _,
                    depth = const DEPTH,
                    step = const STEP,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

product!(
    multiply_one,
    ["tilezero tmm0"],
    ["tileloadd tmm4, [{a0} + {row}]" "tileloadd tmm6, [{b0} + {quad}]" "tdpbsud tmm0, tmm4, tmm6"],
    ["tilestored [{c0} + {out}], tmm0"]
);
product!(
    multiply_wide,
    ["tilezero tmm0" "tilezero tmm1"],
    [
        "tileloadd tmm4, [{a0} + {row}]" "tileloadd tmm6, [{b0} + {quad}]"
        "tileloadd tmm7, [{b1} + {quad}]"
        "tdpbsud tmm0, tmm4, tmm6" "tdpbsud tmm1, tmm4, tmm7"
    ],
    ["tilestored [{c0} + {out}], tmm0" "tilestored [{c0} + {out} + 64], tmm1"]
);
product!(
    multiply_tall,
    ["tilezero tmm0" "tilezero tmm2"],
    [
        "tileloadd tmm4, [{a0} + {row}]" "tileloadd tmm6, [{b0} + {quad}]"
        "tileloadd tmm5, [{a1} + {row}]"
        "tdpbsud tmm0, tmm4, tmm6" "tdpbsud tmm2, tmm5, tmm6"
    ],
    ["tilestored [{c0} + {out}], tmm0" "tilestored [{c1} + {out}], tmm2"]
);
product!(
    multiply_four,
    ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
    [
        "tileloadd tmm4, [{a0} + {row}]" "tileloadd tmm6, [{b0} + {quad}]"
        "tileloadd tmm5, [{a1} + {row}]" "tileloadd tmm7, [{b1} + {quad}]"
        "tdpbsud tmm0, tmm4, tmm6" "tdpbsud tmm1, tmm4, tmm7"
        "tdpbsud tmm2, tmm5, tmm6" "tdpbsud tmm3, tmm5, tmm7"
    ],
    [
        "tilestored [{c0} + {out}], tmm0" "tilestored [{c0} + {out} + 64], tmm1"
        "tilestored [{c1} + {out}], tmm2" "tilestored [{c1} + {out} + 64], tmm3"
    ]
);
