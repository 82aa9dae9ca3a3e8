//! The system's allocator with a count of live bytes on each thread, which keeps the budgets of
//! the server's threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use serve::metering::{charge, refund};

/// Counts what a thread allocates less what it frees, and the peak of that.
pub struct CountingAllocator;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator with its arguments unchanged. The counters have
// no destructors and take no memory of their own.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        charge(layout.size());
        // SAFETY: the caller's promises are those of `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        charge(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        charge(size);
        refund(layout.size());
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        refund(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn count(bytes: isize) {
    // A thread that ends frees its last memory after its counters.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

/// A function's result, and the bytes that this thread had live at most while it ran, beside those
/// from before.
pub(crate) fn peak_bytes<R>(f: impl FnOnce() -> R) -> (R, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = f();
    (result, (PEAK.get() - before).max(0) as usize)
}
