//! Products of bf16 parts with Intel AMX: an instruction multiplies 16 rows of 32 bf16 numbers by
//! 32 of 16 columns.

use std::arch::asm;

use super::super::amx::{ROW_BYTES, fetch_register, with_tiles};
use super::super::linear::{
    MAX_REGISTER_TILE, OutputTile, REGISTER_ROWS, TILE_COLS, TileEpilogue, sweep,
};
use super::{DEPTH, PARTS, REGISTER, SplitCall, SplitTask};

/// Bytes of a register; the assembly contains this as literals.
const BYTES: usize = REGISTER * size_of::<u16>();
const _: () = assert!(BYTES == 1024 && PARTS == 3 && DEPTH * size_of::<u16>() == ROW_BYTES);

/// # Safety
/// The CPU and the process have AMX; the CPU has AVX-512 F and DQ, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
pub(super) unsafe fn run<E: TileEpilogue>(task: &SplitTask<'_>, epilogue: &E) {
    let work = || {
        sweep::<true, MAX_REGISTER_TILE, E>(&task.range, epilogue, |place, tile| {
            let call = task.call(place);
            // SAFETY: the registers are configured; the call covers its operands.
            unsafe {
                match (call.rows <= REGISTER_ROWS, call.panels) {
                    (true, 1) => multiply_one(call, tile),
                    (true, _) => multiply_wide(call, tile),
                    (false, 1) => multiply_tall(call, tile),
                    (false, _) => multiply_four(call, tile),
                }
            }
        });
    };
    // SAFETY: by this function's own contract.
    unsafe { with_tiles(work) };
}

/// Defines a product of registers of rows, loaded by `$x` (without the offset of a part and the
/// closing bracket), and of panels, loaded by `$w`. The assembly may use the pointers `a` (rows),
/// `b0`, `b1` (panels), `c0`, `c1` (results) and the strides `line` (of an operand's rows) and
/// `out`.
macro_rules! product {
    (
        $name:ident, zero: [$($zero:literal)*], x: [$($x:literal)*], w: [$($w:literal)*],
        multiply: [$($multiply:literal)*], store: [$($store:literal)*]
    ) => {
        /// # Safety
        /// The registers are configured; the call's pointers cover a tile of x and its panels.
        #[inline(always)]
        unsafe fn $name(call: SplitCall, tile: &mut OutputTile<MAX_REGISTER_TILE>) {
            let c0 = tile.as_mut_ptr();
            // SAFETY: by the contract. The second pointers are only used where there is a second
            // panel or a second register of rows.
            unsafe {
                asm!(
                    $($zero,)*
                    "2:",
                    $($w,)*
                    fetch_register!(),
                    $(concat!($x, "2048]"),)* $($multiply,)*
                    $(concat!($x, "1024]"),)* $($multiply,)*
                    $(concat!($x, "0]"),)* $($multiply,)*
                    "add {a}, {x_step}",
                    "add {b0}, 1024",
                    "add {b1}, 1024",
                    "dec {left}",
                    "jnz 2b",
                    $($store,)*
                    "/* {b1} {c1} {line} {out} */",
                    a = inout(reg) call.a => _,
                    b0 = inout(reg) call.b => _,
                    b1 = inout(reg) call.b.wrapping_add(call.blocks * REGISTER) => _,
                    fetched = inout(reg) call.fetched => _,
                    c0 = in(reg) c0,
                    c1 = in(reg) c0.wrapping_add(REGISTER_ROWS),
                    line = in(reg) ROW_BYTES,
                    out = in(reg) TILE_COLS * size_of::<f32>(),
                    x_step = in(reg) call.registers * PARTS * BYTES,
                    left = inout(reg) call.blocks => _,
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
    zero: ["tilezero tmm0"],
    x: ["tileloadd tmm4, [{a} + {line} + "],
    w: ["tileloadd tmm6, [{b0} + {line}]"],
    multiply: ["tdpbf16ps tmm0, tmm4, tmm6"],
    store: ["tilestored [{c0} + {out}], tmm0"]
);
product!(
    multiply_wide,
    zero: ["tilezero tmm0" "tilezero tmm1"],
    x: ["tileloadd tmm4, [{a} + {line} + "],
    w: ["tileloadd tmm6, [{b0} + {line}]" "tileloadd tmm7, [{b1} + {line}]"],
    multiply: ["tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"],
    store: ["tilestored [{c0} + {out}], tmm0" "tilestored [{c0} + {out} + 64], tmm1"]
);
product!(
    multiply_tall,
    zero: ["tilezero tmm0" "tilezero tmm2"],
    x: ["tileloadd tmm4, [{a} + {line} + " "tileloadd tmm5, [{a} + {line} + 3072 + "],
    w: ["tileloadd tmm6, [{b0} + {line}]"],
    multiply: ["tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm2, tmm5, tmm6"],
    store: ["tilestored [{c0} + {out}], tmm0" "tilestored [{c1} + {out}], tmm2"]
);
product!(
    multiply_four,
    zero: ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
    x: ["tileloadd tmm4, [{a} + {line} + " "tileloadd tmm5, [{a} + {line} + 3072 + "],
    w: ["tileloadd tmm6, [{b0} + {line}]" "tileloadd tmm7, [{b1} + {line}]"],
    multiply: [
        "tdpbf16ps tmm0, tmm4, tmm6" "tdpbf16ps tmm1, tmm4, tmm7"
        "tdpbf16ps tmm2, tmm5, tmm6" "tdpbf16ps tmm3, tmm5, tmm7"
    ],
    store: [
        "tilestored [{c0} + {out}], tmm0" "tilestored [{c0} + {out} + 64], tmm1"
        "tilestored [{c1} + {out}], tmm2" "tilestored [{c1} + {out} + 64], tmm3"
    ]
);
