//! The lists of the pages in memory, and their words: which page goes next.
//!
//! The policy and its lists are [`farpage_swap::workingset`]; here the words follow them. One mutex guards them all.
//! While it is held, membership equals state: `Mapped` pages are on probation or main by their rank, `Cached` ones on
//! the cached list of the same queue, or on that of pages read ahead if their word says so, all others are on no list.
//! (A [`PageBatch`] is the pager's own until it is spliced.) Words are changed under it, nothing else is called; its
//! place: docs/dev/locking.md.

use crate::shared::page_table::{Node, PageTable, State};
use farpage_base::mem::units::FrameNo;
use farpage_swap::workingset::{Batch, Pages, Rank, WorkingSet};
use std::cell::Cell;

/// Pages that wait for their first touch take this part of the budget at most...
const AHEAD_PART: usize = 16;
/// ... but so many may always wait: some windows.
const AHEAD_MIN: u32 = 128;

/// The lists; kept in a mutex by the engine.
#[derive(Debug)]
pub struct Lru {
    /// Clock, length of the stage, and distances may be changed here. What changes a list is below: the words follow.
    pub set: WorkingSet,
    ahead_max: u32,
    /// The pager has tried, and probation was behind all the same.
    is_stuck: bool,
}

/// Pages that come into the program together. They are linked outside of the lock and go onto their list in one splice,
/// so the lock is held as long for 512 pages as for one. Only the pager, which has the batch, asks for the list of
/// a `Mapped` page.
#[derive(Debug, Default)]
pub struct PageBatch {
    batch: Batch,
    rank: Rank,
}

impl PageBatch {
    /// Of pages that come back together: one rank for all, so that they stay or leave together.
    pub fn ranked(rank: Rank) -> PageBatch {
        PageBatch { batch: Batch::default(), rank }
    }

    /// A page that was on no list: its word becomes `Mapped`.
    pub fn map(&mut self, table: &PageTable, node: Node, to: State) {
        debug_assert!(matches!(to, State::Mapped(_)));
        table.set_ranked(node, to, self.rank);
        self.batch.push(table, node.0, self.rank);
    }

    /// Whether there is nothing to splice.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }
}

impl Lru {
    /// Empty lists, for a budget of `pages`.
    pub fn new(pages: usize) -> Lru {
        let mut lru = Lru { set: WorkingSet::new(), ahead_max: 0, is_stuck: false };
        lru.resize(pages);
        lru
    }

    /// The budget has so many pages now.
    pub fn resize(&mut self, pages: usize) {
        self.ahead_max = u32::try_from(pages / AHEAD_PART).unwrap_or(u32::MAX).max(AHEAD_MIN);
        self.set.distances.resize(pages);
    }

    /// Pages in the program.
    pub fn active_len(&self) -> usize {
        self.set.mapped() as usize
    }

    /// Pages in the swap cache that no writer stores yet.
    pub fn cached_len(&self) -> usize {
        self.set.cached() as usize
    }

    /// How many pages are best in the swap cache under pressure: the stage's length in pages, at most `most`.
    pub fn cached_target(&self, most: usize) -> usize {
        self.set.stage_target(u32::try_from(most).unwrap_or(u32::MAX)) as usize
    }

    /// Pages on probation are to leave, and none of them is in the swap cache: those of main would go in their place.
    /// Not where the pager has found that they cannot be taken out.
    pub fn is_behind(&self) -> bool {
        !self.is_stuck && self.set.is_behind()
    }

    /// The pager has tried to take out what is next. If probation is still behind, it cannot be taken out, and others
    /// go in its place until it is no longer.
    pub fn tried(&mut self) {
        self.is_stuck = self.set.is_behind();
    }

    /// A page came into the program that was on no list: its word becomes `Mapped`.
    pub fn map(&mut self, table: &PageTable, node: Node, to: State, rank: Rank) {
        debug_assert!(matches!(to, State::Mapped(_)));
        table.set_ranked(node, to, rank);
        self.set.map(table, node.0, rank);
    }

    /// The pages of a batch go onto the list of their rank, the last one added as the youngest.
    pub fn map_batch(&mut self, table: &PageTable, batch: &mut PageBatch) {
        self.set.map_batch(table, &mut batch.batch);
    }

