//! Background reclaim: takes the oldest pages out of regions, stores them, frees frames.
//!
//! ```text
//!   oldest 64 --runs of neighbours: one move--> frames, cached list --store--> device, frame free or given back
//!             --single pages: store in place--> device; then all of them are discarded in one system call
//! ```
//! Both ways keep the content stable from the look at it to its end: a moved page is nobody's any more; a single one is
//! write-protected (and busy, so that a write waits). Moving single pages would interrupt the other CPUs once for each;
//! this way it is once for a batch. Pages that are writable are write-protected all at once, region by region
//! ([`Inner::protect_all`]), which happens about once in the time in which all pages present are taken out.
//!
//! The first thread keeps free frames in store; the others help while threads wait for frames. None of them waits for
//! a busy page. Storing may allocate, which is why faulting threads never do it.

use super::fault::RUN;
use super::inner::{Inner, count, lock};
use super::word::{Seen, State};
use crate::PAGE_SIZE;
use crate::content::is_zero;
use crate::device::{Entry, Page, StoreError};
use crate::page_table::FrameNo;
use crate::sys::futex;
use crate::sys::raw::{fatal, message};
use crate::sys::uffd::Refused;
use farpage_swap::lru::Links;
use rustix::fd::AsRawFd;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// `process_madvise`, x86-64.
const PROCESS_MADVISE: u32 = 440;
/// Pages moved out in one go.
const MOVE_BATCH: usize = 64;
/// Frames freed between two looks at what is needed.
const STORE_BATCH: usize = 16;
/// Copies of present pages dropped in one go.
const COPIES: usize = 64;
/// Words looked at for that, at most.
const COPIES_LOOK: usize = 1 << 16;
/// Pages moved from the pool to a file in one go.
const WRITEBACK: usize = 32;

/// A page that this thread has busy, and its frame.
type Taken = (u32, Seen, FrameNo);

/// One reclaim thread.
pub fn main(e: &Inner, index: usize) {
    let first = index == 0;
    e.reclaimers[index].store(crate::sys::raw::gettid(), SeqCst);
    let w = &e.wakeups;
    while !w.stop.load(SeqCst) {
        let working = e.enter_work();
        let (work, help) = (w.work.load(SeqCst), w.help.load(SeqCst));
        let wanted = if first { e.wanted() } else { w.waiting.load(SeqCst) > 0 };
        if wanted {
            if e.reclaim_step() {
                w.stuck.store(false, SeqCst);
                continue;
            }
            if first {
                w.stuck.store(true, SeqCst);
                e.tell_waiters();
            }
        }
        if first {
            e.swap.tend(!wanted);
            w.asleep.store(true, SeqCst);
            // Somebody may have taken the last frames before that was set.
            if !wanted && e.wanted() && w.asleep.swap(false, SeqCst) {
                continue;
            }
            // With nothing to gain, not too soon again: pages may have been unpinned, or device space freed.
            e.free_now();
            e.collect_leases();
            drop(working);
            futex::wait(&w.work, work, Some(if wanted { 5_000_000 } else { 200_000_000 }));
            w.asleep.store(false, SeqCst);
            let _working = e.enter_work();
            e.look_at_overhead();
        } else {
            drop(working);
            futex::wait(&w.help, help, None);
        }
    }
}

impl Inner {
    /// Frames must be freed, or pages given back to the kernel.
    fn wanted(&self) -> bool {
        let (room, target) = (self.room(), self.free_target() as i64);
        room < target / 2 || (room < target && (self.frames.free_count() as i64) < target / 2)
    }

    fn tell_waiters(&self) {
        let w = &self.wakeups;
        w.freed.fetch_add(1, SeqCst);
        if w.waiting.load(SeqCst) > 0 {
            futex::wake_all(&w.freed);
        }
    }

    /// One step of reclaim; whether anything was gained.
    fn reclaim_step(&self) -> bool {
        self.free_now();
        let cached = lock(&self.lists).cached.len() as usize;
        let mut moved = 0;
        if cached < self.cached_target() {
            moved = self.move_out();
        }
        let mut freed = 0;
        // Below the target the pages in the cache get their second chance, unless nothing else can be had.
        let spare = cached + moved > self.cached_target() / 2 || moved == 0 || self.wakeups.waiting.load(Relaxed) > 0;
        while freed < STORE_BATCH && spare {
            match self.store_some() {
                0 => break,
                n => freed += n,
            }
        }
        if freed > 0 {
            self.tell_waiters();
        }
        if self.swap.pool_over_share() {
            // Copies of pages that are present go first; what is only in the pool would have to be read back.
            freed += match self.drop_copies(COPIES) {
                0 => self.swap.writeback(WRITEBACK),
                n => n,
            };
        }
        self.look_at_overhead();
        if moved > 0 && self.room() > 0 {
            self.tell_waiters(); // single pages make room, not frames
        }
        moved + freed > 0
    }

