//! Which page goes next.
//!
//! Two lists, a segmented FIFO: *active* pages are in the program, in the order in which they came in; the oldest are
//! moved out into *cached*, where they still are in RAM. A cached page that the program touches comes back at the
//! price of a minor fault, to the front of active: that is how user space, which sees no accessed bits, learns what is
//! hot. The oldest cached pages are stored on devices.
//!
//! One mutex guards both lists. While it is held, membership equals state: `Mapped` pages are on active, `Cached` ones
//! on cached, all others on none. Lock order: outside of the frame pool's; words are changed under it, nothing else is
//! called.

use crate::page_table::{Node, PageTable, State};
use farpage_swap::lru::List;

/// The lists; kept in a mutex by the engine.
#[derive(Debug)]
pub struct Lru {
    active: List,
    cached: List,
}

impl Lru {
    /// Empty lists.
    pub const fn new() -> Lru {
        Lru { active: List::new(), cached: List::new() }
    }

    /// Pages in the program.
    pub fn active_len(&self) -> usize {
        self.active.len() as usize
    }

    /// Pages in the swap cache that nobody stores yet.
    pub fn cached_len(&self) -> usize {
        self.cached.len() as usize
    }

    /// A page came into the program: its word becomes `Mapped`, and it is the youngest.
    pub fn map(&mut self, table: &PageTable, node: Node, to: State) {
        debug_assert!(matches!(to, State::Mapped(_)));
        table.set(node, to);
        self.active.push_front(table, node.0);
    }

    /// Takes a `Mapped` page off its list and gives its word another value.
    pub fn unmap(&mut self, table: &PageTable, node: Node, to: State) {
        self.active.remove(table, node.0);
        table.set(node, to);
    }

    /// A `Mapped` page was moved into frame `to` names: it becomes the youngest cached one.
    pub fn cache(&mut self, table: &PageTable, node: Node, to: State) {
        debug_assert!(matches!(to, State::Cached(_)));
        self.active.remove(table, node.0);
        table.set(node, to);
        self.cached.push_front(table, node.0);
    }

    /// Takes a page out of the swap cache if it still is in state `from` (a writer may have taken it).
    pub fn uncache(&mut self, table: &PageTable, node: Node, from: State, to: State) -> bool {
        if !table.change(node, from, to) {
            return false;
        }
        self.cached.remove(table, node.0);
        if matches!(to, State::Mapped(_)) {
            self.active.push_front(table, node.0);
        }
        true
    }

    /// Puts a page into the swap cache that was on no list: as the next to be stored, or the last.
    pub fn recache(&mut self, table: &PageTable, node: Node, oldest: bool) {
        if oldest {
            self.cached.push_back(table, node.0);
        } else {
            self.cached.push_front(table, node.0);
        }
    }

    /// The oldest cached page that could be taken over for writing; its word becomes `Writeback`.
    pub fn take_for_writing(&mut self, table: &PageTable) -> Option<(Node, crate::page_table::FrameNo)> {
        while let Some(n) = self.cached.pop_back(table) {
            let node = Node(n);
            if let State::Cached(f) = table.state(node)
                && table.change(node, State::Cached(f), State::Writeback(f))
            {
                return Some((node, f));
            }
        }
        None
    }

    /// Up to `out.len()` oldest active pages, oldest first; they stay on the list.
    pub fn oldest_active(&self, table: &PageTable, out: &mut [Node]) -> usize {
        let (mut n, mut at) = (0, self.active.back());
        while let (Some(node), true) = (at, n < out.len()) {
            out[n] = Node(node);
            n += 1;
            let prev = farpage_swap::lru::Links::prev(table, node);
            at = (prev != farpage_swap::lru::NIL).then_some(prev);
        }
        n
    }

    /// A `Mapped` page that cannot be moved for now, or was used: it becomes the youngest.
    pub fn rotate(&mut self, table: &PageTable, node: Node) {
        self.active.move_to_front(table, node.0);
    }
}

impl Default for Lru {
    fn default() -> Self {
        Lru::new()
    }
}
