//! Taking the pages that are to go next out of regions, in reclaim threads.
//!
//! Signal mode: pages are stored where they are and then discarded, a batch with one system call and one interrupt of
//! the other CPUs. Their content is stable meanwhile, because they are write-protected and busy, so that a write waits.
//! Pages that are writable are write-protected all at once, region by region ([`PagerCore::protect_all`]), which
//! happens about once in the time in which all of probation goes by. What came in write-protected
//! (`write_protect_policy`) and was not written needs neither that nor a look at its content.
//!
//! Thread mode: pages are moved into frames (the swap cache), in runs where they are neighbours: system calls may have
//! writable pages pinned, and only a move finds that out.

use super::lists::ListsGuard;
use super::pager_core::{PagerCore, count};
use super::places::RegionPlace;
use super::store::{EvictPage, Stored};
use super::word::{PageState, Seen};
use farpage_base::mem::units::Page;
use farpage_base::sys::message::fatal_fmt;
use farpage_base::sys::raw::{ErrnoText, discard};
use farpage_base::sys::uffd::UffdError;
use farpage_swap::PAGE_SIZE;
use farpage_swap::watermarks::EVICT_MAX;
use farpage_swap::workingset::{Batch, Pages};
use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// `process_madvise`, x86-64.
const PROCESS_MADVISE: u32 = 440;
/// As many pages gone make it likely that the oldest are others now.
const FRESH: u64 = 64;

impl PagerCore {
    /// Takes up to `batch` of the pages that are to go next out; in thread mode so that `target` are in the swap cache;
    /// how many.
    pub(super) fn evict(&self, batch: usize, target: usize) -> usize {
        let mut picked = [None; EVICT_MAX];
        let picked = &mut picked[..batch.min(EVICT_MAX)];
        if self.wp_sweeps {
            return self.evict_in_place(picked);
        }
        let (n, _) = self.pick(picked, Some(target));
        let picked = &mut picked[..n];
        picked.sort_unstable_by_key(|one| one.map(|(page, _)| page));
        let (mut moved, mut at) = (0, 0);
        let mut run: Vec<(u32, Seen)> = Vec::with_capacity(n);
        while at < n {
            run.clear();
            for &(page, seen) in picked[at..].iter().flatten() {
                if run.last().is_some_and(|last| last.0 + 1 != page) {
                    break;
                }
                run.push((page, seen));
            }
            let (done, passed) = self.move_run(&run);
            moved += done;
            at += passed;
        }
        moved
    }

    fn evict_in_place(&self, picked: &mut [Option<(u32, Seen)>]) -> usize {
        // No thread may declare pages unwritable between the look at their words and the end of their content.
        let reading = self.protecting.read().unwrap_or_else(PoisonError::into_inner);
        let sweeps = self.wp_sweeps_done.load(Relaxed);
        let (n, looked) = self.pick(picked, None);
        let mut stable: Vec<(u32, Seen)> = Vec::with_capacity(n);
        let mut writable: Vec<(u32, Seen)> = Vec::with_capacity(n);
        for (page, seen) in picked[..n].iter().copied().flatten() {
            if seen.is_writable() { &mut writable } else { &mut stable }.push((page, seen));
        }
        // Most of the oldest pages came in after the last sweep: time for the next. Those of probation say so, because
        // pages of main must not leave in their place. Or hardly any page has gone since: then they have been written
        // since, so they are in use.
        let cold = |pages: &[(u32, Seen)]| pages.iter().filter(|(page, _)| !self.space.rank(*page).is_hot()).count();
        let (new, old) = match (cold(&writable), cold(&stable)) {
            (0, 0) => (writable.len(), stable.len()),
            cold => cold,
        };
        let s = &self.stat;
        let departed = || s.pswpout.load(Relaxed) + s.swpout_clean.load(Relaxed) + s.swpout_zero.load(Relaxed);
        let at_sweep = self.gone_at_wp_sweep.load(Relaxed);
        let fresh = at_sweep == u64::MAX || departed() >= at_sweep + FRESH;
        let all_in_vain = self.scanned_in_vain.load(Relaxed) >= u64::from(self.lists.present());
        let sweep = new > old && (fresh || all_in_vain);
        self.put_back(&writable, !sweep);
        if sweep {
            let is_hot = |(page, _): &mut (u32, Seen)| self.space.rank(*page).is_hot();
            let hot: Vec<_> = stable.extract_if(.., is_hot).collect();
            self.put_back(&hot, false);
        }
        stable.sort_unstable_by_key(|(page, _)| *page);
        let gone = self.store_in_place(&stable);
        drop(reading);
        if sweep {
            self.protect_all(sweeps);
            self.gone_at_wp_sweep.store(departed(), Relaxed);
        }
        if gone > 0 || sweep || all_in_vain {
            self.scanned_in_vain.store(0, Relaxed);
            return gone + if sweep { writable.len() } else { 0 }; // the next batch gets those
        }
        if !stable.is_empty() {
            return 0; // no device takes them
        }
        // Pages in use, or pinned, at the end of the list: there may be others before them.
        self.scanned_in_vain.fetch_add(looked as u64, Relaxed);
        looked
    }