    /// Takes the oldest pages out: runs into the swap cache, single pages to a device; how many.
    fn move_out(&self) -> usize {
        // Nobody may declare pages unwritable between the look at their words and the end of their content.
        let reading = self.protecting.read().unwrap_or_else(PoisonError::into_inner);
        let mut picked: [(u32, Option<Seen>); MOVE_BATCH] = [(0, None); MOVE_BATCH];
        let n = self.pick(&mut picked);
        let picked = &mut picked[..n];
        picked.sort_unstable_by_key(|(page, _)| *page);
        let (mut moved, mut at) = (0, 0);
        let mut single: Vec<(u32, Seen)> = Vec::with_capacity(n);
        let mut writable = 0;
        while at < n {
            let run = (1..=n - at).find(|i| picked.get(at + i).map(|p| p.0) != Some(picked[at].0 + *i as u32));
            let run = run.unwrap_or(1);
            // Outside of signal mode system calls may have memory pinned that is writable (a device writes to it): only a
            // move finds that out.
            let alone = !self.sweeps && picked[at].1.is_some_and(Seen::is_writable);
            if run >= RUN || alone {
                let (done, passed) = self.move_run(&picked[at..at + run]);
                moved += done;
                at += passed;
                continue;
            }
            let run = if self.sweeps { run } else { 1 };
            for one in &picked[at..at + run] {
                match one {
                    (page, Some(seen)) if !seen.is_writable() => single.push((*page, *seen)),
                    other => {
                        self.put_back(other, false);
                        writable += 1;
                    }
                }
            }
            at += run;
        }
        moved += self.store_in_place(&single);
        drop(reading);
        if writable > moved {
            self.protect_all();
            moved += writable; // the next batch gets them
        }
        moved
    }

    /// Makes the oldest pages busy and takes them off their lists; how many.
    fn pick(&self, picked: &mut [(u32, Option<Seen>); MOVE_BATCH]) -> usize {
        let mut n = 0;
        let mut lists = lock(&self.lists);
        for _ in 0..2 * MOVE_BATCH {
            let hot = lists.next_hot();
            let list = if hot { &mut lists.hot } else { &mut lists.mapped };
            let Some(page) = list.back().filter(|_| n < MOVE_BATCH) else { break };
            match self.space.word(page).try_lock() {
                Some(seen) if seen.pins() == 0 => {
                    list.remove(&self.space, page);
                    picked[n] = (page, Some(seen));
                    n += 1;
                }
                Some(seen) => {
                    list.move_to_front(&self.space, page);
                    self.space.word(page).unlock(seen, seen.state());
                }
                // Somebody is about to unlink it.
                None => list.move_to_front(&self.space, page),
            }
        }
        n
    }

    /// Write-protects all pages present, so that single ones can be taken out.
    fn protect_all(&self) {
        let _writing = self.protecting.write().unwrap_or_else(PoisonError::into_inner);
        count(&self.counters.sweeps, 1);
        let places = lock(&self.places).clone();
        for (first, pages) in places {
            let mut from = first;
            for page in first..first + pages {
                let word = self.space.word(page);
                if word.look().pins() == 0 {
                    word.clear_writable();
                    continue;
                }
                // A system call that writes to a write-protected page fails: pinned pages are left out.
                self.protect(from, page);
                from = page + 1;
            }
            self.protect(from, first + pages);
        }
    }

    /// Write-protects pages of a region. The words of those that were not busy say so already; a page that is brought in
    /// meanwhile is writable by its word, whatever this does to it.
    fn protect(&self, from: u32, to: u32) {
        if from == to {
            return;
        }
        let (at, len) = (self.space.addr(from), (to - from) as usize * PAGE_SIZE);
        let mapped = || (from..to).any(|page| matches!(self.space.word(page).look().state(), State::Mapped(_)));
        let mut absent = 0;
        while let Err(refused) = self.uffd.write_protect(at, len, true) {
            match refused {
                Refused::Changing => {}
                // A region that is being opened or closed is not registered, and has no pages.
                Refused::Absent if !mapped() => break,
                // It has been opened since.
                Refused::Absent if absent == 0 => absent += 1,
                other => fatal(&format!("cannot write-protect a region: {other:?}")),
            }
        }
    }

