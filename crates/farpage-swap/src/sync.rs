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
    atomic::{AtomicBool, AtomicU32, AtomicU64},
};

#[cfg(loom)]
pub use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64},
};

pub use std::sync::atomic::Ordering;
pub use std::sync::{Arc, OnceLock, PoisonError, TryLockError};

/// log2 of [`CLUSTER_SLOTS`].
pub const CLUSTER_SHIFT: u32 = if cfg!(loom) { 2 } else { 9 };
/// Slots of a cluster.
pub const CLUSTER_SLOTS: usize = 1 << CLUSTER_SHIFT;
/// Number of orders: a block of order `o` has `2^o` slots; the largest fills a cluster.
pub const ORDERS: usize = CLUSTER_SHIFT as usize + 1;

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
