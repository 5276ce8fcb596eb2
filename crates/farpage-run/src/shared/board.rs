//! Pages that are loaded by other threads than the pager: the helpers.
//!
//! *Windows.* A read from a file goes on while the pager does something else; compressed pages a thread has to
//! decompress. The pager posts a window ([`Board::post`]), serves faults, and takes what no helper has come to when it
//! wants the window ([`Board::take_over`]). The pages wait in frames.
//!
//! *A lot of faults.* Several threads wait, each for one page. The pager posts all of these pages and loads them
//! together with the helpers ([`Board::load_lot`]); who has loaded a page copies it into the program. The pager does
//! nothing else until all are done. So no message is read, no word is changed and no page is moved while a helper
//! copies: what the pager saw before still holds, and the kernel refuses a copy if there is a change that is not read.
//!
//! A helper that gets no CPU costs a wake-up and nothing else. Whether helpers pay is tried
//! ([`crate::cpus::ab_trial`]). They touch the frames and places of what is posted, and the devices. They allocate
//! nothing and take no locks but those of devices and codecs, and these only while they have a page: when none is left,
//! the process may be copied.
//!
//! The threads are in [`crate::threads::helper`].
//!
//! Callers: `prefetch` and `lot`, on the pager's thread; in a forked child `fork`. No lock of its own
//! ([`farpage_swap::split`]).

use crate::shared::address_space::AddressSpace;
use crate::shared::stacks::HELPERS_MAX;
use farpage_base::mem::units::{Page, Vpn};
use farpage_base::sys::futex;
use farpage_device::{Entry, SwapSpace};
use farpage_swap::PAGE_SIZE;
use farpage_swap::readahead::READAHEAD_MAX;
use farpage_swap::split::Split;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

/// Windows posted at the same time.
const WINDOWS: usize = 4;
/// Pages of a job.
pub(crate) const JOB_MAX: usize = READAHEAD_MAX as usize;
/// Pages of a lot for which a helper is woken: that costs as much as to load and place one or two.
const PAGES_A_WAKE: usize = 3;
/// Looks at the word of a piece that is waited for, before sleeping: to decompress a page takes about 2 us.
const LOOKS: u32 = 2000;

const _: () = assert!(JOB_MAX <= u32::BITS as usize, "a bit for each page");

/// How a loaded page gets to its place; the box is the pager's.
pub(crate) type Placer = Box<dyn AddressSpace>;

/// A window, or a lot of faults.
#[derive(Default)]
pub(crate) struct Job {
    pub(crate) split: Split,
    /// The pager has posted it, and has not taken the result yet.
    used: AtomicBool,
    /// When it was posted: the oldest comes first.
    order: AtomicU32,
    entries: [AtomicU64; JOB_MAX],
    /// Where the pages go: in memory of the engine, ...
    places: [AtomicUsize; JOB_MAX],
    /// ... or, if there is one, by this into the program.
    placer: AtomicPtr<Placer>,
    /// A bit for each page that could not be read, or placed.
    failed: AtomicU32,
}

/// What pager and helpers share.
#[derive(Default)]
pub struct Board {
    windows: [Job; WINDOWS],
    lot: Job,
    /// Counts posts. The helpers sleep here.
    pub(crate) posted: AtomicU32,
    pub(crate) asleep: AtomicU32,
    /// Their thread ids, 0 before they run.
    pub(crate) tids: [AtomicU32; HELPERS_MAX],
    /// They cannot be started, or have nothing to run on.
    pub(crate) never: AtomicBool,
}

/// A posted window.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ticket(usize);

impl Board {
    /// In a forked child, which has no such thread. The parent's pager had taken all windows back.
    pub(crate) fn fork_child(&self) {
        if self.tids[0].load(Relaxed) != 0 {
            self.never.store(false, Relaxed);
        }
        self.tids.iter().for_each(|tid| tid.store(0, Relaxed));
        self.asleep.store(0, Relaxed);
    }

    /// The threads, 0 where there is none yet.
    pub(crate) fn tids(&self) -> [u32; HELPERS_MAX] {
        self.tids.each_ref().map(|tid| tid.load(Relaxed))
    }

    /// Has these pages loaded into as many frames from address `to` on, which are a helper's until
    /// [`Board::take_over`] or [`Board::take_back`]. `None`: too much is posted already.
    pub(crate) fn post(&self, entries: &[Entry], to: usize) -> Option<Ticket> {
        let at = self.windows.iter().position(|job| !job.used.load(Relaxed))?;
        let pages = entries.iter().enumerate().map(|(i, entry)| (*entry, to + i * PAGE_SIZE));
        self.windows[at].post(self.posted.load(Relaxed), pages, std::ptr::null_mut());
        self.wake(1);
        Some(Ticket(at))
    }

