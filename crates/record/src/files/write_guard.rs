//! A lock that prevents a process from exiting in the middle of a record.

use std::sync::{Mutex, MutexGuard, PoisonError};

static WRITING: Mutex<()> = Mutex::new(());

/// The guard returned by [`write_guard`], held until it is dropped.
pub type WriteGuard = MutexGuard<'static, ()>;

/// Waits until no other thread of the process holds the guard. Writers hold it while appending a
/// record; a program that exits on a signal acquires it first, so that no record is truncated.
pub fn write_guard() -> WriteGuard {
    // A poisoned lock means that another holder panicked; a signal must still end the process.
    WRITING.lock().unwrap_or_else(PoisonError::into_inner)
}
