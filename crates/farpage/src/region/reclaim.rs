//! Background reclaim: what goes when, and storing what waits in the swap cache.
//!
//! ```text
//!   signal mode: pages that are next --store in place--> device, all discarded in one system call
//!   thread mode: pages that are next --move runs--> swap cache --store--> device, frame free or given back
//! ```
//! (`evict`; which pages: `lists`.) Pages that were read ahead wait in the swap cache in either mode.
//!
//! The first thread keeps room and free frames in store; the others help while threads wait (`watermarks`). None of
//! them waits for a busy page. Storing may allocate, which is why faulting threads never do it.

use super::evict::add_page;
use super::fault::CHUNK;
use super::pager_core::{PagerCore, count};
use super::signal;
use super::store::{EvictPage, Stored};
use super::word::{PageState, Seen};
use farpage_base::mem::units::FrameNo;
use farpage_base::mem::units::Page;
use farpage_base::sys::futex;
use farpage_base::sys::message::message;
use farpage_device::{Entry, StoreError};
use farpage_swap::tuning::Controller;
use farpage_swap::workingset::{Pages, Shadow};
use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Pages of the swap cache stored at a time.
const STORE_BATCH: usize = 16;
/// Such a part of the cached pages is taken out and stored between two looks at what is needed.
const CACHED_BATCHES: usize = 4;
/// But so many at least: each costs a look at the lists and a system call.
const BATCH_LEAST: usize = 32;
/// In thread mode the swap cache is at least this long, but not longer than [`PagerCore::cached_most`].
const CACHED_MIN: usize = 64;
/// Surplus frames given back in one go.
const SURPLUS: usize = 256;
/// Copies of present pages dropped in one go.
const RECLAIM_SLOTS: usize = 64;
/// Words looked at for that, at most.
const RECLAIM_SLOTS_LOOK: usize = 1 << 16;
/// Pages moved from the pool to a file in one go.
const WRITEBACK: usize = 32;

/// A page that this thread has busy, its frame, and what is to be noted of it once it has left.
#[derive(Debug, Clone, Copy)]
struct CachedPage {
    page: u32,
    seen: Seen,
    f: FrameNo,
    shadow: Shadow,
}

/// What a step of reclaim has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReclaimStep {
    /// Something was freed, or nothing is wanted any more.
    Gained,
    /// Frames are few, and none comes free: faulting threads have them, or pages that no device takes.
    NoFrames,
    /// The budget has no room, and no page can go: a thread that needs one takes it above the budget.
    Stuck,
}

/// One reclaim thread.
pub fn main(e: &PagerCore, index: usize) {
    let first = index == 0;
    e.reclaimers[index].store(farpage_base::sys::raw::gettid(), SeqCst);
    let w = &e.wakeups;
    let mut running = false;
    loop {
        let working = e.enter_work();
        let (work, help) = (w.work.load(SeqCst), w.help.load(SeqCst));
        // After the counters: what is counted up for the end must not be taken for what was seen before.
        if w.stop.load(SeqCst) {
            return;
        }
        // A helper ends when the mark is reached, too: a thread that waited counts as waiting until it has a CPU again.
        let wanted = if first { e.wanted(running) } else { e.helpers() >= index && e.wanted(true) };
        running = wanted;
        if first && !wanted {
            w.stuck.store(false, SeqCst);
        }
        if wanted {
            let freed = w.freed.load(SeqCst);
            let step = e.reclaim_step();
            if step == ReclaimStep::Gained {
                w.stuck.store(false, SeqCst);
                continue;
            }
            if first {
                w.stuck.store(step == ReclaimStep::Stuck, SeqCst);
                // Another one has freed something meanwhile, and said so already.
                if w.freed.load(SeqCst) != freed {
                    w.stuck.store(false, SeqCst);
                }
                e.tell_waiters();
            }
        }
        if first {
            e.swap.tend(!wanted);
            if !wanted {
                e.swap.compact(COMPACT_PAGES);
                signal::take_back();
            }
            if let Some(warning) = e.swap.take_warning() {
                message(&warning);
            }
            w.asleep.store(true, SeqCst);
            // Another thread may have taken the last frames before that was set.
            if !wanted && e.wanted(false) && w.asleep.swap(false, SeqCst) {
                continue;
            }
            // With nothing to gain, not too soon again: pages may have been unpinned, or device space freed.
            e.free_now();
            // Inside of the gate: a fork in between would copy a lock that is held.
            e.leases.collect(&e.swap, |fd| e.table.close(fd));
            drop(working);
            futex::wait(&w.work, work, Some(if wanted { 5_000_000 } else { 200_000_000 }));
            w.asleep.store(false, SeqCst);
            let _working = e.enter_work();
            e.update_overhead();
        } else {
            drop(working);
            futex::wait(&w.help, help, None);
        }
    }
}

/// Compressed pages looked at in one turn with nothing else to do, for holes between them: about a millisecond.
const COMPACT_PAGES: usize = 4096;

