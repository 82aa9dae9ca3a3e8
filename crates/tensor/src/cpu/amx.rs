//! Intel AMX: eight tile registers of 16 rows of 64 bytes, and instructions that multiply them.
//!
//! The registers are per thread. They are released after each task, so that context switches do not
//! have to save 8 KiB of state.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::LazyLock;

use super::linear::REGISTER_ROWS;

/// Bytes of a row of a tile register.
pub(super) const ROW_BYTES: usize = 64;

/// Assembly that prefetches the register-sized block at operand `fetched` into the L2 cache and
/// advances the operand past it.
macro_rules! fetch_register {
    () => {
        "prefetcht1 [{fetched}]
        prefetcht1 [{fetched} + 64]
        prefetcht1 [{fetched} + 128]
        prefetcht1 [{fetched} + 192]
        prefetcht1 [{fetched} + 256]
        prefetcht1 [{fetched} + 320]
        prefetcht1 [{fetched} + 384]
        prefetcht1 [{fetched} + 448]
        prefetcht1 [{fetched} + 512]
        prefetcht1 [{fetched} + 576]
        prefetcht1 [{fetched} + 640]
        prefetcht1 [{fetched} + 704]
        prefetcht1 [{fetched} + 768]
        prefetcht1 [{fetched} + 832]
        prefetcht1 [{fetched} + 896]
        prefetcht1 [{fetched} + 960]
        add {fetched}, 1024"
    };
}
pub(super) use fetch_register;

/// Whether this CPU supports tiles of int8 and bf16, and the operating system lets this process use
/// them.
pub(super) fn is_present() -> bool {
    static PRESENT: LazyLock<bool> = LazyLock::new(|| cpu_has_amx() && may_use_tiles());
    *PRESENT
}

fn cpu_has_amx() -> bool {
    const BF16_TILE_AND_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const TILE_STATE: u64 = 1 << 17 | 1 << 18;
    #[target_feature(enable = "xsave")]
    fn saved_states() -> u64 {
        // SAFETY: register 0 exists wherever xgetbv does.
        unsafe { _xgetbv(0) }
    }
    // `unsafe` in the oldest supported Rust version.
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 CPU has cpuid.
    let features = unsafe {
        if __cpuid(0).eax < 7 {
            return false;
        }
        __cpuid_count(7, 0).edx
    };
    features & BF16_TILE_AND_INT8 == BF16_TILE_AND_INT8
        && is_x86_feature_detected!("xsave")
        // SAFETY: the feature was checked.
        && unsafe { saved_states() } & TILE_STATE == TILE_STATE
}

/// Requests the permission to use tiles from Linux, for all threads of the process.
#[cfg(target_os = "linux")]
fn may_use_tiles() -> bool {
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XTILEDATA: usize = 18;
    let status: isize;
    // SAFETY: the call only changes the permissions of the process; rcx and r11 are the registers
    // that a system call overwrites.
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

/// The operand of `ldtilecfg`.
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
        config.row_bytes[register] = ROW_BYTES as u16;
        config.rows[register] = REGISTER_ROWS as u8;
        register += 1;
    }
    config
};

/// Runs `work` with the tile registers configured.
///
/// # Safety
/// [`is_present`].
#[inline(always)]
pub(super) unsafe fn with_tiles(work: impl FnOnce()) {
    // SAFETY: the configuration is valid.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack)) };
    work();
    // SAFETY: as above.
    unsafe { asm!("tilerelease", options(nomem, nostack)) };
}
