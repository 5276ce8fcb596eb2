//! Which page goes next: the lists, their lock, and what is known without it.
//!
//! The policy is [`farpage_swap::workingset`], the one of `farpage run` and `farpage-bench sim`: probation and main,
//! each with a cached list. Mapped pages are in regions, cached ones in frames of the swap cache. Pages that were read
//! ahead and wait there for their first touch are on a list of their own, *ahead*: they are about to be used, so they
//! go only when they have become too many.
//!
//! Pages that come in together are linked on local lists, without the lock, and spliced: it is held for as long as for
//! one page. The *busy* bit of the word is the token ([`super::word`]): the page is busy from before it is linked until
//! it is on a list that others can see, and a thread that finds a page on a list has to make it busy first. A page's
//! rank says which queue it is on; it changes under the lock, also while a thread without the lock has the page busy.

use super::space::Space;
use super::word::{PageState, Seen};
use farpage_base::sys::mutex::{Guard, Mutex};
use farpage_swap::lru::List;
use farpage_swap::pool_share::Distances;
use farpage_swap::workingset::{Ages, Pages, Rank, Shadow, WorkingSet};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Probation's share where a sweep has to come by before a page can leave: sweeps are as rare as probation is long, and
/// each costs a fault for every page in use that is written.
const SWEPT_PROBATION: u32 = 4;

/// The lists, their lock, and what is known without it.
#[derive(Debug)]
pub struct PageLists {
    lists: Mutex<Lists, true>,
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
}

/// The right to change the lists.
pub struct ListsGuard<'a> {
    lists: Guard<'a, Lists, true>,
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
        let set = if wp_sweeps { WorkingSet::with_probation(SWEPT_PROBATION) } else { WorkingSet::new() };
        let lists = Lists {
            set,
            ahead: List::new(),
            distances: Distances::new(pages),
            #[cfg(test)]
            locked: 0,
        };
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
        let mut local = LocalLists::default();
        pages.for_each(|one| local.link(space, one));
        let mut lists = self.lock();
        back.for_each(|shadow| lists.set.note_back(shadow));
        lists.splice_front(space, &mut local);
        if let Some(shadow) = read {
            let (away, here) = (lists.set.distance(shadow), lists.set.mapped() + lists.set.cached());
            lists.distances.note(away.saturating_add(here));
            lists.set.note_read();
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
}

impl Deref for ListsGuard<'_> {
    type Target = Lists;

    fn deref(&self) -> &Lists {
        &self.lists
    }
}

impl DerefMut for ListsGuard<'_> {
    fn deref_mut(&mut self) -> &mut Lists {
        &mut self.lists
    }
}

impl Drop for ListsGuard<'_> {
    fn drop(&mut self) {
        let (set, to) = (&self.lists.set, self.lengths);
        let ages = set.ages();
        to.departures.store(ages.departures, Relaxed);
        to.pages.store(ages.pages, Relaxed);
        to.saturated.store(ages.saturated, Relaxed);
        to.present.store(set.mapped(), Relaxed);
        to.hot.store(set.hot(), Relaxed);
        to.cached.store(set.cached(), Relaxed);
        to.ahead.store(self.lists.ahead.len(), Relaxed);
        #[cfg(test)]
        {
            self.lists.locked += 1;
        }
    }
}

/// Lists of pages that their owner has busy, not yet the pager's.
#[derive(Debug, Default)]
pub struct LocalLists {
    cold: List,
    hot: List,
    ahead: List,
}

impl LocalLists {
    /// Adds a page, as the youngest of its list.
    pub fn link(&mut self, space: &Space, NewPage { page, rank, ahead }: NewPage) {
        space.set_rank(page, rank);
        let list = match ahead {
            true => &mut self.ahead,
            false if rank.is_hot() => &mut self.hot,
            false => &mut self.cold,
        };
        list.push_front(space, page);
    }
}

/// The pager's lists.
#[derive(Debug)]
pub struct Lists {
    /// The policy's.
    pub set: WorkingSet,
    /// Pages in the swap cache that were read ahead and not touched yet, youngest first.
    pub ahead: List,
    /// Of pages that came back from a device, because they were touched.
    pub distances: Distances,
    /// How often the lock was taken so far.
    #[cfg(test)]
    pub locked: u64,
}

impl Lists {
    /// Puts the pages of local lists onto these, as the youngest, and in their order.
    pub fn splice_front(&mut self, space: &Space, local: &mut LocalLists) {
        self.set.map_all(space, &mut local.cold, Rank::NEW);
        self.set.map_all(space, &mut local.hot, Rank::HOT);
        self.ahead.splice_front(space, &mut local.ahead);
    }

    /// The same, of pages in regions, as the oldest.
    pub fn splice_back(&mut self, space: &Space, local: &mut LocalLists) {
        self.set.map_all_oldest(space, &mut local.cold, Rank::NEW);
        self.set.map_all_oldest(space, &mut local.hot, Rank::HOT);
    }

    /// A page of the swap cache that the caller has busy was touched: it is in its region, and off the list it was on.
    pub fn refault(&mut self, space: &Space, page: u32, seen: Seen) {
        let rank = space.rank(page);
        if seen.credit() == 0 {
            let raised = self.set.refault(space, page, rank);
            space.set_rank(page, raised);
            return;
        }
        // It was read ahead: this is its first touch.
        self.ahead.remove(space, page);
        self.set.map(space, page, rank);
    }

    /// Takes a page that the caller has busy off its list.
    pub fn unlink(&mut self, space: &Space, page: u32, seen: Seen) {
        let rank = space.rank(page);
        match seen.state() {
            PageState::Mapped(_) => self.set.unmap(space, page, rank),
            PageState::Cached(_) if seen.credit() > 0 => self.ahead.remove(space, page),
            PageState::Cached(_) => self.set.uncache(space, page, rank),
            _ => {}
        }
    }
}
