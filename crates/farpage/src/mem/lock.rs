//! How the engine takes a mutex.
//!
//! Callers: everybody. Which lock is outside of which: docs/dev/locking.md.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex; a panic elsewhere does not matter, because a panic ends the process.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
