//! The engine's policy in a memory of its own: what the pager and the writer do with [`WorkingSet`], without the I/O.

use super::{Met, Nodes, Policy};
use crate::lru::Links;
use crate::workingset::{Pages, Rank, STRETCH_PAGES, Shadow, Tick, WorkingSet};
use std::cell::Cell;
use std::collections::BTreeMap;

/// How much of the memory is unmapped but still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// As much as it earns: the engine's way.
    Adaptive,
    /// One page in so many.
    Fixed(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    New,
    Mapped(Rank),
    Cached(Rank),
    Out(Shadow),
}

/// Links and places of the pages.
#[derive(Debug)]
struct Table {
    links: Nodes,
    at: Vec<Cell<At>>,
    /// Of each page, where it lies: which of `wanted` it shares with its neighbours.
    stretch: Vec<u32>,
    wanted: Vec<Cell<Tick>>,
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
    fn wanted(&self, n: u32) -> Tick {
        self.wanted[self.stretch[n as usize] as usize].get()
    }
    fn set_wanted(&self, n: u32, tick: Tick) {
        self.wanted[self.stretch[n as usize] as usize].set(tick);
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Ours {
    set: WorkingSet,
    table: Table,
    size: u32,
    stage: Stage,
}

impl Ours {
    /// A memory of `size` pages, for pages below `pages`; those with neighbouring numbers lie beside each other.
    pub fn new(size: u32, pages: u32, stage: Stage) -> Ours {
        Ours::at(size, &(0..u64::from(pages)).collect::<Vec<_>>(), stage)
    }

    /// The same for pages that lie at `places`, in units of a page.
    pub fn at(size: u32, places: &[u64], stage: Stage) -> Ours {
        let mut stretches = BTreeMap::new();
        let mut stretch_of = |place: &u64| {
            let next = stretches.len() as u32;
            *stretches.entry(place / u64::from(STRETCH_PAGES)).or_insert(next)
        };
        let stretch: Vec<u32> = places.iter().map(&mut stretch_of).collect();
        let (links, at) = (Nodes::new(places.len()), vec![Cell::new(At::New); places.len()]);
        let table = Table { links, at, stretch, wanted: vec![Cell::default(); stretches.len()] };
        Ours { set: WorkingSet::new(), table, size, stage }
    }

    /// The lists.
    pub fn set(&self) -> &WorkingSet {
        &self.set
    }

    fn target(&self) -> u32 {
        match self.stage {
            Stage::Adaptive => self.set.stage_target(self.size),
            Stage::Fixed(share) => (self.size / share.max(1)).max(1),
        }
    }

    /// Throws out what is too much, the way the engine does under pressure: the stage is filled up, then its oldest
    /// goes.
    fn make_room(&mut self, out: &mut Vec<u32>) {
        while self.set.mapped() + self.set.cached() > self.size {
            let target = self.target();
            while self.set.cached() < target {
                let mut oldest = [0];
                if self.set.oldest(&self.table, target, &mut oldest) == 0 {
                    break;
                }
                let [page] = oldest;
                let rank = self.table.rank(page);
                self.set.cache(&self.table, page, rank);
                self.table.at[page as usize].set(At::Cached(rank));
            }
            let Some((page, shadow)) = self.set.depart(&self.table) else { break };
            self.table.at[page as usize].set(At::Out(shadow));
            out.push(page);
        }
    }
}

impl Policy for Ours {
    fn access(&mut self, page: u32, out: &mut Vec<u32>) -> Met {
        let at = &self.table.at[page as usize];
        let (met, rank) = match at.get() {
            At::Mapped(_) => return Met::Hit,
            At::Cached(rank) => {
                at.set(At::Mapped(self.set.refault(&self.table, page, rank)));
                return Met::Minor;
            }
            At::New => (Met::Miss, Rank::NEW),
            At::Out(shadow) => {
                let rank = self.set.rank_of(shadow);
                self.set.note_read(&self.table, page, shadow);
                (Met::Miss, rank)
            }
        };
        at.set(At::Mapped(rank));
        self.set.map(&self.table, page, rank);
        self.make_room(out);
        met
    }
}