    /// Loads these pages into the program, at these addresses, together with some helpers; `verify` is shown what was
    /// loaded. No thread is woken. A bit for each page that could not be read or placed.
    pub(crate) fn load_lot(
        &self,
        from: &SwapSpace,
        pages: impl ExactSizeIterator<Item = (Entry, usize)>,
        placer: &Placer,
        helpers: usize,
        verify: impl Fn(Vpn, Entry, &Page),
    ) -> u32 {
        let lot = &self.lot;
        let wakes = helpers.min(pages.len() / PAGES_A_WAKE);
        lot.post(self.posted.load(Relaxed), pages, std::ptr::from_ref(placer).cast_mut());
        if wakes > 0 {
            self.wake(wakes);
        }
        while let Some(i) = lot.split.last() {
            lot.load(from, i, &verify);
        }
        self.end(lot);
        lot.failed.load(Relaxed)
    }

    /// Has `n` threads look for what is asked of them.
    fn wake(&self, n: usize) {
        self.posted.fetch_add(1, SeqCst);
        if self.asleep.load(SeqCst) > 0 {
            futex::wake(&self.posted, n as i32);
        }
    }

    /// Has all threads look for what is asked of them.
    pub(crate) fn wake_all(&self) {
        self.wake(HELPERS_MAX);
    }

    /// Whether all of a window is there.
    pub(crate) fn is_over(&self, ticket: &Ticket) -> bool {
        self.windows[ticket.0].split.is_over()
    }

    /// The pager wants a window now: it loads what is left itself. How many pages of `len` are there, from the first
    /// on.
    pub(crate) fn take_over(&self, from: &SwapSpace, ticket: Ticket, len: usize) -> usize {
        let job = &self.windows[ticket.0];
        while let Some(i) = job.split.last() {
            job.load(from, i, |_, _, _| {});
        }
        self.end(job);
        (job.failed.load(Relaxed).trailing_zeros() as usize).min(len)
    }

    /// A window is wanted no more: what has not been loaded is not.
    pub(crate) fn take_back(&self, ticket: Ticket) {
        let job = &self.windows[ticket.0];
        job.split.rest();
        self.end(job);
    }

    /// Waits for the pages that helpers are at. Nothing else is left.
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

    /// A page that is to be loaded: first those that threads wait for, then those of the oldest window.
    pub(crate) fn next(&self) -> Option<(&Job, u32)> {
        if let Some(i) = self.lot.split.first() {
            return Some((&self.lot, i));
        }
        let now = self.posted.load(Acquire);
        let age = |job: &&Job| now.wrapping_sub(job.order.load(Relaxed));
        loop {
            let job = self.windows.iter().filter(|job| job.split.has_some()).max_by_key(age)?;
            if let Some(i) = job.split.first() {
                return Some((job, i));
            }
        }
    }
}

impl Job {
    fn post(&self, order: u32, pages: impl ExactSizeIterator<Item = (Entry, usize)>, placer: *mut Placer) {
        self.used.store(true, Relaxed);
        self.order.store(order, Relaxed);
        self.placer.store(placer, Relaxed);
        self.failed.store(0, Relaxed);
        let n = pages.len().min(JOB_MAX);
        for ((entry, place), page) in self.entries.iter().zip(&self.places).zip(pages) {
            entry.store(page.0.raw(), Relaxed);
            place.store(page.1, Relaxed);
        }
        self.split.post(n as u16);
    }

    /// Loads page `i`, which the caller has taken.
    pub(crate) fn load(&self, from: &SwapSpace, i: u32, verify: impl Fn(Vpn, Entry, &Page)) {
        let place = self.places[i as usize].load(Relaxed);
        let placer = self.placer.load(Relaxed);
        let done = Entry::from_raw(self.entries[i as usize].load(Relaxed)).is_some_and(|entry| {
            if placer.is_null() {
                // SAFETY: a frame of the window, each page of which is taken once; no other thread has a reference
                // before the job is over.
                return from.load(entry, unsafe { &mut *(place as *mut Page) }).is_ok();
            }
            let mut page = [0; PAGE_SIZE];
            if from.load_in_reach(&[entry], &mut [&mut page]).0 == 0 {
                return false;
            }
            verify(Vpn::of(place), entry, &page);
            // SAFETY: the pager, whose box this is, waits in `load_lot` until the job is over.
            let placer = unsafe { &*placer };
            // SAFETY: a registered page of the program, where no reference of the engine's points; the content is on
            // this stack.
            let (bytes, _) = unsafe { placer.copy_pages(place, page.as_ptr() as usize, PAGE_SIZE, true) };
            bytes == PAGE_SIZE
        });
        if !done {
            self.failed.fetch_or(1 << i, Relaxed);
        }
    }
}
