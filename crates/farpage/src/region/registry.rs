//! The living pagers, for the signal handler: a fixed table. A handler counts itself in before it looks at a pager, and
//! a pager that goes waits until no handler is in.
//!
//! Callers: the handler; the builder and [`super::owner`] put pagers in and take them out; [`super::fork`]. No lock.

use super::pager_core::PagerCore;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Most pagers of a process at a time.
pub const PAGERS_MAX: usize = 64;

/// A place for a pager that the handler can see.
#[derive(Debug)]
pub struct RegistryEntry {
    pager: AtomicPtr<PagerCore>,
    users: AtomicUsize,
}

/// The living pagers.
pub static PAGERS: [RegistryEntry; PAGERS_MAX] =
    [const { RegistryEntry { pager: AtomicPtr::new(std::ptr::null_mut()), users: AtomicUsize::new(0) } }; PAGERS_MAX];

impl RegistryEntry {
    /// Shows a pager to the handler; `None`: all places are taken.
    pub fn take(pager: *const PagerCore) -> Option<&'static RegistryEntry> {
        let free = |entry: &&RegistryEntry| {
            let (new, order) = (pager.cast_mut(), Ordering::AcqRel);
            entry.pager.compare_exchange(std::ptr::null_mut(), new, order, Ordering::Relaxed).is_ok()
        };
        PAGERS.iter().find(free)
    }

    /// Hides the pager, and waits until no handler looks at it.
    pub fn release(&self) {
        self.pager.store(std::ptr::null_mut(), Ordering::SeqCst);
        while self.users.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    /// In a forked child: no handler is in, and the pager is hidden unless it `stays`.
    pub fn after_fork(&self, stays: impl Fn(*const PagerCore) -> bool) {
        let pager = self.pager.load(Ordering::SeqCst);
        if !pager.is_null() && !stays(pager) {
            self.pager.store(std::ptr::null_mut(), Ordering::SeqCst);
        }
        self.users.store(0, Ordering::SeqCst);
    }

    /// Runs `f` with the pager, if there is one.
    pub fn with<R>(&self, f: impl FnOnce(&PagerCore) -> R) -> Option<R> {
        if self.pager.load(Ordering::Relaxed).is_null() {
            return None;
        }
        self.users.fetch_add(1, Ordering::SeqCst);
        // SAFETY: not null: a pager that `release` has not hidden; it is freed after `release` only, which waits for
        // us.
        let result = unsafe { self.pager.load(Ordering::SeqCst).as_ref() }.map(f);
        self.users.fetch_sub(1, Ordering::SeqCst);
        result
    }
}
