//! A gate that threads pass while no thread forks.
//!
//! Callers: threads that enter a pager; [`super::fork`] closes it, under `FORKS` and outside of all of a pager's locks.

use farpage_base::sys::futex;
use farpage_base::sys::raw::gettid;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

/// A door that a fork can close. Costs nothing in pagers that are not inherited.
#[derive(Debug, Default)]
pub struct Gate {
    /// Thread that has closed it; 0: open.
    closed: AtomicU32,
    /// Threads inside.
    inside: AtomicU32,
}

/// A thread is inside for as long as it has this.
pub struct Inside<'a>(pub(super) Option<&'a Gate>);

impl Gate {
    /// Goes in, waiting while it is closed by another thread, unless `exempt`.
    pub fn enter(&self, exempt: impl Fn() -> bool) -> Inside<'_> {
        loop {
            self.inside.fetch_add(1, SeqCst);
            let closed = self.closed.load(SeqCst);
            let inside = Inside(Some(self));
            if closed == 0 || closed == gettid() || exempt() {
                return inside;
            }
            drop(inside);
            futex::wait(&self.closed, closed, None);
        }
    }

    /// Closes it for all other threads, and waits until none is inside.
    pub(super) fn close(&self) {
        self.closed.store(gettid(), SeqCst);
        loop {
            match self.inside.load(SeqCst) {
                0 => return,
                n => futex::wait(&self.inside, n, None),
            }
        }
    }

    /// In a child, which has the forking thread only: no thread is inside, even if one was about to enter.
    pub(super) fn after_fork(&self) {
        self.inside.store(0, SeqCst);
        self.closed.store(gettid(), SeqCst);
    }

    /// Opens it.
    pub(super) fn open(&self) {
        self.closed.store(0, SeqCst);
        futex::wake_all(&self.closed);
    }

    /// Another thread has closed it, or this one.
    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst) != 0
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let Some(gate) = self.0 else { return };
        if gate.inside.fetch_sub(1, SeqCst) == 1 && gate.is_closed() {
            futex::wake_all(&gate.inside);
        }
    }
}
