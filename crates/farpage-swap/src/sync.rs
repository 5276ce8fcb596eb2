//! Every lock and atomic of this crate, so that one source is both the product and the model that loom checks.
//!
//! Normal builds use the standard library: its mutex is one futex word and neither parks through thread-local storage
//! nor allocates, which is what the engine's threads need. With `--cfg loom` the same names are loom's, and a cluster
//! is four slots instead of 512 so that two of them can be explored exhaustively.
//!
//! Two things stay the standard library's under loom. [`OnceLock`] is only written once, before anything that could
//! read it knows the index to read. [`Guarded`] is memory that another lock protects; its accessors demand that lock's
//! data as a witness, so there is nothing to interleave.

#[cfg(not(loom))]
pub use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, fence},
};

#[cfg(loom)]
pub use self::model::{Mutex, MutexGuard};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

pub use std::sync::atomic::Ordering;
pub use std::sync::{Arc, OnceLock, PoisonError, TryLockError};

/// log2 of [`CLUSTER_SLOTS`].
pub const CLUSTER_SHIFT: u32 = if cfg!(loom) { 2 } else { 9 };
/// Slots of a cluster.
pub const CLUSTER_SLOTS: usize = 1 << CLUSTER_SHIFT;
/// Number of orders: a block of order `o` has `2^o` slots; the largest fills a cluster.
pub const ORDERS: usize = CLUSTER_SHIFT as usize + 1;

/// Between the unlock of a mutex and a load that must not come before it.
///
/// On x86-64 the unlock is a full barrier for the processor (a mutex that must learn whether a thread waits is given
/// back by an exchange), so only the compiler need be told; a fence would cost as much as the unlock.
#[inline]
pub(crate) fn after_unlock() {
    if cfg!(all(target_arch = "x86_64", not(loom), not(miri))) {
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Two list links of a cluster that belong to the device lock, in the cluster's record for its cache line's sake.
pub(crate) struct Guarded {
    prev: std::sync::atomic::AtomicU32,
    next: std::sync::atomic::AtomicU32,
}

impl Guarded {
    pub(crate) const fn new(prev: u32, next: u32) -> Guarded {
        Guarded { prev: std::sync::atomic::AtomicU32::new(prev), next: std::sync::atomic::AtomicU32::new(next) }
    }

    /// (previous, next). `_witness` is what the device lock protects.
    pub(crate) fn get<W>(&self, _witness: &W) -> (u32, u32) {
        (self.prev.load(Ordering::Relaxed), self.next.load(Ordering::Relaxed))
    }

    pub(crate) fn set_prev<W>(&self, _witness: &mut W, prev: u32) {
        self.prev.store(prev, Ordering::Relaxed);
    }

    pub(crate) fn set_next<W>(&self, _witness: &mut W, next: u32) {
        self.next.store(next, Ordering::Relaxed);
    }
}

/// A mutex for loom. Its own lets a `try_lock` that was about to happen wait for the holder instead of failing, which
/// makes deadlocks of programs that have none, and hides the failures that tests are to find.
#[cfg(loom)]
mod model {
    use super::{AtomicBool, Ordering, TryLockError};
    use std::ops::{Deref, DerefMut};

    /// See [`std::sync::Mutex`].
    pub struct Mutex<T> {
        held: AtomicBool,
        /// Never waited for: `held` decides.
        data: std::sync::Mutex<T>,
    }

    /// See [`std::sync::MutexGuard`].
    pub struct MutexGuard<'a, T> {
        held: &'a AtomicBool,
        data: Option<std::sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        /// An unlocked mutex.
        pub fn new(value: T) -> Mutex<T> {
            Mutex { held: AtomicBool::new(false), data: std::sync::Mutex::new(value) }
        }

        /// Waits for the mutex.
        pub fn lock(&self) -> std::sync::LockResult<MutexGuard<'_, T>> {
            loop {
                if let Ok(guard) = self.try_lock() {
                    return Ok(guard);
                }
                loom::thread::yield_now();
            }
        }

        /// Takes the mutex if it is free.
        pub fn try_lock(&self) -> std::sync::TryLockResult<MutexGuard<'_, T>> {
            match self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => Ok(MutexGuard { held: &self.held, data: Some(self.data.try_lock().unwrap()) }),
                Err(_) => Err(TryLockError::WouldBlock),
            }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.data.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.data.as_mut().unwrap()
        }
    }

    impl<T> Drop for MutexGuard<'_, T> {
        fn drop(&mut self) {
            self.data = None;
            self.held.store(false, Ordering::Release);
        }
    }
}
