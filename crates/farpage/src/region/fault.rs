//! One fault, served by the thread that has it (or by a handler thread, in thread mode).
//!
//! Allocates nothing (so it frees no entries either, see [`PagerCore::free_later`]) and touches no region memory. The
//! faulting page is made busy; others are brought in with it if they can be made busy without waiting and there are
//! frames without waiting. Which others: `readahead`; here zero pages and the swap cache, in `swap_in` what is on a
//! device.

use super::lists::NewPage;
use super::pager_core::{PagerCore, count};
use super::word::{Access, Hint, PageState, Seen};
use super::write_protect_policy::WriteProtectPolicy;
use farpage_base::mem::lock::lock;
use farpage_base::mem::units::FrameNo;
use farpage_base::mem::zeros::zero_pages;
use farpage_base::sys::message::fatal_fmt;
use farpage_base::sys::uffd::UffdError;
use farpage_device::LoadError;
use farpage_ipc::stat::Stat;
use farpage_swap::PAGE_SIZE;
use farpage_swap::readahead::Window;
use farpage_swap::workingset::Rank;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Pages brought in by one system call.
pub(super) const CHUNK: usize = 64;
/// From so many neighbours on, pages are moved and not copied: in thread mode.
pub const RUN: usize = 8;
/// Largest window of zero pages.
const ZERO_WINDOW: u32 = 64;
/// What became of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// The page is there, or a new fault will tell more.
    Done,
    /// There is no region.
    Outside,
    /// The page cannot be read back; it stays on its device.
    Lost(LoadError),
}

/// A run of pages that this thread has made busy.
pub(super) struct Claimed {
    pub first: u32,
    pub seen: [Option<Seen>; CHUNK],
    pub len: usize,
    /// The first one is the page that was touched.
    pub touched: bool,
}

impl PagerCore {
    /// A fault at `addr`.
    ///
    /// `protected`: there is a page, and it must not be written; `None`: not known.
    pub fn on_fault(&self, addr: usize, write: bool, protected: Option<bool>) -> Served {
        if let Some(page) = self.space.page_at(addr) {
            let _inside = self.enter_fault();
            return self.serve(page, write, protected);
        }
        if self.frame_memory.0.contains(addr) {
            fatal_fmt(format_args!(
                "the engine touched frame memory at {addr:#x}, which has no page: this is a bug in farpage"
            ));
        }
        Served::Outside
    }

    /// Makes a page present, and writable if the access is a write. The calling thread waits for it, which is counted.
    pub fn serve(&self, page: u32, write: bool, protected: Option<bool>) -> Served {
        let since = Instant::now();
        let served = self.serve_page(page, write, protected);
        // In the cache line of `pgfault`, which this thread has just written.
        count(&self.stat.fault_wait_ns, since.elapsed().as_nanos() as usize);
        served
    }

    fn serve_page(&self, page: u32, write: bool, protected: Option<bool>) -> Served {
        let word = self.space.word(page);
        let mut waited = false;
        loop {
            let seen = word.load();
            if seen.is_busy() {
                if self.is_reclaimer() {
                    // This thread has the page busy and reads it, but the program has discarded it behind our back
                    // (`madvise`): zeros, then, which no thread can write while the page is busy.
                    count(&self.discarded_under_us, 1);
                    // SAFETY: an absent page of a region, busy; the zeros are long enough.
                    let _ = unsafe { self.uffd.copy_pages_protected(self.space.addr(page), zero_pages(), PAGE_SIZE) };
                    return Served::Done;
                }
                word.wait();
                waited = true;
                continue;
            }
            match seen.state() {
                PageState::Outside if self.space.touch(page) => continue,
                PageState::Outside => return Served::Outside,
                PageState::Mapped(_) if waited && (!write || seen.is_writable()) => return Served::Done,
                _ => {}
            }
            let Some(seen) = word.try_lock_if(seen) else { continue };
            count(&self.stat.pgfault, 1);
            match seen.state() {
                PageState::None => self.zero_fill(page, seen),
                PageState::Cached(f) => self.refault(page, seen, f, write),
                PageState::Swapped(_) => {
                    if let Err(error) = self.swap_in(page, seen, write) {
                        return Served::Lost(error);
                    }
                }
                PageState::Mapped(_) => self.look_again(page, seen, write, protected),
                PageState::Outside => word.unlock(seen, PageState::Outside),
            }
            return Served::Done;
        }
    }

