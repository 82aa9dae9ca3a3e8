//! Memory limits for single threads, for processing hostile input.
//!
//! Rust cannot turn a failed allocation into an error, so a thread that exceeds its budget is
//! stopped permanently inside the allocation. It never runs again, its memory is never freed, and a
//! waiting thread detects this with `Budget::is_exceeded`. The caller must bound the number of
//! such threads. The program's global allocator must call [`charge`] and [`refund`]; otherwise
//! budgets are never exceeded.

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

/// The budget of a thread, shared with the thread that waits for it.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicIsize,
    exceeded: AtomicBool,
}

/// Bytes allocated by the process.
static LIVE: AtomicIsize = AtomicIsize::new(0);

/// Bytes allocated by the process, as reported by its allocator.
pub(crate) fn live_bytes() -> usize {
    usize::try_from(LIVE.load(Ordering::Relaxed)).unwrap_or(0)
}

thread_local! {
    /// The budget of this thread, or null. It has no destructor, because other destructors may
    /// still allocate afterwards.
    static BUDGET: Cell<*const Budget> = const { Cell::new(ptr::null()) };
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        let left = AtomicIsize::new(isize::try_from(bytes).unwrap_or(isize::MAX));
        Arc::new(Self { left, exceeded: AtomicBool::new(false) })
    }

    /// Whether the thread was stopped.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Acquire)
    }

    /// Runs `work` with this budget for the thread's allocations.
    pub(crate) fn run<R>(self: &Arc<Self>, work: impl FnOnce() -> R) -> R {
        /// Removes the budget even if the work panics.
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                let _ = BUDGET.try_with(|budget| budget.set(ptr::null()));
            }
        }
        BUDGET.with(|budget| budget.set(Arc::as_ptr(self)));
        let _reset = Reset;
        work()
    }
}

/// Counts allocated bytes and charges them to the thread's budget. Does not return if the budget is
/// exceeded.
#[inline]
pub fn charge(bytes: usize) {
    LIVE.fetch_add(bytes as isize, Ordering::Relaxed);
    let budget = BUDGET.try_with(Cell::get).unwrap_or(ptr::null());
    if !budget.is_null() {
        charge_to(budget, bytes);
    }
}

#[cold]
fn charge_to(budget: *const Budget, bytes: usize) {
    // SAFETY: the pointer belongs to the `Arc` in `Budget::run`, which is on this thread's stack
    // until the pointer is removed.
    let budget = unsafe { &*budget };
    let bytes = isize::try_from(bytes).unwrap_or(isize::MAX);
    if budget.left.fetch_sub(bytes, Ordering::Relaxed) < bytes {
        budget.exceeded.store(true, Ordering::Release);
        loop {
            std::thread::park();
        }
    }
}

/// Returns freed bytes to the thread's budget.
#[inline]
pub fn refund(bytes: usize) {
    LIVE.fetch_sub(bytes as isize, Ordering::Relaxed);
    let budget = BUDGET.try_with(Cell::get).unwrap_or(ptr::null());
    if !budget.is_null() {
        // SAFETY: as in `charge_to`.
        let budget = unsafe { &*budget };
        budget.left.fetch_add(isize::try_from(bytes).unwrap_or(isize::MAX), Ordering::Relaxed);
    }
}
