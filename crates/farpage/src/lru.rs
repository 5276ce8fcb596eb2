//! The lists of the pages in memory, and their words: which page goes next.
//!
//! The policy is [`farpage_swap::workingset`]; here the words follow it. One mutex guards all lists. While it is held,
//! membership equals state: `Mapped` pages are on probation or (with the hot bit) on main, `Cached` ones are cached, all
//! others are on no list. Lock order: outside of the frame pool's; words are changed under it, nothing else is called.

use crate::page_table::{FrameNo, Node, PageTable, State};
use crate::pool_share::Distances;
use farpage_swap::workingset::WorkingSet;

/// The lists; kept in a mutex by the engine.
#[derive(Debug)]
pub struct Lru {
    set: WorkingSet,
    /// Of pages that came back from a device.
    pub distances: Distances,
}

impl Lru {
    /// Empty lists, for a budget of `pages`.
    pub const fn new(pages: usize) -> Lru {
        Lru { set: WorkingSet::new(), distances: Distances::new(pages) }
    }

    /// Pages in the program.
    pub fn active_len(&self) -> usize {
        self.set.mapped() as usize
    }

    /// Of these, the ones that proved hot.
    pub fn hot_len(&self) -> usize {
        self.set.hot() as usize
    }

    /// Pages in the swap cache that nobody stores yet.
    pub fn cached_len(&self) -> usize {
        self.set.cached() as usize
    }

    /// A page came into the program that was on no list: its word becomes `Mapped`. `hot`: it proved hot.
    pub fn map(&mut self, table: &PageTable, node: Node, to: State, hot: bool) {
        debug_assert!(matches!(to, State::Mapped(_)));
        table.set(node, to);
        if hot {
            table.set_hot(node);
        }
        self.set.map(table, node.0, hot);
    }

    /// A swapped-out page came in because the program touched it. Its word becomes `Mapped`; whether it is hot is seen
    /// from how long it was away.
    pub fn map_refaulted(&mut self, table: &PageTable, node: Node, to: State) {
        let shadow = table.shadow(node);
        let distance = self.set.distance(shadow);
        let hot = self.set.is_near(shadow);
        self.distances.note(distance.saturating_add(self.set.mapped() + self.set.cached()));
        self.map(table, node, to, hot);
    }

    /// Takes a `Mapped` page off its list and gives its word another value. Whether it was hot.
    pub fn unmap(&mut self, table: &PageTable, node: Node, to: State) -> bool {
        let hot = table.is_hot(node);
        self.set.unmap(table, node.0, hot);
        table.set(node, to);
        hot
    }

    /// A `Mapped` page was moved into the frame that `to` names: it becomes the youngest cached one.
    pub fn cache(&mut self, table: &PageTable, node: Node, to: State) {
        debug_assert!(matches!(to, State::Cached(_)));
        self.set.cache(table, node.0, table.is_hot(node));
        table.set(node, to);
    }

    /// Takes a page out of the swap cache if it still is in state `from` (a writer may have taken it). One that becomes
    /// `Mapped` has proved hot.
    pub fn uncache(&mut self, table: &PageTable, node: Node, from: State, to: State) -> bool {
        if !table.change(node, from, to) {
            return false;
        }
        self.set.uncache(table, node.0);
        if matches!(to, State::Mapped(_)) {
            table.set_hot(node);
            self.set.map(table, node.0, true);
        }
        true
    }

    /// Puts a page into the swap cache that was on no list: as the next to be stored, or the last.
    pub fn recache(&mut self, table: &PageTable, node: Node, oldest: bool) {
        self.set.recache(table, node.0, oldest);
    }

    /// The oldest cached page that could be taken over for writing; its word becomes `Writeback`.
    pub fn take_for_writing(&mut self, table: &PageTable) -> Option<(Node, FrameNo)> {
        while let Some((n, shadow)) = self.set.depart(table) {
            let node = Node(n);
            if let State::Cached(f) = table.state(node)
                && table.change(node, State::Cached(f), State::Writeback(f))
            {
                // Now, not when the page is stored: by then it may be back on a list.
                table.set_shadow(node, shadow);
                return Some((node, f));
            }
        }
        None
    }

    /// Up to `out.len()` pages to be moved out next, the first first; they stay on their lists.
    pub fn oldest_active(&self, table: &PageTable, out: &mut [u32]) -> usize {
        self.set.oldest(table, out)
    }

    /// A `Mapped` page that cannot be moved for now: it becomes the youngest of its list.
    pub fn rotate(&mut self, table: &PageTable, node: Node) {
        self.set.rotate(table, node.0, table.is_hot(node));
    }
}