    /// A page that should be present. It is write-protected, or another thread has brought it in meanwhile, or the
    /// program discarded it behind our back (`madvise`) and it reads as zeros.
    fn look_again(&self, page: u32, seen: Seen, write: bool, protected: Option<bool>) {
        let addr = self.space.addr(page);
        let mut seen = seen;
        if protected != Some(true) {
            match self.copy_zeros(addr, 1) {
                // It had been counted all the time. The new page can be written, whatever the word said of the old one.
                (1, _) => {
                    self.held.fetch_sub(1, Relaxed);
                    seen = seen.writable();
                }
                (_, Err(UffdError::Present | UffdError::Retry)) => {}
                (_, other) => self.lost(page, other.err()),
            }
        }
        if write && protected != Some(false) {
            count(&self.stat.wp_fault, 1);
            // EAGAIN would show as the same fault once more.
            let _ = self.uffd.write_protect(addr, PAGE_SIZE, false);
            if seen.is_unwritten() {
                self.readahead.write_protect(page, WriteProtectPolicy::written);
            }
            seen = seen.writable();
        }
        self.space.word(page).unlock(seen, seen.state());
    }

    /// Whether the calling thread is one of this pager's reclaim threads.
    pub(super) fn is_reclaimer(&self) -> bool {
        let tid = farpage_base::sys::raw::gettid();
        self.reclaimers.iter().any(|r| r.load(Relaxed) == tid)
    }

    /// The window of zero pages for a fault, as the range's hint says.
    fn zero_window(&self, page: u32, seen: Seen) -> Window {
        match seen.hint() {
            Hint::Random => Window::single(page.into()),
            Hint::Sequential => Window::of(page.into(), ZERO_WINDOW),
            Hint::Normal => {
                let state = |page: u64| self.space.word(page as u32).load().state();
                let is_there = |page| !matches!(state(page), PageState::None | PageState::Outside);
                lock(&self.zero_streams).on_fault(page.into(), ZERO_WINDOW, is_there)
            }
        }
    }

    /// Makes the pages behind `page` busy, as long as `wanted` accepts their state.
    pub(super) fn claim(
        &self,
        first: u32,
        seen: Option<Seen>,
        n: usize,
        wanted: impl Fn(PageState) -> bool,
    ) -> Claimed {
        let mut claimed = Claimed { first, seen: [None; CHUNK], len: 0, touched: seen.is_some() };
        if seen.is_some() {
            claimed.seen[0] = seen;
            claimed.len = 1;
        }
        while claimed.len < n.min(CHUNK) {
            let page = first + claimed.len as u32;
            if page as usize >= self.space.pages() {
                break;
            }
            let word = self.space.word(page);
            let look = word.load();
            if look.is_busy() || !wanted(look.state()) {
                break;
            }
            let Some(seen) = word.try_lock_if(look) else { break };
            claimed.seen[claimed.len] = Some(seen);
            claimed.len += 1;
        }
        claimed
    }

    /// The first `done` pages of a claim are Mapped now (as `to` says); the others stay as they were.
    fn finish_claim(&self, claimed: &mut Claimed, done: usize, to: impl Fn(usize) -> PageState) {
        self.finish_claim_as(claimed, done, Access::Writable, |i| (to(i), 0));
    }

    /// The same, for pages that may also wait in the swap cache now (`to`: the state, and the credit there). `access`:
    /// how they came in.
    pub(super) fn finish_claim_as(
        &self,
        claimed: &mut Claimed,
        done: usize,
        access: Access,
        to: impl Fn(usize) -> (PageState, u16),
    ) {
        // One lot for all that comes together: what is read in one go stays or leaves in one go.
        let was_out = |seen: &Option<Seen>| matches!(seen.map(Seen::state), Some(PageState::Swapped(_)));
        let shadow = Some(self.space.shadow(claimed.first)).filter(|_| done > 0 && was_out(&claimed.seen[0]));
        let rank = shadow.map_or(Rank::NEW, |shadow| self.lists.ages().rank_of(shadow));
        let read = shadow.filter(|_| claimed.touched);
        let mut back = [None; CHUNK];
        for i in (0..done).filter(|i| was_out(&claimed.seen[*i])) {
            back[i] = Some(self.space.shadow(claimed.first + i as u32));
        }
        let back = back.iter().flatten().copied();
        self.swapped.fetch_sub(back.clone().count() as i64, Relaxed);
        claimed.seen.iter_mut().take(done).flatten().for_each(|seen| *seen = seen.with_access(access));
        let came = claimed.seen.iter().take(done).enumerate().filter_map(|(i, seen)| {
            let ahead = matches!(to(i).0, PageState::Cached(_));
            seen.map(|_| NewPage { page: claimed.first + i as u32, rank, ahead })
        });
        self.lists.add(&self.space, came, back, read);
        for (i, seen) in claimed.seen.iter().enumerate().take(claimed.len) {
            let Some(seen) = *seen else { continue };
            let word = self.space.word(claimed.first + i as u32);
            match if i < done { to(i) } else { (seen.state(), 0) } {
                (PageState::Cached(f), credit) => word.unlock_ahead(seen, f, credit),
                (state, _) => word.unlock(seen, state),
            }
        }
    }

