//! How the engine takes a mutex.
//!
//! Callers: all crates. Which lock is outside of which: docs/dev/locking.md.

use std::ops::DerefMut;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex; a panic elsewhere does not matter, because a panic ends the process.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a list, as `lock` does, when it has room for one more: for locks under which nothing may be allocated. What
/// the list had before is to be dropped after the lock.
pub fn lock_with_room<T, G: DerefMut<Target = Vec<T>>>(lock: impl Fn() -> G) -> (G, Vec<T>) {
    let mut spare = Vec::new();
    loop {
        let mut locked = lock();
        if locked.len() < locked.capacity() {
            return (locked, spare);
        }
        if spare.capacity() > locked.len() {
            spare.append(&mut locked);
            std::mem::swap(&mut *locked, &mut spare);
            return (locked, spare);
        }
        let wanted = 2 * locked.len() + 8;
        drop(locked);
        spare = Vec::with_capacity(wanted);
    }
}
