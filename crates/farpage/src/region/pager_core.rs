//! What the threads of one pager share, and its account of memory.
//!
//! | lock | guards | held for |
//! | --- | --- | --- |
//! | a page's word (`word`) | the page | one fault, move or store |
//! | `Places` | which regions there are, and which of their pages have words | a look-up |
//! | `readahead`, `zero_streams` | what comes in together | a look-up |
//! | `PrefetchPosts` | posts of readahead | a copy |
//! | `to_free` | entries that faults are done with | a push |
//! | `protecting` | that the words' *writable* is true | a batch of reclaim; a sweep |
//! | `lists` | all lists | a splice, or some links; words are only tried under it, never waited for |
//! | `share` | the division of the budget (`division`) | a look at the counters; it is only tried |
//! | `Frames`, devices | their own | see there |
//!
//! Their order, and what reclaim may hold during system calls: docs/dev/locking.md.

use super::error::Error;
use super::gate::Gate;
use super::lists::PageLists;
use super::places::RegionPlace;
use super::prefetch::posts::PrefetchPosts;
use super::readahead::RegionReadahead;
use super::space::{OwnMapping, Space};
use super::stat::PagerStat;
use super::word::{PageState, Seen};
use farpage_base::mem::frame::Frames;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::FrameNo;
use farpage_base::mem::units::Page;
use farpage_base::mem::zeros::{ZERO_PAGES, zero_pages};
use farpage_base::sys::fd::Fd;
use farpage_base::sys::message::fatal_fmt;
use farpage_base::sys::raw::{ErrnoText, discard};
use farpage_base::sys::table::Table;
use farpage_base::sys::uffd::{Uffd, UffdError};
use farpage_codec::page_hash::ContentKey;
use farpage_device::frame_entries::FrameEntries;
use farpage_device::leases::Leases;
use farpage_device::{Entry, SwapSpace};
use farpage_swap::PAGE_SIZE;
use farpage_swap::clean_slots::CleanSlotPolicy;
use farpage_swap::pool_share::{LoadTimes, PoolShare};
use farpage_swap::readahead::Streams;
use farpage_swap::tuning::Controls;
use farpage_swap::watermarks::{Level, Watermarks};
use farpage_swap::workingset::{Pages, Rank};
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};

/// Most reclaim threads of a pager.
pub const RECLAIMERS_MAX: usize = 8;

/// Adds to a counter.
#[inline]
pub fn count(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Relaxed);
}

/// How reclaim and the threads that wait for it meet.
#[derive(Debug, Default)]
pub struct ReclaimWakeups {
    /// Counts requests to the first reclaim thread, which sleeps here.
    pub work: AtomicU32,
    /// It sleeps.
    pub asleep: AtomicBool,
    /// Counts requests to the other reclaim threads, which sleep here until threads wait for frames.
    pub help: AtomicU32,
    /// Counts what has been freed: batches of frames, or of room in the budget.
    pub freed: AtomicU32,
    /// Threads that wait for `freed`.
    pub waiting: AtomicU32,
    /// Reclaim found nothing that could go: the budget gives way.
    pub stuck: AtomicBool,
    /// The pager is being dropped.
    pub stop: AtomicBool,
}