impl PagerCore {
    /// Frames must be freed, or pages given back to the kernel.
    fn wanted(&self, running: bool) -> bool {
        let (marks, room) = (self.watermarks(), self.room());
        let few = || marks.goes_on(room) && self.level().is_few();
        marks.begins(room) || running && marks.goes_on(room) || few() || self.is_short()
    }

    /// How many threads are to help the first one. A thread that waits has given its CPU up, so one of reclaim may have
    /// it; while no thread waits, a second one would take it from the program.
    fn helpers(&self) -> usize {
        self.wakeups.waiting.load(SeqCst) as usize
    }

    /// Hardly any frame is left to load into: the others wait in the swap cache.
    fn is_short(&self) -> bool {
        self.frames.unused_count() < CHUNK.min(self.frames.len() / 4)
    }

    /// Something has been freed.
    pub(super) fn tell_waiters(&self) {
        let w = &self.wakeups;
        w.freed.fetch_add(1, SeqCst);
        if w.waiting.load(SeqCst) > 0 {
            futex::wake_all(&w.freed);
        }
    }

    /// One step of reclaim.
    pub(super) fn reclaim_step(&self) -> ReclaimStep {
        self.free_now();
        let short = self.is_short();
        self.give_back_surplus();
        // Read once: with nothing gained, what the step saw says whether it is stuck.
        let (marks, room) = (self.watermarks(), self.room());
        let few = marks.goes_on(room);
        if !few && !short {
            return ReclaimStep::Gained;
        }
        let batch = marks.batch(room);
        let mut moved = 0;
        let mut frames: Vec<FrameNo> = Vec::with_capacity(STORE_BATCH);
        if self.wp_sweeps {
            if few {
                moved = self.evict(batch, 0);
            }
            if short || self.lists.ahead() as usize > self.ahead_target() || few && moved == 0 {
                self.store_up_to(STORE_BATCH, false, &mut frames);
            }
        } else {
            let (cached, target) = {
                let lists = self.lists.lock();
                self.controls.value_for(Controller::Stage, lists.stage_parts().into());
                let target = (lists.cached_target(u32::MAX) as usize).max(CACHED_MIN).min(self.cached_most());
                (lists.cached() as usize, target)
            };
            // A small part of the cached pages at a time, so that each has been there for about as long.
            let batch = batch.min((target / CACHED_BATCHES).max(BATCH_LEAST));
            if !short && cached < target + batch {
                moved = self.evict(batch, target + batch);
            }
            // Below the target the pages in the cache get their second chance, unless nothing else can be had.
            if cached + moved > target || moved == 0 || self.wakeups.waiting.load(Relaxed) > 0 {
                self.store_up_to(STORE_BATCH, moved > 0, &mut frames);
            }
        }
        self.give_back(&frames);
        let mut freed = frames.len();
        if freed > 0 {
            self.tell_waiters();
        }
        if self.swap.pool_over_share() {
            // Copies of pages that are present go first; what is only in the pool would have to be read back.
            freed += match self.reclaim_slots(RECLAIM_SLOTS) {
                0 => self.swap.writeback(WRITEBACK),
                n => n,
            };
        }
        self.update_overhead();
        if moved > 0 && self.room() > 0 {
            self.tell_waiters(); // pages that were stored in place make room, not frames
        }
        match moved + freed {
            0 if few => ReclaimStep::Stuck,
            0 => ReclaimStep::NoFrames,
            _ => ReclaimStep::Gained,
        }
    }

    /// Stores the oldest pages of the swap cache until there are `n` frames in `free`, if there are as many. `in_turn`:
    /// none before those that are still mapped.
    fn store_up_to(&self, n: usize, in_turn: bool, free: &mut Vec<FrameNo>) {
        while free.len() < n {
            let want = (n - free.len()).min(STORE_BATCH);
            if self.store_some(want, in_turn, free) < want {
                return;
            }
        }
    }

    /// Stores up to `most` of the oldest pages of the swap cache; how many frames were added to `free`: theirs, which
    /// are the caller's.
    fn store_some(&self, most: usize, in_turn: bool, free: &mut Vec<FrameNo>) -> usize {
        let before = free.len();
        let mut taken: Vec<CachedPage> = Vec::with_capacity(most);
        {
            let mut lists = self.lists.lock();
            let mut refusals = most;
            while taken.len() < most {
                // A thread that has the page busy is about to unlink it.
                let locked = Cell::new(None);
                let may = |page, _| {
                    locked.set(self.space.word(page).try_lock());
                    locked.get().is_some()
                };
                let waiting = if lists.cached() > 0 { self.ahead_target() as u32 } else { 0 };
                if in_turn && lists.ahead() <= waiting && lists.is_behind() {
                    break;
                }
                let Some((page, shadow)) = lists.evict_cached(&self.space, waiting, &mut refusals, may) else { break };
                if let Some(seen) = locked.get()
                    && let PageState::Cached(f) = seen.state()
                {
                    taken.push(CachedPage { page, seen, f, shadow });
                }
            }
        }
        let mut leaving: Vec<EvictPage> = Vec::with_capacity(taken.len());
        let mut cached: Vec<CachedPage> = Vec::with_capacity(taken.len());
        for one in taken {
            // SAFETY: the page is busy, so its frame is ours; it has a page.
            let content: &Page = unsafe { self.frame(one.f) };
            let old = self.frame_entries.take(one.f);
            if let (Some(old), true) = (old, one.seen.credit() > 0) {
                // Read ahead and never touched.
                count(&self.stat.swpout_clean, 1);
                free.push(self.stored(one, PageState::Swapped(old)));
                continue;
            }
            leaving.push(EvictPage { page: one.page, content, old });
            cached.push(one);
        }
        for (one, stored) in cached.into_iter().zip(self.store(&leaving, false)) {
            match stored {
                Stored::Had(to) => free.push(self.stored(one, to)),
                Stored::New(entry) => free.push(self.stored(one, PageState::Swapped(entry))),
                Stored::Nowhere => {
                    let rank = self.space.rank(one.page);
                    self.lists.lock().recache(&self.space, one.page, rank, false);
                    self.space.word(one.page).unlock(one.seen, one.seen.state());
                }
            }
        }
        free.len() - before
    }

