//! Compressed windows, read in advance by another thread.
//!
//! A read from a file goes on while the pager does something else; compressed pages a thread has to decompress. That is
//! the decompressor's work: the pager posts a window ([`Board::post`]), serves faults, and takes what the decompressor
//! has not come to when it wants the window ([`Board::take_over`]). So a decompressor that gets no CPU costs a wake-up
//! and nothing else. Whether it pays is tried ([`crate::cpus::ab_trial`]).
//!
//! The decompressor touches frames of posted windows and the devices. It allocates nothing and takes no lock but the
//! devices', and these only while it has a page of a window: when none is left, the process may be copied.
//!
//! The thread is in [`crate::threads::decompressor`].
//!
//! Callers: `prefetch`, on the pager's thread; in a forked child `fork`. No lock of its own ([`farpage_swap::split`]).

use farpage_base::mem::frame::Frames;
use farpage_base::mem::units::FrameNo;
use farpage_base::sys::futex;
use farpage_device::{Entry, SwapSpace};
use farpage_swap::readahead::READAHEAD_MAX;
use farpage_swap::split::Split;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

/// Windows posted at the same time.
const JOBS: usize = 4;
/// Looks at the word of a piece that is waited for, before sleeping: to decompress a page takes about 2 us.
const LOOKS: u32 = 2000;

const _: () = assert!(READAHEAD_MAX <= u32::BITS, "a bit for each page");

/// One window.
#[derive(Default)]
pub(crate) struct Job {
    pub(crate) split: Split,
    /// The pager has posted it, and has not taken the result yet.
    used: AtomicBool,
    /// When it was posted: the oldest comes first.
    order: AtomicU32,
    frame: AtomicU32,
    entries: [AtomicU64; READAHEAD_MAX as usize],
    /// A bit for each page that could not be read.
    failed: AtomicU32,
}

/// The thread's state.
pub(crate) const NONE: u8 = 0;
pub(crate) const RUNS: u8 = 1;
/// It cannot be started, or has nothing to run on.
pub(crate) const NEVER: u8 = 2;

/// What pager and decompressor share.
#[derive(Default)]
pub struct Board {
    jobs: [Job; JOBS],
    /// Counts posts. The decompressor sleeps here.
    pub(crate) posted: AtomicU32,
    pub(crate) asleep: AtomicBool,
    pub(crate) state: AtomicU8,
    /// Its thread id, 0 before it runs.
    pub(crate) tid: AtomicU32,
}

/// A posted window.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ticket(usize);

impl Board {
    /// For tests: the thread is not to be started.
    #[cfg(test)]
    pub(crate) fn never(&self) {
        self.state.store(NEVER, Relaxed);
    }

    /// In a forked child, which has no such thread. The parent's pager had taken all windows back.
    pub(crate) fn fork_child(&self) {
        if self.state.load(Relaxed) == RUNS {
            self.state.store(NONE, Relaxed);
        }
        self.tid.store(0, Relaxed);
    }

    /// The thread, 0 before it runs.
    pub(crate) fn tid(&self) -> u32 {
        self.tid.load(Relaxed)
    }

    /// Has these pages loaded into as many frames from `frame` on, which are the decompressor's until
    /// [`Board::take_over`] or [`Board::take_back`]. `None`: too much is posted already.
    pub(crate) fn post(&self, entries: &[Entry], frame: FrameNo) -> Option<Ticket> {
        let at = self.jobs.iter().position(|job| !job.used.load(Relaxed))?;
        let job = &self.jobs[at];
        let order = self.posted.load(Relaxed);
        job.used.store(true, Relaxed);
        job.order.store(order, Relaxed);
        job.frame.store(frame.number(), Relaxed);
        job.failed.store(0, Relaxed);
        for (place, entry) in job.entries.iter().zip(entries) {
            place.store(entry.raw(), Relaxed);
        }
        job.split.post(entries.len().min(READAHEAD_MAX as usize) as u16);
        self.wake();
        Some(Ticket(at))
    }

    /// Has the thread look for what is asked of it. On the pager's thread.
    pub(crate) fn wake(&self) {
        self.posted.store(self.posted.load(Relaxed).wrapping_add(1), SeqCst);
        if self.asleep.swap(false, SeqCst) {
            futex::wake_one(&self.posted);
        }
    }

    /// Whether all of a window is there.
    pub(crate) fn is_over(&self, ticket: &Ticket) -> bool {
        self.jobs[ticket.0].split.is_over()
    }

    /// The pager wants a window now: it loads what is left itself. How many pages of `len` are there, from the first
    /// on.
    pub(crate) fn take_over(&self, from: &SwapSpace, to: &Frames, ticket: Ticket, len: usize) -> usize {
        let job = &self.jobs[ticket.0];
        while let Some(i) = job.split.last() {
            job.load(from, to, i);
        }
        self.end(job);
        (job.failed.load(Relaxed).trailing_zeros() as usize).min(len)
    }

    /// A window is wanted no more: what has not been loaded is not.
    pub(crate) fn take_back(&self, ticket: Ticket) {
        let job = &self.jobs[ticket.0];
        job.split.rest();
        self.end(job);
    }

    /// Waits for the page that the decompressor is at. Nothing else is left.
    fn end(&self, job: &Job) {
        let soon = (0..LOOKS).any(|_| {
            std::hint::spin_loop();
            job.split.is_over()
        });
        while let Some(seen) = job.split.must_wait().filter(|_| !soon) {
            futex::wait(job.split.word(), seen, None);
        }
        job.used.store(false, Relaxed);
    }

    /// The oldest window that has something left.
    pub(crate) fn next(&self) -> Option<(&Job, u32)> {
        let now = self.posted.load(Acquire);
        let age = |job: &&Job| now.wrapping_sub(job.order.load(Relaxed));
        loop {
            let job = self.jobs.iter().filter(|job| job.split.has_some()).max_by_key(age)?;
            if let Some(i) = job.split.first() {
                return Some((job, i));
            }
        }
    }
}

impl Job {
    /// Loads page `i`, which the caller has taken.
    pub(crate) fn load(&self, from: &SwapSpace, to: &Frames, i: u32) {
        let entry = Entry::from_raw(self.entries[i as usize].load(Relaxed));
        let frame = FrameNo::new(self.frame.load(Relaxed)) + i as usize;
        // SAFETY: the frame is the window's, each page of it is taken once, and no other thread has a reference before
        // it is over.
        let page = unsafe { to.page_mut(frame) };
        if entry.is_none_or(|entry| from.load(entry, page).is_err()) {
            self.failed.fetch_or(1 << i, Relaxed);
        }
    }
}