/// See the module documentation.
pub struct PagerCore {
    /// Addresses, words, links.
    pub space: Space,
    /// Regions and frames are registered with it.
    pub uffd: Uffd,
    /// Frames and their memory.
    pub frames: Frames,
    pub(super) frame_memory: OwnMapping,
    /// The entry that may hold the same bytes, for each frame in use. Belongs to the thread that has the frame's page
    /// busy.
    pub frame_entries: FrameEntries,
    /// The lists.
    pub lists: PageLists,
    /// Readahead from devices.
    pub readahead: RegionReadahead,
    /// First touches in order.
    pub zero_streams: Mutex<Streams>,
    /// Devices; their pool's memory must outlive them, so it stands below.
    pub swap: SwapSpace,
    #[allow(dead_code, reason = "keeps the devices' memory")]
    pub(super) pool_memory: OwnMapping,
    /// For hashes.
    pub key: ContentKey,
    /// What is to be read ahead in another thread.
    pub prefetch_posts: PrefetchPosts,
    /// Entries to be freed; never longer than it was made.
    pub to_free: Mutex<Vec<Entry>>,
    /// The page where `reclaim_slots` goes on.
    pub slot_hand: AtomicU32,
    /// Whether keeping clean copies pays.
    pub clean: CleanSlotPolicy,
    /// The feedback controllers, and what they are held at.
    pub controls: Controls,
    /// How much of the budget is for compressed pages.
    pub share: Mutex<PoolShare>,
    /// What a load takes.
    pub load_times: LoadTimes,
    /// Held for reading while pages are taken out that the words say cannot be written, for writing while the words say
    /// so and it is not true yet.
    pub protecting: RwLock<()>,
    /// Pages that had gone when all were write-protected last.
    pub gone_at_wp_sweep: AtomicU64,
    /// Pages looked at in vain since one went.
    pub scanned_in_vain: AtomicU64,
    /// Pages of regions that reclaim found discarded by the program while it read them.
    pub discarded_under_us: AtomicU64,
    /// Writable pages may be write-protected all at once: signal mode.
    pub wp_sweeps: bool,
    /// This process, for `process_madvise`.
    pub pidfd: Fd,
    /// The descriptor table that all descriptors here are ones of.
    pub table: Arc<Table>,
    /// Reclaim threads, by kernel thread id.
    pub reclaimers: [AtomicU32; RECLAIMERS_MAX],
    /// Counters, and what else is seen from outside.
    pub stat: PagerStat,
    /// Times that all pages were write-protected.
    pub wp_sweeps_done: AtomicU64,
    /// Wake-ups.
    pub wakeups: ReclaimWakeups,
    /// The process that the pager works in. In a forked child that does not inherit it there are no threads and no
    /// regions.
    pub pid: AtomicU32,
    /// What comes back is compared with what left.
    pub verify: bool,
    /// Forked children have the pager too.
    pub inherit: bool,
    /// Passed by faults and by the interface's functions.
    pub faults: Gate,
    /// Passed by the pager's own threads.
    pub workers: Gate,
    /// Children that may need what is stored in files. Their ends are in the pager's table.
    pub leases: Leases,
    /// In a child: the pipes that its ancestors watch.
    pub ancestors: Mutex<Vec<OwnedFd>>,
    /// Budget, pages.
    pub limit: AtomicI64,
    /// Pages present in regions and frames.
    pub held: AtomicI64,
    /// Pages of the pool and of the devices' tables, as of the last look.
    pub overhead: AtomicI64,
    /// Pages whose only copy is on a device.
    pub swapped: AtomicI64,
    /// Pages poisoned so far: above zero, an absent page may have a marker.
    pub poisoned: AtomicU32,
    /// Pages pinned now.
    pub pinned: AtomicI64,
    /// It has been said that no device has room.
    pub full_warned: AtomicBool,
}

impl std::fmt::Debug for PagerCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PagerCore").field("limit", &self.limit).field("held", &self.held).finish_non_exhaustive()
    }
}

// SAFETY: the mappings are plain memory, accessed as the modules say; everything else is Sync.
unsafe impl Sync for PagerCore {}
// SAFETY: as above.
unsafe impl Send for PagerCore {}

impl PagerCore {
    /// This process has the pager's threads and regions.
    pub fn is_here(&self) -> bool {
        self.pid.load(Relaxed) == std::process::id()
    }

    /// In a child: the threads that slept or waited are not here.
    pub fn forget_threads(&self) {
        let w = &self.wakeups;
        w.asleep.store(false, Relaxed);
        w.waiting.store(0, Relaxed);
        self.reclaimers.iter().for_each(|r| r.store(0, Relaxed));
    }

    /// A page of a region that is there although the pager did not put it there: it counts from now on.
    pub fn found(&self, page: u32) {
        let Some(seen) = self.space.word(page).try_lock() else { return };
        let seen = seen.writable();
        self.space.set_rank(page, Rank::NEW);
        self.lists.lock().map(&self.space, page, Rank::NEW);
        self.held.fetch_add(1, Relaxed);
        self.space.word(page).unlock(seen, PageState::Mapped(None));
    }

    /// A page will be needed soon, says the program: if it is there, it is the youngest of those that proved hot.
    /// Whether it is.
    pub fn make_hot(&self, page: u32) -> bool {
        self.space.touch(page);
        let word = self.space.word(page);
        let seen = word.lock();
        let there = matches!(seen.state(), PageState::Mapped(_));
        if there {
            let mut lists = self.lists.lock();
            lists.unlink(&self.space, page, seen);
            let rank = self.space.rank(page).max(Rank::HOT);
            self.space.set_rank(page, rank);
            lists.map(&self.space, page, rank);
        }
        word.unlock(seen, seen.state());
        there
    }

    /// Pages that may be taken from the kernel now.
    #[inline]
    pub fn room(&self) -> i64 {
        self.limit.load(Relaxed) - self.total()
    }

