//! Intel AMX: an instruction multiplies 16 rows of 64 bytes with 64 bytes of 16 columns.
//!
//! A panel's bytes lie as the instruction wants them: 16 quads of 16 columns are 16 rows of 64
//! bytes. The tile registers are those of the thread, which are released after each task, so that
//! threads do not carry 8 KiB of state from one to another.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::LazyLock;

use super::super::linear::{OutputTile, PANEL, TILE_COLS, TileEpilogue, TileHeight, sweep};
use super::{DEPTH, Int8Call, Int8Task, QUAD, READ_AHEAD};

/// Rows of a tile register.
const REGISTER_ROWS: usize = 16;
const _: () = assert!(READ_AHEAD + 1 == REGISTER_ROWS);
/// Rows of a tile: two registers.
const ROWS: usize = 2 * REGISTER_ROWS;
/// Tiles are cut between registers.
pub(super) const HEIGHT: TileHeight = TileHeight { most: ROWS, step: REGISTER_ROWS };
/// Bytes of a panel that one instruction takes.
const STEP: usize = DEPTH * PANEL;

/// Whether this CPU has AMX for bytes and the operating system lets this process use it.
pub(super) fn is_present() -> bool {
    static PRESENT: LazyLock<bool> = LazyLock::new(|| cpu_has_amx() && may_use_tiles());
    *PRESENT
}

fn cpu_has_amx() -> bool {
    const TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    const TILE_STATE: u64 = 1 << 17 | 1 << 18;
    #[target_feature(enable = "xsave")]
    fn saved_states() -> u64 {
        // SAFETY: register 0 exists wherever xgetbv does.
        unsafe { _xgetbv(0) }
    }
    // Unsafe in the oldest Rust that is supported.
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 CPU has cpuid.
    let features = unsafe {
        if __cpuid(0).eax < 7 {
            return false;
        }
        __cpuid_count(7, 0).edx
    };
    features & TILE_AND_INT8 == TILE_AND_INT8
        && is_x86_feature_detected!("xsave")
        // SAFETY: the feature was asked for.
        && unsafe { saved_states() } & TILE_STATE == TILE_STATE
}

/// Asks Linux for the permission that it wants to be asked for, for all threads of the process.
#[cfg(target_os = "linux")]
fn may_use_tiles() -> bool {
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XTILEDATA: usize = 18;
    let status: isize;
    // SAFETY: the call changes what the process may use and nothing else; rcx and r11 are the
    // registers that a system call overwrites.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => status,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    status == 0
}

#[cfg(not(target_os = "linux"))]
fn may_use_tiles() -> bool {
    false
}

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight registers with 16 rows of 64 bytes.
static CONFIG: TileConfig = {
    let mut config = TileConfig {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    let mut register = 0;
    while register < 8 {
        config.row_bytes[register] = DEPTH as u16;
        config.rows[register] = REGISTER_ROWS as u8;
        register += 1;
    }
    config
};

/// # Safety
/// [`is_present`]; the CPU has AVX-512 F and DQ, AVX2 and FMA.
#[target_feature(enable = "avx512f,avx512dq,avx2,fma")]
pub(super) unsafe fn run<E: TileEpilogue>(task: &Int8Task<'_>, epilogue: &E) {
    // SAFETY: the configuration is one that the CPU takes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack)) };
    sweep::<true, ROWS, E>(&task.range, epilogue, |place, tile| {
        let call = task.call(place);
        let mut sums = [[0i32; TILE_COLS]; ROWS];
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
    // SAFETY: as above.
    unsafe { asm!("tilerelease", options(nomem, nostack)) };
}

#[inline(always)]
fn finish(call: Int8Call<'_>, sums: &[[i32; TILE_COLS]; ROWS], tile: &mut OutputTile<ROWS>) {
    for (r, (sums, out)) in sums[..call.rows].iter().zip(tile).enumerate() {
        for (p, sums) in sums.as_chunks::<PANEL>().0[..call.panels].iter().enumerate() {
            call.finish(r, p, *sums, out);
        }
    }
}

/// Defines a product of registers of rows (`$a`) and panels (`$b`): loads, multiplications and
/// stores as given, which may name the pointers `a0`, `a1` (rows), `b0`, `b1` (panels), `c0`, `c1`
/// (sums) and the strides `row`, `quad`, `out`.
macro_rules! product {
    ($name:ident, [$($zero:literal)*], [$($multiply:literal)*], [$($store:literal)*]) => {
        /// # Safety
        /// The registers are configured; the call's pointers cover 16 or 32 rows and its panels.
        #[inline(always)]
        unsafe fn $name(call: Int8Call<'_>, sums: &mut [[i32; TILE_COLS]; ROWS]) {
            let row = call.quads * QUAD;
            let c0 = sums.as_mut_ptr();
            // SAFETY: by the contract. The second pointers are only read through where there is a
            // second register of rows or a second panel.
            unsafe {
                asm!(
                    $($zero,)*
                    "2:",
                    $($multiply,)*
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