    /// Ends the write protection of pages that have been pinned, whatever was under way when they were.
    pub(super) fn unprotect_pinned(&self, first: u32, end: u32) -> Result<(), Refused> {
        let _reading = self.protecting.read().unwrap_or_else(PoisonError::into_inner);
        loop {
            match self.uffd.write_protect(self.space.addr(first), (end - first) as usize * PAGE_SIZE, false) {
                Err(Refused::Changing) => {}
                other => return other,
            }
        }
    }

    /// Stores pages that are busy, on no list, and cannot be written, and discards them; how many. Those that no device
    /// takes go back to their list.
    fn store_in_place(&self, pages: &[(u32, Seen)]) -> usize {
        let mut gone: Vec<(u32, Seen, State)> = Vec::with_capacity(pages.len());
        for &(page, seen) in pages {
            // SAFETY: the page is present; nobody writes it, because it is write-protected and whoever tries waits for
            // the page's word. (Should the program have discarded it, this read is a fault that serves zeros.)
            let content: &Page = unsafe { &*(self.space.addr(page) as *const Page) };
            let old = if let State::Mapped(entry) = seen.state() { entry } else { None };
            match self.copy_of(content, old) {
                Ok(to) => {
                    if let State::Swapped(entry) = to {
                        self.readahead.stored(page, entry);
                    }
                    gone.push((page, seen, to));
                }
                Err(error) => {
                    warn_full(error);
                    self.put_back(&(page, Some(seen.with_writable(true))), true);
                }
            }
        }
        let mut ranges: Vec<libc::iovec> = Vec::with_capacity(gone.len());
        for (page, _, _) in &gone {
            let at = self.space.addr(*page);
            match ranges.last_mut() {
                Some(last) if last.iov_base as usize + last.iov_len == at => last.iov_len += PAGE_SIZE,
                _ => ranges.push(libc::iovec { iov_base: at as *mut _, iov_len: PAGE_SIZE }),
            }
        }
        self.discard_ranges(&ranges);
        self.held.fetch_sub(gone.len() as i64, Relaxed);
        let mut lists = lock(&self.lists);
        for (page, _, _) in &gone {
            lists.clock = lists.clock.wrapping_add(1);
            self.space.set_prev(*page, lists.clock);
        }
        drop(lists);
        gone.iter().for_each(|(page, seen, to)| self.space.word(*page).unlock(seen.with_hot(false), *to));
        gone.len()
    }

    /// Empties ranges of pages, in one system call if the kernel can (6.13: its own process; 6.16: one interrupt).
    fn discard_ranges(&self, ranges: &[libc::iovec]) {
        let total: usize = ranges.iter().map(|r| r.iov_len).sum();
        let args = [
            self.pidfd.as_raw_fd() as usize,
            ranges.as_ptr() as usize,
            ranges.len(),
            libc::MADV_DONTNEED as usize,
            0,
            0,
        ];
        // SAFETY: the ranges are pages of regions whose content has been stored, busy, so that nobody else gives them
        // new content meanwhile.
        let done = unsafe { crate::sys::raw::syscall(PROCESS_MADVISE, args) }.unwrap_or(0);
        if done == total {
            return;
        }
        for range in ranges {
            let (at, len) = (range.iov_base.cast(), range.iov_len);
            // SAFETY: as above. Doing it twice is no harm: the pages are busy.
            let result = unsafe { rustix::mm::madvise(at, len, rustix::mm::Advice::LinuxDontNeed) };
            if let Err(errno) = result {
                fatal(&format!("cannot discard pages of a region: {errno}"));
            }
        }
    }

    /// Finds or makes the copy of a page: what its word will say. `old` is freed if it is not the copy.
    fn copy_of(&self, content: &Page, old: Option<Entry>) -> Result<State, StoreError> {
        if is_zero(content) {
            count(&self.counters.zero_out, 1);
            self.free_entry(old);
            return Ok(State::None);
        }
        let hash = self.key.hash(content);
        if let Some(old) = old {
            let same = self.swap.check(old) == Some(hash);
            self.clean.note(same);
            if same {
                count(&self.counters.clean, 1);
                return Ok(State::Swapped(old));
            }
        }
        let entry = self.swap.store(content, hash)?;
        self.free_entry(old);
        count(&self.counters.swapped_out, 1);
        Ok(State::Swapped(entry))
    }

