//! A bound on the memory that one thread may take, for work on hostile input.
//!
//! Rust cannot make an allocation fail into an error, so a thread that exceeds its budget is
//! stopped for good inside the allocation: it never runs again, what it holds stays taken, and
//! whoever waits for it finds out by [`Budget::is_exceeded`]. The number of such threads is the
//! caller's to bound. A program takes part by calling [`charge`] and [`refund`] in its global
//! allocator; in one that does not, budgets are never exceeded.

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

/// Bytes that the process holds.
static LIVE: AtomicIsize = AtomicIsize::new(0);

/// Bytes that the process holds, as its allocator has told.
pub(crate) fn live_bytes() -> usize {
    usize::try_from(LIVE.load(Ordering::Relaxed)).unwrap_or(0)
}

thread_local! {
    /// The budget of this thread, null for none. Without a destructor: allocations of other
    /// destructors come after it.
    static BUDGET: Cell<*const Budget> = const { Cell::new(ptr::null()) };
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Arc<Self> {
        let left = AtomicIsize::new(isize::try_from(bytes).unwrap_or(isize::MAX));
        Arc::new(Self { left, exceeded: AtomicBool::new(false) })
    }

    /// Whether its thread was stopped.
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

/// Counts bytes, and takes them from the thread's budget; does not return where there are too few.
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
    // SAFETY: the pointer is that of the `Arc` in `Budget::run`, which is on this thread's stack
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

/// Gives bytes back to the thread's budget.
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