    /// Pages that count against the budget.
    #[inline]
    pub fn total(&self) -> i64 {
        self.held.load(Relaxed) + self.beside()
    }

    /// Pages of pool and tables.
    #[inline]
    pub(super) fn beside(&self) -> i64 {
        self.overhead.load(Relaxed) + (self.space.places.bytes() / PAGE_SIZE as u64) as i64
    }

    /// Looks at the size of pool and tables again, and publishes what is known now.
    pub fn update_overhead(&self) {
        let usage = self.swap.usage();
        self.divide_budget(&usage);
        self.overhead.store(((usage.pool_bytes + usage.meta_bytes) / PAGE_SIZE as u64) as i64, Relaxed);
        self.publish(&usage);
    }

    /// From when until when reclaim runs.
    #[inline]
    pub fn watermarks(&self) -> Watermarks {
        Watermarks::of_regions(self.limit.load(Relaxed), self.frames.len())
    }

    /// What there is of room and free frames, and what there should be. Takes the frames' lock.
    pub fn level(&self) -> Level {
        let room = self.room();
        // In thread mode frames are not used twice: what may be taken from the kernel is as good as one.
        let new = if self.wp_sweeps { 0 } else { room.max(0) as usize };
        self.watermarks().at(room, self.frames.free_count() + new)
    }

    /// Pages that wait in the swap cache for a second chance, at most: in thread mode.
    pub fn cached_most(&self) -> usize {
        (self.limit.load(Relaxed) as usize / 32).clamp(64, 2048).min(self.frames.len() / 4)
    }

    /// Pages that were read ahead and may wait for their first touch.
    pub fn ahead_target(&self) -> usize {
        (self.limit.load(Relaxed) as usize / 16).clamp(64, 4096).min(self.frames.len() / 2)
    }

    /// Whether a page that is swapped in keeps its slot, for the case that it stays clean. Not if the copies take so
    /// much that the pages present become few.
    #[inline]
    pub fn keep_clean(&self) -> bool {
        self.beside() < self.limit.load(Relaxed) / 4 * 3 && self.clean.keep(&self.controls)
    }

    /// The page in a frame.
    ///
    /// # Safety
    /// The frame has a page and is the caller's alone.
    #[allow(clippy::mut_from_ref, reason = "frames are memory that this type hands out, one owner at a time")]
    pub unsafe fn frame(&self, f: FrameNo) -> &mut Page {
        // SAFETY: inside the frame memory; present and exclusive by the caller's promise.
        unsafe { &mut *(self.frames.addr(f) as *mut Page) }
    }

    /// Copies `n` (at most [`ZERO_PAGES`]) zero pages to `addr`; how many, and what stopped it.
    pub fn copy_zeros(&self, addr: usize, n: usize) -> (usize, Result<(), UffdError>) {
        let len = n.min(ZERO_PAGES) * PAGE_SIZE;
        let from = zero_pages();
        // SAFETY: addr is a page of a region or a frame, absent and busy or owned by the caller, so no reference
        // points there; there are enough zeros.
        let (bytes, result) = unsafe { self.uffd.copy_pages(addr, from, len, true) };
        let pages = bytes / PAGE_SIZE;
        self.held.fetch_add(pages as i64, Relaxed);
        (pages, result)
    }

    /// Frees an entry, if there is one.
    pub fn free_entry(&self, entry: Option<Entry>) {
        if let Some(entry) = entry {
            self.swap.free(entry);
        }
    }

    /// Has an entry freed by reclaim: freeing may allocate, which a fault must not. `false`: the list is full.
    pub fn free_later(&self, entry: Entry) -> bool {
        let mut list = lock(&self.to_free);
        let room = list.len() < list.capacity();
        if room {
            list.push(entry);
        }
        room
    }

    /// Frees what [`PagerCore::free_later`] was given.
    pub fn free_now(&self) {
        let mut batch = [None; 64];
        loop {
            let mut n = 0;
            {
                let mut list = lock(&self.to_free);
                while let Some(entry) = if n < batch.len() { list.pop() } else { None } {
                    batch[n] = Some(entry);
                    n += 1;
                }
            }
            batch[..n].iter().for_each(|entry| self.free_entry(*entry));
            if n < batch.len() {
                return;
            }
        }
    }