    /// Swapped-out pages come in together, from `first` on; their rank: one lot for all, by how long the first was
    /// away. `others` are noted here; the one that was touched is by [`Lru::map_refaulted`].
    pub fn rank_together(
        &mut self,
        table: &PageTable,
        first: Option<Node>,
        others: impl Iterator<Item = Node>,
    ) -> Rank {
        others.for_each(|node| self.set.note_back(table.shadow(node)));
        first.map_or(Rank::NEW, |node| self.set.rank_of(table.shadow(node)))
    }

    /// A swapped-out page came in because the program touched it. Its word becomes `Mapped`; whether it is hot is seen
    /// from how long it was away.
    pub fn map_refaulted(&mut self, table: &PageTable, node: Node, to: State) {
        let shadow = table.shadow(node);
        self.set.note_back(shadow);
        let rank = self.set.rank_of(shadow);
        self.set.note_read(shadow);
        self.map(table, node, to, rank);
    }

    /// Takes a `Mapped` page off its list and gives its word another value; its rank.
    pub fn unmap(&mut self, table: &PageTable, node: Node, to: State) -> Rank {
        let rank = table.rank(node.0);
        self.set.unmap(table, node.0, rank);
        table.set(node, to);
        rank
    }

    /// A `Mapped` page was moved into the frame that `to` names: it becomes the youngest cached one.
    pub fn cache(&mut self, table: &PageTable, node: Node, to: State) {
        debug_assert!(matches!(to, State::Cached(_)));
        let rank = table.rank(node.0);
        self.set.cache(table, node.0, rank);
        table.set_ranked(node, to, rank);
    }

    /// A page that was on no list comes into the swap cache although no thread has asked for it.
    pub fn cache_ahead(&mut self, table: &PageTable, node: Node, frame: FrameNo) {
        table.set_ahead(node, frame);
        self.set.cache_ahead(table, node.0);
    }

    /// Takes a page out of the swap cache if it still is in state `from` (a writer may have taken it). One that becomes
    /// `Mapped` has proved hot, unless it was read ahead: then this is its first touch.
    pub fn uncache(&mut self, table: &PageTable, node: Node, from: State, to: State) -> bool {
        let (ahead, rank) = (table.is_ahead(node), table.rank(node.0));
        if !table.change(node, from, to) {
            return false;
        }
        match (ahead, to) {
            (true, State::Mapped(_)) => self.set.touch_ahead(table, node.0, Rank::NEW),
            (true, _) => self.set.uncache_ahead(table, node.0),
            (false, State::Mapped(_)) => table.set_ranked(node, to, self.set.refault(table, node.0, rank)),
            (false, _) => self.set.uncache(table, node.0, rank),
        }
        true
    }

    /// Takes a page out of the swap cache, as [`Lru::uncache`], that is mapped although no thread has touched it: its
    /// rank stays.
    pub fn map_untouched(&mut self, table: &PageTable, node: Node, from: State, to: State) -> bool {
        let rank = table.rank(node.0);
        let won = !table.is_ahead(node) && table.change(node, from, to);
        if won {
            self.set.uncache(table, node.0, rank);
            self.set.note_kept(rank);
            self.map(table, node, to, rank);
        }
        won
    }

    /// Puts a page into the swap cache that was on no list: as the next to be stored, or the last.
    pub fn recache(&mut self, table: &PageTable, node: Node, oldest: bool) {
        self.set.recache(table, node.0, table.rank(node.0), oldest);
    }

    /// The oldest cached pages that can be taken over for writing, at most as many as `out` has room for; their words
    /// become `Writeback`. Of those read ahead only what is too much. None where probation is behind: it would be a
    /// page of main in place of one that the pager has yet to take out.
    pub fn take_for_writing(&mut self, table: &PageTable, out: &mut [(Node, FrameNo)]) -> usize {
        let mut taken = 0;
        let frame = Cell::new(FrameNo::default());
        let may = |n, shadow| {
            let state = table.state(Node(n));
            debug_assert!(matches!(state, State::Cached(_)), "a page is on these lists if its word says so: {state:?}");
            let State::Cached(f) = state else { return false };
            table.set_shadow(Node(n), shadow);
            frame.set(f);
            table.change(Node(n), State::Cached(f), State::Writeback(f))
        };
        while taken < out.len() && !self.is_behind() {
            let most = if self.set.cached() > 0 { self.ahead_max } else { AHEAD_MIN };
            let Some((n, _)) = self.set.evict_cached(table, most, &mut 0, may) else { break };
            out[taken] = (Node(n), frame.get());
            taken += 1;
        }
        taken
    }