    /// Makes the pages that are to go next busy and takes them off their lists; how many, and how many were looked at.
    /// `target`: how many are to be in the swap cache; `None`: they do not go by way of it.
    fn pick(&self, picked: &mut [Option<(u32, Seen)>], target: Option<usize>) -> (usize, usize) {
        let mut oldest = [0; EVICT_MAX];
        let oldest = &mut oldest[..picked.len()];
        let mut lists = self.lists.lock();
        let (mut looked, mut n);
        if let Some(target) = target {
            looked = lists.oldest(&self.space, target as u32, oldest);
            n = self.claim_listed(&mut lists, &oldest[..looked], picked);
            let more = lists.oldest_in_turn(&self.space, &mut oldest[looked..]);
            n += self.claim_listed(&mut lists, &oldest[looked..][..more], &mut picked[n..]);
            looked += more;
        } else {
            looked = lists.oldest_unstaged(&self.space, oldest);
            n = self.claim_listed(&mut lists, &oldest[..looked], picked);
        }
        if n == 0 {
            // All of main may be pinned.
            let more = lists.oldest_of_probation(&self.space, oldest);
            n = self.claim_listed(&mut lists, &oldest[..more], picked);
            looked += more;
        }
        (n, looked)
    }

    /// Makes mapped pages busy and takes them off their lists, but for those that are busy or pinned; how many.
    fn claim_listed(&self, lists: &mut ListsGuard<'_>, pages: &[u32], claimed: &mut [Option<(u32, Seen)>]) -> usize {
        let mut n = 0;
        for &page in pages {
            let rank = self.space.rank(page);
            match self.space.word(page).try_lock() {
                Some(seen) if seen.pins() == 0 => {
                    lists.unmap(&self.space, page, rank);
                    claimed[n] = Some((page, seen));
                    n += 1;
                }
                Some(seen) => {
                    lists.rotate(&self.space, page, rank);
                    self.space.word(page).unlock(seen, seen.state());
                }
                // Another thread is about to unlink it.
                None => lists.rotate(&self.space, page, rank),
            }
        }
        n
    }

    /// Write-protects all pages present, so that they can be taken out; not if another thread has done so since
    /// `sweeps` of them had been.
    fn protect_all(&self, sweeps: u64) {
        let _writing = self.protecting.write().unwrap_or_else(PoisonError::into_inner);
        if self.wp_sweeps_done.load(Relaxed) != sweeps {
            return;
        }
        count(&self.wp_sweeps_done, 1);
        self.protect_all_of(0..u32::MAX);
    }

    /// The same of some pages, of whatever regions.
    fn protect_all_of(&self, pages: Range<u32>) {
        for (place, pages) in self.space.places.with_words(pages) {
            let (mut from, end) = (pages.start, pages.end);
            for page in pages {
                let word = self.space.word(page);
                if word.load().pins() == 0 {
                    word.clear_writable();
                    continue;
                }
                // A system call that writes to a write-protected page fails: pinned pages are left out.
                self.protect(place, from, page);
                from = page + 1;
            }
            self.protect(place, from, end);
        }
    }

    /// Write-protects pages of a region. The words of those that were not busy say so already; a page that is brought
    /// in meanwhile is writable by its word, whatever this does to it.
    fn protect(&self, place: RegionPlace, from: u32, to: u32) {
        if from == to {
            return;
        }
        let (at, len) = (self.space.addr(from), (to - from) as usize * PAGE_SIZE);
        let mapped = || (from..to).any(|page| matches!(self.space.word(page).load().state(), PageState::Mapped(_)));
        let mut absent = 0;
        while let Err(refused) = self.uffd.write_protect(at, len, true) {
            match refused {
                UffdError::Retry => {}
                // A region that is being opened or closed is not registered, and has no pages.
                UffdError::Absent if !mapped() => break,
                // Others are there by now. Some of their words may say already that they are protected.
                UffdError::Absent if !self.space.places.contains(place) => return self.protect_all_of(from..to),
                // It has been opened since.
                UffdError::Absent if absent == 0 => absent += 1,
                other => fatal_fmt(format_args!("cannot write-protect a region: {other:?}")),
            }
        }
    }

