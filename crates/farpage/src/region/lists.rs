//! Which page goes next: the lists, their lock, and what is known without it.
//!
//! The policy and its lists are [`farpage_swap::workingset`], those of `farpage run` and `farpage-bench sim`. Mapped
//! pages are in regions, cached ones in frames of the swap cache.
//!
//! The *busy* bit of the word is the token ([`super::word`]): the page is busy from before it is linked until it is on
//! a list that others can see, and a thread that finds a page on a list has to make it busy first. A page's rank says
//! which queue it is on; it changes under the lock, also while a thread without the lock has the page busy.

use super::space::Space;
use super::word::{PageState, Seen};
use farpage_base::sys::mutex::{Guard, Mutex};
use farpage_swap::workingset::{Ages, Batch, Pages, Rank, Shadow, WorkingSet};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Probation's share where a sweep has to come by before a page can leave: sweeps are as rare as probation is long, and
/// each costs a fault for every page in use that is written.
const SWEPT_PROBATION: u32 = 4;

/// The lists, their lock, and what is known without it.
#[derive(Debug)]
pub struct PageLists {
    lists: Mutex<WorkingSet, true>,
    lengths: Lengths,
}

/// What is known without the lock: as of when it was given back last.
#[derive(Debug, Default)]
struct Lengths {
    /// Departures so far.
    departures: AtomicU32,
    /// Main is saturated.
    saturated: AtomicBool,
    /// Pages of the policy.
    pages: AtomicU32,
    /// Of them, those present in regions.
    present: AtomicU32,
    /// Of those, the ones in main.
    hot: AtomicU32,
    /// Pages of the policy in the swap cache.
    cached: AtomicU32,
    /// Pages there that were read ahead.
    ahead: AtomicU32,
    /// How often the lock was taken so far.
    #[cfg(test)]
    locked: AtomicU32,
}

/// The right to change the lists.
pub struct ListsGuard<'a> {
    lists: Guard<'a, WorkingSet, true>,
    lengths: &'a Lengths,
}

/// A page that comes in.
#[derive(Debug, Clone, Copy)]
pub struct NewPage {
    /// Which.
    pub page: u32,
    /// How hot it proved.
    pub rank: Rank,
    /// Into a frame, to wait for its first touch; else into a region.
    pub ahead: bool,
}

impl PageLists {
    /// Empty lists. `wp_sweeps`: pages are write-protected all at once. `pages`: the budget.
    pub fn new(wp_sweeps: bool, pages: usize) -> PageLists {
        let mut lists = if wp_sweeps { WorkingSet::with_probation(SWEPT_PROBATION) } else { WorkingSet::new() };
        lists.distances.resize(pages);
        PageLists { lists: Mutex::common(lists), lengths: Lengths::default() }
    }

    /// Pages that the caller has busy came in together. `back`: what those left with that had left. `read`: that of one
    /// that was read because it was touched.
    pub fn add(
        &self,
        space: &Space,
        pages: impl Iterator<Item = NewPage>,
        back: impl Iterator<Item = Shadow>,
        read: Option<Shadow>,
    ) {
        let mut pages = pages.peekable();
        if pages.peek().is_none() {
            return;
        }
        let mut batch = Batch::default();
        for NewPage { page, rank, ahead } in pages {
            space.set_rank(page, rank);
            if ahead { batch.push_ahead(space, page) } else { batch.push(space, page, rank) }
        }
        let mut lists = self.lock();
        back.for_each(|shadow| lists.note_back(shadow));
        lists.map_batch(space, &mut batch);
        if let Some(shadow) = read {
            lists.note_read(shadow);
        }
    }

    /// Waits until the lock is free and takes it.
    pub fn lock(&self) -> ListsGuard<'_> {
        ListsGuard { lists: self.lists.lock(), lengths: &self.lengths }
    }

    /// What tells how long a page was away. For the thread that has it busy: the page's shadow is not younger.
    pub fn ages(&self) -> Ages {
        let l = &self.lengths;
        Ages {
            departures: l.departures.load(Relaxed),
            pages: l.pages.load(Relaxed),
            saturated: l.saturated.load(Relaxed),
        }
    }

    /// Pages present in regions, as of the last change.
    pub fn present(&self) -> u32 {
        self.lengths.present.load(Relaxed)
    }

    /// Of them, those that proved hot, as of the last change.
    pub fn hot(&self) -> u32 {
        self.lengths.hot.load(Relaxed)
    }

    /// Pages in the swap cache, as of the last change.
    pub fn waiting(&self) -> u32 {
        self.lengths.cached.load(Relaxed) + self.lengths.ahead.load(Relaxed)
    }

    /// Pages that were read ahead and wait for their first touch, as of the last change.
    pub fn ahead(&self) -> u32 {
        self.lengths.ahead.load(Relaxed)
    }

    /// How often the lock was taken.
    #[cfg(test)]
    pub fn locked(&self) -> u32 {
        self.lengths.locked.load(Relaxed)
    }
}

impl Deref for ListsGuard<'_> {
    type Target = WorkingSet;

    fn deref(&self) -> &WorkingSet {
        &self.lists
    }
}

impl DerefMut for ListsGuard<'_> {
    fn deref_mut(&mut self) -> &mut WorkingSet {
        &mut self.lists
    }
}

impl Drop for ListsGuard<'_> {
    fn drop(&mut self) {
        let (set, to) = (&*self.lists, self.lengths);
        let ages = set.ages();
        to.departures.store(ages.departures, Relaxed);
        to.pages.store(ages.pages, Relaxed);
        to.saturated.store(ages.saturated, Relaxed);
        to.present.store(set.mapped(), Relaxed);
        to.hot.store(set.hot(), Relaxed);
        to.cached.store(set.cached(), Relaxed);
        to.ahead.store(set.ahead(), Relaxed);
        #[cfg(test)]
        to.locked.fetch_add(1, Relaxed);
    }
}

impl ListsGuard<'_> {
    /// A page of the swap cache that the caller has busy was touched: it is in its region, and off the list it was on.
    pub fn refault(&mut self, space: &Space, page: u32, seen: Seen) {
        let rank = space.rank(page);
        if seen.credit() > 0 {
            self.touch_ahead(space, page, rank);
        } else {
            space.set_rank(page, self.lists.refault(space, page, rank));
        }
    }

    /// Takes a page that the caller has busy off its list.
    pub fn unlink(&mut self, space: &Space, page: u32, seen: Seen) {
        let rank = space.rank(page);
        match seen.state() {
            PageState::Mapped(_) => self.unmap(space, page, rank),
            PageState::Cached(_) if seen.credit() > 0 => self.uncache_ahead(space, page),
            PageState::Cached(_) => self.uncache(space, page, rank),
            _ => {}
        }
    }
}