    /// Up to `out.len()` pages to be moved out next, so that `target` are in the swap cache; they stay on their lists.
    pub fn oldest_active(&mut self, table: &PageTable, target: usize, out: &mut [u32]) -> usize {
        self.set.oldest(table, u32::try_from(target).unwrap_or(u32::MAX), out)
    }

    /// A `Mapped` page that cannot be moved for now: it becomes the youngest of its list.
    pub fn rotate(&mut self, table: &PageTable, node: Node) {
        self.set.rotate(table, node.0, table.rank(node.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::page_table::tests::{cached, table, writeback};
    use farpage_base::mem::units::Vpn;

    #[test]
    fn pages_read_ahead_wait_but_not_too_many() {
        let t = table();
        let (mut lru, first) = (Lru::new(6400), t.node_or_create(Vpn::new(0)).unwrap());
        let node = |i: u32| Node(first.0 + i);
        let mut out = [(Node(0), FrameNo::default()); 8];
        // 400 are a sixteenth of the budget.
        (0..400).for_each(|i| lru.cache_ahead(&t, node(i), FrameNo::new(i)));
        lru.map(&t, node(500), State::Mapped(None), Rank::NEW);
        lru.cache(&t, node(500), cached(500));
        assert_eq!((lru.set.ahead(), lru.cached_len()), (400, 1));
        assert_eq!(lru.take_for_writing(&t, &mut out[..1]), 1);
        assert_eq!(out[0], (node(500), FrameNo::new(500)), "what is known to be cold goes first");
        // Nothing else is cached: all but some windows go, from the oldest on.
        let taken: Vec<u32> =
            std::iter::from_fn(|| (lru.take_for_writing(&t, &mut out[..1]) > 0).then_some(out[0].1.number())).collect();
        assert_eq!(taken, (0..400 - AHEAD_MIN).collect::<Vec<_>>());
        assert_eq!(t.state(node(7)), writeback(7));
        // The first touch does not make a page hot; the list has lost it.
        let (from, to) = (cached(399), State::Mapped(None));
        assert!(lru.uncache(&t, node(399), from, to) && !lru.uncache(&t, node(399), from, to));
        assert_eq!((t.rank(node(399).0), lru.set.mapped_lens(), lru.set.ahead()), (Rank::NEW, (1, 0), 127));
        assert!(lru.uncache(&t, node(398), cached(398), State::None));
        assert_eq!((t.state(node(398)), lru.set.ahead()), (State::None, 126));
        // More than the sixteenth go although others are cached.
        (0..275).for_each(|i| lru.cache_ahead(&t, node(i), FrameNo::new(i)));
        lru.map(&t, node(501), State::Mapped(None), Rank::NEW);
        lru.cache(&t, node(501), cached(501));
        assert_eq!(lru.take_for_writing(&t, &mut out[..2]), 2);
        assert_eq!(out[..2].iter().map(|(_, f)| f.number()).collect::<Vec<_>>(), [272, 501]);
    }

    /// Main does not go in place of what the pager has yet to take out, unless that cannot be taken out.
    #[test]
    fn main_stays_while_probation_is_behind() {
        let t = table();
        let (mut lru, first) = (Lru::new(6400), t.node_or_create(Vpn::new(0)).unwrap());
        let node = |i: u32| Node(first.0 + i);
        let mut out = [(Node(0), FrameNo::default()); 8];
        (0..300).for_each(|i| lru.map(&t, node(i), State::Mapped(None), Rank::NEW));
        lru.map(&t, node(300), State::Mapped(None), Rank::HOT);
        lru.cache(&t, node(300), cached(300));
        assert!(lru.is_behind());
        assert_eq!(lru.take_for_writing(&t, &mut out), 0);
        lru.tried();
        assert_eq!((lru.take_for_writing(&t, &mut out), out[0].0), (1, node(300)));
        lru.cache(&t, node(0), cached(0));
        lru.tried();
        lru.uncache(&t, node(0), cached(0), State::Mapped(None));
        assert!(lru.is_behind(), "it could be taken out");
        lru.cache(&t, node(1), cached(1));
        assert_eq!((lru.take_for_writing(&t, &mut out), out[0].0), (1, node(1)));
    }
}