    /// Ends the write protection of pages that have been pinned, whatever was under way when they were.
    pub(super) fn unprotect_pinned(&self, first: u32, end: u32) -> Result<(), UffdError> {
        let _reading = self.protecting.read().unwrap_or_else(PoisonError::into_inner);
        loop {
            match self.uffd.write_protect(self.space.addr(first), (end - first) as usize * PAGE_SIZE, false) {
                Err(UffdError::Retry) => {}
                other => return other,
            }
        }
    }

    /// Stores pages that are busy, on no list, and cannot be written, and discards them; how many. In ascending order.
    /// Those that no device takes go back to their list.
    fn store_in_place(&self, pages: &[(u32, Seen)]) -> usize {
        let mut gone: Vec<(u32, Seen, PageState)> = Vec::with_capacity(pages.len());
        let mut leaving: Vec<EvictPage> = Vec::with_capacity(pages.len());
        let mut words: Vec<Seen> = Vec::with_capacity(pages.len());
        let discarded = self.discarded_under_us.load(Relaxed);
        for &(page, seen) in pages {
            // SAFETY: the page is present; no thread writes it, because it is write-protected and one that tries waits
            // for the page's word. (Should the program have discarded it, this read is a fault that serves zeros.)
            let content: &Page = unsafe { &*(self.space.addr(page) as *const Page) };
            let old = if let PageState::Mapped(entry) = seen.state() { entry } else { None };
            match old {
                Some(old) if seen.is_unwritten() && self.is_present(page) => {
                    self.clean.note(true);
                    self.was_unchanged(page, true);
                    self.promote_in_place(old, content);
                    self.readahead.stored(page, old);
                    gone.push((page, seen, PageState::Swapped(old)));
                }
                _ => {
                    leaving.push(EvictPage { page, content, old });
                    words.push(seen);
                }
            }
        }
        let stored = self.store(&leaving, true);
        // The program has discarded a page in between (`madvise`): part of its old content may have been hashed, and
        // zeros stored.
        let discarded_meanwhile = self.discarded_under_us.load(Relaxed) != discarded;
        for ((one, seen), stored) in leaving.iter().zip(words).zip(stored) {
            match stored {
                Stored::Had(to) => gone.push((one.page, seen, to)),
                Stored::New(entry) if !discarded_meanwhile => gone.push((one.page, seen, PageState::Swapped(entry))),
                // It stays, protected as it is: no sweep has to come for it once more.
                Stored::Nowhere if !discarded_meanwhile => self.put_back(&[(one.page, seen.without_copy())], true),
                other => {
                    if let Stored::New(entry) = other {
                        self.free_entry(Some(entry));
                    }
                    self.put_back(&[(one.page, seen.writable().without_copy())], true);
                }
            }
        }
        gone.sort_unstable_by_key(|(page, _, _)| *page);
        self.discard_pages(&gone);
        self.held.fetch_sub(gone.len() as i64, Relaxed);
        let swapped = gone.iter().filter(|(_, _, to)| matches!(to, PageState::Swapped(_))).count();
        self.swapped.fetch_add(swapped as i64, Relaxed);
        let mut lists = self.lists.lock();
        for &(page, _, _) in &gone {
            self.space.set_shadow(page, lists.evict_unlisted(self.space.rank(page)));
        }
        drop(lists);
        gone.iter().for_each(|(page, seen, to)| self.space.word(*page).unlock(*seen, *to));
        gone.len()
    }

    /// Empties pages of regions that have been stored.
    fn discard_pages(&self, gone: &[(u32, Seen, PageState)]) {
        let mut ranges: Vec<libc::iovec> = Vec::with_capacity(gone.len());
        for (page, _, _) in gone {
            add_page(&mut ranges, self.space.addr(*page));
        }
        // SAFETY: pages of regions whose content has been stored, busy, so that no other thread gives them new content
        // meanwhile.
        if let Err(errno) = unsafe { self.discard_ranges(&ranges) } {
            fatal_fmt(format_args!("cannot discard pages of a region: {}", ErrnoText(errno)));
        }
    }

