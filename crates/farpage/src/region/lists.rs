//! Which page goes next: four lists.
//!
//! *Mapped* pages are in regions, in the order in which they came in; the oldest go. A page that comes back sooner
//! after it went than there are pages present (its *refault distance*, by a clock that ticks with every page taken
//! out) goes to *hot* instead, which gives pages up only while it is longer than *mapped* deserves. Pages that were
//! moved out in runs (thread mode) wait in the swap cache, *cached*, where a touch brings them back. Pages that were read ahead and wait
//! there for their first touch are on a list of their own, *ahead*: they are about to be used, so they go only when they
//! have become too many.
//!
//! Pages that come in together are linked on local lists, without the lock, and spliced: it is held for as long as for one
//! page. The *busy* bit of the word is the token ([`super::word`]): the page is busy from before it is linked until it is on a
//! list that others can see, and whoever finds a page on a list has to make it busy first.

use super::space::Space;
use super::word::{Seen, State};
use farpage_swap::lru::List;
use farpage_swap::splice::Linking;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The lists, their lock, and what is known without it.
#[derive(Debug)]
pub struct Shared {
    lists: Mutex<Lists>,
    linking: Linking,
    /// Pages taken out so far.
    clock: AtomicU32,
    /// Pages present in regions when the lock was given back last.
    present: AtomicU32,
}

/// The right to change the lists.
pub struct Guard<'a> {
    lists: MutexGuard<'a, Lists>,
    present: &'a AtomicU32,
}

impl Shared {
    /// Empty lists. `linking`: how pages that come in together are linked; spliced unless for a measurement.
    pub fn new(linking: Linking) -> Shared {
        Shared { lists: Mutex::default(), linking, clock: AtomicU32::new(0), present: AtomicU32::new(0) }
    }

    /// Pages that the caller has busy came in together, each into a region or, read ahead, into a frame (`true`).
    pub fn add(&self, space: &Space, pages: impl Iterator<Item = (u32, Seen, bool)>) {
        let mut pages = pages.peekable();
        if pages.peek().is_none() {
            return;
        }
        match self.linking {
            Linking::OneByOne => pages.for_each(|one| self.lock().link(space, one)),
            Linking::Batched => {
                let mut lists = self.lock();
                pages.for_each(|one| lists.link(space, one));
            }
            Linking::Spliced => {
                let mut local = Lists::default();
                pages.for_each(|one| local.link(space, one));
                self.lock().splice_front(space, local);
            }
        }
    }

    /// Waits until the lock is free and takes it.
    pub fn lock(&self) -> Guard<'_> {
        let (mut lists, waited) = match self.lists.try_lock() {
            Ok(lists) => (lists, 0),
            Err(TryLockError::Poisoned(error)) => (error.into_inner(), 0),
            Err(TryLockError::WouldBlock) => (self.lists.lock().unwrap_or_else(PoisonError::into_inner), 1),
        };
        lists.locked += 1;
        lists.waited += waited;
        Guard { lists, present: &self.present }
    }

    /// Another page is taken out: the count, this one included.
    pub fn tick(&self) -> u32 {
        self.clock.fetch_add(1, Relaxed).wrapping_add(1)
    }

    /// Pages taken out so far. Not less than any [`Shared::tick`] of a page that the caller has busy.
    pub fn clock(&self) -> u32 {
        self.clock.load(Relaxed)
    }

    /// Pages present in regions, as of the last change.
    pub fn present(&self) -> u32 {
        self.present.load(Relaxed)
    }
}

impl Deref for Guard<'_> {
    type Target = Lists;

    fn deref(&self) -> &Lists {
        &self.lists
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Lists {
        &mut self.lists
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.present.store(self.lists.present(), Relaxed);
    }
}

/// The lists: those of the pager, or local ones of pages that their owner has busy.
#[derive(Debug, Default)]
pub struct Lists {
    /// Pages in regions, youngest first.
    pub mapped: List,
    /// Pages in regions that came back soon, youngest first.
    pub hot: List,
    /// Pages in the swap cache, youngest first.
    pub cached: List,
    /// Pages in the swap cache that were read ahead and not touched yet, youngest first.
    pub ahead: List,
    /// How often the lock was taken so far.
    pub locked: u64,
    /// Of that, how often it was not free.
    pub waited: u64,
}

impl Lists {
    fn link(&mut self, space: &Space, (page, seen, ahead): (u32, Seen, bool)) {
        match ahead {
            true => self.link_ahead(space, page),
            false => self.link_mapped(space, page, seen),
        }
    }

    /// A page that the caller has busy came in: it is the youngest of its list.
    pub fn link_mapped(&mut self, space: &Space, page: u32, seen: Seen) {
        if seen.is_hot() {
            self.hot.push_front(space, page);
        } else {
            self.mapped.push_front(space, page);
        }
    }

    /// A page that the caller has busy was taken out into a frame.
    pub fn link_cached(&mut self, space: &Space, page: u32) {
        self.cached.push_front(space, page);
    }

    /// A page that the caller has busy was read ahead into a frame.
    pub fn link_ahead(&mut self, space: &Space, page: u32) {
        self.ahead.push_front(space, page);
    }

    /// Puts the pages of local lists onto these, as the youngest, and in their order.
    pub fn splice_front(&mut self, space: &Space, mut local: Lists) {
        self.mapped.splice_front(space, &mut local.mapped);
        self.hot.splice_front(space, &mut local.hot);
        self.cached.splice_front(space, &mut local.cached);
        self.ahead.splice_front(space, &mut local.ahead);
    }

    /// The same, of pages in regions, as the oldest.
    pub fn splice_back(&mut self, space: &Space, mut local: Lists) {
        self.mapped.splice_back(space, &mut local.mapped);
        self.hot.splice_back(space, &mut local.hot);
    }

    /// Takes a page that the caller has busy off its list.
    pub fn unlink(&mut self, space: &Space, page: u32, seen: Seen) {
        match seen.state() {
            State::Mapped(_) if seen.is_hot() => self.hot.remove(space, page),
            State::Mapped(_) => self.mapped.remove(space, page),
            State::Cached(_) if seen.credit() > 0 => self.ahead.remove(space, page),
            State::Cached(_) => self.cached.remove(space, page),
            _ => {}
        }
    }

    /// Pages present in regions.
    pub fn present(&self) -> u32 {
        self.mapped.len() + self.hot.len()
    }

    /// The list whose oldest page goes next: a quarter of the pages at least is for those that came in once.
    pub fn next_hot(&self) -> bool {
        self.mapped.len() < self.present() / 4 || self.mapped.is_empty()
    }
}
