//! Threads that are being started: the kernel has them, and their control blocks are not known yet, because
//! `pthread_create` has not returned. That takes long where a debugger looks at each new thread first, or where the
//! CPU goes to others. Meanwhile a block must not leave memory: the kernel writes to it if the thread ends, and a
//! debugger that cannot read it gives up.
//!
//! libc maps a new stack within that call, and the block is in its last page. So the last page of what is adopted
//! meanwhile stays, until all threads that were being started are known.
//!
//! Callers: the preload library, on program threads; the pager. Lock: the engine's `new_ends`, alone.

use crate::shared::state::Engine;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::Vpn;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Pages that are remembered at most, the newest: where a thread is being started at any moment, they would never be
/// forgotten.
const ENDS: usize = 64;

/// Threads that are being started.
static STARTS: AtomicUsize = AtomicUsize::new(0);

/// The calling thread of the program starts another one, until this is dropped. By then it has told where that one's
/// control block is.
#[derive(Debug)]
pub struct ThreadStart(());

impl ThreadStart {
    /// From now on.
    #[must_use]
    pub fn begin() -> ThreadStart {
        STARTS.fetch_add(1, SeqCst);
        ThreadStart(())
    }
}

impl Drop for ThreadStart {
    fn drop(&mut self) {
        // In a child that was forked meanwhile by this thread, no thread is counted.
        let _ = STARTS.fetch_update(SeqCst, SeqCst, |starts| starts.checked_sub(1));
    }
}

/// In a forked child: the parent's other threads are not here.
pub(crate) fn forget_others() {
    STARTS.store(0, SeqCst);
}

impl Engine {
    /// What ends before page `end` has just been adopted. The pager only.
    pub(crate) fn note_new_end(&self, end: Vpn) {
        if STARTS.load(SeqCst) > 0 {
            let mut ends = lock(&self.memory.new_ends);
            if ends.len() == ENDS {
                ends.remove(0);
            }
            ends.push(end - 1);
        }
    }

    /// Pages that may have the control block of a thread that is being started. The pager only.
    pub(crate) fn new_ends(&self) -> Vec<Vpn> {
        let mut ends = lock(&self.memory.new_ends);
        // In this order: a thread tells of the block before it is no longer counted.
        if STARTS.load(SeqCst) == 0 && self.discovery.notes.are_taken() {
            ends.clear();
        }
        ends.clone()
    }
}
