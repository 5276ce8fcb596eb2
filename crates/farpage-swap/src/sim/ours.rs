//! The engine's policy in a memory of its own: what the pager and the writer do with [`WorkingSet`], without the I/O.

use super::{Met, Moved, Nodes, Policy};
use crate::lru::Links;
use crate::workingset::{Pages, Rank, Shadow, WorkingSet};
use std::cell::Cell;

/// How much of the memory is unmapped but still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachedLen {
    /// As much as it earns: the engine's way.
    Adaptive,
    /// One page in so many.
    Fixed(u32),
}

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    New,
    Mapped(Rank),
    Cached(Rank),
    Out(Shadow),
}

/// Links and states of the pages.
#[derive(Debug)]
pub(super) struct Table {
    links: Nodes,
    at: Vec<Cell<At>>,
}

impl Table {
    /// Of pages below `pages`, none of them in memory.
    pub(super) fn new(pages: u32) -> Table {
        let pages = pages as usize;
        Table { links: Nodes::new(pages), at: vec![Cell::new(At::New); pages] }
    }

    /// Where the page is.
    pub(super) fn at(&self, page: u32) -> At {
        self.at[page as usize].get()
    }

    /// It is elsewhere now.
    pub(super) fn set(&self, page: u32, at: At) {
        self.at[page as usize].set(at);
    }

    /// The program needs the page no longer.
    pub(super) fn free(&self, set: &mut WorkingSet, page: u32) {
        match self.at[page as usize].replace(At::New) {
            At::Mapped(rank) => set.unmap(self, page, rank),
            At::Cached(rank) => set.uncache(self, page, rank),
            At::New | At::Out(_) => {}
        }
    }
}

impl Links for Table {
    fn prev(&self, n: u32) -> u32 {
        self.links.prev(n)
    }
    fn next(&self, n: u32) -> u32 {
        self.links.next(n)
    }
    fn set_prev(&self, n: u32, to: u32) {
        self.links.set_prev(n, to);
    }
    fn set_next(&self, n: u32, to: u32) {
        self.links.set_next(n, to);
    }
}

impl Pages for Table {
    fn rank(&self, n: u32) -> Rank {
        match self.at[n as usize].get() {
            At::Mapped(rank) | At::Cached(rank) => rank,
            At::New | At::Out(_) => Rank::NEW,
        }
    }
    fn set_rank(&self, n: u32, rank: Rank) {
        self.at[n as usize].set(At::Cached(rank));
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Ours {
    set: WorkingSet,
    table: Table,
    size: u32,
    cached_len: CachedLen,
}

impl Ours {
    /// A memory of `size` pages, for pages below `pages`.
    pub fn new(size: u32, pages: u32, cached_len: CachedLen) -> Ours {
        Ours { set: WorkingSet::new(), table: Table::new(pages), size, cached_len }
    }

    /// The lists.
    pub fn set(&self) -> &WorkingSet {
        &self.set
    }

    /// Pages of the memory.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The memory has as many pages from now on. What is too much leaves.
    pub fn resize(&mut self, size: u32, moved: &mut Moved) {
        self.size = size;
        self.make_room(moved);
    }

    /// It is `now` by the tree's clock ([`WorkingSet::tick`]).
    pub fn tick(&mut self, now: u32) {
        self.set.tick(now);
    }

    /// Whether a page more has room.
    pub fn has_room(&self) -> bool {
        self.set.mapped() + self.set.cached() < self.size
    }

    /// Whether the page is in memory.
    pub fn has(&self, page: u32) -> bool {
        matches!(self.table.at(page), At::Mapped(_) | At::Cached(_))
    }

    fn target(&self) -> u32 {
        match self.cached_len {
            CachedLen::Adaptive => self.set.cached_target(self.size),
            CachedLen::Fixed(share) => (self.size / share.max(1)).max(1),
        }
    }

    /// Throws out what is too much, the way the engine does under pressure: the cached lists are filled up, then its
    /// oldest goes.
    fn make_room(&mut self, moved: &mut Moved) {
        while self.set.mapped() + self.set.cached() > self.size {
            let target = self.target();
            while self.set.cached() < target || self.set.is_behind() {
                let mut oldest = [0];
                if self.set.oldest(&self.table, target, &mut oldest) == 0 {
                    break;
                }
                let [page] = oldest;
                let rank = self.table.rank(page);
                self.set.cache(&self.table, page, rank);
                self.table.at[page as usize].set(At::Cached(rank));
            }
            let Some((page, shadow)) = self.set.evict_one(&self.table) else { break };
            self.table.at[page as usize].set(At::Out(shadow));
            moved.out.push(page);
        }
    }
}

impl Policy for Ours {
    fn access(&mut self, page: u32, moved: &mut Moved) -> Met {
        let at = &self.table.at[page as usize];
        let (met, rank) = match at.get() {
            At::Mapped(_) => return Met::Hit,
            At::Cached(rank) => {
                at.set(At::Mapped(self.set.refault(&self.table, page, rank)));
                return Met::Minor;
            }
            At::New => (Met::Miss, Rank::NEW),
            At::Out(shadow) => {
                self.set.note_back(shadow);
                let rank = self.set.rank_of(shadow);
                self.set.note_read(shadow);
                (Met::Miss, rank)
            }
        };
        at.set(At::Mapped(rank));
        self.set.map(&self.table, page, rank);
        self.make_room(moved);
        met
    }

    fn free(&mut self, page: u32) {
        self.table.free(&mut self.set, page);
    }
}