    /// Frames that are never needed again go before any page does; first those that could not be given back at once.
    fn give_back_surplus(&self) {
        if let Some((first, n)) = self.frames.take_spent(SURPLUS) {
            self.release(&first.run(n).collect::<Vec<_>>());
        }
        let want = self.level().surplus().min(SURPLUS);
        let mut frames: Vec<FrameNo> = Vec::with_capacity(want);
        while frames.len() < want {
            let Some((first, n)) = self.frames.take_free(want - frames.len()) else { break };
            frames.extend(first.run(n));
        }
        self.release(&frames);
    }

    /// Frames whose content is safe elsewhere: free, or back to the kernel, with one system call. In thread mode all go
    /// back: their pages were a region's ([`farpage_base::mem::frame`], spent).
    fn give_back(&self, frames: &[FrameNo]) {
        let most = if self.wp_sweeps { self.level().to_give_back(frames.len()) } else { frames.len() };
        let (gone, kept) = frames.split_at(most);
        kept.iter().for_each(|f| self.frames.put_free(*f, 1));
        self.release(gone);
    }

    /// Gives the pages of frames back to the kernel, which are the caller's and have no content of worth.
    pub(super) fn release(&self, frames: &[FrameNo]) {
        if frames.is_empty() {
            return;
        }
        let mut ranges: Vec<libc::iovec> = Vec::with_capacity(frames.len());
        frames.iter().for_each(|f| add_page(&mut ranges, self.frames.addr(*f)));
        // SAFETY: the frames are the caller's and their content is worthless.
        if unsafe { self.discard_ranges(&ranges) }.is_err() {
            frames.iter().for_each(|f| self.frames.put_spent(*f, 1));
            return;
        }
        frames.iter().for_each(|f| self.frames.put_empty(*f, 1));
        self.held.fetch_sub(frames.len() as i64, Relaxed);
    }

    /// Frees slots of up to `want` pages that are present, and that take memory of the pool: the pages will have to be
    /// stored anew. How many; 0: there are hardly any. A compressed copy of what is in a file too just goes.
    fn reclaim_slots(&self, want: usize) -> usize {
        let mut copies: Vec<Entry> = Vec::with_capacity(want);
        let start = self.slot_hand.load(Relaxed);
        let (known, mut at) = (&self.space.places, start);
        let pages = known.with_words(start..u32::MAX).chain(known.with_words(0..start)).flat_map(|(_, pages)| pages);
        for page in pages.take(RECLAIM_SLOTS_LOOK) {
            if copies.len() == want {
                break;
            }
            at = page + 1;
            let word = self.space.word(page);
            let look = word.load();
            if !matches!(look.state(), PageState::Mapped(Some(_))) {
                continue;
            }
            let Some(seen) = word.try_lock_if(look) else { continue };
            // What takes no memory of the pool can stay.
            if let PageState::Mapped(Some(entry)) = seen.state()
                && !self.swap.keep(entry, true)
            {
                copies.push(entry);
                word.unlock(seen, PageState::Mapped(None));
            } else {
                word.unlock(seen, seen.state());
            }
        }
        self.slot_hand.store(at, Relaxed);
        copies.iter().for_each(|entry| self.free_entry(Some(*entry)));
        copies.len()
    }

    /// A page's content is safe elsewhere; its frame is the caller's to give back.
    fn stored(&self, CachedPage { page, seen, f, shadow }: CachedPage, to: PageState) -> FrameNo {
        self.space.set_shadow(page, shadow);
        if let PageState::Swapped(_) = to {
            self.swapped.fetch_add(1, Relaxed);
        }
        self.space.word(page).unlock(seen, to);
        f
    }

    /// Says once a pager that its memory can no longer be swapped out.
    pub(super) fn warn_full(&self, error: StoreError) {
        if !self.full_warned.swap(true, Relaxed) {
            message(&format!("a region goes on above its budget: {error}; give its pager more swap"));
        }
    }
}
