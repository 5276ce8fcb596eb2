//! What all parts of the pager stand on: the engine, the program's address space, and what a fault may take.
//!
//! Callers: the files of this folder and [`crate::fork`], on the pager's thread. No locks but that of the lists.

use crate::cpus::ab_trial::Trial;
use crate::pager::changes::Changes;
use crate::pager::prefetch::windows::Prefetch;
use crate::pager::readahead::Readahead;
use crate::pager::trace::Recorder;
use crate::shared::address_space::AddressSpace;
use crate::shared::page_table::{Node, State};
use crate::shared::state::Engine;
use farpage_base::mem::give_back;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::{Page, Vpn};
use farpage_device::Entry;
use farpage_device::read_queue::FDS_MAX;
use farpage_swap::PAGE_SIZE;
use farpage_swap::readahead::READAHEAD_MAX;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use std::time::Instant;

/// Pages that are loaded and placed at once.
pub(crate) const SCRATCH_PAGES: usize = READAHEAD_MAX as usize;

/// Engine memory that pages are loaded into, and copied from into the program.
#[repr(align(4096))]
pub(crate) struct Scratch(pub(crate) [Page; SCRATCH_PAGES]);

impl Scratch {
    /// Its content is not needed, and it is not used for some time.
    pub(crate) fn give_back(&mut self) {
        give_back(self.0.as_flattened_mut());
    }
}

/// What became of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The page is there and the thread woken.
    Served,
    /// Nothing to do (the page was there, or its mapping is gone); the thread was woken and looks again.
    Dropped,
    /// To be tried again: an event is pending, or there is no frame.
    Later,
    /// Its page comes in with those of other faults ([`crate::pager::lot`]).
    InLot,
}

/// A fault that waits to be served.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// Page address.
    pub addr: usize,
    /// Write access.
    pub write: bool,
    /// The thread that has it.
    pub tid: u32,
    /// When its message was read.
    pub since: Instant,
    /// The watched time when it could not be served at once.
    pub put_off_ms: Option<i64>,
}

/// Faults that are served together ([`crate::pager::lot`]).
#[derive(Default)]
pub(crate) struct Lot {
    /// Faults are put into it.
    pub(crate) open: bool,
    /// Helpers that load its pages.
    pub(crate) helpers: usize,
    pub(crate) pages: Vec<LotPage>,
    /// Faults that are to be tried again in the next turn.
    pub(crate) later: Vec<Fault>,
    /// Whether helpers pay; begun when they could first be used.
    pub(crate) trial: Option<Trial>,
}

/// One of them, and its page, which is out.
#[derive(Clone, Copy)]
pub(crate) struct LotPage {
    pub(crate) fault: Fault,
    pub(crate) vpn: Vpn,
    pub(crate) node: Node,
    pub(crate) entry: Entry,
    /// Its mapping, pages.
    pub(crate) mapping: (Vpn, Vpn),
}

/// What all parts of the pager stand on.
pub(crate) struct Cx {
    pub(crate) e: &'static Engine,
    /// The program's address space.
    pub(crate) mm: Box<dyn AddressSpace>,
    /// A thread that writes to it wakes the pager.
    pub(crate) kick: OwnedFd,
    /// Pages placed so far.
    pub(crate) filled: u64,
    /// Pages that the fault that is being served may have although there is no room.
    pub(crate) granted: usize,
    /// The fault that is being served.
    pub(crate) serving: Option<Fault>,
    /// Ranges (bytes) in which a copy found guards ([`crate::pager::marks`]).
    pub(crate) guards: Vec<(usize, usize)>,
    /// What pages are loaded into on their way to the program.
    pub(crate) scratch: Box<Scratch>,
    /// Faults to be tried (again).
    pub(crate) waiting: Vec<Fault>,
    /// Those that are served together.
    pub(crate) lot: Lot,
    /// Changes of mappings that were read.
    pub(crate) changes: Changes,
    /// Entries on their way to [`Engine::free_later`]; empty in between.
    pub(crate) pending_frees: Vec<Entry>,
    /// Which swapped pages come in with one that is missing.
    pub(crate) readahead: Readahead,
    /// What is read before it is wanted.
    pub(crate) prefetch: Prefetch,
    /// Records the faults, if that was asked for.
    pub(crate) trace: Option<Recorder>,
}

