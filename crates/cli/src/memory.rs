//! Memory of this process: its peak, and the handling of allocation failures.
//!
//! Out of memory is an ordinary error: a message with the flags that reduce memory, and exit code 2
//! instead of an abort.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "serve")]
use serve::metering::{charge, refund};

use crate::BAD_INPUT;

/// Only server threads have a memory budget.
#[cfg(not(feature = "serve"))]
fn charge(_: usize) {}

#[cfg(not(feature = "serve"))]
fn refund(_: usize) {}

/// The system allocator, which ends the process with a message if an allocation fails.
pub struct CheckedAllocator;

// SAFETY: every call is forwarded to the system allocator with unchanged arguments, and only
// non-null pointers are returned.
unsafe impl GlobalAlloc for CheckedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        charge(layout.size());
        // SAFETY: the requirements on the caller are those of `System::alloc`.
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

/// Peak resident memory of this process in bytes, if the system reports it.
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

/// Records on disk are complete lines and atomically replaced files, so the run can be resumed.
#[cold]
fn out_of_memory(size: usize) -> ! {
    static FAILED: AtomicBool = AtomicBool::new(false);
    // A failure to print the message is ignored.
    if !FAILED.swap(true, Ordering::SeqCst) {
        let _ = writeln!(
            std::io::stderr(),
            "error: out of memory: cannot allocate {size} bytes; reduce --memory, --samples, \
             --batch or --threads, or use a machine with more memory"
        );
    }
    std::process::exit(i32::from(BAD_INPUT))
}