    /// Moves some of a run of neighbours, which the caller has busy, and settles those that it has dealt with: how many
    /// were moved, and how many dealt with (at least one).
    fn move_run(&self, run: &[(u32, Option<Seen>)]) -> (usize, usize) {
        let Some((first, got)) = self.frames.take_empty(run.len()) else {
            run.iter().for_each(|page| self.put_back(page, true));
            return (0, run.len());
        };
        let src = self.space.addr(run[0].0);
        let take = |n| {
            // SAFETY: src are pages of a region; whoever has a reference into it accesses memory that, to safe code, does
            // not change by being moved out and back. dst are empty frames of ours.
            unsafe { self.uffd.move_pages(self.frames.addr(first), src, n * PAGE_SIZE, true) }
        };
        let (mut bytes, mut result) = take(got);
        // After a fork the page is shared with the child, and moves when it is this process's own again.
        let shared = self.inherit && bytes == 0 && result == Err(Refused::Busy);
        if shared && run[0].1.is_some_and(Seen::is_writable) && futex::unshare_page(src).is_ok() {
            (bytes, result) = take(1);
        }
        let done = bytes / PAGE_SIZE;
        self.frames.put_empty(first + done as FrameNo, got - done);
        let mut lists = lock(&self.lists);
        for (i, (page, seen)) in run.iter().enumerate().take(done) {
            let f = first + i as FrameNo;
            if let Some(State::Mapped(entry)) = seen.map(Seen::state) {
                self.frame_entry[f as usize].store(entry.map_or(0, Entry::raw), Relaxed);
            }
            lists.link_cached(&self.space, *page);
        }
        drop(lists);
        for (i, (page, seen)) in run.iter().enumerate().take(done) {
            if let Some(seen) = seen {
                self.space.word(*page).unlock(*seen, State::Cached(first + i as FrameNo));
            }
        }
        match result {
            Err(Refused::Changing) if done == 0 => (0, 0),
            _ if done > 0 => (done, done),
            Err(Refused::Absent) => {
                // Discarded behind our back: it reads as zeros.
                let (page, Some(seen)) = run[0] else { return (0, 1) };
                if let State::Mapped(entry) = seen.state() {
                    self.free_entry(entry);
                }
                self.held.fetch_sub(1, Relaxed);
                self.space.word(page).unlock(seen, State::None);
                (0, 1)
            }
            // Shared with a child, and write-protected, so it cannot be made our own; but it can be stored where it is.
            Err(Refused::Busy) if self.inherit && run[0].1.is_some_and(|seen| !seen.is_writable()) => {
                let stored = run[0].1.map_or(0, |seen| self.store_in_place(&[(run[0].0, seen)]));
                (stored, 1)
            }
            _ => {
                self.put_back(&run[0], true); // the kernel has it pinned or locked
                (0, 1)
            }
        }
    }

    /// Ends the busy state of a page that stays: as the youngest or the oldest of its list.
    fn put_back(&self, (page, seen): &(u32, Option<Seen>), youngest: bool) {
        let Some(seen) = seen else { return };
        let mut lists = lock(&self.lists);
        match (youngest, seen.is_hot()) {
            (true, _) => lists.link_mapped(&self.space, *page, *seen),
            (false, true) => lists.hot.push_back(&self.space, *page),
            (false, false) => lists.mapped.push_back(&self.space, *page),
        }
        drop(lists);
        self.space.word(*page).unlock(*seen, seen.state());
    }