impl Cx {
    /// Whether a change of mappings is pending whose event was not read yet.
    pub(crate) fn changing(&self) -> bool {
        self.mm.is_changing(self.e.arena.frames.base)
    }

    /// The same as [`Cx::sleep`], where a change of mappings is pending: mostly the thread whose message was read just
    /// now has to run once more, and no longer. That is not worth a sleep.
    pub(crate) fn await_change(&mut self, timeout_ns: i64) {
        const LOOKS: usize = 32;
        for _ in 0..LOOKS {
            if !self.changing() {
                return;
            }
            rustix::thread::sched_yield();
        }
        self.sleep(Some(timeout_ns));
    }

    /// Waits for a message, a kick or a read, at most `timeout_ns`.
    pub(crate) fn sleep(&mut self, timeout_ns: Option<i64>) {
        // Where nothing would wake it, it only looks.
        let timeout_ns = if self.mm.descriptor().is_some() { timeout_ns } else { Some(0) };
        let messages = self.mm.descriptor().unwrap_or(self.kick.as_fd());
        let (mut fds, mut count) = ([messages; 3 + FDS_MAX], 2);
        fds[1] = self.kick.as_fd();
        if let Some(forks) = self.changes.forks.descriptor() {
            (fds[2], count) = (forks, 3);
        }
        let reads = count;
        for (place, fd) in fds[reads..].iter_mut().zip(self.prefetch.queue.fds()) {
            (*place, count) = (fd, count + 1);
        }
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout =
            timeout_ns.map(|ns| rustix::time::Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 });
        let woken = poll(&mut fds[..count], timeout.as_ref()).is_ok();
        let has_come = |fd: &PollFd<'_>| woken && !fd.revents().is_empty();
        let (kicked, read) = (has_come(&fds[1]), fds[reads..count].iter().any(has_come));
        if kicked {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(self.kick.as_fd(), &mut count);
        }
        if read {
            self.prefetch.reap(self.e);
        }
    }

    /// `[start, end)` (bytes) was emptied (`unmapped`: or is gone): swapped-out content is dropped.
    ///
    /// Slots are freed later: the program goes on, perhaps to fill a new mapping at full speed, and the pager must be
    /// there to adopt it. (Freeing the slots of 128 MiB here took 100 ms, in which as much memory grew unseen.)
    pub(crate) fn forget(&mut self, start: usize, end: usize, unmapped: bool) {
        let e = self.e;
        let (first, last) = (Vpn::of(start), Vpn::of(end.next_multiple_of(PAGE_SIZE)));
        let mut freed = std::mem::take(&mut self.pending_frees);
        e.table.for_each(first, last, |_, node| {
            loop {
                let state = e.table.state(node);
                let done = match state {
                    State::None => true,
                    State::Swapped(entry) => {
                        e.table.set(node, State::None);
                        freed.push(entry);
                        true
                    }
                    // The thread that discards pages goes on to do so when its event has been read; until then
                    // they are still there, and moving one out now would keep what must be gone. As `None` it is
                    // out of reach of reclaim. (After MADV_FREE it stays in memory, unmanaged, until it is unmapped.)
                    State::Mapped(entry) => {
                        let _ = lock(&e.lru).unmap(&e.table, node, State::None);
                        freed.extend(entry);
                        true
                    }
                    State::Cached(f) => {
                        let won = lock(&e.lru).uncache(&e.table, node, state, State::None);
                        if won {
                            freed.extend(e.slots.frame_entries.take(f));
                            e.frames.put_spent(f, 1);
                        }
                        won
                    }
                    // The writer notices, and gives frame and slot back.
                    State::Writeback(_) => e.table.change(node, state, State::None),
                };
                if done {
                    break;
                }
            }
        });
        e.free_later(&mut freed);
        self.pending_frees = freed;
        if unmapped {
            e.table.drop_empty_leaves(first, last);
        }
    }
}
