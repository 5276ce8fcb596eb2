//! Locks that can say where they are taken, how often a thread waits for them, and for how long.
//!
//! A [`Lock`] is a mutex whose every acquisition names a [`Site`]. What is done with that is up to its [`Meter`], a
//! type parameter: `()` does nothing and compiles to the bare mutex, so that one program can have both the engine's
//! locks and the counted ones of `farpage-bench`.
//!
//! Callers: `cluster`, `table`; the bench for its other allocators. The order of locks is in docs/dev/locking.md.

use crate::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// A place in the code that takes a lock.
#[derive(Debug, PartialEq, Eq)]
pub struct Site {
    /// Number, below [`SITES`], different for each site of one program.
    pub index: usize,
    /// Which lock.
    pub lock: &'static str,
    /// What is being done.
    pub name: &'static str,
}

/// Most sites of one program: [`sites`] are those of this crate; the rest is for others.
pub const SITES: usize = 32;

macro_rules! sites {
    ($($name:ident = $index:literal, $lock:literal, $what:literal;)*) => {
        /// The sites of this crate.
        pub mod sites {
            use super::Site;
            $(#[doc = concat!($lock, " lock: ", $what)]
            pub static $name: Site = Site { index: $index, lock: $lock, name: $what };)*
            /// All of them.
            pub static ALL: &[&Site] = &[$(&$name),*];
        }
    };
}

sites! {
    DEVICE_ISOLATE = 0, "device", "isolate";
    DEVICE_RELOCATE = 1, "device", "relocate";
    DEVICE_NEXT = 2, "device", "full cluster, next one";
    DEVICE_ADMIN = 3, "device", "grow, swapon, swapoff";
    CLUSTER_HINT = 4, "cluster", "alloc by hint";
    CLUSTER_ISOLATE = 5, "cluster", "isolate";
    CLUSTER_FREE = 6, "cluster", "free";
    CLUSTER_COUNT = 7, "cluster", "count";
    CLUSTER_CACHE = 8, "cluster", "swap cache";
    CLUSTER_RECLAIM = 9, "cluster", "reclaim";
    CLUSTER_PENDING = 23, "cluster", "pending frees";
    CLUSTER_ADMIN = 10, "cluster", "grow, swapoff, walk";
    AVAIL_NEXT = 11, "avail", "choose device";
    AVAIL_FULL = 12, "avail", "full, not full";
    AVAIL_ADMIN = 13, "avail", "swapon, swapoff";
    ROTATIONAL = 14, "global cluster", "alloc";
    POOL = 15, "table pool", "take, give";
    MANY = 16, "large counts", "count";
    DEVICE_FEW = 18, "device", "look into full clusters";
    ADMIN = 17, "swap", "swapon, swapoff";
    VALUES = 31, "slot values", "read, change";
}

/// What happens at each acquisition. The default does nothing and costs nothing.
pub trait Meter: Send + Sync + 'static {
    /// Whether anything is recorded; if not, no other function is called.
    const ON: bool = false;

    /// Nanoseconds of a clock that does not go back.
    fn now() -> u64 {
        0
    }

    /// A lock was acquired, after `waited_ns` if it was not free.
    fn acquired(_site: &'static Site, _waited_ns: Option<u64>) {}

    /// A lock was given back after `held_ns`.
    fn released(_site: &'static Site, _held_ns: u64) {}
}

impl Meter for () {}

/// A mutex with a meter.
pub struct Lock<T, M = ()> {
    inner: Mutex<T>,
    meter: PhantomData<fn() -> M>,
}

/// The right to use what a [`Lock`] protects; gives the lock back when dropped.
pub struct Guard<'a, T, M: Meter = ()> {
    guard: MutexGuard<'a, T>,
    site: &'static Site,
    since_ns: u64,
    meter: PhantomData<fn() -> M>,
}

impl<T, M: Meter> Lock<T, M> {
    /// An unlocked lock around `value`.
    pub fn new(value: T) -> Lock<T, M> {
        Lock { inner: Mutex::new(value), meter: PhantomData }
    }

    /// Waits until the lock is free and takes it. A panic of an earlier holder is ignored: what these locks protect
    /// is consistent between any two statements that can panic.
    #[inline]
    pub fn lock(&self, site: &'static Site) -> Guard<'_, T, M> {
        if M::ON {
            if let Some(guard) = self.try_lock(site) {
                return guard;
            }
            let from = M::now();
            let guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let now = M::now();
            M::acquired(site, Some(now.saturating_sub(from)));
            return Guard { guard, site, since_ns: now, meter: PhantomData };
        }
        let guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Guard { guard, site, since_ns: 0, meter: PhantomData }
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self, site: &'static Site) -> Option<Guard<'_, T, M>> {
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let mut since_ns = 0;
        if M::ON {
            M::acquired(site, None);
            since_ns = M::now();
        }
        Some(Guard { guard, site, since_ns, meter: PhantomData })
    }
}

impl<T, M: Meter> Deref for Guard<'_, T, M> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T, M: Meter> DerefMut for Guard<'_, T, M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T, M: Meter> Drop for Guard<'_, T, M> {
    #[inline]
    fn drop(&mut self) {
        if M::ON {
            M::released(self.site, M::now().saturating_sub(self.since_ns));
        }
    }
}