    /// Walks through a window of neighbours: the chunk with the faulting page first, upwards, then what lies below it.
    /// `passes`: pages that need nothing are passed over; else they end it.
    pub(super) fn walk(
        &self,
        page: u32,
        seen: Seen,
        window: Window,
        passes: bool,
        mut step: impl FnMut(u32, Option<Seen>, usize) -> usize,
    ) -> (u32, u32) {
        let (low, high) = (window.start as u32, window.end().min(self.space.pages() as u64) as u32);
        let is_passed = |page: u32| {
            let state = self.space.word(page).load().state();
            passes && !matches!(state, PageState::Swapped(_) | PageState::Outside)
        };
        let mut end = page;
        let mut first = Some(seen);
        while end < high || first.is_some() {
            let want = (high.max(end + 1) - end) as usize;
            let done = step(end, first.take(), want);
            end += done as u32;
            // A chunk may be short for want of neighbouring frames; the next one goes on behind it.
            if done == 0 {
                if !is_passed(end) {
                    break;
                }
                end += 1;
            }
        }
        let mut start = page;
        while start > low && end > page {
            let n = ((start - low) as usize).min(CHUNK) as u32;
            let done = step(start - n, None, n as usize) as u32;
            if done < n {
                break;
            }
            start -= n;
        }
        (start, end - start)
    }

    fn zero_fill(&self, page: u32, seen: Seen) {
        let window = self.zero_window(page, seen);
        if window.pages > 1 {
            self.space.touch(window.end() as u32 - 1); // it would end where the words do
        }
        let (start, pages) = self.walk(page, seen, window, false, |first, seen, n| {
            let must = seen.is_some();
            let mut claimed = self.claim(first, seen, n, |state| state == PageState::None);
            let done = self.place_zeros(first, claimed.len, must);
            self.finish_claim(&mut claimed, done, |_| PageState::Mapped(None));
            done
        });
        count(&self.stat.swpin_zero, pages as usize);
        if window.pages > 1 {
            lock(&self.zero_streams).on_served(start.into(), pages);
        }
    }

    /// Puts up to `n` zero pages at `page`; at least one if `must`.
    fn place_zeros(&self, page: u32, n: usize, must: bool) -> usize {
        if n == 0 {
            return 0;
        }
        let addr = self.space.addr(page);
        let mut stalled = false;
        loop {
            let room = self.room();
            if self.watermarks().begins(room - n as i64) {
                self.wake_reclaim(false);
            }
            let room = room.clamp(0, n as i64) as usize;
            if room > 0 {
                let (done, result) = self.copy_zeros(addr, room);
                match result {
                    Err(UffdError::Retry) if done == 0 && must => continue,
                    Err(UffdError::Other(rustix::io::Errno::NOMEM)) if done == 0 => self.no_memory(),
                    Err(other) if done == 0 && must => self.lost(page, Some(other)),
                    _ => return done,
                }
            }
            if let Some((first, got)) = self.frames_to_move(n, must) {
                for f in first.run(got) {
                    // SAFETY: taken from the free frames: present, ours.
                    unsafe { self.frame(f) }.fill(0);
                }
                self.move_in(page, first, got);
                return got;
            }
            if !must {
                return 0;
            }
            self.stall(&mut stalled);
        }
    }

    /// A page of the swap cache is wanted back, perhaps to `write` it.
    fn refault(&self, page: u32, seen: Seen, f: FrameNo, write: bool) {
        let entry = self.frame_entries.take(f);
        let copies = self.wp_sweeps && self.room() > 0;
        self.held.fetch_add(i64::from(copies), Relaxed);
        // Read ahead and not touched yet: it is what its entry says.
        let protect = seen.credit() > 0 && !write && self.stays_unwritten(page);
        let access = self.bring_in(page, f, 1, copies, protect);
        count(&self.stat.workingset_refault_cached, 1);
        let (cached, credit) = (seen, seen.credit());
        self.lists.lock().refault(&self.space, page, cached);
        self.space.word(page).unlock(seen.with_access(access), PageState::Mapped(entry));
        Stat::add_hits(&self.stat.swap_ra_hit, &self.stat.swap_ra, credit.into());
        if let Some(next) = self.readahead.on_hit(&self.controls, page, cached) {
            self.prefetch_posts.post(next);
        }
    }
}
