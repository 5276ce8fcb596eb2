//! While the pager exchanges a part of a library ([`crate::pager::relocated`]) or moves its pages, the program
//! must neither unload the library nor make that part writable: what the pager has just looked at would be something
//! else. So the two exclude each other: the program's threads wait for the pager, which is done in less than a
//! millisecond; the pager does not wait for them, but comes again.
//!
//! What is not covered: system call instructions of the program's own that unmap a library or change its rights. The
//! pager looks at the mapping immediately before it acts.
//!
//! Callers: the preload library, in front of libc's functions, on program threads; the pager. No locks.

use farpage_base::sys::futex;
use rustix::thread::sched_yield;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};

/// Threads of the program that are about to change a library's mappings.
static CHANGES: AtomicUsize = AtomicUsize::new(0);
/// The pager is at one.
static HELD: AtomicBool = AtomicBool::new(false);

/// How often the pager looks whether the program's threads are done, before it gives up.
const TRIES: usize = 32;
/// Between two looks at whether the pager is done.
const LOOK_NS: u64 = 50_000;

/// The calling thread of the program is about to unload a library, or to change access rights: from now on, until this
/// is dropped.
#[derive(Debug)]
pub struct ProgramChange(());

impl ProgramChange {
    /// Waits until the pager is done.
    #[must_use]
    pub fn begin() -> ProgramChange {
        loop {
            CHANGES.fetch_add(1, SeqCst);
            if !HELD.load(SeqCst) {
                return ProgramChange(());
            }
            CHANGES.fetch_sub(1, SeqCst);
            while HELD.load(SeqCst) {
                // Not only a yield: the pager may have to run on this CPU.
                futex::wait(&AtomicU32::new(0), 0, Some(LOOK_NS));
            }
        }
    }
}

impl Drop for ProgramChange {
    fn drop(&mut self) {
        // In a child that was forked meanwhile by this thread, no thread is counted.
        let _ = CHANGES.fetch_update(SeqCst, SeqCst, |changes| changes.checked_sub(1));
    }
}

/// Libraries stay as they are until this is dropped.
#[derive(Debug)]
pub(crate) struct LibraryHold(());

impl LibraryHold {
    /// `None`: a thread of the program is changing something. The pager only.
    pub(crate) fn take() -> Option<LibraryHold> {
        HELD.store(true, SeqCst);
        let hold = LibraryHold(());
        for _ in 0..TRIES {
            if CHANGES.load(SeqCst) == 0 {
                return Some(hold);
            }
            sched_yield();
        }
        None
    }
}

impl Drop for LibraryHold {
    fn drop(&mut self) {
        HELD.store(false, SeqCst);
    }
}

/// In a forked child: the parent's other threads are not here.
pub(crate) fn forget_others() {
    CHANGES.store(0, SeqCst);
    HELD.store(false, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn the_pager_and_the_program_exclude_each_other() {
        let (value, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(SeqCst) {
                        let change = ProgramChange::begin();
                        value.fetch_add(1, SeqCst);
                        drop(change);
                        sched_yield();
                    }
                });
            }
            let mut holds = 0;
            while holds < 200 {
                let Some(hold) = LibraryHold::take() else { continue };
                let before = value.load(SeqCst);
                (0..8).for_each(|_| sched_yield());
                assert_eq!(value.load(SeqCst), before);
                holds += 1;
                drop(hold);
            }
            stop.store(true, SeqCst);
        });
        let change = ProgramChange::begin();
        assert!(LibraryHold::take().is_none() && !HELD.load(SeqCst));
        forget_others();
        drop(change);
        assert!(LibraryHold::take().is_some());
    }
}