    /// Stores the oldest pages of the swap cache; how many frames became free.
    fn store_some(&self) -> usize {
        let mut taken: Vec<Taken> = Vec::with_capacity(self.store_batch);
        {
            let mut lists = lock(&self.lists);
            let mut tries = 2 * self.store_batch;
            loop {
                let ahead = lists.ahead.len() as usize > self.ahead_target() || lists.cached.is_empty();
                let list = if ahead { &mut lists.ahead } else { &mut lists.cached };
                let oldest = list.back().filter(|_| tries > 0 && taken.len() < self.store_batch);
                let Some(page) = oldest else { break };
                tries -= 1;
                match self.space.word(page).try_lock() {
                    Some(seen) => {
                        list.remove(&self.space, page);
                        if let State::Cached(f) = seen.state() {
                            taken.push((page, seen, f));
                        }
                    }
                    None => list.move_to_front(&self.space, page),
                }
            }
        }
        let mut to_store = Vec::with_capacity(taken.len());
        let mut freed = 0;
        for one in taken {
            // SAFETY: the page is busy, so its frame is ours; it has a page.
            let page: &Page = unsafe { self.frame(one.2) };
            let old = self.take_frame_entry(one.2);
            if let (Some(old), true) = (old, one.1.credit() > 0) {
                // Read ahead and never touched.
                count(&self.counters.clean, 1);
                self.stored(one, State::Swapped(old));
                freed += 1;
                continue;
            }
            if is_zero(page) {
                count(&self.counters.zero_out, 1);
                self.free_entry(old);
                self.stored(one, State::None);
                freed += 1;
                continue;
            }
            let hash = self.key.hash(page);
            if let Some(old) = old {
                let same = self.swap.check(old) == Some(hash);
                self.clean.note(same);
                if same {
                    count(&self.counters.clean, 1);
                    self.stored(one, State::Swapped(old));
                    freed += 1;
                    continue;
                }
                self.free_entry(Some(old));
            }
            to_store.push((one, page, hash));
        }
        if to_store.is_empty() {
            return freed;
        }
        let pages: Vec<(&Page, u128)> = to_store.iter().map(|(_, page, hash)| (*page, *hash)).collect();
        let mut entries = vec![None; pages.len()];
        let result = self.swap.store_batch(&pages, &mut entries);
        for ((one, _, _), entry) in to_store.iter().zip(entries) {
            match entry {
                Some(entry) => {
                    count(&self.counters.swapped_out, 1);
                    self.readahead.stored(one.0, entry);
                    self.stored(*one, State::Swapped(entry));
                    freed += 1;
                }
                None => {
                    lock(&self.lists).link_cached(&self.space, one.0);
                    self.space.word(one.0).unlock(one.1, one.1.state());
                }
            }
        }
        if let Err(error) = result {
            warn_full(error);
        }
        freed
    }

    /// Frees the slots of up to `want` pages that are present: they will have to be stored anew. How many; 0: there are
    /// hardly any.
    fn drop_copies(&self, want: usize) -> usize {
        let mut copies: Vec<Entry> = Vec::with_capacity(want);
        let places = lock(&self.places).clone();
        let pages: u64 = places.iter().map(|(_, pages)| u64::from(*pages)).sum();
        let start = self.copies_hand.load(Relaxed) % pages.max(1);
        let mut left = pages.min(COPIES_LOOK as u64);
        let mut skip = start;
        for &(first, n) in places.iter().chain(&places) {
            let from = skip.min(u64::from(n)) as u32;
            skip -= u64::from(from);
            for page in first + from..first + n {
                if left == 0 || copies.len() == want {
                    break;
                }
                left -= 1;
                self.copies_hand.fetch_add(1, Relaxed);
                let word = self.space.word(page);
                if !matches!(word.look().state(), State::Mapped(Some(_))) {
                    continue;
                }
                let Some(seen) = word.try_lock() else { continue };
                if let State::Mapped(Some(entry)) = seen.state() {
                    copies.push(entry);
                    word.unlock(seen, State::Mapped(None));
                } else {
                    word.unlock(seen, seen.state());
                }
            }
        }
        copies.iter().for_each(|entry| self.free_entry(Some(*entry)));
        copies.len()
    }

    /// A page's content is safe elsewhere: its frame is free, or goes back to the kernel.
    fn stored(&self, (page, seen, f): Taken, to: State) {
        let clock = {
            let mut lists = lock(&self.lists);
            lists.clock = lists.clock.wrapping_add(1);
            lists.clock
        };
        self.space.set_prev(page, clock);
        self.space.word(page).unlock(seen.with_hot(false), to);
        let (room, target) = (self.room(), self.free_target());
        if (room < 0 && self.frames.free_count() > 0) || (room < target as i64 && self.frames.free_count() >= target) {
            self.release_frames(f, 1);
        } else {
            self.frames.put_free(f, 1);
        }
    }
}

/// Says once that memory can no longer be swapped out.
fn warn_full(error: StoreError) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        message(&format!("a region goes on above its budget: {error}; give its pager more swap"));
    }
}
