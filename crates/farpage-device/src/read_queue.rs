//! Reads in flight while their thread does something else.
//!
//! Owned by one thread (the pager), which submits windows of entries, puts [`ReadQueue::fds`] into its poll set and
//! books what has arrived. Files are read by io_uring, servers over a connection each
//! ([`Lines`]). Synchronous pages of a window are loaded in the submitting call, while the others are on their way.
//!
//! ```text
//!   queue.submit(space, tag, entries, pages) -> Submitted::Done(..)   all in place, or nothing could be queued
//!                                            -> Submitted::InFlight   pages are the queue's until `next` names the tag
//!   poll([uffd, kick, queue.fds()..])
//!   while let Some(arrived) = queue.next(space)   -> tag, pages loaded from the first on, why it stopped
//! ```
//!
//! What the owner must see to:
//! * Frames of a window in flight are the queue's: not on the free list, not moved (`UFFDIO_MOVE` refuses them while
//!   the kernel has them pinned).
//! * An entry may be freed while its read is in flight; then the result is of no use, and must be thrown away (the slot
//!   may be in use again). A read that fails is repeated through the entry, never through the old place.
//! * Before a fork, [`ReadQueue::finish_all`]; in the child, [`ReadQueue::fork_child`].
//! * Requests belong to the thread that submitted them: a queue stays on its thread.
//!
//! No locks. Memory: one record of about 6 KiB for each window in flight, reused.

mod lines;
#[cfg(test)]
pub(crate) mod tests;

use super::io::{BATCH_MAX, Batch, Direction, IoRing};
use super::space::Located;
use super::{Entry, LoadError, Page, SwapSpace};
use lines::{LINES_MAX, Lines};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// Windows in flight at the same time.
pub const WINDOWS_MAX: usize = 16;
/// Most of [`ReadQueue::fds`].
pub const FDS_MAX: usize = 1 + LINES_MAX;
/// Requests to the kernel in flight at the same time.
const REQUESTS_MAX: usize = 256;

/// How long is slept at most between two looks at servers that may be late.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

struct Window {
    tag: u64,
    batch: Batch,
    /// Runs that have not ended.
    open: usize,
    count: usize,
    entries: [Option<Entry>; BATCH_MAX],
    real: [Option<Located>; BATCH_MAX],
    pages: [*mut Page; BATCH_MAX],
    /// Page's number in the batch; `None`: it was loaded in place.
    numbers: [Option<usize>; BATCH_MAX],
    /// Errors of pages that were loaded in place.
    errors: [Option<LoadError>; BATCH_MAX],
}

/// What became of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// As given to [`ReadQueue::submit`].
    pub tag: u64,
    /// Pages that were loaded, from the first on; the content of the others is unspecified.
    pub loaded: usize,
    /// Why not all.
    pub error: Option<LoadError>,
}

/// What [`ReadQueue::submit`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Submitted {
    /// All done; nothing is in flight.
    Done(Arrived),
    /// [`ReadQueue::next`] will name the tag.
    InFlight,
}

/// Windows in flight, of one thread.
#[derive(Default)]
pub struct ReadQueue {
    ring: Option<IoRing>,
    /// Told by the kernel of each completion; close-on-exec, in the engine's table.
    event: Option<OwnedFd>,
    /// To servers.
    lines: Lines,
    windows: Vec<Option<Box<Window>>>,
    /// Records for reuse.
    spare: Vec<Box<Window>>,
    in_flight: usize,
    /// Complete windows that `next` has not named yet.
    complete: Vec<Arrived>,
}

// SAFETY: the pointers in it are to memory lent for as long as a window is in flight (contract of `submit`), not to
// anything of a thread. (The ring is for one thread only; the kernel refuses others.)
unsafe impl Send for ReadQueue {}

impl ReadQueue {
    /// An empty queue. Its ring is made at the first submission.
    pub fn new() -> ReadQueue {
        ReadQueue::default()
    }

