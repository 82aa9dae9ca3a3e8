//! The lock that keeps a process from ending in the middle of a record.

use std::sync::{Mutex, MutexGuard, PoisonError};

static WRITING: Mutex<()> = Mutex::new(());

/// Held by [`write_guard`]'s caller until it is dropped.
pub type WriteGuard = MutexGuard<'static, ()>;

/// Waits until no other thread of the process holds the guard. Whoever appends a record holds it;
/// a program that ends the process on a signal takes it first, so that no record is cut in two.
pub fn write_guard() -> WriteGuard {
    // A poisoned lock says that another holder panicked; a signal must end the process even then.
    WRITING.lock().unwrap_or_else(PoisonError::into_inner)
}
