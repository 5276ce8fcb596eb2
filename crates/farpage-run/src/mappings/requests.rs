//! What the program's threads ask of the engine about their memory: to let it go, or to make guards in it.
//!
//! Callers: the preload library, on program threads; the monitor. No locks.

use crate::shared::notice_ring::Note;
use crate::shared::state::Engine;
use crate::shared::warn_once::{WarningKind, warn_once_in_tree};
use farpage_base::mem::units::{USER_END, Vpn};
use farpage_base::sys::futex;
use farpage_base::sys::raw::{nr, syscall};
use farpage_swap::PAGE_SIZE;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// How long a look at the state of the process may be old while memory is let go.
const LOOK: Duration = Duration::from_millis(100);

impl Engine {
    /// Whether no memory of this process is to be managed: for good, or while it is being detached.
    pub fn is_excluded(&self) -> bool {
        self.stage.excluded.load(SeqCst) || self.stage.detaching.load(SeqCst)
    }

    /// From now on the memory of this process is its own. Returns when all of it is there. Called on a program thread.
    pub fn leave_alone(&self) {
        if !self.fork.is_home() {
            return;
        }
        self.stage.excluded.store(true, SeqCst);
        // If the monitor makes the engine active in this moment, the pager finds the flag before it does anything.
        if self.is_active() {
            self.warn_excluded();
            let _ = self.let_go(PAGE_SIZE, USER_END);
        }
    }

    /// Says so once, where a budget was wanted.
    pub(crate) fn warn_excluded(&self) {
        warn_once_in_tree(
            WarningKind::Excluded,
            "this program has opened its /proc/PID/pagemap, in which memory that farpage has swapped out looks never \
             used: its memory stays as it is, and this process goes on without a budget",
        );
    }

    /// Everything in `[start, end)` (bytes) is brought in, and none of it is managed then; it may be again after a
    /// second. Returns when that is done; false: there is no engine that manages anything. Called on a program thread.
    pub fn let_go(&self, start: usize, end: usize) -> bool {
        let (start, end) = (start & !(PAGE_SIZE - 1), end.min(USER_END));
        let reaches = || self.is_active() && self.fork.is_home();
        if start == 0 || start >= end || !reaches() {
            return false;
        }
        let ticket = loop {
            match self.discovery.notes.post(Note::LetGo(start, end)) {
                Some(ticket) => break ticket,
                None => {
                    self.ring();
                    futex::wait(&self.wakeups.never, 0, Some(1_000_000));
                }
            }
        };
        // A fork may hold the engine up, and disks may be slow; but without an engine there is nothing left to wait
        // for.
        while reaches() {
            self.ring();
            if self.discovery.notes.wait(ticket, LOOK) {
                return true;
            }
        }
        false
    }

    /// In `[start, end)`, which is not managed any more, pages of zeros may have been dropped where the kernel would
    /// have them. They are made again; those that have never been used are left alone as far as is known. Called on a
    /// program thread.
    pub fn make_zeros(&self, start: usize, end: usize) {
        const POPULATE_READ: usize = 22;
        const LEAF: usize = 512 * PAGE_SIZE;
        let mut at = start & !(PAGE_SIZE - 1);
        while at < end {
            let to = ((at | (LEAF - 1)) + 1).min(end);
            if self.table.node(Vpn::of(at)).is_some() {
                // SAFETY: reads; what cannot be read is left as it is.
                let _ = unsafe { syscall(nr::MADVISE, [at, to - at, POPULATE_READ, 0, 0, 0]) };
            }
            at = to;
        }
    }

    /// The program has made guards. `again` discards what was there, which is an event, and makes them again. Meanwhile
    /// pages are put only where a thread waits for one: one that was looked for before the guard was made again could
    /// otherwise be put over it. Called on a program thread.
    pub fn guarded(&self, again: impl FnOnce()) {
        self.memory.marked.store(true, SeqCst);
        self.memory.guarding.fetch_add(1, SeqCst);
        again();
        self.memory.guarding.fetch_sub(1, SeqCst);
    }
}