    /// Makes a place a region; if that cannot be, the place is free again.
    pub(super) fn open(&self, place: RegionPlace) -> Result<(), Error> {
        if let Err(errno) = self.space.open(place) {
            self.space.places.free(place);
            return Err(Error::Os { what: "cannot map a region", errno });
        }
        let (at, len) = (self.space.addr(place.first), place.pages as usize * PAGE_SIZE);
        if let Err(refused) = self.uffd.register_protectable(at, len) {
            self.give_up(place);
            let errno = if let UffdError::Other(errno) = refused { errno } else { rustix::io::Errno::NOMEM };
            return Err(Error::Os { what: "cannot register a region", errno });
        }
        self.readahead.open(place.first, place.pages);
        self.space.places.set_open(place, true);
        self.update_overhead();
        Ok(())
    }

    /// Takes a region's pages back. Threads that still access it are ended by SIGSEGV or SIGBUS.
    pub(super) fn close(&self, place: RegionPlace) {
        self.readahead.close(place.first);
        self.space.places.set_open(place, false);
        self.discard(place.first, place.end(), true);
        self.free_now();
        self.give_up(place);
        self.update_overhead();
    }

    /// Frees a place whose pages have neither words nor content; one that the kernel does not let go stays empty.
    fn give_up(&self, place: RegionPlace) {
        match self.space.close(place) {
            Ok(()) => self.space.places.free(place),
            Err(_) => _ = self.space.forbid(place),
        }
    }

    /// Drops the content of pages: they are None afterwards, or Outside (`gone`). Pinned pages stay unless `gone`.
    pub(super) fn discard(&self, first: u32, end: u32, gone: bool) {
        let known = self.space.places.with_words(first..end);
        known.for_each(|(_, pages)| self.discard_known(pages.start, pages.end, gone));
    }

    /// The same of pages that have words.
    fn discard_known(&self, first: u32, end: u32, gone: bool) {
        let to = if gone { PageState::Outside } else { PageState::None };
        let mut at = first;
        while at < end {
            let n = (end - at).min(64);
            let mut frames: Vec<FrameNo> = Vec::new();
            let mut locked = [None; 64];
            let mut mapped = 0u64;
            let mut lists = None;
            for (i, place) in locked.iter_mut().enumerate().take(n as usize) {
                let word = self.space.word(at + i as u32);
                let seen = match word.try_lock() {
                    Some(seen) => seen,
                    None => {
                        lists = None; // words are never waited for under the lists' lock
                        word.lock()
                    }
                };
                if seen.pins() > 0 && !gone {
                    word.unlock(seen, seen.state());
                    continue;
                }
                *place = Some(seen);
                if let PageState::Mapped(_) | PageState::Cached(_) = seen.state() {
                    lists.get_or_insert_with(|| self.lists.lock()).unlink(&self.space, at + i as u32, seen);
                }
                mapped |= u64::from(matches!(seen.state(), PageState::Mapped(_))) << i;
            }
            drop(lists);
            self.zap(at, mapped);
            if self.poisoned.load(Relaxed) > 0 {
                for (page, seen) in (at..).zip(locked) {
                    if let Some(PageState::Swapped(_)) = seen.map(Seen::state) {
                        self.unpoison(page);
                    }
                }
            }
            for (i, seen) in locked.iter().enumerate() {
                let Some(seen) = seen else { continue };
                match seen.state() {
                    PageState::Mapped(entry) => self.free_entry(entry),
                    PageState::Swapped(entry) => {
                        self.swapped.fetch_sub(1, Relaxed);
                        self.free_entry(Some(entry));
                    }
                    PageState::Cached(f) => {
                        let entry = self.frame_entries.take(f);
                        self.free_entry(entry);
                        frames.push(f);
                    }
                    PageState::None | PageState::Outside => {}
                }
                let seen = if gone { seen.with_pins(0) } else { *seen };
                self.space.word(at + i as u32).unlock(seen, to);
            }
            self.release(&frames);
            at += n;
        }
    }

    /// Empties the pages `at + i` for each bit `i`; they are busy and on no list.
    fn zap(&self, at: u32, pages: u64) {
        let mut left = pages;
        while left != 0 {
            let from = left.trailing_zeros();
            let len = (left >> from).trailing_ones();
            let addr = self.space.addr(at + from) as *mut std::ffi::c_void;
            // SAFETY: pages of a region whose content is given up.
            let result = unsafe { discard(addr, len as usize * PAGE_SIZE) };
            if let Err(errno) = result {
                // The old content would come back where zeros were promised.
                fatal_fmt(format_args!("cannot discard pages of a region: {}", ErrnoText(errno)));
            }
            self.held.fetch_sub(i64::from(len), Relaxed);
            left &= if from + len >= 64 { 0 } else { u64::MAX << (from + len) };
        }
    }
}