    /// Empties ranges of pages, in one system call if the kernel can (6.13: its own process; 6.16: one interrupt).
    ///
    /// # Safety
    /// The content of the pages is not needed, and no other thread gives them new content meanwhile.
    pub(super) unsafe fn discard_ranges(&self, ranges: &[libc::iovec]) -> rustix::io::Result<()> {
        let total: usize = ranges.iter().map(|r| r.iov_len).sum();
        let args = [ranges.as_ptr() as usize, ranges.len(), libc::MADV_DONTNEED as usize, 0, 0];
        // SAFETY: caller's promise.
        if unsafe { self.pidfd.transfer(PROCESS_MADVISE, args) }.is_ok_and(|done| done == total) {
            return Ok(());
        }
        for range in ranges {
            // SAFETY: as above. It may be done twice: the pages are the caller's.
            unsafe { discard(range.iov_base, range.iov_len)? };
        }
        Ok(())
    }

    /// Whether a page that this thread has busy is in its region; if the program has discarded it behind our back,
    /// zeros are now.
    fn is_present(&self, page: u32) -> bool {
        let before = self.discarded_under_us.load(Relaxed);
        // SAFETY: as for the content, of which nothing is used.
        unsafe { std::ptr::read_volatile(self.space.addr(page) as *const u8) };
        self.discarded_under_us.load(Relaxed) == before
    }

    /// Moves some of a run of neighbours, which the caller has busy, and unlocks those that it has dealt with: how many
    /// were moved, and how many dealt with (at least one).
    fn move_run(&self, run: &[(u32, Seen)]) -> (usize, usize) {
        let Some((first, got)) = self.frames.take_empty(run.len()) else {
            self.put_back(run, true);
            return (0, run.len());
        };
        let src = self.space.addr(run[0].0);
        let take = |n| {
            // SAFETY: src are pages of a region; a thread with a reference into it accesses memory that, to safe code,
            // does not change by being moved out and back. dst are empty frames of ours.
            unsafe { self.uffd.move_pages(self.frames.addr(first), src, n * PAGE_SIZE, true) }
        };
        let (mut bytes, mut result) = take(got);
        while bytes == 0 && result == Err(UffdError::Retry) {
            (bytes, result) = take(got);
        }
        let done = bytes / PAGE_SIZE;
        self.frames.put_empty(first + done, got - done);
        let mut lists = self.lists.lock();
        for (f, (page, seen)) in first.run(done).zip(&run[..done]) {
            if let PageState::Mapped(entry) = seen.state() {
                self.frame_entries.set(f, entry);
            }
            lists.cache_unlisted(&self.space, *page, self.space.rank(*page));
        }
        drop(lists);
        for (f, (page, seen)) in first.run(done).zip(&run[..done]) {
            self.space.word(*page).unlock(*seen, PageState::Cached(f));
        }
        if done > 0 {
            return (done, done);
        }
        let (page, seen) = run[0];
        if result == Err(UffdError::Absent) {
            // Discarded behind our back: it reads as zeros.
            if let PageState::Mapped(entry) = seen.state() {
                self.free_entry(entry);
            }
            self.held.fetch_sub(1, Relaxed);
            self.space.word(page).unlock(seen, PageState::None);
        } else {
            self.put_back(&[(page, seen)], true); // the kernel has it pinned or locked
        }
        (0, 1)
    }

    /// Ends the busy state of pages that stay, in order from old to young: as the youngest or the oldest of their
    /// lists.
    fn put_back(&self, pages: &[(u32, Seen)], youngest: bool) {
        if pages.is_empty() {
            return;
        }
        let mut batch = Batch::default();
        pages.iter().for_each(|&(page, _)| batch.push(&self.space, page, self.space.rank(page)));
        let mut lists = self.lists.lock();
        if youngest {
            lists.map_batch(&self.space, &mut batch);
        } else {
            lists.map_batch_oldest(&self.space, &mut batch);
        }
        drop(lists);
        pages.iter().for_each(|&(page, seen)| self.space.word(page).unlock(seen, seen.state()));
    }
}

/// Adds a page to ranges, to the last one if it lies behind it.
pub(super) fn add_page(ranges: &mut Vec<libc::iovec>, at: usize) {
    match ranges.last_mut() {
        Some(last) if last.iov_base as usize + last.iov_len == at => last.iov_len += PAGE_SIZE,
        _ => ranges.push(libc::iovec { iov_base: at as *mut _, iov_len: PAGE_SIZE }),
    }
}