    /// For the poll set, [`FDS_MAX`] at most: one is readable when [`ReadQueue::next`] may have something (call it
    /// until it has nothing; now and then it has nothing at once). That a server is late shows only in a call of it.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.event.iter().map(AsFd::as_fd).chain(self.lines.fds())
    }

    /// Windows in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Reads a window of up to 64 pages. What is in memory (compressed pages) is loaded before the call returns, what
    /// is on queued devices later. Where nothing can be queued (no io_uring, no connection, too much in flight),
    /// everything is done before it returns, like [`SwapSpace::load_in_reach`].
    ///
    /// # Safety
    /// With [`Submitted::InFlight`]: every page of `pages` is valid memory that no other code reads, writes or moves
    /// until [`ReadQueue::next`] or [`ReadQueue::finish_all`] has named `tag`. The queue is used by the thread that
    /// submitted first, and dropped by it or never.
    pub unsafe fn submit(
        &mut self,
        space: &SwapSpace,
        tag: u64,
        entries: &[Entry],
        pages: &mut [&mut Page],
    ) -> Submitted {
        let count = entries.len().min(pages.len()).min(BATCH_MAX);
        let plan = space.plan(&entries[..count]);
        if plan.queued().is_empty() || self.in_flight == WINDOWS_MAX {
            let (loaded, error) = space.load_in_reach(&entries[..count], &mut pages[..count]);
            return Submitted::Done(Arrived { tag, loaded, error });
        }
        let mut window = self.spare.pop().unwrap_or_else(Window::boxed);
        window.tag = tag;
        window.count = count;
        window.open = 0;
        for (i, page) in pages[..count].iter_mut().enumerate() {
            window.pages[i] = &mut **page;
            window.entries[i] = Some(entries[i]);
            window.real[i] = plan.real(i as u8);
            window.numbers[i] = None;
            window.errors[i] = None;
        }
        for &i in plan.queued() {
            let i = usize::from(i);
            // SAFETY: the pages are the queue's until the window has arrived (contract of this function).
            window.numbers[i] = unsafe { space.push(&mut window.batch, window.real[i], window.pages[i]) };
        }
        let at = self.windows.iter().position(Option::is_none).unwrap_or(self.windows.len());
        if !window.batch.is_away() && !self.queue(space, &mut window, at) {
            window.batch = empty();
            self.spare.push(window);
            let (loaded, error) = space.load_in_reach(&entries[..count], &mut pages[..count]);
            return Submitted::Done(Arrived { tag, loaded, error });
        }
        // SAFETY: as for the ring.
        window.open += unsafe { self.lines.send(&mut window.batch, at as u32) };
        // Servers without a connection to spare.
        window.batch.run_remotely();
        space.load_others(&entries[..count], pages, &window.numbers[..count], &mut window.errors);
        if window.open == 0 {
            // Every run ended without the kernel (injected errors).
            return Submitted::Done(self.book(space, window));
        }
        self.in_flight += 1;
        match self.windows.get_mut(at) {
            Some(place) => *place = Some(window),
            None => self.windows.push(Some(window)),
        }
        Submitted::InFlight
    }

    /// The next window that has arrived; does not wait.
    pub fn next(&mut self, space: &SwapSpace) -> Option<Arrived> {
        if self.complete.is_empty() {
            // Before the look, so that what comes later is announced anew.
            self.clear_event();
            if self.in_flight > 0 {
                self.reap(space, 0);
            }
        }
        self.complete.pop()
    }

    /// What comes later is announced anew.
    fn clear_event(&self) {
        if let Some(event) = &self.event {
            let _ = rustix::io::read(event, &mut [0; 8]);
        }
    }

    /// The next window that has arrived; waits for one. `None`: nothing is in flight.
    pub fn wait(&mut self, space: &SwapSpace) -> Option<Arrived> {
        while self.complete.is_empty() && self.in_flight > 0 {
            if self.lines.are_busy() {
                let mut fds: Vec<_> = self.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
                let _ = poll(&mut fds, Some(&LOOK));
                drop(fds);
                self.clear_event();
                self.reap(space, 0);
            } else {
                self.reap(space, 1);
            }
        }
        self.complete.pop()
    }

    /// Waits for all windows and hands each to `arrived`. Afterwards nothing is in flight: the process may fork.
    pub fn finish_all(&mut self, space: &SwapSpace, mut arrived: impl FnMut(Arrived)) {
        while let Some(window) = self.wait(space) {
            arrived(window);
        }
    }

    /// In a forked child (nothing was in flight): the ring is the parent's, a new one is made when needed.
    pub fn fork_child(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.forget();
        }
        // The number may be another file's in the child's table.
        std::mem::forget(self.event.take());
        self.lines.clear();
        self.windows.clear();
        self.in_flight = 0;
    }

    /// Hands what is in files to the kernel; `false`: nothing of it is in flight.
    fn queue(&mut self, space: &SwapSpace, window: &mut Window, at: usize) -> bool {
        if !self.has_room(space, window.batch.runs()) {
            return false;
        }
        let Some(ring) = self.ring.as_mut() else { return false };
        let before = ring.in_flight();
        // SAFETY: the batch is in a box that stays until every run has ended, and so does its memory (contract of
        // `submit`).
        unsafe { ring.queue(&mut window.batch, at as u32) };
        window.open = ring.in_flight() - before;
        if ring.enter(0).is_err() {
            // Nothing at all is in flight then: the ring has never been of use, or is no longer.
            self.lose_ring(space);
            return false;
        }
        true
    }

    fn has_room(&mut self, space: &SwapSpace, requests: usize) -> bool {
        if space.rings().refused() {
            return false;
        }
        if self.ring.is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let made = IoRing::new(REQUESTS_MAX as u32).and_then(|ring| {
                let event = rustix::event::eventfd(0, flags)?;
                ring.notify(event.as_fd())?;
                Ok((ring, event))
            });
            match made {
                Ok((ring, event)) => (self.ring, self.event) = (Some(ring), Some(event)),
                Err(_) => space.rings().refuse(),
            }
        }
        self.ring.as_ref().is_some_and(|ring| ring.in_flight() + requests <= REQUESTS_MAX)
    }

    /// The ring takes nothing any more, and has nothing.
    fn lose_ring(&mut self, space: &SwapSpace) {
        self.ring = None;
        space.rings().refuse();
    }

    /// Books what has ended, waiting for `want` completions of the ring.
    fn reap(&mut self, space: &SwapSpace, want: usize) {
        while let Some(landed) = self.lines.next() {
            let Some(Some(window)) = self.windows.get_mut(landed.window as usize) else { continue };
            window.batch.remote_ended(landed.run, landed.end);
            self.run_ended(space, landed.window as usize);
        }
        let Some(ring) = self.ring.as_mut() else { return };
        if ring.enter(want).is_err() {
            // Only if all that is in flight was never taken by the kernel: it never happened.
            self.lose_ring(space);
            self.abandon(space);
            return;
        }
        while let Some((at, run, result)) = self.ring.as_mut().and_then(IoRing::reap) {
            let Some(Some(window)) = self.windows.get_mut(at as usize) else { continue };
            // What is left of a short read is read through the entry (`book`): by now it may be somewhere else.
            window.batch.completed(run, result);
            self.run_ended(space, at as usize);
        }
    }

    /// A run of a window has ended; with the last one it is complete.
    fn run_ended(&mut self, space: &SwapSpace, at: usize) {
        let Some(place) = self.windows.get_mut(at) else { return };
        let ended = place.take_if(|window| {
            window.open -= 1;
            window.open == 0
        });
        if let Some(window) = ended {
            self.in_flight -= 1;
            let arrived = self.book(space, window);
            self.complete.push(arrived);
        }
    }

    /// Nothing in flight will arrive: every window is read in place.
    fn abandon(&mut self, space: &SwapSpace) {
        self.lines.clear();
        for at in 0..self.windows.len() {
            if let Some(window) = self.windows[at].take() {
                self.in_flight -= 1;
                let arrived = self.book(space, window);
                self.complete.push(arrived);
            }
        }
    }

    /// Looks at every page of a window that has ended.
    fn book(&mut self, space: &SwapSpace, mut window: Box<Window>) -> Arrived {
        let mut arrived = Arrived { tag: window.tag, loaded: 0, error: None };
        for i in 0..window.count {
            let Some(entry) = window.entries[i] else { break };
            let error = match window.numbers[i] {
                None => window.errors[i],
                Some(number) => {
                    // SAFETY: the page is the queue's until this window has been named (contract of `submit`), and the
                    // kernel is done with it: every run of the window has ended.
                    let page = unsafe { &mut *window.pages[i] };
                    space.finish(entry, window.real[i], window.batch.outcome(number), page, false).err()
                }
            };
            if error.is_some() {
                arrived.error = error;
                break;
            }
            arrived.loaded += 1;
        }
        // The places in it would keep their stores.
        window.batch = empty();
        self.spare.push(window);
        arrived
    }
}

impl Drop for ReadQueue {
    fn drop(&mut self) {
        // The kernel may write to the windows' memory until then.
        while let Some(ring) = self.ring.as_mut().filter(|ring| ring.in_flight() > 0) {
            if ring.enter(1).is_err() {
                break;
            }
            while ring.reap().is_some() {}
        }
    }
}

fn empty() -> Batch {
    Batch::new(Direction::Read).impatient()
}

impl Window {
    fn boxed() -> Box<Window> {
        Box::new(Window {
            tag: 0,
            batch: empty(),
            open: 0,
            count: 0,
            entries: [None; BATCH_MAX],
            real: [None; BATCH_MAX],
            pages: [std::ptr::null_mut(); BATCH_MAX],
            numbers: [None; BATCH_MAX],
            errors: [None; BATCH_MAX],
        })
    }
}
