//! The memory of this process: the most that it held, and what becomes of too much.
//!
//! Out of memory is an error like any other: a message with the flags that ask for less, and exit
//! code 2 instead of an abort.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "serve")]
use serve::metering::{charge, refund};

use crate::BAD_INPUT;

/// Without a server no thread has a budget.
#[cfg(not(feature = "serve"))]
fn charge(_: usize) {}

#[cfg(not(feature = "serve"))]
fn refund(_: usize) {}

/// The system's allocator, which ends the process where there is no memory.
pub struct CheckedAllocator;

// SAFETY: every call goes to the system's allocator with its arguments unchanged, and only pointers
// that are not null are returned.
unsafe impl GlobalAlloc for CheckedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        charge(layout.size());
        // SAFETY: the caller's promises are those of `System::alloc`.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        charge(layout.size());
        // SAFETY: as above.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        charge(size);
        refund(layout.size());
        // SAFETY: as above.
        checked(unsafe { System.realloc(pointer, layout, size) }, size)
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        refund(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The most bytes of memory that this process held at a time, where the system tells.
pub fn peak_resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
}

#[inline]
fn checked(pointer: *mut u8, size: usize) -> *mut u8 {
    if pointer.is_null() {
        out_of_memory(size);
    }
    pointer
}

/// Records on disk are whole lines and replaced files, so that a run can be resumed after this.
#[cold]
fn out_of_memory(size: usize) -> ! {
    static FAILED: AtomicBool = AtomicBool::new(false);
    // Whoever fails while the message is printed has nothing to add.
    if !FAILED.swap(true, Ordering::SeqCst) {
        let _ = writeln!(
            std::io::stderr(),
            "error: out of memory: {size} bytes could not be had; ask for less (--memory, \
             --samples, --batch, --threads), or take a machine with more"
        );
    }
    std::process::exit(i32::from(BAD_INPUT))
}
